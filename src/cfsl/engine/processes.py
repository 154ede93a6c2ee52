"""The engine 'processes': steps in several processes of this machine, one thread each.

Workers are spawned, not forked: torch does not survive a fork. A worker that dies is replaced; a worker whose bench
dies ends itself.
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
    line: Connection
    step: Step | None = None


class ProcessWorkers:
    """So many workers on this machine."""

    def __init__(self, bench_folder: BenchFolder, count: int) -> None:
        """Start the workers."""
        self._bench_folder, self._count = bench_folder, count
        self._workers = [self._hire() for _ in range(count)]
        self._events: deque[Event] = deque()

    @property
    def free(self) -> int:
        """How many workers have nothing to do."""
        return sum(worker.step is None for worker in self._workers)

    def give(self, step: Step) -> None:
        """Send a step to a worker that has nothing to do."""
        worker = next(worker for worker in self._workers if worker.step is None)
        worker.step = step
        with contextlib.suppress(
            OSError
        ):  # its end of the line is closed: it died, which is noticed below
            worker.line.send(step)

    def next_event(self, timeout: float) -> Event | None:
        """Listen to all workers."""
        if not self._events:
            heard = wait([worker.line for worker in self._workers], timeout)
            for worker in [worker for worker in self._workers if worker.line in heard]:
                self._listen(worker)
        return self._events.popleft() if self._events else None

    def _listen(self, worker: _Worker) -> None:
        try:
            event: Event = worker.line.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        if not isinstance(event, Told):
            worker.step = None
        self._events.append(event)

    def _replace(self, worker: _Worker) -> None:
        worker.process.join()
        self._workers[self._workers.index(worker)] = self._hire()
        if worker.step is not None:
            self._events.append(Died(worker.step, f"exit code {worker.process.exitcode}"))

    def _hire(self) -> _Worker:
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
            worker.line.close()


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Let processes that are started here have these variables; libraries read them when they are loaded."""
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


def _work(line: Connection, folder: Path) -> None:
    """In a worker: do what comes down the line."""
    import torch

    from cfsl.engine.local import event_of

    torch.set_num_threads(1)
    sys.stdout = sys.stderr  # a learner that prints must not get between the lines of the bench
    bench_folder = BenchFolder(folder)
    while True:
        try:
            step = line.recv()
            line.send(event_of(step, bench_folder, _Reports(line, step)))
        except (EOFError, OSError):
            return


class _Reports:
    """Tells how far a step is, but not too often."""

    def __init__(self, line: Connection, step: Step) -> None:
        self._line, self._step, self._last = line, step, 0.0

    def __call__(self, progress: Any) -> None:
        now = time.monotonic()
        if now - self._last >= _BETWEEN_REPORTS:
            self._last = now
            self._line.send(Told(self._step, progress))
