"""3x3 convolutions by Winograd's minimal filtering F(2x2, 3x3): 16 matrix products instead of 36.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).

    Y = A' [ (G g G') . (B' d B) ] A

for each tile Y of 2x2 outputs, from a patch d of 4x4 inputs and a filter g. The product . is
elementwise over the 16 numbers of a transformed tile and a sum over channels: 16 matrix products,
each over all tiles. All of it is linear in d and in g, so the gradients are the transposed maps. In
the names here:

    lift    d -> B' d B         (images, height, width, channels) -> (16, tiles, channels)
    drop    M -> A' M A         (16, tiles, channels) -> windows (4, tiles, channels) of `norm_pool`
    lifted weights: G g G'      (9, inputs, outputs) -> (16, inputs, outputs), by FILTER
    drop_back, lift_back        the transposes of drop and lift
"""

from __future__ import annotations

import numpy as np

from cfsl.nets.fused.blocks import Array, kernel

_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
FILTER = np.kron(_G, _G)
"""The matrix from the 9 numbers of a filter g to the 16 of G g G'."""
_A = np.array([[1, 0], [1, 1], [1, -1], [0, -1]], np.float32)
_AA = np.kron(_A, _A)
_FIRST, _SECOND, _SIGN = (
    np.array([0, 1, 2, 1]),
    np.array([2, 2, 1, 3]),
    np.array([-1, 1, -1, -1], np.float32),
)
"""Row p of B' d is row first[p] of d, plus or minus row second[p]."""
_BLOCK = 512
"""So many numbers of each of 16 rows are worked on at a time: they fit into the first cache."""


@kernel
def lift(x: Array, first: int, lifted: Array) -> None:
    """Transform the patches of some images, from number `first` on; outside of an image is zero."""
    _, images, rows, columns, channels = lifted.shape
    run = columns * channels
    flat = lifted.reshape((16, images * rows, run))

    # Columns of equal parity lie together: then a row of tiles is one run of memory.
    padded = np.zeros((4, 2, columns + 1, channels), x.dtype)
    d = padded.reshape((4, 2 * (run + channels)))
    part = np.empty(2 * (run + channels), x.dtype)
    even, odd = part[: run + channels], part[run + channels :]
    next_even, next_odd = even[channels:], odd[channels:]

    for image in range(images):
        for i in range(rows):
            _fill(x, first + image, i, padded)
            for p in range(4):
                d0, d1, sign = d[_FIRST[p]], d[_SECOND[p]], x.dtype.type(_SIGN[p])
                for z in range(part.size):
                    part[z] = d0[z] + sign * d1[z]

                row = image * rows + i
                for z in range(run):
                    flat[4 * p, row, z] = even[z] - next_even[z]
                for z in range(run):
                    flat[4 * p + 1, row, z] = odd[z] + next_even[z]
                for z in range(run):
                    flat[4 * p + 2, row, z] = next_even[z] - odd[z]
                for z in range(run):
                    flat[4 * p + 3, row, z] = odd[z] - next_odd[z]


@kernel
def _fill(x: Array, image: int, i: int, padded: Array) -> None:
    """Copy the four rows of the i-th row of tiles, sorted by the parity of the columns."""
    for r in range(4):
        row = 2 * i - 1 + r
        if 0 <= row < x.shape[1]:
            for q in range(x.shape[2]):
                e, j = (q + 1) % 2, (q + 1) // 2
                for c in range(x.shape[3]):
                    padded[r, e, j, c] = x[image, row, q, c]
        else:
            padded[r] = 0


