"""The answers of a learner to tasks, as numpy arrays: scores can be recomputed without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32, Int64


@dataclass(frozen=True)
class Trace:
    """The outcome of tasks of one spec, run by one learner."""

    logits: Float32[np.ndarray, "tasks targets labels"]
    """The learner's answer after the last support set."""
    labels: Int64[np.ndarray, "tasks targets"]
    groups: Int64[np.ndarray, "tasks targets"]
    """The class group (instance test: the support set) that a target was shown in."""
    state_bytes: Int64[np.ndarray, "tasks boundaries"]
    """Bytes of state that are not shared with the learned weights: before the first support set,
    then after each."""
    bookkeeping_bytes: Int64[np.ndarray, "tasks boundaries"]
    """How many of these bytes are counts, labels and other bookkeeping."""
    support_bytes: int
    """Bytes of all support images of a task, as they were fed."""
    progressive: Int32[np.ndarray, "tasks sets targets"] | None = None
    """The label each target would get after each support set, or None if that was not asked for."""
    seen: Int64[np.ndarray, " sets"] | None = None
    """How many groups (instance test: support sets) had been shown after each support set."""


def joined(traces: Sequence[Trace]) -> Trace:
    """Put traces of the same spec together, in this order."""
    first = traces[0]
    progressive = None
    if first.progressive is not None:
        progressive = np.concatenate([t.progressive for t in traces if t.progressive is not None])

    return Trace(
        logits=np.concatenate([trace.logits for trace in traces]),
        labels=np.concatenate([trace.labels for trace in traces]),
        groups=np.concatenate([trace.groups for trace in traces]),
        state_bytes=np.concatenate([trace.state_bytes for trace in traces]),
        bookkeeping_bytes=np.concatenate([trace.bookkeeping_bytes for trace in traces]),
        support_bytes=first.support_bytes,
        progressive=progressive,
        seen=first.seen,
    )
