"""Learners with learned gradient steps: MAML++ Low-End and High-End, SCA, ANIL and Proto-MAML."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

import cfsl
from cfsl.errors import LearnerError
from cfsl.harness.cost import measure_macs
from cfsl.harness.evaluate import evaluate
from cfsl.harness.macs import counting_macs
from cfsl.harness.run import StrictRun
from cfsl.learners.base import FixedEmbedding, Moment, Support, TaskInfo, first_weights
from cfsl.learners.maml.anil import Anil
from cfsl.learners.maml.critic import critic_weights, predicted_loss
from cfsl.learners.maml.inner_loop import gradient_step, multi_step_weights
from cfsl.learners.maml.maml_high import MamlHigh
from cfsl.learners.maml.maml_low import MamlLow
from cfsl.learners.maml.proto_maml import ProtoMaml
from cfsl.learners.maml.sca import Sca
from cfsl.learners.maml.step_tables import norm_by, norm_by_batch, strip_prefix
from cfsl.learners.registry import find_learner
from cfsl.nets import DenseNet, SqueezeConv, in_channels_last, parameter_count
from cfsl.nets.convnet import convnet
from cfsl.spec import TaskSpec

OMNIGLOT, SLIMAGENET, SMALL = (1, 28, 28), (3, 64, 64), (1, 8, 8)
NET = convnet((3, 2), "conv-norm-act")
EMBEDDING, ON_TOP = DenseNet(filters=2, stages=1, blocks=1, size=3), SqueezeConv(filters=3)
TWO_SETS = TaskSpec.type_b(nss=2, n_way=2, k_target=2)
SAME_CLASSES = TaskSpec.type_a(nss=2, n_way=2, k_target=3)
MIDDLE = Moment(epoch=1, epochs=4)


def low(**fields):
    return MamlLow(**{"net": NET, "norm": "running", "steps": 3, "rate": 0.2} | fields)


def high(**fields):
    return MamlHigh(
        **{"embedding": EMBEDDING, "net": ON_TOP, "norm": "running", "steps": 3, "rate": 0.2}
        | fields
    )


def sca(**fields):
    return Sca(
        **{"embedding": EMBEDDING, "net": ON_TOP, "norm": "running", "steps": 2, "rate": 0.2}
        | fields
    )


def anil(**fields):
    return Anil(**{"net": NET, "steps": 3, "rate": 0.2} | fields)


def proto(**fields):
    return ProtoMaml(**{"net": NET, "norm": "running", "steps": 3, "rate": 0.02} | fields)


VARIANTS = {
    "low": low(),
    "low, support": low(norm="support"),
    "low, batch": low(norm="batch"),
    "low, multi-step": low(multi_step_epochs=3),
    "low, multi-step, support": low(multi_step_epochs=3, norm="support"),
    "high": high(),
    "high, support": high(norm="support"),
    "high, multi-step": high(multi_step_epochs=3),
    "sca": sca(),
    "sca, support": sca(norm="support"),
    "sca, batch, multi-step": sca(norm="batch", multi_step_epochs=3),
    "sca, dilated": sca(critic="dilated"),
    "sca, separate": sca(joint_targets=False),
    "sca, separate, dilated, support": sca(joint_targets=False, critic="dilated", norm="support"),
    "anil": anil(),
    "anil, multi-step": anil(multi_step_epochs=3),
    "proto": proto(),
    "proto, support": proto(norm="support"),
    "proto, reset": proto(again="reset"),
    "proto, multi-step": proto(multi_step_epochs=3),
}
every_variant = pytest.mark.parametrize("learner", VARIANTS.values(), ids=VARIANTS)
ONE_OF_EACH = {name: VARIANTS[name] for name in ("low", "high", "sca", "anil", "proto")}
every_learner = pytest.mark.parametrize("learner", ONE_OF_EACH.values(), ids=ONE_OF_EACH)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labels_of(spec: TaskSpec) -> torch.Tensor:
    starts = [
        0 if spec.overwrite else spec.n_way * (number // spec.interval)
        for number in range(spec.nss)
    ]
    return torch.stack(
        [torch.arange(start, start + spec.n_way).repeat_interleave(spec.k_shot) for start in starts]
    )


def batch_of(spec: TaskSpec, shape=SMALL, tasks: int = 1, seed: int = 0, dtype=torch.float64):
    """Return random images with the labels of the spec, like a TaskBatch, but of any dtype."""
    source, labels = generator(seed), labels_of(spec)
    answers = torch.arange(spec.labels).repeat_interleave(spec.k_target)
    return SimpleNamespace(
        support_images=torch.randn(tasks, *labels.shape, *shape, generator=source, dtype=dtype),
        support_labels=labels.expand(tasks, -1, -1),
        target_images=torch.randn(tasks, len(answers), *shape, generator=source, dtype=dtype),
        target_labels=answers.expand(tasks, -1),
    )


def trained_weights(learner, spec: TaskSpec, shape=SMALL, seed: int = 1, dtype=torch.float64):
    """Return weights as after training: no two rows alike, no weight at a special value."""
    source = generator(seed)
    meta = learner.init_for(shape, spec, source)

    noise = {
        name: torch.randn(t.shape, generator=source, dtype=dtype)
        for name, t in meta["params"].items()
    }
    params = {name: t.to(dtype) + 0.1 * noise[name] for name, t in meta["params"].items()}

    stats = {
        name: torch.rand(t.shape, generator=source, dtype=dtype) + 0.5
        for name, t in meta["stats"].items()
    }
    return params, stats


def info_of(spec: TaskSpec, shape=SMALL) -> TaskInfo:
    return TaskInfo(
        shape, spec.labels, spec.nss, spec.n_way, spec.k_shot, spec.interval, spec.overwrite, seed=3
    )


def supports_of(batch) -> list[Support]:
    return [
        Support(images, labels)
        for images, labels in zip(batch.support_images[0], batch.support_labels[0], strict=True)
    ]


def shown(learner, meta, images):
    return learner.embed(meta, images) if isinstance(learner, FixedEmbedding) else images


def observed(learner, meta, batch, info: TaskInfo):
    state = learner.begin(meta, info)
    for support in supports_of(batch):
        state = learner.observe(
            state, Support(shown(learner, meta, support.images), support.labels)
        )
    return state


def loss_of(learner, params, stats, batch, moment=MIDDLE):
    return learner.episode_loss(params, stats, batch, turns=False, moment=moment)[0]


def gradients_of(learner, params, stats, batch, moment=MIDDLE):
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    values = torch.autograd.grad(
        loss_of(learner, leaves, stats, batch, moment),
        list(leaves.values()),
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(leaves, values, strict=True))


def kind_of(name: str) -> str:
    """Tell adapted weights from those of the head, rates, rows, embedding and critic."""
    first = name.partition(".")[0]
    return first if first in ("head", "rates", "scales", "embedding", "critic") else "adapted"


def directions_for(params, seed: int = 5):
    """Return a random direction for every kind of weight."""
    source = generator(seed)
    every = {
        name: torch.randn(t.shape, generator=source, dtype=t.dtype) for name, t in params.items()
    }
    return {
        kind: {name: d for name, d in every.items() if kind_of(name) == kind}
        for kind in sorted(map(kind_of, every))
    }


def slope_of(learner, params, stats, batch, direction, moment=MIDDLE, step: float = 1e-6) -> float:
    """Return the slope of the loss along a direction, by central differences."""
    values = []
    for sign in (1, -1):
        moved = {name: params[name] + sign * step * along for name, along in direction.items()}
        leaves = {
            name: tensor.clone().requires_grad_() for name, tensor in (params | moved).items()
        }
        values.append(float(loss_of(learner, leaves, stats, batch, moment).detach()))
    return (values[0] - values[1]) / (2 * step)


# --- the gradient


@every_variant
def test_meta_gradients_equal_finite_differences(learner):
    spec = SAME_CLASSES if getattr(learner, "again", "keep") == "reset" else TWO_SETS
    batch = batch_of(spec)
    params, stats = trained_weights(learner, spec)
    gradients = gradients_of(learner, params, stats, batch)

    for kind, direction in directions_for(params).items():
        slope = slope_of(learner, params, stats, batch, direction)
        along = sum(float((gradients[name] * step).sum()) for name, step in direction.items())
        assert along == pytest.approx(slope, rel=1e-5, abs=1e-8), kind
        assert abs(slope) > 1e-6, kind


@every_learner
def test_first_order_leaves_out_how_a_gradient_came_about(learner):
    """Same loss, other gradient; a rate still hears from its own step."""
    batch, (params, stats) = batch_of(TWO_SETS), trained_weights(learner, TWO_SETS)
    short = learner.replace(order="first")

    with_grad = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    assert loss_of(short, with_grad, stats, batch) == loss_of(learner, with_grad, stats, batch)

    second, first = (gradients_of(one, params, stats, batch) for one in (learner, short))
    adapted = [
        name for name in params if f"rates.{name}" in params and second[name].abs().max() > 1e-9
    ]
    assert adapted and not any(
        torch.allclose(first[name], second[name], rtol=1e-3) for name in adapted
    )

    assert all(first[name].any() for name in params if name.startswith("rates."))

    heard = {"maml_low": [6], "maml_high": [6], "sca": [4, 5], "anil": [], "proto_maml": [0, 3, 6]}[
        learner.kind
    ]
    for table in (first[name] for name in params if name.startswith("scales.")):
        assert table.any(dim=1).nonzero().flatten().tolist() == heard


@every_learner
def test_the_first_epochs_may_be_of_first_order(learner):
    batch, (params, stats) = batch_of(TWO_SETS), trained_weights(learner, TWO_SETS)
    annealed, first = learner.replace(first_order_epochs=2), learner.replace(order="first")
    name = next(name for name in params if f"rates.{name}" in params)
    for epoch, same in ((1, first), (2, learner)):
        moment = Moment(epoch, 4)
        expected = gradients_of(same, params, stats, batch, moment)[name]
        assert torch.equal(gradients_of(annealed, params, stats, batch, moment)[name], expected)


@every_variant
def test_training_adapts_to_support_sets_as_evaluation_does(learner):
    batch, (params, stats) = batch_of(SAME_CLASSES), trained_weights(learner, SAME_CLASSES)
    meta = {"params": params, "stats": stats}
    in_evaluation = observed(learner, meta, batch, info_of(SAME_CLASSES))

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    for order in ("first", "second"):
        state = learner.initial_state(leaves, stats, SAME_CLASSES.labels)
        for support in supports_of(batch):
            given = Support(shown(learner, meta, support.images), support.labels)
            state, _ = learner.adapt(state, given, order)
        assert state["step"] == in_evaluation["step"] == 2 * learner.steps
        for part_name in ("weights", "stats"):
            torch.testing.assert_close(
                {n: t.detach() for n, t in state[part_name].items()},
                in_evaluation[part_name],
                rtol=1e-9,
                atol=1e-12,
            )


def test_two_steps_on_a_quadratic_are_those_of_the_hand():
    """For L(w) = a w^2 / 2 a step is w <- (1 - r a) w, and its gradients can be written down."""
    start, rates, a = (
        torch.tensor(v, dtype=torch.float64, requires_grad=True)
        for v in (1.5, [0.3, 0.2], [2.0, 3.0])
    )

    for order in ("second", "first", "none"):
        weights = {"w": start}
        for i in range(2):
            weights = gradient_step(
                lambda w, i=i: a[i] * w["w"] ** 2 / 2, weights, {"w": rates[i]}, order
            )

        expected = (1 - 0.3 * 2) * (1 - 0.2 * 3) * 1.5
        assert float(weights["w"].detach()) == pytest.approx(expected)
        if order == "none":
            assert not weights["w"].requires_grad
            continue

        got = torch.autograd.grad(weights["w"], [start, rates])
        by_hand = (
            (0.4 * 0.4, [-2 * 1.5 * 0.4, -3 * 0.4 * 1.5])
            if order == "second"
            else (1, [-2 * 1.5, -3 * 0.4 * 1.5])
        )
        assert float(got[0]) == pytest.approx(by_hand[0])
        assert got[1].tolist() == pytest.approx(by_hand[1])


def softmax_regression(params, images, labels, steps):
    """ANIL by hand; the gradient of the cross-entropy is (softmax - one hot) x / n."""
    weight, bias, step = params["head.weight"], params["head.bias"], 0
    for x, y in zip(images, labels, strict=True):
        for _ in range(steps):
            error = (x @ weight.T + bias).softmax(dim=1) - functional.one_hot(y, len(bias)).to(x)
            weight = weight - params["rates.head.weight"][step] * error.T @ x / len(x)
            bias = bias - params["rates.head.bias"][step] * error.mean(dim=0)
            step += 1
    return weight, bias


def test_a_linear_head_adapts_as_its_gradient_is_written_by_hand():
    """The second derivation: no gradient of a gradient is asked of torch here."""
    learner, spec = anil(), TWO_SETS
    batch, (params, stats) = batch_of(spec), trained_weights(learner, spec)
    leaves = {name: tensor.requires_grad_() for name, tensor in params.items()}

    (episode,), _ = learner.episodes(leaves, stats, batch)
    images, labels = ([getattr(s, kind) for s in episode.supports] for kind in ("images", "labels"))
    weight, bias = softmax_regression(leaves, images, labels, learner.steps)
    by_hand = functional.cross_entropy(episode.targets @ weight.T + bias, episode.labels)
    expected = torch.autograd.grad(by_hand, list(leaves.values()))

    torch.testing.assert_close(loss_of(learner, leaves, stats, batch), by_hand)
    for got, wanted in zip(
        gradients_of(learner, params, stats, batch).values(), expected, strict=True
    ):
        torch.testing.assert_close(got, wanted)

    meta = {"params": {n: t.detach() for n, t in params.items()}, "stats": stats}
    state = observed(learner, meta, batch, info_of(spec))

    again = [learner.embed(meta, support.images) for support in supports_of(batch)]
    weight, bias = softmax_regression(meta["params"], again, labels, learner.steps)
    torch.testing.assert_close(state["weights"]["head.weight"], weight)
    torch.testing.assert_close(state["weights"]["head.bias"], bias)


# --- the course of a task, by hand


def normed(maps, scale, shift, mean=None, var=None):
    """Batch norm as it is written in a book."""
    if mean is None:
        mean, var = maps.mean(dim=(0, 2, 3)), maps.var(dim=(0, 2, 3), correction=0)
    centred = (maps - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
    return centred * scale[:, None, None] + shift[:, None, None]


def conv_logits(weights, rows, images, stats=None):
    """NET and a head; `stats` or those of the batch."""
    for block in ("block1", "block2"):
        images = functional.conv2d(
            images, weights[f"{block}.conv.weight"], weights[f"{block}.conv.bias"], padding=1
        )
        given = () if stats is None else (stats[f"{block}.norm.mean"], stats[f"{block}.norm.var"])
        images = normed(images, rows[f"{block}.norm.weight"], rows[f"{block}.norm.bias"], *given)
        images = functional.max_pool2d(functional.leaky_relu(images, 0.01), 2)
    return images.flatten(1) @ weights["head.weight"].T + weights["head.bias"]


def squeeze_logits(weights, rows, images, stats=None):
    """ON_TOP and a head, on the maps of EMBEDDING."""

    def excite(maps, name):
        factors = maps.mean(dim=(2, 3)) @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        return maps / (1 + (-factors).exp())[:, :, None, None]

    maps = excite(images.view(len(images), *EMBEDDING.map_shape()), "squeeze1")
    maps = functional.conv2d(maps, weights["conv.weight"], weights["conv.bias"], padding=1)
    given = () if stats is None else (stats["norm.mean"], stats["norm.var"])
    maps = functional.max_pool2d(
        functional.leaky_relu(normed(maps, rows["norm.weight"], rows["norm.bias"], *given), 0.01), 2
    )
    return (
        excite(maps, "squeeze2").mean(dim=(2, 3)) @ weights["head.weight"].T + weights["head.bias"]
    )


BY_HAND = {"low": (low, conv_logits), "high": (high, squeeze_logits), "sca": (sca, squeeze_logits)}
by_hand = pytest.mark.parametrize(("make", "forward"), BY_HAND.values(), ids=BY_HAND)


def row(params, number):
    return {name: table[number] for name, table in strip_prefix(params, "scales.").items()}


def moved(weights, loss, rates, number):
    gradients = torch.autograd.grad(loss, list(weights.values()))
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: (w - rates[name][number] * g).detach().requires_grad_() for (name, w), g in pairs}


def adapted_by_hand(forward, params, sets, steps):
    """Return the weights after every step."""
    rates = strip_prefix(params, "rates.")
    trail = [{name: params[name].clone().requires_grad_() for name in rates}]
    for number in range(len(sets) * steps):
        support = sets[number // steps]
        logits = forward(trail[-1], row(params, number), support.images)
        trail.append(
            moved(trail[-1], functional.cross_entropy(logits, support.labels), rates, number)
        )
    return trail


def prepared(learner, spec=TWO_SETS):
    """Return weights, and support sets and targets as the inner loop sees them in evaluation."""
    batch, (params, stats) = batch_of(spec), trained_weights(learner, spec)
    meta = {"params": params, "stats": stats}
    sets = [
        Support(shown(learner, meta, support.images), support.labels)
        for support in supports_of(batch)
    ]
    return meta, batch, sets, shown(learner, meta, batch.target_images[0])


def after(learner, meta, sets, spec=TWO_SETS):
    state = learner.begin(meta, info_of(spec))
    for support in sets:
        state = learner.observe(state, support)
    return state


@by_hand
def test_every_step_has_its_own_rates_and_row_and_weights_go_from_set_to_set(make, forward):
    learner = make()
    meta, _, sets, _ = prepared(learner)
    trail = adapted_by_hand(forward, meta["params"], sets, learner.steps)
    for count in (1, 2):
        weights = after(learner, meta, sets[:count])["weights"]
        torch.testing.assert_close(
            weights, {n: w.detach() for n, w in trail[count * learner.steps].items()}
        )


@pytest.mark.parametrize(
    ("make", "forward"), [BY_HAND["low"], BY_HAND["high"]], ids=["low", "high"]
)
def test_targets_are_answered_in_the_row_after_the_last_step(make, forward):
    for norm in ("running", "batch"):
        learner = make(norm=norm)
        meta, _, sets, targets = prepared(learner)
        trail = adapted_by_hand(forward, meta["params"], sets, learner.steps)
        stats = strip_prefix(meta["stats"], "targets.") if norm == "running" else None
        for count in (1, 2):
            logits = learner.predict(after(learner, meta, sets[:count]), targets)
            step = count * learner.steps
            expected = forward(trail[step], row(meta["params"], step), targets, stats)
            torch.testing.assert_close(logits, expected.detach())


def test_with_norm_support_targets_are_normalised_by_the_mean_statistics_of_the_sets():
    learner = low(norm="support")
    meta, _, sets, targets = prepared(learner)
    trail = adapted_by_hand(conv_logits, meta["params"], sets, learner.steps)

    maps = [
        functional.conv2d(s.images, w["block1.conv.weight"], w["block1.conv.bias"], padding=1)
        for s, w in zip(sets, (trail[3], trail[6]), strict=True)
    ]

    state = after(learner, meta, sets)
    mean = torch.stack([m.mean(dim=(0, 2, 3)) for m in maps]).mean(dim=0)
    var = torch.stack([m.var(dim=(0, 2, 3)) for m in maps]).mean(dim=0)
    torch.testing.assert_close(state["stats"]["block1.norm.mean"], mean.detach())
    torch.testing.assert_close(state["stats"]["block1.norm.var"], var.detach())

    expected = conv_logits(trail[6], row(meta["params"], 6), targets, state["stats"])
    torch.testing.assert_close(learner.predict(state, targets), expected.detach())


def test_given_statistics_normalise_alike_with_and_without_a_gradient():
    source = generator()
    maps = torch.randn(4, 3, 5, 5, generator=source, dtype=torch.float64)
    scales = {
        f"n.{k}": torch.randn(3, generator=source, dtype=torch.float64) for k in ("weight", "bias")
    }
    stats = {
        f"n.{k}": torch.rand(3, generator=source, dtype=torch.float64) for k in ("mean", "var")
    }

    plain = norm_by(scales, stats)("n", maps)
    torch.testing.assert_close(
        norm_by(scales, {n: t.requires_grad_() for n, t in stats.items()})("n", maps), plain
    )


def critic_by_hand(critic, logits):
    seen = torch.cat([logits, logits.abs(), logits * logits, torch.sign(logits)], dim=1)
    for number in range(2):
        seen = functional.leaky_relu(seen @ critic[f"linear{number}.weight"].T, 0.01)
    return sum(float_of for float_of in (seen @ critic["linear2.weight"].T).flatten())


@pytest.mark.parametrize("joint", [True, False])
def test_sca_takes_one_more_step_by_the_critic_with_its_own_rate_and_rows(joint):
    learner = sca(joint_targets=joint)
    meta, _, sets, targets = prepared(learner)
    params, stats = meta["params"], strip_prefix(meta["stats"], "targets.")
    (*_, weights) = adapted_by_hand(squeeze_logits, params, sets, learner.steps)

    answers = []
    for some in [targets] if joint else targets.split(1):
        logits = squeeze_logits(weights, row(params, 4), some, stats)
        stepped = moved(
            weights,
            critic_by_hand(strip_prefix(params, "critic."), logits),
            strip_prefix(params, "rates."),
            4,
        )
        answers.append(squeeze_logits(stepped, row(params, 5), some, stats).detach())

    torch.testing.assert_close(
        learner.predict(after(learner, meta, sets), targets), torch.cat(answers)
    )


def test_the_critics_say_grows_with_every_target_and_is_blind_to_their_order():
    for kind in ("mlp", "dilated"):
        critic = critic_weights(kind, 5, generator())
        logits = torch.randn(6, 5, generator=generator(1))
        once = predicted_loss(kind, critic, logits)
        torch.testing.assert_close(predicted_loss(kind, critic, logits.repeat(2, 1)), 2 * once)
        torch.testing.assert_close(predicted_loss(kind, critic, logits.flip(0)), once)


# --- the outer loss


def test_multi_step_weights_start_even_and_end_with_the_last():
    assert multi_step_weights(4, 0, 100) == [0.25] * 4
    assert multi_step_weights(5, 50, 100) == pytest.approx([0.1] * 4 + [0.6])
    assert multi_step_weights(15, 99, 100) == pytest.approx([0.001] * 14 + [0.986])
    assert multi_step_weights(3, 100, 100) == multi_step_weights(3, 0, 0) == [0, 0, 1]


def test_the_multi_step_loss_is_the_weighted_loss_after_every_step():
    learner = low(multi_step_epochs=4)
    meta, batch, sets, targets = prepared(learner)
    trail = adapted_by_hand(conv_logits, meta["params"], sets, learner.steps)

    losses = [
        functional.cross_entropy(
            conv_logits(trail[i], row(meta["params"], i), targets), batch.target_labels[0]
        )
        for i in range(1, 7)
    ]

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in meta["params"].items()}
    for epoch, shares in ((0, [1 / 6] * 6), (2, [1 / 12] * 5 + [7 / 12]), (4, [0] * 5 + [1])):
        expected = sum(share * loss for share, loss in zip(shares, losses, strict=True))
        got = loss_of(learner, leaves, meta["stats"], batch, Moment(epoch, 8))
        torch.testing.assert_close(got.detach(), expected.detach())


def test_the_outer_loss_of_sca_moves_from_before_the_critic_to_after():
    learner = sca(norm="batch")
    meta, batch, _, _ = prepared(learner)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in meta["params"].items()}

    (episode,), _ = learner.episodes(leaves, meta["stats"], batch)
    (*_, weights) = adapted_by_hand(squeeze_logits, meta["params"], episode.supports, learner.steps)
    targets, params = episode.targets.detach(), meta["params"]

    logits = squeeze_logits(weights, row(params, 4), targets)
    stepped = moved(
        weights,
        critic_by_hand(strip_prefix(params, "critic."), logits),
        strip_prefix(params, "rates."),
        4,
    )

    before = functional.cross_entropy(
        squeeze_logits(weights, row(params, 4), targets), episode.labels
    )
    then = functional.cross_entropy(
        squeeze_logits(stepped, row(params, 5), targets), episode.labels
    )

    for epoch, share in ((0, 0.375), (1, 0.25), (3, 0.0)):
        got = loss_of(learner, leaves, meta["stats"], batch, Moment(epoch, 4))
        torch.testing.assert_close(got.detach(), (share * before + (1 - share) * then).detach())


@every_learner
def test_the_loss_of_some_tasks_is_the_mean_of_theirs(learner):
    """Up to the statistics of an embedding, which sees the tasks together."""
    batch, (params, stats) = batch_of(TWO_SETS, tasks=3), trained_weights(learner, TWO_SETS)
    episodes, stats = learner.episodes(params, stats, batch)

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    alone = [learner.task_loss(leaves, stats, episode, MIDDLE) for episode in episodes]
    _, together = learner.episode_loss(leaves, stats, batch, turns=False, moment=MIDDLE)

    assert len({float(loss.detach()) for loss, _ in alone}) == 3

    if not isinstance(learner, FixedEmbedding):
        torch.testing.assert_close(
            loss_of(learner, leaves, stats, batch), sum(loss for loss, _ in alone) / 3
        )
        for name in alone[0][1]:
            mean = sum(seen[name] for _, seen in alone) / 3
            old = stats[f"targets.{name}"]
            torch.testing.assert_close(together[f"targets.{name}"], old + 0.1 * (mean - old))
    assert together.keys() == stats.keys()


def test_running_statistics_are_gathered_from_the_targets_after_the_last_step():
    learner = low()
    meta, batch, sets, targets = prepared(learner)
    (*_, last) = adapted_by_hand(conv_logits, meta["params"], sets, learner.steps)
    maps = functional.conv2d(
        targets, last["block1.conv.weight"], last["block1.conv.bias"], padding=1
    )

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in meta["params"].items()}
    _, stats = learner.episode_loss(leaves, meta["stats"], batch, turns=False, moment=MIDDLE)

    for kind, seen in (("mean", maps.mean(dim=(0, 2, 3))), ("var", maps.var(dim=(0, 2, 3)))):
        name = f"targets.block1.norm.{kind}"
        torch.testing.assert_close(stats[name], 0.9 * meta["stats"][name] + 0.1 * seen.detach())
    assert not any(tensor.requires_grad for tensor in stats.values())


@every_variant
def test_training_moves_every_weight_it_should_and_lowers_the_loss(learner):
    batch = batch_of(TWO_SETS, tasks=2, dtype=torch.float32)
    meta = learner.init_for(SMALL, TWO_SETS, generator())
    params = {
        name: tensor.requires_grad_() for name, tensor in in_channels_last(meta["params"]).items()
    }
    before = {name: tensor.detach().clone() for name, tensor in params.items()}

    optimizer, losses, stats = torch.optim.Adam(params.values(), 0.02), [], meta["stats"]
    for _ in range(4):
        optimizer.zero_grad()
        loss, stats = learner.episode_loss(params, stats, batch, turns=False, moment=MIDDLE)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))

    assert losses[-1] < losses[0]

    still = [name for name, tensor in params.items() if torch.equal(tensor, before[name])]
    assert all(
        name.endswith("bias") for name in still
    )  # batch norm, and ReLU in the critic, take no notice of some


def test_taking_turns_is_refused():
    params, stats = trained_weights(low(), TWO_SETS)
    with pytest.raises(LearnerError, match="turns=False"):
        low().episode_loss(params, stats, batch_of(TWO_SETS), turns=True, moment=MIDDLE)


# --- proto-maml


@pytest.mark.parametrize("again", ["keep", "reset"])
def test_a_head_starts_at_the_prototypes_of_the_set(again):
    learner = proto(again=again)
    spec = TaskSpec.type_d(nss=3, cci=2, n_way=2, k_shot=3, k_target=2)
    meta, _, sets, _ = prepared(learner, spec)

    state = learner.begin(meta, info_of(spec))

    for number, support in enumerate(sets):
        head = state["weights"].get("head.weight")
        placed = learner.start_set(state, support)["weights"]
        if number == 1 and again == "keep":
            assert torch.equal(placed["head.weight"], head)
        else:
            norm = norm_by_batch(row(meta["params"], 3 * number), {}, {})
            features = NET.forward(state["weights"], norm, support.images)
            for label in support.labels.unique():
                centre = features[support.labels == label].mean(dim=0)
                torch.testing.assert_close(placed["head.weight"][label], 2 * centre)
                torch.testing.assert_close(placed["head.bias"][label], -centre @ centre)
            others = [label for label in range(4) if label not in support.labels]
            assert head is None or torch.equal(placed["head.weight"][others], head[others])
        state = learner.observe(state, support)


def test_before_any_step_proto_maml_is_protonet():
    learner = proto(norm="batch")
    meta, _, sets, targets = prepared(learner, TaskSpec.few_shot(n_way=4, k_target=2))
    state = learner.begin(meta, info_of(TaskSpec.few_shot(n_way=4)))
    placed = learner.start_set(state, sets[0])
    logits = learner.predict(placed, targets)
    norm = norm_by_batch(row(meta["params"], 0), {}, {})
    prototypes, features = (
        NET.forward(state["weights"], norm, images) for images in (sets[0].images, targets)
    )
    distances = torch.cdist(features, prototypes) ** 2
    torch.testing.assert_close(logits.softmax(dim=1), (-distances).softmax(dim=1))


def test_proto_maml_never_answers_with_a_label_it_was_not_shown_and_fits_any_number_of_labels():
    learner = proto()
    meta, _, sets, targets = prepared(learner)
    logits = learner.predict(after(learner, meta, sets[:1]), targets)
    assert (logits[:, 2:] == float("-inf")).all() and logits[:, :2].isfinite().all()
    wide = TaskSpec.type_b(nss=2, n_way=7)
    meta, _, sets, targets = prepared(learner, wide)
    narrow, _ = trained_weights(learner, TWO_SETS)
    assert {n: t.shape for n, t in narrow.items()} == {
        n: t.shape for n, t in meta["params"].items()
    }
    assert after(learner, meta, sets, wide)["weights"]["head.weight"].shape == (14, 8)


# --- shapes


@every_learner
def test_a_task_of_another_shape_is_refused_with_both_shapes(learner):
    meta = learner.init_for(SMALL, TWO_SETS, generator())
    longer, wider = TaskSpec.type_a(nss=5, n_way=4), TaskSpec.type_b(nss=2, n_way=3)
    have = 2 * learner.steps

    with pytest.raises(
        LearnerError, match=rf"{have} inner steps; .* {5 * learner.steps} steps .*last_set"
    ):
        learner.begin(meta, info_of(longer))

    if learner.kind != "proto_maml":
        with pytest.raises(LearnerError, match=r"for 4 labels and .* has 6 labels"):
            learner.begin(meta, info_of(wider))
    with pytest.raises(LearnerError, match="inner steps"):
        learner.replace(steps=7).begin(meta, info_of(TWO_SETS))
    with pytest.raises(LearnerError, match="init_for"):
        learner.begin({}, info_of(TWO_SETS))


@every_learner
def test_a_task_of_fewer_labels_than_the_head_has_units_is_answered_with_its_own(learner):
    meta, _, sets, targets = prepared(learner)
    shorter = TaskSpec.type_b(nss=1, n_way=2)
    every = learner.predict(after(learner, meta, sets[:1]), targets)
    some = learner.predict(after(learner, meta, sets[:1], shorter), targets)
    assert every.shape[1] == 4 and some.shape[1] == 2
    torch.testing.assert_close(some, every[:, :2], rtol=0, atol=0)


@every_learner
def test_more_sets_than_trained_for_use_the_rows_of_the_last_again(learner):
    """As if the tables had been longer by copies of the last set's rows."""
    longer = TaskSpec.type_a(nss=4, n_way=4)
    learner = learner.replace(extend="last_set")
    params, stats = trained_weights(learner, TWO_SETS)
    steps, rest = learner.steps, learner.rows_after

    def stretched(name, tensor):
        if not name.startswith(("rates.", "scales.")):
            return tensor
        inner = tensor[: 2 * steps]
        return torch.cat([inner, inner[steps:], inner[steps:], tensor[2 * steps :]])

    batch = batch_of(longer)
    plain, extended = (
        observed(learner, {"params": p, "stats": stats}, batch, info_of(longer))
        for p in ({n: stretched(n, t) for n, t in params.items()}, params)
    )

    torch.testing.assert_close(extended["weights"], plain["weights"], rtol=0, atol=0)
    targets = shown(learner, {"params": params, "stats": stats}, batch.target_images[0])
    torch.testing.assert_close(
        learner.predict(extended, targets), learner.predict(plain, targets), rtol=0, atol=0
    )

    assert rest == (learner.kind == "sca")


