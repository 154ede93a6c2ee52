"""Several workers of a sweep at once: processes that share only the folder."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import torch

from cfsl.errors import CfslError
from cfsl.harness.helper_process import HelperProcess
from cfsl.sweep.study import SweepStudy
from cfsl.sweep.trials import Sweep
from cfsl.sweep.work import Happening, Watch, work


class Job(NamedTuple):
    """The sweep that a worker does, its folder, and the number of its trials."""

    sweep: Sweep
    folder: Path
    trials: int

    def open(self) -> SweepStudy:
        """Open the study."""
        return SweepStudy(self.folder, self.sweep, self.trials)


@dataclass
class _Worker:
    process: HelperProcess
    connection: Connection
    has_begun: bool = False
    """Whether the worker has ever begun a trial."""


def work_together(job: Job, study: SweepStudy, count: int, watch: Watch) -> None:
    """Let `count` worker processes do all trials.

    A worker that dies is replaced, and its trial goes back into the queue.
    """
    with _started_workers(job, count) as workers:
        while workers:
            ready = wait([worker.connection for worker in workers])

            for worker in [worker for worker in workers if worker.connection in ready]:
                event = _received(worker)
                if event is not None:
                    worker.has_begun = True
                    watch(event)
                    continue

                # The worker has closed its connection: it has finished or died.
                workers.remove(worker)
                _close(worker)
                if worker.process.exitcode != 0:
                    workers.append(_replacement(worker, job, study))


def _replacement(worker: _Worker, job: Job, study: SweepStudy) -> _Worker:
    """Put the trial of a dead worker back into the queue, and start another worker.

    A worker that died before its first trial is not replaced: the next one would die, too.
    """
    if not worker.has_begun:
        raise CfslError(f"a worker ended with exit code {worker.process.exitcode}; try --workers 1")
    study.return_dead()
    return _started(job)


def _received(worker: _Worker) -> Happening | None:
    try:
        event: Happening = worker.connection.recv()
    except (EOFError, OSError):
        return None
    return event


def _close(worker: _Worker) -> None:
    """Wait for the end of a worker, and close its connection."""
    worker.process.join()
    worker.connection.close()


@contextlib.contextmanager
def _started_workers(job: Job, count: int) -> Iterator[list[_Worker]]:
    """Start workers, and kill those that still run when the block ends."""
    workers = [_started(job) for _ in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            _close(worker)


def _started(job: Job) -> _Worker:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = HelperProcess(target=_serve, args=(theirs, job), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(connection: Connection, job: Job) -> None:
    """Do trials on one thread. A worker process runs this function."""
    torch.set_num_threads(1)
    study = job.open()
    with contextlib.closing(study):
        work(study, job.sweep, job.folder, connection.send)
