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

_IMAGES_AT_ONCE = 4096
_SCRATCH, _POINTER = ".partial", ".current.new"


class LabelledImage(NamedTuple):
    """An image to be written to a data set."""

    class_name: str
    image_name: str
    pixels: UInt8[np.ndarray, "channels height width"]


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is stored about a data set beside its pixels."""

    name: str
    title: str
    source: str
    licence: str = "unknown"
    citation: str = ""
    recipe: Recipe
    make_splits: Callable[[Sequence[str]], Mapping[str, Splits]]
    """Returns the splits by name for the class names; the first one is the default."""
    check: Callable[[Mapping[str, int], Mapping[str, Splits]], None] = field(
        default=lambda sizes, splits: None
    )
    """Called with the class sizes and the splits; raises an error to refuse the data set."""


def build_dataset(
    description: Description,
    images: Iterable[LabelledImage],
    *,
    root: Path | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Write a data set and open it.

    An earlier data set of that name is kept: it is returned if it has the same content, and an
    error is raised if it has not, unless `replace` is set.
    """
    require_name(description.name)
    root = root or data_root()
    home = root / description.name

    with _one_writer(home), _scratch_folder(home) as scratch:
        info = _write_all(description, images, scratch, progress or (lambda finished: None))
        _make_current(home, scratch, info, replace=replace)

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
            f"cannot write {lock.lock_file}: {error.strerror}; set CFSL_DATA to a folder you can "
            f"write"
        ) from error

    with held:
        yield


