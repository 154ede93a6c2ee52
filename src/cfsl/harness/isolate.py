"""Every call of a learner in a process of its own: what it hides in memory is gone, because the process is gone.

A *template* process is started once. It has imported torch and cfsl, holds the learned weights and the pickled learner,
and runs no line of the learner's. For each call (`begin`, `observe`, `predict`, `embed`) it forks a *worker*, which
closes every descriptor but its own connection to us, makes the learner from the pickle, answers once, and is killed.
The template never sees an image, and holds the weights in private memory: a worker can only write to its own copy.

    we  --- learner, weights --->  template                                       once
    we  --- a connection ------->  template  --- fork ------------->  worker      for every call
    we  --- state, images ------------------------------------------->  worker
    we  <-- state or logits ------------------------------------------  worker
    we  --- "end it" ----------->  template  --- kill, wait ------->  worker

What comes back from a worker is never unpickled. It is a frame (see `wire.py`), and a state in it is measured by us,
not by the worker.

A fork copies one thread only, and a torch with a pool of threads does not survive that. So the template has one thread
from before it imports torch to its end, and workers compute with one thread. Results equal those of `StrictRun` bit by
bit if that has one thread too. CUDA cannot be forked: this runs on the CPU, on systems that can fork (not on Windows).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import multiprocessing.spawn
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from cfsl.errors import CfslError, DataFlowError, LearnerError
from cfsl.harness.law import watch_process
from cfsl.harness.run import Outcome, StrictRun, observe_all, require_logits, require_separate_answers
from cfsl.harness.state import PackedState, PackedTensor, StateCodec, flatten
from cfsl.harness.wire import exactly, read, receive, send
from cfsl.learners.base import Learner, Meta, Support, TaskInfo
from cfsl.learners.registry import LEARNERS

_HOLD, _FORK, _END = b"H", b"F", b"E"
_STATUS = struct.Struct("<i")
_SECONDS_TO_STOP = 10
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_NO_TASK = TaskInfo(image_shape=(0, 0, 0), labels=0, nss=0, n_way=0, k_shot=0, cci=1, overwrite=False, seed=0)
_OUR_ERRORS = {"DataFlowError": DataFlowError, "LearnerError": LearnerError}
_in_worker = False
T = TypeVar("T")


class IsolatedRun:
    """Runs tasks under the data-flow law, with a new process for every support set and for the prediction."""

    def __init__(
        self,
        learner: Learner,
        meta: Meta,
        *,
        embedded: bool = False,
        thorough_tasks: int = 1,
        template: Template | None = None,
    ) -> None:
        """Hand learner and weights to a template: one of its own, which ends with this run, or one that is given."""
        self._name, self._meta = type(learner).__name__, meta
        self._transductive = bool(getattr(learner, "transductive", False))
        self._thorough_tasks = thorough_tasks
        kit = _kit(learner, meta, embedded=embedded)
        self._own = template is None
        self._template = Template() if template is None else template
        self._template.hold(*kit)

    def __enter__(self) -> IsolatedRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the template, if it belongs to this run."""
        if self._own:
            self._template.close()

    def task(
        self,
        info: TaskInfo,
        supports: Iterable[Support],
        targets: Callable[[], Shaped[Tensor, "targets *shape"]],
        *,
        progressive: bool = False,
    ) -> Outcome:
        """Show each support set to a new process, then ask another for the targets."""
        if info.device != "cpu":
            raise LearnerError(f"isolated runs are on the CPU, not on {info.device}; take isolation 'none' there")
        thorough = self._thorough_tasks > 0
        self._thorough_tasks -= 1
        start = time.perf_counter()

        def observe(packed: PackedState, support: Support) -> PackedState:
            return self._state("observe", info, packed, {"images": support.images, "labels": support.labels})

        def predict(images: Tensor) -> Tensor:
            return self._logits(info, states[-1], images)

        ask = (lambda packed: self._logits(info, packed, targets())) if progressive else None
        states, answers = observe_all(observe, self._state("begin", info, None, {}), supports, ask)
        logits = predict(targets())
        if thorough and not self._transductive:
            require_separate_answers(f"{self._name}.predict", predict, targets(), logits)
        return Outcome.of(logits, states, answers, time.perf_counter() - start)

    def embed(self, images: Shaped[Tensor, "n *shape"]) -> Shaped[Tensor, "n *features"]:
        """Let a new process embed images, for a table of the split."""
        features = self._tensor("embed", _NO_TASK, None, images)
        if len(features) != len(images):
            raise LearnerError(f"{self._name}.embed gave {len(features)} embeddings for {len(images)} images")
        return features

    def _logits(self, info: TaskInfo, packed: PackedState, images: Tensor) -> Float[Tensor, "targets labels"]:
        logits = self._tensor("predict", info, packed, images)
        require_logits(self._name, logits, len(images), info.labels)
        return logits

    def _tensor(self, call: str, info: TaskInfo, packed: PackedState | None, images: Tensor) -> Tensor:
        return self._asked(call, info, packed, {"images": images}, _as_tensor)

    def _state(self, call: str, info: TaskInfo, packed: PackedState | None, given: dict[str, Tensor]) -> PackedState:
        """Get a state; it is unpacked and packed again, so that it is what the law allows and measured by us."""
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
        head = {"call": call, "info": asdict(info), "grad": torch.is_grad_enabled(), "strides": _strides(given)}
        tree = {"state": packed and packed.tree, "given": StateCodec({}, info).pack(given).tree}
        header, body = self._template.ask(f"{self._name}.{call}", head, tree)
        try:
            answer = json.loads(header)
            problem = answer.get("problem")
            if problem is None:
                return made(PackedState(read(answer["tree"], io.BytesIO(body)), 0, 0))
            kind, message, story = map(str, problem)
        except Exception as error:
            raise LearnerError(f"the answer of {self._name}.{call} cannot be read: {_line(error)}") from None
        raise _problem(f"{self._name}.{call}", kind, message, story)


