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
_FIELD = 5
_MOST_STRETCH = math.log(4 / 3)


def augment(
    images: Images,
    classes: Int64[Tensor, " n"],
    augmentation: Augmentation,
    generator: torch.Generator,
) -> Images:
    """Return changed copies; images of one class share their quarter turn and reflection, and nothing else."""
    if augmentation.quarter_turns:
        images = _turned(images, classes, generator)
    if augmentation.reflections:
        images = _reflected(images, classes, generator)
    if (
        augmentation.replace(quarter_turns=False, reflections=False, colour=0.0, blends=0.0)
        != Augmentation()
    ):
        images = _warped(images, augmentation, generator)
    return _recoloured(images, augmentation.colour, generator) if augmentation.colour else images


def blended(
    images: Images, augmentation: Augmentation, generator: torch.Generator
) -> tuple[Images, Int64[Tensor, " n"], float]:
    """Return images, each with another one shining through, which one that is, and the share of the first (mixup)."""
    alone = torch.arange(len(images))
    if not augmentation.blends or float(torch.rand((), generator=generator)) >= augmentation.blends:
        return images, alone, 1.0
    share = float(torch.rand((), generator=generator))
    others = torch.randperm(len(images), generator=generator)
    return share * images + (1 - share) * images[others], others, share


def _turned(images: Images, classes: Int64[Tensor, " n"], generator: torch.Generator) -> Images:
    quarters = quarters_of(images.shape[2], images.shape[3])
    turns = torch.randint(len(quarters), (int(classes.max()) + 1,), generator=generator)[classes]
    turned = images.clone()
    for number, quarter in enumerate(quarters):
        chosen = turns == number
        turned[chosen] = torch.rot90(images[chosen], quarter, (2, 3))
    return turned


def _reflected(images: Images, classes: Int64[Tensor, " n"], generator: torch.Generator) -> Images:
    mirrored = torch.randint(2, (int(classes.max()) + 1,), generator=generator)[classes] == 1
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def _warped(images: Images, augmentation: Augmentation, generator: torch.Generator) -> Images:
    """Rotate, scale, shear, shift, bend, crop and mirror each image; what comes in from outside repeats the border."""
    n, channels, height, width = images.shape
    size = (augmentation.side, augmentation.side) if augmentation.side else (height, width)

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(n, *shape, generator=generator) - 1

    angle = math.radians(augmentation.degrees) * uniform()
    scale, shear = torch.exp(augmentation.log_scale * uniform()), augmentation.shear * uniform()
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
        field = augmentation.elastic * torch.randn(n, 2, _FIELD, _FIELD, generator=generator)
        bend = functional.interpolate(field, size, mode="bicubic", align_corners=True)
        grid = grid + bend.permute(0, 2, 3, 1)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _window(augmentation: Augmentation, uniform: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Return the window that is cut out of each image: its size (negative widths mirror) and its centre."""
    area = 1 - augmentation.crop * (1 + uniform()) / 2
    stretch = torch.exp(_MOST_STRETCH * uniform()) if augmentation.crop else torch.ones_like(area)
    size = torch.stack([(area * stretch).sqrt(), (area / stretch).sqrt()], dim=1).clamp(max=1)
    centre = (1 - size) * uniform(2)
    if augmentation.mirror:
        size = size * torch.stack(
            [torch.where(uniform() < 0, -1.0, 1.0), torch.ones_like(area)], dim=1
        )
    return size, centre


def _seen_through(window: tuple[Tensor, Tensor], rows: list[Tensor]) -> list[Tensor]:
    """Look at an affinely changed image through a window."""
    size, centre = window
    return [
        torch.cat(
            [row[:, :2] * size, (row[:, :2] * centre).sum(dim=1, keepdim=True) + row[:, 2:]], dim=1
        )
        for row in rows
    ]


def _recoloured(images: Images, amount: float, generator: torch.Generator) -> Images:
    """Change brightness, contrast and saturation of each image."""

    def factor() -> Tensor:
        return 1 + amount * (2 * torch.rand(len(images), 1, 1, 1, generator=generator) - 1)

    bright = images + images.std() * (factor() - 1)
    mean = bright.mean(dim=(1, 2, 3), keepdim=True)
    contrasted = mean + (bright - mean) * factor()
    grey = contrasted.mean(dim=1, keepdim=True)
    return grey + (contrasted - grey) * factor()
