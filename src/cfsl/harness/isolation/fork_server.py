"""The template process that workers are forked from, and our handle on it (see `isolate.py`)."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from cfsl.errors import CfslError, LearnerError
from cfsl.harness.isolation.forked import is_worker, work
from cfsl.harness.isolation.frames import exactly, receive, send
from cfsl.harness.isolation.worker_payload import Kit
from cfsl.learners.registry import LEARNERS

_HOLD, _FORK, _END = b"H", b"F", b"E"
_STATUS = struct.Struct("<i")
_SECONDS_TO_STOP = 10
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Template:
    """The process that workers are forked from; it never sees an image."""

    def __init__(self) -> None:
        """Start it. That takes some seconds; only the first call waits for it."""
        if not hasattr(os, "fork"):
            raise CfslError(
                "isolated runs need a system that can fork processes; take isolation 'none' here"
            )
        if is_worker():
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
        modules = (entry.place.partition(":")[0] for entry in LEARNERS.values())
        for module in ("numpy.random", *modules):
            # A worker will say what is wrong, if it needs this one.
            with contextlib.suppress(ImportError):
                importlib.import_module(module)

        control, kit = socket.socket(fileno=descriptor), None
        # From here on it ends with `control`, and ends its worker.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

        while True:
            order, given, _, _ = socket.recv_fds(control, 1, 1)
            if order == _HOLD:
                kit = Kit.received(control)
                gc.collect()
                gc.freeze()  # or the first collection in a worker would copy every page
            elif order == _FORK and kit is not None:
                worker = os.fork()
                if worker == 0:
                    work(given[0], kit)
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


def _program(descriptor: int) -> str:
    return (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from cfsl.harness.isolation.fork_server import serve; serve({descriptor})"
    )


def _stop(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """Close the connection: the template then ends its worker and itself.

    A template that is still starting is ended by the signal.
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


def _ended(worker: int) -> int:
    """End a worker and all that it has started, if it has not ended; return its exit code."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(worker, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by signal {-code} ({signal.strsignal(-code)})"
