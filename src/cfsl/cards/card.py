"""A result card: a JSON file that says what was run, on what, and what came out.

What differs each time that a run is done (time, hardware) is under "circumstances"; all else is the
same for the same run. Beside a card lie the answers that its numbers were measured from (see
`answers_file.py`), so that everybody can check them. docs/results.md explains every key.
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
from cfsl.cards.schema import Card, CardTasks, SchemaError
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
Content: TypeAlias = dict[str, Any]
"""The keys and values of a card's file, before anybody has checked them."""
_NEEDED = ("learner", "tasks", "metrics", "macs")
_WITH_NUMBERS = ("metrics", "ensemble", "checkpoint", "history")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def share_tasks(cards: Iterable[Card]) -> bool:
    """Tell whether cards are of the same tasks; one with fewer tasks must have the first."""
    fingerprints: dict[int, set[str]] = {}
    drawings = set()
    for tasks in (card.tasks for card in cards):
        fingerprints.setdefault(tasks.count, set()).add(tasks.manifest_fingerprint)
        drawings.add(_drawing(tasks))

    return len(drawings) == 1 and all(len(same) == 1 for same in fingerprints.values())


def _drawing(tasks: CardTasks) -> tuple[Any, ...]:
    """Return what decides the tasks of a card, apart from how many they are."""
    return (
        tasks.data_fingerprint,
        tasks.splits_hash,
        tasks.split,
        tasks.spec_hash,
        tasks.seed,
        tasks.sampler,
        tasks.task_numbers.start,
        tasks.task_numbers.step,
    )


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
    if answers.progressive is None:
        return measured

    means = progressive_accuracy(answers).mean
    measured["progressive_accuracy"] = [float(value) for value in means]
    per_task = {"forgetting": forgetting(answers), "backward_transfer": backward_transfer(answers)}
    measured |= {name: asdict(summarise(v)) for name, v in per_task.items() if v is not None}
    return measured


def write_card(path: Path, card: Card, answers: Mapping[str, Answers] | None = None) -> Card:
    """Write a card, whole or not at all, and return it as `read_card` would.

    The answers of the learner ("") and of its ensemble ("ensemble") are written first, beside the
    card, which names their file. The metrics of the card should have been measured from `rounded`
    answers: those are what is stored.
    """
    return Card.of(write_content(path, card.content(), answers))


def write_content(
    path: Path, content: Mapping[str, Any], answers: Mapping[str, Answers] | None = None
) -> Content:
    """Write a card of any kind, and return the content of the file."""
    answers_path = path.with_name(f"{path.stem}.answers.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if answers is not None:
            write_answers(answers_path, answers)

        stated = None if answers is None else _named(answers_path)
        full = {"run": None} | dict(content) | {"format": FORMAT, "answers": stated}
        text = json.dumps(_strict(full), indent=1, sort_keys=True, allow_nan=False)
        with written_whole(path) as part:
            part.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise CardError(f"{path} cannot be written: {error.strerror or error}") from error
    return full


def _named(path: Path) -> Content:
    """Return what a card says of the file with its answers."""
    content = path.read_bytes()
    return {"file": path.name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def read_card(path: Path) -> Card:
    """Read a result card of this format or an older one; refuse one with anything wrong on it."""
    content = read_content(path)
    if kind_of(content) != RESULT:
        raise CardError(f"{path} is a card of kind '{kind_of(content)}', not of a result")
    return checked_card(content, path)


def checked_card(content: Content, path: Path) -> Card:
    """Return the card of this content, which was read from a file."""
    try:
        return Card.of(content)
    except SchemaError as error:
        raise CardError(f"{path}: {error}; 'cfsl verify {path}' says all") from error


def read_content(path: Path) -> Content:
    """Read a card of any kind, and bring it to this format; refuse what is damaged or newer."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CardError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CardError(f"{path} is damaged, or no result card: {error}") from error

    stated = content.get("format") if isinstance(content, dict) else None
    if type(stated) is not int or stated < 1:
        raise CardError(f"{path} is no result card: it states no format")
    if stated > FORMAT:
        raise CardError(
            f"{path} has format {stated}, which a newer cfsl wrote; "
            f"this version reads up to {FORMAT}"
        )
    missing = [key for key in _NEEDED if not isinstance(content.get(key), dict)]
    if missing and kind_of(content) == RESULT:
        raise CardError(f"{path} is no whole result card: it has no {', no '.join(missing)}")

    current = _upgraded(content) if stated == 1 else content
    whole: Content = {"answers": None, "run": None} | current
    try:
        return whole | {key: _relaxed(whole[key]) for key in _WITH_NUMBERS if key in whole}
    except RecursionError as error:
        raise CardError(f"{path} is damaged, or no result card: {error}") from error


def kind_of(content: Mapping[str, Any]) -> Any:
    """Return the kind of a card: "result", or what it says, such as "choice"."""
    return content.get("kind", RESULT)


def _upgraded(content: Content) -> Content:
    """Bring a card from format 1 to 2: what differs from run to run moves under one key."""
    content = content | {"format": 2, "upgraded_from": 1}
    moving = ("seconds", "environment")
    circumstances: Content = {key: content.pop(key) for key in moving if key in content}

    if isinstance(ensemble := content.get("ensemble"), dict):
        circumstances["ensemble_seconds"] = ensemble.get("seconds")
        content["ensemble"] = {key: value for key, value in ensemble.items() if key != "seconds"}

    try:
        content["checkpoint"], seconds = without_seconds(content.get("checkpoint"))
    except (AttributeError, TypeError, ValueError):
        seconds = {}  # the schema will say what is wrong with the checkpoint
    return content | {"circumstances": circumstances | seconds}


def without_seconds(
    notes: Mapping[str, Any] | None,
) -> tuple[dict[str, Any] | None, dict[str, list[float]]]:
    """Separate the notes of a training run from the seconds of its epochs.

    The seconds belong to the circumstances of a card.
    """
    if notes is None:
        return None, {}

    history = notes.get("history", [])
    kept = [{key: value for key, value in epoch.items() if key != "seconds"} for epoch in history]
    seconds = [epoch.get("seconds") for epoch in history]
    return dict(notes) | {"history": kept}, {"training_seconds": seconds}


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
