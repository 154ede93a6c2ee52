"""From the bytes of an image file to pixels: size, mode, resize rule, polarity and normalisation."""

from __future__ import annotations

import io
import warnings
from typing import Annotated, Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from pydantic import Field

from cfsl.errors import ImageError
from cfsl.spec import AcceptsList, FrozenSpec

MOST_PIXELS = 64_000_000
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Others are not asked: Pillow would run another program for some."""
Side = Annotated[int, Field(ge=1, le=4096)]


class Recipe(FrozenSpec):
    """How pixels are made from image files. Part of a data set's fingerprint."""

    height: Side
    width: Side
    channels: Literal[1, 3]
    resize: Literal["nearest", "antialias"] = "antialias"
    fit: Literal["stretch", "crop"] = "stretch"
    polarity: Literal["as_is", "inverted"] = "as_is"
    mean: Annotated[tuple[float, ...], AcceptsList] = ()
    std: Annotated[tuple[float, ...], AcceptsList] = ()

    def decode(self, content: bytes, name: str) -> UInt8[np.ndarray, "channels height width"]:
        """Decode one image file; `name` is for the error message."""
        try:
            with warnings.catch_warnings():
                # What Pillow only warns of (odd metadata, a large image) is either harmless or checked below.
                warnings.simplefilter("ignore")
                with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                    if image.width * image.height > MOST_PIXELS:
                        raise ImageError(
                            f"{name} is {image.width} x {image.height} pixels; more than {MOST_PIXELS:,} are refused "
                            f"as a decompression bomb. Shrink or remove it."
                        )
                    return self.pixels(image)
        except ImageError:
            raise
        except UnidentifiedImageError as error:  # its own text holds nothing but a memory address
            raise ImageError(
                f"{name} ({len(content):,} bytes) is none of {', '.join(_FORMATS)}. Mend or remove it."
            ) from error
        except Exception as error:  # Pillow's decoders raise a dozen kinds for damaged files
            raise ImageError(
                f"{name} ({len(content):,} bytes) cannot be decoded as an image: {error}. Mend or remove it."
            ) from error

    def pixels(self, image: Image.Image) -> UInt8[np.ndarray, "channels height width"]:
        """Bring an image to this recipe's mode and size."""
        image = ImageOps.exif_transpose(image)
        mode = "L" if self.channels == 1 else "RGB"
        if self.resize == "nearest" and image.mode == "1":
            resized = self._resized(image).convert(mode)
        else:
            resized = self._resized(_eight_bit(image, mode))
        array = np.asarray(resized, np.uint8).reshape(self.height, self.width, self.channels)
        array = 255 - array if self.polarity == "inverted" else array
        return np.ascontiguousarray(array.transpose(2, 0, 1))

    def _resized(self, image: Image.Image) -> Image.Image:
        """Stretch to the wanted size, or cut out the middle of the wanted shape first."""
        size = (self.width, self.height)
        if image.size == size:
            return image
        how = Image.Resampling.NEAREST if self.resize == "nearest" else Image.Resampling.LANCZOS
        return ImageOps.fit(image, size, how) if self.fit == "crop" else image.resize(size, how)


def _eight_bit(image: Image.Image, mode: str) -> Image.Image:
    """Convert any mode to grey or RGB with 8 bits; transparent parts become white."""
    if image.mode.startswith("I"):
        deep = np.asarray(image).astype(np.int64)
        image = Image.fromarray(np.clip(deep >> 8, 0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert(mode)
