"""Batch norm, 2x2 max-pooling and leaky ReLU in one pass over the maps, with derivatives.

These are kernels for the CPU. Maps lie in windows: ``y[k, image, i, j, channel]`` is the pixel
(2i + k // 2, 2j + k % 2). The four values of a pooling window are at one place of four planes, and
channels are contiguous, which is what vector instructions want. In a map with an odd side the last
windows are cut: their pixels count in the statistics, but are not pooled.

    x = (y - mean) / std      z = gamma x + beta      a = leaky(max over the window of z)

For each window and channel, `code` keeps where the maximum was (0 to 3, plus 4 if it was not
positive) and `top` its x. A dot marks a derivative along the direction in which the inputs move;
gamma and beta do not move. With N values a channel, < > for their mean, and dz the gradient of the
loss by z, zero but at maxima:

    dy     = gamma / std (dz - <dz> - x <dz x>)
    x_dot  = (y_dot - <y_dot> - x s) / std                                          s = <x y_dot>
    dy_dot = gamma / std (dz_dot - <dz_dot> - x_dot <dz x> - x <dz_dot x + dz x_dot>) - s / std dy
"""

from __future__ import annotations

import numpy as np

from cfsl.nets.convnet import SLOPE
from cfsl.nets.fused.blocks import Array, kernel
from cfsl.nets.layers import EPS

# --- forward


@kernel
def moments(y: Array, height: int, width: int, mean: Array, var: Array, inverse: Array) -> None:
    """Write the mean, the unbiased variance and 1 / std of every channel."""
    count, total = y.shape[1] * height * width, np.zeros(len(mean))
    mean[:] = 0
    _add_powers(y, height, width, mean, 1, total)
    for c in range(len(mean)):
        mean[c] = total[c] / count

    total[:] = 0
    _add_powers(y, height, width, mean, 2, total)
    for c in range(len(mean)):
        var[c] = total[c] / (count - 1)
        inverse[c] = 1 / np.sqrt(total[c] / count + EPS)


