"""Multiply-accumulates (MACs), counted from what torch executes.

One MAC is one multiplication whose product is added up. The rules:

- Convolutions and matrix products count as torch's FlopCounterMode counts them, a MAC being two of
  its flops: padding counts like pixels, a bias costs nothing. Products with vectors and attention
  on CPU, which torch's counter leaves out, count alike. Each of the two gradients of a convolution
  costs as much as the convolution, also when it has groups (there torch's counter is wrong).
- Batch norm is 2 MACs an element (to mean 0 and variance 1; scale and shift) and its gradient 4, so
  that forward and backward together are three times forward, as for convolutions.
- cdist of (a x d) and (b x d) is a b d; the gradient for each of the two inputs is as much again.
- Linear algebra has the leading terms of the textbook (Golub & Van Loan), rounded down: see the
  rules below. An operator without a rule (eig, pinv, lstsq ...) is refused, not counted as nothing.
- Elementwise arithmetic, sums, activations, softmax and pooling are no MACs. So the double backward
  and the forward derivative of batch norm, which torch computes elementwise, count nothing; and a
  distance written as ``((a - b) ** 2).sum()`` looks free: write learners with matrix products or
  cdist.

Backward passes, double backward, torch.func transforms, no_grad and inference_mode are counted as
they run, with the products by zero that torch makes in forward derivatives and the gradients it
computes unasked in double backward. Only shapes are read, so tensors on the meta device will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from cfsl.errors import CfslError

_aten = torch.ops.aten
_Shape = Sequence[int]
_Rule = Callable[..., int]
_FLOPS_A_MAC = 2


class MacCount:
    """The MACs counted so far; may be read during and after the counting."""

    def __init__(self, counter: FlopCounterMode) -> None:
        """Read from a running counter."""
        self._counter = counter

    @property
    def total(self) -> int:
        """All MACs."""
        return sum(self.by_operator.values())

    @property
    def by_operator(self) -> dict[str, int]:
        """MACs by operator: "convolution", "convolution_backward", "mm", "cdist" ..."""
        macs: dict[str, int] = {}
        for operator, flops in self._counter.get_flop_counts().get("Global", {}).items():
            name = _name(operator)
            macs[name] = macs.get(name, 0) + flops // _FLOPS_A_MAC
        return macs


@contextmanager
def counting_macs() -> Iterator[MacCount]:
    """Count the MACs of everything that torch runs in this thread inside the block.

    Example: ``with counting_macs() as macs: net(images)``, then ``macs.total`` or
    ``macs.by_operator``. Blocks may be nested.
    """
    with FlopCounterMode(display=False, custom_mapping=_RULES) as counter:
        yield MacCount(counter)


def _name(operator: Any) -> str:
    """Return one name for all kernels that torch may choose for the same thing."""
    name = str(operator).removeprefix("aten.").removeprefix("_").removesuffix("_ex")
    if "batch_norm" in name:
        return "batch_norm_backward" if name.endswith("backward") else "batch_norm"
    return "cdist" if name in ("cdist_forward", "euclidean_dist") else name


# A rule is given the shapes of an operator's tensors, and the shape of the result as `out_shape`.
# It returns MACs.


def _vector_product(a: _Shape, b: _Shape, **_: Any) -> int:
    return prod(a)


def _added_vector_product(added: _Shape, a: _Shape, b: _Shape, **_: Any) -> int:
    return prod(a)


def _added_batch_product(added: _Shape, a: _Shape, b: _Shape, **_: Any) -> int:
    return prod(a) * b[-1]


def _attention(query: _Shape, key: _Shape, value: _Shape, *_: Any, **__: Any) -> int:
    return prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(
    grad: _Shape, query: _Shape, key: _Shape, value: _Shape, *_: Any, **__: Any
) -> int:
    """Compute the scores again, and a product for the gradient of scores, query, key and value."""
    return prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


def _convolution_backward(grad: _Shape, maps: _Shape, weight: _Shape, *rest: Any, **_: Any) -> int:
    """In each of the two gradients, every weight is multiplied once at every place of the output
    (of the input, if the convolution is transposed)."""
    transposed: bool = rest[4]
    wanted: Sequence[bool] = rest[7]
    places = maps if transposed else grad
    return places[0] * prod(places[2:]) * prod(weight) * sum(wanted[:2])


def _batch_norm(maps: _Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(maps)


def _batch_norm_backward(grad: _Shape, *_: Any, **__: Any) -> int:
    return 4 * prod(grad)


def _distances(a: _Shape, b: _Shape, *_: Any, out_shape: _Shape, **__: Any) -> int:
    return prod(out_shape) * a[-1]


def _distances_backward(grad: _Shape, a: _Shape, *_: Any, **__: Any) -> int:
    return prod(grad) * a[-1]


def _columns(matrix: _Shape, right: _Shape) -> int:
    """Return the number of right-hand sides in all batches; `right` holds vectors or matrices."""
    return prod(right) // matrix[-1]


def _batches(matrix: _Shape) -> int:
    return prod(matrix[:-2])


def _solve(matrix: _Shape, right: _Shape, *_: Any, **__: Any) -> int:
    """LU takes n^3 / 3, each right-hand side n^2."""
    return _lu(matrix) + matrix[-1] ** 2 * _columns(matrix, right)


def _lu(matrix: _Shape, *_: Any, **__: Any) -> int:
    rows, columns = sorted(matrix[-2:], reverse=True)
    return _batches(matrix) * (3 * rows * columns**2 - columns**3) // 6


def _lu_solve(matrix: _Shape, pivots: _Shape, right: _Shape, *_: Any, **__: Any) -> int:
    return matrix[-1] ** 2 * _columns(matrix, right)


def _inverse(matrix: _Shape, *_: Any, **__: Any) -> int:
    return _batches(matrix) * matrix[-1] ** 3


def _cholesky(matrix: _Shape, *_: Any, **__: Any) -> int:
    return _batches(matrix) * matrix[-1] ** 3 // 6


def _cholesky_solve(right: _Shape, factor: _Shape, *_: Any, **__: Any) -> int:
    return factor[-1] ** 2 * _columns(factor, right)


def _cholesky_inverse(factor: _Shape, *_: Any, **__: Any) -> int:
    return _batches(factor) * factor[-1] ** 3 // 3


def _solve_triangular(matrix: _Shape, right: _Shape, *_: Any, **__: Any) -> int:
    return matrix[-1] ** 2 * _columns(matrix, right) // 2


def _qr(matrix: _Shape, *_: Any, **__: Any) -> int:
    """Householder for R, and as much again to form the thin Q."""
    rows, columns = sorted(matrix[-2:], reverse=True)
    return _batches(matrix) * 2 * (3 * rows * columns**2 - columns**3) // 3


def _eigh(matrix: _Shape, *_: Any, **__: Any) -> int:
    return _batches(matrix) * 9 * matrix[-1] ** 3 // 2


def _svd(matrix: _Shape, *_: Any, **__: Any) -> int:
    """Thin U and V by way of QR."""
    rows, columns = sorted(matrix[-2:], reverse=True)
    return _batches(matrix) * (3 * rows * columns**2 + 10 * columns**3)


def _refused(operator: Any) -> _Rule:
    def refuse(*_: Any, **__: Any) -> int:
        raise CfslError(
            f"there is no rule for the multiply-accumulates of {operator}; write the learner with "
            f"solve, inv, cholesky, qr, eigh or svd, or add a rule to cfsl.harness.macs."
        )

    return refuse


def _as_flops(rule: _Rule) -> _Rule:
    return lambda *shapes, **options: _FLOPS_A_MAC * rule(*shapes, **options)


_RULES_BY_OPERATOR: dict[Any, _Rule] = {
    _aten.mv: _vector_product,
    _aten.dot: _vector_product,
    _aten.vdot: _vector_product,
    _aten.addmv: _added_vector_product,
    _aten.addbmm: _added_batch_product,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten.convolution_backward: _convolution_backward,
    _aten.native_batch_norm: _batch_norm,
    _aten._native_batch_norm_legit: _batch_norm,
    _aten._native_batch_norm_legit_no_training: _batch_norm,
    _aten._batch_norm_with_update: _batch_norm,
    _aten.cudnn_batch_norm: _batch_norm,
    _aten.native_batch_norm_backward: _batch_norm_backward,
    _aten.batch_norm_backward: _batch_norm_backward,
    _aten.cudnn_batch_norm_backward: _batch_norm_backward,
    _aten._cdist_forward: _distances,
    _aten._euclidean_dist: _distances,
    _aten._cdist_backward: _distances_backward,
    _aten._linalg_solve_ex: _solve,
    _aten.linalg_lu_factor_ex: _lu,
    _aten.linalg_lu_solve: _lu_solve,
    _aten.linalg_inv_ex: _inverse,
    _aten.linalg_cholesky_ex: _cholesky,
    _aten.cholesky_solve: _cholesky_solve,
    _aten.cholesky_inverse: _cholesky_inverse,
    _aten.linalg_solve_triangular: _solve_triangular,
    _aten.linalg_qr: _qr,
    _aten._linalg_eigh: _eigh,
    _aten._linalg_svd: _svd,
}
_WITHOUT_RULE = (
    _aten.linalg_eig,
    _aten._linalg_eigvals,
    _aten.linalg_lstsq,
    _aten.linalg_pinv,
    _aten.linalg_matrix_exp,
    _aten.linalg_householder_product,
    _aten.linalg_lu,
    _aten.linalg_ldl_factor_ex,
    _aten._linalg_det,
    _aten._linalg_slogdet,
    _aten._trilinear,
    _aten.mkldnn_rnn_layer,
)
_RULES = {operator: _as_flops(rule) for operator, rule in _RULES_BY_OPERATOR.items()} | {
    operator: _refused(operator) for operator in _WITHOUT_RULE
}
