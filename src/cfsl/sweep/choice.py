"""The result of `cfsl choose`: the points of a grid, each compared with the best point."""

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
    """One combination of values, and its accuracy."""

    values: dict[str, Any]
    accuracy: dict[str, Any]
    """Mean, standard deviation, confidence interval and count, over tasks."""
    difference: float
    """Difference of the accuracy to that of the best combination, on the same tasks."""
    ci95: float | None
    p: float
    """p value of the paired t test against the best combination."""
    atm: float
    best: bool

    @property
    def mark(self) -> str:
        """Return `*` for the best, `~` for one that is not significantly worse, or a space."""
        if self.best:
            return "*"
        return "~" if self.p >= SIGNIFICANT else " "


def ranked(points: Sequence[Point], outcomes: Sequence[Scorable]) -> list[Tried]:
    """Compare every point with the best one: the first point that has the highest mean."""
    accuracies = [summarise(task_accuracies(outcome)) for outcome in outcomes]
    best = max(range(len(outcomes)), key=lambda number: accuracies[number].mean)

    tried = []
    for number, (values, outcome) in enumerate(zip(points, outcomes, strict=True)):
        paired = compare(outcome, outcomes[best])
        tried.append(
            Tried(
                values,
                accuracy=asdict(accuracies[number]),
                difference=paired.difference,
                ci95=paired.ci95,
                p=paired.p,
                atm=atm(outcome).total,
                best=number == best,
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
    """Return the card of a choice: all combinations, and the command-line options of the best."""
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
