"""One task through one learner."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from cfsl.errors import DataFlowError, LearnerError
from cfsl.harness.law import Guard, TensorCensus
from cfsl.harness.state import PackedState, StateCodec
from cfsl.learners.base import FixedEmbedding, Learner, Meta, State, Support, TaskInfo

T = TypeVar("T")
Question: TypeAlias = Callable[[], Shaped[Tensor, "targets *shape"]]
"""Makes target images when they are asked about."""
_TOLERANCE = 1e-3
_CLOSE_TASKS, _ONE_IN = 8, 8
"""The first tasks are watched closely, and later one in so many, drawn at random."""


@dataclass(frozen=True)
class Outcome:
    """What one task gave."""

    logits: Float[Tensor, "targets labels"]
    state_bytes: list[int]
    bookkeeping_bytes: list[int]
    progressive: list[Tensor]
    seconds: float
    others: list[Tensor] = field(default_factory=list)
    """The logits of other targets, where they were asked for."""

    @classmethod
    def of(
        cls,
        logits: Tensor,
        states: list[PackedState],
        progressive: list[Tensor],
        seconds: float,
        others: list[Tensor],
    ) -> Outcome:
        """Put together what came out of a task, given its states at every boundary."""
        total, bookkeeping = (
            [state.total for state in states],
            [state.bookkeeping for state in states],
        )
        return cls(logits, total, bookkeeping, progressive, seconds, others)


class StrictRun:
    """Runs tasks under the data-flow law (see `law.py`)."""

    def __init__(
        self, learner: Learner, meta: Meta, *, embedded: bool = False, thorough_tasks: int = 1
    ) -> None:
        """Watch the learner from now on; the first tasks are looked at more closely.

        `embedded` says that images come embedded already (see `FixedEmbedding`).
        """
        self._embedded_before = embedded
        self._learner, self._meta = learner, meta
        self._guard = Guard(learner, meta)
        self._thorough_tasks, self._close_tasks = thorough_tasks, max(thorough_tasks, _CLOSE_TASKS)

    def task(
        self,
        info: TaskInfo,
        supports: Iterable[Support],
        targets: Question,
        *,
        progressive: bool = False,
        others: Sequence[Question] = (),
    ) -> Outcome:
        """Show the support sets one at a time, then ask for the targets, and for `others` with the same last state.

        `supports` and `targets` make tensors when they are asked for, so that nothing lies about before its time.
        """
        thorough = self._thorough_tasks > 0
        closely = self._close_tasks > 0 or secrets.randbelow(_ONE_IN) == 0
        self._thorough_tasks -= 1
        self._close_tasks -= 1
        codec, start = StateCodec(self._meta, info), time.perf_counter()
        self._guard.start_task(closely=closely)
        ask = (lambda packed: self.predict(codec, packed, info, targets())) if progressive else None
        observe = functools.partial(self.observe, codec)
        if thorough:
            with TensorCensus() as census:
                states, answers = observe_all(observe, self.begin(codec, info), supports, ask)
                census.require_no_strangers(type(self._learner).__name__, answers)
        else:
            states, answers = observe_all(observe, self.begin(codec, info), supports, ask)
        logits = self.predict(codec, states[-1], info, targets())
        if thorough and not getattr(self._learner, "transductive", False):
            predict = functools.partial(self.predict, codec, states[-1], info)
            require_separate_answers(
                f"{type(self._learner).__name__}.predict", predict, targets(), logits
            )
        further = [self.predict(codec, states[-1], info, other()) for other in others]
        self._guard.end_task()
        return Outcome.of(logits, states, answers, time.perf_counter() - start, further)

    def begin(self, codec: StateCodec, info: TaskInfo) -> PackedState:
        """Ask for the state before the first support set."""
        return codec.pack(self._call("begin", lambda: self._learner.begin(self._meta, info)))

    def observe(self, codec: StateCodec, packed: PackedState, support: Support) -> PackedState:
        """Let the learner see one support set; then the support set is destroyed."""
        given = Support(self._shown(support.images), support.labels)
        state = self._call("observe", lambda: self._learner.observe(codec.unpack(packed), given))
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
        embedded = self._shown(images)
        logits = self._call(
            "predict", lambda: self._learner.predict(codec.unpack(packed), embedded)
        )
        require_logits(type(self._learner).__name__, logits, len(images), info.labels)
        return logits.detach().cpu().clone()

    def embed(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        """Ask for what the learner wants to see instead of these images."""
        learner = self._learner
        if not isinstance(learner, FixedEmbedding):
            return images
        return self._call("embed", lambda: learner.embed(self._meta, images))

    def require_unchanged_weights(self) -> None:
        """Refuse a learner that wrote to its learned weights, in whatever task."""
        self._guard.require_unchanged_weights()

    def _shown(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        """Embed images that have not been embedded already."""
        return images if self._embedded_before else self.embed(images)

    def _call(self, name: str, function: Callable[[], T]) -> T:
        with self._guard.watching(name):
            return function()


class TrustingRun:
    """Runs tasks without the law, and without measuring the state: faster, and nothing to publish."""

    def __init__(self, learner: Learner, meta: Meta, *, embedded: bool = False) -> None:
        """Trust the learner; `embedded` says that images come embedded already."""
        self._learner, self._meta = learner, meta
        self._embedded = embedded

    def task(
        self,
        info: TaskInfo,
        supports: Iterable[Support],
        targets: Question,
        *,
        progressive: bool = False,
        others: Sequence[Question] = (),
    ) -> Outcome:
        """Show the support sets, then ask for the targets and for others."""
        start, answers = time.perf_counter(), []
        state = self._learner.begin(self._meta, info)
        for support in supports:
            state = self._learner.observe(
                state, Support(self._shown(support.images), support.labels)
            )
            if progressive:
                answers.append(self._learner.predict(state, self._shown(targets())).argmax(dim=1))
        logits, *further = (self._logits(state, ask(), info) for ask in (targets, *others))
        unmeasured = [0] * (info.nss + 1)
        return Outcome(
            logits, unmeasured, unmeasured, answers, time.perf_counter() - start, further
        )

    def _logits(
        self, state: State, images: Shaped[Tensor, "targets *shape"], info: TaskInfo
    ) -> Float[Tensor, "targets labels"]:
        logits = self._learner.predict(state, self._shown(images))
        require_logits(type(self._learner).__name__, logits, len(images), info.labels)
        return logits.detach().cpu()

    def embed(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        """Ask for what the learner wants to see instead of these images."""
        return (
            self._learner.embed(self._meta, images)
            if isinstance(self._learner, FixedEmbedding)
            else images
        )

    def _shown(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        return images if self._embedded else self.embed(images)


def observe_all(
    observe: Callable[[PackedState, Support], PackedState],
    first: PackedState,
    supports: Iterable[Support],
    ask: Callable[[PackedState], Tensor] | None,
) -> tuple[list[PackedState], list[Tensor]]:
    """Go through the support sets; return the states at all boundaries, and the labels that `ask` gives after each."""
    states, answers = [first], []
    for support in supports:
        states.append(observe(states[-1], support))
        del support
        if ask is not None:
            answers.append(ask(states[-1]).argmax(dim=1))
    return states, answers


def require_separate_answers(
    call: str,
    ask: Callable[[Tensor], Tensor],
    images: Shaped[Tensor, "n *shape"],
    together: Shaped[Tensor, "n *answer"],
) -> None:
    """Refuse a learner whose answer for an image depends on the other images, unless it says so."""
    some = torch.arange(0, len(images), 2)
    alone, shared = (
        ask(images[some.to(images.device)]).cpu(),
        together[some.to(together.device)].cpu(),
    )
    difference = (
        (alone - shared).nan_to_num(0, 0, 0).abs().max() if alone.numel() else torch.zeros(())
    )
    scale = max(1.0, float(shared.nan_to_num(0, 0, 0).abs().max())) if alone.numel() else 1.0
    infinities = not torch.equal(
        alone.isinf() * alone.sign().nan_to_num(), shared.isinf() * shared.sign().nan_to_num()
    )
    if infinities or float(difference) > _TOLERANCE * scale:
        what = "some are infinite" if infinities else f"they differ by {float(difference):.3g}"
        raise DataFlowError(
            f"{call} gives other answers when half of the images are left out ({what}); it looks at them jointly. "
            f"Declare transductive = True, or look at each alone."
        )


def _destroy(tensor: Tensor) -> None:
    """Overwrite a tensor that the learner was given, so that no view of it is of use."""
    with torch.no_grad():
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
        else:
            tensor.fill_(0 if tensor.dtype in (torch.bool, torch.uint8) else -1)


def require_logits(name: str, logits: object, targets: int, labels: int) -> None:
    """Refuse answers of the wrong shape. NaN is an answer, and wrong: who diverges is scored, not excused."""
    if (
        not isinstance(logits, Tensor)
        or tuple(logits.shape) != (targets, labels)
        or not logits.is_floating_point()
    ):
        got = (
            f"{logits.dtype} {tuple(logits.shape)}"
            if isinstance(logits, Tensor)
            else type(logits).__name__
        )
        raise LearnerError(
            f"{name}.predict gave {got}; float logits of shape {(targets, labels)} are needed"
        )
