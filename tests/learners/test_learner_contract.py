"""What every learner has to do: one suite over the registry, new learners included."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import cfsl
from cfsl.data.catalog import AddRequest, add_dataset
from cfsl.errors import UnknownNameError
from cfsl.harness.cost import measure_macs
from cfsl.harness.evaluate import evaluate, task_info
from cfsl.harness.state import flatten
from cfsl.learners.base import FixedEmbedding, Support, TrainedOnTasks, first_weights
from cfsl.learners.overrides import changed
from cfsl.learners.registry import LEARNERS, META_TRAINED, TRAINED_ON_TASKS, find_learner
from cfsl.nets import DenseNet
from cfsl.nets.convnet import ConvNet
from cfsl.spec import TaskSpec

SPECS = {
    "nss=1": TaskSpec.few_shot(n_way=3, k_target=2),
    "cci=nss": TaskSpec.type_a(nss=3, n_way=3, k_target=2),
    "uneven groups": TaskSpec.type_d(nss=3, cci=2, n_way=2, k_target=2),
    "n_way=1": TaskSpec.type_b(nss=3, n_way=1, k_target=2),
    "k_shot>1": TaskSpec.type_b(nss=2, n_way=2, k_shot=3, k_target=2),
    "overwrite": TaskSpec.type_c(nss=3, n_way=2, k_target=2),
    "instance": TaskSpec.instance(nss=2, k_shot=3),
}


@pytest.fixture(scope="session")
def small(data_root):
    """Enough classes for ten support sets, and few images to embed."""
    return cfsl.load("glyphs-60x12")


@pytest.fixture(scope="session")
def rgb(tmp_path_factory):
    """64 x 64 colour noise, 12 classes of 8."""
    folder = tmp_path_factory.mktemp("rgb")
    generator = np.random.default_rng(0)
    base = generator.integers(0, 200, (12, 1, 64, 64, 3))
    images = np.clip(base + generator.integers(0, 55, (12, 8, 64, 64, 3)), 0, 255).astype(np.uint8)
    np.savez(folder / "rgb.npz", images=images.reshape(96, 64, 64, 3), labels=np.arange(96) // 8)
    return add_dataset(AddRequest(name="rgb", source=folder / "rgb.npz", root=folder))


def weights(learner, tasks):
    recipe = tasks.data.info.recipe
    shape = (recipe.channels, recipe.height, recipe.width)
    return first_weights(learner, shape, tasks.spec, torch.Generator().manual_seed(0))


def shown(learner, meta, images):
    return learner.embed(meta, images) if isinstance(learner, FixedEmbedding) else images


def observed(learner, meta, task, info):
    """Return the states of a task, one by one."""
    states = [learner.begin(meta, info)]
    for support in task.support_sets:
        given = Support(shown(learner, meta, support.images), support.labels)
        states.append(learner.observe(states[-1], given))
    return states


def leaves(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return (
        [leaf for item in tree for leaf in leaves(item)] if isinstance(tree, list | tuple) else []
    )


SMALLER = {name: {"embedding": DenseNet(filters=4)} for name in ("maml_high", "sca")}
"""The rules do not depend on the size of a net; the published one takes half a GMAC an image."""


def built(name):
    learner = LEARNERS[name].build(**SMALLER.get(name, {}))
    inner = getattr(learner, "inner", learner)
    if not isinstance(getattr(inner, "net", None), ConvNet):
        return learner
    widths = "net.widths" if inner is learner else "inner.net.widths"
    return changed(learner, {widths: [8] * len(inner.net.widths)})


@pytest.fixture(params=list(LEARNERS))
def learner(request):
    return built(request.param)


@pytest.mark.parametrize("shape", list(SPECS))
def test_it_obeys_the_law_and_answers_for_every_task_shape(learner, small, shape):
    tasks = cfsl.Tasks(small, SPECS[shape], numbers=range(2), split="all")
    trace = evaluate(learner, tasks, weights(learner, tasks), progressive=True, table=False)
    assert trace.logits.shape == (2, SPECS[shape].target_images, SPECS[shape].labels)
    assert trace.progressive.shape == (2, SPECS[shape].nss, SPECS[shape].target_images)
    assert not np.isnan(trace.logits).any()


def test_it_works_on_colour_images_of_64_x_64(learner, rgb):
    tasks = cfsl.Tasks(
        rgb, TaskSpec.type_b(nss=2, n_way=2, k_target=2), split="all", numbers=range(1)
    )
    trace = evaluate(learner, tasks, weights(learner, tasks), table=False, law=False)
    assert trace.logits.shape == (1, 8, 4)


def test_asked_twice_it_gives_the_same_answer(learner, small):
    tasks = cfsl.Tasks(small, TaskSpec.type_b(nss=2), numbers=range(2), split="all")
    meta = weights(learner, tasks)
    once, twice = (evaluate(learner, tasks, meta, table=False, law=False) for _ in range(2))
    assert np.array_equal(once.logits, twice.logits)


def test_observe_and_predict_leave_the_old_state_and_the_weights_alone(learner, small):
    tasks = cfsl.Tasks(small, TaskSpec.type_b(nss=3), split="all")
    meta, info, task = weights(learner, tasks), task_info(tasks, 0), tasks[0]
    pristine = {path: tensor.clone() for path, tensor in flatten(meta).items()}

    with torch.no_grad():
        states = [learner.begin(meta, info)]
        for support in task.support_sets:
            before = copy.deepcopy(leaves(states[-1]))
            states.append(
                learner.observe(
                    states[-1], Support(shown(learner, meta, support.images), support.labels)
                )
            )
            assert all(a.equal(b) for a, b in zip(before, leaves(states[-2]), strict=True))

        before = copy.deepcopy(leaves(states[-1]))
        learner.predict(states[-1], shown(learner, meta, task.target.images))
        assert all(a.equal(b) for a, b in zip(before, leaves(states[-1]), strict=True))

    assert all(tensor.equal(pristine[path]) for path, tensor in flatten(meta).items())


def test_its_state_holds_no_graph(learner, small):
    """Weights are detached: memory does not grow with the number of steps."""
    tasks = cfsl.Tasks(small, TaskSpec.type_b(nss=2), split="all")
    with torch.no_grad():
        state = observed(learner, weights(learner, tasks), tasks[0], task_info(tasks, 0))[-1]
    assert not any(leaf.requires_grad or leaf.grad_fn is not None for leaf in leaves(state))


def test_the_law_and_trust_give_the_same_answers(learner, small):
    tasks = cfsl.Tasks(small, TaskSpec.type_d(nss=3, cci=2, n_way=2), numbers=range(2), split="all")
    meta = weights(learner, tasks)
    strict, trusting = (
        evaluate(learner, tasks, meta, table=False, law=law) for law in (True, False)
    )
    assert np.allclose(strict.logits, trusting.logits, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    "name", [n for n in LEARNERS if isinstance(find_learner(n), FixedEmbedding)]
)
def test_a_table_of_embeddings_gives_the_same_answers_as_the_long_way(name, small):
    learner = built(name)
    for spec in (TaskSpec.type_b(nss=3), TaskSpec.type_c(nss=2), TaskSpec.type_d(nss=4, cci=2)):
        tasks = cfsl.Tasks(small, spec, numbers=range(3), split="all")
        meta = weights(learner, tasks)
        quick, long = evaluate(learner, tasks, meta), evaluate(learner, tasks, meta, table=False)
        finite = np.isfinite(long.logits)
        assert np.array_equal(finite, np.isfinite(quick.logits))
        scale = max(1.0, float(np.abs(long.logits[finite]).max()))
        assert float(np.abs(quick.logits[finite] - long.logits[finite]).max()) < 1e-5 * scale
        assert np.array_equal(quick.state_bytes, long.state_bytes)


@pytest.mark.parametrize("name", ["protonet", "multiproto", "pixel_nn", "proto_maml"])
def test_classes_that_were_never_shown_are_never_predicted(name, small):
    learner = find_learner(name)
    tasks = cfsl.Tasks(small, TaskSpec.type_b(nss=3), numbers=range(4), split="all")
    trace = evaluate(learner, tasks, weights(learner, tasks), progressive=True)
    for sets_seen in range(3):
        assert trace.progressive[:, sets_seen].max() < 5 * (sets_seen + 1)


def test_multiproto_is_protonet_where_labels_are_not_used_again(small):
    protonet, multiproto = find_learner("protonet"), find_learner("multiproto")
    for spec in (TaskSpec.type_a(nss=3), TaskSpec.type_b(nss=3), TaskSpec.type_d(nss=4, cci=2)):
        tasks = cfsl.Tasks(small, spec, numbers=range(3), split="all")
        meta = weights(protonet, tasks)
        a, b = evaluate(protonet, tasks, meta), evaluate(multiproto, tasks, meta)
        assert np.allclose(a.logits, b.logits, atol=1e-4)


def test_a_prototype_is_the_mean_over_all_support_sets(small):
    learner = find_learner("protonet")
    tasks = cfsl.Tasks(small, TaskSpec.type_a(nss=4), split="all")
    meta, task = weights(learner, tasks), tasks[0]
    with torch.no_grad():
        state = observed(learner, meta, task, task_info(tasks, 0))[-1]
        images = torch.stack([support.images[2] for support in task.support_sets])
        expected = learner.embed(meta, images).mean(dim=0)
        assert torch.allclose(state["sums"][2] / state["counts"][2], expected, atol=1e-6)
        targets = learner.embed(meta, task.target.images)
        by_hand = -((targets[0] - expected) ** 2).sum()
        assert torch.allclose(learner.predict(state, targets)[0, 2], by_hand, atol=1e-4)


def test_atm_of_protonets_is_the_papers(small):
    learner = find_learner("protonet")
    for nss in (3, 10):
        tasks = cfsl.Tasks(small, TaskSpec.type_b(nss=nss), numbers=range(1), split="all")
        trace = evaluate(learner, tasks, weights(learner, tasks))
        own = trace.state_bytes - trace.bookkeeping_bytes
        assert own.max() / trace.support_bytes == pytest.approx(0.0816, abs=5e-5)


@pytest.mark.parametrize(
    "name",
    [name for name, entry in LEARNERS.items() if entry.weights in (TRAINED_ON_TASKS, META_TRAINED)],
)
def test_what_is_said_to_be_trained_on_tasks_can_be(name):
    assert isinstance(find_learner(name), TrainedOnTasks)


def test_macs_of_protonets_are_those_of_the_hand(small):
    learner = find_learner("protonet")
    tasks = cfsl.Tasks(small, TaskSpec.type_b(nss=3), split="all")
    macs = measure_macs(learner, tasks, weights(learner, tasks))
    norm = 2 * 64 * (14 * 14 + 7 * 7 + 3 * 3 + 1)  # of pooled maps: no scale is negative
    assert macs.adaptation == 15 * (9_815_040 + norm)
    assert macs.prediction == 75 * (9_815_040 + norm) + 75 * 15 * 64


class Diverging:
    """Answers with NaN, as weights that exploded do."""

    def begin(self, meta, info):
        return {"info": info}

    def observe(self, state, support):
        return state

    def predict(self, state, images):
        return torch.full((len(images), state["info"].labels), float("nan"))


def test_a_learner_that_diverges_is_scored_and_not_excused(small):
    from cfsl.cards.card import measurements

    measured = measurements(
        evaluate(
            Diverging(), cfsl.Tasks(small, TaskSpec.type_b(nss=2), numbers=range(2), split="all")
        )
    )
    assert measured["accuracy"]["mean"] == 0 and measured["diverged"] == 1


def test_a_learner_of_ones_own_is_found_by_its_import_path():
    assert type(find_learner("cfsl.learners.chance:Chance")).__name__ == "Chance"
    with pytest.raises(cfsl.CfslError, match=r"package\.module:Class"):
        find_learner("no.such.module:Learner")
    with pytest.raises(UnknownNameError, match="did you mean 'protonet'"):
        find_learner("protonets")


@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        (TaskSpec.type_d(nss=3, cci=2, n_way=2), [1, 1, 2]),
        (TaskSpec.type_a(nss=3, n_way=2), [1, 1, 1]),
        (TaskSpec.type_b(nss=3, n_way=2), [1, 2, 3]),
        (TaskSpec.instance(nss=2, k_shot=3), [1, 2]),
    ],
)
def test_a_trace_tells_how_many_groups_had_been_shown(small, spec, seen):
    tasks = cfsl.Tasks(small, spec, numbers=range(1), split="all")
    assert (
        evaluate(find_learner("chance"), tasks, progressive=True, law=False).seen.tolist() == seen
    )


def test_every_task_gives_a_learner_a_seed_of_its_own_and_always_the_same(small):
    tasks = cfsl.Tasks(small, TaskSpec.type_b(nss=2), split="all")
    seeds = [task_info(tasks, number).seed for number in range(20)]
    assert len(set(seeds)) == 20 and seeds == [
        task_info(tasks, number).seed for number in range(20)
    ]
    others = cfsl.Tasks(small, TaskSpec.type_b(nss=2), split="all", seed=1)
    assert task_info(others, 0).seed != seeds[0]
