"""The data-flow law, enforced: nothing but the state survives a support set.

Around every call of a learner a `Guard` watches the ways in which data could be carried past the boundary:

- the learner object, its class, the globals, default arguments and closures of the module it was written in;
- the learned weights (compared with a pristine copy after every task);
- files, sockets, other processes, threads;
- the global random generators of torch, numpy and Python;
- tensors that stay alive although nothing of the harness refers to them (looked for in the first tasks).

What it cannot see is listed in docs/data-flow.md.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfsl.errors import DataFlowError
from cfsl.harness.roots import Roots
from cfsl.harness.state import flatten
from cfsl.learners.base import Learner, Meta

_WATCHED = threading.local()
_CODE_FILES = (".py", ".pyc", ".so", ".pyd", ".dylib", ".dll")
_FORBIDDEN_EVENTS = {
    "socket.connect": "opened a connection",
    "socket.bind": "opened a socket",
    "subprocess.Popen": "started a process",
    "os.system": "started a process",
    "os.fork": "started a process",
    "os.putenv": "changed the environment",
    "os.rename": "renamed a file",
    "os.mkdir": "made a folder",
}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Stop what a learner must not do while it is watched. Python calls this for every audited event."""
    if not getattr(_WATCHED, "call", None):
        return
    if event == "open" and not str(arguments[0]).endswith(_CODE_FILES):
        raise DataFlowError(f"{_WATCHED.call} opened the file {arguments[0]}; only the state may carry data")
    if event in _FORBIDDEN_EVENTS:
        raise DataFlowError(f"{_WATCHED.call} {_FORBIDDEN_EVENTS[event]}; only the state may carry data")


_HOOKED: list[bool] = []


def _install_audit_hook() -> None:
    """Install the hook once; hooks cannot be taken back, but this one sleeps outside of guarded calls."""
    if not _HOOKED:
        sys.addaudithook(_audit)
        _HOOKED.append(True)


class Guard:
    """Watches one learner from task to task."""

    def __init__(self, learner: Learner, meta: Meta) -> None:
        """Remember what the learner, its module and its weights look like before the first task."""
        _install_audit_hook()
        self._roots = Roots.of(learner)
        self._pristine = {path: tensor.clone() for path, tensor in flatten(meta).items()}
        self._meta = meta

    @contextlib.contextmanager
    def watching(self, call: str) -> Iterator[None]:
        """Watch one call of the learner, and refuse what it left behind."""
        generators = _generator_states()
        threads = set(threading.enumerate())
        _WATCHED.call = call
        try:
            yield
        finally:
            _WATCHED.call = None
        started = set(threading.enumerate()) - threads
        if started:
            name = next(iter(started)).name
            raise DataFlowError(f"{call} left a thread running ({name}); only the state may carry data")
        for name, before, after in zip(_GENERATORS, generators, _generator_states(), strict=True):
            if before != after:
                raise DataFlowError(
                    f"{call} used or set the global generator of {name}; draw from info.generator() instead"
                )
        kept = self._roots.first_change()
        if kept is not None:
            raise DataFlowError(f"{call} kept something in {kept}; only the state may carry data")

    def require_unchanged_weights(self) -> None:
        """Refuse a learner that wrote to its learned weights during a task."""
        for path, tensor in flatten(self._meta).items():
            if not _same_bits(tensor, self._pristine[path]):
                raise DataFlowError(
                    f"the learner changed its learned weights '{path}' in place during a task; "
                    f"put what changes into the state"
                )


class TensorCensus:
    """Counts living tensors: what is alive after a call, and was not before, is being hidden somewhere."""

    def __init__(self) -> None:
        """Take the first count."""
        self._before = _living_tensors()

    def require_no_strangers(self, call: str, known: list[Tensor]) -> None:
        """Refuse tensors that stay alive although the harness does not know them."""
        gc.collect()
        expected = {id(tensor) for tensor in known}
        for number, tensor in _living_tensors().items():
            if number not in self._before and number not in expected:
                raise DataFlowError(
                    f"{call} left a tensor of shape {tuple(tensor.shape)} alive in {_holder(tensor)}; "
                    f"only the state may carry data"
                )


def _living_tensors() -> dict[int, Tensor]:
    return {id(thing): thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)}


def _holder(tensor: Tensor) -> str:
    """Name the kind of thing that holds a tensor."""
    kinds = {type(holder).__name__ for holder in gc.get_referrers(tensor)} - {"frame", "list_iterator"}
    return "a " + " or a ".join(sorted(kinds)) if kinds else "native code"


_GENERATORS = ("torch", "numpy", "Python's random module")


def _generator_states() -> tuple[bytes, bytes, int]:
    words = np.random.get_state(legacy=True)
    assert isinstance(words, tuple)
    return (
        torch.random.get_rng_state().numpy().tobytes(),
        np.asarray(words[1]).tobytes() + repr(words[2:]).encode(),
        hash(random.getstate()),
    )


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Compare bit by bit: a NaN equals itself here."""
    return torch.equal(*(tensor.contiguous().view(-1).view(torch.uint8) for tensor in (a, b)))
