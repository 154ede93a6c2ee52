"""What a learner is: three pure functions and a state.

    state = learner.begin(meta, info)
    for support in support_sets:                   # one at a time, in order
        state = learner.observe(state, support)    # then the support set is gone
    logits = learner.predict(state, images)

A learner object holds hyper-parameters and nothing else. `meta` are the weights it has learned before the task. `state`
is a tree (dicts, lists, tuples) of tensors and numbers, and the only thing that passes from one support set to the
next; it may hold `meta` and `info` themselves, which cost no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Float32, Int64, Shaped
from torch import Tensor

from cfsl.spec import TaskSpec

Meta: TypeAlias = Mapping[str, Any]
"""A tree of tensors: the learned weights."""
State: TypeAlias = Any
"""A tree of tensors and numbers: all that a learner keeps of a task."""


@dataclass(frozen=True)
class TaskInfo:
    """What a learner is told before a task."""

    image_shape: tuple[int, int, int]
    labels: int
    nss: int
    n_way: int
    k_shot: int
    cci: int
    overwrite: bool
    seed: int
    """For whatever the learner draws: it differs from task to task, and never comes from a global generator."""
    device: str = "cpu"

    def generator(self, purpose: int = 0) -> torch.Generator:
        """Return a generator for one of the learner's purposes; the same one each time it is asked for."""
        return torch.Generator().manual_seed((self.seed * 1_000_003 + purpose) % 2**63)


@dataclass(frozen=True)
class Support:
    """One support set as a learner gets it: images, or what its own `embed` made of them."""

    images: Shaped[Tensor, "images *shape"]
    labels: Int64[Tensor, " images"]


@dataclass(frozen=True)
class Moment:
    """When in training an episode is seen: some losses change on the way."""

    epoch: int
    """From 0."""
    epochs: int
    """All of the training run."""


@runtime_checkable
class Learner(Protocol):
    """What the harness asks of every learner. A learner that sees targets jointly says `transductive = True`."""

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Return the state before the first support set."""
        ...

    def observe(self, state: State, support: Support) -> State:
        """Return the state after a support set, leaving the old state alone."""
        ...

    def predict(
        self, state: State, images: Shaped[Tensor, "targets *shape"]
    ) -> Float[Tensor, "targets labels"]:
        """Return a logit for every label of the task."""
        ...


@runtime_checkable
class FixedEmbedding(Protocol):
    """A learner whose embedding does not change within a task.

    Its `observe` and `predict` are given embedded images. The harness may embed every image of a split once.
    """

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n *features"]:
        """Return what the learner keeps looking at instead of the images; each image on its own."""
        ...


@runtime_checkable
class ShapedByTask(Protocol):
    """A learner whose weights fit one shape of task: so many labels, so many support sets."""

    def init_for(
        self, image_shape: tuple[int, int, int], task: TaskSpec, generator: torch.Generator
    ) -> Meta:
        """Draw first weights for tasks of this shape."""
        ...


def first_weights(
    learner: Any, image_shape: tuple[int, int, int], task: TaskSpec, generator: torch.Generator
) -> Meta:
    """Draw the first weights of any learner; one that has no weights gets none."""
    if isinstance(learner, ShapedByTask):
        return learner.init_for(image_shape, task, generator)
    if not hasattr(learner, "init"):
        return {}
    meta: Meta = learner.init(image_shape, generator)
    return meta
