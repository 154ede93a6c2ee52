"""Processes that end with the one that started them, and leave Ctrl-C to that one."""

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
    """A process that ends with the one that started it, and never hears of Ctrl-C."""

    def start(self) -> None:
        """Start it; its imports take seconds, in which it must not hear of Ctrl-C either."""
        with _interrupts_held():
            super().start()

    def run(self) -> None:
        """In the new process: do its work, and watch for the end of the other one."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        super().run()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait until the end of the block; processes that are started in it ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return

    # The start of a process would do this first, and let interrupts through again.
    resource_tracker.ensure_running()
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


class HelperContext(SpawnContext):
    """Starts helper processes for a pool, and can end them all at once."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._processes: list[HelperProcess] = []

    def Process(self, *given: Any, **named: Any) -> HelperProcess:  # type: ignore[override] # noqa: N802 - its name
        """Return a process that is to be started."""
        self._processes.append(HelperProcess(*given, **named))
        return self._processes[-1]

    def end(self) -> None:
        """End the processes at once."""
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            process.kill()
        for process in started:
            process.join()
