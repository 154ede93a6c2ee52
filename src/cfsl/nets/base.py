"""What a backbone is: a frozen spec, and pure functions of (params, stats, images)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from cfsl.errors import SpecError
from cfsl.nets.layers import (
    Init,
    Layer,
    Norm,
    Params,
    Stats,
    batch_norm,
    in_layout_of,
    init_layers,
    moved_stats,
    running_norm,
)
from cfsl.spec import Count, FrozenSpec

ImageShape = tuple[int, int, int]
"""Channels, height, width."""
Images = Float[Tensor, "n channels height width"]
Features = Float[Tensor, "n features"]
Widths = Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]


class NetSpec(FrozenSpec):
    """A backbone without weights: it says what layers there are and what they compute.

    Nothing is kept between calls and no global generator is read: equal arguments give equal
    results, and gradients flow to `params` and `images` under autograd and torch.func alike.
    """

    init_rule: Init

    @abstractmethod
    def layers(self, image_shape: ImageShape) -> dict[str, Layer]:
        """Return the layers by name, in the order in which their weights are drawn."""

    @abstractmethod
    def feature_count(self, image_shape: ImageShape) -> int:
        """Return the number of features of an image; refuse images that are too small."""

    @abstractmethod
    def forward(self, params: Mapping[str, Tensor], norm: Norm, images: Images) -> Features:
        """Compute the features, with `norm` in the place of every batch norm."""

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> tuple[Params, Stats]:
        """Draw first weights, float32 on the generator's device.

        Running statistics start at mean 0 and variance 1.
        """
        self.feature_count(image_shape)
        return init_layers(self.layers(image_shape), self.init_rule, generator)

    def features(
        self,
        params: Mapping[str, Tensor],
        stats: Mapping[str, Tensor],
        images: Images,
        *,
        norm: Literal["running", "batch"],
    ) -> Features:
        """Embed images, normalised by running statistics or by those of the batch."""
        self.feature_count(_shape(images))
        images = in_layout_of(params, images)
        if norm == "running":
            return self.forward(params, running_norm(params, stats), images)
        return self.forward(params, batch_norm(params, {}), images)

    def training_features(
        self,
        params: Mapping[str, Tensor],
        stats: Mapping[str, Tensor],
        images: Images,
        momentum: float = 0.1,
    ) -> tuple[Features, Stats]:
        """Embed images with the statistics of the batch; also return the running ones after it.

        Images in bfloat16 have maps in bfloat16, but features and statistics in float32.
        """
        self.feature_count(_shape(images))
        measured: Stats = {}
        norm = batch_norm(params, measured)
        images = in_layout_of(params, images)

        if images.dtype is torch.bfloat16:
            with torch.autocast(images.device.type, torch.bfloat16):
                features = self.forward(params, norm, images).float()
        else:
            features = self.forward(params, norm, images)
        return features, moved_stats(stats, {**stats, **measured}, momentum)


def _shape(images: Images) -> ImageShape:
    channels, height, width = images.shape[1:]
    return channels, height, width


def halved(image_shape: ImageShape, times: int, stride: int = 1) -> tuple[int, int]:
    """Return the size of the maps after a first `stride` and so many poolings.

    Images whose maps would vanish are refused.
    """
    _, height, width = image_shape
    rows, columns = (-(-side // stride) >> times for side in (height, width))
    if min(rows, columns) < 1:
        least = stride * (2**times - 1) + 1
        raise SpecError(
            f"images of {height}x{width} vanish in this network, which halves them {times} times; "
            f"they must be at least {least}x{least}. Enlarge the images, or take fewer blocks."
        )
    return rows, columns
