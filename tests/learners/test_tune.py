"""Learners that are tuned by gradient descent: Tune, and Ewc and Replay around it."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch.nn import functional

from cfsl.errors import DataFlowError, LearnerError, SpecError, UnknownNameError
from cfsl.harness.run import StrictRun
from cfsl.harness.state import StateCodec
from cfsl.learners.base import Support, TaskInfo
from cfsl.learners.ewc import Ewc, ewc_init, ewc_pretrain, fisher_information
from cfsl.learners.replay import Replay, drawn, exactly, in_levels, pretrain_tune_replay, restored
from cfsl.learners.tune import Tunable, Tune, init_tune, pretrain_tune
from cfsl.nets import SmallResNet, conv4
from cfsl.nets.convnet import convnet
from cfsl.spec import TaskSpec

OMNIGLOT, SLIMAGENET = (1, 28, 28), (3, 64, 64)
NET = conv4(4, "conv-norm-act")
TINY = convnet((3,), "conv-norm-act")
TUNES = [Tune(net=NET, norm=norm, steps=2) for norm in ("running", "support", "batch")]
LEARNERS = [
    *TUNES,
    Ewc(inner=Tune(net=NET, steps=2)),
    Ewc(inner=Tune(net=NET, steps=2, norm="support"), anchors="each", online=True),
    Ewc(inner=Tune(net=NET, steps=2, norm="batch")),
    Replay(inner=Tune(net=NET, steps=2, norm="support"), samples=3),
    Replay(inner=Tune(net=NET, steps=2), store_first=True, keep="float32"),
    Replay(inner=Ewc(inner=Tune(net=NET, steps=2)), sets=1),
    Ewc(inner=Replay(inner=Tune(net=NET, steps=2))),
]
every_learner = pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: name_of(learner))
every_tune = pytest.mark.parametrize("learner", TUNES, ids=lambda learner: name_of(learner))


def name_of(learner) -> str:
    inner = getattr(learner, "inner", None)
    own = type(learner).__name__
    return f"{own}({name_of(inner)})" if inner is not None else f"{own}-{learner.norm}"


def info_of(spec: TaskSpec, shape=OMNIGLOT, seed: int = 3) -> TaskInfo:
    return TaskInfo(
        shape, spec.labels, spec.nss, spec.n_way, spec.k_shot, spec.interval, spec.overwrite, seed
    )


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def supports_of(spec: TaskSpec, shape=OMNIGLOT, seed: int = 0) -> list[Support]:
    """Random images with the labels of the spec."""
    source, sets = generator(seed), []
    for number in range(spec.nss):
        first = 0 if spec.overwrite else spec.n_way * (number // spec.interval)
        labels = torch.arange(first, first + spec.n_way).repeat_interleave(spec.k_shot)
        sets.append(Support(torch.randn(len(labels), *shape, generator=source), labels))
    return sets


def targets(shape=OMNIGLOT, count: int = 6, seed: int = 9) -> torch.Tensor:
    return torch.randn(count, *shape, generator=generator(seed))


def meta_of(learner, shape=OMNIGLOT, seed: int = 1):
    return learner.init(shape, generator(seed))


def started(learner, spec: TaskSpec, shape=OMNIGLOT, seed: int = 3):
    return learner.begin(meta_of(learner, shape), info_of(spec, shape, seed))


def after(learner, spec: TaskSpec, sets: int | None = None, seed: int = 3):
    state = started(learner, spec, seed=seed)
    for support in supports_of(spec)[:sets]:
        state = learner.observe(state, support)
    return state


def same(a, b) -> bool:
    """Compare two trees bit by bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


TASKS = {
    "new classes": TaskSpec.type_b(nss=3),
    "one support set": TaskSpec.few_shot(),
    "the same classes all along": TaskSpec.type_a(nss=3),
    "one way": TaskSpec.type_b(nss=3, n_way=1),
    "several shots": TaskSpec.type_d(nss=3, cci=2, n_way=2, k_shot=3),
    "overwrite": TaskSpec.type_c(nss=3),
}


# What every learner has to do


