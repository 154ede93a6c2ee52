"""Accuracy and cross-entropy of every task, and summaries over tasks or over seeds.

"Specification of Continual Few-Shot Learning Tasks" (1.0), section 3, asks for mean and standard
deviation of accuracy and cross-entropy over 600 tasks; the papers' tables give the standard
deviation over seeds. The two differ by an order of magnitude, so they have different types here: a
`Summary` is over tasks, a `SeedSummary` is over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from cfsl.errors import SpecError
from cfsl.metrics.answers import Scorable, answers_of, predictions
from cfsl.metrics.student import critical_t95

PerTask = Float64[np.ndarray, " tasks"]


def task_accuracies(run: Scorable) -> PerTask:
    """Return the part of each task's targets whose label was predicted.

    A target without an answer is wrong.
    """
    return np.asarray((predictions(run) == run.labels).mean(axis=1, dtype=np.float64))


def task_cross_entropies(run: Scorable) -> PerTask:
    """Return each task's mean over targets of -log softmax(logits)[label], in nats.

    It is infinite if a target's own label was held to be impossible, or if a target has no answer.
    """
    # The subtraction from 0.0 gives 0.0 where a minus sign would give -0.0.
    return np.asarray(0.0 - answers_of(run).log_likelihood.mean(axis=1))


@dataclass(frozen=True)
class Summary:
    """The tasks of one run: their mean, how much they differ, how well the mean is known."""

    mean: float
    std: float | None
    """Standard deviation over tasks (ddof = 1); None for one task, or if a value is infinite."""
    ci95: float | None
    """Half the width of the 95 % confidence interval of the mean (Student's t over tasks); None
    where std is None."""
    count: int
    """The number of tasks."""


@dataclass(frozen=True)
class SeedSummary:
    """The runs of one setting with different seeds: how much runs differ.

    It must not be compared with a `Summary`.
    """

    mean: float
    std: float | None
    """Standard deviation over seeds (ddof = 1); None for one seed, or if a value is infinite."""
    ci95: float | None
    """Half the width of the 95 % confidence interval of the mean (Student's t over seeds); None
    where std is None."""
    count: int
    """The number of seeds."""


def summarise(values: PerTask) -> Summary:
    """Sum up one value per task, of one run."""
    return Summary(*_moments(values, "task"))


def over_seeds(values_per_seed: Sequence[float]) -> SeedSummary:
    """Sum up one value per seed, such as the mean accuracy of each run.

    It takes a list or tuple where `summarise` takes an array, so that a type checker finds values
    that are handed to the wrong one.
    """
    return SeedSummary(*_moments(np.array(values_per_seed, np.float64), "seed"))


_Moments = tuple[float, float | None, float | None, int]


def _moments(values: Float64[np.ndarray, " values"], what: str) -> _Moments:
    """Return mean, standard deviation, confidence interval and count."""
    count, missing = len(values), int(np.isnan(values).sum())
    if count == 0:
        raise SpecError(f"there is nothing to sum up: give the values of at least one {what}")
    if missing:
        raise SpecError(
            f"{missing} of {count} {what} values are NaN, which has no mean; "
            f"leave them out or mend them"
        )

    mean = float(values.mean())
    if count == 1 or not np.isfinite(values).all():
        return mean, None, None, count

    std = float(values.std(ddof=1))
    return mean, std, critical_t95(count - 1) * std / count**0.5, count
