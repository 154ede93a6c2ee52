"""A result card: one JSON file that says what was run, on what, and what came out. docs/results.md has every key.

What differs from run to run (time, hardware) is under "circumstances"; all else is the same for the same run. Beside a
card are the answers that its numbers were measured from (see `sidecar.py`), so that everybody can check them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from cfsl.cards.answers_file import write_answers
from cfsl.errors import CardError
from cfsl.files import written_whole
from cfsl.metrics.accuracy import summarise, task_accuracies, task_cross_entropies
from cfsl.metrics.answers import NO_ANSWER, Answers, Scorable, answers_of
from cfsl.metrics.calibration import expected_calibration_error
from cfsl.metrics.forgetting import (
    backward_transfer,
    forgetting,
    group_accuracies,
    progressive_accuracy,
)
from cfsl.metrics.memory import atm

FORMAT = 2
RESULT = "result"
"""The kind of a card that states no other."""
Card: TypeAlias = dict[str, Any]
_NEEDED = ("learner", "tasks", "metrics", "macs")
_DECIDE_TASKS = ("data_fingerprint", "splits_hash", "split", "spec_hash", "seed", "sampler")
"""What decides the tasks of a card, but for how many they are and where they begin."""
_WITH_NUMBERS = ("metrics", "ensemble", "checkpoint", "history")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def share_tasks(cards: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether cards are of the same tasks as far as each of them goes: whoever has fewer has the first ones."""
    of_count: dict[int, set[str]] = {}
    draws = set()
    for tasks in (card["tasks"] for card in cards):
        of_count.setdefault(tasks["count"], set()).add(tasks["manifest_fingerprint"])
        first, _, step = tasks.get("numbers") or (0, None, 1)
        draws.add((*(tasks[name] for name in _DECIDE_TASKS), first, step))
    return len(draws) == 1 and all(len(prints) == 1 for prints in of_count.values())


def measurements(run: Scorable) -> dict[str, Any]:
    """Return every metric of a run, ready for JSON; fractions, not percent."""
    answers = answers_of(run)
    memory = atm(answers)
    measured: dict[str, Any] = {
        "accuracy": asdict(summarise(task_accuracies(answers))),
        "cross_entropy": asdict(summarise(task_cross_entropies(answers))),
        "calibration_error": expected_calibration_error(answers),
        "diverged": float((answers.predicted == NO_ANSWER).mean()),
        "atm": {
            "total": memory.total,
            "representation": memory.representation,
            "bookkeeping": memory.bookkeeping,
            "curve": [float(value) for value in memory.curve],
        },
        "group_accuracy": [float(value) for value in group_accuracies(answers)],
    }
    if answers.progressive is not None:
        per_task = {
            "forgetting": forgetting(answers),
            "backward_transfer": backward_transfer(answers),
        }
        measured["progressive_accuracy"] = [
            float(value) for value in progressive_accuracy(answers).mean
        ]
        measured |= {name: asdict(summarise(v)) for name, v in per_task.items() if v is not None}
    return measured


def write_card(
    path: Path, card: Mapping[str, Any], answers: Mapping[str, Answers] | None = None
) -> Card:
    """Write a card, whole or not at all, and return it as `read_card` would.

    The answers of the learner ("") and of its ensemble ("ensemble") are written first, beside it, and the card names
    their file. Its metrics should have been measured from `rounded` answers: those are what is stored.
    """
    beside = path.with_name(f"{path.stem}.answers.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if answers is not None:
            write_answers(beside, answers)
        full = (
            {"run": None}
            | dict(card)
            | {"format": FORMAT, "answers": None if answers is None else _named(beside)}
        )
        with written_whole(path) as part:
            part.write_text(
                json.dumps(_strict(full), indent=1, sort_keys=True, allow_nan=False) + "\n",
                encoding="utf-8",
            )
    except OSError as error:
        raise CardError(f"{path} cannot be written: {error.strerror or error}") from error
    return full


def _named(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"file": path.name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def read_card(path: Path) -> Card:
    """Read a card of this format or an older one, as one of this format; refuse what is damaged or newer."""
    try:
        card: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CardError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CardError(f"{path} is damaged, or no result card: {error}") from error
    stated = card.get("format") if isinstance(card, dict) else None
    if type(stated) is not int or stated < 1:
        raise CardError(f"{path} is no result card: it states no format")
    if stated > FORMAT:
        raise CardError(
            f"{path} has format {stated}, which a newer cfsl wrote; this version reads up to {FORMAT}"
        )
    missing = [key for key in _NEEDED if not isinstance(card.get(key), dict)]
    if missing and kind_of(card) == RESULT:
        raise CardError(f"{path} is no whole result card: it has no {', no '.join(missing)}")
    whole: Card = {"answers": None, "run": None} | (_upgraded(card) if stated == 1 else card)
    try:
        return whole | {key: _relaxed(whole[key]) for key in _WITH_NUMBERS if key in whole}
    except RecursionError as error:
        raise CardError(f"{path} is damaged, or no result card: {error}") from error


def kind_of(card: Mapping[str, Any]) -> Any:
    """Return what a card is of: "result", or what it says, such as "choice"."""
    return card.get("kind", RESULT)


def _upgraded(card: Card) -> Card:
    """Bring a card from format 1 to 2: what differs from run to run moves under one key."""
    card = card | {"format": 2, "upgraded_from": 1}
    circumstances: dict[str, Any] = {
        key: card.pop(key) for key in ("seconds", "environment") if key in card
    }
    if isinstance(together := card.get("ensemble"), dict):
        circumstances["ensemble_seconds"] = together.get("seconds")
        card["ensemble"] = {key: value for key, value in together.items() if key != "seconds"}
    try:
        card["checkpoint"], seconds = without_seconds(card.get("checkpoint"))
    except (AttributeError, TypeError, ValueError):
        seconds = {}  # the schema says what is wrong with it
    return card | {"circumstances": circumstances | seconds}


def without_seconds(
    notes: Mapping[str, Any] | None,
) -> tuple[dict[str, Any] | None, dict[str, list[float]]]:
    """Part the notes of a training run from the seconds of its epochs, which belong to the circumstances."""
    if notes is None:
        return None, {}
    history = notes.get("history", [])
    kept = [{key: value for key, value in epoch.items() if key != "seconds"} for epoch in history]
    return dict(notes) | {"history": kept}, {
        "training_seconds": [epoch.get("seconds") for epoch in history]
    }


def _strict(value: Any) -> Any:
    """Write numbers that JSON lacks as texts: "Infinity", "NaN"."""
    if isinstance(value, Mapping):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _relaxed(value: Any) -> Any:
    """Undo `_strict`."""
    if isinstance(value, dict):
        return {key: _relaxed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_relaxed(inner) for inner in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
