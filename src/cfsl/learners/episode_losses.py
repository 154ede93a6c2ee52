"""Losses of episodes in which the images of a class take turns: as its only prototype, or as the one left out."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from cfsl.learners.metric import Metric, closeness

Grouped = Float[Tensor, "classes images features"]
_SHORTEST = 1e-6
"""Of a mean, whose length is divided by: images may cancel each other, or all be nothing."""


def grouped_by_class(features: Float[Tensor, "n features"], labels: Int64[Tensor, " n"]) -> Grouped:
    """Return features by class; all classes have as many images."""
    return features[torch.argsort(labels, stable=True)].view(
        int(labels.max()) + 1, -1, features.shape[1]
    )


def one_shot_loss(scale: Tensor, grouped: Grouped, metric: Metric) -> Float[Tensor, ""]:
    """Return the cross-entropy of images given one other of every class, averaged over which one that is."""
    classes, images, _ = grouped.shape
    answers = torch.arange(classes, device=grouped.device).repeat_interleave(images - 1)
    losses = []
    for turn in range(images):
        others = [i for i in range(images) if i != turn]
        queries = grouped[:, others].flatten(0, 1)
        losses.append(
            functional.cross_entropy(scale * closeness(queries, grouped[:, turn], metric), answers)
        )
    return torch.stack(losses).mean()


def left_out_loss(scale: Tensor, grouped: Grouped, length_power: float) -> Float[Tensor, ""]:
    """Return the cross-entropy of images given the mean of all others of every class, averaged over who is left out.

    Features have length 1 in the mean, and closeness is the cosine over a power of the mean's length. That length is
    taken as given: a class is not to be spread out so that it looks closer.
    """
    unit = functional.normalize(grouped, dim=2)
    classes, images, _ = unit.shape
    means = (unit.sum(dim=1, keepdim=True) - unit) / (images - 1)
    lengths = means.detach().norm(dim=2).clamp_min(_SHORTEST) ** length_power
    answers = torch.arange(classes, device=grouped.device)
    losses = [
        functional.cross_entropy(
            scale * closeness(unit[:, turn], means[:, turn], "cosine") / lengths[:, turn], answers
        )
        for turn in range(images)
    ]
    return torch.stack(losses).mean()
