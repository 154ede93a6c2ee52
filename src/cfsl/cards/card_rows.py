"""Cards as flat rows, for tables, CSV and JSON lines.

The names of columns stay as they are; new ones come last.
"""

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
    from cfsl.cards.schema import Card, CardMetrics, CardSchedule

FlatRow: TypeAlias = dict[str, Any]

_SMALL = 0.0002
"""Half an interval of two hundredths of a point."""


def _column(card: Card) -> str:
    """Return the name of the tasks: the one that the card states, or their type and size."""
    if card.column is not None:
        return card.column
    corruption = _corruption(card)
    name = f"{card.tasks.task_type}{card.tasks.spec.get('nss')}"
    return f"{name} {corruption}" if corruption else name


def _corruption(card: Card) -> str | None:
    """Return what is done to target images, such as 'noise 0.4'; None if nothing is."""
    stated = card.tasks.spec.get("corruption")
    return f"{stated.get('shape', stated['kind'])} {stated['fraction']:g}" if stated else None


def _seed(card: Card) -> int | None:
    """Return the training seed; None where nothing was trained."""
    has_seed = card.run is not None or card.training is not None
    return card.training_seed if has_seed else None


def _mean_forgetting(card: Card) -> float | None:
    summary = card.metrics.forgetting
    return None if summary is None else summary.mean


def _mean_backward_transfer(card: Card) -> float | None:
    summary = card.metrics.backward_transfer
    return None if summary is None else summary.mean


def _of_ensemble(value: Callable[[CardMetrics], Any]) -> Callable[[Card], Any]:
    """Return what reads a metric of the ensemble; None where there is no ensemble."""
    return lambda card: None if card.ensemble is None else value(card.ensemble.metrics)


def _of_schedule(value: Callable[[CardSchedule], Any]) -> Callable[[Card], Any]:
    """Return what reads the schedule of the training; None where there is none."""
    return lambda card: None if card.training is None else value(card.training.schedule)


COLUMNS: Mapping[str, Callable[[Card], Any]] = {
    "data": lambda card: card.tasks.data,
    "split": lambda card: card.tasks.split,
    "column": _column,
    "task_type": lambda card: card.tasks.task_type,
    "nss": lambda card: card.tasks.spec.get("nss"),
    "n_way": lambda card: card.tasks.spec.get("n_way"),
    "k_shot": lambda card: card.tasks.spec.get("k_shot"),
    "cci": lambda card: card.tasks.spec.get("cci"),
    "tasks": lambda card: card.tasks.count,
    "task_seed": lambda card: card.tasks.seed,
    "learner": lambda card: card.learner.name,
    "transductive": lambda card: card.transductive,
    "breaks_law": lambda card: card.breaks_law,
    "seed": _seed,
    "profile": lambda card: card.profile,
    "accuracy": lambda card: card.metrics.accuracy.mean,
    "accuracy_ci95": lambda card: card.metrics.accuracy.ci95,
    "accuracy_std": lambda card: card.metrics.accuracy.std,
    "cross_entropy": lambda card: card.metrics.cross_entropy.mean,
    "cross_entropy_ci95": lambda card: card.metrics.cross_entropy.ci95,
    "calibration_error": lambda card: card.metrics.calibration_error,
    "diverged": lambda card: card.metrics.diverged,
    "forgetting": _mean_forgetting,
    "backward_transfer": _mean_backward_transfer,
    "ensemble_members": lambda card: None if card.ensemble is None else card.ensemble.members,
    "ensemble_accuracy": _of_ensemble(lambda metrics: metrics.accuracy.mean),
    "ensemble_accuracy_ci95": _of_ensemble(lambda metrics: metrics.accuracy.ci95),
    "atm": lambda card: card.metrics.atm.total,
    "atm_representation": lambda card: card.metrics.atm.representation,
    "macs_to_learn": lambda card: card.macs.adaptation,
    "macs_to_answer": lambda card: card.macs.prediction,
    "macs_training_step": lambda card: card.macs.training_step,
    "peak_memory": lambda card: card.peak_memory,
    "epochs": _of_schedule(lambda schedule: schedule.epochs),
    "updates": _of_schedule(lambda schedule: schedule.updates),
    "batch": _of_schedule(lambda schedule: schedule.batch),
    "seconds": lambda card: card.circumstances.seconds,
    "processor": lambda card: card.circumstances.environment.processor,
    "cfsl": lambda card: card.circumstances.environment.cfsl,
    "manifest_fingerprint": lambda card: card.tasks.manifest_fingerprint,
    "run_hash": lambda card: card.run_hash,
    "answers": lambda card: None if card.answers is None else card.answers.file,
    "corruption": _corruption,
}


def row_of(path: Path, card: Card) -> FlatRow:
    """Return a card as a flat row: every column, then its file; fractions, not percent."""
    return {name: value(card) for name, value in COLUMNS.items()} | {"file": str(path)}


def _csv(rows: Sequence[FlatRow]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, "file"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _jsonl(rows: Sequence[FlatRow]) -> str:
    return "".join(json.dumps(plain(row)) + "\n" for row in rows)


def plain(row: FlatRow) -> FlatRow:
    """Return a row for JSON, which has no infinity: null stands for it."""
    not_finite = {
        name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)
    }
    return row | dict.fromkeys(not_finite)


EXPORTS: Mapping[str, Callable[[Sequence[FlatRow]], str]] = {"csv": _csv, "jsonl": _jsonl}


def export(rows: Sequence[FlatRow], form: str, path: Path) -> None:
    """Write rows as "csv" or "jsonl", whole or not at all."""
    text = lookup(EXPORTS, form, "format")(rows)
    try:
        with written_whole(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CardError(f"{path} cannot be written: {error.strerror or error}") from error


def listed(rows: Iterable[FlatRow]) -> Iterator[str]:
    """Lay rows out as lines under each other, for people: percent, and short numbers."""
    rows = list(rows)
    texts = [_short(row) for row in rows]
    every = texts or [_short(dict.fromkeys([*COLUMNS, "file"]))]
    shown = [name for name in every[0] if _is_worth(name, texts)]

    lines = [shown, *([text[name] for name in shown] for text in texts)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(shown))]
    for line in lines:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()

    if any(row["breaks_law"] for row in rows):
        yield "* breaks the data-flow law on purpose: an upper bound"
    if any(row["transductive"] for row in rows):
        yield "~ transductive: looks at all targets together"


def _is_worth(name: str, texts: Sequence[Mapping[str, str]]) -> bool:
    """Leave out some columns where no card has a value for them."""
    if name not in ("ensemble %", "profile", "seed", "schedule"):
        return True
    return any(text[name] != "-" for text in texts)


def _short(row: FlatRow) -> dict[str, str]:
    """Return the texts of a row, by the heading that they stand under."""
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
    """Write a fraction as percent, with its interval if it has one.

    A very small interval, of very many tasks, is given a third digit. `sign` is "+" for
    differences.
    """
    if mean is None:
        return "-"
    digits = 3 if ci95 is not None and 0 < ci95 < _SMALL else 2
    interval = f" +- {100 * ci95:.{digits}f}" if ci95 is not None else ""
    return f"{100 * mean:{sign}.{digits}f}{interval}"


def _text(value: Any, form: str = "") -> str:
    return "-" if value is None else format(value, form)