@kernel
def _add_powers(y: Array, height: int, width: int, mean: Array, power: int, total: Array) -> None:
    part = np.empty_like(mean)

    for image in range(y.shape[1]):
        for i in range(y.shape[2]):
            part[:] = 0
            for k in range(4):
                for j in range((width + 1 - k % 2) // 2 if 2 * i + k // 2 < height else 0):
                    if power == 1:
                        for c in range(len(mean)):
                            part[c] += y[k, image, i, j, c]
                    else:
                        for c in range(len(mean)):
                            part[c] += (y[k, image, i, j, c] - mean[c]) ** 2
            total += part


@kernel
def pooled(
    y: Array,
    mean: Array,
    inverse: Array,
    gamma: Array,
    beta: Array,
    a: Array,
    top: Array,
    code: Array,
) -> None:
    """Write `a`, and `top` and `code` for the derivatives."""
    images, rows, columns, channels = a.shape
    slope = y.dtype.type(SLOPE)

    for image in range(images):
        for i in range(rows):
            for j in range(columns):
                for c in range(channels):
                    x = (y[0, image, i, j, c] - mean[c]) * inverse[c]
                    best, value, where = x, x * gamma[c] + beta[c], 0
                    x = (y[1, image, i, j, c] - mean[c]) * inverse[c]
                    z = x * gamma[c] + beta[c]
                    best, value, where = (x, z, 1) if z > value else (best, value, where)
                    x = (y[2, image, i, j, c] - mean[c]) * inverse[c]
                    z = x * gamma[c] + beta[c]
                    best, value, where = (x, z, 2) if z > value else (best, value, where)
                    x = (y[3, image, i, j, c] - mean[c]) * inverse[c]
                    z = x * gamma[c] + beta[c]
                    best, value, where = (x, z, 3) if z > value else (best, value, where)

                    top[image, i, j, c] = best
                    a[image, i, j, c] = value if value > 0 else value * slope
                    code[image, i, j, c] = where if value > 0 else where + 4


@kernel
def pooled_dot(
    y: Array,
    y_dot: Array,
    mean: Array,
    inverse: Array,
    gamma: Array,
    top: Array,
    code: Array,
    height: int,
    width: int,
    a_dot: Array,
    top_dot: Array,
    mean_dot: Array,
    shrink: Array,
) -> None:
    """Write the derivatives of `a`, `top` and the mean, and s = <x y_dot>."""
    count, sums = y.shape[1] * height * width, np.zeros((2, len(mean)))
    _add_products(y, y_dot, height, width, mean, sums)
    for c in range(len(mean)):
        mean_dot[c] = sums[0, c] / count
        shrink[c] = sums[1, c] / count * inverse[c]

    images, rows, columns, channels = a_dot.shape
    slope, one, zero = y.dtype.type(SLOPE), y.dtype.type(1), y.dtype.type(0)
    chosen = np.empty_like(mean)

    for image in range(images):
        for i in range(rows):
            for j in range(columns):
                chosen[:] = 0
                for k in range(4):
                    for c in range(channels):
                        value = y_dot[k, image, i, j, c]
                        chosen[c] += value if code[image, i, j, c] & 3 == k else zero

                for c in range(channels):
                    x_dot = (chosen[c] - mean_dot[c] - top[image, i, j, c] * shrink[c]) * inverse[c]
                    top_dot[image, i, j, c] = x_dot
                    a_dot[image, i, j, c] = (
                        gamma[c] * x_dot * (one if code[image, i, j, c] < 4 else slope)
                    )


@kernel
def _add_products(
    y: Array, y_dot: Array, height: int, width: int, mean: Array, sums: Array
) -> None:
    part = np.empty(sums.shape, y.dtype)

    for image in range(y.shape[1]):
        for i in range(y.shape[2]):
            part[:] = 0
            for k in range(4):
                for j in range((width + 1 - k % 2) // 2 if 2 * i + k // 2 < height else 0):
                    for c in range(len(mean)):
                        part[0, c] += y_dot[k, image, i, j, c]
                        part[1, c] += (y[k, image, i, j, c] - mean[c]) * y_dot[k, image, i, j, c]
            sums += part


# --- backward


@kernel
def pooled_back(
    y: Array,
    mean: Array,
    inverse: Array,
    gamma: Array,
    top: Array,
    code: Array,
    da: Array,
    count: float,
    dmean: Array,
    dvar: Array,
    height: int,
    width: int,
    dy: Array,
    dgamma: Array,
    dbeta: Array,
) -> None:
    """Write the gradient of the loss by y, gamma and beta.

    Given is that by `a`, and by the mean and the unbiased variance. `count` is N, or infinite if
    mean and variance do not come from y.
    """
    sums = np.zeros((2, len(mean)))
    _add_gradients(da, top, code, sums)

    # dy = base + lean y + gain dz
    gain, base, lean = np.empty_like(mean), np.empty_like(mean), np.empty_like(mean)
    for c in range(len(mean)):
        dbeta[c], dgamma[c] = sums[0, c], sums[1, c]
        gain[c] = gamma[c] * inverse[c]
        lean[c] = -gain[c] * inverse[c] * sums[1, c] / count + 2 * dvar[c] / (count - 1)
        base[c] = -gain[c] * sums[0, c] / count + dmean[c] / count - lean[c] * mean[c]

    _, images, rows, columns, channels = y.shape
    slope, one, zero = y.dtype.type(SLOPE), y.dtype.type(1), y.dtype.type(0)

    for image in range(images):
        for i in range(rows):
            for j in range(columns):
                if i < height // 2 and j < width // 2:
                    for c in range(channels):
                        where = code[image, i, j, c]
                        dz = gain[c] * da[image, i, j, c] * (one if where < 4 else slope)
                        where = where & 3

                        dy[0, image, i, j, c] = (
                            base[c] + lean[c] * y[0, image, i, j, c] + (dz if where == 0 else zero)
                        )
                        dy[1, image, i, j, c] = (
                            base[c] + lean[c] * y[1, image, i, j, c] + (dz if where == 1 else zero)
                        )
                        dy[2, image, i, j, c] = (
                            base[c] + lean[c] * y[2, image, i, j, c] + (dz if where == 2 else zero)
                        )
                        dy[3, image, i, j, c] = (
                            base[c] + lean[c] * y[3, image, i, j, c] + (dz if where == 3 else zero)
                        )
                else:
                    for k in range(4):
                        inside = 2 * i + k // 2 < height and 2 * j + k % 2 < width
                        for c in range(channels):
                            dy[k, image, i, j, c] = (
                                base[c] + lean[c] * y[k, image, i, j, c] if inside else zero
                            )


@kernel
def _add_gradients(da: Array, top: Array, code: Array, sums: Array) -> None:
    """Add dz and dz x."""
    slope, one = da.dtype.type(SLOPE), da.dtype.type(1)
    part = np.empty(sums.shape, da.dtype)

    for image in range(da.shape[0]):
        for i in range(da.shape[1]):
            part[:] = 0
            for j in range(da.shape[2]):
                for c in range(da.shape[3]):
                    dz = da[image, i, j, c] * (one if code[image, i, j, c] < 4 else slope)
                    part[0, c] += dz
                    part[1, c] += dz * top[image, i, j, c]
            sums += part


@kernel
def pooled_back_dot(
    y: Array,
    y_dot: Array,
    mean: Array,
    inverse: Array,
    gamma: Array,
    mean_dot: Array,
    shrink: Array,
    top: Array,
    top_dot: Array,
    code: Array,
    da: Array,
    da_dot: Array,
    dgamma: Array,
    dbeta: Array,
    height: int,
    width: int,
    dy: Array,
    dy_dot: Array,
    dgamma_dot: Array,
    dbeta_dot: Array,
) -> None:
    """Write the gradient by y again, and the derivatives of the gradients by y, gamma and beta."""
    count, sums = y.shape[1] * height * width, np.zeros((2, len(mean)))
    _add_gradients_dot(da, da_dot, top, top_dot, code, sums)

    # dy     = base + lean y + gain dz
    # dy_dot = base_dot + lean_dot y + lean y_dot + gain dz_dot + fade dz
    by = np.empty((6, len(mean)), y.dtype)
    for c in range(len(mean)):
        dbeta_dot[c], dgamma_dot[c] = sums[0, c], sums[1, c]
        gain, fade = gamma[c] * inverse[c], -shrink[c] * inverse[c]
        lean = -gain * inverse[c] * dgamma[c] / count
        base = -gain * dbeta[c] / count - lean * mean[c]

        lean_dot = -gain * inverse[c] * sums[1, c] / count + 2 * fade * lean
        base_dot = (
            fade * base
            - gain * sums[0, c] / count
            - lean * mean_dot[c]
            - (lean_dot - fade * lean) * mean[c]
        )
        by[0, c], by[1, c], by[2, c] = gain, gain * fade, base
        by[3, c], by[4, c], by[5, c] = lean, base_dot, lean_dot

    _write_back_dot(y, y_dot, code, da, da_dot, by, height, width, dy, dy_dot)


@kernel
def _add_gradients_dot(
    da: Array, da_dot: Array, top: Array, top_dot: Array, code: Array, sums: Array
) -> None:
    """Add dz_dot and dz_dot x + dz x_dot."""
    slope, one = da.dtype.type(SLOPE), da.dtype.type(1)
    part = np.empty(sums.shape, da.dtype)

    for image in range(da.shape[0]):
        for i in range(da.shape[1]):
            part[:] = 0
            for j in range(da.shape[2]):
                for c in range(da.shape[3]):
                    leak = one if code[image, i, j, c] < 4 else slope
                    dz, dz_dot = da[image, i, j, c] * leak, da_dot[image, i, j, c] * leak
                    part[0, c] += dz_dot
                    part[1, c] += dz_dot * top[image, i, j, c] + dz * top_dot[image, i, j, c]
            sums += part


@kernel
def _write_back_dot(
    y: Array,
    y_dot: Array,
    code: Array,
    da: Array,
    da_dot: Array,
    by: Array,
    height: int,
    width: int,
    dy: Array,
    dy_dot: Array,
) -> None:
    _, images, rows, columns, channels = y.shape
    slope, one, zero = y.dtype.type(SLOPE), y.dtype.type(1), y.dtype.type(0)
    gain, fade, base, lean, base_dot, lean_dot = by[0], by[1], by[2], by[3], by[4], by[5]
    where = np.empty(channels, np.uint8)
    by_dz, by_dz_dot = np.empty(channels, y.dtype), np.empty(channels, y.dtype)

    for image in range(images):
        for i in range(rows):
            for j in range(columns):
                where[:] = 4
                if i < height // 2 and j < width // 2:
                    for c in range(channels):
                        leak = one if code[image, i, j, c] < 4 else slope
                        where[c] = code[image, i, j, c] & 3
                        by_dz[c] = gain[c] * da[image, i, j, c] * leak
                        by_dz_dot[c] = (
                            gain[c] * da_dot[image, i, j, c] + fade[c] * da[image, i, j, c]
                        ) * leak

                for k in range(4):
                    inside = 2 * i + k // 2 < height and 2 * j + k % 2 < width
                    for c in range(channels):
                        dense = base[c] + lean[c] * y[k, image, i, j, c]
                        dy[k, image, i, j, c] = (
                            dense + (by_dz[c] if where[c] == k else zero) if inside else zero
                        )
                    for c in range(channels):
                        dense = (
                            base_dot[c]
                            + lean_dot[c] * y[k, image, i, j, c]
                            + lean[c] * y_dot[k, image, i, j, c]
                        )
                        dy_dot[k, image, i, j, c] = (
                            dense + (by_dz_dot[c] if where[c] == k else zero) if inside else zero
                        )
