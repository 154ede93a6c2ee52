"""What `cfsl choose` has found: the points of a grid, each compared with the best point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cfsl.cards.card import Content
from cfsl.cards.compare import SIGNIFICANT
from cfsl.cards.environment import environment
from cfsl.data.tasks import Tasks
from cfsl.learners.description import described
from cfsl.metrics.accuracy import summarise, task_accuracies
from cfsl.metrics.answers import Scorable
from cfsl.metrics.memory import atm
from cfsl.metrics.paired import compare
from cfsl.runs.evaluation import tasks_described
from cfsl.sweep.space import Point


@dataclass(frozen=True)
class Tried:
    """One combination of values, and what came of it."""

    values: dict[str, Any]
    accuracy: dict[str, Any]
    """Mean, standard deviation, confidence interval and count, over tasks."""
    difference: float
    """Of the accuracy to that of the best combination, on the same tasks; 0 for the best itself."""
    ci95: float | None
    p: float
    """Of the paired t test against the best combination."""
    atm: float
    best: bool

    @property
    def mark(self) -> str:
        """Tell the best, and what is not significantly worse."""
        if self.best:
            return "*"
        return "~" if self.p >= SIGNIFICANT else " "


def ranked(points: Sequence[Point], outcomes: Sequence[Scorable]) -> list[Tried]:
    """Compare every point with the best: the one of the highest mean, and the first of equals."""
    accuracies = [summarise(task_accuracies(outcome)) for outcome in outcomes]
    best = max(range(len(outcomes)), key=lambda number: accuracies[number].mean)
    tried = []
    for number, (values, outcome) in enumerate(zip(points, outcomes, strict=True)):
        paired = compare(outcome, outcomes[best])
        summary = asdict(accuracies[number])
        tried.append(
            Tried(
                values,
                summary,
                paired.difference,
                paired.ci95,
                paired.p,
                atm(outcome).total,
                number == best,
            )
        )
    return tried


def choice_card(
    name: str,
    learner: Any,
    tried: Sequence[Tried],
    options: str,
    tasks: Tasks,
    notes: Mapping[str, Any] | None,
) -> Content:
    """Return the card of a choice: all that was tried, and what to put on the command line."""
    best = next(one for one in tried if one.best)
    return {
        "kind": "choice",
        "learner": {"name": name, **described(learner)},
        "checkpoint": notes,
        "tasks": tasks_described(tasks),
        "tried": [asdict(one) for one in tried],
        "chosen": best.values,
        "options": options,
        "circumstances": {"environment": environment()},
    }
