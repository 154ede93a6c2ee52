"""Blocks of convolution, batch norm, pooling and leaky ReLU; a linear head; and their derivatives.

    tape = stack.forward(w, scales, images)                 f(w), and what the derivatives need
    g, dscales = stack.backward(...)                        gradients by w, and by gamma and beta
    H u, ... = stack.backward_dot(..., direction=u)         d/de of `backward` at w + e u, for e = 0

Gradients are those of a loss L. `backward_dot` is forward-over-reverse: every line of `forward` and
`backward`, differentiated along u. For that, L is the mean cross-entropy of the batch. A bias
before batch norm cancels: it is no part of w, and its gradient is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfsl.nets.fused.blocks import Array, Block, blocks_of
from cfsl.nets.fused.convolution import Convolution, OfPatches, Winograd
from cfsl.nets.fused.norm_pool import moments, pooled, pooled_back, pooled_back_dot, pooled_dot
from cfsl.nets.layers import EPS

Weights = list[Tensor]
"""Convolutions (9, inputs, outputs), the head (features, labels), and its bias (labels)."""
_Pair = tuple[Array, Array]
Scales = list[_Pair]
"""Gamma and beta of each block, or gradients by them, or means and variances."""


@dataclass
class BlockTape:
    """What one block keeps of a forward pass, and of the backward pass after it."""

    x: Array
    weight: Tensor
    y: Array
    mean: Array
    var: Array
    inverse: Array
    top: Array
    code: Array
    a: Array
    da: Array = field(default_factory=lambda: np.empty(0))
    dscales: _Pair = field(default_factory=lambda: (np.empty(0), np.empty(0)))


@dataclass
class _BlockDot:
    """The derivatives of what one block keeps of a forward pass.

    `shrink` is s = <x y_dot> of `norm_pool.py`.
    """

    x: Array | None
    weight: Tensor
    y: Array
    mean: Array
    shrink: Array
    top: Array
    a: Array


@dataclass
class Tape:
    """What a batch keeps of a forward pass, and of the backward pass after it."""

    blocks: list[BlockTape]
    features: Tensor
    logits: Tensor
    own: bool
    """Whether the batch was normalised by its own statistics."""
    dlogits: Tensor | None = None


class Stack:
    """Blocks and a head, for one shape of images and one type of numbers.

    Between calls it keeps arrays to work in, and nothing else.
    """

    def __init__(self, image_shape: Sequence[int], widths: Sequence[int], dtype: Any) -> None:
        """Allocate no arrays yet."""
        self.blocks = blocks_of(image_shape, widths)
        self._dtype = dtype
        self._convolutions: list[Convolution] = [
            OfPatches(),
            *(Winograd(block, dtype) for block in self.blocks[1:]),
        ]
        self._scratch: dict[str, Array] = {}

    def forward(
        self, weights: Weights, scales: Scales, images: Array, statistics: Scales | None = None
    ) -> Tape:
        """Compute the logits of images, given as `patches`.

        They are normalised by the batch, or by given means and variances.
        """
        n, x, tapes = images.shape[1], images, []
        for number, (block, convolution) in enumerate(
            zip(self.blocks, self._convolutions, strict=True)
        ):
            weight = convolution.prepared(weights[number])
            y = self._empty(4, n, *block.windows, block.outputs)
            convolution.forward(x, weight, y)

            mean, var, inverse = (self._empty(block.outputs) for _ in range(3))
            if statistics is None:
                moments(y, block.height, block.width, mean, var, inverse)
            else:
                mean, var = statistics[number]
                np.divide(1, np.sqrt(var + EPS), out=inverse, casting="same_kind")

            a, top = (self._empty(n, *block.pooled, block.outputs) for _ in range(2))
            code = np.empty(a.shape, np.uint8)
            pooled(y, mean, inverse, *scales[number], a, top, code)
            tapes.append(BlockTape(x, weight, y, mean, var, inverse, top, code, a))
            x = a

        features = torch.from_numpy(x).view(n, -1)
        logits = torch.addmm(weights[-1], features, weights[-2])
        return Tape(tapes, features, logits, statistics is None)

    def backward(
        self,
        weights: Weights,
        scales: Scales,
        tape: Tape,
        dlogits: Tensor,
        dstatistics: Scales | None = None,
    ) -> tuple[Weights, Scales]:
        """Return the gradients by the weights, and by gamma and beta.

        Given are those by the logits, and by the batch's own statistics.
        """
        tape.dlogits = dlogits
        gradients = [torch.empty_like(weight) for weight in weights[:-2]]
        gradients += [torch.mm(tape.features.T, dlogits), dlogits.sum(dim=0)]

        da: Array | None = torch.mm(dlogits, weights[-2].T).numpy()
        for number in reversed(range(len(self.blocks))):
            assert da is not None
            block, kept = self.blocks[number], tape.blocks[number]
            kept.da, kept.dscales = da.reshape(kept.a.shape), self._pair(block)
            dstats = (np.zeros_like(kept.mean), np.zeros_like(kept.mean))
            if dstatistics is not None:
                dstats = dstatistics[number]

            dy = self._work_array("dy", kept.y)
            count = float(block.values(len(kept.a))) if tape.own else inf
            pooled_back(
                kept.y, kept.mean, kept.inverse, scales[number][0], kept.top, kept.code,
                kept.da, count, *dstats, block.height, block.width, dy, *kept.dscales,
            )  # fmt: skip
            da = self._convolutions[number].backward(kept.x, dy, kept.weight, gradients[number])

        return gradients, [kept.dscales for kept in tape.blocks]

    def by_statistics(self, scales: Scales, tape: Tape) -> Scales:
        """Return the gradients by the given means and variances, after `backward`.

        dmean = -gamma / std sum(dz) = -gamma / std dbeta      dvar = -gamma / (2 std^2) dgamma
        """
        gradients: Scales = []
        for (gamma, _), kept in zip(scales, tape.blocks, strict=True):
            dgamma, dbeta = kept.dscales
            by_mean = -gamma * kept.inverse
            gradients.append((by_mean * dbeta, by_mean * kept.inverse * dgamma / 2))
        return gradients

    def backward_dot(
        self, weights: Weights, scales: Scales, tape: Tape, direction: Weights
    ) -> tuple[Weights, Scales]:
        """Return the derivatives of what `backward` returned, the weights moving in a direction."""
        assert tape.dlogits is not None
        dots = self._forward_dot(scales, tape, direction)

        # The head and the cross-entropy.
        features_dot = torch.from_numpy(dots[-1].a).view_as(tape.features)
        logits_dot = torch.addmm(direction[-1], features_dot, weights[-2])
        logits_dot.addmm_(tape.features, direction[-2])
        share = tape.logits.softmax(dim=1)
        centred = logits_dot - (share * logits_dot).sum(dim=1, keepdim=True)
        dlogits_dot = share * centred / len(share)

        products = [torch.empty_like(weight) for weight in weights[:-2]]
        products.append(torch.mm(tape.features.T, dlogits_dot).addmm_(features_dot.T, tape.dlogits))
        products.append(dlogits_dot.sum(dim=0))

        # The blocks, from the last to the first.
        by_features = torch.mm(dlogits_dot, weights[-2].T)
        da_dot: Array | None = by_features.addmm_(tape.dlogits, direction[-2].T).numpy()
        dscales_dot: Scales = []
        for number in reversed(range(len(self.blocks))):
            assert da_dot is not None
            block, kept, dot = self.blocks[number], tape.blocks[number], dots[number]
            dscales_dot.append(self._pair(block))
            dy, dy_dot = self._work_array("dy", kept.y), self._work_array("dy_dot", kept.y)

            pooled_back_dot(
                kept.y, dot.y, kept.mean, kept.inverse, scales[number][0], dot.mean, dot.shrink,
                kept.top, dot.top, kept.code, kept.da, da_dot.reshape(kept.a.shape), *kept.dscales,
                block.height, block.width, dy, dy_dot, *dscales_dot[-1],
            )  # fmt: skip
            da_dot = self._convolutions[number].backward_dot(
                (kept.x, dot.x), (dy, dy_dot), (kept.weight, dot.weight), products[number]
            )

        return products, dscales_dot[::-1]

    def _forward_dot(self, scales: Scales, tape: Tape, direction: Weights) -> list[_BlockDot]:
        """Return the derivatives of a forward pass, the weights moving in a direction."""
        dots: list[_BlockDot] = []
        for number, (block, kept) in enumerate(zip(self.blocks, tape.blocks, strict=True)):
            convolution, x_dot = self._convolutions[number], dots[-1].a if dots else None
            weight_dot = convolution.prepared(direction[number])
            y_dot = self._work_array(f"y_dot {number}", kept.y)
            convolution.forward_dot(kept.x, x_dot, kept.weight, weight_dot, y_dot)

            mean_dot, shrink = self._pair(block)
            a_dot, top_dot = np.empty_like(kept.a), np.empty_like(kept.a)
            pooled_dot(
                kept.y, y_dot, kept.mean, kept.inverse, scales[number][0], kept.top, kept.code,
                block.height, block.width, a_dot, top_dot, mean_dot, shrink,
            )  # fmt: skip
            dots.append(_BlockDot(x_dot, weight_dot, y_dot, mean_dot, shrink, top_dot, a_dot))

        return dots

    def _empty(self, *shape: int) -> Array:
        return np.empty(shape, self._dtype)

    def _pair(self, block: Block) -> _Pair:
        return self._empty(block.outputs), self._empty(block.outputs)

    def _work_array(self, name: str, like: Array) -> Array:
        """Return an array to write into; the next array of the same name overwrites it."""
        size = prod(like.shape)
        if name not in self._scratch or self._scratch[name].size < size:
            self._scratch[name] = self._empty(size)
        return self._scratch[name][:size].reshape(like.shape)
