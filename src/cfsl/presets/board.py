"""From a folder of cards to the tables that they belong in.

A card has a place in a suite if its tasks are those of one of its columns: the test split, the usual seed. Cards of
different profiles, data sets or splits are on different boards.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cfsl.presets.suites import SUITES
from cfsl.results.card import Card
from cfsl.spec import TaskSpec

OWN = "own"
"""The profile of a card that no suite has made."""


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


def profile_of(card: Card) -> str:
    """Return the profile of a card."""
    return str(card.get("profile") or OWN)


def seed_of(card: Card) -> int:
    """Return the training seed of a card."""
    run, notes = card.get("run") or {}, card.get("checkpoint") or {}
    if "seed" in run:
        return int(run["seed"])
    return int(notes.get("identity", {}).get("training", {}).get("seed", 0))


def boards(cards: Iterable[Found]) -> list[Board]:
    """Return every board that has a card, in the order of the suites."""
    places: dict[tuple[str, str, str, str], dict[str, list[Found]]] = {}
    for found in cards:
        tasks = found.card["tasks"]
        if tasks["split"] != SUITES_SPLIT.get(found.card["tasks"]["data"], "test") or tasks["seed"] != 0:
            continue
        for suite, column in places_of(tasks):
            key = (suite, tasks["data"], tasks["splits"], profile_of(found.card))
            places.setdefault(key, {}).setdefault(column, []).append(found)
    order, usual = list(SUITES), _usual_settings(one for columns in places.values() for one in _all_of(columns))
    return [
        _board(*key, columns, usual)
        for key, columns in sorted(places.items(), key=lambda item: (order.index(item[0][0]), item))
    ]


SUITES_SPLIT: Mapping[str, str] = {
    name: str(suite.fixed["split"]) for suite in SUITES.values() if "split" in suite.fixed for name in suite.data
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


def _all_of(columns: Mapping[str, Sequence[Found]]) -> Iterator[Found]:
    """Yield all cards of a board, column by column."""
    for cards in columns.values():
        yield from cards


def _board(
    suite: str, data: str, splits: str, profile: str, found: Mapping[str, Sequence[Found]], usual: Mapping[str, str]
) -> Board:
    columns = [column for column in SUITES[suite].columns(data) if column in found]
    rows: dict[str, dict[str, list[Found]]] = {}
    labels = _Labels([found[column] for column in columns], usual if profile == OWN else None)
    for column in columns:
        for one in sorted(found[column], key=lambda one: (seed_of(one.card), one.path)):
            rows.setdefault(labels.of(one.card), {}).setdefault(column, []).append(one)
    known = [*SUITES[suite].learners, *sorted(rows)]
    return Board(
        suite,
        data,
        splits,
        profile,
        columns,
        dict(sorted(rows.items(), key=lambda row: (known.index(_name(row[0], known)), row[0]))),
    )


def _name(label: str, known: Sequence[str]) -> str:
    """Return the learner of a label, which may end in settings."""
    bare = label.split(" ")[0]
    return bare if bare in known else label


class _Labels:
    """What the rows of a board are called: their learner and, where it matters, what differs from its usual settings.

    A profile chooses settings for every column, and they are one row unless a column has several; the ones that fill
    most columns need no mention. Cards of no profile have whatever settings somebody gave: all others than the usual
    ones of all boards, which are given, have rows of their own.
    """

    def __init__(self, columns: Sequence[Sequence[Found]], usual: Mapping[str, str] | None) -> None:
        shown: dict[str, dict[str, set[int]]] = {}
        for number, cards in enumerate(columns):
            for one in cards:
                shown.setdefault(_row_name(one.card), {}).setdefault(_settings(one.card), set()).add(number)
        self._usual = usual or {
            name: max(variants, key=lambda key: len(variants[key])) for name, variants in shown.items()
        }
        self._told_apart = {
            name
            for name, variants in shown.items()
            if usual or sum(len(numbers) for numbers in variants.values()) > len(set().union(*variants.values()))
        }

    def of(self, card: Card) -> str:
        name = _row_name(card)
        if name not in self._told_apart:
            return name
        difference = _difference(json.loads(self._usual[name]), card["learner"]["settings"])
        return f"{name} ({difference})" if difference else name


def _usual_settings(cards: Iterable[Found]) -> dict[str, str]:
    """Return the settings that most cards of a learner have; the first ones where several have as many."""
    counted: dict[str, Counter[str]] = {}
    for one in cards:
        counted.setdefault(_row_name(one.card), Counter())[_settings(one.card)] += 1
    return {name: settings.most_common(1)[0][0] for name, settings in counted.items()}


def _row_name(card: Card) -> str:
    name: str = card["learner"]["name"]
    return f"{name} (trained on other data)" if _is_from_elsewhere(card) else name


def _settings(card: Card) -> str:
    return json.dumps(card["learner"]["settings"], sort_keys=True)


def _is_from_elsewhere(card: Card) -> bool:
    """Whether the weights come from another data set than the tasks: they are no training seed among others."""
    trained_on = ((card.get("checkpoint") or {}).get("identity") or {}).get("data")
    return trained_on is not None and trained_on["fingerprint"] != card["tasks"]["data_fingerprint"]


def _difference(usual: Any, other: Any) -> str:
    """Say what distinguishes settings from the usual ones; nothing if they are the same."""
    if not isinstance(usual, dict) or not isinstance(other, dict):
        return "" if usual == other else str(other)
    return ", ".join(_differing("", usual, other))


def _differing(prefix: str, usual: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield each value that differs, as --set takes it: of a net, say, only what differs in it."""
    for name, value in other.items():
        before = usual.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            yield from _differing(f"{prefix}{name}.", before, value)
        elif name not in usual or value != before:
            yield f"{prefix}{name}={value}"
    for name in usual:
        if name not in other:
            yield f"no {prefix}{name}"