@every_variant
@pytest.mark.parametrize("shape", [SMALL, (1, 5, 4)], ids=["maps", "single values"])
def test_a_support_set_of_one_image_is_no_trouble(learner, shape):
    spec = TaskSpec.type_b(nss=2, n_way=1, k_target=2)
    learner = (
        learner.replace(net=convnet((3, 2, 2), "conv-norm-act"))
        if shape == SMALL and hasattr(learner.net, "widths")
        else learner
    )

    meta = learner.init_for(shape, spec, generator())
    batch = batch_of(spec, shape, dtype=torch.float32)
    state = observed(learner, meta, batch, info_of(spec, shape))
    assert learner.predict(state, shown(learner, meta, batch.target_images[0])).isfinite().all()

    params = {name: tensor.requires_grad_() for name, tensor in meta["params"].items()}
    loss = loss_of(learner, params, meta["stats"], batch)
    loss.backward()

    assert loss.isfinite() and all(
        t.grad is None or t.grad.isfinite().all() for t in params.values()
    )


# --- what evaluation sees


@every_variant
def test_it_keeps_the_law_and_tells_whether_targets_are_seen_together(learner):
    meta = learner.init_for(SMALL, TWO_SETS, generator())
    batch = batch_of(TWO_SETS, dtype=torch.float32)

    def targets():
        return batch.target_images[0].clone()

    sets = [Support(s.images.clone(), s.labels.clone()) for s in supports_of(batch)]
    with torch.no_grad():
        outcome = StrictRun(learner, meta).task(info_of(TWO_SETS), iter(sets), targets)
    assert outcome.logits.shape == (8, 4)
    assert learner.transductive == (
        learner.norm == "batch" or getattr(learner, "joint_targets", False)
    )


