"""How image files become pixels: size, mode, resize rule, polarity and normalisation."""

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

_MOST_PIXELS = 64_000_000
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Other formats are refused: for some of them Pillow would run another program."""
_Side = Annotated[int, Field(ge=1, le=4096)]


class Recipe(FrozenSpec):
    """How pixels are made from image files; a part of the data set's fingerprint."""

    height: _Side
    width: _Side
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
                # Pillow warns of odd metadata, which is harmless, and of large images, which
                # `_open_and_convert` refuses.
                warnings.simplefilter("ignore")
                return self._open_and_convert(content, name)
        except ImageError:
            raise
        # The text of this error holds nothing but a memory address.
        except UnidentifiedImageError as error:
            raise ImageError(
                f"{name} ({len(content):,} bytes) is none of {', '.join(_FORMATS)}. Mend or remove "
                f"it."
            ) from error
        # Pillow's decoders raise a dozen kinds of errors for damaged files.
        except Exception as error:
            raise ImageError(
                f"{name} ({len(content):,} bytes) cannot be decoded as an image: {error}. Mend or "
                f"remove it."
            ) from error

    def _open_and_convert(
        self, content: bytes, name: str
    ) -> UInt8[np.ndarray, "channels height width"]:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ImageError(
                    f"{name} is {image.width} x {image.height} pixels; more than {_MOST_PIXELS:,} "
                    f"are refused as a decompression bomb. Shrink or remove it."
                )
            return self.pixels(image)

    def pixels(self, image: Image.Image) -> UInt8[np.ndarray, "channels height width"]:
        """Bring an image to this recipe's mode and size."""
        image = ImageOps.exif_transpose(image)
        mode = "L" if self.channels == 1 else "RGB"

        # The published code resizes one-bit images before it converts them.
        if self.resize == "nearest" and image.mode == "1":
            resized = self._resized(image).convert(mode)
        else:
            resized = self._resized(_eight_bit(image, mode))

        array = np.asarray(resized, np.uint8).reshape(self.height, self.width, self.channels)
        array = 255 - array if self.polarity == "inverted" else array
        return np.ascontiguousarray(array.transpose(2, 0, 1))

    def _resized(self, image: Image.Image) -> Image.Image:
        """Bring an image to the size of this recipe, by stretching or by cutting out its middle."""
        size = (self.width, self.height)
        if image.size == size:
            return image

        method = Image.Resampling.NEAREST if self.resize == "nearest" else Image.Resampling.LANCZOS
        if self.fit == "crop":
            return ImageOps.fit(image, size, method)
        return image.resize(size, method)


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