class Template:
    """The process that workers are forked from. It knows torch, cfsl, weights and a pickle; never an image."""

    def __init__(self) -> None:
        """Start it; it needs some seconds, and nobody waits for it before the first call."""
        if not hasattr(os, "fork"):
            raise CfslError("isolated runs need a system that can fork processes; take isolation 'none' here")
        if _in_worker:
            raise LearnerError(
                "the script that defines the learner evaluates it when it is imported; "
                "put what it does under: if __name__ == '__main__':"
            )
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _program(theirs.fileno())],
                env=os.environ | _ONE_THREAD,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; the template ends when we do
            )
        self._stop = weakref.finalize(self, _stop, self._process, self._control)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def close(self) -> None:
        """End the template and the worker that may be at work."""
        self._stop()

    def hold(self, head: dict[str, Any], tree: Any) -> None:
        """Give it a learner and its weights, instead of those that it had."""
        with self._unless_gone():
            self._control.sendall(_HOLD)
            send(self._control, head, tree)

    def ask(self, call: str, head: dict[str, Any], tree: Any) -> tuple[bytes, bytes]:
        """Let a new worker answer; return the header and the body of its frame, as they came."""
        answer = None
        with self._unless_gone():
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    socket.send_fds(self._control, [_FORK], [theirs.fileno()])
                with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
                    with contextlib.suppress(BrokenPipeError):  # what ended it may be in its answer
                        send(ours, head, tree)
                    answer = receive(ours)
            self._control.sendall(_END)
            (code,) = _STATUS.unpack(exactly(self._control, _STATUS.size))
        if answer is None:
            raise LearnerError(f"{call} gave no answer: its worker process {_ending(code)}")
        return answer

    @contextlib.contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """End the template when a conversation with it is cut short: by its death, or by Ctrl-C."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | EOFError):
                code = self._process.returncode
                raise LearnerError(f"the process that starts the workers {_ending(code)}") from None
            raise


def serve(descriptor: int) -> NoReturn:
    """Be the template, until the process at the other end is gone."""
    worker = 0
    try:
        torch.set_num_threads(1)
        torch.set_num_interop_threads(1)
        sys.dont_write_bytecode = True
        for module in ("numpy.random", *(entry.place.partition(":")[0] for entry in LEARNERS.values())):
            with contextlib.suppress(ImportError):  # a worker will say what is wrong, if it needs this one
                importlib.import_module(module)
        control, kit = socket.socket(fileno=descriptor), None
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from here on it ends with `control`, and ends its worker
        while True:
            order, given, _, _ = socket.recv_fds(control, 1, 1)
            if order == _HOLD:
                kit = _Kit.received(control)
                gc.collect()
                gc.freeze()  # or the first collection in a worker would copy every page
            elif order == _FORK and kit is not None:
                worker = os.fork()
                if worker == 0:
                    _work(given[0], kit)
                os.close(given[0])
            elif order == _END:
                code, worker = _ended(worker), 0
                control.sendall(_STATUS.pack(code))
            else:
                break
    finally:
        if worker:
            _ended(worker)
        os._exit(0)


@dataclass(frozen=True)
class _Kit:
    """What a worker finds in its memory."""

    learner: bytes
    """A pickle that we made: only a worker loads it, for that may run code of the learner's."""
    meta: Meta
    head: Mapping[str, Any]

    @classmethod
    def received(cls, control: socket.socket) -> _Kit:
        header, body = receive(control)
        head = json.loads(header)
        tree = read(head["tree"], io.BytesIO(body))
        meta = StateCodec({}, _NO_TASK).unpack(PackedState(tree["meta"], 0, 0))
        return cls(bytes(tree["learner"].content), _laid_out(meta, head["strides"]), head)

    def rebuilt(self) -> Learner:
        """Make the learner; its module is imported if it is not one of ours."""
        sys.path[:] = self.head["path"]
        try:
            multiprocessing.spawn.prepare(self.head["main"])
            learner: Learner = pickle.loads(self.learner)
        except Exception as error:
            raise LearnerError(
                f"{self.head['name']} cannot be made again in a worker process: {_line(error)}"
            ) from error
        return learner


