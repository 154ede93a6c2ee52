"""The messages of the workers of a Ray cluster during a step: its progress, and checkpoints."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, TypeAlias

import ray

from cfsl.engine.ray.file_bundle import Checkpoint, packed

Messages: TypeAlias = list[tuple[int, Any]]
"""Numbers of orders, each with a Checkpoint or with the progress of its step."""


class MessageQueue:
    """An actor on the machine of the bench. Workers put messages in; the bench waits for them."""

    def __init__(self) -> None:
        """Begin empty."""
        self._messages: Messages = []
        self._has_messages = asyncio.Event()

    async def post(self, order: int, message: Any) -> None:
        """Put in a message."""
        self._messages.append((order, message))
        self._has_messages.set()

    async def take(self, patience: float) -> Messages:
        """Wait so many seconds for messages, and return all there are."""
        try:
            await asyncio.wait_for(self._has_messages.wait(), patience)
        except TimeoutError:
            return []

        messages, self._messages = self._messages, []
        self._has_messages.clear()
        return messages


class Reports:
    """Sends how far a step is, but not too often."""

    def __init__(self, queue: Any, order: int, between: float) -> None:
        """`between` is the least number of seconds between two reports."""
        self._queue, self._order, self._between = queue, order, between
        self._last = 0.0

    def __call__(self, progress: Any) -> None:
        """Report, unless the last report was a moment ago."""
        now = time.monotonic()
        if now - self._last >= self._between:
            self._last = now
            self._queue.post.remote(self._order, progress)

    def send(self, checkpoint: Checkpoint) -> bool:
        """Send a checkpoint and tell whether it arrived; training goes on if it did not."""
        try:
            ray.get(self._queue.post.remote(self._order, checkpoint))
        except ray.exceptions.RayError:
            return False
        return True


class TrainingReports:
    """Sends how far a training run is, and every checkpoint."""

    def __init__(self, reports: Reports, root: Path, newest: Path) -> None:
        """Take the newest checkpoint and the folder that the names of files are relative to.

        A checkpoint has been written when the file `newest` is another than before.
        """
        self._reports, self._root, self._newest = reports, root, newest
        self._seen = self._files()

    def __call__(self, progress: Any) -> None:
        """Report, and send a checkpoint if there is a new one."""
        files = self._files()
        if files.get(self._newest) != self._seen.get(self._newest):
            changed = [path for path in files if files[path] != self._seen.get(path)]
            changed.sort(key=lambda path: path == self._newest)
            names = [path.relative_to(self._root).as_posix() for path in files]
            if self._reports.send(Checkpoint(packed(self._root, changed), names)):
                self._seen = files

        self._reports(progress)

    def _files(self) -> dict[Path, tuple[int, int]]:
        """Return the weights files, each with two numbers that change when it is replaced."""
        stats = {path: path.stat() for path in self._newest.parent.glob("*.safetensors")}
        return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}
