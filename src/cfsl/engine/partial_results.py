"""Partial results: the traces of some tasks of a cell, on disk until its card is written."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from cfsl.errors import CardError
from cfsl.files import written_whole
from cfsl.harness.trace import Trace

_ARRAYS = tuple(field.name for field in fields(Trace) if field.name != "support_bytes")


def write_partial_result(path: Path, traces: Sequence[Trace], seconds: float) -> None:
    """Write the traces of all members on the same tasks, whole or not at all."""
    arrays: dict[str, Any] = {"members": np.array(len(traces)), "seconds": np.array(seconds)}
    for member, trace in enumerate(traces):
        arrays[f"{member}/support_bytes"] = np.array(trace.support_bytes)
        for name in _ARRAYS:
            array = getattr(trace, name)
            if array is not None:
                arrays[f"{member}/{name}"] = array

    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as part, part.open("wb") as out:
        np.savez(out, **arrays)


def read_partial_result(path: Path) -> tuple[list[Trace], float]:
    """Read what `write_partial_result` wrote, without running any code that a file may hold."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        traces = [_trace(arrays, member) for member in range(int(arrays["members"]))]
        return traces, float(arrays["seconds"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CardError(f"{path} is damaged ({error}); delete it") from error


def _trace(arrays: dict[str, np.ndarray], member: int) -> Trace:
    own = {name: arrays[f"{member}/{name}"] for name in _ARRAYS if f"{member}/{name}" in arrays}
    return Trace(support_bytes=int(arrays[f"{member}/support_bytes"]), **own)