@every_learner
def test_a_state_holds_no_graph_even_if_the_weights_ask_for_gradients(learner):
    params, stats = trained_weights(learner.replace(norm="running"), TWO_SETS)
    meta = {"params": {n: t.requires_grad_() for n, t in params.items()}, "stats": stats}
    state = learner.begin(meta, info_of(TWO_SETS))
    batch = batch_of(TWO_SETS)
    for support in supports_of(batch):
        given = Support(shown(learner, meta, support.images).detach(), support.labels)
        state = learner.observe(state, given)
    assert not any(
        tensor.requires_grad for tensor in (*state["weights"].values(), *state["stats"].values())
    )
    assert not learner.predict(state, shown(learner, meta, batch.target_images[0])).requires_grad


@pytest.mark.parametrize(
    ("name", "shape", "labels", "adapted", "embedding"),
    [
        ("maml_low", OMNIGLOT, 15, 63_567, 0),
        ("maml_low", SLIMAGENET, 15, 75_231, 0),
        ("maml_high", OMNIGLOT, 15, 243_360 + 49 * 15, 453_952),
        ("maml_high", SLIMAGENET, 50, 243_360 + 49 * 50, 455_104),
        ("sca", OMNIGLOT, 15, 243_360 + 49 * 15, 453_952),
        ("anil", OMNIGLOT, 15, 49 * 15, 63_216),
        ("proto_maml", OMNIGLOT, 15, 62_832, 0),
    ],
)
def test_what_adapts_and_what_does_not_has_the_published_size(
    name, shape, labels, adapted, embedding
):
    learner = find_learner(name)
    params = learner.init_for(shape, TaskSpec.type_b(nss=labels // 5), generator())["params"]
    rates, scales = strip_prefix(params, "rates."), strip_prefix(params, "scales.")

    assert parameter_count({n: params[n] for n in rates if n in params}) == adapted
    assert parameter_count(strip_prefix(params, "embedding.")) == embedding
    assert parameter_count(strip_prefix(params, "critic.")) == (1232 if name == "sca" else 0)

    steps = labels + (name == "sca")
    assert all(tensor.shape == (steps,) and (tensor == 0.01).all() for tensor in rates.values())
    assert all(tensor.shape == (steps + 1, 48) for tensor in scales.values())


@pytest.mark.parametrize(
    ("name", "nss", "atm"),
    [
        ("maml_low", 3, 5.41),
        ("maml_low", 10, 1.67),
        ("maml_high", 3, 20.8),
        ("maml_high", 10, 6.27),
        ("sca", 3, 20.8),
        ("sca", 10, 6.27),
    ],
)
def test_memory_is_that_of_the_paper(glyphs, name, nss, atm):
    """The embedding is the state's no matter: a small one will do, if its maps are as large."""
    learner = find_learner(name).replace(norm="running")
    if name != "maml_low":
        learner = learner.replace(embedding=DenseNet(filters=64, stages=1, blocks=4), steps=1)

    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=nss), numbers=range(1), split="all")
    meta = first_weights(learner, OMNIGLOT, tasks.spec, generator())
    trace = evaluate(learner, tasks, meta, table=False)

    own = trace.state_bytes - trace.bookkeeping_bytes
    assert f"{own.max() / trace.support_bytes:.3g}" == f"{atm:.3g}"
    assert trace.bookkeeping_bytes.max() <= 16


