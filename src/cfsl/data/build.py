"""Write a data set to disk, whole or not at all, with one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from filelock import FileLock
from jaxtyping import UInt8

from cfsl.data.archive import require_storable
from cfsl.data.recipe import Recipe
from cfsl.data.splits import Splits, check_splits, read_splits
from cfsl.data.store import (
    FORMAT,
    Dataset,
    DatasetInfo,
    current_folder,
    data_root,
    hash_pixels,
    open_dataset,
    read_image_names,
    read_info,
    require_name,
)
from cfsl.errors import DataError

Progress = Callable[[int], None]
"""Called with the number of images finished since the last call."""

_PIECE = 4096
_SCRATCH, _POINTER = ".partial", ".current.new"


class LabelledImage(NamedTuple):
    """One image on its way into a data set."""

    class_name: str
    image_name: str
    pixels: UInt8[np.ndarray, "channels height width"]


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is to be written down about a data set beside its pixels."""

    name: str
    title: str
    source: str
    licence: str = "unknown"
    citation: str = ""
    recipe: Recipe
    make_splits: Callable[[Sequence[str]], Mapping[str, Splits]]
    """Class names -> split files by name; the first one is the default."""
    check: Callable[[Mapping[str, int], Mapping[str, Splits]], None] = field(
        default=lambda sizes, splits: None
    )
    """Called with class sizes and the splits before anything is put in force; raises to refuse."""


