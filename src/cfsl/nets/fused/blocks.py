"""The shapes of the blocks of a stack, and how kernels are compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar, cast

import numba
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Kernel = TypeVar("Kernel", bound=Callable[..., None])


@dataclass(frozen=True)
class Block:
    """The shape of one block: its inputs are maps of height x width."""

    height: int
    width: int
    inputs: int
    outputs: int

    @property
    def windows(self) -> tuple[int, int]:
        """Rows and columns of pooling windows, the cut ones included."""
        return (self.height + 1) // 2, (self.width + 1) // 2

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of the outputs."""
        return self.height // 2, self.width // 2

    def values(self, images: int) -> int:
        """Values a channel that batch norm gets."""
        return images * self.height * self.width


def blocks_of(image_shape: Sequence[int], widths: Sequence[int]) -> list[Block]:
    """Return the blocks of a stack for images of this shape (channels, height, width)."""
    channels, height, width = image_shape
    return [
        Block(height >> depth, width >> depth, inputs, outputs)
        for depth, (inputs, outputs) in enumerate(pairwise((channels, *widths)))
    ]


def kernel(function: Kernel) -> Kernel:
    """Compile at the first call for a type of numbers, and keep the result on disk.

    It is compiled anew when its file changes. Constants of other modules are frozen in it.
    """
    compiler = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "nsz"})
    # Tests wrap annotated functions.
    return cast(Kernel, compiler(inspect.unwrap(function)))
