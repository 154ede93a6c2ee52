"""Many cards: those that are named, and all below folders that are named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cfsl.cards.card import RESULT, checked_card, kind_of, read_content
from cfsl.cards.schema import Card
from cfsl.errors import CardError

_NOT_RESULTS = ("aside", "failed")
"""Folders of a bench with what was damaged or went wrong."""


class CardFile(NamedTuple):
    """A card, and the file it was read from."""

    path: str
    card: Card


@dataclass(frozen=True)
class Collection:
    """The cards that were found, by path, in the order of names and folders."""

    cards: dict[Path, Card] = field(default_factory=dict)
    damaged: dict[Path, str] = field(default_factory=dict)
    """What is wrong with files that should be cards."""
    others: list[Path] = field(default_factory=list)
    """Cards of other kinds, such as choices, and JSON files below a folder that are no cards."""


def collected(places: Iterable[Path]) -> Collection:
    """Read all result cards in these files and folders; refuse what does not exist."""
    found = Collection()
    for path, is_named in _files(places):
        try:
            content = read_content(path)
            if kind_of(content) == RESULT:
                found.cards[path] = checked_card(content, path)
            else:
                found.others.append(path)
        except CardError as error:
            if is_named or _resembles_card(path):
                found.damaged[path] = str(error)
            else:
                found.others.append(path)

    return found


def _files(places: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield every file, and whether it was named itself."""
    for place in places:
        if place.is_dir():
            for path in sorted(place.rglob("*.json")):
                is_hidden = path.name.startswith(".")
                if path.is_file() and not is_hidden and path.parent.name not in _NOT_RESULTS:
                    yield path, False
        elif place.exists():
            yield place, True
        else:
            raise CardError(f"{place} does not exist; name result cards, or folders of them")


def _resembles_card(path: Path) -> bool:
    """Tell a damaged card from a JSON file of another sort, such as the best.json of a sweep."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(content, dict) and (
        "metrics" in content or {"learner", "format"} <= content.keys()
    )
