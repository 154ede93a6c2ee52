"""One step, done: the same wherever it is done, and not at all if it was done before."""

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


Tell = Callable[[Progress], None]


class Outcome(Enum):
    """How a step ended that did not fail."""

    DONE = "done"
    BUSY = "another process is at it"


def perform(step: Step, bench_folder: BenchFolder, tell: Tell) -> Outcome:
    """Do a step, unless it is done already or another process is at it."""
    parts: Sequence[Step] = step.singles if isinstance(step, PartialResultStep) else [step]
    with contextlib.ExitStack() as locks:
        if not all(locks.enter_context(bench_folder.locked(part)) for part in parts):
            return Outcome.BUSY
        missing = [part for part in parts if not bench_folder.checked(part)[0]]
        if missing:
            _do(missing, bench_folder, tell)
    return Outcome.DONE


def _do(parts: Sequence[Step], bench_folder: BenchFolder, tell: Tell) -> None:
    """Do a step, or what is missing of one that has several parts, all of which are pieces."""
    match parts[0]:
        case TrainStep() as step:
            _train(step, bench_folder, tell)
        case CardStep() as step:
            _put_together(step.spec, bench_folder, tell)
        case PartialResultStep():
            _run_tasks(
                [part for part in parts if isinstance(part, PartialResultStep)], bench_folder, tell
            )


def _train(step: TrainStep, bench_folder: BenchFolder, tell: Tell) -> None:
    total, accuracy = step.spec.training.schedule.total, ""

    def watch(event: Event) -> None:
        nonlocal accuracy
        if isinstance(event, Started | Epoch) and event.accuracy is not None:
            accuracy = f"val {100 * event.accuracy:.1f} %"
        if isinstance(event, Started | Update | Saved):
            tell(Progress(event.update, total, "updates", accuracy))

    spec = step.spec
    start = None if spec.start is None else bench_folder.training(spec.start)
    perform_training(spec, bench_folder.training(spec), watch, start=start)


def _run_tasks(pieces: Sequence[PartialResultStep], bench_folder: BenchFolder, tell: Tell) -> None:
    """Run the same tasks of one cell, or of several that learn once for all, with every member."""
    run, numbers, done = pieces[0].spec, pieces[0].numbers, 0
    learner, weights = built(run.learner), _weights(run, bench_folder)
    variants = [tasks_of(piece.spec, numbers) for piece in pieces]

    def progress(finished: int) -> None:
        nonlocal done
        done += finished
        tell(Progress(done, run.members * len(numbers), "tasks"))

    start, members = time.perf_counter(), []
    for rank in range(run.members):
        meta = weights.of_member(rank, learner, variants[0], run.seed)
        members.append(evaluate_variants(_conditions(run), learner, variants, meta, progress))
    seconds = (time.perf_counter() - start) / len(pieces)

    for piece, traces in zip(pieces, zip(*members, strict=True), strict=True):
        write_partial_result(bench_folder.partial_result(piece), traces, seconds)


def _put_together(run: RunSpec, bench_folder: BenchFolder, tell: Tell) -> None:
    """Join the partial results, measure the costs, and write manifest, answers and card in turn."""
    pieces = [
        read_partial_result(bench_folder.partial_result(piece)) for piece in partial_steps_of(run)
    ]
    members = [joined([traces[rank] for traces, _ in pieces]) for rank in range(run.members)]
    seconds = sum(seconds for _, seconds in pieces)

    tell(Progress(0, 1, "card"))
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
    """Remove the pieces of a cell that has its card."""
    shutil.rmtree(
        bench_folder.partial_results(run), ignore_errors=True
    )  # another bench may be at them


def _conditions(run: RunSpec) -> Conditions:
    return Conditions(progressive=run.progressive, accelerate=True)


def _weights(run: RunSpec, bench_folder: BenchFolder) -> Weights:
    return Weights(None if run.train is None else bench_folder.training(run.train))