@every_learner
def test_the_data_flow_law_is_kept_on_every_kind_of_task(learner):
    run = StrictRun(learner, meta_of(learner))
    for spec in TASKS.values():
        with torch.no_grad():
            outcome = run.task(info_of(spec), iter(supports_of(spec)), targets, progressive=True)
        assert outcome.logits.shape == (6, spec.labels) and len(outcome.progressive) == spec.nss
        assert outcome.state_bytes[1] > outcome.state_bytes[0]


@every_learner
def test_the_data_flow_law_is_kept_on_colour_images(learner):
    spec = TaskSpec.type_b(nss=2, n_way=2)
    run = StrictRun(learner, meta_of(learner, SLIMAGENET))
    with torch.no_grad():
        outcome = run.task(
            info_of(spec, SLIMAGENET),
            iter(supports_of(spec, SLIMAGENET)),
            lambda: targets(SLIMAGENET, 4),
        )
    assert outcome.logits.shape == (4, 4)


@every_learner
def test_predicting_twice_gives_the_same_and_changes_nothing(learner):
    state = after(learner, TASKS["new classes"])
    before = copy.deepcopy(state)
    first, second = learner.predict(state, targets()), learner.predict(state, targets())
    assert torch.equal(first, second) and same(state, before)


@every_learner
def test_observing_leaves_the_old_state_and_the_learned_weights_alone(learner):
    spec, meta = TASKS["new classes"], meta_of(learner)
    pristine = copy.deepcopy(meta)
    state = learner.begin(meta, info_of(spec))
    for support in supports_of(spec):
        before = copy.deepcopy(state)
        new = learner.observe(state, support)
        assert same(state, before) and not same(learner.weights(new), learner.weights(state))
        state = new
    assert same(meta, pristine)


@every_learner
def test_a_task_depends_on_its_seed_and_on_nothing_else(learner):
    spec = TASKS["new classes"]
    assert same(after(learner, spec), after(learner, spec))
    assert not same(after(learner, spec, seed=3), after(learner, spec, seed=4))


@every_learner
def test_memory_does_not_grow_with_the_number_of_steps(learner):
    few, many = learner, with_steps(learner, 40)
    counts = []
    for one in (few, few, many):
        state = after(one, TaskSpec.type_b(nss=2, n_way=2))
        gc.collect()
        counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
        leaves = list(one.weights(state).values())
        assert not any(leaf.requires_grad or leaf.grad_fn for leaf in leaves)
        del state, leaves
    assert counts[1] == counts[2]


def with_steps(learner, steps: int):
    if hasattr(learner, "inner"):
        return learner.replace(inner=with_steps(learner.inner, steps))
    return learner.replace(steps=steps)


@every_learner
def test_a_learner_is_a_value_that_survives_json(learner):
    assert isinstance(learner, Tunable)
    if name_of(learner).startswith("Ewc(Replay"):
        with pytest.raises(UnknownNameError, match="kind of inner learner 'replay'"):
            type(learner).from_json(learner.canonical_json())
    else:
        assert type(learner).from_json(learner.canonical_json()) == learner


@pytest.mark.parametrize("wrapper", [Ewc, Replay])
def test_only_a_learner_that_takes_steps_can_be_wrapped(wrapper):
    with pytest.raises(SpecError):
        wrapper(inner=NET)


# Tune


def test_the_defaults_are_the_papers():
    tune = pretrain_tune()
    assert (tune.steps, tune.lr, tune.norm, tune.net) == (
        5,
        0.01,
        "support",
        conv4(48, "conv-norm-act"),
    )

    assert init_tune() == tune.replace(norm="support")
    assert ewc_init(strength=7.0) == Ewc(inner=init_tune(), strength=7.0) and ewc_pretrain() == Ewc(
        inner=tune
    )

    replay = pretrain_tune_replay(sets=4)
    assert replay == Replay(inner=tune, sets=4) and (replay.samples, replay.store_first) == (
        10,
        False,
    )


@every_tune
def test_only_batch_statistics_make_it_transductive(learner):
    assert (
        learner.transductive
        == Ewc(inner=learner).transductive
        == Replay(inner=learner).transductive
    )
    assert learner.transductive == (learner.norm == "batch")


