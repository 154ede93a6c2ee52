"""Data sets on disk: one memory-mapped array of pixels and what is known about it.

    <root>/<name>/current                      the name of the folder in force; written last, in one piece
    <root>/<name>/<folder>/dataset.json        who, what, from where, under which licence, fingerprints
    <root>/<name>/<folder>/pixels.npy          uint8, images x channels x height x width, class after class
    <root>/<name>/<folder>/images.txt          one name a line
    <root>/<name>/<folder>/splits/*.json       which classes are train, val, test

<root> is $CFSL_DATA, or the user's cache folder. A data set is there whole or not at all: it is built in a folder of
its own and `current` is switched to it when all of it is on the disk.
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
T = TypeVar("T")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_HASH_PIECE = 2**24


class DatasetInfo(FrozenSpec):
    """What is written down about a data set."""

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
        """The identity of the data: pixels, the recipe they were made by, class names and sizes."""
        parts = [
            self.pixels_sha256,
            self.recipe.canonical_json(),
            json.dumps(self.class_names),
            json.dumps(self.class_sizes),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """An open data set: pixels stay on the disk until they are asked for."""

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
        """Travel to another process as a folder name; pixels are mapped again there."""
        return _reopened, (self.folder, self.splits, self.splits_name)

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made under this key before, or make it: tables that many tasks look into."""
        if key not in self._shared:
            self._shared[key] = make()
        return cast(T, self._shared[key])

    @property
    def name(self) -> str:
        """The name it is stored under."""
        return self.info.name

    @property
    def fingerprint(self) -> str:
        """The identity of the data."""
        return self.info.fingerprint

    @functools.cached_property
    def class_sizes(self) -> Int64[np.ndarray, " classes"]:
        """How many images each class has."""
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
                f"there is no split '{split}'{did_you_mean(str(split), PARTS)} Known: {', '.join((*PARTS, ALL))}."
            )
        return np.array(
            [self._class_numbers[name] for name in self.splits.get(split, ())], np.int64
        )

    @functools.cached_property
    def _class_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.info.class_names)}


def data_root() -> Path:
    """Return the folder that data sets live under."""
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
    """Refuse what cannot be the name of a data set, among it every path."""
    if not _NAME.fullmatch(name):
        raise DataError(
            f"'{name}' cannot be the name of a data set: use up to 64 small letters, digits, '.', '_' and '-'"
        )


def installed(root: Path | None = None) -> list[str]:
    """Return the names of the data sets that are there."""
    root = root or data_root()
    return sorted(path.parent.name for path in root.glob("*/current"))


def current_folder(name: str, root: Path | None = None) -> Path | None:
    """Return the folder that holds data set `name` now, or None; a path is never a name."""
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
    """Open a data set that is there; `splits` names one of its split files, or is a path to one."""
    folder = current_folder(name, root)
    if folder is None:
        there = installed(root)
        raise DataError(
            f"data set '{name}' is not here{did_you_mean(name, there)} Here: {', '.join(there) or 'none'} "
            f"(in {root or data_root()}). 'cfsl data list' shows what can be fetched or added."
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
    """Read dataset.json, and say what to do when it cannot be read."""
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
            f"{path} has format {version}, this version of cfsl reads {FORMAT}; add the data set again"
        )
    try:
        info = DatasetInfo.from_json(text)
    except SpecError as error:
        raise DataError(f"{path} is damaged ({error}); add the data set again") from error
    if len(info.class_names) != len(info.class_sizes) or min(info.class_sizes, default=0) < 1:
        names, sizes = len(info.class_names), len(info.class_sizes)
        raise DataError(
            f"{path} is damaged ({names} class names, {sizes} sizes, all to be 1 or more); add the data set again"
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
    """Map the pixels into memory. Copy-on-write, because torch wants arrays it could write to."""
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
            f"{path} holds {pixels.dtype} {pixels.shape}, dataset.json says uint8 {shape}; add the data set again"
        )
    return np.asarray(pixels)


def hash_pixels(folder: Path, progress: Callable[[int], None] = lambda finished: None) -> str:
    """Return the sha256 of the pixels as they are on the disk now; `progress` is told of bytes."""
    info, digest = read_info(folder), hashlib.sha256()
    flat = _map_pixels(folder, info).reshape(-1)
    for start in range(0, len(flat), _HASH_PIECE):
        piece = flat[start : start + _HASH_PIECE]
        digest.update(piece.data)
        progress(len(piece))
    return digest.hexdigest()


def _read_chosen_splits(
    folder: Path, info: DatasetInfo, splits: str | Path | None
) -> tuple[dict[str, list[str]], str]:
    """Read a split by name, or from the user's own file."""
    name = info.default_splits if splits is None else str(splits)
    if name.lower().endswith(".json"):
        return read_splits(Path(name)), Path(name).stem
    path = folder / "splits" / f"{name}.json"
    known = sorted(found.stem for found in path.parent.glob("*.json"))
    if name not in known:
        raise UnknownNameError(
            f"{info.name} has no split file '{name}'{did_you_mean(name, known)} It has {', '.join(known)}; "
            f"or give the path of a .json file of your own."
        )
    return read_splits(path), name