def _kit(learner: Learner, meta: Meta, *, embedded: bool) -> tuple[dict[str, Any], Any]:
    """Return the message that hands a learner to a template."""
    name = type(learner).__name__
    elsewhere = [path for path, tensor in flatten(meta).items() if tensor.device.type != "cpu"]
    if elsewhere:
        raise LearnerError(f"isolated runs are on the CPU; the learned weights '{elsewhere[0]}' are not")
    try:
        pickled = pickle.dumps(learner)
    except Exception as error:
        raise LearnerError(
            f"{name} cannot be sent to a worker process: {_line(error)}. "
            f"Define its class at the top of a module, and keep plain values in it"
        ) from None
    main = multiprocessing.spawn.get_preparation_data(name) if b"main__" in pickled else {}
    head = {
        "name": name,
        "path": sys.path,
        "main": {key: value for key, value in main.items() if key.startswith("init_main")},
        "embedded": embedded,
        "strides": _strides(meta),
    }
    weights = StateCodec({}, _NO_TASK).pack(_as_dicts(meta)).tree
    return head, {"meta": weights, "learner": PackedTensor(bytearray(pickled), torch.uint8, (len(pickled),))}


def _work(descriptor: int, kit: _Kit) -> NoReturn:
    """Be a worker: answer once, and end."""
    global _in_worker
    try:
        _in_worker = True
        os.setsid()  # so that whatever it starts can be ended with it
        connection = _alone_with(descriptor)
        try:
            head, tree = {}, _answer(connection, kit)
        except BaseException as error:
            story = "".join(traceback.format_exception(error))
            head, tree = {"problem": [type(error).__name__, str(error), story]}, None
        send(connection, head, tree)
        os._exit(0)
    finally:
        os._exit(1)


