"""A child: it locks itself, makes the learner, answers one call, and ends."""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor

from cfsl.errors import LearnerError
from cfsl.harness.macs import counting_macs
from cfsl.harness.peak import PeakMemory
from cfsl.harness.run import require_logits
from cfsl.harness.sandbox.lock import READ_FROM, WRITE_TO, Lock
from cfsl.harness.sandbox.sources import SourceImporter, Sources
from cfsl.harness.sandbox.values import Converter, as_dicts, laid_out
from cfsl.harness.sandbox.wire import Tree, decoded, encoded
from cfsl.learners.base import FixedEmbedding, Learner, Meta, Support, TaskInfo, first_weights
from cfsl.learners.description import described
from cfsl.learners.overrides import changed
from cfsl.learners.registry import find_learner
from cfsl.spec import TaskSpec

FRAME = struct.Struct("<cQ")
"""What is before everything that passes through a pipe: its kind, and its length."""
REQUEST, STATE, TEXT, PROBLEM = b"R", b"S", b"T", b"P"
_READ_AT_ONCE = 2**20
_REQUEST_PARTS = struct.Struct("<QQ")
_MAIN = "__main__"
_FRAMES_READ, _FRAMES_SHOWN = 100, 10


_in_child = False


def is_child() -> bool:
    """Tell whether this process is a child."""
    return _in_child


@dataclass(frozen=True)
class LearnerOrigin:
    """How a learner is made: by its place and settings, or from a pickle."""

    place: str
    changes: Mapping[str, Any]
    pickled: bytes
    """Empty if it is made by its place. Only a child loads it: that runs code of the learner's."""
    sources: Sources

    def make(self) -> Learner:
        """Import the learner's module, and make the learner."""
        SourceImporter(self.sources.modules).install()
        if _MAIN in self.sources.modules:
            _run_main(self.sources)
        if not self.pickled:
            found: Learner = changed(find_learner(self.place), dict(self.changes))
            return found

        try:
            made: Learner = pickle.loads(self.pickled)
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise LearnerError(
                f"{self.place} cannot be made again in a process of its own: {what}"
            ) from error
        return made


def answer_one_call(
    pipes: tuple[int, int], lock: Lock, origin: LearnerOrigin, weights: Meta
) -> NoReturn:
    """Be a child: from here on nothing returns."""
    global _in_child
    try:
        _in_child = True
        lock.close(*pipes)
        try:
            _write_frame(*_answer(origin, weights))
        except BaseException as error:
            _write_frame(PROBLEM, _described(error, origin.sources))
        os._exit(0)
    finally:
        os._exit(1)


def _answer(origin: LearnerOrigin, weights: Meta) -> tuple[bytes, bytes]:
    """Make the learner, then read the call: nothing is there to be seen by an import."""
    learner = origin.make()
    head, state, given = _read_request()
    info = TaskInfo(**head["info"] | {"image_shape": tuple(head["info"]["image_shape"])})
    converter = Converter(weights, info)

    if head["call"] == "describe":
        return TEXT, json.dumps(_traits(learner)).encode()
    if head["call"] == "init":
        return STATE, _first_weights(learner, head)

    call = _Call(learner, weights, info, embedded=head["embedded"])
    unpacked = None if state is None else converter.from_tree(state)
    images = laid_out(Converter({}).from_tree(given), head["strides"])

    with torch.set_grad_enabled(head["grad"]), _meter(head["measure"]) as meter:
        answer = call.do(head["call"], unpacked, images)
    where = "state" if head["call"] in ("begin", "observe") else "the answer"
    measured = 0 if meter is None else meter.peak if head["measure"] == "memory" else meter.total
    return STATE, encoded((int(measured), converter.to_tree(answer, where)))


def _traits(learner: Learner) -> dict[str, Any]:
    """Return what cfsl asks a learner about itself, once."""
    return {
        "learner": described(learner),
        "transductive": bool(getattr(learner, "transductive", False)),
        "breaks_law": bool(getattr(learner, "breaks_law", False)),
        "embeds": isinstance(learner, FixedEmbedding),
    }


