"""The process that children are forked from. It runs no line of the learner's, and sees no image.

A fork copies one thread only, and a torch with a pool of threads does not survive that. So the
server has one thread from before it imports torch to its end, and children compute with one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from cfsl.errors import CfslError, LearnerError
from cfsl.harness.macs import counting_macs
from cfsl.harness.peak import PeakMemory
from cfsl.harness.sandbox.child import LearnerOrigin, answer_one_call, problem_frame
from cfsl.harness.sandbox.lock import Limits, Lock
from cfsl.harness.sandbox.sources import Sources, import_libraries
from cfsl.harness.sandbox.values import Converter, laid_out
from cfsl.harness.sandbox.wire import decoded
from cfsl.learners.base import Meta
from cfsl.learners.registry import LEARNERS

HOLD, FORK, END = b"H", b"F", b"E"
LENGTHS = struct.Struct("<QQQ")
"""Of a learner: its head (JSON), its pickle, and its weights."""
STATUS = struct.Struct("<i")
_LARGE_PAGE = 2**21
_MADV_COLLAPSE = 25
_USED_LATER = (
    *("numpy.random", "numpy.linalg", "numpy.fft", "linecache"),
    *("torch._dynamo", "torch.func", "torch._functorch.apis", "torch.optim", "torch.nn.utils"),
)
"""Modules that torch and others import when they are first needed."""


def serve(descriptor: int) -> NoReturn:
    """Be the fork server, until the process at the other end is gone."""
    child = 0
    try:
        _prepare()
        control = socket.socket(fileno=descriptor)
        held: tuple[LearnerOrigin, Meta, Lock] | str = "there is no learner yet"
        # From here on it ends with `control`, and ends its child.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

        while True:
            order, pipes, _, _ = socket.recv_fds(control, 1, 2)
            if order == HOLD:
                held = _received(control)
            elif order == FORK:
                if isinstance(held, str):
                    os.write(pipes[1], problem_frame("LearnerError", held))
                else:
                    origin, weights, lock = held
                    child = os.fork()
                    if child == 0:
                        answer_one_call((pipes[0], pipes[1]), lock, origin, weights)
                for pipe in pipes:
                    os.close(pipe)
            elif order == END:
                code, child = _ended(child), 0
                control.sendall(STATUS.pack(code))
            else:
                break
    finally:
        if child:
            _ended(child)
        os._exit(0)


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Read so many bytes from a socket."""
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), 2**20))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


def _prepare() -> None:
    """Import and use what children may need: they can open no file."""
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    sys.dont_write_bytecode = True

    modules = [entry.place.partition(":")[0] for entry in LEARNERS.values()]
    for module in (*_USED_LATER, *modules):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    _use_torch_once()


def _use_torch_once() -> None:
    """Let libraries look at the processor and allocate what they keep, before a child needs it."""
    images = torch.zeros(2, 1, 8, 8)
    network = torch.nn.Conv2d(1, 1, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with counting_macs(), PeakMemory():
        network(images).sum().backward()
        optimizer.step()
    torch.linalg.solve(torch.eye(3), torch.ones(3))
    torch.einsum("ij,jk->ik", torch.eye(3), torch.eye(3))


def _received(control: socket.socket) -> tuple[LearnerOrigin, Meta, Lock] | str:
    """Read a learner and its weights, or return why no child can be made of it."""
    sizes = LENGTHS.unpack(read_exactly(control, LENGTHS.size))
    head_bytes, pickled, weights_bytes = (read_exactly(control, size) for size in sizes)
    head: Mapping[str, Any] = json.loads(head_bytes)

    try:
        sources = _read_sources(head)
        weights = laid_out(Converter({}).from_tree(decoded(weights_bytes)), head["strides"])
        origin = LearnerOrigin(head["place"], head["changes"], pickled, sources)
        lock = Lock(Limits(**head["limits"]))
    except (CfslError, OSError) as error:
        return f"the learner cannot be sandboxed: {error}"

    gc.collect()
    gc.freeze()  # or the first collection in a child would copy every page
    _use_large_pages()
    return origin, weights, lock


def _read_sources(head: Mapping[str, Any]) -> Sources:
    """Read the learner's modules, and import the libraries that they need."""
    sources = Sources()
    for module in head["modules"]:
        found = Sources.of(module, head["folders"], head["main_file"])
        sources.modules |= found.modules
        sources.libraries |= found.libraries

    import_libraries(sources.libraries)
    _require_single_process()
    return sources


def _require_single_process() -> None:
    """Refuse libraries that have started threads or share memory: children would inherit it."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise LearnerError("a library that it imports starts a thread when it is imported")
    modes = [line.split()[1] for line in Path("/proc/self/maps").read_text().splitlines()]
    if any("w" in mode and "s" in mode for mode in modes):
        raise LearnerError("a library that it imports shares memory with other processes")


def _use_large_pages() -> None:
    """Put the memory into pages of 2 MB, where the kernel can: a fork is four times as fast."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, mode, _, _, _, name = f"{line} -".split()[:6]
        is_own_memory = mode == "rw-p" and name in ("-", "[heap]")
        start, end = (int(address, 16) for address in addresses.split("-"))
        first, last = -(-start // _LARGE_PAGE), end // _LARGE_PAGE
        if is_own_memory and first < last:
            size = (last - first) * _LARGE_PAGE
            libc.madvise(first * _LARGE_PAGE, size, _MADV_COLLAPSE)


def _ended(child: int) -> int:
    """End a child, if it has not ended; return its exit code."""
    if not child:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
