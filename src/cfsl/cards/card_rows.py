"""Cards as rows: one flat row a card, for tables, CSV and JSON lines. The names of columns stay; new ones come last."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cfsl.errors import CardError, lookup
from cfsl.files import written_whole

if TYPE_CHECKING:
    from cfsl.cards.card import Card

Row: TypeAlias = dict[str, Any]


def _at(*keys: str) -> Callable[[Card], Any]:
    """Return what looks a value up, key by key; None where the card has none."""

    def value(card: Card) -> Any:
        found: Any = card
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    return value


def _first(*ways: Callable[[Card], Any]) -> Callable[[Card], Any]:
    """Return what takes the first value that is there."""
    return lambda card: next((value for way in ways if (value := way(card)) is not None), None)


def _type_and_nss(card: Card) -> str:
    spoiled = _corruption(card)
    return f"{_at('tasks', 'task_type')(card)}{_at('tasks', 'spec', 'nss')(card)}{f' {spoiled}' if spoiled else ''}"


def _corruption(card: Card) -> str | None:
    """Return what is done to target images, such as 'noise 0.4' or 'disc 0.3'; None if nothing is."""
    found = _at("tasks", "spec", "corruption")(card)
    return f"{found.get('shape', found['kind'])} {found['fraction']:g}" if found else None


_SCHEDULE = ("checkpoint", "identity", "training", "schedule")
_AROUND = ("circumstances", "environment")
_SMALL = 0.0002
"""Half an interval of two hundredths of a point."""

COLUMNS: Mapping[str, Callable[[Card], Any]] = {
    "data": _at("tasks", "data"),
    "split": _at("tasks", "split"),
    "column": _first(_at("column"), _type_and_nss),
    "task_type": _at("tasks", "task_type"),
    "nss": _at("tasks", "spec", "nss"),
    "n_way": _at("tasks", "spec", "n_way"),
    "k_shot": _at("tasks", "spec", "k_shot"),
    "cci": _at("tasks", "spec", "cci"),
    "tasks": _at("tasks", "count"),
    "task_seed": _at("tasks", "seed"),
    "learner": _at("learner", "name"),
    "transductive": _at("transductive"),
    "breaks_law": _at("breaks_law"),
    "seed": _first(_at("run", "seed"), _at("checkpoint", "identity", "training", "seed")),
    "profile": _at("profile"),
    "accuracy": _at("metrics", "accuracy", "mean"),
    "accuracy_ci95": _at("metrics", "accuracy", "ci95"),
    "accuracy_std": _at("metrics", "accuracy", "std"),
    "cross_entropy": _at("metrics", "cross_entropy", "mean"),
    "cross_entropy_ci95": _at("metrics", "cross_entropy", "ci95"),
    "calibration_error": _at("metrics", "calibration_error"),
    "diverged": _at("metrics", "diverged"),
    "forgetting": _at("metrics", "forgetting", "mean"),
    "backward_transfer": _at("metrics", "backward_transfer", "mean"),
    "ensemble_members": _at("ensemble", "members"),
    "ensemble_accuracy": _at("ensemble", "metrics", "accuracy", "mean"),
    "ensemble_accuracy_ci95": _at("ensemble", "metrics", "accuracy", "ci95"),
    "atm": _at("metrics", "atm", "total"),
    "atm_representation": _at("metrics", "atm", "representation"),
    "macs_to_learn": _at("macs", "adaptation"),
    "macs_to_answer": _at("macs", "prediction"),
    "macs_training_step": _at("macs", "training_step"),
    "peak_memory": _at("peak_memory"),
    "epochs": _at(*_SCHEDULE, "epochs"),
    "updates": _at(*_SCHEDULE, "updates"),
    "batch": _at(*_SCHEDULE, "batch"),
    "seconds": _at("circumstances", "seconds"),
    "processor": _at(*_AROUND, "processor"),
    "cfsl": _at(*_AROUND, "cfsl"),
    "manifest_fingerprint": _at("tasks", "manifest_fingerprint"),
    "run_hash": _at("run_hash"),
    "answers": _at("answers", "file"),
    "corruption": _corruption,
}


def row_of(path: Path, card: Card) -> Row:
    """Return a card as one flat row: every column, then its file; fractions, not percent."""
    return {name: value(card) for name, value in COLUMNS.items()} | {"file": str(path)}


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, "file"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _jsonl(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(plain(row)) + "\n" for row in rows)


def plain(row: Row) -> Row:
    """Return a row for JSON, which has no infinity: null stands for it."""
    odd = {
        name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)
    }
    return row | dict.fromkeys(odd)


EXPORTS: Mapping[str, Callable[[Sequence[Row]], str]] = {"csv": _csv, "jsonl": _jsonl}


def export(rows: Sequence[Row], form: str, path: Path) -> None:
    """Write rows as "csv" or "jsonl", whole or not at all."""
    text = lookup(EXPORTS, form, "format")(rows)
    try:
        with written_whole(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CardError(f"{path} cannot be written: {error.strerror or error}") from error


def listed(rows: Iterable[Row]) -> Iterator[str]:
    """Lay rows out as lines under each other, for people: percent, and short numbers."""
    rows = list(rows)
    cells = [_short(row) for row in rows]
    shown = [
        name
        for name in (cells or [_short(dict.fromkeys([*COLUMNS, "file"]))])[0]
        if _is_worth(name, cells)
    ]
    lines = [shown, *([cell[name] for name in shown] for cell in cells)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(shown))]
    for line in lines:
        yield "  ".join(
            text.ljust(width) for text, width in zip(line, widths, strict=True)
        ).rstrip()
    if any(row["breaks_law"] for row in rows):
        yield "* breaks the data-flow law on purpose: an upper bound"
    if any(row["transductive"] for row in rows):
        yield "~ transductive: looks at all targets together"


def _is_worth(name: str, cells: Sequence[Mapping[str, str]]) -> bool:
    """Leave out what no card says."""
    return name not in ("ensemble %", "profile", "seed", "schedule") or any(
        cell[name] != "-" for cell in cells
    )


def _short(row: Row) -> dict[str, str]:
    marks = ("*" if row["breaks_law"] else "") + ("~" if row["transductive"] else "")
    schedule = [row["epochs"], row["updates"], row["batch"]]
    return {
        "data": _text(row["data"]),
        "column": _text(row["column"]),
        "learner": _text(row["learner"]) + marks,
        "seed": _text(row["seed"]),
        "profile": _text(row["profile"]),
        "accuracy %": percent(row["accuracy"], row["accuracy_ci95"]),
        "ensemble %": percent(row["ensemble_accuracy"], row["ensemble_accuracy_ci95"]),
        "ATM": _text(row["atm"], ".4f"),
        "MACs to learn": _text(row["macs_to_learn"], ",d"),
        "schedule": "-" if None in schedule else " x ".join(str(part) for part in schedule),
        "file": _text(row["file"]),
    }


def percent(mean: float | None, ci95: float | None, sign: str = "") -> str:
    """Write a fraction as percent, with its interval if it has one; so many tasks that it is small want a third digit.

    `sign` is "+" for differences.
    """
    if mean is None:
        return "-"
    digits = 3 if ci95 is not None and 0 < ci95 < _SMALL else 2
    return f"{100 * mean:{sign}.{digits}f}" + (
        f" +- {100 * ci95:.{digits}f}" if ci95 is not None else ""
    )


def _text(value: Any, form: str = "") -> str:
    return "-" if value is None else format(value, form)
