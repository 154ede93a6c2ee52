"""Multiply-accumulates against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from cfsl.errors import CfslError
from cfsl.harness.macs import counting_macs
from cfsl.nets import net_named

CONV = 2 * 6 * 4 * 9 * 8 * 7
"""Two images of 8x7, from 4 channels to 6 by 3x3 with padding."""

torch_warns_of_itself = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)
"""The first forward derivative in a process makes torch compile something by torch.jit."""


def counted(run, **leaves: torch.Tensor) -> dict[str, int]:
    with counting_macs() as macs:
        run(**leaves)
    assert macs.total == sum(macs.by_operator.values())
    return macs.by_operator


def leaf(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def spd(n: int) -> torch.Tensor:
    return (leaf(n, n).detach() + n * torch.eye(n)).requires_grad_()


@pytest.mark.parametrize(
    ("run", "macs"),
    [
        (lambda: leaf(5, 7) @ leaf(7, 3), 5 * 7 * 3),
        (lambda: leaf(2, 5, 7) @ leaf(2, 7, 3), 2 * 5 * 7 * 3),
        (lambda: functional.linear(leaf(5, 7), leaf(3, 7), leaf(3)), 5 * 7 * 3),
        (lambda: functional.linear(leaf(2, 5, 7), leaf(3, 7)), 2 * 5 * 7 * 3),
        (lambda: torch.einsum("id,jd->ij", leaf(5, 7), leaf(3, 7)), 5 * 7 * 3),
        (lambda: torch.addbmm(leaf(5, 3), leaf(2, 5, 7), leaf(2, 7, 3)), 2 * 5 * 7 * 3),
        (lambda: leaf(5, 7) @ leaf(7), 5 * 7),
        (lambda: torch.addmv(leaf(5), leaf(5, 7), leaf(7)), 5 * 7),
        (lambda: leaf(7) @ leaf(7), 7),
        (lambda: torch.vdot(leaf(7), leaf(7)), 7),
        (lambda: functional.conv2d(leaf(2, 4, 8, 7), leaf(6, 4, 3, 3), leaf(6), padding=1), CONV),
        (
            lambda: functional.conv2d(leaf(2, 4, 8, 7), leaf(6, 2, 3, 3), padding=1, groups=2),
            CONV // 2,
        ),
        (
            lambda: functional.conv2d(leaf(2, 4, 8, 8), leaf(6, 4, 3, 3), stride=2, padding=1),
            2 * 6 * 4 * 9 * 4 * 4,
        ),
        (lambda: functional.conv_transpose2d(leaf(2, 4, 8, 7), leaf(4, 6, 3, 3)), CONV),
        (
            lambda: functional.scaled_dot_product_attention(
                leaf(2, 1, 5, 8), leaf(2, 1, 3, 8), leaf(2, 1, 3, 8)
            ),
            480,
        ),
    ],
)
def test_products_and_convolutions_count_as_by_hand(run, macs):
    assert sum(counted(run).values()) == macs
    with torch.no_grad():
        assert sum(counted(run).values()) == macs
    with torch.inference_mode():
        assert sum(counted(run).values()) == macs


def test_a_layer_trained_with_its_input_costs_three_times_forward_and_without_it_twice():
    def train(x, w):
        functional.linear(x, w).sum().backward()

    assert sum(counted(train, x=leaf(5, 7), w=leaf(3, 7)).values()) == 3 * 5 * 7 * 3
    assert sum(counted(train, x=leaf(5, 7).detach(), w=leaf(3, 7)).values()) == 2 * 5 * 7 * 3


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_each_gradient_of_a_convolution_costs_as_much_as_the_convolution(groups, transposed):
    x, forward = leaf(2, 4, 8, 7), CONV // groups
    w = leaf(4, 6 // groups, 3, 3) if transposed else leaf(6, 4 // groups, 3, 3)
    convolve, stride = (functional.conv_transpose2d, 2) if transposed else (functional.conv2d, 1)

    def train(x, w):
        convolve(x, w, stride=stride, padding=1, groups=groups).sum().backward()

    assert counted(train, x=x, w=w) == {"convolution": forward, "convolution_backward": 2 * forward}
    assert counted(train, x=x.detach(), w=w) == {
        "convolution": forward,
        "convolution_backward": forward,
    }


def test_training_conv4_costs_three_times_forward_but_for_the_first_layers_input():
    net, images = net_named("conv4_64"), torch.rand(2, 1, 28, 28)
    params, stats = net.init((1, 28, 28), torch.Generator().manual_seed(0))
    leaves = {name: tensor.requires_grad_() for name, tensor in params.items()}
    macs = counted(lambda: net.training_features(leaves, stats, images)[0].sum().backward())
    forward, first = 2 * 9_815_040, 2 * 28 * 28 * 9 * 64
    assert macs["convolution"] == forward
    assert macs["convolution_backward"] == 2 * forward - first
    elements = 2 * 64 * (28**2 + 14**2 + 7**2 + 3**2)
    assert macs["batch_norm"] == 2 * elements
    assert macs["batch_norm_backward"] == 4 * elements
    assert len(macs) == 4


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_is_two_macs_an_element_and_its_gradient_four(training):
    def run(x, w):
        return functional.batch_norm(x, torch.zeros(3), torch.ones(3), w, w, training=training)

    elements = 2 * 3 * 5 * 4
    assert sum(counted(run, x=leaf(2, 3, 5, 4), w=leaf(3)).values()) == 2 * elements
    with torch.inference_mode():
        assert sum(counted(run, x=leaf(2, 3, 5, 4), w=leaf(3)).values()) == 2 * elements
    trained = counted(lambda x, w: run(x, w).sum().backward(), x=leaf(2, 3, 5, 4), w=leaf(3))
    assert sum(trained.values()) == 6 * elements


@pytest.mark.parametrize("b", [6, 30])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_cdist_is_a_b_d_and_its_two_gradients_as_much_again_each(b, batch):
    forward = 5 * b * 7 * (2 if batch else 1)
    x, y = leaf(*batch, 5, 7), leaf(*batch, b, 7)
    assert sum(counted(lambda: torch.cdist(x, y)).values()) == forward
    assert sum(counted(lambda: torch.cdist(x, y).sum().backward()).values()) == 3 * forward


@pytest.mark.parametrize(
    ("run", "macs"),
    [
        (lambda: torch.linalg.solve(spd(6), leaf(6, 4)), 6**3 // 3 + 6**2 * 4),
        (lambda: torch.linalg.solve(spd(6), leaf(6)), 6**3 // 3 + 6**2),
        (lambda: torch.linalg.solve(spd(6), leaf(4, 6), left=False), 6**3 // 3 + 6**2 * 4),
        (
            lambda: torch.linalg.solve(spd(6).expand(5, 6, 6), leaf(5, 6, 4)),
            5 * (6**3 // 3 + 6**2 * 4),
        ),
        (lambda: torch.linalg.inv(spd(6)), 6**3),
        (lambda: torch.inverse(spd(6)), 6**3),
        (lambda: torch.linalg.cholesky(torch.eye(6)), 6**3 // 6),
        (lambda: torch.cholesky_solve(leaf(6, 4), spd(6)), 6**2 * 4),
        (lambda: torch.cholesky_inverse(spd(6)), 6**3 // 3),
        (lambda: torch.linalg.solve_triangular(spd(6), leaf(6, 4), upper=True), 6**2 * 4 // 2),
        (lambda: torch.linalg.lu_factor(spd(6)), 6**3 // 3),
        (
            lambda: torch.linalg.lu_solve(*torch.linalg.lu_factor(spd(6)), leaf(6, 4)),
            6**3 // 3 + 6**2 * 4,
        ),
        (lambda: torch.linalg.qr(leaf(9, 6)), 2 * (9 * 6**2 - 6**3 // 3)),
        (lambda: torch.linalg.eigh(torch.eye(6)), 9 * 6**3 // 2),
        (lambda: torch.linalg.svd(leaf(9, 6), full_matrices=False), 3 * 9 * 6**2 + 10 * 6**3),
    ],
)
def test_linear_algebra_counts_the_leading_terms_of_the_textbook(run, macs):
    assert sum(counted(run).values()) == macs


def test_the_gradient_of_solve_is_another_solve_with_the_same_factors_and_an_outer_product():
    macs = counted(lambda a, b: torch.linalg.solve(a, b).sum().backward(), a=spd(6), b=leaf(6, 4))
    assert macs == {
        "linalg_solve": 6**3 // 3 + 6**2 * 4,
        "linalg_lu_solve": 6**2 * 4,
        "mm": 6**2 * 4,
    }


@pytest.mark.parametrize(
    "run",
    [
        lambda: torch.linalg.pinv(spd(4)),
        lambda: torch.linalg.lstsq(spd(4), leaf(4, 2)),
        lambda: spd(4).det(),
    ],
)
def test_what_has_no_rule_is_refused_rather_than_free(run):
    with pytest.raises(CfslError, match="no rule"), counting_macs():
        run()


def test_the_gradient_of_attention_is_five_products():
    macs = counted(
        lambda q, k: functional.scaled_dot_product_attention(q, k, k).sum().backward(),
        q=leaf(2, 1, 5, 8),
        k=leaf(2, 1, 3, 8),
    )
    assert sum(macs.values()) == 7 * 2 * 5 * 3 * 8


def test_one_name_stands_for_all_kernels_of_an_operator():
    macs = counted(
        lambda: (torch.cdist(leaf(5, 7), leaf(6, 7)), torch.cdist(leaf(5, 7), leaf(30, 7)))
    )
    assert macs == {"cdist": 5 * 6 * 7 + 5 * 30 * 7}


def test_elementwise_work_sums_and_pooling_are_no_macs():
    def run(x):
        y = functional.leaky_relu(functional.max_pool2d(x * x + 1, 2))
        functional.avg_pool2d(y.softmax(1), 2).sum().backward()

    assert counted(run, x=leaf(2, 3, 8, 8)) == {}


def test_double_backward_is_counted():
    def run(w, x):
        (gradient,) = torch.autograd.grad(
            (functional.conv2d(x, w, padding=1) ** 2).sum(), w, create_graph=True
        )
        (gradient**2).sum().backward()

    # Forward and its weight gradient; then the second gradient of the output, that of the images
    # (torch computes it although it is not asked for), and the weight gradient once more.
    macs = counted(run, w=leaf(6, 4, 3, 3), x=leaf(2, 4, 8, 7).detach())
    assert macs == {"convolution": 3 * CONV, "convolution_backward": 2 * CONV}


@torch_warns_of_itself
def test_torch_func_is_counted_as_autograd_is():
    x, w = leaf(5, 7).detach(), leaf(3, 7).detach()

    def loss(weight):
        return (functional.linear(x, weight) ** 2).sum()

    once, gradient = 5 * 7 * 3, torch.func.grad(loss)
    assert sum(counted(lambda: gradient(w)).values()) == 2 * once

    # The zero tangent of the images counts, too.
    assert sum(counted(lambda: torch.func.jvp(loss, (w,), (w,))).values()) == 3 * once
    second = counted(lambda: torch.func.jvp(gradient, (w,), (w,)))
    assert sum(second.values()) == 2 * 3 * once

    many = counted(lambda: torch.func.vmap(gradient)(torch.stack([w, w, w])))
    assert sum(many.values()) == 3 * 2 * once


def test_shapes_suffice_so_that_nothing_need_be_computed():
    x = torch.empty(100_000, 100_000, device="meta")
    assert sum(counted(lambda: x @ x).values()) == 10**15


def test_a_count_may_be_nested_and_read_on_the_way_and_stands_still_afterwards(capsys):
    with counting_macs() as outer:
        leaf(5, 7) @ leaf(7, 3)
        assert outer.total == 105
        with counting_macs() as inner:
            leaf(2, 7) @ leaf(7, 3)
    leaf(5, 7) @ leaf(7, 3)
    assert (inner.total, outer.total) == (42, 147)
    with counting_macs() as nothing:
        pass
    assert (nothing.total, nothing.by_operator) == (0, {})
    assert capsys.readouterr().out == ""
