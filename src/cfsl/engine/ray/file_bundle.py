"""Files on their way from one machine to another: contents by name, relative to the folder they belong in.

Contents are arrays of bytes, because Ray hands arrays over without copying them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cfsl.files import written_whole

Parcel: TypeAlias = dict[str, NDArray[np.uint8]]


class Checkpoint(NamedTuple):
    """How far a training run has got, in files."""

    changed: Parcel
    """Those that were written since the last checkpoint, in the order to be written in."""
    names: list[str]
    """All that there are."""


def packed(folder: Path, paths: Iterable[Path]) -> Parcel:
    """Return files of a folder, in this order. They are mapped, not read: what is sent is copied only once."""
    return {path.relative_to(folder).as_posix(): _content(path) for path in paths}


def _content(path: Path) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, mode="r"))


def unpack(parcel: Parcel, folder: Path) -> None:
    """Write files into a folder, in the order they were packed in, each whole or not at all."""
    for name, content in parcel.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as part, part.open("wb") as out:
            out.write(content.data)


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder by name, without those that are being written."""
    return sorted(
        path for path in folder.glob("*") if path.is_file() and not path.name.startswith(".")
    )
