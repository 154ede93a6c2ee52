"""Chance: knows nothing, and says so. The floor under every table."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from cfsl.learners.base import Meta, State, Support, TaskInfo
from cfsl.spec import FrozenSpec


class Chance(FrozenSpec):
    """Gives every label the same logit."""

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Remember how many labels there are."""
        return {"info": info}

    def observe(self, state: State, support: Support) -> State:
        """Learn nothing."""
        return state

    def predict(
        self, state: State, images: Shaped[Tensor, "targets *shape"]
    ) -> Float[Tensor, "targets labels"]:
        """Answer 1 / labels for everything."""
        return torch.zeros(len(images), state["info"].labels, device=images.device)
