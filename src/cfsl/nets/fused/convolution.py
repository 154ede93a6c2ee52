"""3x3 convolutions as matrix products, and their derivatives.

Maps that fused kernels read and write are arrays, (images, height, width, channels); the outputs of
a convolution are in windows (see `norm_pool.py`). Weights are tensors, (9, inputs, outputs).

A convolution is linear in its maps x and in its weights w. With dy the gradient of the loss by its
outputs, dx and dw those by x and w, and a dot for the derivative along a direction in which x and w
move:

    y_dot  = x * w_dot + x_dot * w
    dx_dot = dy_dot * w + dy * w_dot            with w rotated by half a turn
    dw_dot = x * dy_dot + x_dot * dy            over all places
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cfsl.nets.fused.blocks import Array, Block
from cfsl.nets.fused.winograd import FILTER, drop, drop_back, lift, lift_back

_CHUNK = 2**18
"""A convolution works on so many numbers at a time, so that they stay in the cache."""


class Convolution(Protocol):
    """A convolution of one shape; each kind has its own layout of weights."""

    def prepared(self, weight: Tensor) -> Tensor:
        """Return weights in that layout."""
        ...

    def forward(self, x: Array, weight: Tensor, y: Array) -> None:
        """Write y."""
        ...

    def forward_dot(
        self, x: Array, x_dot: Array | None, weight: Tensor, weight_dot: Tensor, y_dot: Array
    ) -> None:
        """Write y_dot."""
        ...

    def backward(self, x: Array, dy: Array, weight: Tensor, dweight: Tensor) -> Array | None:
        """Write dw, and return dx."""
        ...

    def backward_dot(
        self,
        x: tuple[Array, Array | None],
        dy: tuple[Array, Array],
        weight: tuple[Tensor, Tensor],
        dweight_dot: Tensor,
    ) -> Array | None:
        """Write dw_dot, and return dx_dot, given pairs of a value and its derivative."""
        ...


# --- few inputs, and no gradient by them


def patches(images: Array) -> Array:
    """Return the 3x3 patches of images as rows, in the order of windows: x of `OfPatches`.

    Places that stick out of the image hold zeros.
    """
    n, height, width, channels = images.shape
    rows, columns = (height + 1) // 2, (width + 1) // 2

    padded = np.zeros((n, 2 * rows + 2, 2 * columns + 2, channels), images.dtype)
    padded[:, 1 : height + 1, 1 : width + 1] = images

    out = np.empty((2, 2, n, rows, columns, 9, channels), images.dtype)
    for down, right, place in np.ndindex(2, 2, 9):
        top, left = down + place // 3, right + place % 3
        every_other_row = slice(top, top + 2 * rows, 2)
        every_other_column = slice(left, left + 2 * columns, 2)
        out[down, right, :, :, :, place] = padded[:, every_other_row, every_other_column]
    return out.reshape(4, n, rows, columns, 9 * channels)


def _rows(maps: Array) -> Tensor:
    return torch.from_numpy(maps).view(-1, maps.shape[-1])


class OfPatches:
    """The first convolution: its maps are `patches` of the images, which do not move."""

    def prepared(self, weight: Tensor) -> Tensor:
        """Return one matrix."""
        return weight.flatten(0, 1)

    def forward(self, x: Array, weight: Tensor, y: Array) -> None:
        """Write y."""
        torch.mm(_rows(x), weight, out=_rows(y))

    def forward_dot(
        self, x: Array, x_dot: Array | None, weight: Tensor, weight_dot: Tensor, y_dot: Array
    ) -> None:
        """Write y_dot."""
        self.forward(x, weight_dot, y_dot)

    def backward(self, x: Array, dy: Array, weight: Tensor, dweight: Tensor) -> Array | None:
        """Write dw."""
        torch.mm(_rows(x).T, _rows(dy), out=dweight.flatten(0, 1))
        return None

    def backward_dot(
        self,
        x: tuple[Array, Array | None],
        dy: tuple[Array, Array],
        weight: tuple[Tensor, Tensor],
        dweight_dot: Tensor,
    ) -> Array | None:
        """Write dw_dot."""
        return self.backward(x[0], dy[1], weight[0], dweight_dot)


# --- many inputs


class _Tiles:
    """The sixteen numbers of every tile of some images, as an array and as sixteen matrices.

    Kernels use the array, and products the matrices.
    """

    def __init__(self, block: Block, images: int, channels: int, dtype: Any) -> None:
        self.array = np.empty((16, images, *block.windows, channels), dtype)
        self.matrices = torch.from_numpy(self.array).view(16, -1, channels)
        self.turned = self.matrices.transpose(1, 2)
        self._maps: Array | None = None
        self._first = 0

    def lift(self, maps: Array, first: int) -> _Tiles:
        """Hold the lifted tiles of these maps; those of the last call are not lifted again."""
        if self._maps is not maps or self._first != first:
            lift(maps, first, self.array)
            self._maps, self._first = maps, first
        return self

    def drop_back(self, dy: Array, first: int) -> _Tiles:
        """Hold the gradient by the products."""
        drop_back(dy, first, self.array)
        return self


class _Buffers:
    """The tiles that a convolution needs for so many images at a time."""

    def __init__(self, block: Block, images: int, dtype: Any) -> None:
        self.x, self.x_dot, self.dx = (_Tiles(block, images, block.inputs, dtype) for _ in range(3))
        self.y, self.y_dot = (_Tiles(block, images, block.outputs, dtype) for _ in range(2))


class Winograd:
    """A convolution by `winograd.py`, over as many images at a time as the cache holds."""

    def __init__(self, block: Block, dtype: Any) -> None:
        """Allocate no buffers yet."""
        self._block, self._dtype = block, dtype
        self._filter = torch.from_numpy(np.ascontiguousarray(FILTER, dtype))
        self._buffers: dict[int, _Buffers] = {}
        self._dweight = torch.empty(16, block.inputs, block.outputs, dtype=self._filter.dtype)

    def prepared(self, weight: Tensor) -> Tensor:
        """Return the lifted weights: sixteen matrices."""
        return torch.mm(self._filter, weight.flatten(1)).view_as(self._dweight)

    def forward(self, x: Array, weight: Tensor, y: Array) -> None:
        """Write y."""
        for first, buffers in self._chunks(len(x)):
            torch.bmm(buffers.x.lift(x, first).matrices, weight, out=buffers.y.matrices)
            drop(buffers.y.array, first, y)

    def forward_dot(
        self, x: Array, x_dot: Array | None, weight: Tensor, weight_dot: Tensor, y_dot: Array
    ) -> None:
        """Write y_dot."""
        assert x_dot is not None
        for first, buffers in self._chunks(len(x)):
            lifted, lifted_dot = buffers.x.lift(x, first), buffers.x_dot.lift(x_dot, first)
            torch.bmm(lifted.matrices, weight_dot, out=buffers.y.matrices)
            buffers.y.matrices.baddbmm_(lifted_dot.matrices, weight)
            drop(buffers.y.array, first, y_dot)

    def backward(self, x: Array, dy: Array, weight: Tensor, dweight: Tensor) -> Array | None:
        """Write dw, and return dx."""
        dx = np.empty_like(x)
        for first, buffers in self._chunks(len(x)):
            lifted, dproducts = buffers.x.lift(x, first), buffers.y.drop_back(dy, first)

            self._dweight.baddbmm_(lifted.turned, dproducts.matrices, beta=int(first > 0))
            torch.bmm(dproducts.matrices, weight.transpose(1, 2), out=buffers.dx.matrices)
            lift_back(buffers.dx.array, first, dx)

        torch.mm(self._filter.T, self._dweight.flatten(1), out=dweight.flatten(1))
        return dx

    def backward_dot(
        self,
        x: tuple[Array, Array | None],
        dy: tuple[Array, Array],
        weight: tuple[Tensor, Tensor],
        dweight_dot: Tensor,
    ) -> Array | None:
        """Write dw_dot, and return dx_dot."""
        assert x[1] is not None
        dx_dot = np.empty_like(x[0])
        for first, buffers in self._chunks(len(x[0])):
            lifted, lifted_dot = buffers.x.lift(x[0], first), buffers.x_dot.lift(x[1], first)
            dproducts = buffers.y.drop_back(dy[0], first)
            dproducts_dot = buffers.y_dot.drop_back(dy[1], first)

            self._dweight.baddbmm_(lifted.turned, dproducts_dot.matrices, beta=int(first > 0))
            self._dweight.baddbmm_(lifted_dot.turned, dproducts.matrices)

            by_x = buffers.dx.matrices
            torch.bmm(dproducts_dot.matrices, weight[0].transpose(1, 2), out=by_x)
            by_x.baddbmm_(dproducts.matrices, weight[1].transpose(1, 2))
            lift_back(buffers.dx.array, first, dx_dot)

        torch.mm(self._filter.T, self._dweight.flatten(1), out=dweight_dot.flatten(1))
        return dx_dot

    def _chunks(self, images: int) -> Iterator[tuple[int, _Buffers]]:
        widest = max(self._block.inputs, self._block.outputs)
        most = max(1, _CHUNK // (16 * prod(self._block.windows) * widest))
        for first in range(0, images, most):
            size = min(most, images - first)
            if size not in self._buffers:
                self._buffers[size] = _Buffers(self._block, size, self._dtype)
            yield first, self._buffers[size]
