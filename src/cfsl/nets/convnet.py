"""Plain stacks of convolutions: Conv-4 and the VGG variant of the two papers.

Two layer orders are in use. Init+Tune, Pretrain+Tune and MAML++ Low-End have "conv-norm-act" with a
convolution bias and Xavier uniform weights; ProtoNets has "conv-act-norm" without bias and torch's
default weights. A pooling ends every block in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from cfsl.nets.base import Features, Images, ImageShape, NetSpec, Widths, halved
from cfsl.nets.layers import BatchNorm, Conv, Init, Layer, Norm, conv, normed_and_pooled

Order = Literal["conv-norm-act", "conv-act-norm"]
SLOPE = 0.01
"""The slope of the leaky ReLU, as published."""


class ConvNet(NetSpec):
    """Blocks of 3x3 convolution, batch norm, leaky ReLU and pooling; maps are flattened last."""

    kind: Literal["convnet"] = "convnet"
    widths: Widths
    """Filters of each block."""
    order: Order
    bias: bool
    init_rule: Init

    def layers(self, image_shape: ImageShape) -> dict[str, Layer]:
        """Return a convolution and a batch norm for each block."""
        layers: dict[str, Layer] = {}
        channels = pairwise((image_shape[0], *self.widths))
        for number, (inputs, outputs) in enumerate(channels, start=1):
            layers[f"block{number}.conv"] = Conv(inputs, outputs, bias=self.bias)
            layers[f"block{number}.norm"] = BatchNorm(outputs)
        return layers

    def feature_count(self, image_shape: ImageShape) -> int:
        """Return the size of the last maps, flattened."""
        rows, columns = halved(image_shape, len(self.widths))
        return self.widths[-1] * rows * columns

    def forward(self, params: Mapping[str, Tensor], norm: Norm, images: Images) -> Features:
        """Compute the blocks one after the other."""
        maps, inplace = images, not torch.is_grad_enabled()
        for number in range(1, len(self.widths) + 1):
            maps = conv(params, f"block{number}.conv", maps)
            if self.order == "conv-norm-act":
                # Pooling commutes with the activation, and with batch norm if no scale is negative.
                maps = normed_and_pooled(norm, f"block{number}.norm", maps)
                maps = functional.leaky_relu(maps, SLOPE, inplace)
            else:
                maps = functional.leaky_relu(maps, SLOPE, inplace)
                maps = normed_and_pooled(norm, f"block{number}.norm", maps)

        return maps.flatten(1)


def convnet(widths: tuple[int, ...], order: Order) -> ConvNet:
    """Return a stack in a published order, with the bias and first weights that go with it."""
    if order == "conv-norm-act":
        return ConvNet(widths=widths, order=order, bias=True, init_rule="xavier")
    return ConvNet(widths=widths, order=order, bias=False, init_rule="torch")


def conv4(filters: int, order: Order) -> ConvNet:
    """Return four blocks of equal width."""
    return convnet((filters,) * 4, order)


def vgg(filters: int, blocks: int, order: Order = "conv-norm-act") -> ConvNet:
    """Return the VGG variant of paper 2: block i has `filters` x i filters."""
    return convnet(tuple(filters * number for number in range(1, blocks + 1)), order)
