"""The report, served on this machine alone.

It is built again when files change, and an open page follows.
"""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")


class Built:
    """The page as it is now: built when it is asked for, and only if something has changed."""

    def __init__(self, build: Callable[[], str], stamp: Callable[[], str]) -> None:
        """`stamp` returns a text that changes when the page would."""
        self._build, self._stamp = build, stamp
        self._lock = threading.Lock()
        self._of: str | None = None
        self._page = b""

    def version(self) -> str:
        """Return what changes when the page would."""
        return self._stamp()

    def page(self) -> bytes:
        """Return the page."""
        with self._lock:
            now = self._stamp()
            if now != self._of:
                self._page, self._of = self._build().encode(), now
            return self._page


def server(built: Built, port: int) -> http.server.ThreadingHTTPServer:
    """Return a server that hears this machine alone; port 0 takes a free one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers two addresses: the page, and its version."""

        def do_GET(self) -> None:
            if self._is_elsewhere():
                self._send(
                    HTTPStatus.FORBIDDEN, "text/plain", b"this server is for this machine only\n"
                )
            elif self.path == "/":
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", built.page())
            elif self.path == "/version":
                self._send(HTTPStatus.OK, "text/plain", built.version().encode())
            else:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not here\n")

        def _is_elsewhere(self) -> bool:
            """Refuse names that somebody else's page may have given to this machine."""
            return self.headers.get("Host", "").rpartition(":")[0] not in _NAMES

        def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
            self.send_response(status)
            for name, value in (("Content-Type", kind), ("Content-Length", str(len(content)))):
                self.send_header(name, value)
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing: only the command line prints."""

    return http.server.ThreadingHTTPServer((LOOPBACK, port), Handler)


def stamp_of(places: Sequence[Path]) -> str:
    """Return a text that changes when a card, its answers or a sweep below these places does."""
    digest = hashlib.sha256()
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        for file in files:
            if file.suffix in (".json", ".npz", ".png") and not file.name.startswith("."):
                digest.update(_state(file).encode())
    return digest.hexdigest()[:16]


def _state(file: Path) -> str:
    try:
        state = file.stat()
    except OSError:  # removed since it was listed
        return ""
    return f"{file} {state.st_mtime_ns} {state.st_size}\n"
