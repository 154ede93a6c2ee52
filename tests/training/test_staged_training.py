"""Training in stages: one starts from the weights of another, and looks a frozen embedding up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import cfsl
from cfsl.data.tasks import Tasks
from cfsl.engine.steps import CardStep, TrainStep, steps_of
from cfsl.errors import LearnerError, SpecError
from cfsl.harness.evaluate import evaluate
from cfsl.learners.base import Moment, Support, first_weights
from cfsl.learners.episode_losses import grouped_by_class, one_shot_loss
from cfsl.learners.maml.episodes import Episode
from cfsl.learners.maml.maml_high import MamlHigh
from cfsl.learners.maml.maml_low import MamlLow
from cfsl.learners.maml.metric_start import MetricStart, loss_of_sums
from cfsl.learners.maml.sca import Sca
from cfsl.learners.maml.step_tables import Steps, strip_prefix, taken_over, with_rates
from cfsl.learners.protonet import ProtoNet
from cfsl.nets import DenseNet, HighEndNet, SqueezeConv
from cfsl.nets.convnet import conv4
from cfsl.nets.layers import parameter_count, running_norm
from cfsl.runs.run_spec import DataSpec, RunSpec, TrainSpec, learner_spec
from cfsl.spec import TaskSpec
from cfsl.training.loop import train
from cfsl.training.on_table import TasksOnTable
from cfsl.training.recipes import recipe_for
from cfsl.training.run_folder import best_weights, is_whole_and_finished, stages_before
from cfsl.training.training_spec import PHOTOGRAPHIC, Augmentation, Schedule, Start, Training

DATA = "glyphs-90x12"
SHAPE = (1, 28, 28)
TASK = TaskSpec.type_b(nss=2, n_way=3, k_target=2)
SMALL_DENSE = {"filters": 4, "blocks": 1, "size": 3}
HIGH = MamlHigh(embedding=DenseNet(**SMALL_DENSE), net=SqueezeConv(filters=4), steps=2)
SCA = Sca(embedding=HIGH.embedding, net=HIGH.net, steps=2)
START_NAME = "metric_start"
START_CHANGES = {
    **{f"net.embedding.{name}": value for name, value in SMALL_DENSE.items()},
    "net.net.filters": 4,
    "groups": [1, 2],
}


def schedule(epochs: int = 2, updates: int = 3, batch: int = 1) -> Schedule:
    return Schedule(epochs=epochs, updates=updates, batch=batch, optimizer="adamw", rate=1e-3)


FIRST_STAGE = Training(
    episodes=TaskSpec.few_shot(n_way=8, k_target=2),
    turns=True,
    validation=TASK,
    validation_tasks=4,
    schedule=schedule(),
)
STAGED = Training(
    episodes=TASK,
    validation=TASK,
    validation_tasks=4,
    augmentation=Augmentation(quarter_turns=True),
    schedule=schedule(batch=2),
    start=Start(learner=START_NAME, changes=START_CHANGES, training=FIRST_STAGE),
    embedding="frozen",
)


@pytest.fixture(scope="module")
def data(data_root):
    return cfsl.load(DATA)


@pytest.fixture(scope="module")
def staged(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("staged")
    train(HIGH, STAGED, data, folder)
    return folder


def drawn(learner, task: TaskSpec = TASK, seed: int = 0):
    return first_weights(learner, SHAPE, task, torch.Generator().manual_seed(seed))


# --- which weights go where

TWO_SETS, FOUR_SETS = Steps(2, 4), Steps(2, 8)


def test_a_network_becomes_the_embedding_the_adapted_weights_and_every_row_of_their_scales():
    first = {
        "embedding.stem.conv.weight": torch.zeros(2),
        "conv.weight": torch.zeros(3),
        "scales.norm.weight": torch.zeros(5, 2),
        "rates.conv.weight": torch.zeros(4),
    }
    start = {
        "stem.conv.weight": torch.ones(2),
        "conv.weight": torch.full((3,), 2.0),
        "norm.weight": torch.tensor([3.0, 4.0]),
    }
    found = taken_over(first, start, TWO_SETS, TWO_SETS)
    assert found["embedding.stem.conv.weight"].tolist() == [1, 1]
    assert found["conv.weight"].tolist() == [2, 2, 2]
    assert found["scales.norm.weight"].tolist() == [[3.0, 4.0]] * 5
    assert found["rates.conv.weight"].tolist() == [0, 0, 0, 0]


def test_weights_for_more_support_sets_repeat_the_steps_of_the_last_one():
    # Two sets of two steps, then one row after them, become four sets and that row.
    start = {
        "scales.norm.weight": torch.arange(5.0)[:, None],
        "rates.conv.weight": torch.arange(4.0),
    }
    first = {"scales.norm.weight": torch.zeros(9, 1), "rates.conv.weight": torch.zeros(8)}
    found = taken_over(first, start, TWO_SETS, FOUR_SETS)
    assert found["scales.norm.weight"].flatten().tolist() == [0, 1, 2, 3, 2, 3, 2, 3, 4]
    assert found["rates.conv.weight"].tolist() == [0, 1, 2, 3, 2, 3, 2, 3]


def test_weights_for_fewer_support_sets_keep_the_first_steps_and_what_comes_after_the_last():
    start = {
        "scales.norm.weight": torch.arange(9.0)[:, None],
        "rates.conv.weight": torch.arange(8.0),
    }
    first = {"scales.norm.weight": torch.zeros(5, 1), "rates.conv.weight": torch.zeros(4)}
    found = taken_over(first, start, FOUR_SETS, TWO_SETS)
    assert found["scales.norm.weight"].flatten().tolist() == [0, 1, 2, 3, 8]
    assert found["rates.conv.weight"].tolist() == [0, 1, 2, 3]


def test_a_head_for_more_labels_keeps_the_units_that_were_drawn_for_those_that_are_new():
    start = {"head.weight": torch.ones(2, 3), "head.bias": torch.ones(2)}
    first = {"head.weight": torch.zeros(4, 3), "head.bias": torch.zeros(4)}
    found = taken_over(first, start, TWO_SETS, TWO_SETS)
    assert found["head.weight"].sum(dim=1).tolist() == [3, 3, 0, 0]
    assert found["head.bias"].tolist() == [1, 1, 0, 0]


def test_weights_of_another_network_are_refused_by_name_and_shape():
    with pytest.raises(
        LearnerError, match=r"'conv.weight' has shape \(4,\) where training starts from, and \(3,\)"
    ):
        taken_over(
            {"conv.weight": torch.zeros(3)}, {"conv.weight": torch.zeros(4)}, TWO_SETS, TWO_SETS
        )


def test_sca_starts_as_the_learner_that_it_extends(data):
    high = drawn(HIGH)
    sca = SCA.started_from(drawn(SCA, seed=1), high)
    tasks = Tasks(data, TASK, split="val", numbers=range(3))
    of_high, of_sca = evaluate(HIGH, tasks, high).logits, evaluate(SCA, tasks, sca).logits
    assert np.allclose(of_high, of_sca, atol=1e-4)


def test_first_rates_are_set_by_layer():
    params = drawn(MamlLow(net=conv4(4, "conv-norm-act"), steps=2, rate=0.01))["params"]
    found = with_rates(params, {"block": 0.2, "head": 0.5})
    assert found["rates.block3.conv.weight"].unique().tolist() == pytest.approx([0.2])
    assert found["rates.head.bias"].unique().tolist() == pytest.approx([0.5])
    assert found["head.weight"].equal(params["head.weight"])


def test_a_convolution_from_another_training_has_the_length_it_was_drawn_with_and_answers_alike(
    data,
):
    """Batch norm divides by the length: answers are those of the longer weights."""
    whole = MetricStart(net=HighEndNet(embedding=HIGH.embedding, net=HIGH.net))
    long = whole.init(SHAPE, torch.Generator().manual_seed(3))
    begun = HIGH.started_from(drawn(HIGH), long)
    lengths = [float(meta["params"]["conv.weight"].norm()) for meta in (begun, drawn(HIGH))]
    assert lengths[0] == pytest.approx(lengths[1])

    images = torch.randn(4, *SHAPE)
    maps = HIGH.embed(begun, images)
    scales = {name: table[0] for name, table in strip_prefix(begun["params"], "scales.").items()}
    norm = running_norm(scales, strip_prefix(begun["stats"], "targets."))
    features = HIGH.net.forward(begun["params"], norm, maps.view(4, *HIGH.embedding.map_shape()))
    assert torch.allclose(features, whole.embed(long, images), rtol=1e-3, atol=1e-3)


# --- the first stage

WHOLE = HighEndNet(embedding=HIGH.embedding, net=HIGH.net)


def test_the_whole_network_is_the_embedding_and_the_small_net_on_its_maps():
    params, stats = WHOLE.init(SHAPE, torch.Generator().manual_seed(0))
    images = torch.randn(3, *SHAPE)
    deep_params, deep_stats = strip_prefix(params, "embedding."), strip_prefix(stats, "embedding.")
    maps = HIGH.embedding.features(deep_params, deep_stats, images, norm="running")
    maps = maps.view(3, *HIGH.embedding.map_shape())
    features = HIGH.net.features(params, stats, maps, norm="running")

    assert torch.allclose(
        WHOLE.features(params, stats, images, norm="running"), features, atol=1e-6
    )
    assert parameter_count(params) == sum(
        parameter_count(net.init(shape, torch.Generator())[0])
        for net, shape in ((HIGH.embedding, SHAPE), (HIGH.net, HIGH.embedding.map_shape()))
    )


def test_the_inputs_of_a_filter_are_what_a_gradient_step_adds_to_its_weights():
    params, stats = WHOLE.init(SHAPE, torch.Generator().manual_seed(0))
    params["squeeze2.bias"] = torch.full_like(params["squeeze2.bias"], 50.0)  # scales by 1
    image = torch.randn(1, *SHAPE)
    with_inputs = WHOLE.replace(appends_filter_inputs=True)
    found = with_inputs.features(params, stats, image, norm="running")
    assert found.shape[1] == with_inputs.feature_count(SHAPE)

    filters, channels = HIGH.net.filters, HIGH.embedding.map_shape()[0]
    features, inputs = found[0, :filters], found[0, filters:].view(filters, channels)
    assert torch.equal(features, WHOLE.features(params, stats, image, norm="running")[0])

    params["conv.weight"].requires_grad_()
    total = WHOLE.features(params, stats, image, norm="running").sum()
    (gradient,) = torch.autograd.grad(total, params["conv.weight"])
    assert torch.allclose(gradient[:, :, 1, 1], inputs, rtol=1e-4, atol=1e-6)


def test_sums_of_cosines_by_hand():
    # Two labels of two classes; each image shown in turn is like the other of its class, and unlike
    # all others.
    unit = torch.eye(4)[:, None, :].expand(4, 2, 4)
    right, wrong = 1.0, 0.0  # a target's sum over its own label, and over the other
    expected = -np.log(np.exp(3 * right) / (np.exp(3 * right) + np.exp(3 * wrong)))
    assert float(loss_of_sums(torch.tensor(3.0), unit, 2)) == pytest.approx(expected, rel=1e-6)

    # A fifth class has no label of its own, and is left out.
    five = torch.eye(5)[:, None, :].expand(5, 2, 5)
    assert float(loss_of_sums(torch.tensor(3.0), five, 2)) == pytest.approx(expected, rel=1e-6)


def test_sums_of_cosines_are_smaller_where_unlike_classes_have_nothing_in_common():
    apart = torch.eye(6)[:, None, :].expand(6, 3, 6)
    alike = functional.normalize(apart + 0.5, dim=2)
    for group in (1, 2, 3):
        losses = [float(loss_of_sums(torch.tensor(5.0), unit, group)) for unit in (apart, alike)]
        assert losses[0] < losses[1]


def test_the_first_stage_answers_as_protonets_on_the_features_of_the_small_net(data):
    learner, protonet = MetricStart(net=WHOLE), ProtoNet(net=WHOLE, metric="cosine")
    meta = learner.init(SHAPE, torch.Generator().manual_seed(0))
    tasks = Tasks(data, TASK, split="val", numbers=range(3))
    assert np.array_equal(
        evaluate(learner, tasks, meta).logits, evaluate(protonet, tasks, meta).logits
    )


def test_the_first_stage_subtracts_the_mean_of_an_episode_from_the_inputs_of_filters(data):
    learner = MetricStart(net=WHOLE, groups=(1, 2))
    meta = learner.init(SHAPE, torch.Generator().manual_seed(0))
    params, stats = meta["params"], meta["stats"]
    (batch,) = Tasks(data, FIRST_STAGE.episodes, split="train", numbers=range(1)).batches()
    moment = Moment(0, 1)
    found, _ = learner.episode_loss(params, stats, batch, turns=True, moment=moment)

    with_inputs = ProtoNet(net=WHOLE.replace(appends_filter_inputs=True))
    (outputs,), (labels,), _ = with_inputs.embedded_tasks(params, stats, batch)
    grouped = grouped_by_class(outputs, labels)
    features, inputs = grouped[..., : HIGH.net.filters], grouped[..., HIGH.net.filters :]
    unit = inputs - inputs.flatten(0, 1).mean(dim=0)
    unit = unit / unit.norm(dim=2, keepdim=True)

    expected = one_shot_loss(params["scale"], features, "cosine")
    expected = expected + sum(loss_of_sums(params[f"scale.{n}"], unit, n) for n in (1, 2))
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_the_first_stage_needs_images_that_take_turns(data, tmp_path):
    with pytest.raises(LearnerError, match="take turns"):
        train(MetricStart(net=WHOLE), FIRST_STAGE.replace(turns=False), data, tmp_path)


# --- the table


def objective_on_table(data, training: Training = STAGED, learner=HIGH) -> TasksOnTable:
    return TasksOnTable(learner, training, data, drawn(learner, training.episodes))


def test_a_task_on_the_table_is_the_task_that_would_be_embedded(data):
    training = STAGED.replace(augmentation=Augmentation(), schedule=schedule(batch=1))
    objective = objective_on_table(data, training)
    meta = drawn(HIGH)
    params = {
        name: tensor.requires_grad_(objective.is_learned(name))
        for name, tensor in meta["params"].items()
    }
    on_table, _ = objective.loss(params, dict(meta["stats"]), 3)

    task = Tasks(data, TASK, split="train", seed=training.seed, numbers=range(4))[3]
    supports = [
        Support(HIGH.embed(meta, support.images), support.labels) for support in task.support_sets
    ]
    episode = Episode(supports, HIGH.embed(meta, task.target.images), task.target.labels)
    by_hand, _ = HIGH.task_loss(params, meta["stats"], episode, Moment(1, 2))
    on_table, by_hand = on_table.detach(), by_hand.detach()
    assert float(on_table) == pytest.approx(float(by_hand), rel=0.02)  # the table is in bfloat16


def test_mirrored_positions_are_embedded_as_mirrored_images(data):
    objective = objective_on_table(
        data, STAGED.replace(augmentation=Augmentation(reflections=True))
    )
    objective.prepare()
    tasks = Tasks(data, TASK, split="train", numbers=range(1))
    images = torch.from_numpy(tasks.images.normalised(np.arange(3, dtype=np.int32)))
    by_hand = HIGH.embed(drawn(HIGH), images.flip(3))
    assert len(objective._tables) == 2
    assert torch.allclose(objective._tables[1][:3].float(), by_hand, atol=0.02)


def test_quarter_turns_turn_all_images_of_a_class_alike_and_classes_each_in_its_way(data):
    objective = objective_on_table(data, STAGED.replace(schedule=schedule(batch=8)))
    objective.prepare()
    sizes = Tasks(data, TASK, split="train", numbers=range(1)).class_sizes
    turns = np.zeros(len(sizes), np.int64)
    turns[1] = 3
    of_second_class = np.arange(sizes[0], sizes[0] + 2)
    images = np.concatenate([[0], of_second_class])
    maps = objective._maps(images, turns)
    assert maps[0].equal(objective._tables[0][0].float())
    assert maps[1:].equal(objective._tables[3][torch.from_numpy(of_second_class)].float())
    assert not objective._tables[0].equal(objective._tables[3])


def test_only_the_inner_loop_is_learned_on_a_frozen_embedding(data, staged):
    start = best_weights(staged / "start")
    learned = best_weights(staged)
    for name, tensor in learned["params"].items():
        if name.startswith("embedding."):
            assert tensor.equal(start["params"][name]), name
    assert not learned["params"]["rates.conv.weight"].equal(
        drawn(HIGH)["params"]["rates.conv.weight"]
    )


# --- runs


def test_a_staged_run_that_was_stopped_goes_on_to_the_same_bits(data, staged, tmp_path):
    class StopError(Exception):
        pass

    seen = 0

    def stop_in_second_epoch(event) -> None:
        nonlocal seen
        seen += type(event).__name__ == "Update"
        if seen == 4:
            raise StopError

    with pytest.raises(StopError):
        train(HIGH, STAGED, data, tmp_path, stop_in_second_epoch)
    train(HIGH, STAGED, data, tmp_path)
    one, other = best_weights(staged)["params"], best_weights(tmp_path)["params"]
    assert all(one[name].equal(other[name]) for name in one)


def test_a_first_stage_that_is_done_is_not_done_again(data, staged, tmp_path):
    train(HIGH, STAGED, data, tmp_path, start=staged / "start")
    assert not (tmp_path / "start").exists()
    assert is_whole_and_finished(tmp_path, STAGED, HIGH, data.fingerprint)


def test_a_seed_is_that_of_all_stages():
    other = STAGED.with_seed(5)
    assert other.seed == 5 and other.start.training.seed == 5


def test_runs_without_stages_keep_their_hash():
    assert "start" not in FIRST_STAGE.model_dump(mode="json")
    assert "embedding" not in FIRST_STAGE.model_dump(mode="json")
    assert not {"vector_rate", "inner_rate"} & FIRST_STAGE.schedule.model_dump(mode="json").keys()
    assert Training(**STAGED.model_dump(mode="json")) == STAGED


def train_spec(name: str, training: Training) -> TrainSpec:
    changes = {
        "embedding.filters": 4,
        "embedding.blocks": 1,
        "embedding.size": 3,
        "net.filters": 4,
        "steps": 2,
    }
    data = DataSpec(name=DATA, fingerprint="f", splits_hash="s")
    return TrainSpec(learner=learner_spec(name, changes), data=data, training=training)


def test_a_bench_does_the_first_stage_once_for_all_that_start_from_it():
    later = Start(
        learner="maml_high",
        changes=dict(train_spec("maml_high", STAGED).learner.changes),
        training=STAGED,
    )
    high = train_spec("maml_high", STAGED)
    sca = train_spec("sca", STAGED.replace(start=later))
    runs = [
        RunSpec(
            profile="own", learner=spec.learner, data=spec.data, task=TASK, tasks=10, train=spec
        )
        for spec in (high, sca)
    ]
    steps = steps_of(runs)
    trainings = [step for step in steps if isinstance(step, TrainStep)]
    assert len({step.name for step in trainings}) == 3
    assert sca.start == high
    assert TrainStep(sca).needs == (TrainStep(high).name,)
    assert TrainStep(high.start).needs == ()
    assert sum(isinstance(step, CardStep) for step in steps) == 2


@pytest.mark.parametrize("learner", ["maml_low", "maml_high", "sca"])
def test_photographs_are_neither_turned_nor_bent_in_any_stage(learner):
    training = recipe_for("strong", learner, TASK, characters=False)
    stages = [training, *[stage.training for stage, _ in stages_before(training, Path("run"))]]
    assert len(stages) >= 2
    for stage in stages:
        assert stage.augmentation == (
            Augmentation() if stage.embedding == "frozen" else PHOTOGRAPHIC
        )


# --- what is refused


def test_a_learner_without_stages_is_not_trained_in_stages():
    with pytest.raises(SpecError, match="there is no recipe 'strong' for anil"):
        recipe_for("strong", "anil", TASK)


def test_a_frozen_embedding_needs_weights_to_start_from():
    with pytest.raises(SpecError, match="needs a start"):
        Training(episodes=TASK, validation=TASK, embedding="frozen")


def test_a_frozen_embedding_takes_no_augmentation_but_quarter_turns():
    with pytest.raises(SpecError, match="quarter_turns and reflections alone"):
        STAGED.replace(augmentation=Augmentation(degrees=3.0))


def test_pretraining_has_no_start():
    with pytest.raises(SpecError, match=r"pretraining \(iid=True\) has no start"):
        FIRST_STAGE.replace(iid=True, turns=False, start=STAGED.start)


def test_first_rates_of_layers_that_are_not_there_are_refused(data, tmp_path):
    with pytest.raises(LearnerError, match="no inner rates of 'block1'"):
        train(HIGH, STAGED.replace(first_inner_rates=(("block1", 0.1),)), data, tmp_path)


def test_a_learner_without_inner_loop_is_not_trained_on_a_frozen_embedding(data, tmp_path):
    with pytest.raises(LearnerError, match="ProtoNet cannot start from other weights"):
        train(ProtoNet(net=conv4(4, "conv-act-norm")), STAGED, data, tmp_path)
    with pytest.raises(LearnerError, match="MamlLow has no inner loop on an embedding"):
        train(MamlLow(net=conv4(4, "conv-norm-act"), steps=2), STAGED, data, tmp_path)
