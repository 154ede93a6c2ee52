"""Counter-based random numbers: every number has an address, and no state is kept.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns
a 128-bit counter and a 64-bit key into four random 32-bit words. The key is derived from a *name*, the counter
is an address: (block, lane, row). So the numbers of task 17 are the same alone, inside a block of a thousand
tasks, in another process and under another numpy.

Only unsigned integer arithmetic is used, so the bits do not depend on the platform.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt, UInt32, UInt64

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10
_CHUNK = 16384
_ATTEMPT_SHIFT = 24
_FEW_CARDS = 32


Word = UInt64[np.ndarray, "..."]
"""32-bit words, held in 64 bits so that products fit."""


def philox4x32(
    c0: Word, c1: Word, c2: Word, c3: Word, key: tuple[int, int]
) -> tuple[Word, Word, Word, Word]:
    """Turn counters of four words (which may be broadcast against each other) into four random words each."""
    k0, k1 = key
    product0, product1 = c0 * _M0, c2 * _M1
    c0, c2 = (product1 >> _HALF) ^ c1 ^ np.uint64(k0), (product0 >> _HALF) ^ c3 ^ np.uint64(k1)
    shape = np.broadcast_shapes(c0.shape, c2.shape)
    c0, c2 = np.broadcast_to(c0, shape).copy(), np.broadcast_to(c2, shape).copy()
    c1, c3 = (
        np.broadcast_to(product1 & _LOW, shape).copy(),
        np.broadcast_to(product0 & _LOW, shape).copy(),
    )
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
    """A named source of random numbers, addressed by row and lane."""

    key: tuple[int, int]

    @classmethod
    def named(cls, *parts: str | int) -> Stream:
        """Make the stream whose key is the hash of `parts`: other parts, other independent numbers."""
        text = "\x1f".join(str(part) for part in parts)
        digest = hashlib.sha256(text.encode()).digest()
        return cls(
            key=(int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
        )

    def words(
        self,
        rows: UInt64[np.ndarray, " n"],
        lanes: UInt64[np.ndarray, " n"],
        count: int,
        attempt: int = 0,
    ) -> UInt64[np.ndarray, "count n"]:
        """Return `count` words (0 ... 2**32 - 1) for every address (row, lane)."""
        n, blocks = len(rows), -(-count // 4)
        words = np.empty((blocks, 4, n), np.uint64)
        numbers = np.arange(blocks, dtype=np.uint64) + np.uint64(attempt << _ATTEMPT_SHIFT)
        for start in range(0, n, _CHUNK):
            at = slice(start, start + _CHUNK)
            address = lanes[at] & _LOW, rows[at] & _LOW, rows[at] >> _HALF
            together = _CHUNK // len(address[0])
            for first in range(0, blocks, together):
                some = slice(first, first + together)
                for word, values in enumerate(philox4x32(numbers[some, None], *address, self.key)):
                    words[some, word, at] = values
        return words.reshape(blocks * 4, n)[:count]

    def below(
        self,
        bounds: UInt64[np.ndarray, "count n"],
        rows: UInt64[np.ndarray, " n"],
        lanes: UInt64[np.ndarray, " n"],
    ) -> UInt64[np.ndarray, "count n"]:
        """Return for each address `count` integers, the i-th uniform in [0, bounds[i]), exactly.

        Multiply and shift (Lemire 2019); the few words that would favour some integers are drawn again
        from an address of their own, so that no other number moves.
        """
        scaled = self.words(rows, lanes, len(bounds))
        scaled *= bounds
        low = scaled & _LOW
        suspects = low < bounds
        scaled >>= _HALF
        if suspects.any():
            self._redraw(scaled, low, bounds, rows, lanes)
        return scaled

    def _redraw(
        self,
        scaled: UInt64[np.ndarray, "count n"],
        low: UInt64[np.ndarray, "count n"],
        bounds: UInt64[np.ndarray, "count n"],
        rows: UInt64[np.ndarray, " n"],
        lanes: UInt64[np.ndarray, " n"],
    ) -> None:
        """Replace, in place, the numbers that came from the uneven remainder of 2**32 over the bound."""
        remainder = (np.uint64(2**32) - bounds) % bounds
        for draw, column in np.argwhere(low < remainder):
            attempt, bound = 0, int(bounds[draw, column])
            value = int(low[draw, column])
            while (value & 0xFFFFFFFF) < int(remainder[draw, column]):
                attempt += 1
                at = slice(column, column + 1)
                value = int(self.words(rows[at], lanes[at], int(draw) + 1, attempt)[-1, 0]) * bound
            scaled[draw, column] = value >> 32

    def uniform(
        self,
        rows: UInt64[np.ndarray, " n"],
        lanes: UInt64[np.ndarray, " n"],
        count: int,
    ) -> Float32[np.ndarray, "count n"]:
        """Return `count` float32 numbers in [0, 1) for every address, multiples of 2**-24."""
        bits = (self.words(rows, lanes, count) >> np.uint64(8)).astype(np.float32)
        return bits * np.float32(2.0**-24)


def partial_shuffle(
    picks: UInt64[np.ndarray, "count n"], deck_size: int
) -> UInt32[np.ndarray, "count n"]:
    """Deal `count` cards from n decks at once: Fisher-Yates, first `count` positions only.

    ``picks[i]`` is a number in [0, size of that deck - i): how far beyond position i the i-th card is taken.
    `deck_size` is the size of the largest deck.
    """
    positions = picks + np.arange(len(picks), dtype=np.uint64)[:, None]
    if len(picks) <= _FEW_CARDS:
        narrow = positions.astype(
            np.min_scalar_type(deck_size)
        )  # bytes mostly: a quarter of the traffic
        return _deal_few(narrow).astype(np.uint32)
    return _deal_many(positions.astype(np.uint32), deck_size)


def _deal_few(positions: UInt[np.ndarray, "count n"]) -> UInt[np.ndarray, "count n"]:
    """Deal without laying out the decks: only positions that were touched are remembered.

    The work grows with the square of the number of cards, but all of it is contiguous.
    """
    displaced = np.empty_like(positions)
    cards = positions.copy()
    for i in range(len(positions)):
        displaced[i] = i
        for j in range(i):
            _overwrite(cards[i], displaced[j], positions[j] == positions[i])
            _overwrite(displaced[i], displaced[j], positions[j] == i)
    return cards


def _overwrite(
    cards: UInt[np.ndarray, " n"], others: UInt[np.ndarray, " n"], where: Bool[np.ndarray, " n"]
) -> None:
    """Copy `others` to `cards` where told; as arithmetic, which numpy vectorises, and masked copies it does not."""
    difference = cards ^ others
    difference *= where
    cards ^= difference


def _deal_many(
    positions: UInt32[np.ndarray, "count n"], deck_size: int
) -> UInt32[np.ndarray, "count n"]:
    """Deal the same cards from decks that are laid out."""
    count, n = positions.shape
    decks = np.repeat(np.arange(deck_size, dtype=np.uint32)[:, None], n, axis=1)
    columns = np.arange(n)
    cards = np.empty_like(positions)
    for i in range(count):
        cards[i] = decks[positions[i], columns]
        decks[positions[i], columns] = decks[i]
    return cards


def full_shuffle(words: UInt64[np.ndarray, "n count"]) -> Int64[np.ndarray, "n count"]:
    """Return one permutation of 0 ... count - 1 for each row of random words, by sorting the words.

    Equal words (one pair in 2**32) stay in order.
    """
    keys = (words << _HALF) | np.arange(words.shape[1], dtype=np.uint64)
    keys.sort(axis=1)
    return (keys & _LOW).astype(np.int64)
