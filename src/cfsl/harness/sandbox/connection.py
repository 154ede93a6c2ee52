"""Our end of the fork server: start it, hand it a learner, and let children answer."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import pickletools
import selectors
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cfsl.errors import DataFlowError, LearnerError
from cfsl.harness.sandbox.child import FRAME, PROBLEM, STATE, TEXT, is_child
from cfsl.harness.sandbox.fork_server import END, FORK, HOLD, LENGTHS, STATUS, read_exactly
from cfsl.harness.sandbox.lock import Limits, require_support
from cfsl.harness.sandbox.sandboxed_learner import SandboxedLearner
from cfsl.harness.sandbox.sources import trusted_folders
from cfsl.harness.sandbox.values import Converter, as_dicts, strides_of
from cfsl.harness.sandbox.wire import LARGEST_STATE, encoded
from cfsl.harness.state import flatten
from cfsl.learners.base import Learner, Meta

_SECONDS_TO_STOP = 10
_SECONDS_TO_PREPARE = 300
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_AT_ONCE = 2**20
_LONGEST_TEXT = 2**20
_LONGEST_LINE = 500
_OUR_ERRORS = {"DataFlowError": DataFlowError, "LearnerError": LearnerError}


@dataclass(frozen=True)
class Answer:
    """What a child sent, unread."""

    kind: bytes
    content: bytes


@dataclass(frozen=True, eq=False)
class LearnerMessage:
    """What the fork server is told about a learner."""

    head: bytes
    pickled: bytes
    weights: bytes
    seconds: float
    """How long a call may take."""

    @classmethod
    def of(cls, learner: Learner, weights: Meta, limits: Limits) -> LearnerMessage:
        """Write it."""
        tensors = flatten(weights).items()
        elsewhere = [path for path, tensor in tensors if tensor.device.type != "cpu"]
        if elsewhere:
            raise LearnerError(
                f"sandboxed runs are on the CPU; the learned weights '{elsewhere[0]}' are not"
            )

        if isinstance(learner, SandboxedLearner):
            place, changes, pickled = learner.place, dict(learner.changes), b""
            modules = {place.partition(":")[0]}
        else:
            place, changes, pickled = type(learner).__name__, {}, _pickled(learner)
            modules = _modules_in(pickled)

        head = {
            "place": place,
            "changes": changes,
            "modules": sorted(modules),
            "folders": [folder or os.curdir for folder in sys.path],
            "main_file": getattr(sys.modules["__main__"], "__file__", None),
            "strides": strides_of(weights),
            "limits": asdict(limits),
        }
        packed = encoded(Converter({}).to_tree(as_dicts(weights), "the learned weights"))
        return cls(json.dumps(head).encode(), pickled, packed, limits.seconds)


class ForkServer:
    """The process that children are forked from; it never sees an image."""

    def __init__(self) -> None:
        """Start it. That takes some seconds; only the first call waits for it."""
        require_support()
        if is_child():
            raise LearnerError(
                "the script that defines the learner evaluates it when it is imported; "
                "put what it does under: if __name__ == '__main__':"
            )

        self._control, theirs = socket.socketpair()
        self._control.settimeout(_SECONDS_TO_PREPARE)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _program(theirs.fileno())],
                env=os.environ | _ONE_THREAD,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; the server ends when we do
            )
        self._stop = weakref.finalize(self, _stop, self._process, self._control)
        self._held: LearnerMessage | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether it can be asked."""
        return self._stop.alive

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def close(self) -> None:
        """End the server and the child that may be at work."""
        self._stop()

    def hold(self, message: LearnerMessage) -> None:
        """Give it a learner and its weights, unless it has them."""
        if self._held is message:
            return
        parts = (message.head, message.pickled, message.weights)
        with self._unless_gone():
            self._control.sendall(HOLD + LENGTHS.pack(*map(len, parts)) + b"".join(parts))
        self._held = message

    def ask(self, call: str, request: bytes) -> Answer:
        """Let a new child of the learner that it holds answer one call."""
        seconds = Limits().seconds if self._held is None else self._held.seconds
        with self._unless_gone():
            their_end, our_requests = os.pipe()
            our_answers, their_answers = os.pipe()
            try:
                socket.send_fds(self._control, [FORK], [their_end, their_answers])
            finally:
                os.close(their_end)
                os.close(their_answers)

            problem, answer = "", None
            with os.fdopen(our_requests, "wb", 0), os.fdopen(our_answers, "rb", 0):
                try:
                    answer = _talk(our_requests, our_answers, request, seconds)
                except _NoAnswerError as error:
                    problem = str(error)

            self._control.sendall(END)
            (code,) = STATUS.unpack(read_exactly(self._control, STATUS.size))

        if answer is None:
            raise LearnerError(f"{call} gave no answer: its process {problem or _ending(code)}")
        if answer.kind == PROBLEM:
            raise _problem(call, answer.content)
        return answer

    @contextlib.contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """End the server when a conversation with it is cut short: by its death, or by Ctrl-C."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | EOFError):
                code = self._process.returncode
                raise LearnerError(f"the process that starts the others {_ending(code)}") from None
            raise


_SERVERS: list[ForkServer] = []
"""The fork server of this process, if it has one: to start it takes seconds."""


def the_server() -> ForkServer:
    """Return the fork server of this process, which ends with it; start one if there is none."""
    if not _SERVERS or not _SERVERS[0].is_open:
        _SERVERS[:] = [ForkServer()]
    return _SERVERS[0]


class _NoAnswerError(Exception):
    """A child that gives no whole answer; says what it did, or nothing if it has ended."""


def _talk(requests: int, answers: int, request: bytes, seconds: float) -> Answer:
    """Write a request and read the answer, until the time is up."""
    os.set_blocking(requests, False)
    deadline = time.monotonic() + seconds
    left, found, wanted = memoryview(request), bytearray(), FRAME.size
    kind = b""

    with selectors.DefaultSelector() as selector:
        selector.register(answers, selectors.EVENT_READ)
        selector.register(requests, selectors.EVENT_WRITE)
        while len(found) < wanted:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                raise _NoAnswerError(f"was ended after {seconds:g} seconds")

            for key, _ in ready:
                if key.fd == requests:
                    left = _written(requests, left)
                    if not left:
                        selector.unregister(requests)
                    continue

                part = os.read(answers, min(wanted - len(found), _AT_ONCE))
                if not part:
                    raise _NoAnswerError
                found += part
                if len(found) == wanted and not kind:
                    kind, length = FRAME.unpack(found)
                    _require_sound(kind, length)
                    found, wanted = bytearray(), length
                    if not length:
                        break

    return Answer(kind, bytes(found))


def _written(requests: int, left: memoryview) -> memoryview:
    """Write a part of a request; return what is left of it."""
    try:
        return left[os.write(requests, left[:_AT_ONCE]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:  # what ended the child may be in its answer
        return left[:0]


def _require_sound(kind: bytes, length: int) -> None:
    if kind not in (STATE, TEXT, PROBLEM):
        raise _NoAnswerError(f"sent something that is no answer ({kind!r})")
    most = LARGEST_STATE if kind == STATE else _LONGEST_TEXT
    if length > most:
        raise _NoAnswerError(f"sent an answer of {length} bytes (at most {most})")


def _pickled(learner: Learner) -> bytes:
    """Pickle a learner that somebody made in this process; only a child loads it."""
    try:
        return pickle.dumps(learner)
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise LearnerError(
            f"{type(learner).__name__} cannot be sent to another process: {what}. "
            f"Define its class at the top of a module, and keep plain values in it"
        ) from None


def _modules_in(pickled: bytes) -> set[str]:
    """Return the modules that a pickle names."""
    strings = {argument for _, argument, _ in pickletools.genops(pickled) if argument}
    return {name for name in strings if isinstance(name, str) and name in sys.modules}


def _problem(call: str, content: bytes) -> LearnerError:
    """Return the error that was raised in a child: one line, and the learner's own frames."""
    try:
        told: Mapping[str, Any] = json.loads(content)
        kind, says = one_line(told["kind"]), one_line(told["says"])
        frames = [
            f"  {one_line(path)}, line {int(line)}, in {one_line(name)}"
            for path, line, name in told["frames"]
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        return LearnerError(
            f"the answer of {call} cannot be read: it is no description of an error"
        )

    if kind in _OUR_ERRORS:
        error = _OUR_ERRORS[kind](says)
    else:
        error = LearnerError(f"{call} raised {kind}: {says}")
    if frames:
        error.add_note("\n".join(frames[-10:]))
    return error


def one_line(text: object) -> str:
    """Return text of a learner's as one line without control characters."""
    line = " ".join(str(text).split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in line)
    return shown if len(shown) <= _LONGEST_LINE else f"{shown[:_LONGEST_LINE]}..."


def _program(descriptor: int) -> str:
    return (
        f"import sys; sys.path[:] = {trusted_folders(sys.path)!r}; "
        f"from cfsl.harness.sandbox.fork_server import serve; serve({descriptor})"
    )


def _stop(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """Close the connection: the server then ends its child and itself.

    A server that is still starting is ended by the signal.
    """
    with contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)
    control.close()
    process.terminate()
    try:
        process.wait(_SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by signal {-code} ({signal.strsignal(-code)})"
