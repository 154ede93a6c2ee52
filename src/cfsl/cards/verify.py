"""Whether a card is true: it is held against itself, its tasks, its answers and its learner."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cfsl.cards.answers_file import unpacked_answers
from cfsl.cards.card import Content, measurements, read_content
from cfsl.cards.consistency import contradictions, false_marks
from cfsl.cards.manifests import Manifests, names_on_trust
from cfsl.cards.schema import Card, SchemaError
from cfsl.errors import CardError, CfslError, UnknownTasksError
from cfsl.learners.registry import LEARNERS
from cfsl.metrics.answers import Answers

_CLOSE = 1e-9
Status = Literal["ok", "in part", "unchecked", "refused"]


@dataclass(frozen=True)
class Verdict:
    """Whether a card is true."""

    status: Status
    """ok: every number was worked out again from the answers. in part: the card does not contradict
    itself, but not all of it can be checked. unchecked: the same, since its tasks are not known
    here. refused: something on the card is not true."""
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it in one line."""
        status = "REFUSED" if self.status == "refused" else self.status
        return ": ".join([status, *(["; ".join(self.reasons)] if self.reasons else [])])


@dataclass(frozen=True)
class Check:
    """What was found out about a card, and the answers that were read for it."""

    verdict: Verdict
    answers: Mapping[str, Answers] = field(default_factory=dict)
    """Of the learner ("") and of its ensemble ("ensemble"); none where they could not be read."""


def verify_card(path: Path, manifests: Manifests) -> Verdict:
    """Check a card and the answers beside it."""
    return check_card(path, manifests).verdict


def check_card(path: Path, manifests: Manifests) -> Check:
    """Check a card and the answers beside it, and keep the answers."""
    try:
        content = read_content(path)
        card = Card.of(content)
    except SchemaError as error:
        return Check(Verdict("refused", error.problems))
    except CardError as error:
        return Check(Verdict("refused", (str(error).removeprefix(f"{path} "),)))

    wrong, uncheckable = list(contradictions(card)), list(_uncheckable(card))
    if card.learner.name in LEARNERS:
        wrong += false_marks(card)

    answers: Mapping[str, Answers] = {}
    unknown_tasks = ""
    if card.answers is not None:
        try:
            answers = stated_answers(card, path, manifests)
            wrong += _false_numbers(content, answers)
            uncheckable += names_on_trust(card.tasks, manifests.of(card, path))
        except UnknownTasksError as error:
            unknown_tasks = str(error)
        except CfslError as error:
            wrong.append(str(error))

    if wrong:
        return Check(Verdict("refused", tuple(wrong)), answers)
    if unknown_tasks:
        return Check(Verdict("unchecked", (unknown_tasks, *uncheckable)), answers)
    return Check(Verdict("in part", tuple(uncheckable)) if uncheckable else Verdict("ok"), answers)


def _uncheckable(card: Card) -> Iterator[str]:
    """Say what cannot be checked, whatever else is known here."""
    if card.answers is None:
        yield "no predictions (format 1)" if card.upgraded_from == 1 else "no predictions"
    name = card.learner.name
    if name not in LEARNERS:
        yield f"learner {name} is not one of cfsl's, so that its marks are taken on trust"


def stated_answers(card: Card, path: Path, manifests: Manifests) -> dict[str, Answers]:
    """Return the answers of a card; refuse a file that is not the one that the card names."""
    stated = card.answers
    if stated is None:
        return {}
    file = path.with_name(stated.file)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CardError(
            f"answers.file: {file} cannot be read: {error.strerror or error}"
        ) from error

    if len(content) != stated.bytes:
        raise CardError(f"answers.bytes is {stated.bytes}, {file.name} has {len(content)}")
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != stated.sha256:
        raise CardError(
            f"answers.sha256 is {stated.sha256[:12]}, that of {file.name} is {sha256[:12]}"
        )
    return unpacked_answers(content, file, manifests.of(card, path))


def _false_numbers(content: Content, answers: Mapping[str, Answers]) -> Iterator[str]:
    """Work every metric out again, and say which the card has otherwise."""
    stated = {"": content["metrics"]}
    if content.get("ensemble") is not None:
        stated["ensemble"] = content["ensemble"]["metrics"]

    if answers.keys() != stated.keys():
        told, kept = (
            ", ".join(part or "the learner" for part in sorted(parts))
            for parts in (stated, answers)
        )
        yield f"answers are of {kept}, metrics are of {told}"
        return
    for part, metrics in stated.items():
        where = f"{part}.metrics" if part else "metrics"
        yield from _differences(metrics, measurements(answers[part]), where)


def _differences(stated: Any, found: Any, where: str) -> Iterator[str]:
    """Compare two trees of numbers, leaf by leaf."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for key in [*found, *(stated.keys() - found.keys())]:
            if key not in stated:
                yield f"{where}.{key} is missing"
            elif key not in found:
                yield f"{where}.{key} is not among what the answers give"
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