def build_dataset(
    description: Description,
    images: Iterable[LabelledImage],
    *,
    root: Path | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Write a data set and put it in force.

    If one of that name is there already, it is kept: returned if it is the same data, refused otherwise, unless
    `replace` is set.
    """
    require_name(description.name)
    root = root or data_root()
    home = root / description.name
    with _one_writer(home), _scratch_folder(home) as scratch:
        info = _write_all(description, images, scratch, progress or (lambda finished: None))
        _put_in_force(home, scratch, info, replace=replace)
    return open_dataset(description.name, root=root)


@contextlib.contextmanager
def _one_writer(home: Path) -> Iterator[None]:
    """Let a second process that builds the same data set wait for the first."""
    lock = FileLock(home.parent / ".locks" / f"{home.name}.lock")
    try:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        held = lock.acquire()
    except OSError as error:
        raise DataError(
            f"cannot write {lock.lock_file}: {error.strerror}; set CFSL_DATA to a folder you can write"
        ) from error
    with held:
        yield


@contextlib.contextmanager
def _scratch_folder(home: Path) -> Iterator[Path]:
    """Give a clean folder to build in, and leave nothing behind, whatever happens.

    What a killed process left is removed here: the lock is held, so nobody is using it.
    """
    scratch = home / _SCRATCH
    try:
        home.mkdir(exist_ok=True)
        _tidy(home)
        scratch.mkdir()
        yield scratch
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = shutil.disk_usage(home.parent).free
            raise DataError(
                f"the disk of {home} is full ({free:,} bytes free): {error.strerror}. Nothing was changed; free some "
                f"space or set CFSL_DATA to another disk."
            ) from error
        raise DataError(
            f"cannot write below {home}: {error}. Nothing was changed; set CFSL_DATA to a folder you can write."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            _tidy(home)
            home.rmdir()  # succeeds only if nothing was ever put in force


def _tidy(home: Path) -> None:
    """Remove what was built and is not in force."""
    in_force = current_folder(home.name, home.parent)
    for path in home.iterdir():
        if path.name == _POINTER:
            path.unlink()
        elif path.name == _SCRATCH or (path.name.isdigit() and path != in_force):
            shutil.rmtree(path, ignore_errors=True)


class _Spooled(NamedTuple):
    """An image in the spool, by the name it will be sorted under."""

    class_name: str
    image_name: str
    position: int


def _write_all(
    description: Description, images: Iterable[LabelledImage], scratch: Path, progress: Progress
) -> DatasetInfo:
    """Write every file of a data set into the scratch folder."""
    recipe = description.recipe
    shape = (recipe.channels, recipe.height, recipe.width)
    with (scratch / "spool").open("w+b") as spool:
        arrived = _spool_images(images, shape, spool, progress, description.source)
        ordered = sorted(arrived)
        sizes = _class_sizes(ordered, description)
        splits = description.make_splits(list(sizes))
        description.check(sizes, splits)
        default = next(iter(splits))
        for name, split in splits.items():
            check_splits(split, list(sizes), f"split '{name}' of {description.name}")
        digest = _write_pixels(spool, ordered, shape, scratch / "pixels.npy")
    (scratch / "spool").unlink()
    info = DatasetInfo(
        format=FORMAT,
        name=description.name,
        title=description.title,
        source=description.source,
        licence=description.licence,
        citation=description.citation,
        recipe=recipe,
        class_names=tuple(sizes),
        class_sizes=tuple(sizes.values()),
        default_splits=default,
        pixels_sha256=digest,
    )
    _write_text(scratch / "images.txt", "".join(f"{image.image_name}\n" for image in ordered))
    (scratch / "splits").mkdir()
    for name, split in splits.items():
        _write_text(scratch / "splits" / f"{name}.json", json.dumps(split, indent=0))
    _write_text(scratch / "dataset.json", info.model_dump_json(indent=1))
    return info


def _spool_images(
    images: Iterable[LabelledImage],
    shape: tuple[int, ...],
    spool: IO[bytes],
    progress: Progress,
    source: str,
) -> list[_Spooled]:
    """Write images in the order they arrive: archives have an order of their own."""
    arrived = []
    for position, image in enumerate(images):
        assert image.pixels.shape == shape and image.pixels.dtype == np.uint8
        require_storable(f"{image.class_name}/{image.image_name}", source)
        spool.write(image.pixels.tobytes())
        arrived.append(_Spooled(image.class_name, image.image_name, position))
        progress(1)
    spool.flush()
    return arrived


def _class_sizes(ordered: Sequence[_Spooled], description: Description) -> dict[str, int]:
    """Count the images of each class, and refuse two of the same name."""
    if not ordered:
        raise DataError(
            f"no images were found for '{description.name}' ({description.source}); put .png, .jpg or the like into "
            f"class folders"
        )
    sizes: dict[str, int] = {}
    for before, image in zip([None, *ordered], ordered, strict=False):
        if before is not None and before[:2] == image[:2]:
            raise DataError(
                f"'{description.name}' ({description.source}): class '{image.class_name}' has two images of the name "
                f"'{image.image_name}'; rename or remove one"
            )
        sizes[image.class_name] = sizes.get(image.class_name, 0) + 1
    return sizes


def _write_pixels(
    spool: IO[bytes], ordered: Sequence[_Spooled], shape: tuple[int, ...], path: Path
) -> str:
    """Copy the spool in class order into an .npy file, and return the sha256 of the pixels."""
    spooled = np.memmap(spool, np.uint8, "r", shape=(len(ordered), *shape))
    digest = hashlib.sha256()
    with path.open("wb") as out:
        header = {"descr": "|u1", "fortran_order": False, "shape": spooled.shape}
        np.lib.format.write_array_header_1_0(out, header)
        for start in range(0, len(ordered), _PIECE):
            positions = [image.position for image in ordered[start : start + _PIECE]]
            piece = spooled[positions].tobytes()
            digest.update(piece)
            out.write(piece)
        _sync(out)
    return digest.hexdigest()


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.write(text)
        _sync(out)


def _sync(out: IO[str] | IO[bytes]) -> None:
    out.flush()
    os.fsync(out.fileno())


def _put_in_force(home: Path, scratch: Path, info: DatasetInfo, *, replace: bool) -> None:
    """Switch `current` to the new folder; the old one goes when the switch is made."""
    old = current_folder(info.name, home.parent)
    if old is not None and not replace:
        there = _sound(old)
        if there is not None and there.fingerprint == info.fingerprint:
            _require_splits(old, scratch, info.name)
            return
        if there is not None:
            raise DataError(
                f"a data set '{info.name}' is there already, with other content (fingerprint {there.fingerprint[:12]}, "
                f"the new one has {info.fingerprint[:12]}); nothing was changed. Replace it with --replace, or add "
                f"this one under another name with --as."
            )
    generation = 1 + max((int(p.name) for p in home.iterdir() if p.name.isdigit()), default=0)
    new = home / str(generation)
    scratch.rename(new)
    pointer = home / _POINTER
    _write_text(pointer, f"{new.name}\n")
    pointer.replace(home / "current")


def _sound(folder: Path) -> DatasetInfo | None:
    """Return what is known of the data set in force, or None if it is damaged and not worth keeping."""
    try:
        info, splits = read_info(folder), _read_all_splits(folder)
        for name, split in splits.items():
            check_splits(split, info.class_names, name)
        whole = info.default_splits in splits and len(read_image_names(folder)) == sum(
            info.class_sizes
        )
        return info if whole and hash_pixels(folder) == info.pixels_sha256 else None
    except DataError:
        return None


def _read_all_splits(folder: Path) -> dict[str, Splits]:
    return {path.stem: read_splits(path) for path in (folder / "splits").glob("*.json")}


def _require_splits(there: Path, new: Path, name: str) -> None:
    """Refuse to keep a data set in place of one with the same images and a split that it lacks."""
    known = _read_all_splits(there)
    lacking = sorted(
        split for split, parts in _read_all_splits(new).items() if known.get(split) != parts
    )
    if lacking:
        raise DataError(
            f"a data set '{name}' is there already, with the same images but without this split '{lacking[0]}'; "
            f"nothing was changed. Replace it with --replace, or add this one under another name with --as."
        )
