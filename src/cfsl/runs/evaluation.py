"""From a learner and tasks to a card: run, measure, write down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cfsl.cards.card import measurements, without_seconds
from cfsl.cards.environment import environment
from cfsl.cards.schema import Card
from cfsl.data.manifest import Manifest
from cfsl.data.tasks import Tasks
from cfsl.harness.cost import measure_in_sandbox, measure_macs, measure_peak_memory
from cfsl.harness.evaluate import Conditions, evaluate_under
from cfsl.harness.trace import Trace
from cfsl.harness.workers import Workers
from cfsl.learners.base import Learner, Meta
from cfsl.learners.description import described
from cfsl.learners.maml.accelerated import why_not
from cfsl.metrics.answers import Answers, answers_of, rounded

PUBLISHED = Conditions()
"""What everything is held to that goes on a card, unless it says otherwise."""


class Evaluation(NamedTuple):
    """What came out, as it is written down and in full."""

    card: Card
    trace: Trace
    answers: Answers
    """What the numbers on the card were measured from, to be written beside it."""


def evaluation_of(
    name: str,
    learner: Learner,
    tasks: Tasks,
    meta: Meta,
    conditions: Conditions = PUBLISHED,
    *,
    checkpoint: Mapping[str, Any] | None = None,
    workers: int | Workers = 1,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Evaluate a learner whose weights are in memory, and measure what it costs.

    `checkpoint` holds the notes of its training run.
    """
    start = time.perf_counter()
    trace = evaluate_under(conditions, learner, tasks, meta, workers, progress)
    seconds = time.perf_counter() - start
    answers = rounded(answers_of(trace))
    card = card_of(
        name, learner, tasks, meta, conditions, answers, checkpoint=checkpoint, seconds=seconds
    )
    return Evaluation(card, trace, answers)


def card_of(
    name: str,
    learner: Learner,
    tasks: Tasks,
    meta: Meta,
    conditions: Conditions,
    answers: Answers,
    *,
    checkpoint: Mapping[str, Any] | None,
    seconds: float,
) -> Card:
    """Return the card of a run with these rounded answers; costs are measured on its first task."""
    notes, training_seconds = without_seconds(checkpoint)
    if conditions.isolate:
        macs, peak = measure_in_sandbox(learner, tasks, meta)
    else:
        macs, peak = measure_macs(learner, tasks, meta), measure_peak_memory(learner, tasks, meta)

    content = {
        "learner": {"name": name, **described(learner)},
        "transductive": bool(getattr(learner, "transductive", False)),
        "breaks_law": bool(getattr(learner, "breaks_law", False)),
        "isolation": "sandbox" if conditions.isolate else "none",
        "accelerated": conditions.accelerate and why_not(learner, conditions.device) is None,
        "checkpoint": notes,
        "tasks": tasks_described(tasks),
        "metrics": measurements(answers),
        "macs": vars(macs) | {"training_step": (checkpoint or {}).get("step_macs")},
        "peak_memory": peak,
        "circumstances": {"seconds": seconds, "environment": environment(conditions.device)}
        | training_seconds,
    }
    return Card.of(content)


def tasks_described(tasks: Tasks) -> dict[str, Any]:
    """Return which tasks they are, with the fingerprint of their manifest, ready for JSON."""
    manifest = Manifest.of(tasks)
    return {
        "data": manifest.data,
        "data_fingerprint": manifest.data_fingerprint,
        "splits": manifest.splits,
        "splits_hash": manifest.splits_hash,
        "split": manifest.split,
        "spec": tasks.spec.model_dump(mode="json"),
        "spec_hash": tasks.spec.hash,
        "task_type": tasks.spec.task_type,
        "seed": manifest.seed,
        "sampler": manifest.sampler,
        "numbers": [manifest.numbers.start, manifest.numbers.stop, manifest.numbers.step],
        "count": len(tasks),
        "manifest_fingerprint": manifest.fingerprint,
    }
