"""Make small images, folders and archives to import, good ones and bad ones."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from cfsl.data.catalog import AddRequest, add_dataset
from cfsl.data.store import Dataset

Files = Mapping[str, bytes]
WEB_PAGE = b"<!DOCTYPE html>\n<html><body>404: Not Found</body></html>\n" * 30
TAR_MODES = {".tar": "w", ".tar.gz": "w:gz", ".tar.bz2": "w:bz2", ".tar.xz": "w:xz"}


def image(number: int = 0, *, mode: str = "RGB", size: tuple[int, int] = (8, 8)) -> Image.Image:
    """Return noise that is the same for the same number."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (size[1], size[0], channels)
    pixels = np.random.default_rng(number).integers(0, 256, shape, np.uint8)
    return Image.fromarray(
        pixels[..., 0] if channels == 1 else pixels, None if mode in ("L", "RGB") else mode
    )


def encoded(picture: Image.Image, form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    picture.save(stream, form)
    return stream.getvalue()


def png(number: int = 0) -> bytes:
    return encoded(image(number))


def class_files(sizes: Mapping[str, int] | None = None) -> dict[str, bytes]:
    """Return path -> content of some classes of some images each."""
    sizes = sizes or {"ant": 2, "bee": 3, "cat": 2, "dog": 4}
    names = [f"{name}/{number}.png" for name, size in sizes.items() for number in range(size)]
    return {name: png(position) for position, name in enumerate(names)}


def part_files(top: str = "") -> dict[str, bytes]:
    """Return the {train,val,test}/class layout."""
    part_of = {"ant": "train", "bee": "val", "cat": "test", "dog": "train"}
    return {
        f"{top}{part_of[name.split('/')[0]]}/{name}": content
        for name, content in class_files().items()
    }


def write_folder(path: Path, files: Files) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def write_zip(path: Path, files: Files, *, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(_plain_zip_info(name, compression), content)
    return path


def _plain_zip_info(name: str, compression: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo()
    info.filename = info.orig_filename = name  # the constructor would mend some bad names
    info.compress_type = compression
    return info


def write_tar(path: Path, files: Files, *, extra: Iterable[tarfile.TarInfo] = ()) -> Path:
    """Write a tar, compressed as its name says, with `extra` members without content at the end."""
    mode = TAR_MODES[
        "".join(suffix for suffix in path.suffixes if suffix in (".tar", ".gz", ".bz2", ".xz"))
    ]
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in extra:
            archive.addfile(member)
    return path


def write_any(path: Path, files: Files) -> Path:
    """Write a folder, zip or tar: whichever the name says."""
    if path.suffix == ".zip":
        return write_zip(path, files)
    return write_tar(path, files) if ".tar" in path.suffixes else write_folder(path, files)


def write_npz(path: Path, **changes) -> Path:
    """Write a sound .npz of 4 classes with some arrays changed; None leaves one out."""
    arrays = {
        "images": np.random.default_rng(0).integers(0, 256, (8, 6, 5, 3), np.uint8),
        "labels": np.arange(8) % 4,
        "class_names": np.array(["ant", "bee", "cat", "dog"]),
        "splits": np.array(["train", "train", "val", "test"]),
    }
    np.savez(
        path, **{name: array for name, array in (arrays | changes).items() if array is not None}
    )
    return path


def link_member(name: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "ant/0.png"
    return member


def huge_png(width: int = 9000, height: int = 9000) -> bytes:
    """Return a PNG of a hundred bytes that claims to have more than 64 million pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 64)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def add(
    source: Path, root: Path, *, name: str = "mine", size: int | None = 8, **options
) -> Dataset:
    return add_dataset(AddRequest(name=name, source=source, root=root, size=size, **options))


def content_of(root: Path) -> dict[str, bytes]:
    """Return path -> bytes of everything below a data root, locks aside; folders end with '/'."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if not name.startswith((".locks", "downloads")):
            found[name if path.is_file() else f"{name}/"] = (
                path.read_bytes() if path.is_file() else b""
            )
    return found
