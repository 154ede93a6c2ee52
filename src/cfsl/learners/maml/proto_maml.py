"""Proto-MAML: the head starts at the prototypes of a support set, and the whole network adapts.

Triantafillou et al., "Meta-Dataset: A Dataset of Datasets for Learning to Learn from Few Examples"
(ICLR 2020), section 3. The inner loop is in `inner_loop.py`. When a support set arrives, its
classes k get the head of ProtoNets,

    w_k = 2 c_k,    b_k = -|c_k|^2,    c_k the mean feature of the set's images of class k,

and the gradient steps on that set start from there; the outer gradient also flows through c_k. As
in the paper, all weights adapt: convolutions and the head. No unit is learned for a label, so that
weights fit any number of labels. A label that no support set has shown is impossible, in the inner
loop and for targets.

Where it departs from the paper:

- The paper has one support set. Here a label may come back, with the same class or another.
  again="keep" then leaves its unit to the gradient steps, which add what is new to what is known,
  and again="reset" starts the unit anew from this set alone.
- Rates are learned, as in MAML++.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from cfsl.learners.base import Meta, State, Support
from cfsl.learners.maml.episodes import Episode, Images
from cfsl.learners.maml.inner_loop import InnerLoop, Scalar
from cfsl.learners.maml.step_tables import (
    add_prefix,
    linear_head,
    norm_by_batch,
    rows_of,
    split_scales,
)
from cfsl.nets import ImageShape, Net, conv4
from cfsl.nets.layers import Norm, Stats
from cfsl.spec import TaskSpec


class ProtoMaml(InnerLoop):
    """Adapts a whole network and a head that starts at prototypes."""

    kind: Literal["proto_maml"] = "proto_maml"
    net: Net = conv4(48, "conv-norm-act")
    again: Literal["keep", "reset"] = "keep"

    def init_for(self, image_shape: ImageShape, task: TaskSpec, generator: torch.Generator) -> Meta:
        """Draw first weights for tasks of so many support sets; there is no head to draw."""
        params, stats = self.net.init(image_shape, generator)
        weights, scales = split_scales(params, self.net.layers(image_shape))
        tables = self.tables(weights | _empty_head(0, 0, generator.device), scales, task.nss)
        return {"params": weights | tables, "stats": add_prefix("targets.", stats)}

    def initial_state(
        self, params: Mapping[str, Tensor], stats: Mapping[str, Tensor], labels: int
    ) -> State:
        """Return the state before the first support set: no label has been shown."""
        state = super().initial_state(params, stats, labels)
        device = next(iter(params.values())).device
        return {**state, "seen": torch.zeros(labels, dtype=torch.bool, device=device)}

    def start_set(self, state: State, support: Support) -> State:
        """Put the head at the prototypes of the set's classes."""
        norm = norm_by_batch(rows_of(state["scales"], self.row(state)), state["stats"], {})
        features = self.net.forward(state["weights"], norm, support.images)

        labels = len(state["seen"])
        sums = features.new_zeros(labels, features.shape[1]).index_add(0, support.labels, features)
        counts = torch.bincount(support.labels, minlength=labels)
        prototypes = sums / counts.clamp(min=1)[:, None]

        is_shown = counts > 0
        is_reset = is_shown if self.again == "reset" else is_shown & ~state["seen"]
        empty = _empty_head(labels, features.shape[1], features.device, features.dtype)
        old = empty | state["weights"]
        head = {
            "head.weight": torch.where(is_reset[:, None], 2 * prototypes, old["head.weight"]),
            "head.bias": torch.where(is_reset, -(prototypes**2).sum(dim=1), old["head.bias"]),
        }
        weights = {**state["weights"], **head}
        return {**state, "weights": weights, "seen": state["seen"] | is_shown}

    def classify(
        self, weights: Mapping[str, Tensor], norm: Norm, images: Images
    ) -> Float[Tensor, "n labels"]:
        """Return the head's logits on the features of the net."""
        return linear_head(weights, self.net.forward(weights, norm, images))

    def mask_unseen(
        self, state: State, logits: Float[Tensor, "n labels"]
    ) -> Float[Tensor, "n labels"]:
        """Rule out the labels that no support set has shown."""
        return logits.masked_fill(~state["seen"], float("-inf"))

    def target_loss(self, state: State, episode: Episode) -> tuple[Scalar, Stats]:
        """Return the cross-entropy of the targets whose labels have been shown."""
        logits, measured = self.target_logits(state, episode.targets, training=True)
        is_shown = state["seen"][episode.labels]
        return functional.cross_entropy(logits[is_shown], episode.labels[is_shown]), measured


def _empty_head(
    labels: int, features: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    weight = torch.zeros(labels, features, device=device, dtype=dtype)
    return {"head.weight": weight, "head.bias": torch.zeros(labels, device=device, dtype=dtype)}
