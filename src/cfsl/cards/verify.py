"""Whether a card is true: what it states is held against itself, its tasks, its answers and its learner."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cfsl.cards.answers_file import read_answers
from cfsl.cards.card import measurements, read_card
from cfsl.cards.consistency import contradictions, false_marks
from cfsl.cards.manifests import Manifests, names_on_trust
from cfsl.cards.schema import schema_problems
from cfsl.errors import CardError, CfslError, UnknownTasksError
from cfsl.learners.registry import LEARNERS
from cfsl.metrics.answers import Answers

_CLOSE = 1e-9
Status = Literal["ok", "in part", "unchecked", "refused"]


@dataclass(frozen=True)
class Verdict:
    """What was found out about a card."""

    status: Status
    """ok: every number of its answers was worked out again. in part: it does not contradict itself, but not all can be
    checked. unchecked: the same, since its tasks are not known here. refused: something on it is not true."""
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it in one line."""
        status = "REFUSED" if self.status == "refused" else self.status
        return ": ".join([status, *(["; ".join(self.reasons)] if self.reasons else [])])


def verify_card(path: Path, manifests: Manifests) -> Verdict:
    """Check a card and the answers beside it."""
    try:
        card = read_card(path)
    except CardError as error:
        return Verdict("refused", (str(error).removeprefix(f"{path} "),))
    # What follows takes the shape of a card for granted.
    wrong = schema_problems(card)
    if wrong:
        return Verdict("refused", tuple(wrong))
    wrong += contradictions(card)
    untold = list(_untold(card))
    if card["learner"]["name"] in LEARNERS:
        wrong += false_marks(card)
    missing = ""
    if card["answers"] is not None:
        try:
            wrong += _false_numbers(card, path, manifests)
            untold += names_on_trust(card["tasks"], manifests.of(card, path))
        except UnknownTasksError as error:
            missing = str(error)
        except CfslError as error:
            wrong.append(str(error))
    if wrong:
        return Verdict("refused", tuple(wrong))
    if missing:
        return Verdict("unchecked", (missing, *untold))
    return Verdict("in part", tuple(untold)) if untold else Verdict("ok")


def _untold(card: Mapping[str, Any]) -> Iterator[str]:
    """Say what cannot be checked, whatever else is here."""
    if card["answers"] is None:
        yield "no predictions (format 1)" if card.get("upgraded_from") == 1 else "no predictions"
    name = card["learner"]["name"]
    if name not in LEARNERS:
        yield f"learner {name} is not one of cfsl's, so that its marks are taken on trust"


def _false_numbers(card: Mapping[str, Any], path: Path, manifests: Manifests) -> list[str]:
    """Work every metric out again, and say which the card has otherwise."""
    answers = answers_beside(card, path, manifests)
    stated = {"": card["metrics"]}
    if card.get("ensemble") is not None:
        stated["ensemble"] = card["ensemble"]["metrics"]
    if answers.keys() != stated.keys():
        told, kept = (
            ", ".join(part or "the learner" for part in sorted(parts))
            for parts in (stated, answers)
        )
        return [f"answers are of {kept}, metrics are of {told}"]
    return [
        problem
        for part, metrics in stated.items()
        for problem in _differences(
            metrics, measurements(answers[part]), f"{part}.metrics" if part else "metrics"
        )
    ]


def answers_beside(card: Mapping[str, Any], path: Path, manifests: Manifests) -> dict[str, Answers]:
    """Return the answers of a card; refuse a file that is not the one that the card names."""
    stated = card["answers"]
    beside = path.with_name(stated["file"])
    try:
        content = beside.read_bytes()
    except OSError as error:
        raise CardError(
            f"answers.file: {beside} cannot be read: {error.strerror or error}"
        ) from error
    if len(content) != stated["bytes"]:
        raise CardError(f"answers.bytes is {stated['bytes']}, {beside.name} has {len(content)}")
    found = hashlib.sha256(content).hexdigest()
    if found != stated["sha256"]:
        raise CardError(
            f"answers.sha256 is {stated['sha256'][:12]}, that of {beside.name} is {found[:12]}"
        )
    return read_answers(beside, manifests.of(card, path))


def _differences(stated: Any, found: Any, where: str) -> Iterator[str]:
    """Compare two trees of numbers, leaf by leaf."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for key in [*found, *(stated.keys() - found.keys())]:
            if key not in stated or key not in found:
                yield f"{where}.{key} is {'missing' if key in found else 'not among what the answers give'}"
            else:
                yield from _differences(stated[key], found[key], f"{where}.{key}")
    elif isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        for number, pair in enumerate(zip(stated, found, strict=True)):
            yield from _differences(*pair, f"{where}.{number}")
    elif not _same(stated, found):
        yield f"{where} is {stated}, the answers give {found}"


def _same(stated: Any, found: Any) -> bool:
    if isinstance(stated, int | float) and isinstance(found, int | float):
        return math.isclose(stated, found, rel_tol=_CLOSE, abs_tol=1e-15)
    return bool(stated == found)
