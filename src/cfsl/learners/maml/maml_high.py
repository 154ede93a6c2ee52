"""MAML++ High-End: a deep embedding that is fixed in a task, and a small net on top that adapts.

Antoniou and Storkey, "Learning to Learn via Self-Critique" (NeurIPS 2019); Antoniou, Patacchiola,
Ochal and Storkey, "Defining Benchmarks for Continual Few-Shot Learning" (2020), appendix A. The
inner loop is in `inner_loop.py`. What adapts is squeeze-and-excite, a convolution,
squeeze-and-excite again, and a linear head.

Where it departs from the published code:

- Every image is embedded on its own, by running statistics of batch norm. That code embeds all
  support sets and all targets of a task in one batch, by the statistics of that batch. The data
  flow of the benchmark forbids this: a support set is seen before the next one is there. Training
  does as that code does: it embeds all images of the tasks of an update in one batch, and gathers
  the running statistics. An image is embedded once, with one gradient through its embedding,
  however many steps are taken on it.
- Batch norm in the small net does not look at the targets by default; norm="batch" is as published.
- The published outer loss has two terms. Without a critic they are the same, and their weights sum
  to 1: here they are one term.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from cfsl.data.tasks import TaskBatch
from cfsl.learners.base import Meta
from cfsl.learners.maml.episodes import Episode, Images, embedded, embedded_episodes
from cfsl.learners.maml.inner_loop import InnerLoop
from cfsl.learners.maml.step_tables import add_prefix, first_head, linear_head, split_scales
from cfsl.nets import DenseNet, ImageShape, SqueezeConv
from cfsl.nets.layers import Norm, Params, Stats
from cfsl.spec import TaskSpec


class MamlHigh(InnerLoop):
    """Adapts a small net on the maps of a fixed embedding."""

    kind: Literal["maml_high"] = "maml_high"
    embedding: DenseNet = DenseNet()
    net: SqueezeConv = SqueezeConv()

    def init_for(self, image_shape: ImageShape, task: TaskSpec, generator: torch.Generator) -> Meta:
        """Draw first weights for tasks of this shape."""
        return high_end_weights(self, self.embedding, self.net, image_shape, task, generator)

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n features"]:
        """Return the flattened maps of each image on its own."""
        return embedded(self.embedding, meta, images)

    def episodes(
        self, params: Params, stats: Stats, batch: TaskBatch
    ) -> tuple[list[Episode], Stats]:
        """Embed all images of the tasks at once."""
        return embedded_episodes(self.embedding, params, stats, batch)

    def classify(
        self, weights: Mapping[str, Tensor], norm: Norm, images: Images
    ) -> Float[Tensor, "n labels"]:
        """Return the head's logits on the features of the small net."""
        maps = images.view(len(images), *self.embedding.map_shape())
        return linear_head(weights, self.net.forward(weights, norm, maps))


def high_end_weights(
    learner: InnerLoop,
    embedding: DenseNet,
    net: SqueezeConv,
    image_shape: ImageShape,
    task: TaskSpec,
    generator: torch.Generator,
) -> Meta:
    """Draw the embedding, the small net and the head."""
    params, stats = embedding.init(image_shape, generator)

    map_shape = embedding.map_shape()
    adapting, own_stats = net.init(map_shape, generator)
    weights, scales = split_scales(adapting, net.layers(map_shape))
    weights |= first_head(net.filters, task.labels, generator)

    tables = learner.tables(weights, scales, task.nss)
    return {
        "params": add_prefix("embedding.", params) | weights | tables,
        "stats": add_prefix("embedding.", stats) | add_prefix("targets.", own_stats),
    }
