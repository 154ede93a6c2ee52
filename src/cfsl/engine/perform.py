"""One step, done: the same wherever it is done, and not at all if it was done before."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch

from cfsl.cards.card import measurements, write_card
from cfsl.data.catalog import load
from cfsl.data.manifest import Manifest
from cfsl.data.splits import splits_hash
from cfsl.data.store import Dataset
from cfsl.data.tasks import Tasks
from cfsl.engine.bench_folder import Shelf
from cfsl.engine.partial_results import read_piece, write_piece
from cfsl.engine.steps import CardStep, PieceStep, Step, TrainStep, pieces_of
from cfsl.errors import DataError
from cfsl.harness.evaluate import Conditions, evaluate_variants
from cfsl.harness.trace import joined
from cfsl.learners.base import Meta, first_weights
from cfsl.metrics.answers import answers_of, rounded
from cfsl.metrics.ensemble import ensemble
from cfsl.runs.evaluation import card_of
from cfsl.runs.run_spec import DataSpec, RunSpec, built
from cfsl.training.checkpoint import read_notes
from cfsl.training.events import Epoch, Event, Saved, Started, Update
from cfsl.training.loop import train
from cfsl.training.run_folder import LAST, best_epochs, best_weights


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


@functools.lru_cache(maxsize=4)
def opened(spec: DataSpec) -> Dataset:
    """Open a data set, and refuse one that only has the same name."""
    data = load(spec.name, splits=spec.splits)
    if (data.fingerprint, splits_hash(data.splits)) != (spec.fingerprint, spec.splits_hash):
        raise DataError(
            f"{spec.name} is not the data set that the plan was made for: its fingerprint is "
            f"{data.fingerprint[:12]}, the plan's is {spec.fingerprint[:12]}; plan again"
        )
    return data


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
    train(
        built(spec.learner),
        spec.training,
        opened(spec.data),
        shelf.training(spec),
        watch,
        start=start,
    )


def _run_pieces(pieces: Sequence[PieceStep], shelf: Shelf, tell: Tell) -> None:
    """Run the same tasks of one cell, or of several that learn once for all, with every member."""
    run, numbers, done = pieces[0].spec, pieces[0].numbers, 0
    learner, variants = built(run.learner), [_tasks(piece.spec, numbers) for piece in pieces]

    def progress(finished: int) -> None:
        nonlocal done
        done += finished
        tell(Progress(done, run.members * len(numbers), "tasks"))

    start = time.perf_counter()
    members = [
        evaluate_variants(
            _conditions(run), learner, variants, _weights(run, learner, shelf, rank), progress
        )
        for rank in range(run.members)
    ]
    seconds = (time.perf_counter() - start) / len(pieces)
    for piece, traces in zip(pieces, zip(*members, strict=True), strict=True):
        write_piece(shelf.piece(piece), traces, seconds)


def _put_together(run: RunSpec, shelf: Shelf, tell: Tell) -> None:
    """Join the pieces, measure what the learner costs, and write manifest, answers and card, in this order."""
    pieces = [read_piece(shelf.piece(piece)) for piece in pieces_of(run)]
    members = [joined([traces[rank] for traces, _ in pieces]) for rank in range(run.members)]
    learner, tasks = built(run.learner), _tasks(run, range(run.tasks))
    notes = None if run.train is None else read_notes(shelf.training(run.train) / LAST)
    tell(Progress(0, 1, "card"))
    answers = {"": rounded(answers_of(members[0]))}
    card = card_of(
        run.learner.name,
        learner,
        tasks,
        _weights(run, learner, shelf, 0),
        _conditions(run),
        answers[""],
        checkpoint=notes,
        seconds=sum(seconds for _, seconds in pieces),
    )
    if run.members > 1 and run.train is not None:
        answers["ensemble"] = rounded(answers_of(ensemble(members, run.average)))
        together = {
            "members": run.members,
            "average": run.average,
            "epochs": best_epochs(shelf.training(run.train), run.members),
            "metrics": measurements(answers["ensemble"]),
            "macs": {
                part: run.members * getattr(card.macs, part)
                for part in ("adaptation", "prediction")
            },
        }
        card = card.replace(ensemble=together)
    _write_manifest(tasks, shelf)
    write_card(
        shelf.card(run),
        card.replace(run=run.identity(), run_hash=run.hash, profile=run.profile),
        answers,
    )
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


def _tasks(run: RunSpec, numbers: range) -> Tasks:
    return Tasks(opened(run.data), run.task, split=run.split, seed=run.task_seed, numbers=numbers)


def _conditions(run: RunSpec) -> Conditions:
    return Conditions(progressive=run.progressive, accelerate=True)


def _weights(run: RunSpec, learner: Any, shelf: Shelf, rank: int) -> Meta:
    """Return the weights of the best epoch, or the next best; or draw them."""
    if run.train is not None:
        return best_weights(shelf.training(run.train), rank)
    recipe = opened(run.data).info.recipe
    shape = (recipe.channels, recipe.height, recipe.width)
    return first_weights(learner, shape, run.task, torch.Generator().manual_seed(run.seed))
