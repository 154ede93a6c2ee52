"""ResNet-12 as few-shot learning uses it.

Widths 64-160-320-640, leaky ReLU of slope 0.1, global average pooling and Kaiming normal weights
are the choice of Lee et al., "Meta-Learning with Differentiable Convex Optimization" (CVPR 2019),
which most later papers follow; 64-128-256-512 is in use as well and is a `replace(widths=...)`.

Where it departs from the paper: there is no DropBlock, since features are a pure function of
(params, images).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

from torch import Tensor
from torch.nn import functional

from cfsl.nets.base import Features, Images, ImageShape, NetSpec, Widths, halved
from cfsl.nets.layers import BatchNorm, Conv, Init, Layer, Norm, conv, pool

_SLOPE = 0.1


class ResNet12(NetSpec):
    """For each width, three 3x3 convolutions with a 1x1 shortcut beside them, and pooling."""

    kind: Literal["resnet12"] = "resnet12"
    widths: Widths = (64, 160, 320, 640)
    init_rule: Init = "he"

    def layers(self, image_shape: ImageShape) -> dict[str, Layer]:
        """Return the layers of all blocks."""
        layers: dict[str, Layer] = {}
        channels = pairwise((image_shape[0], *self.widths))
        for number, (inputs, outputs) in enumerate(channels, start=1):
            layers |= _block_layers(f"block{number}", inputs, outputs)
        return layers

    def feature_count(self, image_shape: ImageShape) -> int:
        """Return the last width: one feature a channel."""
        halved(image_shape, len(self.widths))
        return self.widths[-1]

    def forward(self, params: Mapping[str, Tensor], norm: Norm, images: Images) -> Features:
        """Compute the blocks and average each channel over the last maps."""
        maps = images
        for number in range(1, len(self.widths) + 1):
            maps = _block(params, norm, f"block{number}", maps)
        return maps.mean((2, 3))


def _block_layers(name: str, inputs: int, outputs: int) -> dict[str, Layer]:
    return {
        f"{name}.conv1": Conv(inputs, outputs),
        f"{name}.norm1": BatchNorm(outputs),
        f"{name}.conv2": Conv(outputs, outputs),
        f"{name}.norm2": BatchNorm(outputs),
        f"{name}.conv3": Conv(outputs, outputs),
        f"{name}.norm3": BatchNorm(outputs),
        f"{name}.shortcut.conv": Conv(inputs, outputs, kernel=1),
        f"{name}.shortcut.norm": BatchNorm(outputs),
    }


def _block(params: Mapping[str, Tensor], norm: Norm, name: str, maps: Tensor) -> Tensor:
    shortcut = norm(f"{name}.shortcut.norm", conv(params, f"{name}.shortcut.conv", maps))
    for number in (1, 2):
        maps = norm(f"{name}.norm{number}", conv(params, f"{name}.conv{number}", maps))
        maps = functional.leaky_relu(maps, _SLOPE)
    maps = norm(f"{name}.norm3", conv(params, f"{name}.conv3", maps))
    return functional.leaky_relu(pool(maps + shortcut), _SLOPE)
