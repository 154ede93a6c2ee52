"""Tasks under the data-flow law, with a locked process for every call of the learner."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from cfsl.errors import LearnerError
from cfsl.harness.run import (
    Outcome,
    TargetMaker,
    observe_all,
    require_logits,
    require_separate_answers,
)
from cfsl.harness.sandbox.child import STATE, TEXT, request_frame
from cfsl.harness.sandbox.connection import (
    Answer,
    ForkServer,
    LearnerMessage,
    one_line,
    the_server,
)
from cfsl.harness.sandbox.counting import sizes
from cfsl.harness.sandbox.lock import Limits
from cfsl.harness.sandbox.sandboxed_learner import SandboxedEmbedder, SandboxedLearner
from cfsl.harness.sandbox.values import Converter, strides_of, tensor_from
from cfsl.harness.sandbox.wire import TensorBytes, Tree, WireError, decoded, encoded, values_of
from cfsl.harness.state import flatten
from cfsl.learners.base import Learner, Meta, Support, TaskInfo
from cfsl.spec import TaskSpec

_NO_TASK = TaskInfo(
    image_shape=(0, 0, 0), labels=0, nss=0, n_way=0, k_shot=0, cci=1, overwrite=False, seed=0
)
_MOST_MEASURED = 2**63 - 1


@dataclass
class _Measurement:
    """What one task costs: its kind ("macs" or "memory"), and what was found so far."""

    kind: str
    learning: int = 0
    prediction: int = 0


class SandboxedRun:
    """Runs tasks with one learner in a sandbox."""

    def __init__(
        self,
        learner: Learner,
        meta: Meta,
        *,
        embedded: bool = False,
        thorough_tasks: int = 1,
        limits: Limits | None = None,
        server: ForkServer | None = None,
    ) -> None:
        """Prepare what children are to be given; they come from the fork server of this process."""
        self._name = type(learner).__name__
        self._transductive: bool | None = None
        if isinstance(learner, SandboxedLearner):
            self._name = learner.place.rpartition(":")[2]
            self._transductive = learner.transductive
        self._weights = flatten(meta)
        self._embedded = embedded
        self._thorough_tasks = thorough_tasks
        self._usual_states: list[bytes] = []
        self._measurement: _Measurement | None = None

        self._message = LearnerMessage.of(learner, meta, limits or Limits())
        self._given_server = server

    def compare_structures_with(self, info: TaskInfo, supports: Iterable[Support]) -> None:
        """Run the first task of the setting: what its states look like costs nothing in others."""
        self._usual_states, _ = self._observe_all(info, supports, None)

    def task(
        self,
        info: TaskInfo,
        supports: Iterable[Support],
        targets: TargetMaker,
        *,
        progressive: bool = False,
        others: Sequence[TargetMaker] = (),
    ) -> Outcome:
        """Show each support set to a new process, then ask others for the targets."""
        if info.device != "cpu":
            raise LearnerError(
                f"sandboxed runs are on the CPU, not on {info.device}; take --isolate none there"
            )
        thorough = self._thorough_tasks > 0
        self._thorough_tasks -= 1

        def predict_now(state: bytes) -> Tensor:
            return self._logits(info, state, targets())

        states, answers = self._observe_all(info, supports, predict_now if progressive else None)
        logits = predict_now(states[-1])

        predict = functools.partial(self._logits, info, states[-1])
        if thorough and not self._is_transductive():
            require_separate_answers(f"{self._name}.predict", predict, targets(), logits)
        other_logits = [predict(other()) for other in others]

        counted = sizes(states, self._usual_states)
        total = [size.total for size in counted]
        bookkeeping = [size.bookkeeping for size in counted]
        return Outcome(logits, total, bookkeeping, answers, other_logits)

    def embed(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        """Let a new process embed images, for a table of the split."""
        features = self._tensor("embed", _NO_TASK, b"", images)
        if features.dim() == 0 or len(features) != len(images):
            raise LearnerError(
                f"{self._name}.embed gave {tuple(features.shape)} for {len(images)} images"
            )
        return features

    def measure(
        self, kind: str, info: TaskInfo, supports: Iterable[Support], targets: TargetMaker
    ) -> tuple[int, int]:
        """Run a task, and return what learning and prediction took: "macs", or "memory" in bytes.

        The figures are counted in the sandbox: they are the learner's word.
        """
        measurement = self._measurement = _Measurement(kind)
        try:
            states, _ = self._observe_all(info, supports, None)
            self._logits(info, states[-1], targets())
        finally:
            self._measurement = None
        return measurement.learning, measurement.prediction

    def traits(self) -> dict[str, Any]:
        """Ask the learner about itself: class, settings, and whether it is transductive."""
        return self._told("describe")

    def first_weights(self, image_shape: tuple[int, int, int], spec: TaskSpec, seed: int) -> Meta:
        """Let the learner draw its first weights."""
        head = {"spec": spec.model_dump(mode="json"), "seed": seed}
        info = asdict(_NO_TASK) | {"image_shape": image_shape}
        _, tree = self._state("init", info, b"", {}, **head)
        if not isinstance(tree, dict):
            raise LearnerError(f"{self._name}.init gave no dict of weights")
        weights: Meta = Converter({}).from_tree(tree)
        flatten(weights)
        return weights

    def _is_transductive(self) -> bool:
        """Tell whether the learner declares that it sees targets jointly; it is asked only once."""
        if self._transductive is None:
            self._transductive = self._told("describe")["transductive"] is True
        return self._transductive

    def _observe_all(
        self,
        info: TaskInfo,
        supports: Iterable[Support],
        predict: Callable[[bytes], Tensor] | None,
    ) -> tuple[list[bytes], list[Tensor]]:
        told = asdict(info)

        def observe(state: bytes, support: Support) -> bytes:
            given = {"images": support.images, "labels": support.labels}
            return self._state("observe", told, state, given)[0]

        first, _ = self._state("begin", told, b"", {})
        return observe_all(first, supports, observe, predict)

    def _logits(
        self, info: TaskInfo, state: bytes, images: Tensor
    ) -> Float[Tensor, "targets labels"]:
        logits = self._tensor("predict", info, state, images)
        require_logits(self._name, logits, len(images), info.labels)
        return logits

    def _tensor(self, call: str, info: TaskInfo, state: bytes, images: Tensor) -> Tensor:
        _, tree = self._state(call, asdict(info), state, {"images": images})
        if type(tree) is not TensorBytes:
            raise LearnerError(f"{self._name}.{call} gave a {type(tree).__name__}, not a tensor")
        return tensor_from(tree)

    def _state(
        self,
        call: str,
        info: Mapping[str, Any],
        state: bytes,
        given: Mapping[str, Tensor],
        **more: Any,
    ) -> tuple[bytes, Tree]:
        """Let a new child answer a call; return the checked answer as bytes and as a tree."""
        measured_kind = None if self._measurement is None else self._measurement.kind
        head = {
            "call": call,
            "info": info,
            "embedded": self._embedded,
            "grad": torch.is_grad_enabled(),
            "measure": measured_kind,
            "strides": strides_of(given),
            **more,
        }
        request = request_frame(head, state, encoded(Converter({}).to_tree(dict(given), "given")))
        name = f"{self._name}.{call}"
        answer = self._ask(name, request)

        try:
            if answer.kind != STATE:
                raise WireError("it is no state")
            content = decoded(answer.content, self._weights)
            if type(content) is not tuple or len(content) != 2 or type(content[0]) is not int:
                raise WireError("it is no measurement and state")
        except WireError as error:
            raise LearnerError(f"the answer of {name} cannot be read: {error}") from None

        measured, tree = content
        self._note_measured(call, measured, state)
        return encoded(tree), tree

    def _ask(self, call: str, request: bytes) -> Answer:
        """Let a child answer that has this learner."""
        server = self._given_server or the_server()
        server.hold(self._message)
        return server.ask(call, request)

    def _note_measured(self, call: str, measured: int, state: bytes) -> None:
        """Add what was counted in a child; the state that it was given was in memory, too."""
        found = self._measurement
        if found is None:
            return
        measured = max(0, measured)
        part = "prediction" if call == "predict" else "learning"

        if found.kind == "memory":
            measured += len(values_of(state)) if state else 0
            setattr(found, part, max(getattr(found, part), measured))
        else:
            setattr(found, part, min(getattr(found, part) + measured, _MOST_MEASURED))

    def _told(self, call: str) -> dict[str, Any]:
        """Return what the learner says of itself, checked."""
        head = {
            "call": call,
            "info": asdict(_NO_TASK),
            "embedded": False,
            "grad": False,
            "measure": None,
            "strides": {},
        }
        answer = self._ask(f"{self._name}.{call}", request_frame(head, b"", encoded({})))
        try:
            if answer.kind != TEXT:
                raise ValueError
            told: dict[str, Any] = json.loads(answer.content)
            _ = told["embeds"], told["transductive"], told["breaks_law"]
            # What goes on a card must be JSON that can be written: no NaN, no half of a letter.
            json.dumps(told["learner"], allow_nan=False, ensure_ascii=False).encode()
            about = {"class": told["learner"]["class"], "settings": told["learner"]["settings"]}
            told["learner"] = {
                name: one_line(value) if isinstance(value, str) else value
                for name, value in about.items()
            }
        except (ValueError, TypeError, KeyError, RecursionError):
            raise LearnerError(
                f"the answer of {self._name}.{call} cannot be read: it does not describe a learner"
            ) from None
        return told


def introduced(place: str, changes: Mapping[str, Any]) -> SandboxedLearner:
    """Make a stand-in for a user's own learner, which tells about itself in a sandbox, once."""
    unknown = SandboxedLearner(place, changes, {})
    told = SandboxedRun(unknown, {}).traits()

    kind = SandboxedEmbedder if told["embeds"] is True else SandboxedLearner
    return kind(
        place,
        changes,
        description=told["learner"],
        transductive=told["transductive"] is True,
        breaks_law=told["breaks_law"] is True,
    )


def sandboxed_first_weights(
    learner: SandboxedLearner, image_shape: tuple[int, int, int], spec: TaskSpec, *, seed: int
) -> Meta:
    """Let a learner draw its first weights in a sandbox."""
    return SandboxedRun(learner, {}).first_weights(image_shape, spec, seed)
