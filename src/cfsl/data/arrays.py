"""Images in a numpy .npz file as a data set.

The file holds `images` (uint8, n x height x width or n x height x width x channels) and `labels`
(n integers). It may also hold `class_names` (a text for each class) and `splits` (train, val or
test for each class).
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import Image

from cfsl.data.build import LabelledImage
from cfsl.data.recipe import Recipe
from cfsl.data.splits import PARTS, Splits, shuffled_split
from cfsl.errors import DataError

_MOST_BYTES = 16 * 2**30


@dataclass(frozen=True)
class ArrayFile:
    """The checked content of an .npz file."""

    images: UInt8[np.ndarray, "n height width channels"]
    labels: Integer[np.ndarray, " n"]
    names: Sequence[str]
    parts: Sequence[str] | None

    def labelled(self, recipe: Recipe) -> Iterator[LabelledImage]:
        """Yield the images under their classes, at the size of the recipe."""
        earlier: Counter[int] = Counter()
        for pixels, label in zip(self.images, self.labels.tolist(), strict=True):
            image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
            name = f"{earlier[label]:06d}"
            yield LabelledImage(self.names[label], name, recipe.pixels(image))
            earlier[label] += 1

    def splits(self, class_names: Sequence[str]) -> Mapping[str, Splits]:
        """Return the split of the file, or a shuffled split if it has none."""
        if self.parts is None:
            return {"shuffled": shuffled_split(class_names)}

        part_of = dict(zip(self.names, self.parts, strict=True))
        classes = {part: [name for name in class_names if part_of[name] == part] for part in PARTS}
        return {"file": classes}


def read_array_file(path: Path) -> ArrayFile:
    """Read and check an .npz file."""
    arrays = _read_arrays(path)
    missing = {"images", "labels"} - arrays.keys()
    if missing:
        raise DataError(
            f"{path} has no {' and no '.join(sorted(missing))}; it holds "
            f"{', '.join(arrays) or 'nothing'}, and both images and labels are needed"
        )

    images = _check_images(arrays["images"], path)
    labels = arrays["labels"]
    classes = _count_classes(labels, len(images), path)

    names = _texts(arrays, "class_names", classes, path)
    names = names or [f"class{number:06d}" for number in range(classes)]
    if len(set(names)) < classes:
        raise DataError(
            f"{path}: class_names holds {len(set(names))} different names for {classes} classes; "
            f"give each its own"
        )
    return ArrayFile(images, labels, names, _texts(arrays, "splits", classes, path))


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an .npz file. Arrays of objects, which would need pickle, are refused."""
    try:
        _refuse_bomb(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except DataError:
        raise
    # zipfile, zlib and numpy's header reader raise a dozen kinds of errors for damaged files.
    except Exception as error:
        raise DataError(
            f"{path} cannot be read as an .npz file of plain arrays: {error}. Write it again with "
            f"numpy.savez."
        ) from error

    odd = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if odd:
        raise DataError(
            f"{path} holds '{odd[0]}', which is no array; write it again with numpy.savez"
        )
    return arrays


def _refuse_bomb(path: Path) -> None:
    """Refuse a small file that would fill the memory when it is unpacked."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > _MOST_BYTES:
        raise DataError(f"{path} unpacks to {size:,} bytes; more than {_MOST_BYTES:,} are refused")


def _check_images(images: np.ndarray, path: Path) -> UInt8[np.ndarray, "n height width channels"]:
    """Return the images with an axis of channels; refuse arrays of another kind."""
    if images.ndim == 3:
        images = images[..., None]

    fits = images.dtype == np.uint8 and images.ndim == 4 and images.shape[-1] in (1, 3)
    if not fits or not images.size:
        raise DataError(
            f"{path}: images are {images.dtype} {images.shape}; uint8 n x height x width (x 1 or 3 "
            f"channels) is needed"
        )
    return images


def _count_classes(labels: np.ndarray, images: int, path: Path) -> int:
    """Return the number of classes; refuse labels that do not number them from 0 without gaps."""
    fits = labels.shape == (images,) and labels.dtype.kind in "iu"
    if not fits or (labels.size and labels.min() < 0):
        raise DataError(
            f"{path}: labels are {labels.dtype} {labels.shape}; {images} integers from 0 on are "
            f"needed"
        )

    present = np.unique(labels)
    classes = int(present[-1]) + 1
    if len(present) < classes:
        gap = int(np.flatnonzero(present != np.arange(len(present)))[0])
        raise DataError(
            f"{path}: class {gap} of {classes} has no images; number the classes without gaps"
        )
    return classes


def _text(entry: str | bytes | int) -> str:
    return entry.decode("utf-8", "surrogateescape") if isinstance(entry, bytes) else str(entry)


def _texts(
    arrays: Mapping[str, np.ndarray], key: str, classes: int, path: Path
) -> list[str] | None:
    """Return the texts of an optional array, one for each class; None if it is not there."""
    if key not in arrays:
        return None

    if arrays[key].shape != (classes,) or arrays[key].dtype.kind not in "USiu":
        raise DataError(
            f"{path}: {key} is {arrays[key].dtype} {arrays[key].shape}; a text for each of "
            f"{classes} classes is needed"
        )

    texts = [_text(entry) for entry in arrays[key].tolist()]
    if key == "splits" and not set(texts) <= set(PARTS):
        odd = sorted(set(texts) - set(PARTS))
        raise DataError(f"{path}: splits holds {odd[0]!r}; it may hold {', '.join(PARTS)}")
    return texts
