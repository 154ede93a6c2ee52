"""The images of a split as float32, by their numbers."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32, Int64, UInt8

from cfsl.data.recipe import Recipe
from cfsl.data.store import Dataset

_LARGEST_TABLE = 128 * 2**20  # bytes
_VALUES_AT_ONCE = 2**18


@dataclass(frozen=True)
class SplitImages:
    """The images of a split, numbered class after class as the sampler counts them.

    A split that fits in 128 MB as floats is converted once, so that making a task is one copy. The
    images of a larger one stay on the disk as bytes, and are converted when they are asked for.
    Both give the same bits.
    """

    pixels: UInt8[np.ndarray, "all channels height width"]
    rows: Int32[np.ndarray, " images"]
    """The row of every image of the split in the data set."""
    recipe: Recipe

    @classmethod
    def of(cls, data: Dataset, classes: Int64[np.ndarray, " classes"]) -> SplitImages:
        """Number the images of these classes of a data set."""
        starts, sizes = data.class_starts[classes], data.class_sizes[classes]
        before = np.cumsum(sizes) - sizes
        rows = np.arange(sizes.sum()) + np.repeat(starts - before, sizes)
        return cls(data.pixels, rows.astype(np.int32), data.info.recipe)

    def normalised(
        self, numbers: Int32[np.ndarray, "*shape"]
    ) -> Float32[np.ndarray, "*shape channels height width"]:
        """Return images as networks expect them: normalised as the recipe says."""
        if self._table is None:
            images = self.in_unit_range(numbers)
            self.normalise(images)
            return images

        images = np.empty((numbers.size, *self._table.shape[1:]), np.float32)
        # The numbers come from the sampler and are in range; "clip" spares numpy a second buffer.
        np.take(self._table, numbers.reshape(-1), axis=0, out=images, mode="clip")
        return images.reshape(*numbers.shape, *self._table.shape[1:])

    def in_unit_range(
        self, numbers: Int32[np.ndarray, "*shape"]
    ) -> Float32[np.ndarray, "*shape channels height width"]:
        """Return images as floats in [0, 1], before normalisation."""
        rows = self.rows[numbers.reshape(-1)]
        images = np.empty((len(rows), *self.pixels.shape[1:]), np.float32)

        step = max(1, _VALUES_AT_ONCE // images[:1].size)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            np.divide(self.pixels[rows[part]], np.float32(255), out=images[part])
        return images.reshape(*numbers.shape, *self.pixels.shape[1:])

    def normalise(self, images: Float32[np.ndarray, "*shape channels height width"]) -> None:
        """Subtract the recipe's mean and divide by its standard deviation, in place."""
        if self.recipe.mean:
            images -= np.array(self.recipe.mean, np.float32)[:, None, None]
            images /= np.array(self.recipe.std, np.float32)[:, None, None]

    @functools.cached_property
    def _table(self) -> Float32[np.ndarray, "images channels height width"] | None:
        """All images of the split, normalised; None if they take too much memory."""
        if len(self.rows) * self.pixels[:1].size * 4 > _LARGEST_TABLE:
            return None

        table = self.in_unit_range(np.arange(len(self.rows), dtype=np.int32))
        self.normalise(table)
        return table
