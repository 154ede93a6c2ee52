"""Muon: orthogonal momentum, and AdamW for what is no matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cfsl.training.muon import Muon, orthogonal
from cfsl.training.training_spec import Schedule
from cfsl.training.training_state import group_rate, optimizer_of


@settings(max_examples=30)
@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 99))
def test_all_directions_come_out_about_equally_long(rows, columns, seed):
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    made = orthogonal(matrix)
    within = left.T @ made @ right.T
    torch.testing.assert_close(within, torch.diag(torch.diag(within)), atol=2e-3, rtol=0)
    large = sizes > 0.05 * sizes.norm()
    assert torch.diag(within)[large].min() > 0.6
    assert torch.diag(within).max() < 1.3


def test_a_step_on_a_matrix_by_hand():
    """The gradient is 3 R for a rotation R, so momentum is 3 R.

    The step looks ahead, 3 R + .95 x 3 R, which is about R when it is made orthogonal; .1 of it.
    """
    rotation = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    weight = torch.zeros(2, 2, requires_grad=True)
    weight.grad = 3 * rotation
    Muon([weight], [], rate=0.1, others_rate=1.0, weight_decay=0.5).step()
    torch.testing.assert_close(weight.detach(), -0.1 * orthogonal(rotation))
    torch.testing.assert_close(orthogonal(rotation), rotation * orthogonal(rotation)[0, 0] / 0.6)
    assert 0.6 < float(orthogonal(rotation)[0, 0]) / 0.6 < 1.3


def test_two_steps_on_a_matrix_by_hand():
    """Momentum g1, then .95 g1 + g2; the step looks ahead by .95 of it: g2 + .95 (.95 g1 + g2)."""
    first, second = (
        torch.randn(3, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    weight = torch.zeros(3, 5, requires_grad=True)
    muon = Muon([weight], [], rate=0.1, others_rate=1.0, weight_decay=0.0)
    for gradient in (first, second):
        weight.grad = gradient
        muon.step()
    expected = -0.1 * (orthogonal(first) + orthogonal(second + 0.95 * (0.95 * first + second)))
    torch.testing.assert_close(weight.detach(), expected)


def test_vectors_and_heads_are_no_matrices_and_keep_their_share_of_the_rate():
    params = {
        name: torch.zeros(2, 2, requires_grad=True) for name in ("conv.weight", "head.weight")
    }
    params["norm.bias"] = torch.zeros(2, requires_grad=True)
    schedule = Schedule(
        optimizer="muon", rate=0.05, epochs=1, updates=10, decay="cosine", weight_decay=0.1
    )
    matrices, others = optimizer_of(params, schedule).param_groups
    assert [id(weight) for weight in matrices["params"]] == [id(params["conv.weight"])]
    assert [id(weight) for weight in others["params"]] == [
        id(params["head.weight"]),
        id(params["norm.bias"]),
    ]
    assert (matrices["lr"], others["lr"], others["weight_decay"]) == (
        0.05,
        pytest.approx(0.001),
        0.1,
    )
    assert [group_rate(group, schedule, 5) for group in (matrices, others)] == pytest.approx(
        [0.025, 0.0005]
    )


def test_other_optimizers_have_one_rate():
    schedule = Schedule(optimizer="adamw", rate=0.01, epochs=1, updates=10, decay="cosine")
    (group,) = optimizer_of(
        {"weight": torch.zeros(2, 2, requires_grad=True)}, schedule
    ).param_groups
    assert group_rate(group, schedule, 5) == pytest.approx(0.005)


def test_a_convolution_moves_as_the_matrix_with_a_row_for_every_output():
    gradient = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    conv = torch.zeros(4, 3, 3, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
    flat = torch.zeros(4, 27, requires_grad=True)
    conv.grad = gradient.contiguous(memory_format=torch.channels_last)
    flat.grad = gradient.reshape(4, 27)
    Muon([conv, flat], [], rate=0.1, others_rate=1.0, weight_decay=0.0).step()
    torch.testing.assert_close(conv.detach().reshape(4, 27), flat.detach())
    assert conv.is_contiguous(memory_format=torch.channels_last)


def test_a_tall_matrix_moves_further_by_the_root_of_its_shape():
    tall, wide = torch.zeros(8, 2, requires_grad=True), torch.zeros(2, 8, requires_grad=True)
    gradient = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    tall.grad, wide.grad = gradient, gradient.T
    Muon([tall, wide], [], rate=0.1, others_rate=1.0, weight_decay=0.0).step()
    torch.testing.assert_close(tall.detach(), 2 * wide.detach().T)


def test_whatever_is_no_matrix_moves_as_with_adamw():
    ours, theirs = (torch.ones(5).requires_grad_() for _ in range(2))
    muon = Muon([], [ours], rate=1.0, others_rate=0.01, weight_decay=0.1)
    adamw = torch.optim.AdamW([theirs], 0.01, weight_decay=0.1)
    for step in range(5):
        for weight, optimizer in ((ours, muon), (theirs, adamw)):
            weight.grad = torch.randn(5, generator=torch.Generator().manual_seed(step))
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_weights_without_a_gradient_stay():
    weight, vector = torch.ones(2, 2, requires_grad=True), torch.ones(2, requires_grad=True)
    Muon([weight], [vector], rate=0.1, others_rate=0.1, weight_decay=0.1).step()
    assert weight.eq(1).all()
    assert vector.eq(1).all()


def test_a_closure_works_out_gradient_and_loss():
    weight = torch.ones(2, 2, requires_grad=True)
    optimizer = Muon([weight], [], rate=0.1, others_rate=1.0, weight_decay=0.0)

    def closure() -> float:
        loss = (weight * torch.eye(2)).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 2.0
    torch.testing.assert_close(weight.detach(), 1 - 0.1 * orthogonal(torch.eye(2)))
