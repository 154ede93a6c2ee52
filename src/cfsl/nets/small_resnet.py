"""A small residual net for small images and one CPU core.

It comes from our own study, not from a paper: widths, one residual block a stage, and the counts of
parameters and multiply-accumulates. The arrangement below is the one that meets those counts: a
pooled stem, then in each stage a convolution to the stage's width followed by one convolution with
an identity shortcut (no projections).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from cfsl.errors import SpecError
from cfsl.nets.base import Features, Images, ImageShape, NetSpec, halved
from cfsl.nets.layers import BatchNorm, Conv, Init, Layer, Linear, Norm, conv, pool
from cfsl.spec import Count


class SmallResNet(NetSpec):
    """A stem (the first width), then one residual stage for each further width, pooled in between.

    With `embedding`, the last maps are flattened and projected to so many features, which are
    batch-normalised. With None they are averaged, and there are as many features as the last width;
    these are batch-normalised with `pooled_norm`.
    """

    kind: Literal["small_resnet"] = "small_resnet"
    widths: Annotated[tuple[Count, ...], Field(strict=False, min_length=2)] = (32, 48, 96, 128)
    stem_kernel: Literal[3, 5] = 3
    stem_stride: Literal[1, 2] = 1
    embedding: Count | None = 128
    pooled_norm: bool = False
    init_rule: Init = "he"

    def layers(self, image_shape: ImageShape) -> dict[str, Layer]:
        """Return the layers of stem, stages and projection."""
        first = self.widths[0]
        layers: dict[str, Layer] = {"stem.conv": Conv(image_shape[0], first, self.stem_kernel)}
        layers["stem.norm"] = BatchNorm(first)

        for number, (inputs, outputs) in enumerate(pairwise(self.widths), start=1):
            layers[f"stage{number}.conv1"] = Conv(inputs, outputs)
            layers[f"stage{number}.norm1"] = BatchNorm(outputs)
            layers[f"stage{number}.conv2"] = Conv(outputs, outputs)
            layers[f"stage{number}.norm2"] = BatchNorm(outputs)

        if self.embedding is not None:
            layers["embedding.linear"] = Linear(self._flat_count(image_shape), self.embedding)
            layers["embedding.norm"] = BatchNorm(self.embedding)
        elif self.pooled_norm:
            layers["pooled.norm"] = BatchNorm(self.widths[-1])
        return layers

    def feature_count(self, image_shape: ImageShape) -> int:
        """Return the size of the embedding, or the last width if there is none."""
        self._flat_count(image_shape)
        return self.widths[-1] if self.embedding is None else self.embedding

    def _flat_count(self, image_shape: ImageShape) -> int:
        rows, columns = halved(image_shape, len(self.widths) - 1, self.stem_stride)
        return self.widths[-1] * rows * columns

    def forward(self, params: Mapping[str, Tensor], norm: Norm, images: Images) -> Features:
        """Compute stem, stages and projection."""
        # In the stem, pooling comes before batch norm by design: its maps are the largest.
        maps = pool(conv(params, "stem.conv", images, self.stem_stride))
        maps = functional.relu(norm("stem.norm", maps))

        last = len(self.widths) - 1
        for number in range(1, last + 1):
            maps = _residual(params, norm, f"stage{number}", maps)
            maps = functional.relu(maps if number == last else pool(maps))

        if self.embedding is None:
            pooled = maps.mean((2, 3))
            return norm("pooled.norm", pooled) if self.pooled_norm else pooled
        return norm("embedding.norm", _projected(params["embedding.linear.weight"], maps))


def _residual(params: Mapping[str, Tensor], norm: Norm, name: str, maps: Tensor) -> Tensor:
    """Return the stage's maps before its last ReLU, which the pooling may precede."""
    maps = functional.relu(norm(f"{name}.norm1", conv(params, f"{name}.conv1", maps)))
    return maps + norm(f"{name}.norm2", conv(params, f"{name}.conv2", maps))


def _projected(weight: Tensor, maps: Tensor) -> Tensor:
    flat = maps.flatten(1)
    if flat.shape[1] != weight.shape[1]:
        raise SpecError(
            f"these weights project {weight.shape[1]} numbers, but images of this size give "
            f"{flat.shape[1]}. Give images of the size that the weights were made for, "
            f"or use embedding=None, which takes any size."
        )
    return functional.linear(flat, weight)
