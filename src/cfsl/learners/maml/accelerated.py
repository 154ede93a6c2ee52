"""MAML++ Low-End on a CPU, several times faster, with the same results but for rounding.

`accelerated(learner)` is the learner to run, and has the same fields; what is saved and published
is about the learner itself. Gradients come from `second_order.py`. It needs numba (``pip install
cfsl[fast]``), which compiles the kernels at their first use (some ten seconds, once) and keeps them
on disk. The data-flow law lets a learner open no file, so the harness runs a task before it begins
to watch.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from cfsl.learners.base import Moment, State, Support
from cfsl.learners.maml.episodes import Episode, Images
from cfsl.learners.maml.inner_loop import Scalar, logits_of_task
from cfsl.learners.maml.maml_low import MamlLow
from cfsl.nets.convnet import ConvNet
from cfsl.nets.layers import Params, Stats, moved_stats


def accelerated(learner: Any, device: str = "cpu") -> Any:
    """Return a learner that does the same in less time, or the learner itself if there is none.

    `why_not` says why there is none.
    """
    return learner if why_not(learner, device) else _FastMamlLow(**dict(learner))


def why_not(learner: Any, device: str = "cpu") -> str | None:
    """Say why a learner cannot be accelerated, or nothing if it can."""
    if type(learner) is not MamlLow:
        return f"there is nothing faster than {type(learner).__name__} as it is"
    if not isinstance(learner.net, ConvNet) or learner.net.order != "conv-norm-act":
        return "its network is no stack of blocks in the order conv-norm-act"
    if torch.device(device).type != "cpu":
        return f"it runs on {device}, not on the CPU"
    if find_spec("numba") is None:
        return "numba is not installed (pip install cfsl[fast])"
    return None


def why_slower(learner: Any, device: str = "cpu") -> str | None:
    """Say why a learner cannot have its faster version here; None if it can or has none."""
    return why_not(learner, device) if isinstance(learner, MamlLow) else None


class _FastMamlLow(MamlLow):
    """Computes gradients by hand.

    A block pools what it has normalised, so that batch norm gets four values a channel or more.
    """

    needs_loading: ClassVar[bool] = True
    """Kernels are read from the disk at their first use, which must not be a guarded one."""

    def task_loss(
        self,
        params: Mapping[str, Tensor],
        stats: Mapping[str, Tensor],
        episode: Episode,
        moment: Moment,
    ) -> tuple[Scalar, Stats]:
        """Return the outer loss of one task, and the statistics of its targets.

        The gradients of the loss are computed with it.
        """
        from cfsl.learners.maml.second_order import outer_gradients

        state = self.initial_state(params, stats, len(params["head.bias"]))
        loss, found, measured = outer_gradients(self, self._stack, state, episode, moment)
        gradients = {
            name: found.get(name, torch.zeros_like(param)) for name, param in params.items()
        }
        with_gradients: Scalar = _KnownGradients.apply(  # type: ignore[no-untyped-call]
            loss, gradients, *params.values()
        )
        return with_gradients, measured

    def observe(self, state: State, support: Support) -> State:
        """Adapt to one support set."""
        from cfsl.learners.maml.second_order import (
            StackedLearner,
            measure,
            measured_statistics,
            take_step,
        )

        stacked = StackedLearner(self, self._stack, state, support.images.shape[1:])
        batch = stacked.batch(support.images, support.labels)
        weights, step = stacked.weights, state["step"]
        for _ in range(self.steps):
            _, weights = take_step(stacked, step, weights, batch)
            step += 1

        # Biases stay as they are, and are copied all the same: they count as adapted.
        copies = {name: weight.clone() for name, weight in state["weights"].items()}
        adapted = {**state, "weights": copies | stacked.tensors(weights), "step": step}
        if self.norm != "support":
            return adapted

        measured = stacked.stats(measured_statistics(measure(stacked, step, weights, batch)))
        sets = state["sets"] + 1
        stats = moved_stats(state["stats"], measured, 1 / sets)
        return {**adapted, "sets": sets, "stats": stats}

    def predict(self, state: State, images: Images) -> Float[Tensor, "n labels"]:
        """Return logits with the weights as they are now."""
        from cfsl.learners.maml.second_order import StackedLearner

        stacked = StackedLearner(self, self._stack, state, images.shape[1:])
        stats = None if self.transductive else state["stats"]
        return logits_of_task(state, stacked.logits(state["step"], images, stats))

    @property
    def _stack(self) -> ConvNet:
        assert isinstance(self.net, ConvNet)
        return self.net


class _KnownGradients(torch.autograd.Function):
    """A number with gradients that are computed beforehand."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Params, *params: Tensor) -> Tensor:
        """Keep the gradients for later."""
        ctx.save_for_backward(*gradients.values())
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients that were kept."""
        return (None, None, *(outer * gradient for gradient in ctx.saved_tensors))
