"""Noise and occlusion of target images, in pixel space [0, 1], seeded per task (rules 20-22)."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt64

from cfsl.sampling.philox import Stream, full_shuffle
from cfsl.spec import Noise, Occlusion

_Images = Float32[np.ndarray, "targets channels height width"]
_Covered = Float32[np.ndarray, " targets"]
"""The fraction of an image's values (noise) or pixels (occlusion) that was replaced."""


def corrupt(
    images: _Images, corruption: Noise | Occlusion, *, stream: Stream, task: int
) -> tuple[_Images, _Covered]:
    """Return corrupted copies of a task's targets, and the fraction of each that was replaced.

    Target i of task t always gets the same noise; a larger fraction covers what a smaller one
    covers.
    """
    rows = np.full(len(images), task, np.uint64)
    columns = np.arange(len(images), dtype=np.uint64)

    if corruption.kind == "noise":
        return _add_noise(images, corruption.fraction, stream, rows, columns)
    return _occlude(images, corruption, stream, rows, columns)


def _add_noise(
    images: _Images,
    fraction: float,
    stream: Stream,
    rows: UInt64[np.ndarray, " targets"],
    columns: UInt64[np.ndarray, " targets"],
) -> tuple[_Images, _Covered]:
    """Replace exactly floor(fraction x values) values of each image by U[0, 1)."""
    count = images[0].size
    replaced = _floor(fraction, count)
    words = stream.words(rows, columns, 2 * count).T

    # The first half of the words chooses the places, the second half gives the values.
    places = full_shuffle(words[:, :count])[:, :replaced]
    upper_bits = words[:, count : count + replaced] >> np.uint64(8)
    values = upper_bits.astype(np.float32) * np.float32(2.0**-24)

    noisy = images.reshape(len(images), -1).copy()
    np.put_along_axis(noisy, places, values, axis=1)
    return noisy.reshape(images.shape), np.full(len(images), replaced / count, np.float32)


def _occlude(
    images: _Images,
    occlusion: Occlusion,
    stream: Stream,
    rows: UInt64[np.ndarray, " targets"],
    columns: UInt64[np.ndarray, " targets"],
) -> tuple[_Images, _Covered]:
    """Cover a disc or square of each image with one value, in all channels."""
    height, width = images.shape[2:]
    radius = _floor(occlusion.fraction, height)

    centre_y, centre_x = stream.uniform(rows, columns, 2)
    down = np.arange(height) - _centres(centre_y, radius, height)[:, None]
    across = np.arange(width) - _centres(centre_x, radius, width)[:, None]
    hidden = _inside(occlusion.shape, down[:, :, None], across[:, None, :], radius)

    covered = hidden.mean(axis=(1, 2), dtype=np.float64).astype(np.float32)
    return np.where(hidden[:, None], np.float32(occlusion.value), images), covered


def _floor(fraction: float, whole: int) -> int:
    """Return floor(fraction x whole) of the fraction as it is written.

    0.29 of 100 is 29, although the binary number 0.29 is a little less.
    """
    return int(Decimal(repr(fraction)) * whole)


def _centres(
    uniform: Float32[np.ndarray, " targets"], radius: int, length: int
) -> Int64[np.ndarray, " targets"]:
    """Place the centre uniformly from radius up to length - radius: the occluder stays inside.

    When the occluder is larger than the image, the two bounds change places.
    """
    low, high = min(radius, length - radius), max(radius, length - radius)
    return low + (uniform * np.float32(max(1, high - low))).astype(np.int64)


def _inside(
    shape: str, down: Int64[np.ndarray, "n h 1"], across: Int64[np.ndarray, "n 1 w"], radius: int
) -> Bool[np.ndarray, "n h w"]:
    """Tell which pixels the occluder hides."""
    if shape == "disc":
        return np.asarray(down**2 + across**2 <= radius**2)
    return np.asarray(np.maximum(np.abs(down), np.abs(across)) <= radius)
