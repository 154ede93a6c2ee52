"""A worker of a sweep: it takes trials from the study and runs them with the engine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cfsl.cards.card import read_card
from cfsl.engine.bench import planned, run_plan
from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.local import LocalWorker
from cfsl.engine.schedule import Event, Told
from cfsl.engine.steps import Step
from cfsl.errors import CfslError
from cfsl.runs.run_spec import RunSpec
from cfsl.sweep.space import Point
from cfsl.sweep.study import HeldTrial, SweepStudy
from cfsl.sweep.trials import Sweep, run_of

BENCH = "bench"
"""Name of the folder, in that of a sweep, where the engine keeps cards and training runs."""


class Begun(NamedTuple):
    """A trial has begun."""

    point: int
    values: Point


class Came(NamedTuple):
    """A trial has made progress."""

    point: int
    note: str


class Ended(NamedTuple):
    """A trial is over."""

    point: int
    values: Point
    accuracy: float | None
    error: str | None


Happening: TypeAlias = Begun | Came | Ended
Watch: TypeAlias = Callable[[Happening], None]


def bench_folder_of(folder: Path) -> BenchFolder:
    """Return the folder where the engine keeps the runs of a sweep."""
    return BenchFolder(folder / BENCH)


def forget_failures(sweep: Sweep, points: Iterable[Point], folder: Path) -> None:
    """Let the engine repeat the failed steps of these trials."""
    for point in points:
        # A point that gives no valid run raises again when its trial is done, and is recorded then.
        with contextlib.suppress(CfslError):
            planned([run_of(sweep, point)], bench_folder_of(folder), retry=True)


def work(study: SweepStudy, sweep: Sweep, folder: Path, watch: Watch) -> None:
    """Do trials until none is left. A trial that fails is recorded, and the next one starts."""
    bench_folder = bench_folder_of(folder)
    while (held := study.take()) is not None:
        with held.lock:
            watch(Begun(held.point, held.values))
            watch(_done(study, held, sweep, bench_folder, watch))


def _done(
    study: SweepStudy, held: HeldTrial, sweep: Sweep, bench_folder: BenchFolder, watch: Watch
) -> Ended:
    """Do a trial, and record in the study how it ended."""
    try:
        accuracy, measured = _tried(held, sweep, bench_folder, watch)
    except Exception as error:  # one failing trial must not stop the others
        is_ours = isinstance(error, CfslError)
        message = str(error) if is_ours else f"{type(error).__name__}: {error}"
        study.fail(held, message)
        return Ended(held.point, held.values, None, message)

    study.finish(held, accuracy, measured)
    return Ended(held.point, held.values, accuracy, None)


def _tried(
    held: HeldTrial, sweep: Sweep, bench_folder: BenchFolder, watch: Watch
) -> tuple[float, dict[str, Any]]:
    """Do the steps of a trial's run that are not done yet.

    Return the accuracy on its card, and the other measurements.
    """
    run = run_of(sweep, held.values)

    def told(event: Event) -> None:
        if isinstance(event, Told):
            done, total, unit, note = event.progress
            watch(Came(held.point, f"{done} of {total} {unit} {note}".rstrip()))

    ending = run_plan(
        planned([run], bench_folder),
        bench_folder,
        lambda: _PatientWorker(LocalWorker(bench_folder, told)),
        told,
    )
    if ending.failed:
        raise CfslError(next(iter(ending.failed.values())))

    return _read(run, bench_folder)


def _read(run: RunSpec, bench_folder: BenchFolder) -> tuple[float, dict[str, Any]]:
    path = bench_folder.card(run)
    card = read_card(path)

    measured = {
        "ci95": card.metrics.accuracy.ci95,
        "atm": card.metrics.atm.total,
        "macs_adaptation": card.macs.adaptation,
        "macs_prediction": card.macs.prediction,
        "card": path.relative_to(bench_folder.path.parent).as_posix(),
    }
    return card.metrics.accuracy.mean, measured


class _PatientWorker:
    """A worker that sleeps while another process does the training that its own trial needs."""

    def __init__(self, worker: LocalWorker) -> None:
        self._worker = worker

    @property
    def free(self) -> int:
        return self._worker.free

    def give(self, step: Step) -> None:
        self._worker.give(step)

    def next_event(self, timeout: float) -> Event | None:
        if self._worker.free:
            time.sleep(timeout)
        return self._worker.next_event(timeout)

    def close(self) -> None:
        self._worker.close()