@pytest.mark.parametrize("shape", [OMNIGLOT, (3, 32, 32)])
def test_every_step_and_every_answer_under_the_law_is_in_channels_last(monkeypatch, shape):
    learner, spec, layouts = Tune(net=NET, steps=2), TASKS["new classes"], []
    forward = type(NET).forward

    def watched(self, params, norm, images):
        several = [weight for weight in params.values() if weight.ndim == 4 and weight.shape[1] > 1]
        layouts.extend(
            weight.is_contiguous(memory_format=torch.channels_last) for weight in several
        )
        return forward(self, params, norm, images)

    monkeypatch.setattr(type(NET), "forward", watched)
    run = StrictRun(learner, meta_of(learner, shape))
    run.task(info_of(spec, shape), iter(supports_of(spec, shape)), lambda: targets(shape))
    assert layouts and all(layouts)


def test_the_harness_finds_out_who_looks_at_targets_jointly(monkeypatch):
    monkeypatch.setattr(Tune, "transductive", False)
    spec, learner = TASKS["new classes"], Tune(net=NET, norm="batch")
    with pytest.raises(DataFlowError, match="looks at them jointly"):
        StrictRun(learner, meta_of(learner)).task(info_of(spec), iter(supports_of(spec)), targets)


def hand_logits(params, images, *, by_batch: bool):
    """Compute one block of three filters and a head, from scratch."""
    maps = functional.conv2d(
        images, params["block1.conv.weight"], params["block1.conv.bias"], padding=1
    )

    if by_batch:
        mean = maps.mean(dim=(0, 2, 3), keepdim=True)
        var = maps.var(dim=(0, 2, 3), keepdim=True, correction=0)
        maps = (maps - mean) / (var + 1e-5).sqrt()
    else:
        maps = maps / (1 + 1e-5) ** 0.5

    maps = functional.max_pool2d(functional.leaky_relu(maps, 0.01), 2)
    return maps.flatten(1) @ params["head.weight"].T + params["head.bias"]


@pytest.mark.parametrize("norm", ["running", "support", "batch"])
def test_a_step_is_gradient_descent_on_the_cross_entropy(norm):
    learner = Tune(net=TINY, norm=norm, lr=0.3)
    spec = TaskSpec.few_shot(n_way=3, k_shot=2)
    state, (support,) = started(learner, spec, (1, 6, 6)), supports_of(spec, (1, 6, 6))

    params = {name: weight.clone().requires_grad_() for name, weight in state["weights"].items()}
    assert set(params) == {"block1.conv.weight", "block1.conv.bias", "head.weight", "head.bias"}

    logits = hand_logits(params, support.images, by_batch=norm != "running")
    loss = (
        -logits.log_softmax(dim=1)[torch.arange(6), support.labels].mean() + params["head.bias"][0]
    )
    loss.backward()

    new = learner.step(state, support, penalty=lambda weights: weights["head.bias"][0])
    for name, weight in params.items():
        torch.testing.assert_close(
            new["weights"][name], (weight - 0.3 * weight.grad).detach(), rtol=1e-4, atol=1e-6
        )
    assert (new["weights"]["head.weight"] - params["head.weight"]).abs().max() > 1e-3


@every_tune
def test_observing_is_so_many_steps(learner):
    spec = TaskSpec.few_shot()
    state, (support,) = started(learner, spec), supports_of(spec)
    by_hand = state
    for _ in range(2):
        by_hand = learner.step(by_hand, support)
    assert same(learner.weights(learner.observe(state, support)), learner.weights(by_hand))


@every_tune
def test_scale_and_shift_of_batch_norm_are_never_tuned(learner):
    meta = meta_of(learner)
    state = learner.observe(
        learner.begin(meta, info_of(TASKS["new classes"])), supports_of(TASKS["new classes"])[0]
    )
    assert not any(".norm." in name for name in state["weights"])
    assert len(state["scales"]) == 8
    assert all(tensor is meta["params"][name] for name, tensor in state["scales"].items())


