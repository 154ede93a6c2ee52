"""Random numbers: the published cipher, exact bounds, and shuffles without repeats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfsl.sampling.philox import Stream, full_shuffle, partial_shuffle, philox4x32


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0, 0, 0, 0], (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0xFFFFFFFF] * 4,
            (0xFFFFFFFF, 0xFFFFFFFF),
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, expected):
    words = philox4x32(*(np.array([c], np.uint64) for c in counter), key)
    assert [int(word[0]) for word in words] == expected


def test_a_stream_does_not_depend_on_what_is_drawn_with_it():
    stream = Stream.named("test", 1)
    rows = np.arange(40_000, dtype=np.uint64)
    columns = rows % np.uint64(7)
    whole = stream.words(rows, columns, 9)
    alone = stream.words(rows[33_333:33_334], columns[33_333:33_334], 5)
    assert whole[:5, 33_333].tolist() == alone[:, 0].tolist()


def test_streams_of_other_names_are_other_numbers():
    zero = np.zeros(1, np.uint64)
    names = [("a", "b"), ("ab",), ("b", "a")]
    drawn = {tuple(Stream.named(*name).words(zero, zero, 4)[:, 0].tolist()) for name in names}
    assert len(drawn) == 3


@given(st.lists(st.integers(1, 2**32 - 1), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
def test_bounded_integers_are_below_their_bounds(bounds, row):
    columns = np.array(bounds, np.uint64)[:, None]
    drawn = Stream.named("bounds").below(
        columns, np.array([row], np.uint64), np.zeros(1, np.uint64)
    )
    assert (drawn < columns).all()


def test_bounded_integers_are_exactly_uniform_where_multiply_and_shift_is_not():
    """At a bound of 3 x 2**30 a quarter of the words has to be drawn again."""
    n = 4000
    bound = np.full((1, n), 3 * 2**30, np.uint64)
    drawn = Stream.named("uneven").below(
        bound, np.arange(n, dtype=np.uint64), np.zeros(n, np.uint64)
    )[0]
    counts = np.bincount((drawn % np.uint64(3)).astype(np.int64), minlength=3)
    assert np.all(np.abs(counts - n / 3) < 5 * np.sqrt(n * 2 / 9)), counts


def test_a_redrawn_integer_moves_no_other():
    stream, rows = Stream.named("uneven"), np.arange(50, dtype=np.uint64)
    columns, bounds = np.zeros(50, np.uint64), np.full((3, 50), 3 * 2**30, np.uint64)

    together = stream.below(bounds, rows, columns)
    alone = [stream.below(bounds[:, :1], rows[i : i + 1], columns[:1])[:, 0] for i in range(50)]
    assert np.array_equal(together, np.stack(alone, axis=1))


@given(st.integers(1, 300), st.integers(1, 60), st.integers(0, 2**32))
def test_a_partial_shuffle_draws_no_number_twice(size, count, row):
    count = min(count, size)
    bounds = np.arange(size, size - count, -1, dtype=np.uint64)[:, None].repeat(5, axis=1)
    rows = np.arange(row, row + 5, dtype=np.uint64)

    offsets = Stream.named("shuffle").below(bounds, rows, np.zeros_like(rows))
    drawn = partial_shuffle(offsets, size)
    assert drawn.max() < size
    assert all(len(set(of_list)) == count for of_list in drawn.T.tolist())


@given(st.integers(41, 70_000), st.integers(1, 32), st.data())
def test_a_few_draws_are_the_first_of_many(size, few, data):
    """A few draws are computed in another way than many."""
    near, anywhere = st.just(2), st.just(size)
    offsets = [
        data.draw(st.integers(0, min(size - 1 - i, data.draw(near | anywhere)))) for i in range(40)
    ]
    offsets = np.array(offsets, np.uint64)[:, None]
    assert np.array_equal(
        partial_shuffle(offsets[:few], size), partial_shuffle(offsets, size)[:few]
    )


def test_a_partial_shuffle_favours_no_order():
    n = 6000
    bounds = np.array([3, 2, 1], np.uint64)[:, None].repeat(n, axis=1)
    rows = np.arange(n, dtype=np.uint64)
    drawn = partial_shuffle(Stream.named("fair").below(bounds, rows, np.zeros_like(rows)), 3)
    counts = np.unique(drawn[0] * 9 + drawn[1] * 3 + drawn[2], return_counts=True)[1]
    assert len(counts) == 6 and np.all(np.abs(counts - 1000) < 5 * np.sqrt(1000)), counts


@given(st.integers(1, 100), st.integers(0, 2**32))
def test_a_full_shuffle_is_a_permutation(count, row):
    words = Stream.named("order").words(np.array([row], np.uint64), np.zeros(1, np.uint64), count)
    assert sorted(full_shuffle(words.T)[0].tolist()) == list(range(count))


def test_uniform_numbers_fill_the_unit_interval():
    rows = np.arange(20_000, dtype=np.uint64)
    drawn = Stream.named("uniform").uniform(rows, np.zeros_like(rows), 1)[0]
    assert drawn.min() >= 0 and drawn.max() < 1
    assert abs(float(drawn.mean()) - 0.5) < 5 / np.sqrt(12 * 20_000)