@contextlib.contextmanager
def _scratch_folder(home: Path) -> Iterator[Path]:
    """Give an empty folder to build in, and remove it afterwards, whatever happens.

    The caller holds the lock, so nobody uses the files of an earlier process that was killed: they
    are removed, too.
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
                f"the disk of {home} is full ({free:,} bytes free): {error.strerror}. Nothing was "
                f"changed; free some space or set CFSL_DATA to another disk."
            ) from error
        raise DataError(
            f"cannot write below {home}: {error}. Nothing was changed; set CFSL_DATA to a folder "
            f"you can write."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            _tidy(home)
            home.rmdir()  # fails, as it should, if there is a data set


def _tidy(home: Path) -> None:
    """Remove all folders of a data set but the current one."""
    current = current_folder(home.name, home.parent)
    for path in home.iterdir():
        if path.name == _POINTER:
            path.unlink()
        elif path.name == _SCRATCH or (path.name.isdigit() and path != current):
            shutil.rmtree(path, ignore_errors=True)


class _Spooled(NamedTuple):
    """An image in the spool: a file of pixels in the order in which images arrived."""

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
        ordered = sorted(_spool_images(images, shape, spool, progress, description.source))
        sizes = _class_sizes(ordered, description)
        splits = _checked_splits(description, sizes)
        digest = _write_pixels(spool, ordered, shape, scratch / "pixels.npy")
    (scratch / "spool").unlink()

    _write_text(scratch / "images.txt", "".join(f"{image.image_name}\n" for image in ordered))
    (scratch / "splits").mkdir()
    for name, split in splits.items():
        _write_text(scratch / "splits" / f"{name}.json", json.dumps(split, indent=0))

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
        default_splits=next(iter(splits)),
        pixels_sha256=digest,
    )
    _write_text(scratch / "dataset.json", info.model_dump_json(indent=1))
    return info


def _spool_images(
    images: Iterable[LabelledImage],
    shape: tuple[int, ...],
    spool: IO[bytes],
    progress: Progress,
    source: str,
) -> list[_Spooled]:
    """Write images in the order in which they arrive: archives have an order of their own."""
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
    """Count the images of each class; refuse two images of the same name."""
    if not ordered:
        raise DataError(
            f"no images were found for '{description.name}' ({description.source}); put .png, .jpg "
            f"or the like into class folders"
        )

    sizes: dict[str, int] = {}
    for before, image in zip([None, *ordered], ordered, strict=False):
        if before is not None and before[:2] == image[:2]:
            raise DataError(
                f"'{description.name}' ({description.source}): class '{image.class_name}' has two "
                f"images of the name '{image.image_name}'; rename or remove one"
            )
        sizes[image.class_name] = sizes.get(image.class_name, 0) + 1
    return sizes


def _checked_splits(description: Description, sizes: Mapping[str, int]) -> Mapping[str, Splits]:
    """Make the splits of a data set, and check them and the number of images."""
    splits = description.make_splits(list(sizes))
    description.check(sizes, splits)

    for name, split in splits.items():
        check_splits(split, list(sizes), f"split '{name}' of {description.name}")
    return splits


def _write_pixels(
    spool: IO[bytes], ordered: Sequence[_Spooled], shape: tuple[int, ...], path: Path
) -> str:
    """Copy the spool in class order into an .npy file, and return the sha256 of the pixels."""
    spooled = np.memmap(spool, np.uint8, "r", shape=(len(ordered), *shape))
    digest = hashlib.sha256()

    with path.open("wb") as out:
        header = {"descr": "|u1", "fortran_order": False, "shape": spooled.shape}
        np.lib.format.write_array_header_1_0(out, header)

        for start in range(0, len(ordered), _IMAGES_AT_ONCE):
            positions = [image.position for image in ordered[start : start + _IMAGES_AT_ONCE]]
            pixels = spooled[positions].tobytes()
            digest.update(pixels)
            out.write(pixels)
        _sync(out)

    return digest.hexdigest()


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.write(text)
        _sync(out)


def _sync(out: IO[str] | IO[bytes]) -> None:
    out.flush()
    os.fsync(out.fileno())


def _make_current(home: Path, scratch: Path, info: DatasetInfo, *, replace: bool) -> None:
    """Make the new folder the current one, unless the old one is to be kept."""
    old = current_folder(info.name, home.parent)
    if old is not None and not replace and _keep(old, scratch, info):
        return

    generation = 1 + max((int(p.name) for p in home.iterdir() if p.name.isdigit()), default=0)
    new = home / str(generation)
    scratch.rename(new)

    pointer = home / _POINTER
    _write_text(pointer, f"{new.name}\n")
    pointer.replace(home / "current")


def _keep(old: Path, scratch: Path, info: DatasetInfo) -> bool:
    """Tell whether the old data set is as good as the new one; refuse to lose another one.

    A damaged data set is not worth keeping.
    """
    earlier = _intact_info(old)
    if earlier is None:
        return False

    if earlier.fingerprint != info.fingerprint:
        raise DataError(
            f"a data set '{info.name}' is there already, with other content (fingerprint "
            f"{earlier.fingerprint[:12]}, the new one has {info.fingerprint[:12]}); nothing was "
            f"changed. Replace it with --replace, or add this one under another name with --as."
        )
    _require_splits(old, scratch, info.name)
    return True


def _intact_info(folder: Path) -> DatasetInfo | None:
    """Return the description of a data set on disk, or None if any of its files is damaged."""
    try:
        info, splits = read_info(folder), _read_all_splits(folder)
        for name, split in splits.items():
            check_splits(split, info.class_names, name)

        all_named = len(read_image_names(folder)) == sum(info.class_sizes)
        complete = all_named and info.default_splits in splits
        return info if complete and hash_pixels(folder) == info.pixels_sha256 else None
    except DataError:
        return None


def _read_all_splits(folder: Path) -> dict[str, Splits]:
    return {path.stem: read_splits(path) for path in (folder / "splits").glob("*.json")}


def _require_splits(old: Path, new: Path, name: str) -> None:
    """Refuse to keep a data set that lacks a split of the new one, which has the same images."""
    known = _read_all_splits(old)
    lacking = sorted(
        split for split, parts in _read_all_splits(new).items() if known.get(split) != parts
    )

    if lacking:
        raise DataError(
            f"a data set '{name}' is there already, with the same images but without this split "
            f"'{lacking[0]}'; nothing was changed. Replace it with --replace, or add this one "
            f"under another name with --as."
        )