@pytest.mark.parametrize(
    ("name", "channels"), [("maml_low", 4 * 48), ("maml_high", 48), ("proto_maml", 4 * 48)]
)
def test_statistics_of_the_support_sets_are_memory_too(glyphs, name, channels):
    learner = find_learner(name)
    if name == "maml_high":
        learner = learner.replace(embedding=DenseNet(filters=4))

    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=2), numbers=range(1), split="all")
    meta = first_weights(learner, OMNIGLOT, tasks.spec, generator())

    traces = [
        evaluate(learner.replace(norm=norm), tasks, meta, table=False)
        for norm in ("support", "running")
    ]
    own, plain = ((trace.state_bytes - trace.bookkeeping_bytes).max() for trace in traces)
    assert own - plain == 2 * channels * 4


def macs_of(learner, glyphs):
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3), split="all")
    return measure_macs(learner, tasks, first_weights(learner, OMNIGLOT, tasks.spec, generator()))


def test_macs_of_maml_low_are_those_of_the_hand(glyphs):
    macs = macs_of(find_learner("maml_low").replace(norm="running"), glyphs)
    convolutions, first, head, norm = 5_605_632, 9 * 48 * 784, 48 * 15, 48 * (784 + 196 + 49 + 9)
    a_step = (
        3 * convolutions - first + 3 * head + 6 * norm
    )  # the images of the first layer need no gradient

    assert macs.adaptation == 15 * 5 * a_step
    pooled_norm = 48 * (196 + 49 + 9 + 1)  # no scale is negative
    assert macs.prediction == 75 * (convolutions + head + 2 * pooled_norm)

    by_support = macs_of(find_learner("maml_low"), glyphs)
    looked_at_again = 15 * (convolutions + head + 2 * norm)
    assert (by_support.adaptation, by_support.prediction) == (
        macs.adaptation + looked_at_again,
        macs.prediction,
    )


