"""Views of an image: in another orientation, moved by a pixel, in another size."""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor
from torch.nn import functional

Images = Float32[Tensor, "n channels height width"]


def oriented_views(images: Images) -> list[Images]:
    """Return images in every orientation that keeps their shape: eight, or four if not square.

    First come the rotations of the images, then those of their mirror images.
    """
    quarters = quarters_of(images.shape[2], images.shape[3])
    return [
        torch.rot90(reflection, quarter, (2, 3))
        for reflection in (images, images.flip(3))
        for quarter in quarters
    ]


def orders_of_orientations(height: int, width: int) -> list[list[int]]:
    """Return, for each orientation of an image, the order that its `oriented_views` then come in.

    If o is the order of an orientation, view i of the image in that orientation is view o[i] of the
    image as it is.
    """
    count = len(quarters_of(height, width))
    orders = []
    for rotation in range(count):
        plain = [(view + rotation) % count for view in range(count)]
        mirrored = [count + (view - rotation) % count for view in range(count)]
        orders += [plain + mirrored, mirrored + plain]

    return orders


def quarters_of(height: int, width: int) -> tuple[int, ...]:
    """Return the rotations, in quarter turns, that keep the shape of an image."""
    return (0, 1, 2, 3) if height == width else (0, 2)


def shifted_views(images: Images) -> list[Images]:
    """Return images as they are, and moved by one pixel up, down, left and right."""
    height, width = images.shape[2:]
    padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
    return [
        padded[:, :, down : down + height, right : right + width]
        for down, right in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    ]


def resized_view(images: Images, size: float) -> Images:
    """Return images `size` times as large: other layers of a net then respond to what they show."""
    if size == 1:
        return images
    return functional.interpolate(images, scale_factor=size, mode="bilinear", align_corners=False)
