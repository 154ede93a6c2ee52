"""MAML++ Low-End on a CPU, several times faster: the same fields, and the same results up to rounding.

`accelerated(learner)` is the learner to run; what is saved and published is about the learner itself. How it is done is
in `adjoint.py`. It needs numba (``pip install cfsl[fast]``), which compiles the kernels at their first use (some ten
seconds, once) and keeps them on disk. The data-flow law lets a learner open no file, so the harness runs a task before
it begins to watch.
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
from cfsl.learners.maml.inner_loop import Scalar, asked_for
from cfsl.learners.maml.maml_low import MamlLow
from cfsl.nets.convnet import ConvNet
from cfsl.nets.layers import Params, Stats, moved_stats


def accelerated(learner: Any, device: str = "cpu") -> Any:
    """Return a learner that does the same in less time, or the learner itself if there is none (see `why_not`)."""
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
    """Say why a learner that has a faster twin cannot be it here; nothing for all other learners."""
    return why_not(learner, device) if isinstance(learner, MamlLow) else None


class _FastMamlLow(MamlLow):
    """Computes by hand. (A block pools what it has normalised, so batch norm gets at least four values a channel.)"""

    needs_loading: ClassVar[bool] = True
    """Kernels are read from the disk at their first use, which must not be a guarded one."""

    def task_loss(
        self,
        params: Mapping[str, Tensor],
        stats: Mapping[str, Tensor],
        episode: Episode,
        moment: Moment,
    ) -> tuple[Scalar, Stats]:
        """Return the outer loss of one task, whose gradients are known already, and the statistics of its targets."""
        from cfsl.learners.maml.second_order import outer_gradients

        state = self.begun(params, stats, len(params["head.bias"]))
        loss, gradients, seen = outer_gradients(self, self._stack, state, episode, moment)
        gradients = {
            name: gradients.get(name, torch.zeros_like(param)) for name, param in params.items()
        }
        known: Scalar = _Known.apply(loss, gradients, *params.values())  # type: ignore[no-untyped-call]
        return known, seen

    def observe(self, state: State, support: Support) -> State:
        """Adapt to one support set."""
        from cfsl.learners.maml.second_order import Course, look, seen_by, take

        course, number = Course(self, self._stack, state, support.images.shape[1:]), state["step"]
        weights, batch = course.weights, course.batch(support.images, support.labels)
        for step in range(number, number + self.steps):
            _, weights = take(course, step, weights, batch)
        # Biases stay as they are, and are copied all the same: they count as adapted.
        adapted = {
            name: weight.clone() for name, weight in state["weights"].items()
        } | course.tensors(weights)
        state = {**state, "weights": adapted, "step": number + self.steps}
        if self.norm != "support":
            return state
        seen = course.stats(seen_by(look(course, state["step"], weights, batch)))
        sets = state["sets"] + 1
        return {**state, "sets": sets, "stats": moved_stats(state["stats"], seen, 1 / sets)}

    def predict(self, state: State, images: Images) -> Float[Tensor, "n labels"]:
        """Return logits with the weights as they are now."""
        from cfsl.learners.maml.second_order import Course

        course = Course(self, self._stack, state, images.shape[1:])
        return asked_for(
            state,
            course.logits(state["step"], images, None if self.transductive else state["stats"]),
        )

    @property
    def _stack(self) -> ConvNet:
        assert isinstance(self.net, ConvNet)
        return self.net


class _Known(torch.autograd.Function):
    """A number whose gradients are known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Params, *params: Tensor) -> Tensor:
        """Keep the gradients for later."""
        ctx.save_for_backward(*gradients.values())
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        """Hand them out."""
        return (None, None, *(outer * gradient for gradient in ctx.saved_tensors))