def _first_weights(learner: Learner, head: Mapping[str, Any]) -> bytes:
    generator = torch.Generator().manual_seed(head["seed"])
    shape = tuple(head["info"]["image_shape"])
    spec = TaskSpec(**head["spec"])
    weights = first_weights(learner, shape, spec, generator)
    return encoded((0, Converter({}).to_tree(as_dicts(weights), "the weights")))


class _Call:
    """The calls that a learner answers."""

    def __init__(self, learner: Learner, weights: Meta, info: TaskInfo, *, embedded: bool) -> None:
        self._learner, self._weights, self._info = learner, weights, info
        self._embedded = embedded

    def do(self, call: str, state: Any, given: Mapping[str, Tensor]) -> Any:
        """Do one of them."""
        if call == "begin":
            return self._learner.begin(self._weights, self._info)
        if call == "embed":
            return self._embed(given["images"])

        shown = given["images"] if self._embedded else self._embed(given["images"])
        if call == "observe":
            return self._learner.observe(state, Support(shown, given["labels"]))
        logits = self._learner.predict(state, shown)
        require_logits(type(self._learner).__name__, logits, len(shown), self._info.labels)
        return logits

    def _embed(self, images: Tensor) -> Tensor:
        if not isinstance(self._learner, FixedEmbedding):
            return images
        return self._learner.embed(self._weights, images)


def _meter(kind: str | None) -> AbstractContextManager[Any]:
    """Return what measures a call: its multiply-accumulates, its memory, or nothing."""
    if kind == "macs":
        return counting_macs()
    return PeakMemory() if kind == "memory" else nullcontext()


def _read_request() -> tuple[dict[str, Any], Tree, Tree]:
    """Read the call: a head of JSON, the state or nothing, and the images."""
    _, length = FRAME.unpack(_read_exactly(FRAME.size))
    request = memoryview(_read_exactly(length))
    head_size, state_size = _REQUEST_PARTS.unpack_from(request)

    start = _REQUEST_PARTS.size
    head = json.loads(bytes(request[start : start + head_size]))
    state_end = start + head_size + state_size
    state = bytes(request[start + head_size : state_end])
    given = decoded(bytes(request[state_end:]))
    return head, decoded(state, _AnyPath()) if state else None, given


class _AnyPath:
    """Contains every path: the state that cfsl sends has been checked."""

    def __contains__(self, path: object) -> bool:
        return True


def request_frame(head: Mapping[str, Any], state: bytes, given: bytes) -> bytes:
    """Return a call as the bytes that a child reads."""
    written = json.dumps(head).encode()
    request = _REQUEST_PARTS.pack(len(written), len(state)) + written + state + given
    return FRAME.pack(REQUEST, len(request)) + request


def _read_exactly(size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = os.read(READ_FROM, min(size - len(found), _READ_AT_ONCE))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


def _write_frame(kind: bytes, content: bytes) -> None:
    left = memoryview(FRAME.pack(kind, len(content)) + content)
    while left:
        left = left[os.write(WRITE_TO, left) :]


def _described(error: BaseException, sources: Sources) -> bytes:
    """Return the kind of an error, what it says, and where it was in the learner's own files."""
    try:
        says = str(error)
    except Exception:
        says = ""
    own_files = {source.path for source in sources.modules.values()}
    frames = [
        [frame.filename, frame.lineno, frame.name]
        for frame in traceback.extract_tb(error.__traceback__, limit=-_FRAMES_READ)
        if frame.filename in own_files
    ]
    return _problem(type(error).__name__, says, frames[-_FRAMES_SHOWN:])


def problem_frame(kind: str, says: str) -> bytes:
    """Return an answer that is an error."""
    content = _problem(kind, says, [])
    return FRAME.pack(PROBLEM, len(content)) + content


def _problem(kind: str, says: str, frames: list[list[Any]]) -> bytes:
    return json.dumps({"kind": kind, "says": says, "frames": frames}).encode()


def _run_main(sources: Sources) -> None:
    """Run the script that defines the learner; what is under `if __name__ == ...` stays out."""
    source = sources.modules[_MAIN]
    module = ModuleType("__mp_main__")
    module.__file__ = source.path
    sys.modules[_MAIN] = sys.modules["__mp_main__"] = module
    exec(compile(source.text, source.path, "exec", dont_inherit=True), vars(module))
