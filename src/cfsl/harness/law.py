"""The data-flow law, enforced: nothing but the state survives a support set.

A `Guard` watches the ways in which data could be carried past the boundary:

- files, sockets, other processes: whenever a learner is called;
- the learner object, its class, the globals, default arguments and closures of the module it was
  written in; threads; the global random generators of torch, numpy and Python: after every task;
- the same, and the learned weights bit by bit: after every call of tasks that are watched closely,
  which are the first ones and others drawn at random, so that no learner can know which; and the
  weights once more at the end;
- tensors that stay alive although the harness does not refer to them: in the first task.

What it cannot see is listed in docs/data-flow.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import random
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfsl.errors import DataFlowError
from cfsl.harness.mutable_snapshot import MutableSnapshot
from cfsl.harness.state import flatten
from cfsl.learners.base import Learner, Meta

_WATCHED = threading.local()
_CODE_FILES = (".py", ".pyc", ".so", ".pyd", ".dylib", ".dll")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FORBIDDEN = {
    "opened a connection": "socket.connect socket.sendto socket.sendmsg",
    "opened a socket": "socket.bind",
    "started a process": (
        "subprocess.Popen os.system os.fork os.forkpty os.exec os.spawn os.posix_spawn"
    ),
    "sent a signal": "os.kill os.killpg",
    "changed the environment": "os.putenv os.unsetenv os.chdir",
    "renamed a file": "os.rename",
    "made a folder": "os.mkdir",
    "made a link": "os.link os.symlink",
    "changed a file": (
        "os.remove os.rmdir os.chmod os.chown os.utime os.truncate os.setxattr os.removexattr"
    ),
    "opened a database": "sqlite3.connect",
}
_FORBIDDEN_EVENTS = {event: what for what, events in _FORBIDDEN.items() for event in events.split()}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Stop what a watched learner must not do. Python calls this for every audited event."""
    call = getattr(_WATCHED, "call", None)
    if call:
        _refuse(call, event, arguments)


def _refuse(call: str, event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and not _reads_code(*arguments):
        raise DataFlowError(f"{call} opened the file {arguments[0]}; only the state may carry data")
    if event == "mmap.__new__" and arguments[0] != -1:
        raise DataFlowError(f"{call} mapped a file or shared memory; only the state may carry data")
    if event in _FORBIDDEN_EVENTS:
        raise DataFlowError(f"{call} {_FORBIDDEN_EVENTS[event]}; only the state may carry data")


def _reads_code(path: object, mode: object, flags: int) -> bool:
    """Tell whether a file is opened as an import does: it holds code, and is only read."""
    return str(path).endswith(_CODE_FILES) and not flags & _WRITING


def watch_process(call: str) -> None:
    """Watch all threads of this process to its end, if it does nothing but run a learner."""
    sys.addaudithook(functools.partial(_refuse, call))


@functools.cache
def _install_audit_hook() -> None:
    """Install the hook once: it cannot be removed, and does nothing outside of watched calls."""
    sys.addaudithook(_audit)


class Guard:
    """Watches one learner from task to task."""

    def __init__(self, learner: Learner, meta: Meta) -> None:
        """Remember what the learner, its module and its weights look like before the first task."""
        _install_audit_hook()
        self._name = type(learner).__name__
        self._snapshot = MutableSnapshot(learner)
        self._weights = [_Weight(path, tensor) for path, tensor in flatten(meta).items()]
        self.start_task(closely=True)

    def start_task(self, *, closely: bool) -> None:
        """Remember threads and generators; `closely` checks after every call, not at the end."""
        self._closely = closely
        self._generators = _generator_states()
        self._threads = set(threading.enumerate())

    @contextlib.contextmanager
    def watching(self, call: str) -> Iterator[None]:
        """Watch one call of the learner, and refuse what it left behind."""
        call = f"{self._name}.{call}"
        before = sys.dont_write_bytecode

        _WATCHED.call = call
        sys.dont_write_bytecode = True  # or an import would write a file
        try:
            yield
        finally:
            _WATCHED.call = None
            sys.dont_write_bytecode = before

        if self._closely:
            self._require_nothing_kept(call)
            self.require_unchanged_weights()

    def end_task(self) -> None:
        """Refuse what the task left behind."""
        if not self._closely:
            self._require_nothing_kept(self._name)

    def _require_nothing_kept(self, call: str) -> None:
        started = set(threading.enumerate()) - self._threads
        if started:
            name = next(iter(started)).name
            raise DataFlowError(
                f"{call} left a thread running ({name}); only the state may carry data"
            )

        states = zip(_GENERATORS, self._generators, _generator_states(), strict=True)
        for name, before, after in states:
            if before != after:
                raise DataFlowError(
                    f"{call} used or set the global generator of {name}; "
                    f"draw from info.generator() instead"
                )

        kept = self._snapshot.first_change()
        if kept is not None:
            raise DataFlowError(f"{call} kept something in {kept}; only the state may carry data")

    def require_unchanged_weights(self) -> None:
        """Refuse a learner that wrote to its learned weights."""
        for weight in self._weights:
            if weight.has_changed():
                raise DataFlowError(
                    f"the learner changed its learned weights '{weight.path}' in place during a "
                    f"task; put what changes into the state"
                )


class _Weight:
    """A tensor of the learned weights and its bytes as they were, so that a NaN equals itself."""

    def __init__(self, path: str, tensor: Tensor) -> None:
        self.path, self._tensor, self._address = path, tensor, tensor.data_ptr()
        self._memory = _memory_of(tensor) if tensor.device.type == "cpu" else None
        self._pristine = bytes(_memory_of(tensor))

    def has_changed(self) -> bool:
        memory = _memory_of(self._tensor) if self._memory is None else self._memory
        return self._tensor.data_ptr() != self._address or memory.tobytes() != self._pristine


def _memory_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor as they are at any time (of a copy, if it is not on the CPU)."""
    storage = tensor.detach().cpu().untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data


class TensorCensus:
    """Finds tensors that were made in a task and are still alive: they are hidden somewhere.

    Older objects are frozen, which takes them out of the collector's sight.
    """

    def __enter__(self) -> TensorCensus:
        gc.freeze()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        gc.unfreeze()

    def require_no_strangers(self, call: str, known: list[Tensor]) -> None:
        """Refuse tensors that stay alive although the harness does not know them."""
        gc.collect()
        expected = {id(tensor) for tensor in known}
        for tensor in [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]:
            if id(tensor) not in expected:
                gc.unfreeze()  # or its holder would not be seen
                raise DataFlowError(
                    f"{call} left a tensor of shape {tuple(tensor.shape)} alive in "
                    f"{_holder(tensor)}; only the state may carry data"
                )


def _holder(tensor: Tensor) -> str:
    """Name the kind of thing that holds a tensor."""
    kinds = {type(holder).__name__ for holder in gc.get_referrers(tensor)}
    kinds -= {"frame", "list_iterator"}
    return "a " + " or a ".join(sorted(kinds)) if kinds else "native code"


_GENERATORS = ("torch", "numpy", "Python's random module")
_MT19937_BYTES = 4 * 624 + 4  # its words, and the place among them


def _generator_states() -> tuple[bytes, Any, Any]:
    return torch.random.get_rng_state().numpy().tobytes(), _numpy_state(), random.getstate()


def _numpy_state() -> Any:
    """Return the words of numpy's global generator, thirty times as fast as numpy itself does."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(generator) is not np.random.MT19937:
        return repr(generator.state)
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
