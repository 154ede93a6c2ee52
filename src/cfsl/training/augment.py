"""Random changes of training images, in one resampling."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn import functional

from cfsl.training.spec import Augmentation

Images = Float32[Tensor, "n channels height width"]
_FIELD = 5


def augment(
    images: Images, classes: Int64[Tensor, " n"], augmentation: Augmentation, generator: torch.Generator
) -> Images:
    """Return changed copies; images of one class share their quarter turn, and nothing else."""
    if augmentation.quarter_turns:
        images = _turned(images, classes, generator)
    warps = augmentation.replace(quarter_turns=False) != Augmentation()
    return _warped(images, augmentation, generator) if warps else images


def _turned(images: Images, classes: Int64[Tensor, " n"], generator: torch.Generator) -> Images:
    turns = torch.randint(4, (int(classes.max()) + 1,), generator=generator)[classes]
    turned = images.clone()
    for quarter in (1, 2, 3):
        chosen = turns == quarter
        turned[chosen] = torch.rot90(images[chosen], quarter, (2, 3))
    return turned


def _warped(images: Images, augmentation: Augmentation, generator: torch.Generator) -> Images:
    """Rotate, scale, shear, shift and bend each image; what comes in from outside repeats the border."""
    n, _, height, width = images.shape

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(n, *shape, generator=generator) - 1

    angle = math.radians(augmentation.degrees) * uniform()
    scale, shear = torch.exp(augmentation.log_scale * uniform()), augmentation.shear * uniform()
    shift = augmentation.shift * uniform(2) * 2 / torch.tensor([width, height])
    cosine, sine = angle.cos() * scale, angle.sin() * scale
    rows = [torch.stack([cosine, shear - sine, shift[:, 0]], 1), torch.stack([sine, cosine, shift[:, 1]], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    if augmentation.elastic:
        field = augmentation.elastic * torch.randn(n, 2, _FIELD, _FIELD, generator=generator)
        bend = functional.interpolate(field, (height, width), mode="bicubic", align_corners=True)
        grid = grid + bend.permute(0, 2, 3, 1)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
