"""What a step does is what one would do by hand: the same learner, weights, tasks and numbers."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cfsl.cards.answers_file import read_answers
from cfsl.cards.card import read_card
from cfsl.data.manifest import Manifest
from cfsl.data.tasks import Tasks
from cfsl.engine.bench import planned, run_plan
from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.estimate import Times, eval_images, expected_task, expected_training
from cfsl.engine.local import LocalWorker
from cfsl.engine.perform import perform
from cfsl.engine.steps import learned_together, partial_steps_of, steps_of
from cfsl.errors import LearnerError, SpecError
from cfsl.harness.evaluate import Conditions, evaluate, evaluate_variants
from cfsl.learners.base import first_weights
from cfsl.metrics.answers import answers_of, rounded
from cfsl.metrics.ensemble import ensemble
from cfsl.presets.cells import Request, cells_of, runs_of
from cfsl.runs.run_spec import RunSpec, built
from cfsl.spec import Noise, Occlusion, TaskSpec
from cfsl.training.checkpoint import read_notes
from cfsl.training.run_folder import LAST, best_weights

CHARACTERS = (1, 28, 28)


def run_of(glyphs, learner: str, changes: dict[str, Any] | None = None, **fields) -> RunSpec:
    """Return a cell of the suite 'smoke', changed."""
    changed = {learner: changes} if changes else None
    request = Request(
        "smoke", "smoke", learners=(learner,), columns=("B3",), tasks=3, changes=changed
    )
    return runs_of(cells_of(request))[0].replace(**{"piece": 2, **fields})


def done(runs: RunSpec | list[RunSpec], folder: Path) -> BenchFolder:
    bench_folder, runs = BenchFolder(folder), runs if isinstance(runs, list) else [runs]
    ending = run_plan(
        planned(runs, bench_folder),
        bench_folder,
        lambda: LocalWorker(bench_folder, lambda e: None),
        lambda e: None,
    )
    assert not ending.failed
    return bench_folder


def stored(run: RunSpec, bench_folder: BenchFolder, tasks: Tasks):
    path = bench_folder.card(run)
    return read_answers(path.with_name(read_card(path).answers.file), Manifest.of(tasks))


def assert_same(found, expected) -> None:
    for name in ("predicted", "log_likelihood", "confidence", "state_bytes", "progressive"):
        assert np.array_equal(getattr(found, name), getattr(rounded(answers_of(expected)), name)), (
            name
        )


@pytest.fixture(scope="module")
def trained(glyphs, tmp_path_factory) -> tuple[RunSpec, BenchFolder]:
    """Return a cell whose two best epochs also answer together, done."""
    run = run_of(glyphs, "anil")
    return run, done(run, tmp_path_factory.mktemp("trained"))


def test_a_trained_cell_is_the_best_epoch_and_the_ensemble_of_the_best_by_hand(
    glyphs, trained, tmp_path
):
    run, bench_folder = trained
    tasks = Tasks(glyphs, run.task, numbers=range(3))
    folder, learner = bench_folder.training(run.train), built(run.learner)
    members = [
        evaluate(learner, tasks, best_weights(folder, rank), progressive=True)
        for rank in range(run.members)
    ]
    assert run.members == 2 and not np.array_equal(members[0].logits, members[1].logits)
    found = stored(run, bench_folder, tasks)
    assert_same(found[""], members[0])
    assert_same(found["ensemble"], ensemble(members, "logits"))
    other = run.replace(average="probabilities")
    shutil.copytree(bench_folder.path / "training", tmp_path / "training")
    assert_same(
        stored(other, done(other, tmp_path), tasks)["ensemble"], ensemble(members, "probabilities")
    )


def test_an_ensemble_card_names_its_epochs_best_first_and_counts_the_operations_of_all(trained):
    run, bench_folder = trained
    card = read_card(bench_folder.card(run)).content()
    history = read_notes(bench_folder.training(run.train) / LAST)["history"]
    ranked = sorted(history, key=lambda epoch: -epoch["accuracy"])
    assert (
        card["ensemble"]["epochs"] == [epoch["epoch"] for epoch in ranked[:2]]
        and card["ensemble"]["members"] == 2
    )
    for part in ("adaptation", "prediction"):
        assert card["ensemble"]["macs"][part] == 2 * card["macs"][part] > 0


NARROW = {"net.widths": [8, 8]}
CORRUPTIONS = [Noise(fraction=0.2), Occlusion(fraction=0.3), Noise(fraction=0.4)]


def spoiled(run: RunSpec) -> list[RunSpec]:
    """Return instance tests that differ in how their targets are corrupted."""
    return [
        run.replace(task=TaskSpec.instance(2, 3, corruption=one), progressive=False)
        for one in CORRUPTIONS
    ]


def done_by_hand(glyphs, run: RunSpec):
    """Return the tasks of an untrained cell, and what they come to, run alone."""
    tasks, learner = Tasks(glyphs, run.task, numbers=range(3)), built(run.learner)
    meta = first_weights(learner, CHARACTERS, run.task, torch.Generator().manual_seed(run.seed))
    return tasks, evaluate(learner, tasks, meta)


@pytest.mark.parametrize("learner", ["init_tune", "random_embedding"])
def test_corrupted_cells_are_learned_once_for_all_and_are_what_they_are_alone(
    glyphs, learner, tmp_path, monkeypatch
):
    run = run_of(glyphs, learner, NARROW)
    seen, observe = [], type(built(run.learner)).observe

    def counted(*given):
        seen.append(1)
        return observe(*given)

    monkeypatch.setattr(type(built(run.learner)), "observe", counted)
    bench_folder = done(spoiled(run), tmp_path)
    learning = len(seen)
    answers = []
    for one in spoiled(run):
        tasks, alone = done_by_hand(glyphs, one)
        answers.append(stored(one, bench_folder, tasks)[""])
        assert_same(answers[-1], alone)
    assert not np.array_equal(answers[0].log_likelihood, answers[2].log_likelihood)
    once = (len(seen) - learning) // len(CORRUPTIONS)
    for_costs = (
        len(CORRUPTIONS) * 2 * 2
    )  # on every card, a task of two support sets for operations and one for memory
    assert learning == once + for_costs


def test_of_cells_that_are_learned_together_only_what_is_missing_or_damaged_is_done_again(
    glyphs, tmp_path
):
    runs = spoiled(run_of(glyphs, "init_tune", NARROW))
    bench_folder, steps = (
        BenchFolder(tmp_path),
        [step for step in planned(runs, BenchFolder(tmp_path)).steps if step.kind == "piece"],
    )
    for step in steps:
        perform(step, bench_folder, lambda progress: None)
    pieces = [bench_folder.partial_result(single) for single in steps[0].singles]
    first = [path.read_bytes() for path in pieces]
    pieces[0].write_bytes(b"damaged")
    pieces[2].write_bytes(b"damaged, too")
    kept = pieces[1].stat().st_mtime_ns
    looked = planned(runs, bench_folder, look_only=True)
    assert len(looked.aside) == 2 and pieces[0].exists() and pieces[2].exists()
    plan = planned(runs, bench_folder)
    assert [str(path) in damage for path, damage in zip(pieces[::2], plan.aside, strict=True)] == [
        True,
        True,
    ]
    again = [step for step in plan.steps if step.kind == "piece"]
    assert [single.spec for step in again for single in step.singles] == runs[::2]
    perform(steps[0], bench_folder, lambda progress: None)  # as a bench would that planned before
    assert pieces[1].stat().st_mtime_ns == kept
    for path, content in zip(pieces, first, strict=True):
        assert same_traces(path.read_bytes(), content)


def same_traces(one: bytes, other: bytes) -> bool:
    """Compare pieces; how long they took may differ."""
    left, right = (dict(np.load(io.BytesIO(content))) for content in (one, other))
    return left.keys() == right.keys() and all(
        np.array_equal(left[name], right[name]) for name in left if name != "seconds"
    )


def test_members_of_cells_that_are_learned_together_answer_as_they_do_alone(
    glyphs, trained, tmp_path
):
    run, bench_folder = trained
    shutil.copytree(bench_folder.path / "training", tmp_path / "training")
    runs = [
        run.replace(task=run.task.replace(corruption=one), progressive=False) for one in CORRUPTIONS
    ]
    together, learner = done(runs, tmp_path), built(run.learner)
    for one in runs:
        tasks = Tasks(glyphs, one.task, numbers=range(3))
        members = [
            evaluate(learner, tasks, best_weights(bench_folder.training(run.train), rank))
            for rank in range(2)
        ]
        found = stored(one, together, tasks)
        assert_same(found[""], members[0])
        assert_same(found["ensemble"], ensemble(members, "logits"))


@pytest.mark.parametrize("conditions", [Conditions(law=False), Conditions(isolate=True)])
def test_trusted_and_isolated_learners_are_asked_about_every_variant(glyphs, conditions):
    run = run_of(glyphs, "random_embedding", NARROW)
    learner, variants = (
        built(run.learner),
        [Tasks(glyphs, one.task, numbers=range(2)) for one in spoiled(run)],
    )
    meta = first_weights(learner, CHARACTERS, run.task, torch.Generator().manual_seed(0))
    for tasks, trace in zip(
        variants, evaluate_variants(conditions, learner, variants, meta), strict=True
    ):
        assert np.array_equal(trace.logits, evaluate(learner, tasks, meta).logits)


def test_only_corrupted_tasks_with_the_same_support_sets_are_learned_together(glyphs):
    run = run_of(glyphs, "random_embedding", NARROW)
    noisy, hidden = (Tasks(glyphs, one.task, numbers=range(2)) for one in spoiled(run)[:2])
    learner = built(run.learner)
    for others, what in (
        ([replace(hidden, seed=1)], "nothing but the corruption"),
        ([replace(hidden, numbers=range(3))], "nothing but the corruption"),
        ([replace(hidden, spec=hidden.spec.replace(nss=3, cci=3))], "nothing but the corruption"),
        ([replace(hidden, spec=hidden.spec.replace(corruption=None))], "run alone"),
    ):
        with pytest.raises(SpecError, match=what):
            evaluate_variants(Conditions(), learner, [noisy, *others], {})
    with pytest.raises(LearnerError, match="one by one"):
        evaluate_variants(Conditions(progressive=True), learner, [noisy, hidden], {})


def test_learning_together_is_expected_to_take_less_time_than_learning_again(glyphs):
    runs = spoiled(run_of(glyphs, "init_tune", tasks=10, piece=10))
    times, together = Times("", {}), learned_together(steps_of(runs))[0]
    alone = sum(times.seconds(partial_steps_of(run)[0]) for run in runs)
    assert alone / 3 < times.seconds(together) < alone


@pytest.fixture(scope="module")
def usual(glyphs, tmp_path_factory):
    """Return the answers of an untrained cell."""
    run = run_of(glyphs, "random_embedding", NARROW)
    return stored(
        run, done(run, tmp_path_factory.mktemp("usual")), Tasks(glyphs, run.task, numbers=range(3))
    )[""]


@pytest.mark.parametrize("fields", [{}, {"seed": 1}, {"split": "val"}, {"task_seed": 4}])
def test_an_untrained_cell_has_the_weights_of_its_seed_and_the_tasks_of_its_split_and_seed(
    glyphs, usual, tmp_path, fields
):
    run = run_of(glyphs, "random_embedding", NARROW, **fields)
    bench_folder = done(run, tmp_path)
    tasks = Tasks(glyphs, run.task, split=run.split, seed=run.task_seed, numbers=range(3))
    learner = built(run.learner)
    meta = first_weights(learner, CHARACTERS, run.task, torch.Generator().manual_seed(run.seed))
    assert_same(
        stored(run, bench_folder, tasks)[""], evaluate(learner, tasks, meta, progressive=True)
    )
    same = np.array_equal(usual.log_likelihood, stored(run, bench_folder, tasks)[""].log_likelihood)
    assert same == (not fields)


def test_the_expected_time_grows_with_tasks_members_and_images(glyphs):
    run = run_of(glyphs, "init_tune", tasks=10, piece=10)
    times, piece = Times("", {}), partial_steps_of(run)[0]
    assert times.seconds(piece) == pytest.approx(10 * expected_task(run))
    assert times.seconds(partial_steps_of(run.replace(members=3))[0]) == pytest.approx(
        3 * times.seconds(piece)
    )
    longer = run.replace(task=run.task.replace(nss=6))
    assert (
        expected_task(longer) / expected_task(run)
        == eval_images(longer.task) / eval_images(run.task)
        == 2
    )


def test_more_steps_and_more_images_to_replay_are_expected_to_take_longer(glyphs):
    task = TaskSpec.type_b(3)
    usual, more, plain = (
        run_of(glyphs, learner, changes, task=task)
        for learner, changes in (
            ("pretrain_tune_replay", {"samples": 10}),
            ("pretrain_tune_replay", {"samples": 10, "inner.steps": 120}),
            ("protonet", None),
        )
    )
    # 15 support images and twice 10 replayed ones, three passes a step, and 75 targets.
    assert expected_task(more) / expected_task(usual) == pytest.approx(
        (3 * 120 * 35 + 75) / (3 * 5 * 35 + 75)
    )
    assert expected_task(plain.replace(task=TaskSpec.type_b(6))) == pytest.approx(
        2 * expected_task(plain)
    )


def test_a_larger_network_is_expected_to_take_longer(glyphs):
    usual = run_of(glyphs, "pretrain_tune")
    wide = usual.learner.changes | {"net": {**usual.learner.settings["net"], "widths": [96] * 4}}
    changed = usual.train.replace(learner=usual.train.learner.replace(changes=wide))
    assert 3 < expected_training(changed) / expected_training(usual.train) < 4


def test_what_was_run_in_a_folder_corrects_the_expected_times(trained, tmp_path):
    run, bench_folder = trained
    seconds = read_card(bench_folder.card(run)).circumstances.seconds
    pieces = [step for step in steps_of([run]) if step.kind == "piece"]
    assert sum(Times.of(bench_folder).seconds(piece) for piece in pieces) == pytest.approx(seconds)
    assert (
        "corrected" in Times.of(bench_folder).source
        and "corrected" not in Times.of(BenchFolder(tmp_path / "none")).source
    )
