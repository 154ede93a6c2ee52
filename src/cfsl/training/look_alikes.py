"""Which training classes look most alike to a network that is being trained."""

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

_IMAGES_OF_CLASS = 8
"""A class is the mean of so many of its images."""
_COMPARED_AT_ONCE = 1024
"""So many classes are compared with all classes at once."""


@torch.no_grad()
def nearest_classes(
    net: NetSpec, meta: Meta, data: Dataset, nearest: int
) -> Int64[np.ndarray, "classes nearest"]:
    """Return the nearest classes of every training class.

    These are the classes whose mean embeddings have the largest cosine with its own: `nearest` of
    them, or all others if there are fewer.
    """
    count = len(data.classes_of("train"))
    device = next(iter(meta["params"].values())).device
    shown = training_images(data, _IMAGES_OF_CLASS * count, _IMAGES_OF_CLASS, str(device))

    features, classes = [], []
    for images, labels in shown:
        embedded = net.features(meta["params"], meta["stats"], images, norm="running")
        features.append(functional.normalize(embedded, dim=1))
        classes.append(labels)

    embedded = torch.cat(features)
    sums = embedded.new_zeros(count, embedded.shape[1]).index_add(0, torch.cat(classes), embedded)
    means = functional.normalize(sums, dim=1)

    nearest = min(nearest, count - 1)
    starts = range(0, count, _COMPARED_AT_ONCE)
    return torch.cat([_nearest(means, start, nearest) for start in starts]).cpu().numpy()


def _nearest(means: Tensor, start: int, nearest: int) -> Tensor:
    """Return the nearest classes of the next ones from `start` on."""
    rows = means[start : start + _COMPARED_AT_ONCE]
    cosines = rows @ means.T
    own = torch.arange(len(rows), device=means.device)
    cosines[own, start + own] = -2  # below every cosine: no class is its own look-alike
    return cosines.topk(nearest, dim=1).indices
