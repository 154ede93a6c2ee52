"""Writes reports, tables and figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cfsl.errors import CardError
from cfsl.files import written_whole
from cfsl.report.material import Material, ProgressBar, material_at, no_progress_bar
from cfsl.report.page import page

if TYPE_CHECKING:
    from cfsl.cards.evidence_reader import EvidenceReader

_MARK_OF_A_REPORT = 'name="generator" content="cfsl'
_HEAD = 2000


def write_report(
    places: Sequence[Path],
    out: Path,
    reader: EvidenceReader,
    *,
    pictures: bool = True,
    progress_bar: ProgressBar = no_progress_bar,
) -> Material:
    """Write the page of all cards at these places, and return what is on it.

    A report is replaced, another page is not.
    """
    _require_report(out)
    material = material_at(places, reader, pictures=pictures, progress_bar=progress_bar)
    write_file(out, page(material).encode())
    return material


def _require_report(path: Path) -> None:
    """Refuse a file that is there and no report."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CardError(f"{path} cannot be written: {error.strerror or error}") from error

    if _MARK_OF_A_REPORT not in head:
        raise CardError(
            f"{path} is there already and no report of cfsl; name another file with --out"
        )


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise CardError(f"{path} cannot be written: {error.strerror or error}") from error
