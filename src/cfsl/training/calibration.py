"""What a learner wants to know of training images as they are: training shows them cropped, coloured and blended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from cfsl.data.images import SplitImages
from cfsl.data.store import Dataset
from cfsl.learners.base import Meta

Images = Float32[Tensor, "n channels height width"]

_IMAGES, _AT_ONCE = 1024, 64


@runtime_checkable
class Calibrating(Protocol):
    """A learner whose embedding rests on statistics of training images."""

    def calibrated(self, meta: Meta, batches: Iterable[Images]) -> Meta:
        """Return the weights with these statistics."""
        ...


@torch.no_grad()
def calibrated(learner: Any, meta: Meta, data: Dataset, device: str) -> Meta:
    """Return weights with what the learner wants to know of training images; others are left as they are."""
    if not isinstance(learner, Calibrating):
        return meta
    return learner.calibrated(meta, _training_images(data, device))


def _training_images(data: Dataset, device: str) -> Iterator[Images]:
    """Yield images that are spread evenly over the training classes: always the same ones."""
    images = SplitImages.of(data, data.classes_of("train"))
    count = len(images.rows)
    chosen = np.unique(np.linspace(0, count - 1, min(_IMAGES, count)).round()).astype(np.int32)
    for start in range(0, len(chosen), _AT_ONCE):
        yield torch.from_numpy(images.normalised(chosen[start : start + _AT_ONCE])).to(device)
