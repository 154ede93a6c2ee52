"""Training: exact after any crash, refused for another run, bounded on disk."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import cfsl
from cfsl.errors import CheckpointError, LearnerError, SpecError
from cfsl.harness.devices import available_devices
from cfsl.learners.base import Moment
from cfsl.learners.chance import Chance
from cfsl.learners.maml.maml_high import MamlHigh
from cfsl.learners.maml.maml_low import MamlLow
from cfsl.learners.protonet import ProtoNet
from cfsl.learners.registry import LEARNERS
from cfsl.learners.tune import pretrain_tune
from cfsl.metrics.accuracy import summarise, task_accuracies
from cfsl.nets import DenseNet, SqueezeConv
from cfsl.nets.convnet import conv4
from cfsl.nets.layers import batch_norm
from cfsl.spec import TaskSpec
from cfsl.training import loop
from cfsl.training import objective as objective_module
from cfsl.training.augment import augment
from cfsl.training.checkpoint import read_checkpoint, write_checkpoint
from cfsl.training.events import Epoch, Reports, Saved, Started, Update
from cfsl.training.loop import train
from cfsl.training.objective import objective_of
from cfsl.training.recipes import RECIPES, recipe_for
from cfsl.training.run_folder import (
    LAST,
    best_epochs,
    best_of,
    best_weights,
    identity_of,
    is_finished,
    is_whole_and_finished,
    notes_of_run,
    read_weights,
)
from cfsl.training.tensorboard import tensorboard_log
from cfsl.training.training_spec import Augmentation, Schedule, Training
from cfsl.training.training_state import TrainingState, learning_rate

DATA = "glyphs-90x12"
SMALL = ProtoNet(net=conv4(8, "conv-act-norm"), metric="cosine")
TASK = TaskSpec.few_shot(n_way=5, k_target=2)
TRAINING = Training(
    episodes=TASK.replace(n_way=8),
    turns=True,
    validation=TASK,
    validation_tasks=10,
    augmentation=Augmentation(degrees=5.0, shift=1.0, elastic=0.03),
    schedule=Schedule(
        epochs=6,
        updates=6,
        optimizer="adamw",
        rate=3e-3,
        decay="cosine",
        warmup=5,
        average=0.9,
        keep=2,
    ),
)


@pytest.fixture(scope="module")
def data(data_root):
    return cfsl.load(DATA)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(folder / LAST)[0]


def history_of(folder: Path) -> list[tuple[int, float, float]]:
    """Return all of a run's epochs that does not depend on the machine."""
    history = notes_of_run(folder)["history"]
    return [(epoch["epoch"], epoch["loss"], epoch["accuracy"]) for epoch in history]


def same_run(a: Path, b: Path) -> bool:
    left, right = tensors(a), tensors(b)
    same_tensors = left.keys() == right.keys() and all(left[n].equal(right[n]) for n in left)
    return same_tensors and history_of(a) == history_of(b)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    train(SMALL, TRAINING, data, folder)
    return folder


def whole(folder: Path, data, training: Training = TRAINING) -> bool:
    return is_whole_and_finished(folder, training, SMALL, data.fingerprint)


def renoted(path: Path, change) -> None:
    """Change what is noted in a checkpoint."""
    tensors, notes = read_checkpoint(path)
    change(notes)
    write_checkpoint(path, tensors, notes)


def test_a_run_is_whole_if_all_its_files_are_of_one_run(data, finished, tmp_path):
    def other_history(notes) -> None:
        notes["history"][0]["loss"] += 1.0

    def other_seed(notes) -> None:
        notes["identity"]["training"]["seed"] = 7

    assert whole(finished, data) and not whole(tmp_path, data)
    with pytest.raises(
        CheckpointError,
        match=r"last\.safetensors is of another run: training\.seed is 0 there and 1 here",
    ):
        whole(finished, data, TRAINING.replace(seed=1))
    best = f"epoch-{best_epochs(finished, 1)[0]:04d}.safetensors"
    for name, change, says in (
        (best, other_history, f"{best} is an epoch of another run than {LAST}"),
        (best, other_seed, f"{best} is of another run: training.seed is 7 there and 0 here"),
        (LAST, other_seed, f"{LAST} is of another run: training.seed is 7 there and 0 here"),
    ):
        copy = tmp_path / change.__name__ / name
        shutil.copytree(finished, copy)
        renoted(copy / name, change)
        with pytest.raises(CheckpointError) as refused:
            whole(copy, data)
        assert str(refused.value) == f"{copy / says}"


# In half the bits.


def in_bfloat16(training: Training) -> Training:
    return training.replace(schedule=training.schedule.replace(precision="bfloat16"))


