"""Training: exact after any crash, refused for another run, bounded on disk."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import cfsl
from cfsl.errors import CheckpointError, LearnerError
from cfsl.learners.protonet import ProtoNet
from cfsl.learners.tune import pretrain_tune
from cfsl.nets.convnet import conv4
from cfsl.spec import TaskSpec
from cfsl.training.augment import augment
from cfsl.training.checkpoint import read_checkpoint, write_checkpoint
from cfsl.training.loop import LAST, _begin, _one_update, best_weights, learning_rate, read_weights, train
from cfsl.training.objective import objective_of
from cfsl.training.recipes import RECIPES, recipe_for
from cfsl.training.spec import Augmentation, Schedule, Training

DATA = "glyphs-90x12"
SMALL = ProtoNet(net=conv4(8, "conv-act-norm"), metric="cosine")
TASK = TaskSpec.few_shot(n_way=5, k_target=2)
TRAINING = Training(
    episodes=TASK.replace(n_way=8),
    turns=True,
    validation=TASK,
    validation_tasks=10,
    augmentation=Augmentation(degrees=5.0, shift=1.0, elastic=0.03),
    schedule=Schedule(epochs=6, updates=6, optimizer="adamw", rate=3e-3, decay="cosine", warmup=5, average=0.9, keep=2),
)


@pytest.fixture(scope="module")
def data(data_root):
    return cfsl.load(DATA)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(folder / LAST)[0]


def same_run(a: Path, b: Path) -> bool:
    left, right = tensors(a), tensors(b)
    histories = [
        [(e["epoch"], e["loss"], e["accuracy"]) for e in read_checkpoint(f / LAST)[1]["history"]] for f in (a, b)
    ]
    return (
        left.keys() == right.keys()
        and all(left[name].equal(right[name]) for name in left)
        and histories[0] == histories[1]
    )


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    train(SMALL, TRAINING, data, folder)
    return folder


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from pathlib import Path
import cfsl
from test_training_rules import DATA, SMALL, TRAINING
from cfsl.training.loop import train
train(SMALL, TRAINING, cfsl.load(DATA), Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_with_the_same_bits(data, finished, tmp_path):
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    generator, kills = random.Random(4), 0
    for _ in range(60):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        started = time.monotonic()
        wait = generator.uniform(2.0, 4.0)
        while process.poll() is None and time.monotonic() - started < wait:
            time.sleep(0.02)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        assert not (tmp_path / LAST).exists() or read_checkpoint(tmp_path / LAST)
        if kills == 20:
            assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 0
            break
    assert kills >= 1 and process.returncode in (0, -signal.SIGKILL)
    assert same_run(finished, tmp_path)


def test_a_run_stopped_after_every_epoch_ends_with_the_same_bits(data, finished, tmp_path):
    class StopError(Exception):
        pass

    def stop(update, loss, epoch):
        if epoch is not None:
            raise StopError

    for _ in range(6):
        with pytest.raises(StopError):
            train(SMALL, TRAINING, data, tmp_path, stop)
    train(SMALL, TRAINING, data, tmp_path)
    assert same_run(finished, tmp_path)


def test_another_seed_is_another_run(data, finished, tmp_path):
    train(SMALL, TRAINING.replace(seed=1), data, tmp_path)
    assert not same_run(finished, tmp_path)


def test_a_checkpoint_of_another_run_is_refused_with_the_difference(data, finished):
    with pytest.raises(CheckpointError, match=r"training\.schedule\.rate is 0.003 there and 0.01 here"):
        train(SMALL, TRAINING.replace(schedule=TRAINING.schedule.replace(rate=0.01)), data, finished)


def test_only_the_best_epochs_and_the_last_state_stay_on_disk(finished):
    names = sorted(path.name for path in finished.iterdir())
    history = read_checkpoint(finished / LAST)[1]["history"]
    best = sorted(sorted(history, key=lambda e: (-e["accuracy"], e["epoch"]))[:2], key=lambda e: e["epoch"])
    assert names == [*(f"epoch-{e['epoch']:04d}.safetensors" for e in best), LAST]


def test_the_best_weights_are_those_of_the_best_epoch(data, finished):
    history = read_checkpoint(finished / LAST)[1]["history"]
    from cfsl.harness.evaluate import evaluate
    from cfsl.metrics.accuracy import task_accuracies

    validation = cfsl.Tasks(data, TASK, split="val", numbers=range(10))
    accuracy = task_accuracies(evaluate(SMALL, validation, best_weights(finished), law=False)).mean()
    assert accuracy == pytest.approx(max(e["accuracy"] for e in history), abs=0.021)
    with pytest.raises(CheckpointError, match="6 epochs"):
        best_weights(finished, rank=6)


def test_training_lowers_the_loss(finished):
    history = read_checkpoint(finished / LAST)[1]["history"]
    assert history[-1]["loss"] < 0.9 * history[0]["loss"]


def test_pretraining_learns_all_training_classes_and_leaves_a_usable_backbone(data, tmp_path):
    learner = pretrain_tune(net=conv4(8, "conv-norm-act"))
    training = Training(
        episodes=TASK,
        iid=True,
        validation=TASK,
        validation_tasks=3,
        schedule=Schedule(epochs=2, updates=15, batch=32, optimizer="adamw", rate=1e-2),
    )
    history = train(learner, training, data, tmp_path)
    assert history[1].loss < history[0].loss
    meta = read_weights(tmp_path)
    assert meta["params"]["head.weight"].shape == (len(data.splits["train"]), 8)


def test_patience_ends_a_run_that_no_longer_improves(data, tmp_path):
    frozen = TRAINING.schedule.replace(rate=1e-12, patience=2, average=0.0, epochs=20, weight_decay=0.0)
    assert len(train(SMALL, TRAINING.replace(schedule=frozen), data, tmp_path)) < 20


@pytest.mark.parametrize("content", [b"", b"garbage" * 50])
def test_a_damaged_checkpoint_is_named(data, finished, tmp_path, content):
    (tmp_path / LAST).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"last\.safetensors is not a whole checkpoint"):
        train(SMALL, TRAINING, data, tmp_path)


def test_a_truncated_checkpoint_is_named(finished, tmp_path):
    whole = (finished / LAST).read_bytes()
    (tmp_path / LAST).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError):
        read_checkpoint(tmp_path / LAST)


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_checkpoint(tmp_path / "file" / "x.safetensors", {"a": torch.zeros(2)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_learner_that_cannot_be_trained_says_so(data, tmp_path):
    from cfsl.learners.chance import Chance

    with pytest.raises(LearnerError, match="Chance is not trained on tasks"):
        train(Chance(), TRAINING, data, tmp_path)


def test_learning_rates_by_hand():
    schedule = Schedule(epochs=2, updates=50, rate=1.0, decay="cosine", warmup=10)
    assert learning_rate(schedule, 0) == pytest.approx(0.1)
    assert learning_rate(schedule, 50) == pytest.approx(0.5)
    assert learning_rate(schedule, 99) == pytest.approx(0.5 * (1 + np.cos(np.pi * 0.99)))
    assert learning_rate(Schedule(), 12345) == 1e-3


def test_the_paper_recipe_is_the_published_protocol():
    training = recipe_for("paper", "tasks", TaskSpec.type_b(nss=3))
    schedule = training.schedule
    assert (schedule.epochs, schedule.updates, schedule.batch, schedule.keep) == (250, 500, 1, 5)
    assert (schedule.optimizer, schedule.rate, schedule.weight_decay, schedule.decay) == (
        "adam",
        1e-3,
        1e-4,
        "constant",
    )
    assert training.episodes == training.validation and training.validation_tasks == 600
    assert training.augmentation == Augmentation()
    assert all({"tasks", "pretraining"} == set(recipes) for recipes in RECIPES.values())


def test_no_augmentation_changes_nothing_and_quarter_turns_are_shared_by_a_class():
    images = torch.rand(12, 1, 9, 9)
    classes = torch.arange(12) // 4
    assert augment(images, classes, Augmentation(), torch.Generator()) is images
    turned = augment(images, classes, Augmentation(quarter_turns=True), torch.Generator().manual_seed(5))
    for c in range(3):
        turns = {
            k for k in range(4) for i in range(4 * c, 4 * c + 4) if turned[i].equal(torch.rot90(images[i], k, (1, 2)))
        }
        assert len(turns) == 1


def test_a_shift_moves_the_image_by_about_that_much():
    image = torch.zeros(200, 1, 21, 21)
    image[:, :, 10, 10] = 1
    moved = augment(
        image, torch.zeros(200, dtype=torch.int64), Augmentation(shift=2.0), torch.Generator().manual_seed(0)
    )
    rows = (moved.sum(dim=(1, 3)) * torch.arange(21)).sum(dim=1) / moved.sum(dim=(1, 2, 3)).clamp(min=1e-6)
    assert float(rows.std()) == pytest.approx(2.0 / 3**0.5, abs=0.15)
    assert float((rows - 10).abs().max()) < 2.01


def test_the_average_of_the_weights_moves_a_tenth_of_the_way(data):
    objective = objective_of(SMALL, TRAINING, data)
    run = _begin(objective, TRAINING)
    before = {name: tensor.clone() for name, tensor in run.average.items()}
    _one_update(run, objective, TRAINING.schedule)
    for name, old in before.items():
        assert torch.allclose(run.average[name], 0.9 * old + 0.1 * run.params[name].detach(), atol=1e-6)
    moved = [not run.params[name].equal(run.average[name]) for name in before]
    assert all(moved) and run.learned()["params"]["scale"] is run.average["scale"]