def test_every_task_has_a_new_head_and_the_same_backbone():
    learner, spec = Tune(net=NET), TASKS["new classes"]
    meta = meta_of(learner)
    one, other = (learner.begin(meta, info_of(spec, seed=seed))["weights"] for seed in (1, 2))
    assert one["head.weight"].shape == (15, 4) and not torch.equal(
        one["head.weight"], other["head.weight"]
    )

    bound = (6 / (15 + 4)) ** 0.5
    assert 0.8 * bound < one["head.weight"].abs().max() <= bound and not one["head.bias"].any()

    backbone = set(one) - {"head.weight", "head.bias"}
    assert len(backbone) == 8 and all(
        one[name] is other[name] is meta["params"][name] for name in backbone
    )


def test_what_else_is_in_meta_is_left_alone():
    learner, spec = Tune(net=NET), TASKS["new classes"]
    meta = meta_of(learner)
    head = {"head.weight": torch.full((99, 4), 7.0), "head.bias": torch.full((99,), 7.0)}
    more = {"params": meta["params"] | head, "stats": meta["stats"], "head": head}
    assert same(learner.begin(more, info_of(spec)), learner.begin(meta, info_of(spec)))


@pytest.mark.parametrize("broken", [{}, {"params": {}, "stats": {}}, {"params": "all"}])
def test_a_backbone_that_is_not_there_is_named(broken):
    learner = Tune(net=NET)
    meta = {"params": meta_of(learner)["params"]} if broken == {"params": "all"} else broken
    missing = (
        "there is no 'stats'" if broken == {"params": "all"} else "no weights of 'block1.conv'"
    )
    with pytest.raises(LearnerError, match=missing):
        learner.begin(meta, info_of(TASKS["new classes"]))


def test_weights_are_carried_over_to_the_next_set():
    learner, spec = Tune(net=NET), TASKS["the same classes all along"]
    first, second = supports_of(spec)[:2]
    state = started(learner, spec)
    carried = learner.observe(learner.observe(state, first), second)
    assert not same(carried["weights"], learner.observe(state, second)["weights"])


def test_for_one_support_set_targets_are_normalised_by_its_statistics():
    learner, spec = Tune(net=NET, norm="support"), TaskSpec.few_shot(k_shot=2)
    (support,) = supports_of(spec)
    state = learner.observe(started(learner, spec), support)
    by_batch = Tune(net=NET, norm="batch").predict(state, support.images)
    # Running variances are unbiased (10 images of 3 x 3 values at the last layer), and those of a
    # batch are not.
    torch.testing.assert_close(
        learner.predict(state, support.images), by_batch, rtol=0.02, atol=0.02
    )
    assert not torch.allclose(
        learner.predict(state, targets()), Tune(net=NET).predict(started(learner, spec), targets())
    )


def test_statistics_are_the_mean_over_the_support_sets_at_the_weights_after_each():
    learner, spec = Tune(net=TINY, norm="support"), TASKS["new classes"]
    state, means = started(learner, spec, (1, 6, 6)), []
    for support in supports_of(spec, (1, 6, 6)):
        state = learner.observe(state, support)
        weight, bias = (state["weights"][f"block1.conv.{part}"] for part in ("weight", "bias"))
        means.append(functional.conv2d(support.images, weight, bias, padding=1).mean(dim=(0, 2, 3)))

    torch.testing.assert_close(
        state["stats"]["block1.norm.mean"], torch.stack(means).mean(dim=0), rtol=1e-4, atol=1e-6
    )
    assert state["sets"] == 3


@pytest.mark.parametrize("norm", ["running", "support", "batch"])
def test_a_support_set_of_one_image_is_no_division_by_zero(norm):
    """The last batch norm of this net is behind a projection: one value a channel."""
    learner = Tune(net=SmallResNet(widths=(4, 4), embedding=8), norm=norm)
    spec = TaskSpec.type_b(nss=2, n_way=1)
    run = StrictRun(learner, meta_of(learner))
    outcome = run.task(info_of(spec), iter(supports_of(spec)), lambda: targets(count=1))
    assert torch.isfinite(outcome.logits).all() and outcome.logits.abs().max() < 100