def _alone_with(descriptor: int) -> socket.socket:
    """Close everything but one connection: a position in a shared file is a channel, too."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    for other in map(int, os.listdir("/dev/fd")):  # noqa: PTH208 - numbers, not paths
        if other > 2 and other != descriptor:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(other)
    return socket.socket(fileno=descriptor)


def _answer(connection: socket.socket, kit: _Kit) -> Any:
    """Make the learner, and only then read what it is asked: its module has nothing to see when it is imported."""
    learner = kit.rebuilt()
    run = StrictRun(learner, kit.meta, embedded=kit.head["embedded"], thorough_tasks=0)
    watch_process(type(learner).__name__)
    header, body = receive(connection)
    head = json.loads(header)
    info = TaskInfo(**head["info"] | {"image_shape": tuple(head["info"]["image_shape"])})
    tree = read(head["tree"], io.BytesIO(body))
    plain = StateCodec({}, info)
    given = _laid_out(plain.unpack(PackedState(tree["given"], 0, 0)), head["strides"])
    with torch.set_grad_enabled(head["grad"]):
        answer = _called(run, head["call"], StateCodec(kit.meta, info), info, PackedState(tree["state"], 0, 0), given)
    run.require_unchanged_weights()
    return answer.tree if isinstance(answer, PackedState) else plain.pack(answer).tree


def _called(
    run: StrictRun, call: str, codec: StateCodec, info: TaskInfo, packed: PackedState, given: Mapping[str, Tensor]
) -> PackedState | Tensor:
    """Do one call under the law."""
    if call == "begin":
        return run.begin(codec, info)
    if call == "observe":
        return run.observe(codec, packed, Support(given["images"], given["labels"]))
    if call == "predict":
        return run.predict(codec, packed, info, given["images"])
    return run.embed(given["images"])


def _as_tensor(packed: PackedState) -> Tensor:
    tensor = StateCodec({}, _NO_TASK).unpack(packed)
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{type(tensor).__name__} instead of a tensor")
    return tensor


def _as_dicts(tree: Any) -> Any:
    return tree if isinstance(tree, Tensor) else {key: _as_dicts(value) for key, value in tree.items()}


def _strides(tree: Any) -> dict[str, list[int]]:
    """Return how tensors lie in memory, for that can decide the last bit of a sum."""
    return {path: list(torch.empty_like(tensor).stride()) for path, tensor in flatten(tree).items()}


def _laid_out(tree: Any, strides: Mapping[str, list[int]], path: str = "") -> Any:
    """Copy tensors to private memory, laid out as they were."""
    if isinstance(tree, Tensor):
        return torch.empty_strided(tree.shape, strides[path], dtype=tree.dtype).copy_(tree)
    return {key: _laid_out(value, strides, f"{path}/{key}" if path else str(key)) for key, value in tree.items()}


def _program(descriptor: int) -> str:
    return f"import sys; sys.path[:] = {sys.path!r}; from cfsl.harness.isolate import serve; serve({descriptor})"


def _stop(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """Hang up, upon which the template ends its worker and itself (a signal ends one that is still starting)."""
    with contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)
    control.close()
    process.terminate()
    try:
        process.wait(_SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ended(worker: int) -> int:
    """End a worker and all that it has started; return how it ended, which may have been long ago."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(worker, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by signal {-code} ({signal.strsignal(-code)})"


def _problem(call: str, kind: str, message: str, story: str) -> LearnerError:
    """Return the error that was raised in a worker; its traceback there becomes a note."""
    line = " ".join(message.split())
    error = _OUR_ERRORS[kind](line) if kind in _OUR_ERRORS else LearnerError(f"{call} raised {kind}: {line}")
    error.add_note(f"In the worker process:\n{story}")
    return error


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
