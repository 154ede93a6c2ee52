"""Which training classes look most like each other, to a net that is being trained."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional

from cfsl.data.store import Dataset
from cfsl.learners.base import Meta
from cfsl.nets.base import NetSpec
from cfsl.training.calibration import training_images

_IMAGES = 8
"""Of a class."""
_ROWS = 1024
"""Compared with all classes at once."""


@torch.no_grad()
def nearest_classes(
    net: NetSpec, meta: Meta, data: Dataset, nearest: int
) -> Int64[np.ndarray, "classes nearest"]:
    """Return for every training class those whose mean embeddings have the largest cosine with its own.

    There are fewer than `nearest` if there are as few classes.
    """
    count = len(data.classes_of("train"))
    device = next(iter(meta["params"].values())).device
    features, classes = [], []
    for images, labels in training_images(data, _IMAGES * count, _IMAGES, str(device)):
        embedded = net.features(meta["params"], meta["stats"], images, norm="running")
        features.append(functional.normalize(embedded, dim=1))
        classes.append(labels)
    embedded = torch.cat(features)
    sums = embedded.new_zeros(count, embedded.shape[1]).index_add(0, torch.cat(classes), embedded)
    means = functional.normalize(sums, dim=1)
    rows = [_nearest(means, start, min(nearest, count - 1)) for start in range(0, count, _ROWS)]
    return torch.cat(rows).cpu().numpy()


def _nearest(means: Tensor, start: int, nearest: int) -> Tensor:
    """Return the classes that are closest to those from `start` on."""
    rows = means[start : start + _ROWS]
    cosines = rows @ means.T
    own = torch.arange(len(rows), device=means.device)
    cosines[own, start + own] = -2
    return cosines.topk(nearest, dim=1).indices
