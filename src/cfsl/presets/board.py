"""From a folder of cards to the tables that they belong in.

A card has a place in a suite if its tasks are those of one of its columns: the test split, the usual seed. Cards of
different profiles, data sets or splits are on different boards, and a cell has one card for every training seed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cfsl.cards.card import Card
from cfsl.presets.row_names import RowNames, seed_of, usual_settings
from cfsl.presets.suites import SUITES
from cfsl.spec import TaskSpec

OWN = "own"
"""The profile of a card that no suite has made."""
_HASH_DIGITS = 8


class Found(NamedTuple):
    """A card, and where it was found."""

    path: str
    card: Card


@dataclass(frozen=True)
class Board:
    """One suite on one data set in one profile."""

    suite: str
    data: str
    splits: str
    profile: str
    columns: list[str]
    """Those that have a card, in the order of the paper."""
    rows: dict[str, dict[str, list[Found]]] = field(default_factory=dict)
    """By learner, then by column: a card for every training seed."""
    repeats: list[Found] = field(default_factory=list)
    """Cards with the learner, the training and the seed of another in their cell, which has as many tasks or more."""


def profile_of(card: Card) -> str:
    """Return the profile of a card."""
    return str(card.get("profile") or OWN)


def boards(cards: Iterable[Found]) -> list[Board]:
    """Return every board that has a card, in the order of the suites."""
    placed = [
        found
        for found in cards
        if found.card["tasks"]["split"] == SUITES_SPLIT.get(found.card["tasks"]["data"], "test")
        and found.card["tasks"]["seed"] == 0
    ]
    splits, usual = _split_names(placed), usual_settings(found.card for found in placed)
    places: dict[tuple[str, str, str, str], dict[str, list[Found]]] = {}
    for found in placed:
        tasks = found.card["tasks"]
        for suite, column in places_of(tasks):
            key = (suite, tasks["data"], splits[_split_of(found.card)], profile_of(found.card))
            places.setdefault(key, {}).setdefault(column, []).append(found)
    order = list(SUITES)
    return [
        _board(*key, columns, usual)
        for key, columns in sorted(
            places.items(), key=lambda item: (order.index(item[0][0]), item[0])
        )
    ]


def _split_of(card: Card) -> tuple[str, str, str]:
    """Return data set and split file by name, and the hash of what is in them."""
    tasks = card["tasks"]
    content = f"{tasks['splits_hash']} {tasks['data_fingerprint']}"
    return tasks["data"], tasks["splits"], hashlib.sha256(content.encode()).hexdigest()


def _split_names(cards: Iterable[Found]) -> dict[tuple[str, str, str], str]:
    """Return what split files are called: by their name, and by the start of the hash if there are several of it."""
    known = dict.fromkeys(_split_of(found.card) for found in cards)
    named = Counter((data, name) for data, name, _ in known)
    return {
        key: key[1] if named[key[:2]] == 1 else f"{key[1]} {key[2][:_HASH_DIGITS]}" for key in known
    }


SUITES_SPLIT: Mapping[str, str] = {
    name: str(suite.fixed["split"])
    for suite in SUITES.values()
    if "split" in suite.fixed
    for name in suite.data
}
"""Data sets that a suite takes another split of than test."""


def places_of(tasks: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the suites and columns that tasks belong to."""
    found = []
    for name, suite in SUITES.items():
        if not suite.trained and tasks["data"] not in suite.data:
            continue
        for column, spec in suite.columns(tasks["data"]).items():
            if _same(spec, tasks["spec"]):
                found.append((name, column))
    return found


def _same(spec: TaskSpec, stated: Mapping[str, Any]) -> bool:
    return spec.model_dump(mode="json") == stated


def _board(
    suite: str,
    data: str,
    splits: str,
    profile: str,
    found: Mapping[str, Sequence[Found]],
    usual: Mapping[str, str],
) -> Board:
    columns = [column for column in SUITES[suite].columns(data) if column in found]
    rows: dict[str, dict[str, list[Found]]] = {}
    repeats: list[Found] = []
    names = RowNames(
        [[one.card for one in found[column]] for column in columns],
        usual if profile == OWN else None,
    )
    for column in columns:
        for one in sorted(found[column], key=lambda one: (-one.card["tasks"]["count"], one.path)):
            cell = rows.setdefault(names.of(one.card), {}).setdefault(column, [])
            is_repeat = any(seed_of(other.card) == seed_of(one.card) for other in cell)
            (repeats if is_repeat else cell).append(one)
    for row in rows.values():
        for cell in row.values():
            cell.sort(key=lambda one: (seed_of(one.card), one.path))
    known = [*SUITES[suite].learners, *sorted(rows)]
    ordered = sorted(rows.items(), key=lambda row: (known.index(_name(row[0], known)), row[0]))
    return Board(suite, data, splits, profile, columns, dict(ordered), repeats)


def _name(label: str, known: Sequence[str]) -> str:
    """Return the learner of a label, which may end in settings."""
    bare = label.split(" ")[0]
    return bare if bare in known else label
