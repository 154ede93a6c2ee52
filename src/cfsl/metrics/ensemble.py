"""Several runs that answer as one: the mean of their logits, or of their probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float32, Float64

from cfsl.errors import SpecError, lookup
from cfsl.harness.trace import Trace
from cfsl.metrics.answers import log_probabilities

Members = Float32[np.ndarray, "members targets labels"]


def ensemble(traces: Sequence[Trace], average: str = "logits") -> Trace:
    """Return the answers of several runs of the same tasks as those of one.

    "logits" is the mean of the logits. It is a product of experts: a label that is impossible (-inf) for one member is
    impossible for all, and members with larger logits weigh more. "probabilities" is the mean of the softmax
    probabilities, returned as log-probabilities: a label is impossible only if it is so for every member, and all
    members weigh the same. Either way a target that one member has no answer for has none: who diverges is scored.

    All members' states have to be kept, so their bytes add up. Labels after every support set are left out: members
    could only vote on them, which is another rule than the one that makes the final answer.
    """
    mean = lookup(AVERAGES, average, "average")
    _require_same_tasks(traces)
    tasks = zip(*(trace.logits for trace in traces), strict=True)
    # inf - inf is NaN, which is no answer; a log-probability below what float32 holds is -inf.
    with np.errstate(invalid="ignore", over="ignore"):
        # Task by task: float64 copies of all logits of long tasks would not fit in memory.
        logits = [mean(np.stack(members)).astype(np.float32) for members in tasks]
    return Trace(
        logits=np.stack(logits),
        labels=traces[0].labels,
        groups=traces[0].groups,
        state_bytes=np.stack([trace.state_bytes for trace in traces]).sum(axis=0),
        bookkeeping_bytes=np.stack([trace.bookkeeping_bytes for trace in traces]).sum(axis=0),
        support_bytes=traces[0].support_bytes,
    )


def _mean_logits(members: Members) -> Float64[np.ndarray, "targets labels"]:
    """Return the mean over members; sorted first, so that their order cannot matter by rounding."""
    return np.asarray(np.sort(members.astype(np.float64), axis=0).mean(axis=0))


def _mean_probabilities(members: Members) -> Float64[np.ndarray, "targets labels"]:
    """Return the log of the mean probability."""
    logs = np.stack([log_probabilities(member) for member in members])
    return np.asarray(np.logaddexp.reduce(np.sort(logs, axis=0), axis=0) - np.log(len(members)))


AVERAGES: Mapping[str, Callable[[Members], Float64[np.ndarray, "targets labels"]]] = {
    "logits": _mean_logits,
    "probabilities": _mean_probabilities,
}


def _require_same_tasks(traces: Sequence[Trace]) -> None:
    if not traces:
        raise SpecError("an ensemble has at least one member, not 0")
    first = traces[0]
    for number, trace in enumerate(traces):
        same_size = (
            trace.logits.shape == first.logits.shape
            and trace.state_bytes.shape == first.state_bytes.shape
        )
        same_targets = np.array_equal(trace.labels, first.labels) and np.array_equal(
            trace.groups, first.groups
        )
        if not (same_size and same_targets and trace.support_bytes == first.support_bytes):
            raise SpecError(
                f"member {number} ran other tasks than member 0; an ensemble answers the same tasks"
            )
