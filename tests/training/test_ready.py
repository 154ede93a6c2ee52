"""Ready weights can be tried at once, and never answer for classes that they were trained on."""

from __future__ import annotations

import json

import pytest
import torch

import cfsl
from cfsl.errors import CheckpointError
from cfsl.learners.champion.champion import Champion
from cfsl.nets.small_resnet import SmallResNet
from cfsl.spec import TaskSpec
from cfsl.training import ready
from cfsl.training.checkpoint import read_notes
from cfsl.training.loop import train
from cfsl.training.run_folder import best_weights, read_weights
from cfsl.training.training_spec import Schedule, Training

NAME = "glyphs-60x12"


@pytest.fixture(scope="module")
def data(data_root):
    return cfsl.load(NAME)


@pytest.fixture(scope="module")
def run_folder(data, tmp_path_factory):
    """A champion with its usual net, after one update."""
    folder = tmp_path_factory.mktemp("run")
    training = Training(
        episodes=TaskSpec.few_shot(n_way=4, k_target=2),
        turns=True,
        validation=TaskSpec.type_b(nss=2, n_way=2),
        validation_tasks=1,
        schedule=Schedule(epochs=1, updates=1),
    )
    train(Champion(), training, data, folder)
    return folder


@pytest.fixture
def shipped(data, run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(ready, "_FOLDER", tmp_path)
    ready.make_ready(run_folder, data, tmp_path / "champion-glyphs.safetensors")
    return tmp_path / "champion-glyphs.safetensors"


def test_a_ready_file_holds_weights_notes_and_classes_and_no_head(shipped, run_folder, data):
    notes = read_notes(shipped)
    assert notes["classes"] == list(data.splits["train"])
    assert notes["identity"] == read_notes(run_folder / "last.safetensors")["identity"]
    kept, learned = read_weights(shipped), best_weights(run_folder)
    assert all(
        torch.equal(kept["params"][name], tensor) for name, tensor in learned["params"].items()
    )
    assert not any(name.startswith("head.") for name in kept["params"])


def test_they_are_found_by_data_set_and_by_name(shipped, data):
    assert ready.ready_for("champion", data) == shipped
    assert ready.ready_for("protonet", data) is None
    assert ready.ready_named("champion", "glyphs") == shipped
    with pytest.raises(
        CheckpointError,
        match=r"no ready weights 'glyph'; did you mean 'glyphs'\? There are: glyphs",
    ):
        ready.ready_named("champion", "glyph")
    with pytest.raises(
        CheckpointError, match="protonet has no ready weights 'glyphs'; there are none"
    ):
        ready.ready_named("protonet", "glyphs")


SMALL_TASKS = ("--nss", "2", "--n-way", "2")


def evaluated(run, *words):
    """Evaluate the champion on small tasks, by the command line."""
    return run("eval", "champion", "--data", NAME, *SMALL_TASKS, *words)


def test_eval_takes_them_by_itself(shipped, run):
    result = evaluated(run, "--type", "B", "--tasks", "2", "--json")
    assert result.code == 0, result.err
    card = json.loads(result.out)
    assert card["checkpoint"]["classes"]

    by_name = ("--checkpoint", "ready:glyphs")
    named = evaluated(run, "--type", "B", "--tasks", "2", "--json", *by_name)
    assert json.loads(named.out)["metrics"]["accuracy"] == card["metrics"]["accuracy"]


def test_they_are_refused_on_classes_that_they_were_trained_on(shipped, run, data, tmp_path):
    ready.require_unseen(shipped, data, "test")
    for split in ("train", "all"):
        with pytest.raises(CheckpointError, match="was trained on"):
            ready.require_unseen(shipped, data, split)

    splits = data.splits
    swapped = {"train": splits["test"], "val": splits["val"], "test": splits["train"]}
    (tmp_path / "swapped.json").write_text(json.dumps(swapped))
    result = evaluated(run, "--splits", str(tmp_path / "swapped.json"), "--tasks", "1")
    assert result.code == 2
    count = len(splits["train"])
    assert f"was trained on {count} of the {count} classes of {NAME}/test" in result.err


def test_weights_of_another_net_are_refused(shipped, run):
    tiny = SmallResNet(widths=(4, 8)).model_dump_json()
    result = evaluated(run, "--set", f"net={tiny}", "--tasks", "1")
    assert result.code == 2
    assert "needs it in shape" in result.err


@pytest.mark.parametrize("name", ["omniglot", "glyphs"])
def test_the_weights_that_come_with_the_package_are_the_champions(name):
    path = ready.ready_named("champion", name)
    wanted, kept = Champion().init((1, 28, 28), torch.Generator()), read_weights(path)
    for part in ("params", "stats"):
        shapes = {name: tuple(tensor.shape) for name, tensor in kept[part].items()}
        assert shapes == {name: tuple(tensor.shape) for name, tensor in wanted[part].items()}
    notes = read_notes(path)
    assert len(notes["classes"]) == 1200
    settings = Champion().model_dump(mode="json")
    assert notes["identity"]["learner"] == {"class": "Champion", **settings}


@pytest.mark.slow
def test_they_know_characters_that_they_have_never_seen(omniglot, run):
    answer = run("eval", "champion", "--data", "omniglot", "--tasks", "20", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["metrics"]["accuracy"]["mean"] > 0.95
    refused = run("eval", "champion", "--data", "omniglot", "--split", "train", "--tasks", "1")
    assert refused.code == 2
    assert "was trained on 1200 of the 1200 classes of omniglot/train" in refused.err
