"""Labelled images from memory as a data set, such as those of Hugging Face `datasets`.

The package `datasets` is not needed, but only its way to show data: an iterable of dicts with an
image (a Pillow image, or an array of height x width or height x width x channels) and a label (a
number, or a text). The names of classes are those in ``.features["label"].names``, if it has any.

The splits of a Hugging Face data set (train, test) divide images of the same classes, but tasks
divide classes. So all images that are given are put together under their classes, and the classes
are split anew, or as `splits` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from cfsl.data.build import Description, LabelledImage, Progress, build_dataset
from cfsl.data.catalog import CATALOG, is_glyphs
from cfsl.data.recipe import Recipe
from cfsl.data.splits import Splits, shuffled_split
from cfsl.data.store import Dataset
from cfsl.errors import DataError, ImageError

_Rows = Iterable[Mapping[str, Any]]


class _Columns(NamedTuple):
    """The names of the image and of the label in a row."""

    image: str = "image"
    label: str = "label"


def add_labelled_images(
    name: str,
    images: _Rows | Mapping[str, _Rows],
    *,
    size: int,
    channels: int = 3,
    columns: tuple[str, str] = ("image", "label"),
    splits: Splits | None = None,
    source: str = "labelled images",
    licence: str = "unknown",
    root: Path | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Write labelled images as a data set of cfsl, and open it, as `cfsl data add` does with files.

    `images` yields dicts of an image and a label, or is a dict of such parts (a Hugging Face
    `DatasetDict`), which are put together. The middle of each image is cut out square and brought
    to `size` x `size`. `splits` says which classes are train, val and test; by default they are
    shuffled by their names and cut 74 / 13 / 13 %.
    """
    if name in CATALOG or is_glyphs(name):
        raise DataError(
            f"'{name}' is a data set that cfsl knows; choose another name for your images"
        )

    parts = list(images.values()) if isinstance(images, Mapping) else [images]
    if not parts:
        raise DataError(
            f"'{name}': there are no parts in what was given as images; give at least one"
        )

    def make_splits(names: Sequence[str]) -> dict[str, Splits]:
        return {"shuffled": shuffled_split(names)} if splits is None else {"given": splits}

    # The recipe checks these values, which may be any that the user wrote.
    fields: dict[str, Any] = {"height": size, "width": size, "channels": channels, "fit": "crop"}
    recipe = Recipe(**fields)
    description = Description(
        name=name,
        title=name,
        source=source,
        licence=licence,
        recipe=recipe,
        make_splits=make_splits,
    )

    rows = chain.from_iterable(_labelled(name, part, _Columns(*columns), recipe) for part in parts)
    return build_dataset(
        description, _numbered(rows), root=root, replace=replace, progress=progress
    )


def _labelled(
    name: str, rows: _Rows, columns: _Columns, recipe: Recipe
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the class name and the pixels of every row."""
    names = _class_names(rows, columns.label)
    for position, row in enumerate(rows):
        where = f"'{name}', image {position}"
        if not isinstance(row, Mapping) or not set(columns) <= row.keys():
            found = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise DataError(
                f"{where} has {found}; '{columns.image}' and '{columns.label}' are needed. Give "
                f"the names of both as columns=(image, label)"
            )

        class_name = _class_name(row[columns.label], names, where)
        yield class_name, _pixels(row[columns.image], recipe, where)


def _numbered(rows: Iterable[tuple[str, np.ndarray]]) -> Iterator[LabelledImage]:
    """Name the images of each class by the order in which they come."""
    earlier: Counter[str] = Counter()
    for class_name, pixels in rows:
        yield LabelledImage(class_name, f"{earlier[class_name]:06d}", pixels)
        earlier[class_name] += 1


def _class_names(rows: Any, label: str) -> Sequence[str] | None:
    """Return the names that a Hugging Face data set has for its labels; None if it has none."""
    features = getattr(rows, "features", None)
    feature = features.get(label) if isinstance(features, Mapping) else None
    names: Sequence[str] | None = getattr(feature, "names", None)
    return names


def _class_name(label: Any, names: Sequence[str] | None, where: str) -> str:
    """Return the class name of a label: the text itself, a name of the data set, or a number."""
    if isinstance(label, str):
        return label
    if isinstance(label, bool) or not hasattr(label, "__index__"):
        raise DataError(f"{where} has the label {label!r}; a whole number or a text is needed")

    number = int(label)
    if number < 0 or (names is not None and number >= len(names)):
        of = "from 0 on" if names is None else f"from 0 to {len(names) - 1}"
        raise DataError(
            f"{where} has the label {number}; labels count {of}. Leave out images without a label"
        )
    return names[number] if names is not None else f"class{number:06d}"


def _pixels(image: Any, recipe: Recipe, where: str) -> np.ndarray:
    """Bring an image to the recipe's size, and say which one it was if that fails."""
    if not isinstance(image, Image.Image):
        image = _from_array(np.asarray(image), where)
    try:
        return recipe.pixels(image)
    except (OSError, ValueError) as error:  # Pillow decodes when pixels are asked for
        raise ImageError(f"{where} cannot be decoded: {error}. Mend or leave it out.") from error


def _from_array(array: np.ndarray, where: str) -> Image.Image:
    """Return an array of pixels as a Pillow image."""
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in (1, 3, 4):
        raise ImageError(
            f"{where} is {array.dtype} {array.shape}; a Pillow image, or uint8 height x width (x "
            f"1, 3 or 4 channels) is needed"
        )
    return Image.fromarray(array.reshape(array.shape[:2]) if channels == 1 else array)
