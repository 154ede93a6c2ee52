"""Small pictures inside the page: data URIs, no larger than they have to be."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from PIL import Image

_WIDEST = 1100
_QUALITY = 60


@dataclass(frozen=True)
class TaskPicture:
    """A real task of one column."""

    data: str
    column: str
    what: str
    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class TargetImage:
    """A target that learners were asked about."""

    image: str
    label: int
    group: int


@dataclass(frozen=True)
class AnsweredTask:
    """What the learners of one column said to some targets of one real task."""

    data: str
    profile: str
    column: str
    what: str
    task: int
    targets: list[TargetImage]
    supports: dict[int, list[str]]
    """Support images by label: of the right labels, and of those that any learner answered."""
    said: dict[str, list[int]]
    """By learner, a label for every target; -1 is no answer."""


def picture_uri(image: Image.Image) -> tuple[str, int, int]:
    """Return a drawing as WebP, at most as wide as the page, with its width and height."""
    shown = image.convert("RGB")
    if shown.width > _WIDEST:
        size = _WIDEST, round(shown.height * _WIDEST / shown.width)
        shown = shown.resize(size, Image.Resampling.LANCZOS)
    return _webp(shown, quality=_QUALITY), shown.width, shown.height


def pixels_uri(pixels: UInt8[np.ndarray, "channels height width"]) -> str:
    """Return one image of a data set, pixel by pixel."""
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1))
    if len(pixels) > 1:
        return _webp(image, quality=75)

    shades = len(np.unique(pixels))
    content = io.BytesIO()
    shown = (
        image.quantize(max(2, min(shades, 16)))
        if shades > 2
        else image.point(lambda v: 255 * (v > 127), "1")
    )

    shown.save(content, "PNG", optimize=True)
    return _uri("image/png", content.getvalue())


def file_uri(content: bytes) -> str:
    """Return a PNG file as a smaller picture of the same look."""
    with Image.open(io.BytesIO(content)) as image:
        return picture_uri(image)[0]


def _webp(image: Image.Image, quality: int) -> str:
    content = io.BytesIO()
    image.save(content, "WEBP", quality=quality, method=6)
    return _uri("image/webp", content.getvalue())


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
