"""Data sets on disk: a memory-mapped array of pixels, and files that describe it.

    <root>/<name>/current                  the name of the current folder; written last
    <root>/<name>/<folder>/dataset.json    name, source, licence, classes, recipe, fingerprints
    <root>/<name>/<folder>/pixels.npy      uint8, images x channels x height x width, by classes
    <root>/<name>/<folder>/images.txt      the name of each image, one a line
    <root>/<name>/<folder>/splits/*.json   the classes of train, val and test

<root> is $CFSL_DATA, or the user's cache folder. A data set is stored whole or not at all: it is
built in a folder of its own, and `current` is switched to it when all of it is on the disk.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import numpy as np
import platformdirs
from jaxtyping import Int64, UInt8
from pydantic import Field

from cfsl.data.recipe import Recipe
from cfsl.data.splits import PARTS, Splits, check_splits, read_splits
from cfsl.errors import DataError, SpecError, UnknownNameError, did_you_mean
from cfsl.spec import AcceptsList, FrozenSpec

FORMAT = 1
ALL = "all"
_T = TypeVar("_T")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_BYTES_AT_ONCE = 2**24


class DatasetInfo(FrozenSpec):
    """The content of dataset.json."""

    format: int
    name: str
    title: str
    source: str
    licence: str
    citation: str
    recipe: Recipe
    class_names: Annotated[tuple[str, ...], AcceptsList, Field(repr=False)]
    class_sizes: Annotated[tuple[int, ...], AcceptsList, Field(repr=False)]
    default_splits: str
    pixels_sha256: str

    @property
    def fingerprint(self) -> str:
        """The sha256 of all that defines the data: pixels, recipe, class names and class sizes."""
        parts = [
            self.pixels_sha256,
            self.recipe.canonical_json(),
            json.dumps(self.class_names),
            json.dumps(self.class_sizes),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """An open data set; pixels stay on the disk until they are used."""

    info: DatasetInfo
    pixels: UInt8[np.ndarray, "images channels height width"]
    splits: Splits
    splits_name: str
    folder: Path
    _shared: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        counts = f"{len(self.pixels)} images of {len(self.class_sizes)} classes"
        return f"Dataset({self.name!r}, {counts}, splits={self.splits_name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name of the folder: another process maps the pixels again."""
        return _reopened, (self.folder, self.splits, self.splits_name)

    def shared(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return the value of a key, which is made once and shared by all tasks of the data set."""
        if key not in self._shared:
            self._shared[key] = make()
        return cast(_T, self._shared[key])

    @property
    def name(self) -> str:
        """The name of the data set."""
        return self.info.name

    @property
    def fingerprint(self) -> str:
        """The sha256 of all that defines the data: pixels, recipe, class names and class sizes."""
        return self.info.fingerprint

    @functools.cached_property
    def class_sizes(self) -> Int64[np.ndarray, " classes"]:
        """The number of images of each class."""
        return np.array(self.info.class_sizes, np.int64)

    @functools.cached_property
    def class_starts(self) -> Int64[np.ndarray, " classes"]:
        """The number of each class's first image."""
        return np.concatenate([[0], np.cumsum(self.class_sizes)[:-1]])

    @functools.cached_property
    def image_names(self) -> tuple[str, ...]:
        """The name of each image within its class."""
        return read_image_names(self.folder)

    def classes_of(self, split: str) -> Int64[np.ndarray, " classes"]:
        """Return the numbers of the classes of one part of the split, or of 'all'."""
        if split == ALL:
            return np.arange(len(self.info.class_names))

        if not isinstance(split, str) or split not in PARTS:
            raise UnknownNameError(
                f"there is no split '{split}'{did_you_mean(str(split), PARTS)} Known: "
                f"{', '.join((*PARTS, ALL))}."
            )
        names = self.splits.get(split, ())
        return np.array([self._class_numbers[name] for name in names], np.int64)

    @functools.cached_property
    def _class_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.info.class_names)}


def data_root() -> Path:
    """Return the folder that holds all data sets."""
    chosen = os.environ.get("CFSL_DATA")
    if not chosen:
        return Path(platformdirs.user_cache_dir("cfsl")) / "data"

    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError as error:
        raise DataError(
            f"CFSL_DATA={chosen} cannot be understood: {error}; give the path of a folder"
        ) from error


def require_name(name: str) -> None:
    """Refuse a text that cannot be the name of a data set, such as a path."""
    if not _NAME.fullmatch(name):
        raise DataError(
            f"'{name}' cannot be the name of a data set: use up to 64 small letters, digits, '.', "
            f"'_' and '-'"
        )


