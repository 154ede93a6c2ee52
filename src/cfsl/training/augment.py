"""Random changes of training images, in one resampling."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn import functional

from cfsl.learners.views import quarters_of
from cfsl.training.training_spec import Augmentation

Images = Float32[Tensor, "n channels height width"]
_ELASTIC_FIELD = 5
"""An elastic field is drawn at so many places along each side, and interpolated."""
_MOST_STRETCH = math.log(4 / 3)
"""The logarithm of the largest change of the ratio of width to height."""


def augment(
    images: Images,
    classes: Int64[Tensor, " n"],
    augmentation: Augmentation,
    generator: torch.Generator,
) -> Images:
    """Return changed copies of images.

    Images of one class share their quarter turn and their reflection, and nothing else.
    """
    if augmentation.quarter_turns:
        images = _turned(images, classes, generator)
    if augmentation.reflections:
        images = _reflected(images, classes, generator)
    if _has_warps(augmentation):
        images = _warped(images, augmentation, generator)
    if augmentation.colour:
        images = _recoloured(images, augmentation.colour, generator)
    return images


def blended(
    images: Images, augmentation: Augmentation, generator: torch.Generator
) -> tuple[Images, Int64[Tensor, " n"], float]:
    """Return blends of each image with another one (mixup), if the update is one with blends.

    Return also which image the other one is, and the share of the first.
    """
    if not augmentation.blends or float(torch.rand((), generator=generator)) >= augmentation.blends:
        return images, torch.arange(len(images)), 1.0

    share = float(torch.rand((), generator=generator))
    others = torch.randperm(len(images), generator=generator)
    return share * images + (1 - share) * images[others], others, share


def _has_warps(augmentation: Augmentation) -> bool:
    """Tell whether any change asks for a resampling of the image."""
    rest = augmentation.replace(quarter_turns=False, reflections=False, colour=0.0, blends=0.0)
    return rest != Augmentation()


def _turned(images: Images, classes: Int64[Tensor, " n"], generator: torch.Generator) -> Images:
    quarters = quarters_of(images.shape[2], images.shape[3])
    drawn = torch.randint(len(quarters), (int(classes.max()) + 1,), generator=generator)[classes]

    turned = images.clone()
    for number, quarter in enumerate(quarters):
        chosen = drawn == number
        turned[chosen] = torch.rot90(images[chosen], quarter, (2, 3))
    return turned


def _reflected(images: Images, classes: Int64[Tensor, " n"], generator: torch.Generator) -> Images:
    mirrored = torch.randint(2, (int(classes.max()) + 1,), generator=generator)[classes] == 1
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def _warped(images: Images, augmentation: Augmentation, generator: torch.Generator) -> Images:
    """Rotate, scale, shear, shift, bend, crop and mirror each image, in one resampling.

    Places that lie outside of the image repeat its border.
    """
    n, channels, height, width = images.shape
    size = (augmentation.side, augmentation.side) if augmentation.side else (height, width)

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(n, *shape, generator=generator) - 1

    # The order of these draws decides what every seed gives.
    angle = math.radians(augmentation.degrees) * uniform()
    scale = torch.exp(augmentation.log_scale * uniform())
    shear = augmentation.shear * uniform()
    shift = augmentation.shift * uniform(2) * 2 / torch.tensor([width, height])

    cosine, sine = angle.cos() * scale, angle.sin() * scale
    rows = [
        torch.stack([cosine, shear - sine, shift[:, 0]], 1),
        torch.stack([sine, cosine, shift[:, 1]], 1),
    ]
    if augmentation.crop or augmentation.mirror:
        rows = _seen_through(_window(augmentation, uniform), rows)
    grid = functional.affine_grid(torch.stack(rows, 1), [n, channels, *size], align_corners=False)

    if augmentation.elastic:
        field = augmentation.elastic * torch.randn(
            n, 2, _ELASTIC_FIELD, _ELASTIC_FIELD, generator=generator
        )
        bend = functional.interpolate(field, size, mode="bicubic", align_corners=True)
        grid = grid + bend.permute(0, 2, 3, 1)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _window(augmentation: Augmentation, uniform: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Return the window that is cut out of each image: its size and its centre.

    A negative width mirrors the image.
    """
    area = 1 - augmentation.crop * (1 + uniform()) / 2
    stretch = torch.exp(_MOST_STRETCH * uniform()) if augmentation.crop else torch.ones_like(area)
    size = torch.stack([(area * stretch).sqrt(), (area / stretch).sqrt()], dim=1).clamp(max=1)
    centre = (1 - size) * uniform(2)

    if augmentation.mirror:
        sign = torch.where(uniform() < 0, -1.0, 1.0)
        size = size * torch.stack([sign, torch.ones_like(area)], dim=1)
    return size, centre


def _seen_through(window: tuple[Tensor, Tensor], rows: list[Tensor]) -> list[Tensor]:
    """Return the rows of an affine map of the window instead of the whole image."""
    size, centre = window
    seen = []
    for row in rows:
        linear, shift = row[:, :2], row[:, 2:]
        moved = (linear * centre).sum(dim=1, keepdim=True) + shift
        seen.append(torch.cat([linear * size, moved], dim=1))
    return seen


def _recoloured(images: Images, amount: float, generator: torch.Generator) -> Images:
    """Change brightness, contrast and saturation of each image."""

    def factor() -> Tensor:
        return 1 + amount * (2 * torch.rand(len(images), 1, 1, 1, generator=generator) - 1)

    # Contrast moves values away from the mean of the image, saturation away from grey.
    bright = images + images.std() * (factor() - 1)
    mean = bright.mean(dim=(1, 2, 3), keepdim=True)
    contrasted = mean + (bright - mean) * factor()
    grey = contrasted.mean(dim=1, keepdim=True)
    return grey + (contrasted - grey) * factor()
