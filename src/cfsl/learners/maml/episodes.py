"""The tasks of a batch, one by one, with images as an inner loop sees them: maybe embedded."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from cfsl.data.tasks import TaskBatch
from cfsl.learners.base import Meta, Support
from cfsl.learners.maml.step_tables import add_prefix, strip_prefix
from cfsl.nets.base import NetSpec
from cfsl.nets.layers import Params, Stats

Images: TypeAlias = Shaped[Tensor, "n *shape"]


class Episode(NamedTuple):
    """One task to learn from, its images as the inner loop sees them."""

    supports: list[Support]
    targets: Images
    labels: Int64[Tensor, " n"]


def episodes_of(
    batch: TaskBatch,
    supports: Shaped[Tensor, "tasks sets images *shape"],
    targets: Shaped[Tensor, "tasks targets *shape"],
) -> list[Episode]:
    """Return the tasks of a batch one by one, with these in the place of their images."""
    of_tasks = zip(supports, batch.support_labels, targets, batch.target_labels, strict=True)
    return [
        Episode(list(map(Support, sets, labels_of_sets)), target_images, target_labels)
        for sets, labels_of_sets, target_images, target_labels in of_tasks
    ]


def embedded(net: NetSpec, meta: Meta, images: Images) -> Float[Tensor, "n features"]:
    """Embed each image on its own."""
    params, stats = (strip_prefix(meta[kind], "embedding.") for kind in ("params", "stats"))
    return net.features(params, stats, images, norm="running")


def embedded_episodes(
    net: NetSpec, params: Params, stats: Stats, batch: TaskBatch
) -> tuple[list[Episode], Stats]:
    """Embed all images of some tasks in one batch, as an embedding is trained.

    Also return the statistics of the embedding after it saw them.
    """
    images = torch.cat([batch.support_images.flatten(0, 2), batch.target_images.flatten(0, 1)])
    features, moved = net.training_features(
        strip_prefix(params, "embedding."),
        strip_prefix(stats, "embedding."),
        images.to(memory_format=torch.channels_last),
    )

    count = batch.support_labels.numel()
    supports = features[:count].view(*batch.support_labels.shape, -1)
    targets = features[count:].view(*batch.target_labels.shape, -1)
    return episodes_of(batch, supports, targets), stats | add_prefix("embedding.", moved)
