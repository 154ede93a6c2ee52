"""Boards: cards put into the tables of the suites.

A card has a place in a suite if its tasks are those of a column of the suite, drawn from the test
split with the usual seed. Cards of different profiles, data sets or splits are on different boards,
and a cell has one card for every training seed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cfsl.cards.collect import CardFile
from cfsl.cards.schema import OWN, Card, CardTasks
from cfsl.presets.suites import SUITES
from cfsl.report.row_names import RowNames, usual_settings

_HASH_DIGITS = 8


@dataclass(frozen=True)
class Board:
    """One suite on one data set in one profile."""

    suite: str
    data: str
    splits: str
    profile: str
    columns: list[str]
    """Those that have a card, in the order of the paper."""
    rows: dict[str, dict[str, list[CardFile]]] = field(default_factory=dict)
    """By learner, then by column: a card for every training seed."""
    repeats: list[CardFile] = field(default_factory=list)
    """Cards that are left out: another card of their cell has the same learner, training and seed,
    and as many tasks or more."""

    @property
    def cards(self) -> Iterator[CardFile]:
        """The cards in all cells."""
        for row in self.rows.values():
            for cell in row.values():
                yield from cell


def boards(cards: Iterable[CardFile]) -> list[Board]:
    """Return every board that has a card, in the order of the suites."""
    placed = [one for one in cards if _has_usual_tasks(one.card.tasks)]
    splits, usual = _split_names(placed), usual_settings(one.card for one in placed)

    places: dict[tuple[str, str, str, str], dict[str, list[CardFile]]] = {}
    for one in placed:
        card = one.card
        for suite, column in places_of(card.tasks):
            key = (suite, card.tasks.data, splits[_split_of(card)], card.profile_name)
            places.setdefault(key, {}).setdefault(column, []).append(one)

    order = list(SUITES)
    in_order = sorted(places.items(), key=lambda item: (order.index(item[0][0]), item[0]))
    return [_board(*key, columns, usual) for key, columns in in_order]


def _has_usual_tasks(tasks: CardTasks) -> bool:
    """Tell whether tasks are of the split and the seed that the suites take."""
    return tasks.seed == 0 and tasks.split == SUITES_SPLIT.get(tasks.data, "test")


def _split_of(card: Card) -> tuple[str, str, str]:
    """Return data set and split file by name, and the hash of what is in them."""
    tasks = card.tasks
    content = f"{tasks.splits_hash} {tasks.data_fingerprint}"
    return tasks.data, tasks.splits, hashlib.sha256(content.encode()).hexdigest()


def _split_names(cards: Iterable[CardFile]) -> dict[tuple[str, str, str], str]:
    """Return what split files are called: their names, with a hash where several share a name."""
    known = dict.fromkeys(_split_of(one.card) for one in cards)
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


def places_of(tasks: CardTasks) -> list[tuple[str, str]]:
    """Return the suites and columns that the tasks of a card belong to."""
    return columns_with(tasks.data, tasks.spec)


def columns_with(data: str, stated: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the suites and columns whose tasks on a data set have this spec."""
    return [(suite, column) for suite, column, spec in _columns(data) if spec == stated]


@cache
def _columns(data: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the suite, the name and the spec of every column that a data set has."""
    return [
        (name, column, spec.model_dump(mode="json"))
        for name, suite in SUITES.items()
        if suite.trained or data in suite.data
        for column, spec in suite.columns(data).items()
    ]


def _board(
    suite: str,
    data: str,
    splits: str,
    profile: str,
    cards: Mapping[str, Sequence[CardFile]],
    usual: Mapping[str, str],
) -> Board:
    """Put the cards of every column into rows."""
    columns = [column for column in SUITES[suite].columns(data) if column in cards]
    names = RowNames(
        [[one.card for one in cards[column]] for column in columns],
        usual if profile == OWN else None,
    )

    rows: dict[str, dict[str, list[CardFile]]] = {}
    repeats: list[CardFile] = []
    for column in columns:
        # The card with the most tasks comes first: it keeps its place when others repeat it.
        for one in sorted(cards[column], key=lambda one: (-one.card.tasks.count, one.path)):
            cell = rows.setdefault(names.of(one.card), {}).setdefault(column, [])
            seeds = {other.card.training_seed for other in cell}
            (repeats if one.card.training_seed in seeds else cell).append(one)
    for row in rows.values():
        for cell in row.values():
            cell.sort(key=lambda one: (one.card.training_seed, one.path))

    known = [*SUITES[suite].learners, *sorted(rows)]
    ordered = sorted(rows.items(), key=lambda row: (known.index(_name(row[0], known)), row[0]))
    return Board(suite, data, splits, profile, columns, dict(ordered), repeats)


def _name(label: str, known: Sequence[str]) -> str:
    """Return the learner of a label, which may end in settings."""
    bare = label.split(" ")[0]
    return bare if bare in known else label
