"""Nearest neighbour on raw pixels: keeps everything and learns nothing. A control."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from cfsl.learners.base import Meta, State, Support, TaskInfo
from cfsl.learners.metric import closeness
from cfsl.spec import FrozenSpec


class PixelNN(FrozenSpec):
    """Stores every support image; the answer is the label of the nearest one."""

    kind: Literal["pixel_nn"] = "pixel_nn"

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n pixels"]:
        """Lay the pixels out in a row."""
        return images.flatten(1)

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Start without stored images."""
        channels, height, width = info.image_shape
        return {
            "info": info,
            "images": torch.zeros(0, channels * height * width, device=info.device),
            "labels": torch.zeros(0, dtype=torch.int64, device=info.device),
        }

    def observe(self, state: State, support: Support) -> State:
        """Store the support set."""
        return state | {
            "images": torch.cat([state["images"], support.images]),
            "labels": torch.cat([state["labels"], support.labels]),
        }

    def predict(self, state: State, images: Float[Tensor, "n pixels"]) -> Float[Tensor, "n labels"]:
        """Give each label its nearest image's closeness."""
        close = closeness(images, state["images"], "euclidean")
        logits = close.new_full((len(images), state["info"].labels), float("-inf"))
        return logits.scatter_reduce(1, state["labels"].expand(len(images), -1), close, "amax")
