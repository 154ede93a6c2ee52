"""Across-Task Memory (ATM): the size of a learner's state relative to the images it was shown.

"Specification of Continual Few-Shot Learning Tasks" (1.0), section 3, equation 1:
ATM = peak bytes of state / bytes of all support images of the task, as they were fed.
Bytes account for precision. 0 is no memory; 1 is the size of keeping everything. Learned weights
that all tasks share do not count; weights adapted to a task do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from cfsl.metrics.answers import Scorable


@dataclass(frozen=True)
class Atm:
    """Across-Task Memory, as the mean over tasks.

    Each part has its own peak, so the parts may add up to more than the total.
    """

    total: float
    """Peak of the whole state. This is the ATM of a learner."""
    representation: float
    """Peak of vectors, weights and images: the specification's |M^x|."""
    bookkeeping: float
    """Peak of counts, labels and the like."""
    curve: Float64[np.ndarray, " boundaries"]
    """The whole state, before the first support set and then after each."""


def atm(run: Scorable) -> Atm:
    """Return the Across-Task Memory of a learner."""
    return Atm(
        total=_peak(run.state_bytes, run.support_bytes),
        representation=_peak(run.state_bytes - run.bookkeeping_bytes, run.support_bytes),
        bookkeeping=_peak(run.bookkeeping_bytes, run.support_bytes),
        curve=run.state_bytes.mean(axis=0, dtype=np.float64) / run.support_bytes,
    )


def _peak(kept: Int64[np.ndarray, "tasks boundaries"], support_bytes: int) -> float:
    """Return the largest ratio at any boundary of a task, as the mean over tasks."""
    return float(kept.max(axis=1).mean(dtype=np.float64)) / support_bytes
