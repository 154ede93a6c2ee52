"""Several workers of a sweep at once: processes that share nothing but the folder."""

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
    """What a worker needs to know."""

    sweep: Sweep
    folder: Path
    trials: int

    def open(self) -> SweepStudy:
        """Open the study."""
        return SweepStudy(self.folder, self.sweep, self.trials)


@dataclass
class _Worker:
    process: HelperProcess
    line: Connection
    has_begun: bool = False
    """Whether it ever came as far as a trial."""


def work_together(job: Job, study: SweepStudy, count: int, watch: Watch) -> None:
    """Let so many processes do all trials. One that dies is replaced, and its trial given out again."""
    with _hired(job, count) as workers:
        while workers:
            heard = wait([worker.line for worker in workers])
            for worker in [worker for worker in workers if worker.line in heard]:
                event = _heard(worker)
                if event is not None:
                    worker.has_begun = True
                    watch(event)
                    continue
                workers.remove(worker)
                if _died(worker):
                    workers.append(_replaced(worker, job, study))


def _replaced(worker: _Worker, job: Job, study: SweepStudy) -> _Worker:
    """Give out again what a dead worker had, and hire another; but not if it could not even begin."""
    if not worker.has_begun:
        raise CfslError(f"a worker ended with exit code {worker.process.exitcode}; try --workers 1")
    study.return_dead()
    return _hire(job)


def _heard(worker: _Worker) -> Happening | None:
    try:
        event: Happening = worker.line.recv()
    except (EOFError, OSError):
        return None
    return event


def _died(worker: _Worker) -> bool:
    worker.process.join()
    worker.line.close()
    return worker.process.exitcode != 0


@contextlib.contextmanager
def _hired(job: Job, count: int) -> Iterator[list[_Worker]]:
    """Give workers, and end at once those that are still there in the end."""
    workers = [_hire(job) for _ in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            _died(worker)


def _hire(job: Job) -> _Worker:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = HelperProcess(target=_serve, args=(theirs, job), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(line: Connection, job: Job) -> None:
    """In a worker: do trials, on one thread."""
    torch.set_num_threads(1)
    study = job.open()
    with contextlib.closing(study):
        work(study, job.sweep, job.folder, line.send)
