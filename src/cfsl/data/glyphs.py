"""Glyphs: an endless data set of handwriting-like characters, drawn in the manner of Omniglot.

- An *alphabet* (22 to 45 classes) is a style: six kinds of strokes (bar, bow, ring, hook ..., in
  the shape and turn of this alphabet) and a small mark, how they tend to meet, how many there are,
  slant, proportions.
- A *character* (a class) is a program: one to five strokes of these kinds, each fastened by a point
  of its own to a point of an earlier stroke, or set down at a distance. No two characters of an
  alphabet begin with the same two strokes. Of several programs the least crowded one is taken: a
  hand avoids writing over itself.
- A *sample* runs the program with motor noise: control points move, strokes miss their joints. The
  n-th samples of an alphabet's characters are by the same *writer*, who has a slant, size and pen
  of their own.

Images are 28 x 28, dark ink (0) on white paper (255). Every random number has an address made of
alphabet or class number and sample number, so an image does not depend on what else is drawn. The
bits are the same everywhere: the arithmetic is elementwise + - * / and sqrt, which IEEE 754 rounds
exactly; nothing is summed up.
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
# Alphabets differ in size as real ones do; the sizes repeat, so a class tells its alphabet at once.
_ALPHABET_SIZES = (26, 34, 22, 41, 30, 24, 45, 28)
_ALPHABET_STARTS = np.array([0, *accumulate(_ALPHABET_SIZES)])
_STROKES = 5  # the most strokes of a character
_SEGMENTS = 5  # straight segments of a Bezier; a stroke is two Beziers
_KINDS = 7  # kinds of strokes of an alphabet
_MARK = _KINDS - 1  # the kind that never comes first
_CANDIDATES = 12
# The strokes any hand makes: control points x, y (y points down) of two Beziers that share the
# fourth point.
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
_TEMPLATE_SHAPES = np.array(_TEMPLATES, np.float32) / np.float32(100)
_PLAIN = 6  # the first templates: alone they would look the same in every alphabet
# Where strokes meet, as points of the sampled stroke: mostly ends and middle, sometimes between.
_JOINTS = np.array([0, 0, 0, 3, 5, 5, 7, 10, 10, 10])
_SHAPE_NOISE = 1.0  # pixels, of a control point
_JOINT_NOISE = 0.9  # pixels, of the point where a stroke is fastened
_CROWDED = 2.5  # pixels between points of strokes that crowd each other
_MARGIN = 1.5  # pixels of paper left around the ink's centre line
_IMAGES_AT_ONCE = 1600
_RENDERED_AT_ONCE = 40  # few enough for the arrays to stay in the processor's cache

_Numbers = UInt64[np.ndarray, " n"]
_Integers = NDArray[np.int64]
_Floats = NDArray[np.float32]
_Curves = Float32[np.ndarray, "n strokes points 2"]


class _Programs(NamedTuple):
    """The programs that write the characters of n classes."""

    shapes: Float32[np.ndarray, "n strokes controls 2"]
    strokes: Int64[np.ndarray, " n"]
    """The number of strokes of each character."""
    parent: Int64[np.ndarray, "n strokes"]
    """The earlier stroke that each stroke is fastened to."""
    joints: Int64[np.ndarray, "n strokes 2"]
    """The points that meet, of the parent and of the stroke itself."""
    gap: Float32[np.ndarray, "n strokes 2"]
    box: Float32[np.ndarray, "n 2"]
    """Width and height of each character, in pixels."""

    def take(self, rows: _Integers) -> _Programs:
        """Return the programs of the given rows."""
        return _Programs(*(field[rows] for field in self))


def draw_glyphs(classes: range, samples: int) -> UInt8[np.ndarray, "images 28 28"]:
    """Draw the images of the given class numbers, `samples` each, class after class."""
    images = np.empty((len(classes) * samples, SIZE, SIZE), np.uint8)
    numbers = np.array(classes, np.uint64)

    for start in range(0, len(images), _IMAGES_AT_ONCE):
        image = np.arange(start, min(start + _IMAGES_AT_ONCE, len(images)))
        row, sample = image // samples, (image % samples).astype(np.uint64)
        programs = _programs(numbers[row[0] : row[-1] + 1]).take(row - row[0])

        alphabet, _ = _alphabet_and_place(numbers[row])
        pen = 0.5 + 0.25 * _uniform("pen", alphabet, sample)
        strokes = _write(programs, numbers[row], sample)
        images[image] = _render(strokes, programs.strokes, pen)
    return images


def class_name(number: int) -> str:
    """Name a class by alphabet and character; names sort as numbers do."""
    alphabet, place = _alphabet_and_place(np.array([number], np.uint64))
    return f"alphabet{int(alphabet[0]):04d}/character{int(place[0]) + 1:02d}"


def _alphabet_and_place(numbers: _Numbers) -> tuple[_Numbers, Int64[np.ndarray, " n"]]:
    """Return the alphabet of each class, and its place in the alphabet."""
    cycle, rest = np.divmod(numbers.astype(np.int64), _ALPHABET_STARTS[-1])
    alphabet = np.searchsorted(_ALPHABET_STARTS, rest, side="right") - 1
    place = rest - _ALPHABET_STARTS[alphabet]
    return (alphabet + cycle * len(_ALPHABET_SIZES)).astype(np.uint64), place


# Random numbers. A row is an alphabet or a class, a column is a candidate or a sample of it.


def _uniform(purpose: str, rows: _Numbers, columns: _Numbers, *shape: int) -> _Floats:
    """Return numbers in [0, 1), an array of `shape` for each address."""
    stream = Stream.named("glyphs", VERSION, purpose)
    return stream.uniform(rows, columns, prod(shape)).T.reshape(-1, *shape)


def _normal(purpose: str, rows: _Numbers, columns: _Numbers, *shape: int) -> _Floats:
    """Return nearly normal numbers (mean 0, deviation 1): four uniform ones added."""
    part = _uniform(purpose, rows, columns, 4, *shape)
    return (part[:, 0] + part[:, 1] + part[:, 2] + part[:, 3] - 2) * np.float32(1.7320508)


def _stroke_noise(purpose: str, rows: _Numbers, columns: _Numbers, strokes: int) -> _Floats:
    """Return smooth noise for the control points of strokes: knots take their handles along."""
    move = _normal(purpose, rows, columns, strokes, 6, 2)
    first, last = move[:, :, 0], move[:, :, 1]
    middle = (first + last + move[:, :, 2]) / 2

    # Both handles of the middle knot turn together, lest a smooth stroke get a corner there.
    start, turn, end = move[:, :, 3] / 2, move[:, :, 4] / 2, move[:, :, 5] / 2
    return np.stack(
        [first, first + start, middle - turn, middle, middle + turn, last + end, last], axis=2
    )


def _shuffled(purpose: str, rows: _Numbers, count: int) -> Int64[np.ndarray, "n count"]:
    """Return the numbers 0 ... count - 1 in a random order for each row."""
    stream = Stream.named("glyphs", VERSION, purpose)
    keys = stream.words(rows, np.zeros_like(rows), count)
    return np.argsort(keys, axis=0, kind="stable").T


# Alphabets and characters


def _turned(shapes: _Floats, draws: Float32[np.ndarray, "n strokes 3"]) -> _Floats:
    """Swap the axes of a stroke if its first draw is low, and mirror x and y if the others are."""
    shapes = np.where(draws[:, :, None, :1] < 0.35, shapes[..., ::-1], shapes)
    return np.where(draws[:, :, None, 1:] < 0.5, -shapes, shapes)


def _stroke_shapes(alphabets: _Numbers) -> Float32[np.ndarray, "n kinds controls 2"]:
    """Return the kinds of strokes of each alphabet: templates, bent and turned in its own way."""
    column = np.zeros_like(alphabets)
    chosen = _shuffled("templates", alphabets, len(_TEMPLATES))[:, :_KINDS]

    shapes = _TEMPLATE_SHAPES[chosen]
    shapes *= 0.75 + 0.5 * _uniform("proportions", alphabets, column, _KINDS, 1, 2)
    shapes[:, _MARK] *= 0.2 + 0.25 * _uniform("mark", alphabets, column, 1, 1)
    shapes += _stroke_noise("bends", alphabets, column, _KINDS) * np.float32(0.07)
    return _turned(shapes, _uniform("turns", alphabets, column, _KINDS, 3))


def _choose_strokes(numbers: _Numbers, busy: _Floats) -> _Integers:
    """Choose the kinds of each character's strokes, more in a busy alphabet; -1 is none."""
    (alphabets, places), rows = _alphabet_and_place(numbers), np.arange(len(numbers))

    # Every character has its own entry in a shuffled table of pairs, whose second may be missing:
    # so no two characters begin with the same two strokes.
    pairs = _shuffled("pairs", alphabets, _MARK * (_KINDS + 1))
    templates = _shuffled("templates", alphabets, len(_TEMPLATES))[rows[:, None], pairs % _MARK]

    # Plain strokes alone go to the end of the table, which only a long alphabet reaches.
    order = np.argsort((pairs < _MARK) & (templates < _PLAIN), axis=1, kind="stable")
    pair = pairs[rows, order[rows, places]]
    kinds = [pair % _MARK, pair // _MARK - 1]

    draws = _uniform("words", numbers, np.zeros_like(numbers), 3, _STROKES)
    for stroke in range(2, _STROKES):
        # The product of two draws makes the first kinds likelier than the last ones.
        kind = (draws[:, 0, stroke] * draws[:, 1, stroke] * _KINDS).astype(np.int64)
        goes_on = (kinds[-1] >= 0) & (draws[:, 2, stroke] < 0.15 + 0.4 * busy)
        kinds.append(np.where(goes_on, kind, -1))
    return np.stack(kinds, axis=1)


def _programs(numbers: _Numbers) -> _Programs:
    """Write the programs of the given classes: of some candidates the one with least ink on ink."""
    tries = np.arange(len(numbers) * _CANDIDATES)
    candidates = _candidates(numbers[tries // _CANDIDATES], (tries % _CANDIDATES).astype(np.uint64))

    curves, _, scale = _run_without_noise(candidates)
    points = (curves * scale[:, None, None]).reshape(len(tries), -1, 2)
    x, y = (points[:, :, None, axis] - points[:, None, :, axis] for axis in (0, 1))
    crowding = np.count_nonzero(x * x + y * y < _CROWDED * _CROWDED, axis=(1, 2))

    best = np.argmin(crowding.reshape(-1, _CANDIDATES), axis=1)
    return candidates.take(best + tries[::_CANDIDATES])


def _candidates(numbers: _Numbers, candidates: _Numbers) -> _Programs:
    """Write one program for each pair of a class and a number of a candidate."""
    alphabets, _ = _alphabet_and_place(numbers)
    rows, shared = np.arange(len(numbers))[:, None], np.zeros_like(candidates)
    style = _uniform("style", alphabets, shared, 5)
    habits = _uniform("habits", alphabets, shared, _KINDS, 2)
    kinds = _choose_strokes(numbers, style[:, 0])
    draws = _uniform("program", numbers, candidates, _STROKES, 12)

    # The first stroke has its full size.
    later_size = 0.4 + 0.4 * habits[rows, kinds, 0] + 0.2 * draws[..., 0]
    size = np.where(np.arange(_STROKES) > 0, later_size, 1)
    shapes = _stroke_shapes(alphabets)[rows, kinds] * size[..., None, None]

    # Some alphabets use a stroke in other turns too, most do not.
    turning = draws[..., 1:2] < 0.6 * (style[:, 1] * style[:, 1])[:, None, None]
    shapes = _turned(shapes, np.where(turning, draws[..., 9:12], 1))
    shapes += _stroke_noise("letterform", numbers, candidates, _STROKES) * np.float32(0.03)

    apart = draws[..., 2] < np.where(kinds == _MARK, 0.75, 0.3 * style[:, 2:3])
    gap = np.where(apart[..., None], (draws[..., 7:9] - 0.5) * 1.2, 0).astype(np.float32)
    joints = draws[..., 5:7]
    joints[..., 1] = np.where(draws[..., 3] < 0.75, habits[rows, kinds, 1], joints[..., 1])

    box_draws = _uniform("box", numbers, shared, 2)
    box = 10 + 5 * style[:, :1] + 7 * style[:, 3:5] + 3 * (box_draws - 0.5)
    return _Programs(
        shapes=shapes,
        strokes=np.count_nonzero(kinds >= 0, axis=1),
        parent=(draws[..., 4] * np.arange(_STROKES)).astype(np.int64),
        joints=_JOINTS[(joints * len(_JOINTS)).astype(np.int64)],
        gap=gap,
        box=box,
    )


# Strokes as curves


def _curve(shapes: Float32[np.ndarray, "n strokes controls 2"]) -> _Curves:
    """Sample strokes: two Beziers each, joined at the fourth control point."""
    t = np.arange(_SEGMENTS + 1, dtype=np.float32)[:, None] / np.float32(_SEGMENTS)
    s = 1 - t
    a, b, c, d = s * s * s, 3 * s * s * t, 3 * s * t * t, t * t * t

    p = [shapes[:, :, control, None] for control in range(7)]
    halves = [a * p[i] + b * p[i + 1] + c * p[i + 2] + d * p[i + 3] for i in (0, 3)]
    return np.concatenate([halves[0], halves[1][:, :, 1:]], axis=2)


def _assemble(programs: _Programs, shapes: _Floats, gap: _Floats) -> _Curves:
    """Fasten each stroke to its parent; a missing stroke shrinks to a point of the first one."""
    curves, rows = _curve(shapes), np.arange(len(shapes))

    for stroke in range(1, _STROKES):
        anchor = curves[rows, programs.parent[:, stroke], programs.joints[:, stroke, 0]]
        own = curves[rows, stroke, programs.joints[:, stroke, 1]]
        placed = curves[:, stroke] + (anchor - own + gap[:, stroke])[:, None]

        exists = programs.strokes[:, None, None] > stroke
        curves[:, stroke] = np.where(exists, placed, curves[:, 0, :1])
    return curves


def _run_without_noise(programs: _Programs) -> tuple[_Curves, _Floats, _Floats]:
    """Return the curves of programs, their centres, and the scale that gives them their size."""
    curves = _assemble(programs, programs.shapes, programs.gap)
    low, high = curves.min(axis=(1, 2)), curves.max(axis=(1, 2))

    # A character is stretched to its box, but a flat one stays flat.
    side = np.maximum(high - low, (high - low)[:, ::-1] * np.float32(0.6))
    return curves, (low + high) / 2, programs.box / side


def _write(programs: _Programs, numbers: _Numbers, samples: _Numbers) -> _Curves:
    """Run each program with the noise of its sample; return strokes in pixels."""
    _, centre, scale = _run_without_noise(programs)

    # The noise is given in pixels, and added before the strokes are scaled to pixels.
    hand = _stroke_noise("hand", numbers, samples, _STROKES)
    shake = hand * np.float32(_SHAPE_NOISE) / scale[:, None, None]
    joints = _normal("joints", numbers, samples, _STROKES, 2)
    miss = joints * np.float32(_JOINT_NOISE) / scale[:, None]

    curves = _assemble(programs, programs.shapes + shake, programs.gap + miss)
    return _pose((curves - centre[:, None, None]) * scale[:, None, None], numbers, samples)


def _pose(curves: _Curves, numbers: _Numbers, samples: _Numbers) -> _Curves:
    """Slant, stretch and shift each character: as its alphabet, its writer and the moment do."""
    alphabets, _ = _alphabet_and_place(numbers)
    stance = _uniform("stance", alphabets, np.zeros_like(samples), 3) - np.float32(0.5)
    writer = _normal("writer", alphabets, samples, 6)
    moment = _normal("moment", numbers, samples, 6)

    slant = 0.3 * stance[:, 2] + 0.1 * writer[:, 0] + 0.07 * moment[:, 0]
    climb = 0.06 * writer[:, 1] + 0.06 * moment[:, 1]
    stretch = 1 + 0.1 * writer[:, 2:4] + 0.1 * moment[:, 2:4]
    shift = 4 * stance[:, :2] + 0.9 * writer[:, 4:6] + 1.3 * moment[:, 4:6]

    x, y = curves[..., 0], curves[..., 1]
    sheared = np.stack([x - slant[:, None, None] * y, y - climb[:, None, None] * x], axis=-1)
    return _fit(sheared * stretch[:, None, None] + shift[:, None, None])


def _fit(curves: _Curves) -> _Curves:
    """Shrink and shift characters that would leave the paper; return coordinates of pixels."""
    room = SIZE - 1 - 2 * _MARGIN
    low, high = curves.min(axis=(1, 2)), curves.max(axis=(1, 2))

    shrink = np.minimum(1, room / np.maximum(high - low, 1))
    corner = np.minimum(np.maximum(low + room / 2, 0), room - (high - low) * shrink) + _MARGIN
    fitted: _Curves = (curves - low[:, None, None]) * shrink[:, None, None] + corner[:, None, None]
    return fitted


# Curves as pixels


def _render(strokes: _Curves, count: _Integers, pen: _Floats) -> UInt8[np.ndarray, "n 28 28"]:
    """Draw the strokes with pens of the given radius; the edge of the ink is half a pixel wide."""
    images = np.empty((len(strokes), SIZE, SIZE), np.uint8)

    # Characters of equally many strokes go together, so that missing strokes cost no time and
    # change no rounding.
    for used in np.unique(count):
        members = np.flatnonzero(count == used)
        cuts = range(_RENDERED_AT_ONCE, len(members), _RENDERED_AT_ONCE)
        for some in np.split(members, cuts):
            distance = np.sqrt(_squared_distance(strokes[some, :used]))
            paper = 2 * (distance - pen[some, None, None]) + np.float32(0.5)
            images[some] = np.floor(255 * np.minimum(np.maximum(paper, 0), 1) + np.float32(0.5))
    return images


def _squared_distance(strokes: _Curves) -> Float32[np.ndarray, "n 28 28"]:
    """Return the squared distance of every pixel to the nearest segment of a stroke."""
    begin, end = (
        part.reshape(len(strokes), -1, 2) for part in (strokes[:, :, :-1], strokes[:, :, 1:])
    )
    middle, step = (begin + end) / 2, end - begin
    length = np.sqrt(step[..., 0] * step[..., 0] + step[..., 1] * step[..., 1])
    unit = step / np.where(length > 0, length, 1)[..., None]
    unit[length == 0] = (1, 0)  # a segment without length is a point, and any direction will do

    pixel = np.arange(SIZE, dtype=np.float32)
    nearest = np.full((len(strokes), SIZE, SIZE), np.float32(1e6))
    for segment in range(begin.shape[1]):
        x, y = pixel - middle[:, segment, 0, None], pixel - middle[:, segment, 1, None]
        ux, uy = unit[:, segment, 0, None], unit[:, segment, 1, None]

        along = np.abs((x * ux)[:, None, :] + (y * uy)[:, :, None])
        beyond = np.maximum(along - length[:, segment, None, None] / 2, 0)
        across = (x * uy)[:, None, :] - (y * ux)[:, :, None]
        np.minimum(nearest, across * across + beyond * beyond, out=nearest)
    return nearest
