"""The memory that maps have left, kept for the next ones.

The C library of most Linux systems hands every block of more than 32 MB back as soon as it is freed, and the system
clears the next one page by page: for every map of every layer. That is half the time of an update on photographs, and
up to as much on characters. Here the process keeps what is freed, as long as something is computed. It may hold
more memory meanwhile, since blocks of other sizes do not always fit into what is left. No number depends on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from threading import Lock

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""What `mallopt` of glibc can be told, by its numbers in malloc.h."""
_MAPPED_ABOVE = 32 * 2**20
"""Where the C library itself comes to after a while; it goes no further."""
_MOST_MAPPED = 65_536
_NEVER = -1


class _Holders:
    """How many blocks of code want memory to be kept now: training holds it, and so does the validation inside it."""

    def __init__(self) -> None:
        self._count, self._lock = 0, Lock()

    def enter(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                _tell({_MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER})

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                _tell(
                    {
                        _MMAP_MAX: _MOST_MAPPED,
                        _MMAP_THRESHOLD: _MAPPED_ABOVE,
                        _TRIM_THRESHOLD: 2 * _MAPPED_ABOVE,
                    },
                    trim=True,
                )


_HOLDERS = _Holders()


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep what is freed until the block ends, then give it back. Where the C library is another one, do nothing."""
    _HOLDERS.enter()
    try:
        yield
    finally:
        _HOLDERS.leave()


def _tell(settings: dict[int, int], *, trim: bool = False) -> None:
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if not (hasattr(library, "mallopt") and hasattr(library, "malloc_trim")):
        return
    for name, value in settings.items():
        library.mallopt(name, value)
    if trim:
        library.malloc_trim(0)
