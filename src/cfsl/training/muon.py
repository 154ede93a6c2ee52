"""Muon: momentum that is made orthogonal, matrix by matrix, before it is added to the weights.

Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024. A convolution is a
matrix with a row for every output. On small networks it needs half the updates of AdamW or fewer
(docs/findings.md). The optimizer of this name in torch is for matrices only; this one moves all
other weights as AdamW does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor

_MOMENTUM = 0.95
_BETAS = (0.9, 0.999)
_EPS = 1e-8
_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Brings singular values close to one in five steps (Jordan et al.)."""
_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Orthogonal momentum for matrices and convolutions; AdamW for vectors, numbers and heads."""

    def __init__(
        self,
        matrices: Iterable[Tensor],
        others: Iterable[Tensor],
        rate: float,
        others_rate: float,
        weight_decay: float,
    ) -> None:
        """Take the two kinds of weights; `weight_decay` is for the others only.

        Matrices need none: the length of orthogonal steps bounds them.
        """
        groups = [
            {"params": list(matrices), "lr": rate, "full_rate": rate},
            {
                "params": list(others),
                "lr": others_rate,
                "full_rate": others_rate,
                "weight_decay": weight_decay,
            },
        ]
        super().__init__([group for group in groups if group["params"]], {"weight_decay": None})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move all weights that have a gradient; the closure computes it, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if group["weight_decay"] is None:
                    self._move_matrix(weight, weight.grad, group["lr"])
                else:
                    self._move_other(weight, weight.grad, group["lr"], group["weight_decay"])
        return loss

    def _move_matrix(self, weight: Tensor, gradient: Tensor, rate: float) -> None:
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)

        state["momentum"].mul_(_MOMENTUM).add_(gradient)
        ahead = gradient + _MOMENTUM * state["momentum"]
        matrix = ahead.reshape(len(weight), -1)
        scale = max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5
        weight.add_(orthogonal(matrix).view(weight.shape), alpha=-rate * scale)

    def _move_other(
        self, weight: Tensor, gradient: Tensor, rate: float, weight_decay: float
    ) -> None:
        state = self.state[weight]
        if not state:
            state |= {
                "step": torch.zeros(()),
                "mean": torch.zeros_like(weight),
                "square": torch.zeros_like(weight),
            }

        state["step"] += 1
        step, (first, second) = float(state["step"]), _BETAS
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].lerp_(gradient**2, 1 - second)

        size = (state["square"] / (1 - second**step)).sqrt_().add_(_EPS)
        weight.mul_(1 - rate * weight_decay)
        weight.addcdiv_(state["mean"], size, value=-rate / (1 - first**step))


def orthogonal(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """Return a matrix with the same singular vectors, whose singular values are all about one."""
    wide: Tensor = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / (wide.norm() + _EPS)

    linear, cubic, quintic = _QUINTIC
    for _ in range(_STEPS):
        gram = wide @ wide.T
        wide = linear * wide + (cubic * gram + quintic * gram @ gram) @ wide

    return wide.T if matrix.shape[0] > matrix.shape[1] else wide
