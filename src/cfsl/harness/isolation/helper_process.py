"""Processes that help another one, and end with it: Ctrl-C is for that one alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any


class HelperProcess(SpawnProcess):
    """A process that ends with the one that started it, and leaves Ctrl-C to that one from its first moment on."""

    def start(self) -> None:
        """Start it; what it imports takes seconds, in which it must not hear of Ctrl-C either."""
        with _interrupts_held():
            super().start()

    def run(self) -> None:
        """In the new process: do what it was made for."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        super().run()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait until the end of the block; a process that is started in it never hears of one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which a start would do first, and let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Hiring(SpawnContext):
    """Starts processes for a pool, and can end them all at once."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._hired: list[HelperProcess] = []

    def Process(self, *given: Any, **named: Any) -> HelperProcess:  # type: ignore[override] # noqa: N802 - its name
        """Return a process that is to be started."""
        self._hired.append(HelperProcess(*given, **named))
        return self._hired[-1]

    def end(self) -> None:
        """End the processes, whatever they are at."""
        started = [process for process in self._hired if process.pid is not None]
        for process in started:
            process.kill()
        for process in started:
            process.join()
