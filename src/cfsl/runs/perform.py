"""From a run spec to a card: evaluate, let the best epochs answer together, measure, write down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cfsl.cards.card import measurements
from cfsl.cards.schema import Card, CardMacs
from cfsl.harness.evaluate import Conditions, evaluate_under
from cfsl.harness.sandbox.sandboxed_learner import SandboxedLearner
from cfsl.harness.trace import Trace
from cfsl.harness.workers import Workers
from cfsl.metrics.answers import Answers, answers_of, rounded
from cfsl.metrics.ensemble import ensemble
from cfsl.runs.data import data_of, tasks_of
from cfsl.runs.evaluation import card_of
from cfsl.runs.run_spec import RunSpec, TrainSpec, built
from cfsl.runs.weights import Weights, require_fit
from cfsl.training.events import Epoch, Watcher
from cfsl.training.loop import train

_COUNTED = ("adaptation", "prediction")


class Performed(NamedTuple):
    """A run that was done: its card, and the answers that the card is measured from."""

    card: Card
    answers: dict[str, Answers]
    """Of the best epoch under "", and of the ensemble under "ensemble"."""


def perform(
    run: RunSpec,
    weights: Weights,
    conditions: Conditions,
    *,
    workers: int | Workers = 1,
    with_ensemble: bool | None = None,
    progress: Callable[[int], None] | None = None,
    sandboxed: SandboxedLearner | None = None,
) -> Performed:
    """Do a run from its weights to its card. The conditions must be those of the run.

    `sandboxed` stands for a learner that must not be imported in this process.
    """
    learner, tasks = sandboxed or built(run.learner), tasks_of(run)
    best = weights.of_member(0, learner, tasks, run.seed)
    if weights.path is not None and run.train is None and sandboxed is None:
        require_fit(run.learner.name, learner, best, tasks, weights.path)

    start = time.perf_counter()
    members = [evaluate_under(conditions, learner, tasks, best, workers, progress)]
    seconds = time.perf_counter() - start
    for rank in range(1, run.members):
        meta = weights.of_member(rank, learner, tasks, run.seed)
        members.append(evaluate_under(conditions, learner, tasks, meta, workers, progress))
    ensemble_seconds = time.perf_counter() - start - seconds

    performed = card_of_run(
        run,
        weights,
        conditions,
        members,
        seconds=seconds,
        with_ensemble=with_ensemble,
        sandboxed=sandboxed,
    )
    card = performed.card
    if card.ensemble is None:
        return performed
    circumstances = card.circumstances.content() | {"ensemble_seconds": ensemble_seconds}
    return performed._replace(card=card.replace(circumstances=circumstances))


def card_of_run(
    run: RunSpec,
    weights: Weights,
    conditions: Conditions,
    members: Sequence[Trace],
    *,
    seconds: float,
    with_ensemble: bool | None = None,
    sandboxed: SandboxedLearner | None = None,
) -> Performed:
    """Return the card of a run whose members gave these traces, and measure what the learner costs.

    By default the card says what the members answer together if there are several.
    """
    learner, tasks = sandboxed or built(run.learner), tasks_of(run)
    answers = {"": rounded(answers_of(members[0]))}
    card = card_of(
        run.learner.name,
        learner,
        tasks,
        weights.of_member(0, learner, tasks, run.seed),
        conditions,
        answers[""],
        checkpoint=weights.notes(),
        seconds=seconds,
    )
    card = card.replace(run=run.identity(), run_hash=run.hash, profile=run.profile)
    if run.members > 1 if with_ensemble is None else with_ensemble:
        answers["ensemble"] = rounded(answers_of(ensemble(list(members), run.average)))
        card = card.replace(ensemble=_ensemble(run, weights, answers["ensemble"], card.macs))
    return Performed(card, answers)


def _ensemble(run: RunSpec, weights: Weights, answers: Answers, macs: CardMacs) -> dict[str, Any]:
    return {
        "members": run.members,
        "average": run.average,
        "epochs": weights.best_epochs(run.members),
        "metrics": measurements(answers),
        "macs": {part: run.members * getattr(macs, part) for part in _COUNTED},
    }


def perform_training(
    spec: TrainSpec,
    folder: Path,
    watch: Watcher,
    *,
    device: str = "cpu",
    threads: int = 1,
    accelerate: bool = True,
    start: Path | None = None,
) -> list[Epoch]:
    """Do a training run, or what is left of it, and return its history.

    `start` is the folder of the training run that it starts from, by default one inside `folder`.
    """
    learner, data = built(spec.learner), data_of(spec.data)
    return train(
        learner,
        spec.training,
        data,
        folder,
        watch,
        device=device,
        threads=threads,
        accelerate=accelerate,
        start=start,
    )
