"""Glyphs: an endless, embedded data set of handwriting-like characters, in the manner of Omniglot.

- An *alphabet* (22 to 45 classes) is a style: a vocabulary of six strokes (bar, bow, ring, hook ..., in the
  shape and turn of this alphabet) and a small mark, how they tend to meet, how many, slant, proportions.
- A *character* (a class) is a program: one to five strokes of the vocabulary, each fastened by a point of its
  own to a point of an earlier stroke, or set down at a distance. No two characters of an alphabet begin with
  the same two strokes. Of several programs the least crowded one is taken: a hand avoids writing over itself.
- A *sample* runs the program with motor noise: control points move, strokes miss their joints. The n-th
  samples of an alphabet's characters are by the same *writer*, who has a slant, size and pen of their own.

Images are 28 x 28, dark ink (0) on white paper (255). Every random number has an address made of alphabet or
class number and sample number, so an image does not depend on what else is drawn. The same bits everywhere:
the arithmetic is elementwise + - * / and sqrt, which IEEE 754 rounds exactly; nothing is summed up.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64, UInt8, UInt64
from numpy.typing import NDArray

from cfsl.sampling.philox import Stream

SIZE = 28
VERSION = 1
# Alphabets differ in size as real ones do; the sizes repeat, so the alphabet of any class is known at once.
_ALPHABET_SIZES = (26, 34, 22, 41, 30, 24, 45, 28)
_ALPHABET_STARTS = np.array([0, *accumulate(_ALPHABET_SIZES)])
_STROKES = 5
_SEGMENTS = 5  # straight segments of a Bezier; a stroke is two Beziers
_WORDS = 7
_MARK = _WORDS - 1  # the word that never comes first
_CANDIDATES = 12
# The strokes any hand makes: control points x, y (y points down) of two Beziers that share the fourth point.
_TEMPLATES = (
    [(0, -50), (0, -33), (0, -17), (0, 0), (0, 17), (0, 33), (0, 50)],  # bar
    [(-10, -50), (5, -35), (18, -18), (18, 0), (18, 18), (5, 35), (-10, 50)],  # bow
    [(-38, -50), (-38, -20), (-38, 10), (-38, 42), (-10, 42), (15, 42), (40, 42)],  # corner
    [(-36, -48), (-24, -16), (-12, 16), (0, 48), (12, 16), (24, -16), (36, -48)],  # wedge
    [(-38, 50), (-38, 10), (-45, -45), (0, -45), (45, -45), (38, 10), (38, 50)],  # arch
    [(0, -45), (-60, -45), (-60, 45), (0, 45), (60, 45), (60, -45), (0, -45)],  # ring
    [(30, -40), (0, -62), (-42, -40), (-42, 0), (-42, 40), (0, 62), (30, 40)],  # bowl
    [(12, -50), (12, -30), (12, 0), (12, 18), (12, 58), (-32, 58), (-32, 20)],  # hook
    [(30, -38), (5, -70), (-62, -28), (0, 0), (62, 28), (-5, 70), (-30, 38)],  # wave
    [(-45, 45), (0, 40), (45, -50), (0, -50), (-45, -50), (0, 40), (45, 45)],  # loop
    [(-34, -22), (-34, -62), (36, -60), (32, -18), (28, 12), (0, 0), (0, 50)],  # crook
    [(4, 6), (-22, 10), (-18, -36), (10, -34), (58, -30), (40, 52), (-34, 40)],  # curl
)
_SHAPES = np.array(_TEMPLATES, np.float32) / np.float32(100)
_PLAIN = 6  # the first templates: alone they would look the same in every alphabet
# Where strokes meet, as points of the sampled stroke: mostly ends and middle, sometimes between.
_JOINTS = np.array([0, 0, 0, 3, 5, 5, 7, 10, 10, 10])
_SHAPE_NOISE = 1.0  # pixels, of a control point
_JOINT_NOISE = 0.9  # pixels, of the point where a stroke is fastened
_CROWDED = 2.5  # pixels between points of strokes that crowd each other
_MARGIN = 1.5  # pixels of paper left around the ink's centre line
_BLOCK_IMAGES = 1600
_TILE_IMAGES = 40  # rendered together: small enough for the arrays to stay in the cache

Numbers = UInt64[np.ndarray, " n"]
Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
Curves = Float32[np.ndarray, "n strokes points 2"]


class _Programs(NamedTuple):
    """How to write the characters of n classes."""

    shapes: Float32[np.ndarray, "n strokes controls 2"]
    strokes: Int64[np.ndarray, " n"]
    parent: Int64[np.ndarray, "n strokes"]
    joints: Int64[np.ndarray, "n strokes 2"]  # of the parent and of the stroke itself
    gap: Float32[np.ndarray, "n strokes 2"]
    box: Float32[np.ndarray, "n 2"]

    def take(self, rows: Integers) -> _Programs:
        """Return the programs of the given rows."""
        return _Programs(*(field[rows] for field in self))


def draw_glyphs(classes: range, samples: int) -> UInt8[np.ndarray, "images 28 28"]:
    """Draw the images of the given class numbers, `samples` each, class after class."""
    images = np.empty((len(classes) * samples, SIZE, SIZE), np.uint8)
    numbers = np.array(classes, np.uint64)
    for start in range(0, len(images), _BLOCK_IMAGES):
        image = np.arange(start, min(start + _BLOCK_IMAGES, len(images)))
        row, sample = image // samples, (image % samples).astype(np.uint64)
        programs = _programs(numbers[row[0] : row[-1] + 1]).take(row - row[0])
        pen = 0.5 + 0.25 * _uniform("pen", _place(numbers[row])[0], sample)
        images[image] = _render(_write(programs, numbers[row], sample), programs.strokes, pen)
    return images


def class_name(number: int) -> str:
    """Name a class by alphabet and character; names sort as numbers do."""
    alphabet, character = _place(np.array([number], np.uint64))
    return f"alphabet{int(alphabet[0]):04d}/character{int(character[0]) + 1:02d}"


def _place(numbers: Numbers) -> tuple[Numbers, Int64[np.ndarray, " n"]]:
    """Return the alphabet of each class, and its place in the alphabet."""
    cycle, rest = np.divmod(numbers.astype(np.int64), _ALPHABET_STARTS[-1])
    alphabet = np.searchsorted(_ALPHABET_STARTS, rest, side="right") - 1
    return (alphabet + cycle * len(_ALPHABET_SIZES)).astype(np.uint64), rest - _ALPHABET_STARTS[
        alphabet
    ]


def _uniform(purpose: str, rows: Numbers, lanes: Numbers, *shape: int) -> Floats:
    """Return numbers in [0, 1), an array of `shape` for each address."""
    return (
        Stream.named("glyphs", VERSION, purpose)
        .uniform(rows, lanes, prod(shape))
        .T.reshape(-1, *shape)
    )


def _normal(purpose: str, rows: Numbers, lanes: Numbers, *shape: int) -> Floats:
    """Return nearly normal numbers (mean 0, deviation 1): four uniform ones added."""
    part = _uniform(purpose, rows, lanes, 4, *shape)
    return (part[:, 0] + part[:, 1] + part[:, 2] + part[:, 3] - 2) * np.float32(1.7320508)


def _deal(purpose: str, rows: Numbers, deck: int) -> Int64[np.ndarray, "n deck"]:
    """Shuffle a deck of cards for each row: they are sorted by random keys."""
    keys = Stream.named("glyphs", VERSION, purpose).words(rows, np.zeros_like(rows), deck)
    return np.argsort(keys, axis=0, kind="stable").T


def _turned(shapes: Floats, draws: Float32[np.ndarray, "n strokes 3"]) -> Floats:
    """Swap the axes of a stroke if its first draw is low, and mirror x and y if the others are."""
    shapes = np.where(draws[:, :, None, :1] < 0.35, shapes[..., ::-1], shapes)
    return np.where(draws[:, :, None, 1:] < 0.5, -shapes, shapes)


def _vocabulary(alphabets: Numbers) -> Float32[np.ndarray, "n words controls 2"]:
    """Return the strokes each alphabet is made of: some templates, bent and turned its own way."""
    lane = np.zeros_like(alphabets)
    shapes = _SHAPES[_deal("templates", alphabets, len(_SHAPES))[:, :_WORDS]]
    shapes *= 0.75 + 0.5 * _uniform("proportions", alphabets, lane, _WORDS, 1, 2)
    shapes[:, _MARK] *= 0.2 + 0.25 * _uniform("mark", alphabets, lane, 1, 1)
    shapes += _noise("bends", alphabets, lane, _WORDS) * np.float32(0.07)
    return _turned(shapes, _uniform("turns", alphabets, lane, _WORDS, 3))


def _noise(purpose: str, rows: Numbers, lanes: Numbers, strokes: int) -> Floats:
    """Return smooth noise for the control points of strokes: knots take their handles along."""
    move = _normal(purpose, rows, lanes, strokes, 6, 2)
    first, last = move[:, :, 0], move[:, :, 1]
    middle = (first + last + move[:, :, 2]) / 2
    # Both handles of the middle knot turn together, lest a smooth stroke get a corner there.
    start, turn, end = move[:, :, 3] / 2, move[:, :, 4] / 2, move[:, :, 5] / 2
    return np.stack(
        [first, first + start, middle - turn, middle, middle + turn, last + end, last], axis=2
    )


def _words(numbers: Numbers, busy: Floats) -> Integers:
    """Choose the strokes of each character, in a busy alphabet more of them; -1 is none."""
    # A shuffled table of pairs, in which the second may be missing, gives no two characters the same two.
    (alphabets, characters), rows = _place(numbers), np.arange(len(numbers))
    pairs = _deal("pairs", alphabets, _MARK * (_WORDS + 1))
    templates = _deal("templates", alphabets, len(_SHAPES))[rows[:, None], pairs % _MARK]
    # Plain strokes alone go to the end of the table, which only a long alphabet reaches.
    order = np.argsort((pairs < _MARK) & (templates < _PLAIN), axis=1, kind="stable")
    pair = pairs[rows, order[rows, characters]]
    words = [pair % _MARK, pair // _MARK - 1]
    draws = _uniform("words", numbers, np.zeros_like(numbers), 3, _STROKES)
    for stroke in range(2, _STROKES):
        habit = (draws[:, 0, stroke] * draws[:, 1, stroke] * _WORDS).astype(
            np.int64
        )  # the first: likelier
        words.append(
            np.where((words[-1] >= 0) & (draws[:, 2, stroke] < 0.15 + 0.4 * busy), habit, -1)
        )
    return np.stack(words, axis=1)


def _programs(numbers: Numbers) -> _Programs:
    """Write the programs of the given classes: of some candidates the one with the least ink on ink."""
    tries = np.arange(len(numbers) * _CANDIDATES)
    candidates = _candidates(numbers[tries // _CANDIDATES], (tries % _CANDIDATES).astype(np.uint64))
    curves, _, scale = _plain(candidates)
    points = (curves * scale[:, None, None]).reshape(len(tries), -1, 2)
    x, y = (points[:, :, None, axis] - points[:, None, :, axis] for axis in (0, 1))
    crowding = np.count_nonzero(x * x + y * y < _CROWDED * _CROWDED, axis=(1, 2))
    return candidates.take(
        np.argmin(crowding.reshape(-1, _CANDIDATES), axis=1) + tries[::_CANDIDATES]
    )


def _candidates(numbers: Numbers, lanes: Numbers) -> _Programs:
    """Write one program for each class and lane."""
    alphabets, _ = _place(numbers)
    rows, shared = np.arange(len(numbers))[:, None], np.zeros_like(lanes)
    style = _uniform("style", alphabets, shared, 5)
    habits = _uniform("habits", alphabets, shared, _WORDS, 2)
    words = _words(numbers, style[:, 0])
    draws = _uniform("program", numbers, lanes, _STROKES, 12)
    size = np.where(
        np.arange(_STROKES) > 0, 0.4 + 0.4 * habits[rows, words, 0] + 0.2 * draws[..., 0], 1
    )
    shapes = _vocabulary(alphabets)[rows, words] * size[..., None, None]
    # Some alphabets use a stroke in other turns too, most do not.
    turning = draws[..., 1:2] < 0.6 * (style[:, 1] * style[:, 1])[:, None, None]
    shapes = _turned(shapes, np.where(turning, draws[..., 9:12], 1))
    shapes += _noise("letterform", numbers, lanes, _STROKES) * np.float32(0.03)
    apart = draws[..., 2] < np.where(words == _MARK, 0.75, 0.3 * style[:, 2:3])
    joints = draws[..., 5:7]
    joints[..., 1] = np.where(draws[..., 3] < 0.75, habits[rows, words, 1], joints[..., 1])
    return _Programs(
        shapes=shapes,
        strokes=np.count_nonzero(words >= 0, axis=1),
        parent=(draws[..., 4] * np.arange(_STROKES)).astype(np.int64),
        joints=_JOINTS[(joints * len(_JOINTS)).astype(np.int64)],
        gap=np.where(apart[..., None], (draws[..., 7:9] - 0.5) * 1.2, 0).astype(np.float32),
        box=10
        + 5 * style[:, :1]
        + 7 * style[:, 3:5]
        + 3 * (_uniform("box", numbers, shared, 2) - 0.5),
    )


def _curve(shapes: Float32[np.ndarray, "n strokes controls 2"]) -> Curves:
    """Sample strokes: two Beziers each, joined at the fourth control point."""
    t = np.arange(_SEGMENTS + 1, dtype=np.float32)[:, None] / np.float32(_SEGMENTS)
    s = 1 - t
    a, b, c, d = s * s * s, 3 * s * s * t, 3 * s * t * t, t * t * t
    p = [shapes[:, :, control, None] for control in range(7)]
    halves = [a * p[i] + b * p[i + 1] + c * p[i + 2] + d * p[i + 3] for i in (0, 3)]
    return np.concatenate([halves[0], halves[1][:, :, 1:]], axis=2)


def _assemble(programs: _Programs, shapes: Floats, gap: Floats) -> Curves:
    """Fasten each stroke to its parent; a missing stroke shrinks to a point of the first one."""
    curves, rows = _curve(shapes), np.arange(len(shapes))
    for stroke in range(1, _STROKES):
        anchor = curves[rows, programs.parent[:, stroke], programs.joints[:, stroke, 0]]
        own = curves[rows, stroke, programs.joints[:, stroke, 1]]
        placed = curves[:, stroke] + (anchor - own + gap[:, stroke])[:, None]
        curves[:, stroke] = np.where(
            programs.strokes[:, None, None] > stroke, placed, curves[:, 0, :1]
        )
    return curves


def _plain(programs: _Programs) -> tuple[Curves, Floats, Floats]:
    """Run programs without noise; return also the centres, and the scale that gives them their size."""
    curves = _assemble(programs, programs.shapes, programs.gap)
    low, high = curves.min(axis=(1, 2)), curves.max(axis=(1, 2))
    # A character is stretched to its box, but a flat one stays flat.
    side = np.maximum(high - low, (high - low)[:, ::-1] * np.float32(0.6))
    return curves, (low + high) / 2, programs.box / side


def _write(programs: _Programs, numbers: Numbers, samples: Numbers) -> Curves:
    """Run each program with the noise of its sample; return strokes in pixels."""
    _, centre, scale = _plain(programs)
    shake = (
        _noise("hand", numbers, samples, _STROKES) * np.float32(_SHAPE_NOISE) / scale[:, None, None]
    )
    miss = (
        _normal("joints", numbers, samples, _STROKES, 2) * np.float32(_JOINT_NOISE) / scale[:, None]
    )
    curves = _assemble(programs, programs.shapes + shake, programs.gap + miss)
    return _pose((curves - centre[:, None, None]) * scale[:, None, None], numbers, samples)


def _pose(curves: Curves, numbers: Numbers, samples: Numbers) -> Curves:
    """Slant, stretch and shift each character as its alphabet and writer do, and otherwise each time."""
    alphabets, _ = _place(numbers)
    stance = _uniform("stance", alphabets, np.zeros_like(samples), 3) - np.float32(0.5)
    writer, moment = (
        _normal("writer", alphabets, samples, 6),
        _normal("moment", numbers, samples, 6),
    )
    slant = 0.3 * stance[:, 2] + 0.1 * writer[:, 0] + 0.07 * moment[:, 0]
    climb = 0.06 * writer[:, 1] + 0.06 * moment[:, 1]
    stretch = 1 + 0.1 * writer[:, 2:4] + 0.1 * moment[:, 2:4]
    shift = 4 * stance[:, :2] + 0.9 * writer[:, 4:6] + 1.3 * moment[:, 4:6]
    x, y = curves[..., 0], curves[..., 1]
    sheared = np.stack([x - slant[:, None, None] * y, y - climb[:, None, None] * x], axis=-1)
    return _fit(sheared * stretch[:, None, None] + shift[:, None, None])


def _fit(curves: Curves) -> Curves:
    """Shrink and shift characters that would leave the paper; return coordinates of pixels."""
    room, low, high = SIZE - 1 - 2 * _MARGIN, curves.min(axis=(1, 2)), curves.max(axis=(1, 2))
    shrink = np.minimum(1, room / np.maximum(high - low, 1))
    corner = np.minimum(np.maximum(low + room / 2, 0), room - (high - low) * shrink) + _MARGIN
    fitted: Curves = (curves - low[:, None, None]) * shrink[:, None, None] + corner[:, None, None]
    return fitted


def _render(strokes: Curves, count: Integers, pen: Floats) -> UInt8[np.ndarray, "n 28 28"]:
    """Draw the strokes with pens of the given radius; the edge of the ink is half a pixel wide."""
    images = np.empty((len(strokes), SIZE, SIZE), np.uint8)
    # Characters of equally many strokes go together: what is not there must cost no time and round nothing.
    for used in np.unique(count):
        members = np.flatnonzero(count == used)
        for tile in np.split(members, range(_TILE_IMAGES, len(members), _TILE_IMAGES)):
            distance = np.sqrt(_squared_distance(strokes[tile, :used]))
            paper = 2 * (distance - pen[tile, None, None]) + np.float32(0.5)
            images[tile] = np.floor(255 * np.minimum(np.maximum(paper, 0), 1) + np.float32(0.5))
    return images


def _squared_distance(strokes: Curves) -> Float32[np.ndarray, "n 28 28"]:
    """Return the squared distance of every pixel to the nearest segment."""
    pixel, nearest = (
        np.arange(SIZE, dtype=np.float32),
        np.full((len(strokes), SIZE, SIZE), np.float32(1e6)),
    )
    begin, end = (
        part.reshape(len(strokes), -1, 2) for part in (strokes[:, :, :-1], strokes[:, :, 1:])
    )
    middle, step = (begin + end) / 2, end - begin
    length = np.sqrt(step[..., 0] * step[..., 0] + step[..., 1] * step[..., 1])
    unit = step / np.where(length > 0, length, 1)[..., None]
    unit[length == 0] = (1, 0)  # a segment without length is a point, and any direction will do
    for segment in range(begin.shape[1]):
        x, y = pixel - middle[:, segment, 0, None], pixel - middle[:, segment, 1, None]
        ux, uy = unit[:, segment, 0, None], unit[:, segment, 1, None]
        along = np.abs((x * ux)[:, None, :] + (y * uy)[:, :, None])
        beyond = np.maximum(along - length[:, segment, None, None] / 2, 0)
        across = (x * uy)[:, None, :] - (y * ux)[:, :, None]
        np.minimum(nearest, across * across + beyond * beyond, out=nearest)
    return nearest
