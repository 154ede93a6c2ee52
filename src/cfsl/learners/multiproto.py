"""A prototype per support set and class.

When labels are overwritten (task type C), one label stands for several classes, whose mean is
nowhere near any of them. Here a label keeps one prototype from every class group it appears in, and
an image is as close to a label as to its prototypes together:

    s_c(x) = log sum_u exp(closeness(f(x), p_u)) over the prototypes u of label c

Where classes come back under the same label in several support sets of a group (types A and D),
their images are averaged; `info.cci` tells when a new group begins. On types A, B and D it equals
ProtoNets.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from cfsl.data.tasks import TaskBatch
from cfsl.learners.base import Meta, Moment, State, Support, TaskInfo
from cfsl.learners.metric import Metric, closeness, sums_by_label
from cfsl.learners.protonet import ProtoNet
from cfsl.nets.base import ImageShape
from cfsl.nets.convnet import conv4
from cfsl.nets.layers import Params, Stats
from cfsl.nets.registry import Net
from cfsl.spec import FrozenSpec


class MultiProto(FrozenSpec):
    """Like ProtoNet, but a label that is used again keeps the prototypes of its earlier classes."""

    kind: Literal["multiproto"] = "multiproto"
    net: Net = conv4(64, "conv-act-norm")
    metric: Metric = "euclidean"
    norm: Literal["running", "batch"] = "running"

    @property
    def transductive(self) -> bool:
        """Whether targets are normalised by their own statistics."""
        return self.norm == "batch"

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> Meta:
        """Draw first weights: those of ProtoNets."""
        return self._protonet().init(image_shape, generator)

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n features"]:
        """Embed as ProtoNets do."""
        return self._protonet().embed(meta, images)

    def episode_loss(
        self, params: Params, stats: Stats, batch: TaskBatch, *, turns: bool, moment: Moment
    ) -> tuple[Tensor, Stats]:
        """Train as ProtoNets do."""
        return self._protonet().episode_loss(params, stats, batch, turns=turns, moment=moment)

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Start without prototypes."""
        features = self.net.feature_count(info.image_shape)
        return {
            "info": info,
            "scale": meta["params"]["scale"],
            "sums": torch.zeros(0, features, device=info.device),
            "counts": torch.zeros(0, dtype=torch.int64, device=info.device),
            "labels": torch.zeros(0, dtype=torch.int64, device=info.device),
            "first": 0,
            "seen": 0,
        }

    def observe(self, state: State, support: Support) -> State:
        """Add images to the prototypes of this class group; labels new in it get new prototypes."""
        is_new_group = state["seen"] % state["info"].cci == 0
        first = len(state["labels"]) if is_new_group else state["first"]
        shown = torch.unique(support.labels)
        new = shown[~torch.isin(shown, state["labels"][first:])]

        labels = torch.cat([state["labels"], new])
        zeros = support.images.new_zeros(len(new), support.images.shape[1])
        sums = torch.cat([state["sums"], zeros])
        counts = torch.cat([state["counts"], torch.zeros_like(new)])

        joined = first + (support.labels[:, None] == labels[first:]).int().argmax(dim=1)
        return state | {
            "sums": sums.index_add(0, joined, support.images),
            "counts": counts.index_add(0, joined, torch.ones_like(joined)),
            "labels": labels,
            "first": first,
            "seen": state["seen"] + 1,
        }

    def predict(
        self, state: State, images: Float[Tensor, "n features"]
    ) -> Float[Tensor, "n labels"]:
        """Add up, in the exponent, the closeness to all prototypes of a label."""
        prototypes = state["sums"] / state["counts"][:, None]
        close = state["scale"] * closeness(images, prototypes, self.metric)
        return sums_by_label(close, state["labels"], state["info"].labels)

    def _protonet(self) -> ProtoNet:
        return ProtoNet(net=self.net, metric=self.metric, norm=self.norm)
