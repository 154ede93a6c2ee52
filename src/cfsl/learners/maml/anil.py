"""ANIL, almost no inner loop: an embedding that is fixed within a task, and a head that adapts.

Raghu, Raghu, Bengio and Vinyals, "Rapid Learning or Feature Reuse? Towards Understanding the
Effectiveness of MAML" (ICLR 2020). The inner loop is in `inner_loop.py`.

Where it departs from the paper:

- Rates are learned, one for each tensor of the head and each step, as in MAML++.
- The linear head has a learned unit for every label of a continual task.
- Every image is embedded on its own, by running statistics of batch norm. Training gathers them
  from all images of the tasks of an update in one batch.
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
from cfsl.learners.maml.step_tables import add_prefix, first_head, linear_head
from cfsl.nets import ImageShape, Net, conv4
from cfsl.nets.layers import Norm, Params, Stats
from cfsl.spec import TaskSpec


class Anil(InnerLoop):
    """Adapts a linear head on a fixed embedding."""

    kind: Literal["anil"] = "anil"
    net: Net = conv4(48, "conv-norm-act")
    norm: Literal["running"] = "running"

    def init_for(self, image_shape: ImageShape, task: TaskSpec, generator: torch.Generator) -> Meta:
        """Draw first weights for tasks of this shape."""
        params, stats = self.net.init(image_shape, generator)
        head = first_head(self.net.feature_count(image_shape), task.labels, generator)
        tables = self.tables(head, {}, task.nss)
        return {
            "params": add_prefix("embedding.", params) | head | tables,
            "stats": add_prefix("embedding.", stats),
        }

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n features"]:
        """Return the features of each image on its own."""
        return embedded(self.net, meta, images)

    def episodes(
        self, params: Params, stats: Stats, batch: TaskBatch
    ) -> tuple[list[Episode], Stats]:
        """Embed all images of the tasks at once."""
        return embedded_episodes(self.net, params, stats, batch)

    def classify(
        self, weights: Mapping[str, Tensor], norm: Norm, images: Images
    ) -> Float[Tensor, "n labels"]:
        """Return the head's logits on the features."""
        return linear_head(weights, images)
