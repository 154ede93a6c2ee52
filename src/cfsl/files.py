"""Files are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a path to write to; when that went well, put the file in place of `path` in one step.

    If anything goes wrong, or the process dies, the old file is untouched.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
