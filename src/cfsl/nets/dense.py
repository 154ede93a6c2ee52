"""The squeeze-and-excite DenseNet of MAML++ High-End, and the small net that adapts on top of it.

Antoniou and Storkey, "Learning to Learn via Self-Critique" (NeurIPS 2019); sizes as in the code of
Antoniou et al., "Defining Benchmarks for Continual Few-Shot Learning" (2020). Huang et al.,
"Densely Connected Convolutional Networks" (CVPR 2017); Hu, Shen and Sun, "Squeeze-and-Excitation
Networks" (CVPR 2018), here without a bottleneck: one linear layer from the channels' means to a
factor between 0 and 1 for each channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from cfsl.nets.base import Features, Images, ImageShape, NetSpec, halved
from cfsl.nets.layers import BatchNorm, Conv, Init, Layer, Linear, Norm, conv, pool
from cfsl.spec import Count

_SLOPE = 0.01
_EMBEDDING = "embedding."


class DenseNet(NetSpec):
    """A stem, and stages of blocks that each add `filters` channels.

    A block scales its input by squeeze-and-excite, and puts a 1x1 and a 3x3 layer of it beside the
    scaled input. Every stage ends with pooling and a 1x1 layer. The last maps are averaged to
    `size` x `size` whatever the size of the images, and flattened.
    """

    kind: Literal["dense"] = "dense"
    filters: Count = 64
    stages: Count = 2
    blocks: Count = 2
    """Blocks of a stage."""
    size: Count = 5
    init_rule: Init = "torch"

    def map_shape(self) -> ImageShape:
        """Return the shape of the last maps before they are flattened."""
        return self.filters * (1 + self.stages * self.blocks), self.size, self.size

    def layers(self, image_shape: ImageShape) -> dict[str, Layer]:
        """Return the layers of the stem and all stages."""
        layers = _layer("stem", image_shape[0], self.filters, 3)
        for name, channels, transition in self._blocks():
            layers[f"{name}.squeeze"] = Linear(channels, channels, bias=True)
            layers |= _layer(f"{name}.narrow", channels, self.filters, 1)
            layers |= _layer(f"{name}.wide", self.filters, self.filters, 3)
            if transition is not None:
                layers |= _layer(transition, channels + self.filters, channels + self.filters, 1)
        return layers

    def feature_count(self, image_shape: ImageShape) -> int:
        """Return the size of the last maps, flattened."""
        halved(image_shape, self.stages)
        channels, rows, columns = self.map_shape()
        return channels * rows * columns

    def forward(self, params: Mapping[str, Tensor], norm: Norm, images: Images) -> Features:
        """Compute stem and stages."""
        maps = _activated(params, norm, "stem", images)
        for name, _, transition in self._blocks():
            maps = _excited(params, f"{name}.squeeze", maps)
            added = _activated(params, norm, f"{name}.narrow", maps)
            added = _activated(params, norm, f"{name}.wide", added)
            maps = torch.cat([maps, added], dim=1)
            if transition is not None:
                maps = _activated(params, norm, transition, functional.avg_pool2d(maps, 2))

        return functional.adaptive_avg_pool2d(maps, self.size).flatten(1)

    def _blocks(self) -> Iterator[tuple[str, int, str | None]]:
        """Yield the name of each block, its input channels, and the layer that ends its stage.

        The last is None for a block that is not the last one of its stage.
        """
        for number in range(self.stages * self.blocks):
            stage, block = divmod(number, self.blocks)
            name = f"stage{stage + 1}"
            transition = f"{name}.transition" if block == self.blocks - 1 else None
            yield f"{name}.block{block + 1}", self.filters * (number + 1), transition


class SqueezeConv(NetSpec):
    """One 3x3 convolution between two squeeze-and-excites, averaged: for maps of another net."""

    kind: Literal["squeeze_conv"] = "squeeze_conv"
    filters: Count = 48
    init_rule: Init = "xavier"

    def layers(self, image_shape: ImageShape) -> dict[str, Layer]:
        """Return the layers in the order of computation."""
        channels = image_shape[0]
        return {
            "squeeze1": Linear(channels, channels, bias=True),
            "conv": Conv(channels, self.filters, bias=True),
            "norm": BatchNorm(self.filters),
            "squeeze2": Linear(self.filters, self.filters, bias=True),
        }

    def feature_count(self, image_shape: ImageShape) -> int:
        """Return one feature a filter."""
        halved(image_shape, 1)
        return self.filters

    def forward(self, params: Mapping[str, Tensor], norm: Norm, images: Images) -> Features:
        """Scale the channels, convolve, scale again, and average over the last maps."""
        maps = conv(params, "conv", _excited(params, "squeeze1", images))
        return self._features(params, pool(norm("norm", maps)))

    def features_and_filter_inputs(
        self, params: Mapping[str, Tensor], norm: Norm, images: Images
    ) -> tuple[Features, Float[Tensor, "n inputs"]]:
        """Return the features, and for each filter the inputs that a gradient step would add to it.

        Max-pooling takes a filter's answer at one position of each window, and only the inputs at
        these positions count. They are summed, those with a negative answer times the slope of the
        leaky ReLU: the gradient of the filter's feature by the centre of its kernel, but for what
        batch norm and the second squeeze-and-excite scale it with.
        """
        inputs = _excited(params, "squeeze1", images)
        maps = norm("norm", conv(params, "conv", inputs))
        pooled, positions = functional.max_pool2d(maps, 2, return_indices=True)

        slopes = torch.where(pooled.detach() > 0, 1.0, _SLOPE).to(inputs.dtype)
        counted = inputs.new_zeros(*maps.shape[:2], maps.shape[2] * maps.shape[3])
        counted = counted.scatter(2, positions.flatten(2), slopes.flatten(2))
        of_filters = torch.bmm(counted, inputs.flatten(2).transpose(1, 2))
        return self._features(params, pooled), of_filters.flatten(1)

    def _features(self, params: Mapping[str, Tensor], pooled: Tensor) -> Features:
        maps = functional.leaky_relu(pooled, _SLOPE)
        return _excited(params, "squeeze2", maps).mean((2, 3))


class HighEndNet(NetSpec):
    """The DenseNet and the small net on its maps as one network: MAML++ High-End before its head.

    It is for training both together, before there is an inner loop. The weights of the DenseNet
    have the names that they have in MAML++ High-End.
    """

    kind: Literal["high_end"] = "high_end"
    embedding: DenseNet = DenseNet()
    net: SqueezeConv = SqueezeConv()
    appends_filter_inputs: bool = False
    """Whether the inputs that a gradient step would add to each filter follow the features."""
    init_rule: Init = "torch"

    def layers(self, image_shape: ImageShape) -> dict[str, Layer]:
        """Return the layers of both."""
        deep = self.embedding.layers(image_shape)
        small = self.net.layers(self.embedding.map_shape())
        return {f"{_EMBEDDING}{name}": layer for name, layer in deep.items()} | small

    def feature_count(self, image_shape: ImageShape) -> int:
        """Return the features of the small net, and the inputs of its filters if asked for."""
        self.embedding.feature_count(image_shape)
        maps = self.embedding.map_shape()
        inputs = self.net.filters * maps[0] if self.appends_filter_inputs else 0
        return self.net.feature_count(maps) + inputs

    def forward(self, params: Mapping[str, Tensor], norm: Norm, images: Images) -> Features:
        """Embed images, and give their maps to the small net."""
        deep = {
            name.removeprefix(_EMBEDDING): tensor
            for name, tensor in params.items()
            if name.startswith(_EMBEDDING)
        }

        flat = self.embedding.forward(
            deep, lambda name, maps: norm(_EMBEDDING + name, maps), images
        )
        maps = flat.view(len(images), *self.embedding.map_shape())

        if not self.appends_filter_inputs:
            return self.net.forward(params, norm, maps)
        return torch.cat(self.net.features_and_filter_inputs(params, norm, maps), dim=1)


def _layer(name: str, inputs: int, outputs: int, kernel: int) -> dict[str, Layer]:
    return {f"{name}.conv": Conv(inputs, outputs, kernel), f"{name}.norm": BatchNorm(outputs)}


def _activated(params: Mapping[str, Tensor], norm: Norm, name: str, maps: Tensor) -> Tensor:
    return functional.leaky_relu(norm(f"{name}.norm", conv(params, f"{name}.conv", maps)), _SLOPE)


def _excited(params: Mapping[str, Tensor], name: str, maps: Tensor) -> Tensor:
    """Scale every channel by a factor, which a linear layer computes from all channels' means."""
    factors = functional.linear(maps.mean((2, 3)), params[f"{name}.weight"], params[f"{name}.bias"])
    return maps * torch.sigmoid(factors)[:, :, None, None]
