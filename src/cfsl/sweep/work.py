"""A worker of a sweep: it asks the study for trials and does them through the engine, until there are no more."""

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
"""Below the folder of a sweep: cards, trainings and what else the engine keeps."""


class Begun(NamedTuple):
    """A trial has begun."""

    point: int
    values: Point


class Came(NamedTuple):
    """A trial has come on."""

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
    """Return where the engine keeps the runs of a sweep."""
    return BenchFolder(folder / BENCH)


def forget_failures(sweep: Sweep, points: Iterable[Point], folder: Path) -> None:
    """Let the engine try again what it failed at in these trials."""
    for point in points:
        with contextlib.suppress(
            CfslError
        ):  # a point that no run can be made of fails again, in its turn
            planned([run_of(sweep, point)], bench_folder_of(folder), retry=True)


def work(study: SweepStudy, sweep: Sweep, folder: Path, watch: Watch) -> None:
    """Do trials until there are no more. One that fails is written down, and the next is done."""
    bench_folder = bench_folder_of(folder)
    while (held := study.take()) is not None:
        with held.lock:
            watch(Begun(held.point, held.values))
            watch(_done(study, held, sweep, bench_folder, watch))


def _done(
    study: SweepStudy, held: HeldTrial, sweep: Sweep, bench_folder: BenchFolder, watch: Watch
) -> Ended:
    """Do a trial and write down how it ended."""
    try:
        accuracy, measured = _tried(held, sweep, bench_folder, watch)
    except Exception as error:  # one failing trial must not stop the others
        said = str(error) if isinstance(error, CfslError) else f"{type(error).__name__}: {error}"
        study.fail(held, said)
        return Ended(held.point, held.values, None, said)
    study.finish(held, accuracy, measured)
    return Ended(held.point, held.values, accuracy, None)


def _tried(
    held: HeldTrial, sweep: Sweep, bench_folder: BenchFolder, watch: Watch
) -> tuple[float, dict[str, Any]]:
    """Do the run of a trial, or what is still to be done of it; return its accuracy and what else is on its card."""
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
    return card.metrics.accuracy.mean, {
        "ci95": card.metrics.accuracy.ci95,
        "atm": card.metrics.atm.total,
        "macs_adaptation": card.macs.adaptation,
        "macs_prediction": card.macs.prediction,
        "card": path.relative_to(bench_folder.path.parent).as_posix(),
    }


class _PatientWorker:
    """A worker that sleeps while another one does the training that its own trial needs."""

    def __init__(self, workers: LocalWorker) -> None:
        self._workers_of = workers

    @property
    def free(self) -> int:
        return self._workers_of.free

    def give(self, step: Step) -> None:
        self._workers_of.give(step)

    def next_event(self, timeout: float) -> Event | None:
        if self._workers_of.free:
            time.sleep(timeout)
        return self._workers_of.next_event(timeout)

    def close(self) -> None:
        self._workers_of.close()