@kernel
def lift_back(dlifted: Array, first: int, dx: Array) -> None:
    """Write the gradient by some images, given that by their transformed patches.

    The images begin at number `first`.
    """
    _, images, rows, columns, channels = dlifted.shape
    run = columns * channels
    flat = dlifted.reshape((16, images * rows, run))
    parts = np.zeros((4, 2, columns + 1, channels), dx.dtype)
    runs = parts.reshape((4, 2, run + channels))
    dx[first : first + images] = 0

    for image in range(images):
        for i in range(rows):
            row = image * rows + i
            for p in range(4):
                even, odd = runs[p, 0], runs[p, 1]
                next_even, next_odd = even[channels:], odd[channels:]
                even[run:] = 0
                odd[run:] = 0

                for z in range(run):
                    even[z] = flat[4 * p, row, z]
                for z in range(run):
                    odd[z] = (
                        flat[4 * p + 1, row, z] - flat[4 * p + 2, row, z] + flat[4 * p + 3, row, z]
                    )
                for z in range(run):
                    next_even[z] += (
                        flat[4 * p + 1, row, z] + flat[4 * p + 2, row, z] - flat[4 * p, row, z]
                    )
                for z in range(run):
                    next_odd[z] -= flat[4 * p + 3, row, z]

            _add_rows(parts, first + image, i, dx)


@kernel
def _add_rows(parts: Array, image: int, i: int, dx: Array) -> None:
    """Add to the four rows of the i-th row of tiles, as far as the image has such rows."""
    _, height, width, channels = dx.shape
    for q in range(width):
        e, j = (q + 1) % 2, (q + 1) // 2

        if i > 0:
            for c in range(channels):
                dx[image, 2 * i - 1, q, c] += parts[0, e, j, c]
        for c in range(channels):
            dx[image, 2 * i, q, c] += parts[1, e, j, c] - parts[2, e, j, c] + parts[3, e, j, c]
        if 2 * i + 1 < height:
            for c in range(channels):
                dx[image, 2 * i + 1, q, c] += (
                    parts[1, e, j, c] + parts[2, e, j, c] - parts[0, e, j, c]
                )
        if 2 * i + 2 < height:
            for c in range(channels):
                dx[image, 2 * i + 2, q, c] -= parts[3, e, j, c]


@kernel
def drop(products: Array, first: int, y: Array) -> None:
    """Write the outputs of the images from number `first` on, in windows."""
    size = products.size // 16
    m, start = products.reshape((16, size)), first * (size // products.shape[1])
    out = y.reshape((4, y.size // 4))
    parts = np.empty((2, 4, _BLOCK), y.dtype)

    for begin in range(0, size, _BLOCK):
        count = min(_BLOCK, size - begin)
        for q in range(4):
            m0, m1, m2, m3 = m[q, begin:], m[q + 4, begin:], m[q + 8, begin:], m[q + 12, begin:]
            upper, lower = parts[0, q], parts[1, q]
            for z in range(count):
                upper[z] = m0[z] + m1[z] + m2[z]
            for z in range(count):
                lower[z] = m1[z] - m2[z] - m3[z]

        for k in range(2):
            left, right = out[2 * k, start + begin :], out[2 * k + 1, start + begin :]
            p0, p1, p2, p3 = parts[k, 0], parts[k, 1], parts[k, 2], parts[k, 3]
            for z in range(count):
                left[z] = p0[z] + p1[z] + p2[z]
            for z in range(count):
                right[z] = p1[z] - p2[z] - p3[z]


@kernel
def drop_back(dy: Array, first: int, dproducts: Array) -> None:
    """Write the gradient by the sixteen products, given that by the outputs."""
    size = dproducts.size // 16
    m, start = dproducts.reshape((16, size)), first * (size // dproducts.shape[1])
    d = dy.reshape((4, dy.size // 4))

    for begin in range(0, size, _BLOCK):
        here = start + begin
        d0, d1, d2, d3 = d[0, here:], d[1, here:], d[2, here:], d[3, here:]
        for q in range(16):
            out = m[q, begin : min(begin + _BLOCK, size)]
            by0, by1, by2, by3 = _AA[q, 0], _AA[q, 1], _AA[q, 2], _AA[q, 3]
            for z in range(out.size):
                out[z] = by0 * d0[z] + by1 * d1[z] + by2 * d2[z] + by3 * d3[z]
