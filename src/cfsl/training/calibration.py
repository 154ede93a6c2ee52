"""Statistics of unchanged training images: training shows them cropped, coloured and blended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from cfsl.data.images import SplitImages
from cfsl.data.store import Dataset
from cfsl.learners.base import Calibrating, Labelled, Meta

_SHOWN_AT_ONCE = 32


@torch.no_grad()
def calibrated(learner: Any, meta: Meta, data: Dataset, device: str) -> Meta:
    """Return weights with the statistics that the learner wants; others are left as they are."""
    if not isinstance(learner, Calibrating):
        return meta

    recipe = data.info.recipe
    most, of_class = learner.calibration_images((recipe.channels, recipe.height, recipe.width))
    return learner.calibrated(meta, training_images(data, most, of_class, device))


def training_images(data: Dataset, most: int, of_class: int, device: str) -> Iterator[Labelled]:
    """Yield at most `most` images of training classes, always the same ones.

    If there are too many classes, some of them are taken, spread evenly.
    """
    classes = data.classes_of("train")
    images, sizes = SplitImages.of(data, classes), data.class_sizes[classes]
    starts = np.cumsum(sizes) - sizes
    chosen = [
        starts[c] + _spread_over(sizes[c], of_class)
        for c in _spread_over(len(classes), max(1, most // of_class))
    ]

    numbers = np.concatenate(chosen).astype(np.int32)
    labels = np.repeat(np.arange(len(chosen)), [len(of_one) for of_one in chosen])
    for start in range(0, len(numbers), _SHOWN_AT_ONCE):
        part = slice(start, start + _SHOWN_AT_ONCE)
        yield (
            torch.from_numpy(images.normalised(numbers[part])).to(device),
            torch.from_numpy(labels[part]).to(device),
        )


def _spread_over(count: int, most: int) -> Int64[np.ndarray, " chosen"]:
    """Return at most so many of the first `count` numbers, evenly apart."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round()).astype(np.int64)
