"""Many cards: those that are named, and all below folders that are named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cfsl.cards.card import RESULT, Card, kind_of, read_card
from cfsl.cards.schema import schema_problems
from cfsl.errors import CardError

_NOT_RESULTS = ("aside", "failed")
"""Folders of a bench with what was damaged or went wrong."""


@dataclass(frozen=True)
class Collection:
    """What was found, by path, in the order of names and folders."""

    cards: dict[Path, Card] = field(default_factory=dict)
    damaged: dict[Path, str] = field(default_factory=dict)
    """What is wrong with what should be a card."""
    others: list[Path] = field(default_factory=list)
    """Cards of other kinds, such as choices; and below a folder, JSON files that do not look like a card at all."""


def collected(places: Iterable[Path]) -> Collection:
    """Read all result cards at these places, files or folders; a place that is not there is refused."""
    found = Collection()
    for path, is_named in _files(places):
        try:
            card = sound_card(path)
        except CardError as error:
            if is_named or _resembles_card(path):
                found.damaged[path] = str(error)
            else:
                found.others.append(path)
            continue
        if kind_of(card) == RESULT:
            found.cards[path] = card
        else:
            found.others.append(path)
    return found


def sound_card(path: Path) -> Card:
    """Read a card that has all that a result card has, or is of another kind; refuse any other."""
    card = read_card(path)
    if kind_of(card) == RESULT and (problems := schema_problems(card)):
        raise CardError(f"{path}: {problems[0]}; 'cfsl verify {path}' says all")
    return card


def _files(places: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield every file, and whether it was named itself."""
    for place in places:
        if place.is_dir():
            below = (
                path
                for path in place.rglob("*.json")
                if path.is_file() and not path.name.startswith(".")
            )
            yield from (
                (path, False) for path in sorted(below) if path.parent.name not in _NOT_RESULTS
            )
        elif place.exists():
            yield place, True
        else:
            raise CardError(f"{place} does not exist; name result cards, or folders of them")


def _resembles_card(path: Path) -> bool:
    """Tell a damaged card from a JSON file of another sort, such as the best.json of a sweep, which is whole."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(content, dict) and (
        "metrics" in content or {"learner", "format"} <= content.keys()
    )
