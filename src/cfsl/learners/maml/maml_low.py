"""MAML++ Low-End: the weights of a Conv-4 and its head adapt, by learned gradient steps.

Finn, Abbeel and Levine, "Model-Agnostic Meta-Learning" (ICML 2017); Antoniou, Edwards and Storkey,
"How to train your MAML" (ICLR 2019); Antoniou, Patacchiola, Ochal and Storkey, "Defining Benchmarks
for Continual Few-Shot Learning" (2020), appendix A. The inner loop is in `inner_loop.py`. This
module says what adapts: the net and a linear head.

The head has a learned unit for every label of the task, and all of them are in the softmax from the
start. So weights fit one number of labels and, by their tables of rates and of batch norm, one
number of support sets.

Where it departs from the published code:

- Batch norm does not look at the targets by default; norm="batch" is as published.
- The weights really are carried from support set to support set. The code of the paper put them
  back before each.
- The multi-step loss, when asked for, is what is optimised. In that code it is computed and
  dropped.
- No step of evaluation keeps a graph. Training keeps the graph of all steps of a task
  (docs/design/learners.md has the memory that this takes).
- The tables have as many rows as there are steps. That code has twice as many, of which half are
  never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from cfsl.learners.base import Meta
from cfsl.learners.maml.episodes import Images
from cfsl.learners.maml.inner_loop import InnerLoop
from cfsl.learners.maml.step_tables import add_prefix, first_head, linear_head, split_scales
from cfsl.nets import ImageShape, Net, conv4
from cfsl.nets.layers import Norm
from cfsl.spec import TaskSpec


class MamlLow(InnerLoop):
    """Adapts a whole network and its head."""

    kind: Literal["maml_low"] = "maml_low"
    net: Net = conv4(48, "conv-norm-act")

    def init_for(self, image_shape: ImageShape, task: TaskSpec, generator: torch.Generator) -> Meta:
        """Draw first weights for tasks of this shape."""
        params, stats = self.net.init(image_shape, generator)
        weights, scales = split_scales(params, self.net.layers(image_shape))
        weights |= first_head(self.net.feature_count(image_shape), task.labels, generator)
        return {
            "params": weights | self.tables(weights, scales, task.nss),
            "stats": add_prefix("targets.", stats),
        }

    def classify(
        self, weights: Mapping[str, Tensor], norm: Norm, images: Images
    ) -> Float[Tensor, "n labels"]:
        """Return the head's logits on the features of the net."""
        return linear_head(weights, self.net.forward(weights, norm, images))
