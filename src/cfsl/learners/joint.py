"""Joint: sees all support sets at once, and so is an upper bound for its inner learner.

It breaks the data-flow law on purpose. It keeps every support image in its state, so that its ATM
is 1 and more, and shows them to the inner learner as one support set when it is asked.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from cfsl.data.tasks import TaskBatch
from cfsl.learners.base import Learner, Meta, Moment, State, Support, TaskInfo
from cfsl.learners.protonet import ProtoNet
from cfsl.nets.layers import Params, Stats
from cfsl.spec import FrozenSpec


class Joint(FrozenSpec):
    """Hands all support sets to the inner learner together."""

    kind: Literal["joint"] = "joint"
    breaks_law: bool = True
    inner: Learner

    model_config = FrozenSpec.model_config | {"arbitrary_types_allowed": True}

    @property
    def transductive(self) -> bool:
        """The inner learner's."""
        return bool(getattr(self.inner, "transductive", False))

    def init(self, image_shape: tuple[int, int, int], generator: torch.Generator) -> Meta:
        """Draw first weights: those of the inner learner."""
        return self.inner.init(image_shape, generator)  # type: ignore[attr-defined, no-any-return]

    def episode_loss(
        self, params: Params, stats: Stats, batch: TaskBatch, *, turns: bool, moment: Moment
    ) -> tuple[Tensor, Stats]:
        """Train as the inner learner does."""
        loss: tuple[Tensor, Stats] = self.inner.episode_loss(  # type: ignore[attr-defined]
            params, stats, batch, turns=turns, moment=moment
        )
        return loss

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Start without stored images."""
        return {
            "meta": meta,
            "info": info,
            "images": torch.zeros(0, *info.image_shape, device=info.device),
            "labels": torch.zeros(0, dtype=torch.int64, device=info.device),
        }

    def observe(self, state: State, support: Support) -> State:
        """Store the support set."""
        return state | {
            "images": torch.cat([state["images"], support.images]),
            "labels": torch.cat([state["labels"], support.labels]),
        }

    def predict(
        self, state: State, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n labels"]:
        """Let the inner learner see everything at once."""
        embed = getattr(self.inner, "embed", lambda meta, shown: shown)
        meta = state["meta"]
        everything = Support(embed(meta, state["images"]), state["labels"])

        inner = self.inner.begin(meta, state["info"])
        inner = self.inner.observe(inner, everything)
        return self.inner.predict(inner, embed(meta, images))


def joint_protonet() -> Joint:
    """Return the upper bound of ProtoNets."""
    return Joint(inner=ProtoNet())