@pytest.mark.parametrize(
    ("norm", "statistics"), [("running", 0), ("batch", 0), ("support", 2 * 4 * 48)]
)
def test_tuned_weights_are_what_is_remembered(norm, statistics):
    """The across-task memory of appendix A: all of Conv-4 and the head, and nothing else."""
    learner, spec = Tune(norm=norm), TaskSpec.type_b(nss=3)
    outcome = StrictRun(learner, meta_of(learner)).task(
        info_of(spec), iter(supports_of(spec)), targets
    )
    floats = [
        size - books
        for size, books in zip(outcome.state_bytes, outcome.bookkeeping_bytes, strict=True)
    ]
    assert floats == [4 * 49 * 15] + [4 * (62_832 + 49 * 15 + statistics)] * 3
    assert outcome.bookkeeping_bytes == [8 if norm == "support" else 0] * 4


def test_targets_are_predicted_in_parts_of_the_same_answer():
    learner, spec = Tune(net=NET, norm="support"), TASKS["new classes"]
    state, images = after(learner, spec), targets(count=150)
    whole = learner.logits(state, state["weights"], images)
    torch.testing.assert_close(learner.predict(state, images), whole)


def separable(seed: int, nss: int = 1):
    """Classes of one bright quarter each, with noise."""
    source = generator(seed)
    for number in range(nss):
        labels = (
            torch.arange(4).repeat(3)
            if nss == 1
            else torch.arange(2 * number, 2 * number + 2).repeat(4)
        )

        images = 0.5 * torch.randn(len(labels), 1, 28, 28, generator=source)
        for image, label in zip(images, labels.tolist(), strict=True):
            row, column = 14 * (label // 2), 14 * (label % 2)
            image[0, row : row + 14, column : column + 14] += 2
        yield Support(images, labels)


def accuracy(learner, spec: TaskSpec, sets: int = 1) -> float:
    state = started(learner, spec)
    for support in separable(0, sets):
        state = learner.observe(state, support)
    (test,) = separable(1)
    return float((learner.predict(state, test.images).argmax(dim=1) == test.labels).float().mean())


@every_tune
def test_tuning_learns(learner):
    spec = TaskSpec.few_shot(n_way=4, k_shot=3)
    assert accuracy(learner.replace(net=conv4(8, "conv-norm-act"), steps=100, lr=0.1), spec) >= 0.9


# Ewc


SPLIT = TaskSpec.type_b(nss=2, n_way=2, k_shot=4)


@every_tune
def test_with_no_strength_ewc_is_plain_tuning_bit_for_bit(learner):
    spec = TASKS["new classes"]
    plain, free = after(learner, spec), after(Ewc(inner=learner, strength=0.0), spec)
    assert same(free["inner"], plain)


@every_tune
def test_the_first_set_is_tuned_without_a_penalty_whatever_its_strength(learner):
    spec, ewc = TASKS["new classes"], Ewc(inner=learner, strength=1e8)
    assert same(after(ewc, spec, sets=1)["inner"], after(learner, spec, sets=1))
    assert not same(after(ewc, spec, sets=2)["inner"], after(learner, spec, sets=2))


def way_at_second_set(learner: Ewc) -> float:
    """Return how far the second set moves the weights, by the Fisher information of the first."""
    first, second = (after(learner, SPLIT, sets=sets) for sets in (1, 2))
    return float(
        learner.replace(strength=1.0, capped=False).penalty(first, learner.weights(second))
    )


def test_strength_shortens_the_way_and_a_huge_one_holds_the_weights():
    """With a capped curvature every step starts from the anchor: 20 steps lead as far as one."""
    tune = Tune(net=NET, lr=0.05, steps=20)
    ways = [
        way_at_second_set(Ewc(inner=tune, strength=strength))
        for strength in (0.0, 1.0, 10.0, 100.0, 1e12)
    ]
    assert ways[0] > 2 * ways[1] > 4 * ways[2] > 8 * ways[3]
    assert ways[4] < 0.02 * ways[0]


def test_without_the_cap_gradient_descent_diverges():
    tune = Tune(net=NET, norm="support", steps=10)
    capped, free = (
        way_at_second_set(Ewc(inner=tune, strength=1e4, capped=capped)) for capped in (True, False)
    )
    assert capped < 0.01 and not free < 100


def quadratic(learner: Ewc, fisher: float, anchor: float, weight: float) -> float:
    state = {"fisher": {"w": torch.tensor([fisher])}, "anchors": {"w": torch.tensor([anchor])}}
    return float(learner.penalty(state, {"w": torch.tensor([weight])}))


def test_the_penalty_is_half_the_strength_times_the_quadratic():
    ewc = Ewc(inner=Tune(net=NET, lr=0.01), strength=100.0)
    assert quadratic(ewc, 0.5, 1.0, 3.0) == pytest.approx(100 / 2 * 0.5 * 4)
    assert quadratic(ewc, 5.0, 1.0, 3.0) == pytest.approx(1 / 0.01 / 2 * 4)
    assert quadratic(ewc.replace(capped=False), 5.0, 1.0, 3.0) == pytest.approx(100 / 2 * 5 * 4)


def test_an_ewc_step_adds_the_gradient_of_its_penalty_to_that_of_its_caller():
    ewc = Ewc(inner=Tune(net=NET), strength=100.0)
    state = ewc.step(after(ewc, SPLIT, sets=1), supports_of(SPLIT)[1])
    step, plain = (learner.step for learner in (ewc, ewc.replace(strength=0.0)))

    with_both, without = (
        take(state, supports_of(SPLIT)[1], penalty)["inner"]["weights"]["head.weight"]
        for take, penalty in ((step, lambda w: 3 * w["head.weight"].sum()), (plain, None))
    )

    curvature = (100 * state["fisher"]["head.weight"]).clamp(max=100)
    pull = curvature * (state["inner"]["weights"]["head.weight"] - state["anchors"]["head.weight"])
    assert pull.abs().max() > 1e-4
    torch.testing.assert_close(without - with_both, 0.01 * (pull + 3), rtol=1e-3, atol=1e-6)


def fisher_of_a_linear_model(features, weight, bias, labels):
    """Written out: d log p(y | x) / d (W, b) = (onehot(y) - p) (x, 1)."""
    residual = functional.one_hot(labels, len(bias)) - (features @ weight.T + bias).softmax(dim=1)
    return (residual[:, :, None] * features[:, None, :]).square().mean(
        dim=0
    ), residual.square().mean(dim=0)


@every_tune
def test_the_fisher_information_is_the_mean_square_of_each_images_gradient(learner):
    """For the head, which is a linear model of the features."""
    spec = TaskSpec.few_shot(n_way=3, k_shot=2)
    (support,) = supports_of(spec)
    state = learner.observe(started(learner, spec), support)

    identity = {"head.weight": torch.eye(4), "head.bias": torch.zeros(4)}
    features = learner.logits(state, state["weights"] | identity, support.images)
    weight, bias = state["weights"]["head.weight"], state["weights"]["head.bias"]

    by_hand = fisher_of_a_linear_model(features, weight, bias, support.labels)

    fisher = fisher_information(learner, state, support)
    torch.testing.assert_close(fisher["head.weight"], by_hand[0], rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(fisher["head.bias"], by_hand[1], rtol=1e-3, atol=1e-7)
    assert fisher.keys() == state["weights"].keys() and all(f.min() >= 0 for f in fisher.values())
    assert fisher["block1.conv.weight"].max() > 0


@pytest.mark.parametrize(("online", "kept"), [(False, 1.0), (True, 0.7)])
def test_fishers_add_up_and_the_anchors_are_the_last_weights(online, kept):
    ewc = Ewc(inner=Tune(net=NET), online=online, decay=0.7)
    first, second = after(ewc, SPLIT, sets=1), after(ewc, SPLIT, sets=2)
    new = fisher_information(ewc.inner, second["inner"], supports_of(SPLIT)[1])
    for name, fisher in second["fisher"].items():
        torch.testing.assert_close(fisher, kept * first["fisher"][name] + new[name])
    assert same(first["anchors"], first["inner"]["weights"]) and same(
        second["anchors"], second["inner"]["weights"]
    )


def test_anchors_for_each_set_make_the_sum_of_their_quadratics():
    """Differences of the penalty count: the two sums differ by a constant."""
    ewc = Ewc(inner=Tune(net=NET), strength=1.0, anchors="each")
    first, second = after(ewc, SPLIT, sets=1), after(ewc, SPLIT, sets=2)

    new = fisher_information(ewc.inner, second["inner"], supports_of(SPLIT)[1])
    summands = [first, {"fisher": new, "anchors": second["inner"]["weights"]}]
    places = [
        second["inner"]["weights"],
        {name: 3 * weight for name, weight in first["anchors"].items()},
    ]

    merged = ewc.penalty(second, places[1]) - ewc.penalty(second, places[0])
    separate = sum(ewc.penalty(one, places[1]) - ewc.penalty(one, places[0]) for one in summands)
    torch.testing.assert_close(merged, separate, rtol=1e-4, atol=1e-6)
    assert not same(second["anchors"], second["inner"]["weights"])


def test_ewc_remembers_three_times_the_weights():
    learner, spec = Ewc(inner=Tune()), TaskSpec.type_b(nss=2)
    outcome = StrictRun(learner, meta_of(learner)).task(
        info_of(spec), iter(supports_of(spec)), targets
    )
    assert outcome.state_bytes == [4 * 49 * 10] + [3 * 4 * (62_832 + 49 * 10)] * 2


# Replay


@pytest.mark.parametrize("nothing", [{"sets": 0}, {"samples": 0}, {"sets": 0, "store_first": True}])
@every_tune
def test_with_nothing_to_replay_it_is_plain_tuning(learner, nothing):
    spec = TASKS["new classes"]
    state = after(Replay(inner=learner, **nothing), spec)
    assert same(state["inner"], after(learner, spec))
    assert len(state["stored"]) == (0 if nothing.get("sets") == 0 else 2)


def test_replay_changes_what_is_learned_from_the_second_set_on():
    learner, spec = Tune(net=NET), TASKS["new classes"]
    replay = Replay(inner=learner)
    assert same(after(replay, spec, sets=1)["inner"], after(learner, spec, sets=1))
    assert not same(after(replay, spec, sets=2)["inner"], after(learner, spec, sets=2))
    first = Replay(inner=learner, store_first=True)
    assert not same(after(first, spec, sets=1)["inner"], after(learner, spec, sets=1))


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_the_memory_is_a_queue_of_so_many_sets(sets):
    spec = TaskSpec.type_b(nss=5, n_way=2)
    learner = Replay(inner=Tune(net=TINY, steps=1), sets=sets, keep="float32")
    state = started(learner, spec)

    for number, support in enumerate(supports_of(spec), start=1):
        state = learner.observe(state, support)
        expected = supports_of(spec)[:number][-sets:]
        assert [one["labels"].tolist() for one in state["stored"]] == [
            one.labels.tolist() for one in expected
        ]
        assert all(
            torch.equal(one["images"], two.images)
            for one, two in zip(state["stored"], expected, strict=True)
        )


class Spy:
    """A learner that notes the batches it is given, in its state."""

    steps, lr, transductive = 4, 0.01, False

    def init(self, image_shape, generator):
        raise NotImplementedError

    def begin(self, meta, info):
        return []

    def observe(self, state, support):
        raise AssertionError("a wrapper takes the steps itself")

    def predict(self, state, images):
        raise NotImplementedError

    def step(self, state, support, penalty=None):
        return [*state, support]

    def consolidate(self, state, support):
        return [*state, "consolidated"]

    def weights(self, state):
        raise NotImplementedError

    def logits(self, state, weights, images):
        raise NotImplementedError


def batches_of(seed: int = 3, **fields) -> list[list[Support]]:
    """Return the batches of each set; images are told apart by their labels."""
    learner, info = Replay(inner=Spy(), **fields), info_of(TaskSpec.type_b(nss=4), seed=seed)
    state = learner.begin({}, info)
    for support in supports_of(TaskSpec.type_b(nss=4)):
        state = learner.observe(state, support)
    assert [one == "consolidated" for one in state["inner"]] == ([False] * 4 + [True]) * 4
    return [state["inner"][5 * number : 5 * number + 4] for number in range(4)]


@pytest.mark.parametrize("store_first", [False, True])
@pytest.mark.parametrize("samples", [1, 7, 10, 99])
def test_every_step_has_the_current_set_and_samples_without_replacement(samples, store_first):
    originals = supports_of(TaskSpec.type_b(nss=4))
    for number, batches in enumerate(
        batches_of(samples=samples, store_first=store_first, keep="float32")
    ):
        last = number + 1 if store_first else number

        stored = torch.cat(
            [torch.zeros(0, dtype=torch.int64)]
            + [s.labels for s in originals[max(0, last - 2) : last]]
        )

        for batch in batches:
            current, replayed = batch.labels[:5], batch.labels[5:].tolist()
            assert torch.equal(current, originals[number].labels)
            assert torch.equal(batch.images[:5], originals[number].images)
            assert len(replayed) == min(samples, len(stored))
            assert len(set(replayed)) == len(replayed) and set(replayed) <= set(stored.tolist())
            everything = torch.cat([one.images for one in originals])
            assert torch.equal(batch.images[5:], everything[replayed])


def test_every_step_and_every_seed_draws_anew():
    first, again, other = (
        [b.labels.tolist() for b in batches_of(seed, samples=5)[3]] for seed in (3, 3, 4)
    )
    assert first == again and first != other
    assert len(set(map(tuple, first))) == 4


def test_every_stored_image_is_as_likely_as_another():
    stored = [exactly(support) for support in supports_of(TASKS["new classes"])]
    counts = torch.zeros(15)
    for seed in range(600):
        (batch,) = drawn(stored, 5, generator(seed))
        counts[batch.labels] += 1
    assert ((counts - 200).abs() < 5 * (600 / 3 * 2 / 3) ** 0.5).all()


def test_nothing_is_drawn_from_nothing():
    assert drawn([], 5, generator(0)) == []


def test_two_valued_images_come_back_exactly_from_a_quarter_of_the_memory():
    images = torch.where(torch.rand(5, 3, 8, 8, generator=generator(0)) > 0.5, 0.137, -2.2)
    images[0] = 0.6
    support = Support(images, torch.arange(5))
    assert torch.equal(restored(in_levels(support)).images, images)
    info = info_of(TASKS["new classes"])
    exact, levels = (StateCodec({}, info).pack(how(support)) for how in (exactly, in_levels))
    assert exact.total == 5 * 3 * 64 * 4 + 40 and levels.total == 5 * 3 * (64 + 8) + 40


def test_other_images_come_back_within_half_a_level():
    images = torch.randn(5, 3, 8, 8, generator=generator(0)) * torch.tensor([0.1, 1, 10]).view(
        3, 1, 1
    )
    error = (restored(in_levels(Support(images, torch.arange(5)))).images - images).abs()
    level = (images.amax(dim=(2, 3)) - images.amin(dim=(2, 3))) / 255
    assert (error.amax(dim=(2, 3)) <= 0.501 * level).all() and (
        error.amax(dim=(2, 3)) > 0.3 * level
    ).all()


@pytest.mark.parametrize(("keep", "an_image"), [("uint8", 784 + 8), ("float32", 4 * 784)])
def test_stored_images_count_as_memory(keep, an_image):
    learner, spec = Replay(inner=Tune(net=NET), keep=keep), TaskSpec.type_b(nss=4)
    outcome = StrictRun(learner, meta_of(learner)).task(
        info_of(spec), iter(supports_of(spec)), targets
    )
    plain = StrictRun(learner.inner, meta_of(learner)).task(
        info_of(spec), iter(supports_of(spec)), targets
    )
    more = [a - b for a, b in zip(outcome.state_bytes, plain.state_bytes, strict=True)]
    assert more == [8 + 5 * sets * (an_image + 8) for sets in (0, 1, 2, 2, 2)]


def test_replay_remembers_what_tuning_forgets():
    tune = Tune(net=conv4(8, "conv-norm-act"), norm="support", steps=60, lr=0.1)
    spec = TaskSpec.type_b(nss=2, n_way=2, k_shot=4)
    assert accuracy(tune, spec, 2) <= 0.6 < 0.9 <= accuracy(Replay(inner=tune), spec, 2)
