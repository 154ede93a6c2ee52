"""Several runs that answer as one: the mean of their logits, or of their probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float32, Float64

from cfsl.errors import SpecError, lookup
from cfsl.harness.trace import Trace
from cfsl.metrics.answers import log_probabilities

_Members = Float32[np.ndarray, "members targets labels"]


def ensemble(traces: Sequence[Trace], average: str = "logits") -> Trace:
    """Return the common answers of several runs of the same tasks, as the trace of one run.

    - average="logits" takes the mean of the logits. It is a product of experts: a label that is
      impossible (-inf) for one member is impossible for all, and members with larger logits weigh
      more.
    - average="probabilities" takes the mean of the softmax probabilities, and returns its
      logarithm. A label is impossible only if it is so for every member, and all members weigh the
      same.

    Either way, a target has no answer if one member has none: a member that diverges is scored.

    All members' states have to be kept, so their bytes add up. Labels after every support set are
    left out: members could only vote on them, which is another rule than that of the final answer.
    """
    mean = lookup(AVERAGES, average, "average")
    _require_same_tasks(traces)

    # Task by task: float64 copies of all logits of long tasks would not fit in memory.
    tasks = zip(*(trace.logits for trace in traces), strict=True)
    # inf - inf is NaN, which is no answer; a log-probability below what float32 holds is -inf.
    with np.errstate(invalid="ignore", over="ignore"):
        logits = [mean(np.stack(members)).astype(np.float32) for members in tasks]

    return Trace(
        logits=np.stack(logits),
        labels=traces[0].labels,
        groups=traces[0].groups,
        state_bytes=np.stack([trace.state_bytes for trace in traces]).sum(axis=0),
        bookkeeping_bytes=np.stack([trace.bookkeeping_bytes for trace in traces]).sum(axis=0),
        support_bytes=traces[0].support_bytes,
    )


def _mean_logits(members: _Members) -> Float64[np.ndarray, "targets labels"]:
    """Return the mean over members; sorted first, so that their order cannot matter by rounding."""
    return np.asarray(np.sort(members.astype(np.float64), axis=0).mean(axis=0))


def _mean_probabilities(members: _Members) -> Float64[np.ndarray, "targets labels"]:
    """Return the log of the mean probability."""
    logs = np.stack([log_probabilities(member) for member in members])
    return np.asarray(np.logaddexp.reduce(np.sort(logs, axis=0), axis=0) - np.log(len(members)))


AVERAGES: Mapping[str, Callable[[_Members], Float64[np.ndarray, "targets labels"]]] = {
    "logits": _mean_logits,
    "probabilities": _mean_probabilities,
}


def _require_same_tasks(traces: Sequence[Trace]) -> None:
    if not traces:
        raise SpecError("an ensemble has at least one member, not 0")

    first, *others = traces
    for number, trace in enumerate(others, 1):
        if not _are_of_same_tasks(trace, first):
            raise SpecError(
                f"member {number} ran other tasks than member 0; an ensemble answers the same tasks"
            )


def _are_of_same_tasks(a: Trace, b: Trace) -> bool:
    return (
        a.logits.shape == b.logits.shape
        and a.state_bytes.shape == b.state_bytes.shape
        and a.support_bytes == b.support_bytes
        and np.array_equal(a.labels, b.labels)
        and np.array_equal(a.groups, b.groups)
    )
