"""Counter-based random numbers: every number has an address, and no state is kept.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
2011) turns a 128-bit counter and a 64-bit key into four random 32-bit words. The key is derived
from a name, and the counter is an address: (block, column, row). So the numbers of task 17 are the
same alone, inside a block of a thousand tasks, in another process and under another numpy.

Only unsigned integer arithmetic is used, so the bits do not depend on the platform.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt, UInt32, UInt64

# The multipliers and the key increments of Philox4x32-10.
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ADDRESSES_AT_ONCE = 16384
_ATTEMPT_SHIFT = 24
_FEW_DRAWS = 32

_Words = UInt64[np.ndarray, "..."]
"""32-bit words, held in 64 bits so that products fit."""


def philox4x32(
    c0: _Words, c1: _Words, c2: _Words, c3: _Words, key: tuple[int, int]
) -> tuple[_Words, _Words, _Words, _Words]:
    """Turn counters of four words each into four random words each.

    The arrays may have any shapes that numpy can broadcast.
    """
    k0, k1 = key

    # The first round works on the shapes that were given, which are smaller than what they span.
    product0, product1 = c0 * _M0, c2 * _M1
    c0, c2 = (product1 >> _HALF) ^ c1 ^ np.uint64(k0), (product0 >> _HALF) ^ c3 ^ np.uint64(k1)
    c1, c3 = product1 & _LOW, product0 & _LOW

    shape = np.broadcast_shapes(c0.shape, c2.shape)
    c0, c1, c2, c3 = (np.broadcast_to(words, shape).copy() for words in (c0, c1, c2, c3))

    # The other rounds work in place.
    product0, product1 = np.empty_like(c0), np.empty_like(c0)
    for _ in range(_ROUNDS - 1):
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
        np.multiply(c0, _M0, out=product0)
        np.multiply(c2, _M1, out=product1)

        np.right_shift(product1, _HALF, out=c0)
        c0 ^= c1
        c0 ^= np.uint64(k0)

        np.right_shift(product0, _HALF, out=c2)
        c2 ^= c3
        c2 ^= np.uint64(k1)

        np.bitwise_and(product1, _LOW, out=c1)
        np.bitwise_and(product0, _LOW, out=c3)
    return c0, c1, c2, c3


@dataclass(frozen=True)
class Stream:
    """A named table of random numbers: every (row, column) has an endless sequence of them."""

    key: tuple[int, int]

    @classmethod
    def named(cls, *parts: str | int) -> Stream:
        """Make the stream whose key is the hash of `parts`: other parts, other numbers."""
        text = "\x1f".join(str(part) for part in parts)
        digest = hashlib.sha256(text.encode()).digest()
        return cls(
            key=(int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
        )

    def words(
        self,
        rows: UInt64[np.ndarray, " n"],
        columns: UInt64[np.ndarray, " n"],
        count: int,
        attempt: int = 0,
    ) -> UInt64[np.ndarray, "count n"]:
        """Return the first `count` words (0 ... 2**32 - 1) of every address (row, column).

        Another `attempt` gives other words of the same address.
        """
        n, blocks = len(rows), -(-count // 4)
        words = np.empty((blocks, 4, n), np.uint64)
        numbers = np.arange(blocks, dtype=np.uint64) + np.uint64(attempt << _ATTEMPT_SHIFT)

        # Many addresses go in parts, few addresses take many blocks at once: all fits in the cache.
        for start in range(0, n, _ADDRESSES_AT_ONCE):
            at = slice(start, start + _ADDRESSES_AT_ONCE)
            address = columns[at] & _LOW, rows[at] & _LOW, rows[at] >> _HALF
            together = _ADDRESSES_AT_ONCE // len(address[0])

            for first in range(0, blocks, together):
                some = slice(first, first + together)
                for word, values in enumerate(philox4x32(numbers[some, None], *address, self.key)):
                    words[some, word, at] = values
        return words.reshape(blocks * 4, n)[:count]

    def below(
        self,
        bounds: UInt64[np.ndarray, "count n"],
        rows: UInt64[np.ndarray, " n"],
        columns: UInt64[np.ndarray, " n"],
    ) -> UInt64[np.ndarray, "count n"]:
        """Return for each address `count` integers, the i-th uniform in [0, bounds[i]), exactly.

        Multiply and shift (Lemire 2019); the few words that would favour some integers are drawn
        again from an address of their own, so that no other number moves.
        """
        scaled = self.words(rows, columns, len(bounds))
        scaled *= bounds
        low = scaled & _LOW
        suspects = low < bounds
        scaled >>= _HALF

        if suspects.any():
            self._redraw(scaled, low, bounds, rows, columns)
        return scaled

    def _redraw(
        self,
        scaled: UInt64[np.ndarray, "count n"],
        low: UInt64[np.ndarray, "count n"],
        bounds: UInt64[np.ndarray, "count n"],
        rows: UInt64[np.ndarray, " n"],
        columns: UInt64[np.ndarray, " n"],
    ) -> None:
        """Replace, in place, the numbers from the uneven remainder of 2**32 over the bound."""
        remainder = (np.uint64(2**32) - bounds) % bounds

        for draw, address in np.argwhere(low < remainder):
            at = slice(address, address + 1)
            bound, refused = int(bounds[draw, address]), int(remainder[draw, address])
            value = int(low[draw, address])

            attempt = 0
            while (value & 0xFFFFFFFF) < refused:
                attempt += 1
                words = self.words(rows[at], columns[at], int(draw) + 1, attempt)
                value = int(words[-1, 0]) * bound
            scaled[draw, address] = value >> 32

    def uniform(
        self,
        rows: UInt64[np.ndarray, " n"],
        columns: UInt64[np.ndarray, " n"],
        count: int,
    ) -> Float32[np.ndarray, "count n"]:
        """Return `count` float32 numbers in [0, 1) for every address, multiples of 2**-24."""
        bits = (self.words(rows, columns, count) >> np.uint64(8)).astype(np.float32)
        return bits * np.float32(2.0**-24)


def partial_shuffle(
    offsets: UInt64[np.ndarray, "count n"], largest: int
) -> UInt32[np.ndarray, "count n"]:
    """Shuffle n lists of the numbers 0, 1, 2 ... at once, and return the start of each.

    This is the method of Fisher and Yates, stopped after `count` steps: step i exchanges the number
    at position i with the one that stands ``offsets[i]`` further on. ``offsets[i]`` is below the
    length of that list - i; `largest` is the length of the longest list.
    """
    positions = offsets + np.arange(len(offsets), dtype=np.uint64)[:, None]
    if len(offsets) > _FEW_DRAWS:
        return _shuffle_whole_lists(positions.astype(np.uint32), largest)

    # Mostly bytes: a quarter of the memory traffic.
    narrow = positions.astype(np.min_scalar_type(largest))
    return _shuffle_touched_positions(narrow).astype(np.uint32)


def _shuffle_touched_positions(
    positions: UInt[np.ndarray, "count n"],
) -> UInt[np.ndarray, "count n"]:
    """Shuffle without a copy of the lists: only positions that were touched are remembered.

    The work grows with the square of the number of draws, but all memory is contiguous.
    """
    drawn, displaced = positions.copy(), np.empty_like(positions)
    for i in range(len(positions)):
        displaced[i] = i
        for j in range(i):
            _overwrite(drawn[i], displaced[j], positions[j] == positions[i])
            _overwrite(displaced[i], displaced[j], positions[j] == i)
    return drawn


def _overwrite(
    numbers: UInt[np.ndarray, " n"], others: UInt[np.ndarray, " n"], where: Bool[np.ndarray, " n"]
) -> None:
    """Copy `others` to `numbers` where told: numpy vectorises arithmetic, but not masked copies."""
    difference = numbers ^ others
    difference *= where
    numbers ^= difference


def _shuffle_whole_lists(
    positions: UInt32[np.ndarray, "count n"], largest: int
) -> UInt32[np.ndarray, "count n"]:
    """Shuffle as `_shuffle_touched_positions` does, with a copy of the lists."""
    count, n = positions.shape
    lists = np.repeat(np.arange(largest, dtype=np.uint32)[:, None], n, axis=1)
    every = np.arange(n)

    drawn = np.empty_like(positions)
    for i in range(count):
        drawn[i] = lists[positions[i], every]
        lists[positions[i], every] = lists[i]
    return drawn


def full_shuffle(words: UInt64[np.ndarray, "n count"]) -> Int64[np.ndarray, "n count"]:
    """Return one permutation of 0 ... count - 1 for each row of random words, by sorting the words.

    Equal words (one pair in 2**32) stay in order.
    """
    keys = (words << _HALF) | np.arange(words.shape[1], dtype=np.uint64)
    keys.sort(axis=1)
    return (keys & _LOW).astype(np.int64)
