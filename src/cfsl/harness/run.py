"""One task through one learner."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from cfsl.errors import DataFlowError, LearnerError
from cfsl.harness.law import Guard, TensorCensus
from cfsl.harness.state import PackedState, StateCodec
from cfsl.learners.base import FixedEmbedding, Learner, Meta, State, Support, TaskInfo

TargetMaker: TypeAlias = Callable[[], Shaped[Tensor, "targets *shape"]]
"""Makes the images of targets when the learner is asked about them."""
Packed = TypeVar("Packed")
"""A state as it crosses between two support sets."""
_TOLERANCE = 1e-3
"""How far answers may differ, by the largest of them, that should be the same."""
_CLOSELY_WATCHED = 8
"""The first so many tasks are watched closely."""
_CLOSE_ONE_IN = 8
"""Of the later tasks, one in so many is watched closely, drawn at random."""


@dataclass(frozen=True)
class Outcome:
    """What one task gave."""

    logits: Float[Tensor, "targets labels"]
    state_bytes: list[int]
    """The size of the state before the first support set, then after each."""
    bookkeeping_bytes: list[int]
    """How much of it is counts, labels and other bookkeeping."""
    progressive: list[Tensor]
    """The label of each target after each support set, if that was asked for."""
    other_logits: list[Tensor] = field(default_factory=list)
    """The logits of other targets, if those were asked for."""

    @classmethod
    def of(
        cls,
        logits: Tensor,
        states: list[PackedState],
        progressive: list[Tensor],
        other_logits: list[Tensor],
    ) -> Outcome:
        """Put together what came out of a task, given its states at every boundary."""
        total = [state.total for state in states]
        bookkeeping = [state.bookkeeping for state in states]
        return cls(logits, total, bookkeeping, progressive, other_logits)


class Run(Protocol):
    """Runs tasks with one learner: as `StrictRun`, `TrustingRun` or `SandboxedRun`.

    A run that is made with `embedded=True` is given images that are embedded already.
    """

    def task(
        self,
        info: TaskInfo,
        supports: Iterable[Support],
        targets: TargetMaker,
        *,
        progressive: bool = False,
        others: Sequence[TargetMaker] = (),
    ) -> Outcome:
        """Show the support sets one at a time, then ask for the targets, and for `others`.

        `supports` and `targets` make tensors when they are asked for, so that nothing of a task
        is in memory before its time. `progressive` asks for the targets after every support set.
        """
        ...

    def embed(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        """Return what the learner sees instead of these images."""
        ...


class StrictRun:
    """Runs tasks under the data-flow law (see `law.py`)."""

    def __init__(
        self, learner: Learner, meta: Meta, *, embedded: bool = False, thorough_tasks: int = 1
    ) -> None:
        """Watch the learner from now on, and look through memory in the first, thorough tasks."""
        self._learner, self._meta = learner, meta
        self._name = type(learner).__name__
        self._embedded = embedded
        self._guard = Guard(learner, meta)
        self._tasks_begun, self._thorough_tasks = 0, thorough_tasks

    def task(
        self,
        info: TaskInfo,
        supports: Iterable[Support],
        targets: TargetMaker,
        *,
        progressive: bool = False,
        others: Sequence[TargetMaker] = (),
    ) -> Outcome:
        """Show the support sets one at a time, then ask for the targets, and for `others`."""
        thorough = self._tasks_begun < self._thorough_tasks
        early = self._tasks_begun < max(self._thorough_tasks, _CLOSELY_WATCHED)
        self._tasks_begun += 1
        codec = StateCodec(self._meta, info)

        def predict_now(packed: PackedState) -> Tensor:
            return self.predict(codec, packed, info, targets())

        self._guard.start_task(closely=early or secrets.randbelow(_CLOSE_ONE_IN) == 0)
        with TensorCensus() if thorough else contextlib.nullcontext() as census:
            states, answers = observe_all(
                self.begin(codec, info),
                supports,
                functools.partial(self.observe, codec),
                predict_now if progressive else None,
            )
            if census is not None:
                census.require_no_strangers(self._name, answers)

        last = states[-1]
        logits = predict_now(last)
        if thorough and not getattr(self._learner, "transductive", False):
            predict = functools.partial(self.predict, codec, last, info)
            require_separate_answers(f"{self._name}.predict", predict, targets(), logits)
        other_logits = [self.predict(codec, last, info, other()) for other in others]

        self._guard.end_task()
        return Outcome.of(logits, states, answers, other_logits)

    def begin(self, codec: StateCodec, info: TaskInfo) -> PackedState:
        """Ask for the state before the first support set."""
        with self._guard.watching("begin"):
            state = self._learner.begin(self._meta, info)
        return codec.pack(state)

    def observe(self, codec: StateCodec, packed: PackedState, support: Support) -> PackedState:
        """Let the learner see one support set; then destroy the support set."""
        given = Support(self._shown(support.images), support.labels)

        with self._guard.watching("observe"):
            state = self._learner.observe(codec.unpack(packed), given)
        packed = codec.pack(state)

        for tensor in (support.images, given.images, given.labels):
            _destroy(tensor)
        return packed

    def predict(
        self,
        codec: StateCodec,
        packed: PackedState,
        info: TaskInfo,
        images: Shaped[Tensor, "targets *shape"],
    ) -> Float[Tensor, "targets labels"]:
        """Ask for the logits of some targets."""
        shown = self._shown(images)
        with self._guard.watching("predict"):
            logits = self._learner.predict(codec.unpack(packed), shown)

        require_logits(self._name, logits, len(images), info.labels)
        return logits.detach().cpu().clone()

    def embed(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        """Return what the learner sees instead of these images."""
        if not isinstance(self._learner, FixedEmbedding):
            return images
        with self._guard.watching("embed"):
            return self._learner.embed(self._meta, images)

    def require_unchanged_weights(self) -> None:
        """Refuse a learner that wrote to its learned weights, in any task."""
        self._guard.require_unchanged_weights()

    def _shown(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        return images if self._embedded else self.embed(images)


class TrustingRun:
    """Runs tasks without the law and without measuring the state: faster, but not to publish."""

    def __init__(self, learner: Learner, meta: Meta, *, embedded: bool = False) -> None:
        """Trust the learner."""
        self._learner, self._meta = learner, meta
        self._embedded = embedded

    def task(
        self,
        info: TaskInfo,
        supports: Iterable[Support],
        targets: TargetMaker,
        *,
        progressive: bool = False,
        others: Sequence[TargetMaker] = (),
    ) -> Outcome:
        """Show the support sets, then ask for the targets, and for `others`."""
        answers = []
        state = self._learner.begin(self._meta, info)
        for support in supports:
            given = Support(self._shown(support.images), support.labels)
            state = self._learner.observe(state, given)
            if progressive:
                answers.append(self._learner.predict(state, self._shown(targets())).argmax(dim=1))

        logits = self._logits(state, targets(), info)
        other_logits = [self._logits(state, other(), info) for other in others]
        unmeasured = [0] * (info.nss + 1)
        return Outcome(logits, unmeasured, unmeasured, answers, other_logits)

    def _logits(
        self, state: State, images: Shaped[Tensor, "targets *shape"], info: TaskInfo
    ) -> Float[Tensor, "targets labels"]:
        logits = self._learner.predict(state, self._shown(images))
        require_logits(type(self._learner).__name__, logits, len(images), info.labels)
        return logits.detach().cpu()

    def embed(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        """Return what the learner sees instead of these images."""
        if not isinstance(self._learner, FixedEmbedding):
            return images
        return self._learner.embed(self._meta, images)

    def _shown(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        return images if self._embedded else self.embed(images)


def observe_all(
    first: Packed,
    supports: Iterable[Support],
    observe: Callable[[Packed, Support], Packed],
    predict: Callable[[Packed], Tensor] | None,
) -> tuple[list[Packed], list[Tensor]]:
    """Go through the support sets.

    Return the states at all boundaries, and the labels that `predict` gives after each set.
    """
    states, answers = [first], []
    for support in supports:
        states.append(observe(states[-1], support))
        del support  # or it would be in memory while the next one is made
        if predict is not None:
            answers.append(predict(states[-1]).argmax(dim=1))
    return states, answers


def require_separate_answers(
    call: str,
    answer: Callable[[Tensor], Tensor],
    images: Shaped[Tensor, "n *shape"],
    together: Shaped[Tensor, "n *answer"],
) -> None:
    """Refuse a learner whose answer for an image depends on the other images.

    Ask about every other image alone, and compare with the answers to all images `together`.
    """
    half = torch.arange(0, len(images), 2)
    alone = answer(images[half.to(images.device)]).cpu()
    shared = together[half.to(together.device)].cpu()

    difference = _largest_finite(alone - shared)
    if not torch.equal(_infinities(alone), _infinities(shared)):
        what = "some are infinite"
    elif difference > _TOLERANCE * max(1.0, _largest_finite(shared)):
        what = f"they differ by {difference:.3g}"
    else:
        return

    raise DataFlowError(
        f"{call} gives other answers when half of the images are left out ({what}); it looks at "
        f"them jointly. Declare transductive = True, or look at each alone."
    )


def _largest_finite(values: Tensor) -> float:
    """Return the largest absolute value; NaN and infinities count as 0."""
    return float(values.nan_to_num(0, 0, 0).abs().max()) if values.numel() else 0.0


def _infinities(values: Tensor) -> Tensor:
    """Return 1 where a value is infinite, -1 where it is minus infinite, and 0 elsewhere."""
    return values.isinf() * values.sign().nan_to_num()


def _destroy(tensor: Tensor) -> None:
    """Overwrite a tensor that the learner was given, so that no view of it is of use."""
    with torch.no_grad():
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
        else:
            tensor.fill_(0 if tensor.dtype in (torch.bool, torch.uint8) else -1)


def require_logits(name: str, logits: object, targets: int, labels: int) -> None:
    """Refuse answers of the wrong shape.

    NaN is an answer, and wrong: a learner that diverges is scored, not excused.
    """
    if not isinstance(logits, Tensor):
        found = type(logits).__name__
    elif tuple(logits.shape) != (targets, labels) or not logits.is_floating_point():
        found = f"{logits.dtype} {tuple(logits.shape)}"
    else:
        return
    raise LearnerError(
        f"{name}.predict gave {found}; float logits of shape {(targets, labels)} are needed"
    )
