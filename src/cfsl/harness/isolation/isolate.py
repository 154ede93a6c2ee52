"""Every call of a learner in a process of its own: what it hides in memory ends with the process.

A *template* process is started once. It has imported torch and cfsl, holds the learned weights and
the pickled learner, and runs no line of the learner's. For each call (`begin`, `observe`,
`predict`, `embed`) it forks a *worker*, which closes every descriptor but its own connection to us,
makes the learner from the pickle, answers once, and is killed. The template never sees an image,
and holds the weights in private memory: a worker can only write to its own copy.

    we  --- learner, weights --->  template                                       once
    we  --- a connection ------->  template  --- fork ------------->  worker      for every call
    we  --- state, images ------------------------------------------->  worker
    we  <-- state or logits ------------------------------------------  worker
    we  --- "end it" ----------->  template  --- kill, wait ------->  worker

`fork_server.py` is the template and our handle on it, `forked.py` the worker, `worker_payload.py`
what it is given. What comes back from a worker is never unpickled. It is a frame (see `frames.py`),
and a state in it is measured by us, not by the worker.

A fork copies one thread only, and a torch with a pool of threads does not survive that. So the
template has one thread from before it imports torch to its end, and workers compute with one
thread. Results equal those of `StrictRun` bit by bit if that has one thread too. CUDA cannot be
forked: this runs on the CPU, on systems that can fork (not on Windows).
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TypeVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from cfsl.errors import DataFlowError, LearnerError
from cfsl.harness.isolation.fork_server import Template
from cfsl.harness.isolation.frames import read
from cfsl.harness.isolation.worker_payload import NO_TASK, hand_over, in_one_line, strides_of
from cfsl.harness.run import (
    Outcome,
    TargetMaker,
    observe_all,
    require_logits,
    require_separate_answers,
)
from cfsl.harness.state import PackedState, StateCodec
from cfsl.learners.base import Learner, Meta, Support, TaskInfo

_OUR_ERRORS = {"DataFlowError": DataFlowError, "LearnerError": LearnerError}
T = TypeVar("T")


class IsolatedRun:
    """Runs tasks under the data-flow law, with a new process for every call of the learner."""

    def __init__(
        self,
        learner: Learner,
        meta: Meta,
        *,
        embedded: bool = False,
        thorough_tasks: int = 1,
        template: Template | None = None,
    ) -> None:
        """Hand learner and weights to a template: the given one, or one that ends with the run."""
        self._name, self._meta = type(learner).__name__, meta
        self._transductive = bool(getattr(learner, "transductive", False))
        self._thorough_tasks = thorough_tasks
        kit = hand_over(learner, meta, embedded=embedded)

        self._own = template is None
        self._template = Template() if template is None else template
        self._template.hold(*kit)

    def __enter__(self) -> IsolatedRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the template, if it belongs to this run."""
        if self._own:
            self._template.close()

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
                f"isolated runs are on the CPU, not on {info.device}; take isolation 'none' there"
            )
        thorough = self._thorough_tasks > 0
        self._thorough_tasks -= 1

        def observe(packed: PackedState, support: Support) -> PackedState:
            given = {"images": support.images, "labels": support.labels}
            return self._state("observe", info, packed, given)

        def predict_now(packed: PackedState) -> Tensor:
            return self._logits(info, packed, targets())

        first = self._state("begin", info, None, {})
        states, answers = observe_all(
            first, supports, observe, predict_now if progressive else None
        )
        logits = predict_now(states[-1])

        predict = functools.partial(self._logits, info, states[-1])
        if thorough and not self._transductive:
            require_separate_answers(f"{self._name}.predict", predict, targets(), logits)
        return Outcome.of(logits, states, answers, [predict(other()) for other in others])

    def embed(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        """Let a new process embed images, for a table of the split."""
        features = self._tensor("embed", NO_TASK, None, images)
        if len(features) != len(images):
            raise LearnerError(
                f"{self._name}.embed gave {len(features)} embeddings for {len(images)} images"
            )
        return features

    def _logits(
        self, info: TaskInfo, packed: PackedState, images: Tensor
    ) -> Float[Tensor, "targets labels"]:
        logits = self._tensor("predict", info, packed, images)
        require_logits(self._name, logits, len(images), info.labels)
        return logits

    def _tensor(
        self, call: str, info: TaskInfo, packed: PackedState | None, images: Tensor
    ) -> Tensor:
        return self._asked(call, info, packed, {"images": images}, _as_tensor)

    def _state(
        self, call: str, info: TaskInfo, packed: PackedState | None, given: dict[str, Tensor]
    ) -> PackedState:
        """Get a state; unpack and pack it again, so that the law holds for it and we measure it."""
        codec = StateCodec(self._meta, info)
        return self._asked(call, info, packed, given, lambda state: codec.pack(codec.unpack(state)))

    def _asked(
        self,
        call: str,
        info: TaskInfo,
        packed: PackedState | None,
        given: dict[str, Tensor],
        made: Callable[[PackedState], T],
    ) -> T:
        """Let a new worker answer one call, and make something of its answer."""
        head = {
            "call": call,
            "info": asdict(info),
            "grad": torch.is_grad_enabled(),
            "strides": strides_of(given),
        }
        tree = {"state": packed and packed.tree, "given": StateCodec({}, info).pack(given).tree}
        header, body = self._template.ask(f"{self._name}.{call}", head, tree)

        try:
            answer = json.loads(header)
            problem = answer.get("problem")
            if problem is None:
                return made(PackedState(read(answer["tree"], io.BytesIO(body)), 0, 0))
            kind, message, story = map(str, problem)
        except Exception as error:
            raise LearnerError(
                f"the answer of {self._name}.{call} cannot be read: {in_one_line(error)}"
            ) from None
        raise _problem(f"{self._name}.{call}", kind, message, story)


def _as_tensor(packed: PackedState) -> Tensor:
    tensor = StateCodec({}, NO_TASK).unpack(packed)
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{type(tensor).__name__} instead of a tensor")
    return tensor


def _problem(call: str, kind: str, message: str, story: str) -> LearnerError:
    """Return the error that was raised in a worker; its traceback there becomes a note."""
    line = " ".join(message.split())
    error = (
        _OUR_ERRORS[kind](line)
        if kind in _OUR_ERRORS
        else LearnerError(f"{call} raised {kind}: {line}")
    )
    error.add_note(f"In the worker process:\n{story}")
    return error
