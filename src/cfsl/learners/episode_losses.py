"""Losses of episodes whose images take turns.

Each image of a class is in turn the only one that is shown of it, or the one that is left out.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from cfsl.learners.metric import Metric, closeness

Grouped = Float[Tensor, "classes images features"]
_SHORTEST = 1e-6
"""The least length that a closeness is divided by: the images of a class may cancel each other
out, or all be zero."""


def grouped_by_class(features: Float[Tensor, "n features"], labels: Int64[Tensor, " n"]) -> Grouped:
    """Return features by class; all classes have as many images."""
    in_order = features[torch.argsort(labels, stable=True)]
    return in_order.view(int(labels.max()) + 1, -1, features.shape[1])


def one_shot_loss(scale: Tensor, grouped: Grouped, metric: Metric) -> Float[Tensor, ""]:
    """Return the cross-entropy of images given one other of every class, averaged over all."""
    classes, images, _ = grouped.shape
    answers = torch.arange(classes, device=grouped.device).repeat_interleave(images - 1)

    losses = []
    for shown in range(images):
        others = [image for image in range(images) if image != shown]
        queries = grouped[:, others].flatten(0, 1)
        logits = scale * closeness(queries, grouped[:, shown], metric)
        losses.append(functional.cross_entropy(logits, answers))
    return torch.stack(losses).mean()


def left_out_loss(scale: Tensor, grouped: Grouped, length_power: float) -> Float[Tensor, ""]:
    """Return the cross-entropy of images given the mean of all others of every class.

    It is averaged over which image is left out. Features have length 1 in the mean, and closeness
    is the cosine over a power of the length of the mean. No gradient flows through that length: a
    class is not to be spread out so that it looks closer.
    """
    unit = functional.normalize(grouped, dim=2)
    classes, images, _ = unit.shape
    means = (unit.sum(dim=1, keepdim=True) - unit) / (images - 1)
    lengths = means.detach().norm(dim=2).clamp_min(_SHORTEST) ** length_power
    answers = torch.arange(classes, device=grouped.device)

    losses = []
    for left_out in range(images):
        cosines = closeness(unit[:, left_out], means[:, left_out], "cosine")
        logits = scale * cosines / lengths[:, left_out]
        losses.append(functional.cross_entropy(logits, answers))
    return torch.stack(losses).mean()
