"""Traces made by hand, and traces of any learner."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cfsl.harness.trace import Trace


def make_trace(logits, labels, groups=None, progressive=None, seen=None) -> Trace:
    """Return a trace whose learner keeps nothing."""
    labels = np.array(labels, np.int64)
    return Trace(
        logits=np.array(logits, np.float32),
        labels=labels,
        groups=np.zeros_like(labels) if groups is None else np.array(groups, np.int64),
        state_bytes=np.zeros((len(labels), 2), np.int64),
        bookkeeping_bytes=np.zeros((len(labels), 2), np.int64),
        support_bytes=100,
        progressive=None if progressive is None else np.array(progressive, np.int32),
        seen=None if seen is None else np.array(seen, np.int64),
    )


@st.composite
def traces(draw: st.DrawFn, min_groups: int = 1) -> Trace:
    """Traces of any learner on tasks of any number of groups, the last of which may be shorter."""
    groups, interval = draw(st.integers(min_groups, 4)), draw(st.integers(1, 3))
    sets = (groups - 1) * interval + draw(st.integers(1, interval))
    tasks, ways = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    group_of = np.repeat(np.arange(groups), rng.integers(1, 4, groups))
    group_of = np.stack([rng.permutation(group_of) for _ in range(tasks)])
    labels = group_of * ways + rng.integers(0, ways, group_of.shape)
    # Half of the answers are right: guesses alone would hardly ever be.
    guesses = rng.integers(0, groups * ways, (tasks, sets, group_of.shape[1]))
    progressive = np.where(rng.random(guesses.shape) < 0.5, labels[:, None], guesses)
    logits = (
        rng.normal(size=(*labels.shape, groups * ways))
        + 9 * np.eye(groups * ways)[progressive[:, -1]]
    )
    return make_trace(logits, labels, group_of, progressive, np.arange(sets) // interval + 1)
