"""Colours and lettering of the pictures.

The first eight label colours are the palette of Okabe and Ito ("Color Universal Design", 2008).
Each further colour is the one farthest from all before it, for normal and for red-green-blind eyes.
So hue and lightness both vary, and a label keeps its colour however many labels a task has. Text
needs no installed font.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from jaxtyping import Bool, Float
from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]

INK: Colour = (35, 35, 40)

_OKABE_ITO: tuple[Colour, ...] = (
    (0, 114, 178),  # blue
    (230, 159, 0),  # orange
    (0, 158, 115),  # bluish green
    (204, 121, 167),  # reddish purple
    (213, 94, 0),  # vermilion
    (86, 180, 233),  # sky blue
    (240, 228, 66),  # yellow
    (0, 0, 0),  # black
)
_MOST_COLOURS = 256  # more could not be told apart: they repeat, and the printed number tells
_CUBE_STEPS = 18
_LIGHTNESS = (0.36, 0.88)  # darker looks black, lighter is lost on a white page
_CHROMA = (0.075, 0.24)  # less looks muddy beside a greyscale image, more glares
_DARK_TEXT_ABOVE = 0.179  # the luminance at which black and white text have the same WCAG contrast

# Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision
# deficiency", 2009: full deuteranopia, on linear RGB.
_DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
# Ottosson, "A perceptual color space for image processing", 2020.
_RGB_TO_LMS = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
     [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
_LMS_TO_OKLAB = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
     [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip

# The font that Pillow ships would draw these as empty boxes.
_PLAIN = str.maketrans({"\u00d7": "x", "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u2192": ">"})
_SUPERSAMPLING = (
    2  # the hinting of small letters spoils their spacing, so they are drawn large and reduced
)


def label_colours(labels: int) -> tuple[Colour, ...]:
    """Return one colour per label; a longer table begins with the shorter one."""
    table = _OKABE_ITO if labels <= len(_OKABE_ITO) else _colour_table()
    return tuple(table[label % len(table)] for label in range(labels))


def text_colour_on(background: Colour) -> Colour:
    """Return black or white, whichever has the higher contrast to the background."""
    luminance = float(_linear(np.array(background)) @ np.array([0.2126, 0.7152, 0.0722]))
    return (0, 0, 0) if luminance > _DARK_TEXT_ABOVE else (255, 255, 255)


def write(
    image: Image.Image, start: tuple[int, int], text: str, size: int, *, bold: bool = False
) -> None:
    """Write a line from `start` on, which is at half the height of its digits."""
    mask, digit_middle = _lettering(text, size, bold)
    image.paste(INK, (start[0], start[1] - digit_middle), mask)


def write_centred(
    image: Image.Image, middle: tuple[int, int], text: str, size: int, colour: Colour
) -> None:
    """Write a line in heavier letters around `middle`."""
    mask, digit_middle = _lettering(text, size, True)
    image.paste(colour, (middle[0] - mask.width // 2, middle[1] - digit_middle), mask)


def wrapped(text: str, size: int, width: int) -> list[str]:
    """Break text at spaces into lines of at most this width; a longer word has its own line."""
    lines: list[str] = []

    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}".strip()
            if line and _lettering(longer, size, False)[0].width > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return lines


@cache
def _lettering(text: str, size: int, bold: bool) -> tuple[Image.Image, int]:
    """Return a mask of the text, and how far below its top the middle of a digit lies."""
    font = _font(size * _SUPERSAMPLING)
    ascent, descent = font.getmetrics()
    text = text.translate(_PLAIN)

    mask = Image.new("L", (math.ceil(font.getlength(text)) + 2 * _SUPERSAMPLING, ascent + descent))
    weight = size * _SUPERSAMPLING / 60 if bold else 0
    ImageDraw.Draw(mask).text(
        (_SUPERSAMPLING, ascent), text, fill=255, font=font, anchor="ls", stroke_width=weight
    )

    digit_height = -font.getbbox("0", anchor="ls")[1]
    return mask.reduce(_SUPERSAMPLING), round((ascent - digit_height / 2) / _SUPERSAMPLING)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size=size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("this Pillow was built without FreeType, so it cannot write text")
    return font


@cache
def _colour_table() -> tuple[Colour, ...]:
    """Go on from Okabe and Ito, each time with the candidate farthest from all colours so far."""
    axis = np.linspace(0, 255, _CUBE_STEPS).round()
    cube = np.stack(np.meshgrid(axis, axis, axis), axis=-1).reshape(-1, 3)

    lightness, a, b = _oklab(_linear(cube)).T
    usable = _between(lightness, _LIGHTNESS) & _between(np.hypot(a, b), _CHROMA)
    colours = np.concatenate([np.array(_OKABE_ITO, dtype=np.float64), cube[usable]])

    chosen = list(range(len(_OKABE_ITO)))
    # White joins as a colour to keep away from, since it is the page.
    nearest = _distances(colours, np.array([255.0, 255.0, 255.0]))
    for index in chosen:
        nearest = np.minimum(nearest, _distances(colours, colours[index]))

    while len(chosen) < _MOST_COLOURS:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, _distances(colours, colours[chosen[-1]]))
    return tuple((int(red), int(green), int(blue)) for red, green, blue in colours[chosen])


def _between(
    values: Float[np.ndarray, " n"], bounds: tuple[float, float]
) -> Bool[np.ndarray, " n"]:
    return (bounds[0] < values) & (values < bounds[1])


def _distances(
    colours: Float[np.ndarray, "n rgb"], colour: Float[np.ndarray, " rgb"]
) -> Float[np.ndarray, " n"]:
    """Return how far each colour is from one colour, for the eye that sees less difference."""
    many, one = _linear(colours), _linear(colour)
    normal = np.linalg.norm(_oklab(many) - _oklab(one), axis=-1)
    red_green_blind = np.linalg.norm(
        _oklab(many @ _DEUTERANOPIA.T) - _oklab(one @ _DEUTERANOPIA.T), axis=-1
    )
    # Weighted: normal eyes are the many, and a full minimum would leave them too few hues.
    return np.asarray(np.minimum(normal, 2 * red_green_blind))


def _linear(colour: np.ndarray) -> Float[np.ndarray, "*n rgb"]:
    """Undo the sRGB transfer curve."""
    share = colour / 255.0
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def _oklab(linear: Float[np.ndarray, "*n rgb"]) -> Float[np.ndarray, "*n lab"]:
    """Return perceptual coordinates, in which equal steps look about equal."""
    cone_responses = np.clip(linear, 0.0, 1.0) @ _RGB_TO_LMS.T
    return np.asarray(np.cbrt(cone_responses) @ _LMS_TO_OKLAB.T)
