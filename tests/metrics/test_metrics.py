"""What the scores promise: by hand, by closed forms, and by properties that every trace has."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cfsl.errors import SpecError
from cfsl.harness.trace import Trace
from cfsl.metrics.accuracy import (
    SeedSummary,
    Summary,
    over_seeds,
    summarise,
    task_accuracies,
    task_cross_entropies,
)
from cfsl.metrics.calibration import expected_calibration_error
from cfsl.metrics.forgetting import (
    backward_transfer,
    forgetting,
    group_accuracies,
    group_matrix,
    progressive_accuracy,
)
from cfsl.metrics.memory import atm
from cfsl.metrics.paired import compare
from cfsl.metrics.student import critical_t95, two_sided_p
from make_traces import make_trace, traces

NAN, INF = math.nan, math.inf


def answering(labels, right_per_task) -> Trace:
    """A trace in which the first targets of each task, so many, get their label, others do not."""
    labels = np.array(labels)
    answers = np.where(
        np.arange(labels.shape[1]) < np.array(right_per_task)[:, None], labels, 1 - labels
    )
    return make_trace(np.eye(2)[answers], labels)


def keeping(state, bookkeeping, support_bytes: int) -> Trace:
    """A trace of a learner that keeps so many bytes."""
    trace = make_trace(np.zeros((len(state), 1, 2)), np.zeros((len(state), 1)))
    kept = {
        "state_bytes": np.array(state, np.int64),
        "bookkeeping_bytes": np.array(bookkeeping, np.int64),
    }
    return replace(trace, **kept, support_bytes=support_bytes)


# Two tasks of three support sets: the first two show group 0 (labels 0 and 1), the last shows
# group 1 (labels 2 and 3). Right answers are those that stand under their own label.
BY_HAND = make_trace(
    labels=[[0, 1, 2, 3], [3, 1, 0, 2]],
    groups=[[0, 0, 1, 1], [1, 0, 0, 1]],
    progressive=[
        [
            [0, 1, 0, 1],  # group 0: 2 of 2
            [0, 0, 0, 0],  # group 0: 1 of 2
            [2, 3, 2, 3],  # group 0: 0 of 2, group 1: 2 of 2
        ],
        [
            [1, 1, 1, 1],  # group 0: 1 of 2
            [0, 1, 0, 0],  # group 0: 2 of 2
            [3, 1, 3, 0],  # group 0: 1 of 2, group 1: 1 of 2
        ],
    ],
    logits=[np.eye(4)[[2, 3, 2, 3]], np.eye(4)[[3, 1, 3, 0]]],
    seen=[1, 1, 2],
)


# --- accuracy and cross-entropy


def test_accuracy_is_the_part_of_a_tasks_targets_that_got_their_label():
    assert task_accuracies(BY_HAND).tolist() == [0.5, 0.5]
    assert task_accuracies(answering([[0, 1, 0, 1], [1, 1, 1, 0]], [3, 1])).tolist() == [0.75, 0.25]


def test_cross_entropy_is_minus_the_log_of_the_probability_of_the_true_label():
    trace = make_trace(
        [[[math.log(3), 0.0], [0.0, math.log(4)]], [[0.0, 0.0], [7.0, 7.0]]], [[0, 0], [1, 0]]
    )
    by_hand = [(math.log(4 / 3) + math.log(5)) / 2, math.log(2)]
    # log 3 is rounded to float32.
    assert task_cross_entropies(trace) == pytest.approx(by_hand, rel=1e-7)


def test_cross_entropy_neither_overflows_nor_rounds_to_nothing():
    trace = make_trace([[[3e38, -3e38], [20.0, 0.0]]], [[0, 0]])
    assert task_cross_entropies(trace) == pytest.approx([math.log1p(math.exp(-20)) / 2], rel=1e-6)
    wrong_by_far = make_trace([[[1e4, 0.0]]], [[1]])
    assert task_cross_entropies(wrong_by_far).tolist() == [1e4]


def test_impossible_labels_take_no_probability():
    trace = make_trace([[[0.0, 0.0, -INF, -INF]], [[-INF, 5.0, -INF, -INF]]], [[1], [1]])
    assert task_cross_entropies(trace) == pytest.approx([math.log(2), 0.0], abs=1e-15)


def test_calling_the_true_label_impossible_costs_infinitely_much():
    assert task_cross_entropies(make_trace([[[0.0, -INF], [0.0, 0.0]]], [[1, 0]])).tolist() == [INF]


@pytest.mark.parametrize("row", [[NAN, 1.0], [NAN, NAN], [-INF, -INF], [INF, 0.0]])
@pytest.mark.parametrize("label", [0, 1])
def test_a_target_without_an_answer_is_wrong_whatever_its_label(row, label):
    trace = make_trace([[row]], [[label]])
    assert task_accuracies(trace).tolist() == [0.0]
    assert task_cross_entropies(trace).tolist() == [INF]
    assert expected_calibration_error(trace) == 1.0


@given(traces())
def test_accuracy_is_between_0_and_1_and_cross_entropy_above_0(trace):
    assert ((task_accuracies(trace) >= 0) & (task_accuracies(trace) <= 1)).all()
    assert (task_cross_entropies(trace) > 0).all() or trace.logits.shape[2] == 1


@given(traces(), st.integers(-1000, 1000))
def test_adding_a_constant_to_all_logits_of_a_target_changes_nothing(trace, constant):
    # Whole numbers, so that adding does not round.
    trace = replace(trace, logits=trace.logits.round())
    moved = trace.logits.copy()
    moved[:, 0] += constant
    moved = replace(trace, logits=moved)
    assert np.array_equal(task_accuracies(moved), task_accuracies(trace))
    assert np.array_equal(task_cross_entropies(moved), task_cross_entropies(trace))
    assert expected_calibration_error(moved) == expected_calibration_error(trace)


@given(traces(), st.randoms(use_true_random=False))
def test_no_score_depends_on_the_order_of_targets(trace, random):
    order = random.sample(range(trace.labels.shape[1]), trace.labels.shape[1])
    shuffled = replace(
        trace,
        logits=trace.logits[:, order],
        labels=trace.labels[:, order],
        groups=trace.groups[:, order],
        progressive=trace.progressive[:, :, order],
    )
    scores = [
        task_accuracies,
        task_cross_entropies,
        group_matrix,
        group_accuracies,
        expected_calibration_error,
    ]
    for score in scores:
        np.testing.assert_allclose(score(shuffled), score(trace), rtol=1e-12)
    for score in (forgetting, backward_transfer):
        assert np.array_equal(score(shuffled), score(trace))
    assert np.array_equal(
        progressive_accuracy(shuffled).per_task, progressive_accuracy(trace).per_task
    )


# --- summaries


def test_a_summary_has_mean_deviation_and_interval_over_tasks():
    summary = summarise(np.array([0.2, 0.4, 0.9]))
    assert (summary.mean, summary.count) == (pytest.approx(0.5), 3)
    assert summary.std == pytest.approx(math.sqrt(0.13))  # (0.09 + 0.01 + 0.16) / 2
    assert summary.ci95 == pytest.approx(4.30265273 * math.sqrt(0.13) / math.sqrt(3))


def test_over_seeds_counts_the_same_but_is_another_type():
    seeds, tasks = over_seeds([0.2, 0.4, 0.9]), summarise(np.array([0.2, 0.4, 0.9]))
    assert [getattr(seeds, field.name) for field in fields(seeds)] == [
        getattr(tasks, field.name) for field in fields(tasks)
    ]
    assert seeds != tasks and not isinstance(seeds, Summary) and not isinstance(tasks, SeedSummary)


def test_one_task_or_one_seed_has_a_mean_and_no_deviation():
    assert summarise(np.array([0.25])) == Summary(mean=0.25, std=None, ci95=None, count=1)
    assert over_seeds([0.25]) == SeedSummary(mean=0.25, std=None, ci95=None, count=1)


def test_infinite_values_have_an_infinite_mean_and_no_deviation():
    assert summarise(np.array([1.0, INF])) == Summary(mean=INF, std=None, ci95=None, count=2)


def test_nothing_and_nan_are_refused():
    with pytest.raises(SpecError, match="at least one task"):
        summarise(np.array([]))
    with pytest.raises(SpecError, match="1 of 2 seed values are NaN"):
        over_seeds([0.5, NAN])


TABLE = {
    1: 12.7062,
    2: 4.3027,
    3: 3.1824,
    4: 2.7764,
    5: 2.5706,
    9: 2.2622,
    10: 2.2281,
    30: 2.0423,
    100: 1.9840,
}


@pytest.mark.parametrize(("dof", "t"), [*TABLE.items(), (599, 1.96393), (1_000_000, 1.95997)])
def test_critical_values_are_those_of_the_tables(dof, t):
    assert critical_t95(dof) == pytest.approx(t, abs=6e-5)


@given(st.floats(0, 1e6))
def test_p_is_that_of_the_closed_forms_for_one_two_and_four_degrees_of_freedom(t):
    root = math.sqrt(2 + t * t)
    assert two_sided_p(t, 1) == pytest.approx(2 / math.pi * math.atan2(1, t), rel=1e-12)
    # 1 - t / root, without cancellation.
    assert two_sided_p(t, 2) == pytest.approx(2 / (root * (root + t)), rel=1e-12)
    z = t / math.sqrt(4 + t * t)
    assert two_sided_p(t, 4) == pytest.approx(1 - 1.5 * z + 0.5 * z**3, abs=1e-12)


def test_p_keeps_its_digits_far_out():
    # By scipy 1.17: 2 * t.sf(30, 599).
    assert two_sided_p(30.0, 599) == pytest.approx(2.042159208e-121, rel=1e-8)
    assert two_sided_p(-5.0, 599) == pytest.approx(7.539734713e-07, rel=1e-8)
    assert (two_sided_p(0.0, 7), two_sided_p(INF, 7), two_sided_p(1e-200, 7)) == (1.0, 0.0, 1.0)


# --- two learners

FIVE_TASKS = np.tile([0, 1] * 10, (5, 1))


def test_comparing_two_learners_is_a_paired_t_test():
    a, b = answering(FIVE_TASKS, [14, 12, 9, 16, 13]), answering(FIVE_TASKS, [10, 10, 10, 10, 10])
    result = compare(a, b)  # differences 0.2, 0.1, -0.05, 0.3, 0.15; scipy 1.17: ttest_1samp
    assert (result.difference, result.count) == (pytest.approx(0.14), 5)
    assert result.p == pytest.approx(0.07285505961, rel=1e-9)
    assert result.ci95 == pytest.approx(0.14 / 2.4188315916278085 * 2.7764451052, rel=1e-9)
    assert result.ci95 > result.difference  # as p > 0.05 says


def test_the_better_learner_has_the_positive_difference():
    a, b = answering(FIVE_TASKS, [14, 12, 9, 16, 13]), answering(FIVE_TASKS, [10, 10, 10, 10, 10])
    there, back = compare(a, b), compare(b, a)
    assert back.difference == -there.difference < 0
    assert (back.p, back.ci95) == (there.p, there.ci95)


def test_pairing_sees_what_is_hidden_between_easy_and_hard_tasks():
    easy_and_hard = [1, 5, 9, 13, 17]
    a = answering(FIVE_TASKS, [right + 2 for right in easy_and_hard[:4]] + [20])
    assert compare(a, answering(FIVE_TASKS, easy_and_hard)).p < 0.001


def test_learners_that_never_differ_are_equals():
    trace = answering(FIVE_TASKS, [1, 5, 9, 13, 17])
    result = compare(trace, trace)
    assert (result.difference, result.ci95, result.p) == (0.0, 0.0, 1.0)


def test_a_difference_that_is_the_same_on_all_tasks_gets_the_exact_p_of_flipping_signs():
    a, b = answering(FIVE_TASKS, [3, 7, 11, 15, 19]), answering(FIVE_TASKS, [1, 5, 9, 13, 17])
    assert compare(a, b).p == 2 / 2**5


def test_one_task_proves_nothing():
    a, b = answering(FIVE_TASKS[:1], [20]), answering(FIVE_TASKS[:1], [0])
    result = compare(a, b)
    assert (result.difference, result.ci95, result.p, result.count) == (1.0, None, 1.0, 1)


def test_traces_of_different_tasks_are_not_compared():
    trace = answering(FIVE_TASKS, [10] * 5)
    other_labels, other_groups = FIVE_TASKS.copy(), np.zeros_like(FIVE_TASKS)
    other_labels[3] = other_labels[3, ::-1]
    other_groups[1, 0] = 1
    with pytest.raises(SpecError, match=r"targets of 1 of 5 tasks differ \(first: task 3\)"):
        compare(trace, answering(other_labels, [10] * 5))
    with pytest.raises(SpecError, match=r"first: task 1\)"):
        compare(trace, replace(trace, groups=other_groups))
    with pytest.raises(SpecError, match="5 tasks of 20 targets, the other 4 tasks of 20 targets"):
        compare(trace, answering(FIVE_TASKS[:4], [10] * 4))


# --- memory


@pytest.mark.parametrize("nss", [3, 10])
def test_atm_of_protonets_on_omniglot_b_is_a_prototype_against_an_image(nss):
    prototypes = [64 * 5 * sets * 4 for sets in range(nss + 1)]
    counts = [5 * sets * 8 for sets in range(nss + 1)]
    state = [vectors + numbers for vectors, numbers in zip(prototypes, counts, strict=True)]
    result = atm(keeping([state] * 2, [counts] * 2, support_bytes=5 * nss * 784 * 4))
    assert result.representation == pytest.approx(0.0816, abs=5e-5)
    assert result.bookkeeping == pytest.approx(8 / (784 * 4))
    assert result.total == pytest.approx((64 * 4 + 8) / (784 * 4))
    assert result.curve == pytest.approx(np.linspace(0, result.total, nss + 1))


@pytest.mark.parametrize(("nss", "by_hand"), [(3, 5.41), (10, 1.67)])
def test_atm_of_a_whole_adapted_network_shrinks_with_the_number_of_support_sets(nss, by_hand):
    adapted = (62832 + 49 * 5 * nss) * 4
    result = atm(
        keeping([[0] + [adapted] * nss], [[0] * (nss + 1)], support_bytes=5 * nss * 784 * 4)
    )
    assert result.total == pytest.approx(by_hand, abs=0.005)
    assert (result.representation, result.bookkeeping) == (result.total, 0.0)


def test_atm_is_the_peak_at_any_boundary_and_each_part_has_its_own():
    result = atm(keeping([[10, 80, 50]], [[10, 0, 40]], support_bytes=100))
    assert (result.total, result.representation, result.bookkeeping) == (0.8, 0.8, 0.4)
    assert result.curve.tolist() == [0.1, 0.8, 0.5]


def test_atm_is_the_mean_over_tasks_of_their_peaks():
    result = atm(keeping([[0, 80, 0], [0, 0, 40]], [[0] * 3] * 2, support_bytes=100))
    assert result.total == pytest.approx(0.6)
    assert result.curve == pytest.approx([0, 0.4, 0.2])


# --- forgetting


def test_progressive_accuracy_by_hand():
    result = progressive_accuracy(BY_HAND)
    assert result.per_task.tolist() == [[1, 0.5, 0.5], [0.5, 1, 0.5]]
    assert result.mean.tolist() == [0.75, 0.75, 0.5]


def test_progressive_accuracy_counts_targets_and_not_groups():
    trace = make_trace(
        np.eye(2)[[[0, 0, 0, 0]]], [[0, 0, 0, 1]], [[0, 0, 0, 1]], [[[0, 0, 0, 0]] * 2], [1, 2]
    )
    assert progressive_accuracy(trace).mean.tolist() == [1.0, 0.75]


def test_group_matrix_by_hand():
    np.testing.assert_array_equal(group_matrix(BY_HAND), [[0.75, NAN], [0.75, NAN], [0.25, 0.75]])


def test_group_accuracies_are_those_of_the_final_answers():
    assert group_accuracies(BY_HAND).tolist() == [0.25, 0.75]
    assert group_accuracies(replace(BY_HAND, progressive=None, seen=None)).tolist() == [0.25, 0.75]


def test_forgetting_by_hand_is_from_the_best_to_the_last_in_each_task():
    assert forgetting(BY_HAND).tolist() == [1 - 0, 1 - 0.5]


def test_backward_transfer_by_hand_is_from_the_groups_last_support_set_to_the_end():
    assert backward_transfer(BY_HAND).tolist() == [0 - 0.5, 0.5 - 1]


def test_forgetting_and_backward_transfer_are_means_over_all_groups_but_the_last():
    trace = make_trace(
        logits=np.eye(3)[[[0, 0, 2]]],
        labels=[[0, 1, 2]],
        groups=[[0, 1, 2]],
        # Group 0: right, wrong, right. Group 1: right before it is shown (which does not count),
        # wrong, wrong. Group 2: right.
        progressive=[[[0, 1, 0], [1, 0, 1], [0, 0, 2]]],
        seen=[1, 2, 3],
    )
    assert forgetting(trace).tolist() == [0.0]  # (1 - 1 + 0 - 0) / 2
    assert backward_transfer(trace).tolist() == [0.0]
    lost = replace(trace, progressive=np.array([[[0, 1, 0], [1, 1, 1], [0, 0, 2]]], np.int32))
    assert forgetting(lost).tolist() == [0.5]
    assert backward_transfer(lost).tolist() == [-0.5]


def test_learning_after_the_fact_is_backward_transfer_and_negative_forgetting():
    trace = make_trace(np.eye(2)[[[0, 1]]], [[0, 1]], [[0, 1]], [[[1, 0], [0, 1]]], [1, 2])
    assert (backward_transfer(trace).tolist(), forgetting(trace).tolist()) == ([1.0], [-1.0])


@given(traces())
def test_forgetting_and_transfer_are_what_the_definitions_say_written_out(trace):
    tasks, sets, _ = trace.progressive.shape
    seen = trace.seen.tolist()
    assume(seen[-1] > 1)
    for task in range(tasks):
        lost, moved = [], []
        for group in range(seen[-1] - 1):
            of = trace.groups[task] == group
            a = [
                np.mean(trace.progressive[task, s][of] == trace.labels[task][of])
                for s in range(sets)
            ]
            first = seen.index(group + 1)
            last = max(s for s in range(sets) if seen[s] == group + 1)
            lost.append(max(a[first:-1]) - a[-1])
            moved.append(a[-1] - a[last])
        assert forgetting(trace)[task] == pytest.approx(np.mean(lost), abs=1e-12)
        assert backward_transfer(trace)[task] == pytest.approx(np.mean(moved), abs=1e-12)


@given(traces(min_groups=2))
def test_a_learner_whose_answers_never_change_once_a_group_is_shown_forgets_nothing(trace):
    fixed = trace.progressive.copy()
    for group in range(trace.seen[-1]):
        first = trace.seen.tolist().index(group + 1)
        of = np.broadcast_to((trace.groups == group)[:, None], fixed.shape)
        of_and_after = of & (np.arange(fixed.shape[1]) >= first)[:, None]
        fixed[of_and_after] = np.broadcast_to(fixed[:, first : first + 1], fixed.shape)[
            of_and_after
        ]
    fixed = replace(trace, progressive=fixed)
    assert not forgetting(fixed).any() and not backward_transfer(fixed).any()


@given(traces(min_groups=2))
def test_what_was_lost_since_a_group_was_shown_is_at_most_what_was_lost_since_it_was_known_best(
    trace,
):
    assert (forgetting(trace) >= -backward_transfer(trace) - 1e-12).all()
    assert (np.abs(forgetting(trace)) <= 1).all()


@given(traces())
def test_answers_about_groups_not_yet_shown_do_not_count(trace):
    shown = trace.groups[:, None] < trace.seen[:, None]
    blind = replace(trace, progressive=np.where(shown, trace.progressive, -1).astype(np.int32))
    np.testing.assert_array_equal(group_matrix(blind), group_matrix(trace))
    assert np.array_equal(
        progressive_accuracy(blind).per_task, progressive_accuracy(trace).per_task
    )
    assert np.array_equal(forgetting(blind), forgetting(trace))


@given(traces())
def test_the_end_of_the_progress_is_the_final_score(trace):
    final = replace(
        trace,
        logits=(9 * np.eye(trace.logits.shape[2])[trace.progressive[:, -1]]).astype(np.float32),
    )
    np.testing.assert_allclose(progressive_accuracy(final).per_task[:, -1], task_accuracies(final))
    np.testing.assert_allclose(group_matrix(final)[-1], group_accuracies(final))


@given(traces())
def test_all_progress_is_between_0_and_1(trace):
    result, matrix = progressive_accuracy(trace), group_matrix(trace)
    assert ((result.per_task >= 0) & (result.per_task <= 1)).all()
    shown = np.arange(matrix.shape[1]) < trace.seen[:, None]
    assert ((matrix[shown] >= 0) & (matrix[shown] <= 1)).all() and np.isnan(matrix[~shown]).all()


def test_with_a_single_group_there_is_nothing_to_forget():
    trace = make_trace(np.eye(2)[[[0]]], [[0]], [[0]], [[[0], [1]]], [1, 1])
    assert forgetting(trace) is None and backward_transfer(trace) is None
    assert progressive_accuracy(trace).mean.tolist() == [1.0, 0.0]


def test_traces_that_cannot_tell_are_refused_with_the_reason():
    with pytest.raises(SpecError, match="final answers only; run it again"):
        forgetting(replace(BY_HAND, progressive=None))
    with pytest.raises(SpecError, match="2 groups, but only 1 were ever shown"):
        group_matrix(replace(BY_HAND, seen=np.array([1, 1, 1])))
    with pytest.raises(SpecError, match="task 1 has no target of group 0"):
        group_accuracies(replace(BY_HAND, groups=np.array([[0, 0, 1, 1], [1, 1, 1, 1]])))


# --- calibration


def test_calibration_error_by_hand():
    # Confidences are 0.9 and 0.6, always for label 0.
    sure, unsure = [math.log(9), 0.0], [math.log(1.5), 0.0]
    trace = make_trace([[sure, sure], [unsure, unsure]], [[0, 1], [0, 0]])
    assert expected_calibration_error(trace) == pytest.approx(
        (2 * abs(0.5 - 0.9) + 2 * abs(1 - 0.6)) / 4
    )
    # In a single bin, too little confidence makes up for too much: accuracy and mean confidence
    # are 3/4.
    assert expected_calibration_error(trace, bins=1) == pytest.approx(0, abs=1e-7)


def test_calibration_bins_hold_their_upper_edge():
    # Confidences 1/2 and 0.6 lie in (0, 1/2] and (1/2, 1].
    trace = make_trace([[[0.0, 0.0], [math.log(1.5), 0.0]]], [[0, 1]])
    assert expected_calibration_error(trace, bins=2) == pytest.approx((0.5 + 0.6) / 2)


def test_who_is_sure_and_right_is_calibrated():
    assert expected_calibration_error(make_trace([[[0.0, -INF], [-INF, 3.0]]], [[0, 1]])) == 0.0


# --- without torch


def test_scores_can_be_recomputed_without_torch():
    names = ["accuracy", "answers", "calibration", "forgetting", "memory", "paired", "student"]
    modules = ", ".join(f"cfsl.metrics.{name}" for name in names)
    code = f"import {modules}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
