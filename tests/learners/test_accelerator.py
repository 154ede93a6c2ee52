"""The accelerator of MAML++ Low-End: the numbers of autograd, kernels that agree with torch."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import cfsl
from cfsl.errors import LearnerError
from cfsl.harness.workers import Workers
from cfsl.learners.base import Moment, Support, TaskInfo
from cfsl.learners.maml import accelerated as accelerated_module
from cfsl.learners.maml.accelerated import accelerated, why_not
from cfsl.learners.maml.maml_low import MamlLow
from cfsl.learners.protonet import ProtoNet
from cfsl.nets.convnet import SLOPE, conv4, convnet
from cfsl.nets.layers import EPS
from cfsl.spec import TaskSpec

pytest.importorskip("numba")

from cfsl.learners.maml import second_order
from cfsl.nets.fused import convolution, norm_pool
from cfsl.nets.fused.blocks import Block

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script:DeprecationWarning"
)  # torch.func.jvp uses it
EARLY = Moment(1, 4)
SIZES = [(2, 5, 7), (3, 6, 6), (1, 3, 4), (2, 1, 1), (1, 2, 2)]
sizes = pytest.mark.parametrize(("images", "height", "width"), SIZES)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def in_windows(maps: torch.Tensor) -> np.ndarray:
    """Return maps (images, channels, height, width) in the layout of the kernels.

    Outside of the maps are zeros.
    """
    n, channels, height, width = maps.shape
    rows, columns = -(-height // 2), -(-width // 2)
    padded = functional.pad(maps.detach(), (0, 2 * columns - width, 0, 2 * rows - height))
    split = padded.reshape(n, channels, rows, 2, columns, 2).permute(3, 5, 0, 2, 4, 1)
    return split.reshape(4, n, rows, columns, channels).contiguous().numpy()


def channels_last(maps: torch.Tensor) -> np.ndarray:
    return maps.detach().permute(0, 2, 3, 1).contiguous().numpy()


def as_stack(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().permute(2, 3, 1, 0).flatten(0, 1).contiguous()


def close(ours, theirs, tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=tolerance, atol=tolerance)


# --- convolutions


@sizes
@pytest.mark.parametrize("kind", ["patches", "winograd"])
def test_a_convolution_and_its_derivatives_are_torchs(images, height, width, kind, monkeypatch):
    monkeypatch.setattr(convolution, "_CHUNK", 16 * 12 * 4)  # so that images come in several chunks
    block = Block(height, width, 3, 4)
    inside = in_windows(torch.ones(images, 4, height, width, dtype=torch.float64))
    x, x_dot = (random(images, 3, height, width, seed=s) for s in (1, 2))
    w, w_dot = (random(4, 3, 3, 3, seed=s) for s in (3, 4))
    dy, dy_dot = (random(images, 4, height, width, seed=s) for s in (5, 6))

    if kind == "patches":
        tool, x_dot = convolution.OfPatches(), torch.zeros_like(x)
        ours, ours_dot = convolution.patches(channels_last(x)), None
    else:
        tool = convolution.Winograd(block, np.float64)
        ours = channels_last(x)
        ours_dot = channels_last(x_dot)

    def gradients(x, w, dy):
        _, back = torch.func.vjp(lambda x, w: functional.conv2d(x, w, padding=1), x, w)
        return back(dy)

    y, y_dot = torch.func.jvp(
        lambda x, w: functional.conv2d(x, w, padding=1), (x, w), (x_dot, w_dot)
    )
    (dx, dw), (dx_dot, dw_dot) = torch.func.jvp(gradients, (x, w, dy), (x_dot, w_dot, dy_dot))

    weight, weight_dot = tool.prepared(as_stack(w)), tool.prepared(as_stack(w_dot))
    out, gradient = np.empty(inside.shape), torch.empty(9, 3, 4, dtype=torch.float64)

    tool.forward(ours, weight, out)
    close(out * inside, in_windows(y))
    tool.forward_dot(ours, ours_dot, weight, weight_dot, out)
    close(out * inside, in_windows(y_dot))

    by_x = tool.backward(ours, in_windows(dy), weight, gradient)
    close(gradient, as_stack(dw))
    assert by_x is None if kind == "patches" else close(by_x, channels_last(dx)) is None

    pairs = (ours, ours_dot), (in_windows(dy), in_windows(dy_dot)), (weight, weight_dot)
    by_x = tool.backward_dot(*pairs, gradient)
    close(gradient, as_stack(dw_dot))
    assert by_x is None if kind == "patches" else close(by_x, channels_last(dx_dot)) is None


# --- batch norm, pooling, activation


def blocks_output(y, gamma, beta):
    normed = functional.batch_norm(y, None, None, gamma, beta, training=True, eps=EPS)
    return functional.leaky_relu(functional.max_pool2d(normed, 2), SLOPE)


class Kernels:
    """Runs the kernels on maps of torch, and keeps all they wrote."""

    def __init__(self, y, gamma, beta):
        images, channels, self.height, self.width = y.shape
        self.y, self.gamma, self.beta = in_windows(y), gamma.numpy(), beta.numpy()
        self.mean, self.var, self.inverse = (np.empty(channels) for _ in range(3))
        shape = images, self.height // 2, self.width // 2, channels
        self.a, self.top, self.code = np.empty(shape), np.empty(shape), np.empty(shape, np.uint8)
        norm_pool.moments(self.y, self.height, self.width, self.mean, self.var, self.inverse)
        norm_pool.pooled(
            self.y, self.mean, self.inverse, self.gamma, self.beta, self.a, self.top, self.code
        )

    def back(self, da, dmean, dvar):
        count = float(self.y.shape[1] * self.height * self.width)
        self.da = channels_last(da)
        self.dgamma = np.empty_like(self.mean)
        self.dbeta = np.empty_like(self.mean)

        dy = np.empty_like(self.y)
        norm_pool.pooled_back(
            self.y, self.mean, self.inverse, self.gamma, self.top, self.code, self.da, count,
            dmean.numpy(), dvar.numpy(), self.height, self.width, dy, self.dgamma, self.dbeta,
        )  # fmt: skip
        return dy, self.dgamma, self.dbeta

    def dot(self, y_dot):
        self.y_dot = in_windows(y_dot)
        self.a_dot, self.top_dot = np.empty_like(self.a), np.empty_like(self.a)
        self.mean_dot, self.shrink = np.empty_like(self.mean), np.empty_like(self.mean)
        norm_pool.pooled_dot(
            self.y, self.y_dot, self.mean, self.inverse, self.gamma, self.top, self.code,
            self.height, self.width, self.a_dot, self.top_dot, self.mean_dot, self.shrink,
        )  # fmt: skip
        return self.a_dot

    def back_dot(self, da_dot):
        dy, dy_dot = np.empty_like(self.y), np.empty_like(self.y)
        dgamma_dot, dbeta_dot = np.empty_like(self.mean), np.empty_like(self.mean)
        norm_pool.pooled_back_dot(
            self.y, self.y_dot, self.mean, self.inverse, self.gamma, self.mean_dot, self.shrink,
            self.top, self.top_dot, self.code, self.da, channels_last(da_dot),
            self.dgamma, self.dbeta, self.height, self.width,
            dy, dy_dot, dgamma_dot, dbeta_dot,
        )  # fmt: skip
        return dy, dy_dot, dgamma_dot, dbeta_dot


@sizes
def test_norm_pool_activation_and_derivatives_are_torchs(images, height, width):
    if images * height * width < 3 or min(height, width) < 2:
        pytest.skip("torch pools no such maps")

    y = random(images, 3, height, width, seed=1) + 2
    y_dot = random(images, 3, height, width, seed=2)
    gamma, beta = random(3, seed=3), random(3, seed=4)  # of either sign
    da, da_dot = (random(images, 3, height // 2, width // 2, seed=s) for s in (5, 6))

    def gradients(y, da):
        _, back = torch.func.vjp(blocks_output, y, gamma, beta)
        return back(da)

    kernels, zero = Kernels(y, gamma, beta), torch.zeros(3, dtype=torch.float64)
    a, a_dot = torch.func.jvp(lambda y: blocks_output(y, gamma, beta), (y,), (y_dot,))
    close(kernels.a, channels_last(a))
    close(kernels.dot(y_dot), channels_last(a_dot))

    (dy, dgamma, dbeta), (dy_dot, dgamma_dot, dbeta_dot) = torch.func.jvp(
        gradients, (y, da), (y_dot, da_dot)
    )
    for ours, theirs in zip(
        kernels.back(da, zero, zero), (in_windows(dy), dgamma, dbeta), strict=True
    ):
        close(ours, theirs)

    theirs = in_windows(dy), in_windows(dy_dot), dgamma_dot, dbeta_dot
    for one, other in zip(kernels.back_dot(da_dot), theirs, strict=True):
        close(one, other, 1e-10)


def test_gradients_by_the_statistics_reach_the_maps():
    y = random(2, 3, 5, 4, seed=1).requires_grad_()
    gamma = random(3, seed=2)
    beta = random(3, seed=3)
    da, dmean, dvar = random(2, 3, 2, 2, seed=4), random(3, seed=5), random(3, seed=6)
    var, mean = torch.var_mean(y, dim=(0, 2, 3))
    loss = (blocks_output(y, gamma, beta) * da).sum() + (mean * dmean).sum() + (var * dvar).sum()

    kernels = Kernels(y, gamma, beta)
    close(kernels.mean, mean.detach())
    close(kernels.var, var.detach())
    close(kernels.back(da, dmean, dvar)[0], in_windows(torch.autograd.grad(loss, y)[0]))


# --- the outer gradient


def task_of(spec: TaskSpec, shape, targets: int = 2, dtype=torch.float64, seed: int = 0):
    """Return a batch of one task, with random images."""
    labels = torch.stack(
        [torch.arange(spec.n_way) + spec.n_way * number for number in range(spec.nss)]
    )
    labels = labels.repeat_interleave(spec.k_shot, dim=1)
    answers = torch.arange(spec.labels).repeat_interleave(targets)

    return SimpleNamespace(
        support_images=random(1, *labels.shape, *shape, seed=seed, dtype=dtype),
        support_labels=labels[None],
        target_images=random(1, len(answers), *shape, seed=seed + 1, dtype=dtype),
        target_labels=answers[None],
    )


def trained_weights(learner, spec: TaskSpec, shape, dtype=torch.float64, noise: float = 0.1):
    """Return weights as after training: no two rows alike, no weight at a special value."""
    meta = learner.init_for(shape, spec, generator(7))
    params = {
        name: (
            tensor.to(dtype) + noise * random(*tensor.shape, seed=number, dtype=dtype)
        ).requires_grad_()
        for number, (name, tensor) in enumerate(meta["params"].items())
    }
    stats = {name: tensor.to(dtype) + 0.5 for name, tensor in meta["stats"].items()}
    return params, stats


def loss_and_gradients(learner, params, stats, batch, moment):
    loss, stats = learner.episode_loss(params, stats, batch, turns=False, moment=moment)
    gradients = torch.autograd.grad(
        loss, list(params.values()), allow_unused=True, materialize_grads=True
    )
    return {"loss": loss.detach(), **stats, **dict(zip(params, gradients, strict=True))}


def require_same(
    learner, spec, shape, targets=2, dtype=torch.float64, tolerance=1e-9, moment=EARLY, noise=0.1
):
    """Compare loss, statistics and all gradients of a learner and its accelerated twin."""
    params, stats = trained_weights(learner, spec, shape, dtype, noise)
    batch = task_of(spec, shape, targets, dtype)
    twin = accelerated(learner)
    assert twin is not learner
    theirs = loss_and_gradients(learner, params, stats, batch, moment)
    require_equal(theirs, loss_and_gradients(twin, params, stats, batch, moment), tolerance)


def require_equal(theirs, ours, tolerance=1e-9):
    assert ours.keys() == theirs.keys()
    for name in theirs:
        scale = max(1e-2, float(theirs[name].abs().max()))
        assert float((ours[name] - theirs[name]).abs().max()) <= tolerance * scale, name


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    channels=st.sampled_from([1, 3]),
    sides=st.tuples(st.integers(8, 13), st.integers(8, 13)),
    task=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    steps=st.integers(1, 3),
    targets=st.integers(1, 3),
    fields=st.fixed_dictionaries(
        {
            "norm": st.sampled_from(["support", "running", "batch"]),
            "order": st.sampled_from(["second", "first"]),
            "multi_step_epochs": st.sampled_from([0, 3]),
            "first_order_epochs": st.sampled_from([0, 2]),
        }
    ),
)
def test_outer_gradients_are_those_of_autograd(
    widths, channels, sides, task, steps, targets, fields
):
    nss, n_way, k_shot = task
    learner = MamlLow(net=convnet(tuple(widths), "conv-norm-act"), steps=steps, rate=0.2, **fields)
    require_same(
        learner, TaskSpec.type_b(nss=nss, n_way=n_way, k_shot=k_shot), (channels, *sides), targets
    )


@pytest.mark.parametrize("norm", ["support", "running"])
def test_they_are_so_at_the_shapes_of_omniglot(norm):
    learner = MamlLow(net=conv4(8, "conv-norm-act"), steps=2, norm=norm)
    require_same(learner, TaskSpec.type_b(nss=2), (1, 28, 28), targets=5)


def test_they_are_so_in_single_precision_up_to_rounding():
    learner = MamlLow(net=conv4(8, "conv-norm-act"), steps=2)
    require_same(
        learner, TaskSpec.type_b(nss=2), (1, 28, 28), 5, torch.float32, tolerance=1e-3, noise=0.01
    )


def test_they_are_so_when_images_come_in_several_chunks(monkeypatch):
    monkeypatch.setattr(convolution, "_CHUNK", 1)
    monkeypatch.setattr(second_order, "_AT_A_TIME", 3)
    learner = MamlLow(net=convnet((4, 3), "conv-norm-act"), steps=2, rate=0.2)
    require_same(learner, TaskSpec.type_b(nss=2, n_way=2, k_shot=2), (3, 9, 8), targets=4)


@pytest.mark.parametrize("norm", ["support", "running"])
def test_they_are_so_where_images_are_blank_and_all_values_of_a_window_are_equal(norm):
    learner = MamlLow(net=convnet((4, 3, 3), "conv-norm-act"), steps=2, norm=norm)
    spec = TaskSpec.type_b(nss=2, n_way=2)
    (params, stats), batch = trained_weights(learner, spec, (1, 16, 16)), task_of(spec, (1, 16, 16))
    for images in (batch.support_images, batch.target_images):
        images[..., 3:, :] = 1.0
    require_equal(
        *(
            loss_and_gradients(one, params, stats, batch, EARLY)
            for one in (learner, accelerated(learner))
        )
    )


def test_tasks_without_overwriting_may_name_labels_in_any_order():
    learner = MamlLow(net=convnet((3,), "conv-norm-act"), steps=1)
    spec = TaskSpec.type_b(nss=2, n_way=2)
    (params, stats), batch = trained_weights(learner, spec, (1, 6, 6)), task_of(spec, (1, 6, 6))

    batch.support_labels, batch.target_labels = 3 - batch.support_labels, 3 - batch.target_labels

    require_equal(
        *(
            loss_and_gradients(one, params, stats, batch, EARLY)
            for one in (learner, accelerated(learner))
        )
    )


def test_every_weight_gets_a_gradient_and_biases_before_batch_norm_get_zero():
    learner = MamlLow(net=convnet((3, 2), "conv-norm-act"), steps=2)
    spec = TaskSpec.type_b(nss=2, n_way=2)
    params, stats = trained_weights(learner, spec, (1, 8, 8))

    loss, _ = accelerated(learner).episode_loss(
        params, stats, task_of(spec, (1, 8, 8)), turns=False, moment=Moment(0, 1)
    )
    loss.backward()

    assert {name for name, tensor in params.items() if not tensor.grad.any()} == {
        name for name in params if name.endswith("conv.bias")
    }


def test_the_gradient_is_not_differentiable_again():
    learner = MamlLow(net=convnet((3,), "conv-norm-act"), steps=1)
    spec = TaskSpec.type_b(nss=1, n_way=2)
    params, stats = trained_weights(learner, spec, (1, 6, 6))
    episode = learner.episodes(params, stats, task_of(spec, (1, 6, 6)))[0][0]
    loss, _ = accelerated(learner).task_loss(params, stats, episode, Moment(0, 1))
    (gradient,) = torch.autograd.grad(loss**2, params["head.bias"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# --- evaluation


@pytest.mark.parametrize("norm", ["support", "running", "batch"])
@pytest.mark.parametrize("extra_sets", [0, 1])
@pytest.mark.parametrize("labels", [2, 1])
def test_states_and_answers_are_those_of_the_learner(norm, extra_sets, labels):
    """Also where a task has fewer labels than the head has units."""
    learner = MamlLow(
        net=convnet((4, 3), "conv-norm-act"), steps=3, rate=0.2, norm=norm, extend="last_set"
    )
    spec, shape = TaskSpec.type_a(nss=2, n_way=2, k_shot=2), (3, 9, 10)
    params, stats = trained_weights(learner, spec, shape)
    meta = {"params": {name: tensor.detach() for name, tensor in params.items()}, "stats": stats}

    info = TaskInfo(shape, labels, 2 + extra_sets, 2, 2, 1, overwrite=False, seed=0)
    shown = torch.tensor([0, 0, 1, 1]) % labels
    support, targets = Support(random(4, *shape, seed=1), shown), random(20, *shape, seed=2)

    states = []
    for one in (learner, accelerated(learner)):
        state = one.begin(meta, info)
        for _ in range(info.nss):
            state = one.observe(state, support)
        states.append(state)

    first, second = states
    assert first.keys() == second.keys() and first["step"] == second["step"]
    for part in ("weights", "stats"):
        for name, tensor in first[part].items():
            assert torch.allclose(tensor, second[part][name], rtol=1e-9, atol=1e-11), name

    answers = learner.predict(first, targets)
    assert answers.shape == (20, labels)
    assert torch.allclose(answers, accelerated(learner).predict(second, targets), rtol=1e-9)


# --- when it applies


def test_it_says_why_it_does_not_apply(monkeypatch):
    learner = MamlLow()
    assert why_not(learner) is None
    assert "ProtoNet" in why_not(ProtoNet())
    assert "conv-norm-act" in why_not(MamlLow(net=conv4(8, "conv-act-norm")))
    assert "cuda" in why_not(learner, "cuda:0")

    monkeypatch.setattr(
        accelerated_module,
        "find_spec",
        lambda name: None if name == "numba" else importlib.util.find_spec(name),
    )
    assert "pip install cfsl[fast]" in why_not(learner)
    assert accelerated(learner) is learner


def test_it_has_the_fields_of_the_learner():
    learner = MamlLow(steps=2, norm="batch", net=conv4(8, "conv-norm-act"))
    assert accelerated(learner).canonical_json() == learner.canonical_json()
    assert accelerated(accelerated(learner)).canonical_json() == learner.canonical_json()


def test_evaluation_under_the_law_is_accelerated_and_gives_the_same_answers(glyphs):
    learner = MamlLow(net=conv4(6, "conv-norm-act"), steps=2)
    tasks = cfsl.Tasks(glyphs, cfsl.TaskSpec.type_b(nss=2, n_way=3, k_target=2), numbers=range(3))
    meta = learner.init_for((1, 28, 28), tasks.spec, torch.Generator().manual_seed(1))
    plain, fast = (cfsl.evaluate(learner, tasks, meta, accelerate=on) for on in (False, True))
    with Workers(1) as pool:
        shared = cfsl.evaluate(learner, tasks, meta, accelerate=True, workers=pool)
    assert 0 < np.abs(plain.logits - fast.logits).max() < 0.01
    assert np.array_equal(fast.state_bytes, plain.state_bytes) and np.array_equal(
        fast.logits, shared.logits
    )


def test_isolation_and_acceleration_do_not_go_together(glyphs):
    tasks = cfsl.Tasks(glyphs, cfsl.TaskSpec.type_b(nss=2))
    with pytest.raises(LearnerError, match="leave accelerate out"):
        cfsl.evaluate(MamlLow(), tasks, {}, isolate=True, accelerate=True)
