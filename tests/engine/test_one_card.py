"""There is one way to a card: 'cfsl eval' and a bench write the same file for the same run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cfsl.cards.card import read_card
from cfsl.cards.consistency import contradictions
from cfsl.engine.bench import planned, run_plan
from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.local import LocalWorker
from cfsl.runs.run_spec import RunSpec

_TASKS = ("--data", "glyphs-400x20", "--type", "B", "--nss", "2", "--n-way", "2", "--tasks", "5")
_SMALL = ("--set", "net.widths=[4,4]")
pytestmark = pytest.mark.usefixtures("glyphs")


def benched(run: RunSpec, training: Path | None = None) -> Path:
    """Do a run as a bench does it, two tasks at a time, and return the path of its card."""
    bench_folder = BenchFolder(Path("bench"))
    if training is not None:
        shutil.copytree(training, bench_folder.training(run.train))
    plan = planned([run.replace(piece=2)], bench_folder)
    ending = run_plan(
        plan, bench_folder, lambda: LocalWorker(bench_folder, lambda e: None), lambda e: None
    )
    assert not ending.failed
    return bench_folder.card(run)


def assert_same_card(one: Path, other: Path) -> None:
    """Compare two cards but for their circumstances and the names of their files."""
    contents = []
    for path in (one, other):
        card = read_card(path)
        assert not list(contradictions(card))
        content = card.content()
        del content["circumstances"], content["answers"]["file"]
        contents.append(content)
    assert contents[0] == contents[1]


@pytest.mark.parametrize("learner", ["pixel_nn", "random_embedding"])
def test_eval_and_bench_write_the_same_card_of_a_learner_that_is_not_trained(run, learner):
    small = _SMALL if learner == "random_embedding" else ()
    made = run("eval", learner, *_TASKS, *small, "--out", "eval.json")
    assert made.code == 0, made.err
    assert_same_card(
        Path("eval.json"), benched(RunSpec(**read_card(Path("eval.json")).run.content()))
    )


def test_eval_and_bench_write_the_same_card_of_a_training_run_and_its_ensemble(run):
    trained = ("--epochs", "2", "--updates", "2", "--out", "trained")
    made = run("train", "protonet", *_TASKS[:-2], *_SMALL, *trained)
    assert made.code == 0, made.err
    options = ("--checkpoint", "trained", "--ensemble", "2", "--progressive")
    made = run("eval", "protonet", *_TASKS, *_SMALL, *options, "--out", "eval.json")
    assert made.code == 0, made.err

    spec = RunSpec(**read_card(Path("eval.json")).run.content())
    assert spec.train is not None
    assert_same_card(Path("eval.json"), benched(spec, Path("trained")))


def test_weights_of_another_training_are_named_by_their_file_and_the_card_holds_together(run):
    trained = ("--epochs", "1", "--updates", "1", "--out", "trained")
    assert run("train", "protonet", *_TASKS[:-2], *_SMALL, *trained).code == 0
    other = (*_SMALL, "--set", "metric=cosine", "--checkpoint", "trained")
    made = run("eval", "protonet", *_TASKS, *other, "--out", "eval.json")
    assert made.code == 0, made.err

    card = read_card(Path("eval.json"))
    assert card.run.train is None
    assert len(card.run.weights.sha256) == 64
    assert RunSpec(**card.run.content()).hash == card.run_hash
    assert not list(contradictions(card))


def test_a_run_states_where_its_weights_come_from_only_if_it_has_to(run):
    made = run("eval", "pixel_nn", *_TASKS, "--json")
    assert not {"weights", "sampler"} & json.loads(made.out)["run"].keys()