@pytest.mark.parametrize("iid", [False, True])
def test_maps_in_bfloat16_change_the_loss_a_little_and_what_is_learned_is_float32(data, iid):
    training = TRAINING.replace(iid=iid, turns=not iid)
    losses, gradients = [], []
    for one in (training, in_bfloat16(training)):
        objective = objective_of(SMALL, one, data)
        run = TrainingState.begin(objective, one)
        loss, stats = objective.loss(run.params, run.stats, 0)
        gradients.append(torch.autograd.grad(loss, [run.params["block2.conv.weight"]])[0])
        losses.append(float(loss.detach()))
        assert loss.dtype == gradients[-1].dtype == torch.float32
        assert {tensor.dtype for tensor in stats.values()} == {torch.float32}
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    one, other = (gradient.flatten() for gradient in gradients)
    assert functional.cosine_similarity(one, other, dim=0) > 0.98


def test_the_maps_of_images_in_bfloat16_are_bfloat16_and_their_features_are_not(monkeypatch):
    seen = []

    def watched(params, stats):
        norm = batch_norm(params, stats)
        return lambda name, maps: seen.append(maps.dtype) or norm(name, maps)

    monkeypatch.setattr("cfsl.nets.base.batch_norm", watched)
    params, stats = SMALL.net.init((1, 28, 28), torch.Generator().manual_seed(0))
    images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    features, _ = SMALL.net.training_features(params, stats, images.bfloat16())
    assert seen == [torch.bfloat16] * 4 and features.dtype == torch.float32
    SMALL.net.training_features(params, stats, images)
    assert seen[4:] == [torch.float32] * 4


def test_runs_keep_the_hash_that_they_had_before_there_was_a_precision():
    stated = TRAINING.model_dump(mode="json")["schedule"]
    assert "precision" not in stated and Schedule(**stated) == TRAINING.schedule
    assert in_bfloat16(TRAINING).model_dump(mode="json")["schedule"] == {
        **stated,
        "precision": "bfloat16",
    }
    assert Training.from_json(in_bfloat16(TRAINING).canonical_json()) == in_bfloat16(TRAINING)


class _OwnWeights:
    """Trains, but not through a network of cfsl."""

    def init(self, image_shape, generator):
        return {"params": {"weight": torch.zeros(28 * 28, 8)}, "stats": {}}

    def episode_loss(self, params, stats, batch, *, turns, moment):
        return (batch.target_images.flatten(2) @ params["weight"]).sum(), stats


def test_a_learner_that_cannot_take_bfloat16_is_told_what_to_do(data):
    params = {"weight": torch.zeros(28 * 28, 8)}
    loss, _ = objective_of(_OwnWeights(), TRAINING, data).loss(params, {}, 0)
    assert loss == 0
    says = r"_OwnWeights fails on images in bfloat16 .* --precision float32"
    with pytest.raises(LearnerError, match=says):
        objective_of(_OwnWeights(), in_bfloat16(TRAINING), data).loss(params, {}, 0)


def test_a_run_in_bfloat16_learns_counts_the_same_operations_and_goes_on_with_the_same_bits(
    data, finished, tmp_path
):
    training = in_bfloat16(TRAINING)
    train(SMALL, training, data, tmp_path / "whole")
    plain, short = notes_of_run(finished), notes_of_run(tmp_path / "whole")
    assert short["step_macs"] == plain["step_macs"]
    assert short["history"][-1]["loss"] == pytest.approx(plain["history"][-1]["loss"], rel=0.1)
    assert short["history"][-1]["loss"] != plain["history"][-1]["loss"]

    def stop(event) -> None:
        if isinstance(event, Saved) and event.epoch.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(SMALL, training, data, tmp_path / "halved", stop)
    train(SMALL, training, data, tmp_path / "halved")
    assert same_run(tmp_path / "whole", tmp_path / "halved")


def test_an_embedding_under_an_inner_loop_may_be_bfloat16_but_not_the_steps_themselves(data):
    task = TaskSpec.type_b(nss=2, n_way=3)
    training = in_bfloat16(Training(episodes=task, validation=task, validation_tasks=2))
    high = MamlHigh(
        embedding=DenseNet(filters=8, blocks=1, stages=1), net=SqueezeConv(filters=4), steps=2
    )
    objective = objective_of(high, training, data)
    run = TrainingState.begin(objective, training)
    assert objective.loss(run.params, run.stats, 0)[0].isfinite()
    low = objective_of(MamlLow(net=conv4(8, "conv-norm-act"), steps=2), training, data)
    with pytest.raises(
        LearnerError, match="maml_low need float32: train it with --precision float32"
    ):
        low.loss(TrainingState.begin(low, training).params, {}, 0)


