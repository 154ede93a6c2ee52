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
from cfsl.engine.bench_folder import Shelf
from cfsl.engine.partial_results import read_piece, write_piece
from cfsl.engine.steps import CardStep, PieceStep, Step, TrainStep, pieces_of
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


def perform(step: Step, shelf: Shelf, tell: Tell) -> Outcome:
    """Do a step, unless it is done already or another process is at it."""
    parts: Sequence[Step] = step.singles if isinstance(step, PieceStep) else [step]
    with contextlib.ExitStack() as claims:
        if not all(claims.enter_context(shelf.claimed(part)) for part in parts):
            return Outcome.BUSY
        missing = [part for part in parts if not shelf.checked(part)[0]]
        if missing:
            _do(missing, shelf, tell)
    return Outcome.DONE


def _do(parts: Sequence[Step], shelf: Shelf, tell: Tell) -> None:
    """Do a step, or what is missing of one that has several parts, all of which are pieces."""
    match parts[0]:
        case TrainStep() as step:
            _train(step, shelf, tell)
        case CardStep() as step:
            _put_together(step.spec, shelf, tell)
        case PieceStep():
            _run_pieces([part for part in parts if isinstance(part, PieceStep)], shelf, tell)


def _train(step: TrainStep, shelf: Shelf, tell: Tell) -> None:
    total, accuracy = step.spec.training.schedule.total, ""

    def watch(event: Event) -> None:
        nonlocal accuracy
        if isinstance(event, Started | Epoch) and event.accuracy is not None:
            accuracy = f"val {100 * event.accuracy:.1f} %"
        if isinstance(event, Started | Update | Saved):
            tell(Progress(event.update, total, "updates", accuracy))

    spec = step.spec
    start = None if spec.start is None else shelf.training(spec.start)
    perform_training(spec, shelf.training(spec), watch, start=start)


def _run_pieces(pieces: Sequence[PieceStep], shelf: Shelf, tell: Tell) -> None:
    """Run the same tasks of one cell, or of several that learn once for all, with every member."""
    run, numbers, done = pieces[0].spec, pieces[0].numbers, 0
    learner, weights = built(run.learner), _weights(run, shelf)
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
        write_piece(shelf.piece(piece), traces, seconds)


def _put_together(run: RunSpec, shelf: Shelf, tell: Tell) -> None:
    """Join the pieces, measure what the learner costs, and write manifest, answers and card, in this order."""
    pieces = [read_piece(shelf.piece(piece)) for piece in pieces_of(run)]
    members = [joined([traces[rank] for traces, _ in pieces]) for rank in range(run.members)]
    seconds = sum(seconds for _, seconds in pieces)

    tell(Progress(0, 1, "card"))
    card, answers = card_of_run(
        run, _weights(run, shelf), _conditions(run), members, seconds=seconds
    )

    _write_manifest(tasks_of(run), shelf)
    write_card(shelf.card(run), card, answers)
    discard_pieces(run, shelf)


def _write_manifest(tasks: Tasks, shelf: Shelf) -> None:
    manifest = Manifest.of(tasks)
    path = shelf.manifest(manifest.fingerprint)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        manifest.write(path)


def discard_pieces(run: RunSpec, shelf: Shelf) -> None:
    """Remove the pieces of a cell that has its card."""
    shutil.rmtree(shelf.pieces(run), ignore_errors=True)  # another bench may be at them


def _conditions(run: RunSpec) -> Conditions:
    return Conditions(progressive=run.progressive, accelerate=True)


def _weights(run: RunSpec, shelf: Shelf) -> Weights:
    return Weights(None if run.train is None else shelf.training(run.train))
