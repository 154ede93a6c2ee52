"""How a step is done: the same way by every engine, and only if it is not done yet."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from cfsl.cards.card import write_card
from cfsl.data.manifest import Manifest
from cfsl.data.tasks import Tasks
from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.partial_results import read_partial_result, write_partial_result
from cfsl.engine.steps import CardStep, PartialResultStep, Step, TrainStep, partial_steps_of
from cfsl.harness.evaluate import Conditions, evaluate_variants
from cfsl.harness.trace import joined
from cfsl.runs.data import tasks_of
from cfsl.runs.perform import card_of_run, perform_training
from cfsl.runs.run_spec import RunSpec, built
from cfsl.runs.weights import Weights
from cfsl.training.events import Epoch, Event, Saved, Started, Update


class Progress(NamedTuple):
    """How far a step has come."""

    done: int
    total: int
    unit: str
    note: str = ""


Report = Callable[[Progress], None]


class Outcome(Enum):
    """How a step ended without an error."""

    DONE = "done"
    BUSY = "another process is at it"


def perform(step: Step, bench_folder: BenchFolder, report: Report) -> Outcome:
    """Do a step, unless it is done already or another process is doing it."""
    parts: Sequence[Step] = step.singles if isinstance(step, PartialResultStep) else [step]

    with contextlib.ExitStack() as locks:
        if not all(locks.enter_context(bench_folder.locked(part)) for part in parts):
            return Outcome.BUSY

        missing = [part for part in parts if not bench_folder.checked(part)[0]]
        if missing:
            _do(missing, bench_folder, report)

    return Outcome.DONE


def _do(parts: Sequence[Step], bench_folder: BenchFolder, report: Report) -> None:
    """Do a step, or the missing parts of a step that does several cells."""
    match parts[0]:
        case TrainStep() as step:
            _train(step, bench_folder, report)
        case CardStep() as step:
            _finish_card(step.spec, bench_folder, report)
        case PartialResultStep():
            steps = [part for part in parts if isinstance(part, PartialResultStep)]
            _run_tasks(steps, bench_folder, report)


def _train(step: TrainStep, bench_folder: BenchFolder, report: Report) -> None:
    total, accuracy = step.spec.training.schedule.total, ""

    def watch(event: Event) -> None:
        nonlocal accuracy
        if isinstance(event, Started | Epoch) and event.accuracy is not None:
            accuracy = f"val {100 * event.accuracy:.1f} %"
        if isinstance(event, Started | Update | Saved):
            report(Progress(event.update, total, "updates", accuracy))

    spec = step.spec
    start = None if spec.start is None else bench_folder.training(spec.start)
    perform_training(spec, bench_folder.training(spec), watch, start=start)


def _run_tasks(
    steps: Sequence[PartialResultStep], bench_folder: BenchFolder, report: Report
) -> None:
    """Run the same tasks of one cell, or of several that learn once for all, with every member."""
    run, numbers, done = steps[0].spec, steps[0].numbers, 0
    learner, weights = built(run.learner), _weights(run, bench_folder)
    variants = [tasks_of(step.spec, numbers) for step in steps]

    def progress(finished: int) -> None:
        nonlocal done
        done += finished
        report(Progress(done, run.members * len(numbers), "tasks"))

    start, members = time.perf_counter(), []
    for rank in range(run.members):
        meta = weights.of_member(rank, learner, variants[0], run.seed)
        members.append(evaluate_variants(_conditions(run), learner, variants, meta, progress))
    seconds = (time.perf_counter() - start) / len(steps)

    for step, traces in zip(steps, zip(*members, strict=True), strict=True):
        write_partial_result(bench_folder.partial_result(step), traces, seconds)


def _finish_card(run: RunSpec, bench_folder: BenchFolder, report: Report) -> None:
    """Join the partial results, measure the costs, and write manifest, answers and card in turn."""
    results = [
        read_partial_result(bench_folder.partial_result(step)) for step in partial_steps_of(run)
    ]
    members = [joined([traces[rank] for traces, _ in results]) for rank in range(run.members)]
    seconds = sum(seconds for _, seconds in results)

    report(Progress(0, 1, "card"))
    card, answers = card_of_run(
        run, _weights(run, bench_folder), _conditions(run), members, seconds=seconds
    )

    _write_manifest(tasks_of(run), bench_folder)
    write_card(bench_folder.card(run), card, answers)
    discard_partial_results(run, bench_folder)


def _write_manifest(tasks: Tasks, bench_folder: BenchFolder) -> None:
    manifest = Manifest.of(tasks)
    path = bench_folder.manifest(manifest.fingerprint)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        manifest.write(path)


def discard_partial_results(run: RunSpec, bench_folder: BenchFolder) -> None:
    """Remove the partial results of a cell that has its card."""
    # Another bench may be removing them at the same time.
    shutil.rmtree(bench_folder.partial_results(run), ignore_errors=True)


def _conditions(run: RunSpec) -> Conditions:
    return Conditions(progressive=run.progressive, accelerate=True)


def _weights(run: RunSpec, bench_folder: BenchFolder) -> Weights:
    return Weights(None if run.train is None else bench_folder.training(run.train))