def test_macs_of_maml_high_and_sca_are_those_of_the_hand(glyphs):
    normed_by_embedding = 64 * 784 * 5 + 192 * 196 + 64 * 196 * 4 + 320 * 49
    embedding = 100_324_352 + 2 * normed_by_embedding
    squeeze, rest, norm = 320 * 320, 9 * 320 * 48 * 25 + 48 * 48 + 48 * 15, 48 * 25
    answer = squeeze + rest + 2 * norm
    a_step = 2 * squeeze + 3 * rest + 6 * norm  # the means of the maps need no gradient
    critic = 60 * 16 + 16 * 16 + 16

    learners = (find_learner(name).replace(norm="running") for name in ("maml_high", "sca"))
    high_end, self_critical = (macs_of(learner, glyphs) for learner in learners)

    assert high_end.adaptation == self_critical.adaptation == 15 * embedding + 15 * 5 * a_step
    assert high_end.prediction == 75 * (embedding + answer)
    assert self_critical.prediction == 75 * (embedding + a_step + 2 * critic + answer)


def test_an_embedding_is_computed_once_however_many_steps_are_taken():
    counts = []
    for steps in (1, 4):
        learner = high(steps=steps)
        batch = batch_of(TWO_SETS, dtype=torch.float32)
        meta = learner.init_for(SMALL, TWO_SETS, generator())
        params = {name: tensor.requires_grad_() for name, tensor in meta["params"].items()}

        with counting_macs() as macs:
            episodes, _ = learner.episodes(params, meta["stats"], batch)
        with counting_macs() as everything:
            loss_of(learner, params, meta["stats"], batch)

        counts.append(macs.total)
        assert everything.total > macs.total
        assert len(episodes[0].supports) == 2

    assert counts[0] == counts[1]
