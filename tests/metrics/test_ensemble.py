"""Ensembles: hand-computed means, and what holds for every ensemble."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cfsl.errors import SpecError, UnknownNameError
from cfsl.harness.trace import Trace
from cfsl.metrics.accuracy import task_accuracies
from cfsl.metrics.answers import NO_ANSWER, log_probabilities, predicted_labels
from cfsl.metrics.ensemble import AVERAGES, ensemble
from cfsl.metrics.memory import atm

INF = np.inf


def trace(logits, *, state=(0, 400), bookkeeping=(0, 40), labels=None, progressive=None) -> Trace:
    """Return a trace of tasks with one support set of 1000 bytes."""
    logits = np.asarray(logits, np.float32)
    tasks, targets, _ = logits.shape
    labels = np.zeros((tasks, targets)) if labels is None else labels
    return Trace(
        logits=logits,
        labels=np.asarray(labels, np.int64),
        groups=np.zeros((tasks, targets), np.int64),
        state_bytes=np.tile(np.array(state, np.int64), (tasks, 1)),
        bookkeeping_bytes=np.tile(np.array(bookkeeping, np.int64), (tasks, 1)),
        support_bytes=1000,
        progressive=progressive,
        seen=None if progressive is None else np.ones(1, np.int64),
    )


def one(*logits: float) -> Trace:
    return trace([[logits]])


def test_logits_are_averaged():
    mean = ensemble(
        [trace([[[1, 5], [0, 3]], [[2, 2], [-4, 0]]]), trace([[[3, -1], [1, 0]], [[0, 1], [4, 9]]])]
    )
    assert mean.logits.tolist() == [[[2, 2], [0.5, 1.5]], [[1, 1.5], [0, 4.5]]]
    assert mean.logits.dtype == np.float32


def test_probabilities_are_averaged_and_given_as_logs():
    members = [one(*np.log([0.5, 0.25, 0.25])), one(*(np.log([0.1, 0.8, 0.1]) + 7))]
    mean = ensemble(members, "probabilities")
    assert np.exp(mean.logits[0, 0]) == pytest.approx([0.3, 0.525, 0.175], rel=1e-6)


def test_the_two_averages_differ_where_one_member_is_loud():
    members = [one(12, 0), one(0, 2), one(0, 2)]
    assert predicted_labels(ensemble(members).logits).item() == 0
    assert predicted_labels(ensemble(members, "probabilities").logits).item() == 1


def test_a_label_impossible_for_one_member_is_impossible_by_logits_and_not_by_probabilities():
    members = [one(-INF, 0, -INF), one(0, 0, -INF)]
    assert ensemble(members).logits.tolist() == [[[-INF, 0, -INF]]]
    assert np.exp(ensemble(members, "probabilities").logits[0, 0]).tolist() == pytest.approx(
        [0.25, 0.75, 0]
    )


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize(
    "diverged", [(np.nan, 0), (np.nan, np.nan), (INF, 0), (-INF, -INF), (INF, -INF)]
)
def test_a_member_without_an_answer_takes_the_answer_away(average, diverged):
    for members in (
        [one(*diverged), one(3, 1)],
        [one(3, 1), one(*diverged)],
        [one(-INF, 1), one(*diverged)],
    ):
        assert predicted_labels(ensemble(members, average).logits).item() == NO_ANSWER


def test_members_that_hold_different_labels_to_be_possible_have_no_common_logits():
    members = [one(-INF, 0), one(0, -INF)]
    assert predicted_labels(ensemble(members).logits).item() == NO_ANSWER
    assert np.exp(ensemble(members, "probabilities").logits).ravel() == pytest.approx([0.5, 0.5])


def test_memory_adds_up():
    members = [
        dataclasses.replace(
            one(0, 1), state_bytes=np.array([kept]), bookkeeping_bytes=np.array([counts])
        )
        for kept, counts in (([100, 400], [10, 40]), ([0, 200], [0, 8]))
    ]
    together = ensemble(members)
    assert together.state_bytes.tolist() == [[100, 600]]
    assert together.bookkeeping_bytes.tolist() == [[10, 48]]
    assert atm(together).total == pytest.approx(sum(atm(member).total for member in members))
    assert atm(together).total == pytest.approx(0.6)


def test_answers_on_the_way_are_left_out():
    progressive = trace([[[0, 1]]], progressive=np.ones((1, 1, 1), np.int32))
    together = ensemble([progressive, progressive])
    assert together.progressive is None and together.seen is None


def test_labels_stay_with_their_targets():
    logits = np.eye(3, dtype=np.float32)[None]
    assert task_accuracies(ensemble([trace(logits, labels=[[0, 1, 2]])] * 2)).tolist() == [1.0]


def test_what_is_no_ensemble_is_refused():
    with pytest.raises(SpecError, match="at least one member"):
        ensemble([])
    with pytest.raises(UnknownNameError, match="no average 'median'"):
        ensemble([one(0, 1)], "median")
    others = [
        one(0, 1, 2),
        trace([[[0, 1]], [[0, 1]]]),
        trace([[[0, 1]]], labels=[[1]]),
        dataclasses.replace(one(0, 1), groups=np.ones((1, 1), np.int64)),
        dataclasses.replace(one(0, 1), support_bytes=999),
        trace([[[0, 1]]], state=(0, 1, 2), bookkeeping=(0, 0, 0)),
    ]
    for other in others:
        with pytest.raises(SpecError, match="member 1 ran other tasks than member 0"):
            ensemble([one(0, 1), other])


LOGITS = st.one_of(st.floats(-1e4, 1e4, width=32), st.floats(-3.0, 3.0, width=32), st.just(-INF))


@st.composite
def member_lists(draw) -> list[Trace]:
    shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 4)))
    batches = draw(
        st.lists(arrays.arrays(np.float32, shape, elements=LOGITS), min_size=1, max_size=5)
    )
    return [trace(logits, state=(0, draw(st.integers(40, 999)))) for logits in batches]


def probabilities(member: Trace) -> np.ndarray:
    return np.exp([log_probabilities(task) for task in member.logits])


@given(member_lists())
def test_an_ensemble_of_one_is_that_one(members):
    alone = ensemble(members[:1])
    assert np.array_equal(alone.logits, members[0].logits)
    assert np.array_equal(alone.state_bytes, members[0].state_bytes)
    logs = ensemble(members[:1], "probabilities")
    assert np.allclose(probabilities(logs), probabilities(members[0]), atol=1e-6, equal_nan=True)
    assert np.array_equal(logs.state_bytes, members[0].state_bytes)


@given(member_lists(), st.sampled_from(sorted(AVERAGES)), st.randoms())
def test_the_order_of_the_members_does_not_matter(members, average, random):
    shuffled = random.sample(members, len(members))
    here, there = ensemble(members, average), ensemble(shuffled, average)
    assert np.array_equal(here.logits, there.logits, equal_nan=True)
    assert np.array_equal(here.state_bytes, there.state_bytes)


@given(member_lists(), st.integers(1, 7))
def test_an_ensemble_of_equals_answers_as_each_of_them(members, count):
    same = [members[0]] * count
    assert np.array_equal(ensemble(same).logits, members[0].logits)
    logs = ensemble(same, "probabilities")
    assert np.allclose(probabilities(logs), probabilities(members[0]), atol=1e-6, equal_nan=True)
    assert np.array_equal(logs.state_bytes, count * members[0].state_bytes)


@given(member_lists())
def test_averaged_probabilities_are_probabilities(members):
    mean = probabilities(ensemble(members, "probabilities"))
    expected = np.mean([probabilities(member) for member in members], axis=0)
    assert np.allclose(mean, expected, atol=1e-6, equal_nan=True)
