"""Keep freed memory for the maps of the next layer instead of giving it back to the system.

The C library of most Linux systems gives every block of more than 32 MB back as soon as it is
freed, and the system clears the next one page by page: for every map of every layer. That is half
the time of an update on photographs, and up to as much on characters.

`freed_memory_kept` lets the process keep what is freed. It may hold more memory meanwhile, since
blocks of other sizes do not always fit into the gaps. No result depends on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from threading import Lock

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Options of `mallopt` of glibc, by their numbers in malloc.h."""
_MAPPED_ABOVE = 32 * 2**20
"""The largest threshold that the C library chooses for itself."""
_MOST_MAPPED = 65_536
_NEVER = -1
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER}
_GIVE_BACK = {
    _MMAP_MAX: _MOST_MAPPED,
    _MMAP_THRESHOLD: _MAPPED_ABOVE,
    _TRIM_THRESHOLD: 2 * _MAPPED_ABOVE,
}


class _Users:
    """Counts the blocks that want memory to be kept: training, and the validation inside it."""

    def __init__(self) -> None:
        self._count, self._lock = 0, Lock()

    def enter(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                _set(_KEEP)

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                _set(_GIVE_BACK, trim=True)


_USERS = _Users()


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep what is freed until the block ends, then give it back; with glibc only."""
    _USERS.enter()
    try:
        yield
    finally:
        _USERS.leave()


def _set(options: dict[int, int], *, trim: bool = False) -> None:
    """Set options of the C library, if it is glibc; then give back what is free, if asked to."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if not (hasattr(library, "mallopt") and hasattr(library, "malloc_trim")):
        return

    for name, value in options.items():
        library.mallopt(name, value)
    if trim:
        library.malloc_trim(0)
