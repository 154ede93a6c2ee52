"""Ways to look at an image: turned and mirrored, moved by a pixel, in another size."""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor
from torch.nn import functional

Images = Float32[Tensor, "n channels height width"]


def turned_views(images: Images) -> list[Images]:
    """Return images and their mirror images, in as many turns as keep their shape: by quarters, if they are square."""
    quarters = quarters_of(images.shape[2], images.shape[3])
    return [
        torch.rot90(seen, quarter, (2, 3))
        for seen in (images, images.flip(3))
        for quarter in quarters
    ]


def turned_orders(height: int, width: int) -> list[list[int]]:
    """Return the orders that the views of an image come in when it is turned, or mirrored and turned, itself."""
    count = len(quarters_of(height, width))
    orders = []
    for turn in range(count):
        plain = [(view + turn) % count for view in range(count)]
        mirrored = [count + (view - turn) % count for view in range(count)]
        orders += [plain + mirrored, mirrored + plain]
    return orders


def quarters_of(height: int, width: int) -> tuple[int, ...]:
    """Return the turns, in quarters, that keep the shape of an image."""
    return (0, 1, 2, 3) if height == width else (0, 2)


def shifted_views(images: Images) -> list[Images]:
    """Return images and their neighbours by one pixel."""
    height, width = images.shape[2:]
    padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
    return [
        padded[:, :, down : down + height, right : right + width]
        for down, right in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    ]


def resized_view(images: Images, size: float) -> Images:
    """Return images in another size: things that are small or large in them are then seen by other layers."""
    if size == 1:
        return images
    return functional.interpolate(images, scale_factor=size, mode="bilinear", align_corners=False)
