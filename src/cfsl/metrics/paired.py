"""Compare two learners task by task, since some tasks are hard for every learner."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cfsl.errors import SpecError
from cfsl.metrics.accuracy import PerTask, summarise, task_accuracies
from cfsl.metrics.answers import Scorable
from cfsl.metrics.student import two_sided_p

_ROUNDING = 1e-12
"""Far above the rounding of a difference of accuracies, far below the effect of one target."""


@dataclass(frozen=True)
class PairedComparison:
    """Accuracy of learner a minus accuracy of learner b, over tasks that both were run on."""

    difference: float
    """Difference of the means; positive if a is better."""
    ci95: float | None
    """Half the width of the 95 % confidence interval of the difference (Student's t); None for one
    task."""
    p: float
    """Two-sided p of the paired t test: how likely so large a difference is among equals."""
    count: int
    """The number of tasks."""


def compare(a: Scorable, b: Scorable) -> PairedComparison:
    """Compare the accuracies of two learners on the same tasks; refuse traces of different tasks.

    A trace does not hold its images. Tasks count as the same if the labels and groups of their
    targets are the same in the same order, which is drawn anew for every task.
    """
    _require_same_tasks(a, b)
    differences = task_accuracies(a) - task_accuracies(b)
    summary = summarise(differences)
    return PairedComparison(summary.mean, summary.ci95, paired_p(differences), summary.count)


def paired_p(differences: PerTask) -> float:
    """Return the p of the paired t test.

    If all differences are the same, return that of the exact sign-flip test.
    """
    if np.abs(differences).max() < _ROUNDING:
        return 1.0
    if np.ptp(differences) < _ROUNDING:
        # t would be infinite, even for two tasks. Of the 2^n ways to flip the signs, two give as
        # large a mean.
        return math.ldexp(1.0, 1 - len(differences))

    t = differences.mean() / (differences.std(ddof=1) / len(differences) ** 0.5)
    return two_sided_p(float(t), len(differences) - 1)


def _require_same_tasks(a: Scorable, b: Scorable) -> None:
    """Refuse traces whose targets differ."""
    if a.labels.shape != b.labels.shape:
        raise SpecError(
            f"a paired comparison needs the same tasks: one trace has {_size(a)}, "
            f"the other {_size(b)}. "
            "Run both learners with the same task spec, seed and number of tasks."
        )

    differ = ((a.labels != b.labels) | (a.groups != b.groups)).any(axis=1)
    if differ.any():
        raise SpecError(
            f"a paired comparison needs the same tasks: the targets of {differ.sum()} of "
            f"{len(differ)} tasks differ (first: task {differ.argmax()}). "
            f"Run both learners with the same task spec and seed."
        )


def _size(run: Scorable) -> str:
    return "{} tasks of {} targets".format(*run.labels.shape)