def started_again(folder: Path, data) -> int:
    """Let a child of this process train, and return its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(SMALL, TRAINING, data, folder)
            code = 0
        finally:
            os._exit(code)
    return child


def killed(child: int, moment: float, folder: Path, *, writing: bool) -> bool:
    """Kill a child after so many seconds, or as soon after as it is writing a file.

    Return False if it ended before.
    """
    start = time.monotonic()
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(5e-4)
        is_late = time.monotonic() - start >= moment
        if is_late and (not writing or any(folder.glob(f".*.{child}.part"))):
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            return os.WIFSIGNALED(status)
    return False


def kill_again_and_again(folder: Path, kills: int) -> None:
    """Train in children that are killed, run after run; print what happened as JSON.

    This is for a process of its own, with one thread: only such a process can be forked. It trains
    for an update first, so that its children find everything imported and are killed while they
    train, not while they start.
    """
    torch.set_num_threads(1)
    data, generator = cfsl.load(DATA), random.Random(4)

    brief = TRAINING.replace(schedule=TRAINING.schedule.replace(epochs=1, updates=1))
    train(SMALL, brief, data, folder / "run-0")
    shutil.rmtree(folder / "run-0")

    start = time.monotonic()
    os.waitpid(started_again(folder / "run-0", data), 0)
    length, runs, moments, torn = time.monotonic() - start, 1, [], 0

    while len(moments) < kills or (folder / f"run-{runs}").exists():
        run = folder / f"run-{runs}"
        moment = generator.uniform(0, length) if len(moments) < kills else float("inf")
        child = started_again(run, data)
        if killed(child, moment, run, writing=len(moments) % 2 == 1):
            moments.append(moment)
            torn += any(run.glob(f".*.{child}.part"))
            assert not (run / LAST).exists() or read_checkpoint(run / LAST)
            assert len([*run.glob("epoch-*.safetensors")]) <= TRAINING.schedule.keep + 1
        else:
            runs += 1

    sys.stdout.write(json.dumps({"runs": runs, "kills": len(moments), "torn": torn}))


@pytest.mark.parametrize(("kills", "torn"), [(4, 0), pytest.param(20, 3, marks=pytest.mark.long)])
def test_runs_killed_again_and_again_end_with_the_same_bits_and_leave_nothing_behind(
    data, finished, tmp_path, kills, torn
):
    code = f"import test_training as t; t.kill_again_and_again(t.Path({str(tmp_path)!r}), {kills})"
    folders = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | folders, stdout=subprocess.PIPE, check=True
    )
    happened = json.loads(done.stdout)
    assert happened["kills"] == kills and happened["torn"] >= torn, happened
    assert len([*tmp_path.iterdir()]) == happened["runs"]
    for run in tmp_path.iterdir():
        assert same_run(finished, run)
        assert sorted(path.name for path in run.iterdir()) == sorted(
            path.name for path in finished.iterdir()
        )
        for path in finished.glob("epoch-*"):
            here, there = read_checkpoint(path)[0], read_checkpoint(run / path.name)[0]
            assert here.keys() == there.keys()
            assert all(here[name].equal(there[name]) for name in here)


class StopError(Exception):
    """Stops a run from within."""


def test_a_run_stopped_after_every_epoch_ends_with_the_same_bits(data, finished, tmp_path):
    def stop(event):
        if isinstance(event, Saved):
            raise StopError

    for epoch in range(6):
        with pytest.raises(StopError):
            train(SMALL, TRAINING, data, tmp_path, stop)
        assert len(notes_of_run(tmp_path)["history"]) == epoch + 1
    train(SMALL, TRAINING, data, tmp_path)
    assert same_run(finished, tmp_path)


@pytest.mark.parametrize(
    ("optimizer", "memory"),
    [
        ("adam", {"exp_avg", "exp_avg_sq", "step"}),
        ("sgd", {"momentum_buffer"}),
        ("muon", {"momentum", "mean", "square", "step"}),
    ],
)
def test_every_optimizer_goes_on_with_its_memory(data, tmp_path, optimizer, memory):
    training = TRAINING.replace(
        schedule=TRAINING.schedule.replace(epochs=2, optimizer=optimizer, average=0.0)
    )

    def stop(event):
        if isinstance(event, Saved):
            raise StopError

    train(SMALL, training, data, tmp_path / "whole")
    with pytest.raises(StopError):
        train(SMALL, training, data, tmp_path / "parts", stop)
    train(SMALL, training, data, tmp_path / "parts")
    assert same_run(tmp_path / "whole", tmp_path / "parts")
    slots = {
        path.split("/")[2] for path in tensors(tmp_path / "whole") if path.startswith("optimizer/")
    }
    assert slots == memory


def test_a_checkpoint_holds_everything_that_a_run_is_made_of(data, finished):
    saved, notes = read_checkpoint(finished / LAST)
    run = TrainingState.begin(objective_of(SMALL, TRAINING, data), TRAINING)
    for part, wanted in (("params", run.params), ("stats", run.stats), ("average", run.average)):
        assert {path for path in saved if path.startswith(f"{part}/")} == {
            f"{part}/{name}" for name in wanted
        }
    memory = {path for path in saved if path.startswith("optimizer/")}
    slots = ("exp_avg", "exp_avg_sq", "step")
    assert memory == {f"optimizer/{i}/{slot}" for i in range(len(run.params)) for slot in slots}
    assert notes["update"] == 36 and [epoch["epoch"] for epoch in notes["history"]] == list(
        range(6)
    )
    assert all(set(epoch) == {"epoch", "loss", "accuracy", "seconds"} for epoch in notes["history"])
    assert notes["identity"]["training"] == TRAINING.model_dump(mode="json")
    assert notes["identity"]["data"]["fingerprint"] == data.fingerprint


def test_what_a_killed_process_left_is_removed_and_nothing_else(data, finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    kept = {path.name for path in tmp_path.iterdir()}
    worst = ({f"epoch-{epoch:04d}.safetensors" for epoch in range(6)} - kept).pop()
    for name in (".last.safetensors.17.part", worst, "epoch-0006.safetensors", "notes.txt"):
        (tmp_path / name).write_bytes(b"half of it")
    train(SMALL, TRAINING, data, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept | {"notes.txt"}
    other = TRAINING.replace(seed=5)
    (tmp_path / ".last.safetensors.17.part").touch()
    with pytest.raises(CheckpointError, match=r"training\.seed is 0 there and 5 here"):
        train(SMALL, other, data, tmp_path)
    assert (tmp_path / ".last.safetensors.17.part").exists()


def test_those_who_watch_are_told_everything_in_order(data, finished, tmp_path):
    events, saved_before = [], []

    def watch(event):
        events.append(event)
        if isinstance(event, Epoch | Saved):
            last = tmp_path / LAST
            saved_before.append(len(read_checkpoint(last)[1]["history"]) if last.exists() else 0)

    training = TRAINING.replace(schedule=TRAINING.schedule.replace(batch=2, epochs=2))
    history = train(SMALL, training, data, tmp_path, watch)
    assert [type(event) for event in events] == [Started, *2 * [*6 * [Update], Epoch, Saved]]
    assert saved_before == [0, 1, 1, 2]
    assert events[0] == Started(0, None)
    updates = [event for event in events if isinstance(event, Update)]
    assert [event.update for event in updates] == list(range(1, 13))
    assert [event.rate for event in updates] == [
        learning_rate(training.schedule, update) for update in range(12)
    ]
    assert np.mean([event.loss for event in updates[:6]]) == pytest.approx(history[0].loss)
    assert updates[5].per_second == pytest.approx(12 / history[0].seconds, rel=0.05)
    assert [event for event in events if isinstance(event, Epoch)] == history
    assert [event for event in events if isinstance(event, Saved)] == [
        Saved(history[0], 6),
        Saved(history[1], 12),
    ]
    again = []
    train(SMALL, training, data, tmp_path, again.append)
    assert again == [Started(12, history[-1].accuracy)]


@pytest.mark.parametrize(
    ("updates", "steps"),
    [(4, [1, 2, 3, 4]), (100, list(range(10, 101, 10))), (25, [*range(3, 25, 3), 25])],
)
def test_an_epoch_has_at_most_ten_reports_and_one_at_its_end(updates, steps):
    reports = Reports(Schedule(epochs=2, updates=updates))
    made = [
        reports.add(Update(update, float(update), 0.1, 5.0)) for update in range(1, 2 * updates + 1)
    ]
    made = [report for report in made if report is not None]
    assert [report.update for report in made] == [*steps, *(updates + step for step in steps)]
    ends = [0, *(report.update for report in made)]
    means = [(first + 1 + last) / 2 for first, last in itertools.pairwise(ends)]
    assert [report.loss for report in made] == pytest.approx(means)
    assert (made[0].rate, made[0].per_second) == (0.1, 5.0)


def test_another_seed_is_another_run(data, finished, tmp_path):
    train(SMALL, TRAINING.replace(seed=1), data, tmp_path)
    assert not same_run(finished, tmp_path)


def test_a_checkpoint_of_another_run_is_refused_with_the_difference(data, finished):
    training = TRAINING.replace(schedule=TRAINING.schedule.replace(rate=0.01))
    says = r"training\.schedule\.rate is 0.003 there and 0.01 here"
    with pytest.raises(CheckpointError, match=says):
        train(SMALL, training, data, finished)


def test_only_the_best_epochs_and_the_last_state_stay_on_disk(finished):
    names = sorted(path.name for path in finished.iterdir())
    history = notes_of_run(finished)["history"]
    best = sorted(
        sorted(history, key=lambda e: (-e["accuracy"], e["epoch"]))[:2], key=lambda e: e["epoch"]
    )
    assert names == [*(f"epoch-{e['epoch']:04d}.safetensors" for e in best), LAST]


def test_the_best_weights_are_those_of_the_best_epoch(data, finished):
    history = notes_of_run(finished)["history"]
    validation = cfsl.Tasks(data, TASK, split="val", numbers=range(10))
    trace = cfsl.evaluate(SMALL, validation, best_weights(finished), law=False)
    accuracy = task_accuracies(trace).mean()
    assert accuracy == pytest.approx(max(e["accuracy"] for e in history), abs=0.021)
    next_best = best_weights(finished, rank=1)
    assert not next_best["params"]["scale"].equal(best_weights(finished)["params"]["scale"])
    assert len(best_epochs(finished, 2)) == 2
    assert best_epochs(finished, 1) == best_epochs(finished, 2)[:1]
    with pytest.raises(CheckpointError, match=r"keeps 2 epochs \(the best 2 of 6\), not 3"):
        best_weights(finished, rank=2)


def test_training_lowers_the_loss(finished):
    history = notes_of_run(finished)["history"]
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
    frozen = TRAINING.schedule.replace(
        rate=1e-12, patience=2, average=0.0, epochs=20, weight_decay=0.0
    )
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
    with pytest.raises(LearnerError, match="Chance is not trained on tasks"):
        train(Chance(), TRAINING, data, tmp_path)


def test_learning_rates_by_hand():
    schedule = Schedule(epochs=2, updates=50, rate=1.0, decay="cosine", warmup=10)
    assert learning_rate(schedule, 0) == pytest.approx(0.1)
    assert learning_rate(schedule, 50) == pytest.approx(0.5)
    assert learning_rate(schedule, 99) == pytest.approx(0.5 * (1 + np.cos(np.pi * 0.99)))
    assert learning_rate(Schedule(), 12345) == 1e-3


def test_the_paper_recipe_is_the_published_protocol():
    training = recipe_for("paper", "protonet", TaskSpec.type_b(nss=3))
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


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_names_only_recipes_that_there_are(name):
    entry = LEARNERS[name]
    assert set(entry.recipes.values()) <= RECIPES.keys()
    assert entry.weights.is_trained == ({"paper", "short"} <= entry.recipes.keys())


def test_no_augmentation_changes_nothing_and_quarter_turns_are_shared_by_a_class():
    images = torch.rand(12, 1, 9, 9)
    classes = torch.arange(12) // 4
    assert augment(images, classes, Augmentation(), torch.Generator()) is images
    turned = augment(
        images, classes, Augmentation(quarter_turns=True), torch.Generator().manual_seed(5)
    )
    for c in range(3):
        turns = {
            k
            for k in range(4)
            for i in range(4 * c, 4 * c + 4)
            if turned[i].equal(torch.rot90(images[i], k, (1, 2)))
        }
        assert len(turns) == 1


def test_a_shift_moves_the_image_by_about_that_much():
    image = torch.zeros(200, 1, 21, 21)
    image[:, :, 10, 10] = 1
    classes, generator = torch.zeros(200, dtype=torch.int64), torch.Generator().manual_seed(0)
    moved = augment(image, classes, Augmentation(shift=2.0), generator)
    mass = moved.sum(dim=(1, 2, 3)).clamp(min=1e-6)
    rows = (moved.sum(dim=(1, 3)) * torch.arange(21)).sum(dim=1) / mass
    assert float(rows.std()) == pytest.approx(2.0 / 3**0.5, abs=0.15)
    assert float((rows - 10).abs().max()) < 2.01


def test_the_average_of_the_weights_moves_a_tenth_of_the_way(data):
    objective = objective_of(SMALL, TRAINING, data)
    run = TrainingState.begin(objective, TRAINING)
    before = {name: tensor.clone() for name, tensor in run.average.items()}
    run.make_update(objective, TRAINING.schedule)
    for name, old in before.items():
        assert torch.allclose(
            run.average[name], 0.9 * old + 0.1 * run.params[name].detach(), atol=1e-6
        )
    moved = [not run.params[name].equal(run.average[name]) for name in before]
    assert all(moved) and run.learned()["params"]["scale"] is run.average["scale"]


def test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved(data, tmp_path):
    class Diverging(Chance):
        def init(self, image_shape, generator):
            return {"params": {"w": torch.ones(1)}, "stats": {}}

        def episode_loss(self, params, stats, batch, *, turns, moment):
            worth = params["w"].sum() * (float("inf") if moment.epoch == 1 else 1.0)
            return worth, stats

    with pytest.raises(
        LearnerError, match="the loss became inf at update 7; lower the learning rate"
    ):
        train(Diverging(), TRAINING, data, tmp_path)
    saved, notes = read_checkpoint(tmp_path / LAST)
    assert notes["update"] == 6 and all(tensor.isfinite().all() for tensor in saved.values())


def test_an_epoch_whose_answers_are_not_finite_is_scored_and_not_the_best(data, tmp_path):
    class Broken(ProtoNet):
        def predict(self, state, images):
            logits = super().predict(state, images)
            return logits * float("nan") if float(state["scale"]) > 0 else logits

    broken = Broken(net=SMALL.net)
    history = train(
        broken, TRAINING.replace(schedule=TRAINING.schedule.replace(epochs=1)), data, tmp_path
    )
    assert [epoch.accuracy for epoch in history] == [0.0]


def test_weights_optimizer_and_batches_live_on_the_device(data, finished, monkeypatch):
    assert all(tensor.device.type == "cpu" for tensor in tensors(finished).values())
    seen = []

    class Witness:
        def init(self, image_shape, generator):
            return SMALL.init(image_shape, generator)

        def episode_loss(self, params, stats, batch, *, turns, moment):
            seen.extend(
                value.device.type
                for value in vars(batch).values()
                if isinstance(value, torch.Tensor)
            )
            return params["scale"] * batch.target_images.sum(), stats

    objective = objective_of(Witness(), TRAINING, data)
    run = TrainingState.begin(objective, TRAINING, "meta")
    run.resume(finished, notes_of_run(finished)["identity"])
    assert run.update == 36
    loss, _ = objective.loss(run.params, run.stats, 0)
    assert loss.device.type == "meta" and seen == 6 * ["meta"]
    for tree in (run.params, run.stats, run.average):
        assert {tensor.device.type for tensor in tree.values()} == {"meta"}
    memory = [
        value
        for slots in run.optimizer.state.values()
        for name, value in slots.items()
        if name != "step"
    ]
    assert memory and {value.device.type for value in memory} == {"meta"}
    pretraining = TRAINING.replace(iid=True, schedule=TRAINING.schedule.replace(batch=4))
    objective = objective_of(pretrain_tune(net=conv4(8, "conv-norm-act")), pretraining, data)
    run = TrainingState.begin(objective, pretraining, "meta")
    assert objective.loss(run.params, run.stats, 0)[0].device.type == "meta"


def test_validation_happens_on_the_device(data, tmp_path, monkeypatch):
    asked = []

    def accept(*arguments, device, **options):
        asked.append(device)
        raise StopError

    monkeypatch.setattr(loop, "require_device", lambda name: None)
    monkeypatch.setattr(TrainingState, "make_update", lambda *_: 1.0)
    monkeypatch.setattr(loop, "evaluate", accept)
    with pytest.raises(StopError):
        train(SMALL, TRAINING, data, tmp_path, device="meta")
    assert asked == ["meta"]


def test_a_device_that_is_not_there_is_refused_with_those_that_are(data, tmp_path, monkeypatch):
    with pytest.raises(SpecError, match=r"device 'tpu' is not available here; available: cpu"):
        train(SMALL, TRAINING, data, tmp_path, device="tpu")
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert available_devices() == ["cpu", "cuda"]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    log.Reload()
    return {
        tag: [(event.step, event.value) for event in log.Scalars(tag)]
        for tag in log.Tags()["scalars"]
    }


def logged_until(last: int, log, event) -> None:
    log(event)
    if isinstance(event, Update) and event.update == last < 36:
        raise StopError


def test_a_tensorboard_log_goes_on_without_a_step_twice_or_missing(data, finished, tmp_path):
    for last in (16, 36):
        with contextlib.suppress(StopError), tensorboard_log(tmp_path, TRAINING) as log:
            train(SMALL, TRAINING, data, tmp_path, functools.partial(logged_until, last, log))
    assert len([*(tmp_path / "tensorboard").iterdir()]) == 2
    written = scalars(tmp_path)
    assert set(written) == {"loss", "rate", "tasks_per_second", "validation_accuracy"}
    for tag in ("loss", "rate", "tasks_per_second"):
        assert [step for step, _ in written[tag]] == list(range(1, 37))
    rates = [learning_rate(TRAINING.schedule, update) for update in range(36)]
    assert [value for _, value in written["rate"]] == pytest.approx(rates)
    history = notes_of_run(finished)["history"]
    last_losses = [value for _, value in written["loss"][-6:]]
    assert np.mean(last_losses) == pytest.approx(history[-1]["loss"], rel=1e-5)
    assert written["validation_accuracy"] == [
        (6 * epoch["epoch"] + 6, pytest.approx(epoch["accuracy"])) for epoch in history
    ]
    assert min(value for _, value in written["tasks_per_second"]) > 0


def test_a_log_of_pretraining_counts_images(tmp_path):
    with tensorboard_log(tmp_path, TRAINING.replace(iid=True)) as log:
        log(Started(0, None))
        log(Update(1, 2.0, 0.5, 30.0))
    assert scalars(tmp_path)["images_per_second"] == [(1, 30.0)]


SIDE = 41


def dots(row: int, column: int, count: int = 300, width: int = SIDE) -> torch.Tensor:
    """Return images of a soft dot, so many pixels below and right of the middle."""
    rows = torch.arange(SIDE)[:, None] - (SIDE // 2 + row)
    columns = torch.arange(width)[None] - (width // 2 + column)
    return torch.exp(-(rows**2 + columns**2) / 8.0).expand(count, 1, SIDE, width).clone()


def places(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far below and right of the middle the dots are."""
    mass = images.sum(dim=(1, 2, 3))
    height, width = images.shape[2:]
    rows = (images.sum(dim=(1, 3)) * (torch.arange(height) - height // 2)).sum(dim=1) / mass
    columns = (images.sum(dim=(1, 2)) * (torch.arange(width) - width // 2)).sum(dim=1) / mass
    return rows, columns


def changed(images: torch.Tensor, augmentation: Augmentation) -> torch.Tensor:
    return augment(
        images,
        torch.zeros(len(images), dtype=torch.int64),
        augmentation,
        torch.Generator().manual_seed(1),
    )


def is_uniform(values: torch.Tensor, most: float, rel: float = 0.1) -> bool:
    """Whether values are spread over (-most, most) as uniform ones are."""
    spread = float(values.std()) == pytest.approx(most / 3**0.5, rel=rel)
    centred = abs(float(values.mean())) < 0.15 * most
    return spread and centred and float(values.abs().max()) < 1.05 * most


def test_a_rotation_turns_everything_about_the_middle_by_the_same_angle():
    rows, columns = places(changed(dots(-10, 0), Augmentation(degrees=20.0)))
    rows_right, columns_right = places(changed(dots(0, 10), Augmentation(degrees=20.0)))
    angles = torch.rad2deg(torch.atan2(columns, -rows))
    assert is_uniform(angles, 20.0)
    assert torch.allclose(angles, torch.rad2deg(torch.atan2(rows_right, columns_right)), atol=0.5)
    assert torch.allclose(torch.hypot(rows, columns), torch.full_like(rows, 10.0), atol=0.2)


def test_a_scale_is_log_uniform():
    rows, columns = places(changed(dots(-8, 8), Augmentation(log_scale=0.3)))
    assert is_uniform(torch.log(columns / 8), 0.3) and torch.allclose(rows, -columns, atol=0.1)


def test_a_shear_moves_rows_sideways():
    rows, columns = places(changed(dots(-10, 0), Augmentation(shear=0.3)))
    assert is_uniform(columns, 3.0) and torch.allclose(
        rows, torch.full_like(rows, -10.0), atol=0.05
    )
    rows, columns = places(changed(dots(0, 10), Augmentation(shear=0.3)))
    assert float(rows.abs().max()) < 0.05 and torch.allclose(
        columns, torch.full_like(columns, 10.0), atol=0.05
    )


def test_a_shift_is_in_pixels_whatever_the_shape_of_the_image():
    rows, columns = places(changed(dots(0, 0, width=81), Augmentation(shift=4.0)))
    assert is_uniform(rows, 4.0) and is_uniform(columns, 4.0)
    assert abs(float(torch.corrcoef(torch.stack([rows, columns]))[0, 1])) < 0.2


def test_an_elastic_field_bends_by_its_deviation():
    ramp = ((2 * torch.arange(SIDE) + 1) / SIDE - 1).expand(2000, 1, SIDE, SIDE)
    for images in (ramp, ramp.transpose(2, 3)):
        moved = changed(images, Augmentation(elastic=0.05)) - images
        middle = moved[:, 0, SIDE // 2, SIDE // 2]
        assert float(middle.std()) == pytest.approx(0.05, rel=0.05)
        assert abs(float(middle.mean())) < 0.005


def test_what_comes_in_from_outside_repeats_the_border():
    warps = Augmentation(degrees=30.0, log_scale=0.5, shear=0.4, shift=9.0, elastic=0.1)
    assert torch.allclose(changed(torch.ones(20, 1, 15, 15), warps), torch.ones(1))


def test_all_four_quarter_turns_are_drawn():
    images, classes = torch.rand(200, 1, 9, 9), torch.arange(200)
    turned = augment(
        images, classes, Augmentation(quarter_turns=True), torch.Generator().manual_seed(2)
    )
    turns = [
        [turned[i].equal(torch.rot90(images[i], k, (1, 2))) for k in range(4)].index(True)
        for i in range(200)
    ]
    assert all(30 <= turns.count(k) <= 70 for k in range(4))


class Recorder:
    """A learner that keeps what it is shown in training."""

    def __init__(self) -> None:
        self.shown: list = []

    def init(self, image_shape, generator):
        return {"params": {"w": torch.ones(1)}, "stats": {}}

    def episode_loss(self, params, stats, batch, *, turns, moment):
        self.shown.append((batch, turns, moment))
        return params["w"].sum(), stats


def shown_in(training: Training, data, update: int):
    recorder = Recorder()
    objective_of(recorder, training, data).loss({"w": torch.ones(1)}, {}, update)
    return recorder.shown[0]


def test_an_update_sees_the_next_tasks_of_the_training_split_and_when_it_is(data):
    plain = TRAINING.replace(
        augmentation=Augmentation(), schedule=TRAINING.schedule.replace(batch=2), seed=3
    )
    batch, turns, moment = shown_in(plain, data, 7)
    assert batch.numbers == range(14, 16) and turns is True and moment == Moment(1, 6)
    wanted = next(
        cfsl.Tasks(data, plain.episodes, split="train", seed=3, numbers=range(14, 16)).batches(2)
    )
    for name, value in vars(wanted).items():
        if name != "numbers":
            assert value.equal(getattr(batch, name)), name


def test_a_class_of_a_task_keeps_its_quarter_turn_from_support_to_target(data):
    plain = TRAINING.replace(
        augmentation=Augmentation(), schedule=TRAINING.schedule.replace(batch=4)
    )
    turning = plain.replace(augmentation=Augmentation(quarter_turns=True))
    (before, _, _), (after, _, _) = shown_in(plain, data, 0), shown_in(turning, data, 0)
    turns: dict[tuple[int, int], set[int]] = {}
    for task in range(4):
        for part in ("support", "target"):
            labels = getattr(before, f"{part}_labels")[task].flatten()
            old = getattr(before, f"{part}_images")[task].reshape(
                len(labels), *before.target_images.shape[2:]
            )
            new = getattr(after, f"{part}_images")[task].reshape(old.shape)
            for label, one, other in zip(labels.tolist(), old, new, strict=True):
                fits = [torch.rot90(one, k, (1, 2)).equal(other) for k in range(4)]
                turns.setdefault((task, label), set()).add(fits.index(True))
    assert all(len(found) == 1 for found in turns.values()) and len(turns) == 32
    assert any(turns[0, label] != turns[1, label] for label in range(8))


def test_every_update_draws_anew_and_the_same_update_the_same(data, monkeypatch):
    seeds = []

    def recorded(images, classes, augmentation, generator):
        seeds.append(generator.initial_seed())
        return images

    monkeypatch.setattr(objective_module, "augment", recorded)
    for update in (0, 1, 0):
        shown_in(TRAINING, data, update)
    shown_in(TRAINING.replace(seed=1), data, 0)
    assert seeds[0] == seeds[2] and len(set(seeds)) == 3


def test_pretraining_draws_anew_every_update_and_starts_with_a_small_head(data):
    training = TRAINING.replace(
        iid=True, schedule=TRAINING.schedule.replace(batch=8), augmentation=Augmentation()
    )
    objective = objective_of(pretrain_tune(net=conv4(8, "conv-norm-act")), training, data)
    run = TrainingState.begin(objective, training)
    losses = [
        float(objective.loss(run.params, run.stats, update)[0].detach()) for update in (0, 1, 0)
    ]
    assert losses[0] == losses[2] != losses[1]
    head = run.params["head.weight"].detach()
    bound = (6 / sum(head.shape)) ** 0.5
    assert 0.95 * bound < float(head.max()) <= bound and -bound <= float(head.min()) < -0.95 * bound
    assert not run.params["head.bias"].any()


class Slope:
    """An objective with a constant gradient."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def init(self, generator):
        return {"params": {"w": torch.ones(1)}, "stats": {}}

    def is_learned(self, name):
        return True

    def loss(self, params, stats, update):
        return self.slope * params["w"].sum(), stats


@pytest.mark.parametrize(
    ("optimizer", "slope", "weights"),
    [
        # 1 - .1 x 1.05; .895 - .1 x (.9 x 1.05 + 1 + .05 x .895)
        ("sgd", 1.0, [0.895, 0.696025]),
        # The decay is the whole gradient, and Adam makes it a full step.
        ("adam", 0.0, [0.9, 0.8]),
        # The decay is apart from the gradient: (1 - .1 x .05) twice.
        ("adamw", 0.0, [0.995, 0.990025]),
    ],
)
def test_optimizers_by_hand(optimizer, slope, weights):
    schedule = Schedule(epochs=1, updates=2, optimizer=optimizer, rate=0.1, weight_decay=0.05)
    run = TrainingState.begin(Slope(slope), TRAINING.replace(schedule=schedule))
    found = []
    for _ in range(2):
        run.make_update(Slope(slope), schedule)
        found.append(float(run.params["w"].detach()))
    assert found == pytest.approx(weights, abs=2e-3 if optimizer == "adam" else 1e-5)


def finished_with(*accuracies: float) -> list[Epoch]:
    return [Epoch(number, 1.0, accuracy, 1.0) for number, accuracy in enumerate(accuracies)]


def test_patience_is_how_many_epochs_may_pass_without_a_better_one():
    schedule = Schedule(patience=2)
    for accuracies, is_out in (
        ((), False),
        ((0.5, 0.4), False),
        ((0.5, 0.4, 0.5), True),
        ((0.5, 0.6, 0.5), False),
    ):
        assert is_finished(0, finished_with(*accuracies), schedule) is is_out
    assert not is_finished(0, finished_with(0.5, 0.4, 0.5), Schedule())


def test_of_epochs_that_are_equally_good_the_earlier_is_better():
    assert best_of(finished_with(0.2, 0.7, 0.5, 0.7), 3) == [1, 3, 2]


def test_validation_is_on_the_validation_split_and_weights_are_known_by_data_and_split(
    data, finished
):
    validation = cfsl.Tasks(data, TASK, split="val", numbers=range(10))
    history = notes_of_run(finished)["history"]
    best = best_epochs(finished, 1)[0]
    trace = cfsl.evaluate(SMALL, validation, best_weights(finished), law=False)
    assert summarise(task_accuracies(trace)).mean == history[best]["accuracy"]
    identity = identity_of(SMALL, TRAINING, data)
    assert identity["data"] == {"fingerprint": data.fingerprint, "splits": data.splits_name}
    assert identity["learner"]["metric"] == "cosine" and identity["learner"]["class"] == "ProtoNet"


def test_first_weights_come_from_the_seed(data):
    first, again, other = (
        TrainingState.begin(objective_of(SMALL, TRAINING, data), TRAINING.replace(seed=seed)).params
        for seed in (0, 0, 1)
    )
    name = next(name for name, tensor in first.items() if tensor.ndim == 4)
    assert first[name].equal(again[name]) and not first[name].equal(other[name])


def test_an_optimizer_gets_its_memory_back_in_the_layout_of_the_weights(data, finished):
    run = TrainingState.begin(objective_of(SMALL, TRAINING, data), TRAINING)
    run.resume(finished, identity_of(SMALL, TRAINING, data))
    for parameter, slots in run.optimizer.state.items():
        assert slots["exp_avg"].stride() == parameter.stride()
        assert slots["exp_avg_sq"].stride() == parameter.stride()
