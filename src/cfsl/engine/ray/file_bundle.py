"""Bundles of files that are sent to another machine: the content of every file, by its name.

Names are relative to the folder that the files belong in. Contents are arrays of bytes, because Ray
hands arrays over without copying them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cfsl.files import written_whole

FileBundle: TypeAlias = dict[str, NDArray[np.uint8]]


class Checkpoint(NamedTuple):
    """The state of a training run, as files."""

    changed: FileBundle
    """The files that were written since the last checkpoint, in the order to write them in."""
    names: list[str]
    """The names of all files."""


def packed(folder: Path, paths: Iterable[Path]) -> FileBundle:
    """Return files of a folder, in this order.

    Files are mapped, not read, so that their contents are copied only once.
    """
    return {path.relative_to(folder).as_posix(): _content(path) for path in paths}


def _content(path: Path) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, mode="r"))


def unpack(bundle: FileBundle, folder: Path) -> None:
    """Write files into a folder, in the order they were packed in, each whole or not at all."""
    for name, content in bundle.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as part, part.open("wb") as out:
            out.write(content.data)


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder by name, without those that are being written."""
    return sorted(
        path for path in folder.glob("*") if path.is_file() and not path.name.startswith(".")
    )
