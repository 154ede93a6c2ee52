"""Read the image files of a folder, a zip or a tar one after the other, without unpacking to disk.

Since nothing is unpacked, no archive can write outside its folder. Archives that try to are refused
all the same, because something is wrong with them.
"""

from __future__ import annotations

import codecs
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple

from cfsl.errors import ArchiveError, DataError

LARGEST_FILE = 64 * 2**20
"""Bytes of the largest image file that is read."""
_MOST_FILES = 5_000_000
_IMAGE_ENDINGS = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
)
# What the readers of archives raise when an archive is damaged.
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    NotImplementedError,
)


class File(NamedTuple):
    """An image file of a source with its content, or a folder, which has none."""

    path: PurePosixPath
    content: bytes | None


def files_of(source: Path) -> Iterator[File]:
    """Return the image files and the folders of a folder, zip or tar.

    Hidden files and files that are no images are left out.
    """
    if source.is_dir():
        return _files_of_folder(source)

    accepted = "give a folder, a .zip or a .tar(.gz, .bz2, .xz)"
    if not source.exists():
        raise DataError(f"{source} does not exist; {accepted}")
    if not source.is_file():
        raise DataError(f"{source} is neither a file nor a folder; {accepted}")

    if zipfile.is_zipfile(source):
        return _files_of_zip(source)
    _refuse_non_archives(source)
    return _files_of_tar(source)


def require_storable(name: str, where: str) -> None:
    """Refuse a name that cannot be one line of a text file.

    Such a name holds a line break, or bytes that are not Unicode, which Python reads as surrogates.
    """
    if name.isprintable():
        return

    has_line_break = name.splitlines() not in ([], [name])
    has_other_bytes = any("\ud800" <= letter <= "\udfff" for letter in name)
    if has_line_break or has_other_bytes:
        raise DataError(
            f"{where} holds the name {name!a}, with a line break or bytes that are not UTF-8; "
            f"rename it"
        )


def _files_of_folder(source: Path) -> Iterator[File]:
    """Walk in sorted order. Links are refused: their targets may be gone tomorrow."""
    for path in sorted(source.rglob("*")):
        inside = PurePosixPath(path.relative_to(source).as_posix())
        if _is_hidden(inside):
            continue

        require_storable(str(inside), str(source))
        if path.is_symlink():
            raise DataError(f"{path} is a link; copy the file it points to, or remove it")

        if path.is_dir():
            yield File(inside, None)
        elif path.is_file() and _is_image(inside):
            yield File(inside, _read_file(path, inside, source))


def _read_file(path: Path, inside: PurePosixPath, source: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return _read_bounded(stream, inside, source)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}. Make it readable, or remove it."
        ) from error


def _files_of_zip(source: Path) -> Iterator[File]:
    """Read a zip in the order of its directory."""
    try:
        with zipfile.ZipFile(source) as archive:
            for count, member in enumerate(archive.infolist()):
                linked = (member.external_attr >> 28) == 0xA
                inside = _safe(member.filename, source, linked=linked, count=count)
                if _is_hidden(inside):
                    continue

                if member.is_dir():
                    yield File(inside, None)
                elif _is_image(inside):
                    with archive.open(member) as stream:
                        yield File(inside, _read_bounded(stream, inside, source))
    except _DAMAGE as error:
        raise ArchiveError(_damaged(source, error)) from error


def _files_of_tar(source: Path) -> Iterator[File]:
    """Read a tar as a stream, in one pass: a compressed one cannot go back."""
    try:
        with tarfile.open(source, "r|*") as archive:
            count = 0
            while (member := archive.next()) is not None:
                linked = member.islnk() or member.issym()
                inside = _safe(member.name, source, linked=linked, count=count)
                count += 1
                _forget_headers(archive)
                if _is_hidden(inside):
                    continue

                if member.isdir():
                    yield File(inside, None)
                elif member.isfile() and _is_image(inside):
                    stream = archive.extractfile(member)
                    assert stream is not None
                    yield File(inside, _read_bounded(stream, inside, source, member.size))
            _require_end_mark(archive, source)
    except _DAMAGE as error:
        raise ArchiveError(_damaged(source, error)) from error


def _forget_headers(archive: tarfile.TarFile) -> None:
    """Drop the headers that were read: a tar of a million images would fill the memory."""
    archive.members.clear()  # type: ignore[attr-defined]


def _require_end_mark(archive: tarfile.TarFile, source: Path) -> None:
    """Refuse a tar that was cut between two members: only zeros may follow the last one."""
    stream = archive.fileobj
    assert stream is not None

    complete = stream.tell() >= archive.offset + tarfile.BLOCKSIZE
    while complete and (rest := stream.read(2**20)):
        complete = not rest.strip(tarfile.NUL)
    if not complete:
        raise ArchiveError(_damaged(source, EOFError("its end is missing")))


def _read_bounded(
    stream: IO[bytes], inside: PurePosixPath, source: Path, promised: int | None = None
) -> bytes:
    """Read one file, but no more than an image can need: the size in its header may be false."""
    content = stream.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ArchiveError(_too_large(inside, source, len(content)))
    if promised is not None and len(content) < promised:
        raise EOFError(f"{inside} has {len(content):,} of {promised:,} bytes")
    return content


def _safe(name: str, source: Path, *, linked: bool, count: int) -> PurePosixPath:
    """Return the path of a member; refuse links, paths that lead outside, and endless archives."""
    require_storable(name, str(source))

    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or PureWindowsPath(name).drive:
        raise ArchiveError(
            f"{source} holds '{name}', a path that leads out of the archive. It is not what it "
            f"seems to be: download it again from its publisher."
        )
    if linked:
        raise ArchiveError(
            f"{source} holds '{name}', a link; links are refused. Pack the files themselves."
        )
    if count >= _MOST_FILES:
        raise ArchiveError(
            f"{source} holds more than {_MOST_FILES:,} files; this is refused as an archive bomb."
        )
    return path


def _refuse_non_archives(source: Path) -> None:
    """Refuse empty files and saved web pages with an advice of their own."""
    try:
        with source.open("rb") as stream:
            start = stream.read(512).removeprefix(codecs.BOM_UTF8).lstrip().lower()
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}. Make it readable.") from error

    if not start:
        raise ArchiveError(f"{source} is empty; download it again.")
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<!--")):
        raise ArchiveError(
            f"{source} is a web page, not an archive: the server sent an error or a login page "
            f"instead. Open it in a browser to see why, and download again."
        )
    if start.startswith(b"pk"):
        raise ArchiveError(_damaged(source, EOFError("the directory at its end is missing")))


def _damaged(source: Path, error: Exception) -> str:
    size = source.stat().st_size
    return (
        f"{source} ({size:,} bytes) is truncated or damaged, or not a zip or tar: {error}. "
        f"Download it again."
    )


def _too_large(inside: PurePosixPath, source: Path, size: int) -> str:
    return (
        f"'{inside}' in {source} unpacks to {size:,} bytes or more; more than {LARGEST_FILE:,} for "
        f"one image are refused as a decompression bomb. Remove it."
    )


def _is_hidden(path: PurePosixPath) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.parts)


def _is_image(path: PurePosixPath) -> bool:
    return path.suffix.lower() in _IMAGE_ENDINGS