def installed(root: Path | None = None) -> list[str]:
    """Return the names of all data sets on the disk."""
    root = root or data_root()
    return sorted(path.parent.name for path in root.glob("*/current"))


def current_folder(name: str, root: Path | None = None) -> Path | None:
    """Return the current folder of a data set; None if it is not on the disk."""
    if not _NAME.fullmatch(name):
        return None

    home = (root or data_root()) / name
    try:
        return home / (home / "current").read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(
            f"{home / 'current'} cannot be read: {error.strerror}; make it readable"
        ) from error


def open_dataset(name: str, splits: str | Path | None = None, root: Path | None = None) -> Dataset:
    """Open a data set on the disk; `splits` is the name or the path of a split file."""
    folder = current_folder(name, root)
    if folder is None:
        there = installed(root)
        raise DataError(
            f"data set '{name}' is not here{did_you_mean(name, there)} Here: "
            f"{', '.join(there) or 'none'} (in {root or data_root()}). 'cfsl data list' shows what "
            f"can be fetched or added."
        )

    info = read_info(folder)
    pixels = _map_pixels(folder, info)
    chosen, chosen_name = _read_chosen_splits(folder, info, splits)
    check_splits(chosen, info.class_names, f"split '{chosen_name}' of {name}")
    return Dataset(info, pixels, chosen, chosen_name, folder)


def _reopened(folder: Path, splits: Splits, splits_name: str) -> Dataset:
    """Open a data set in another process, with the split it had."""
    info = read_info(folder)
    return Dataset(info, _map_pixels(folder, info), splits, splits_name, folder)


def read_info(folder: Path) -> DatasetInfo:
    """Read and check dataset.json."""
    path = folder / "dataset.json"

    try:
        text = path.read_text(encoding="utf-8")
        version = json.loads(text).get("format")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is missing or damaged ({error}); add the data set again"
        ) from error

    if version != FORMAT:
        raise DataError(
            f"{path} has format {version}, this version of cfsl reads {FORMAT}; add the data set "
            f"again"
        )

    try:
        info = DatasetInfo.from_json(text)
    except SpecError as error:
        raise DataError(f"{path} is damaged ({error}); add the data set again") from error

    if len(info.class_names) != len(info.class_sizes) or min(info.class_sizes, default=0) < 1:
        names, sizes = len(info.class_names), len(info.class_sizes)
        raise DataError(
            f"{path} is damaged ({names} class names, {sizes} sizes, all to be 1 or more); add the "
            f"data set again"
        )
    return info


def read_image_names(folder: Path) -> tuple[str, ...]:
    """Return the name of each image, class after class."""
    path = folder / "images.txt"
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is missing or damaged ({error}); add the data set again"
        ) from error


def _map_pixels(
    folder: Path, info: DatasetInfo
) -> UInt8[np.ndarray, "images channels height width"]:
    """Map the pixels into memory; copy-on-write, since torch expects arrays that can be written."""
    path = folder / "pixels.npy"

    try:
        pixels = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError, EOFError, OverflowError) as error:
        raise DataError(
            f"{path} is missing or damaged ({error}); add the data set again"
        ) from error

    recipe = info.recipe
    shape = (sum(info.class_sizes), recipe.channels, recipe.height, recipe.width)
    if pixels.shape != shape or pixels.dtype != np.uint8:
        raise DataError(
            f"{path} holds {pixels.dtype} {pixels.shape}, dataset.json says uint8 {shape}; add the "
            f"data set again"
        )
    return np.asarray(pixels)


def hash_pixels(folder: Path, progress: Callable[[int], None] = lambda finished: None) -> str:
    """Return the sha256 of the pixels on the disk; `progress` is called with numbers of bytes."""
    pixels = _map_pixels(folder, read_info(folder)).reshape(-1)

    digest = hashlib.sha256()
    for start in range(0, len(pixels), _BYTES_AT_ONCE):
        part = pixels[start : start + _BYTES_AT_ONCE]
        digest.update(part.data)
        progress(len(part))
    return digest.hexdigest()


def _read_chosen_splits(
    folder: Path, info: DatasetInfo, splits: str | Path | None
) -> tuple[dict[str, list[str]], str]:
    """Return a split, and its name: one of the data set, or one from the user's own file."""
    name = info.default_splits if splits is None else str(splits)
    if name.lower().endswith(".json"):
        return read_splits(Path(name)), Path(name).stem

    path = folder / "splits" / f"{name}.json"
    known = sorted(found.stem for found in path.parent.glob("*.json"))
    if name not in known:
        raise UnknownNameError(
            f"{info.name} has no split file '{name}'{did_you_mean(name, known)} It has "
            f"{', '.join(known)}; or give the path of a .json file of your own."
        )
    return read_splits(path), name
