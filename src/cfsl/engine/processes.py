"""The engine 'processes': steps in several processes of this machine, one thread each.

Workers are spawned, not forked: torch does not survive a fork. A worker that dies is replaced. A
worker whose bench dies ends itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.schedule import Died, Event, Told
from cfsl.engine.steps import Step
from cfsl.harness.helper_process import HelperProcess

_BETWEEN_REPORTS = 0.2
"""Seconds between two reports of a worker on how far it is."""
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    step: Step | None = None


class ProcessWorkers:
    """Worker processes on this machine."""

    def __init__(self, bench_folder: BenchFolder, count: int) -> None:
        """Start the workers."""
        self._bench_folder = bench_folder
        self._workers = [self._start_worker() for _ in range(count)]
        self._events: deque[Event] = deque()

    @property
    def free(self) -> int:
        """How many workers have nothing to do."""
        return sum(worker.step is None for worker in self._workers)

    def give(self, step: Step) -> None:
        """Send a step to a worker that has nothing to do."""
        worker = next(worker for worker in self._workers if worker.step is None)
        worker.step = step

        # A dead worker has closed its end of the connection; `next_event` will notice.
        with contextlib.suppress(OSError):
            worker.connection.send(step)

    def next_event(self, timeout: float) -> Event | None:
        """Wait for a message of any worker."""
        if not self._events:
            ready = wait([worker.connection for worker in self._workers], timeout)
            for worker in [worker for worker in self._workers if worker.connection in ready]:
                self._receive(worker)
        return self._events.popleft() if self._events else None

    def _receive(self, worker: _Worker) -> None:
        try:
            event: Event = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return

        if not isinstance(event, Told):
            worker.step = None
        self._events.append(event)

    def _replace(self, worker: _Worker) -> None:
        worker.process.join()
        self._workers[self._workers.index(worker)] = self._start_worker()
        if worker.step is not None:
            self._events.append(Died(worker.step, f"exit code {worker.process.exitcode}"))

    def _start_worker(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()

        process = HelperProcess(target=_work, args=(theirs, self._bench_folder.path), daemon=True)
        with _environment(dict.fromkeys(_ONE_THREAD, "1")):
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def close(self) -> None:
        """End all workers at once."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started meanwhile.

    Libraries read them when they are loaded, so that a worker cannot set them itself.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)

    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(connection: Connection, folder: Path) -> None:
    """In a worker: do the steps that come over the connection."""
    import torch

    from cfsl.engine.local import event_of

    torch.set_num_threads(1)
    sys.stdout = sys.stderr  # a learner that prints must not get between the lines of the bench
    bench_folder = BenchFolder(folder)

    while True:
        try:
            step = connection.recv()
            connection.send(event_of(step, bench_folder, _Reports(connection, step)))
        except (EOFError, OSError):
            return


class _Reports:
    """Sends how far a step is, but not too often."""

    def __init__(self, connection: Connection, step: Step) -> None:
        self._connection, self._step, self._last = connection, step, 0.0

    def __call__(self, progress: Any) -> None:
        now = time.monotonic()
        if now - self._last >= _BETWEEN_REPORTS:
            self._last = now
            self._connection.send(Told(self._step, progress))
