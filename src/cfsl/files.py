"""Files are written whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

# .<name of the file>.<machine>.<process number>.part
_PART_NAME = re.compile(r"\..+\.([0-9a-f]{8})\.(\d+)\.part")


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a part file to write to; afterwards, put it in the place of `path` in one step.

    If anything goes wrong, the part file is removed and the old file is untouched. A process that
    is killed leaves its part file behind: the next one that writes to the folder removes it.
    """
    remove_abandoned_parts(path.parent)
    part = path.with_name(f".{path.name}.{_machine()}.{os.getpid()}.part")

    try:
        yield part

        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def remove_abandoned_parts(folder: Path) -> None:
    """Remove the part files of processes of this machine that were killed while they wrote.

    The part files of other machines stay: nothing here can tell whether their writers still run.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = _PART_NAME.fullmatch(entry.name)
            if name is None or name[1] != _machine() or _is_running(int(name[2])):
                continue

            with contextlib.suppress(OSError):
                Path(entry).unlink()


@functools.cache
def _machine() -> str:
    """Return a short name of this machine, since several may write to one folder."""
    name = platform.node()

    # Containers of one machine may have its name, but number their processes on their own.
    with contextlib.suppress(OSError):
        name += str(Path("/proc/self/ns/pid").readlink())
    return f"{zlib.crc32(name.encode()):08x}"


def _is_running(process: int) -> bool:
    """Tell whether a process of this machine is alive; when in doubt, it is."""
    try:
        os.getpgid(process)  # unlike `os.kill(process, 0)`, this does nothing on any system
    except ProcessLookupError:
        return False
    except (OSError, OverflowError, AttributeError):
        return True
    return True
