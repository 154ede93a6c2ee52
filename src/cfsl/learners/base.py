"""What a learner is: three pure functions and a state.

    state = learner.begin(meta, info)
    for support in support_sets:                   # one at a time, in order
        state = learner.observe(state, support)    # then the support set is gone
    logits = learner.predict(state, images)

A learner object holds hyper-parameters and nothing else. `meta` are the weights it has learned
before the task. `state` is a tree (dicts, lists, tuples) of tensors and numbers, and the only thing
that passes from one support set to the next; it may hold `meta` and `info` themselves, which cost
no memory. Whatever else a learner can do is a protocol below: it has the members or it has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Float32, Int64, Shaped
from torch import Tensor

from cfsl.spec import TaskSpec

if TYPE_CHECKING:
    from cfsl.data.tasks import TaskBatch
    from cfsl.learners.maml.episodes import Episode
    from cfsl.nets.base import NetSpec
    from cfsl.nets.layers import Params, Stats

Meta: TypeAlias = Mapping[str, Any]
"""A tree of tensors: the learned weights."""
State: TypeAlias = Any
"""A tree of tensors and numbers: all that a learner keeps of a task."""
ImageShape: TypeAlias = tuple[int, int, int]
"""Channels, height, width."""
Scalar: TypeAlias = Float[Tensor, ""]
Labelled: TypeAlias = tuple[Float32[Tensor, "n channels height width"], Int64[Tensor, " n"]]
"""Images, and the number of each one's class among those that are shown."""


@dataclass(frozen=True)
class TaskInfo:
    """What a learner is told before a task."""

    image_shape: ImageShape
    labels: int
    nss: int
    n_way: int
    k_shot: int
    cci: int
    overwrite: bool
    seed: int
    """For all that the learner draws: it differs from task to task and is never global."""
    device: str = "cpu"

    def generator(self, purpose: int = 0) -> torch.Generator:
        """Return the generator for one of the learner's purposes, in the same state every time."""
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
    """What the harness asks of every learner.

    A learner that sees targets jointly says `transductive = True`.
    """

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

    Its `observe` and `predict` get embedded images. The harness may embed every image once.
    """

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n *features"]:
        """Return what the learner keeps looking at instead of the images; each image on its own."""
        ...


@runtime_checkable
class HasWeights(Protocol):
    """A learner that begins with weights of its own."""

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> Meta:
        """Draw first weights."""
        ...


@runtime_checkable
class ShapedByTask(Protocol):
    """A learner whose weights fit one shape of task: so many labels, so many support sets."""

    def init_for(self, image_shape: ImageShape, task: TaskSpec, generator: torch.Generator) -> Meta:
        """Draw first weights for tasks of this shape."""
        ...


@runtime_checkable
class TrainedOnTasks(Protocol):
    """A learner that can be trained on tasks; one that is also `ShapedByTask` is meta-trained."""

    def episode_loss(
        self, params: Params, stats: Stats, batch: TaskBatch, *, turns: bool, moment: Moment
    ) -> tuple[Scalar, Stats]:
        """Return the loss of some tasks, and the running statistics after them."""
        ...


@runtime_checkable
class Pretrained(HasWeights, Protocol):
    """A learner with a network that can be pretrained as a classifier."""

    net: NetSpec


@runtime_checkable
class NetByImages(Protocol):
    """A learner that has another network for photographs than for characters."""

    def net_for(self, image_shape: ImageShape) -> NetSpec:
        """Return the network for images of this shape."""
        ...


@runtime_checkable
class OwnClassifier(Protocol):
    """A learner with a classifier of its own for pretraining; others get a linear layer."""

    def classifier_loss(
        self, params: Params, features: Float[Tensor, "n features"], labels: Int64[Tensor, " n"]
    ) -> Scalar:
        """Return the loss of features, given params["head.weight"]."""
        ...


@runtime_checkable
class Recollecting(Protocol):
    """A learner that also learns to recognise images it has seen; they are not augmented."""

    def memory_loss(
        self,
        params: Params,
        images: Float32[Tensor, "n channels height width"],
        generator: torch.Generator,
    ) -> Scalar:
        """Return what is added to the loss."""
        ...


@runtime_checkable
class Startable(Protocol):
    """A learner that can begin with the weights of another learner or training run."""

    def started_from(self, first: Meta, start: Meta) -> Meta:
        """Return first weights with those that fit taken from `start`."""
        ...


@runtime_checkable
class InnerLoopOnly(Startable, Protocol):
    """A learner whose inner loop can be trained alone, on the images of a frozen embedding."""

    embedding: NetSpec
    """The network below the inner loop; the names of its weights begin with "embedding."."""

    def embed(self, meta: Meta, images: Tensor) -> Tensor:
        """Return what the inner loop looks at instead of images."""
        ...

    def mean_loss(
        self, params: Params, stats: Stats, episodes: Sequence[Episode], moment: Moment
    ) -> tuple[Scalar, Stats]:
        """Return the mean loss of embedded tasks, and the running statistics after them."""
        ...


@runtime_checkable
class Calibrating(Protocol):
    """A learner whose embedding rests on statistics of training images."""

    def calibration_images(self, image_shape: ImageShape) -> tuple[int, int]:
        """Return how many images it wants to see at most, and how many of a class."""
        ...

    def calibrated(self, meta: Meta, batches: Iterable[Labelled]) -> Meta:
        """Return the weights with these statistics."""
        ...


def first_weights(
    learner: Any, image_shape: ImageShape, task: TaskSpec, generator: torch.Generator
) -> Meta:
    """Draw the first weights of any learner; one that has no weights gets none."""
    if isinstance(learner, ShapedByTask):
        return learner.init_for(image_shape, task, generator)
    return learner.init(image_shape, generator) if isinstance(learner, HasWeights) else {}
