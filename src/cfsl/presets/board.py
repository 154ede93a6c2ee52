"""From a folder of cards to the tables that they belong in.

A card has a place in a suite if its tasks are those of one of its columns: the test split, the usual seed. Cards of
different profiles, data sets or splits are on different boards.
"""

from __future__ import annotations

import json
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
    order = list(SUITES)
    return [
        _board(*key, columns)
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


def _board(suite: str, data: str, splits: str, profile: str, found: Mapping[str, Sequence[Found]]) -> Board:
    columns = [column for column in SUITES[suite].columns(data) if column in found]
    rows: dict[str, dict[str, list[Found]]] = {}
    for column in columns:
        for label, cards in _labelled(found[column]).items():
            rows.setdefault(label, {})[column] = sorted(cards, key=lambda one: (seed_of(one.card), one.path))
    known = [*SUITES[suite].learners, *sorted(rows)]
    return Board(
        suite,
        data,
        splits,
        profile,
        columns,
        dict(sorted(rows.items(), key=lambda row: known.index(_name(row[0], known)))),
    )


def _name(label: str, known: Sequence[str]) -> str:
    """Return the learner of a label, which may end in settings."""
    bare = label.split(" ")[0]
    return bare if bare in known else label


def _labelled(cards: Sequence[Found]) -> dict[str, list[Found]]:
    """Group the cards of a cell by learner; where one has several settings, by settings too."""
    by_learner: dict[str, dict[str, list[Found]]] = {}
    for found in cards:
        learner = found.card["learner"]
        key = json.dumps(learner["settings"], sort_keys=True)
        name = learner["name"] + (" (trained on other data)" if _is_from_elsewhere(found.card) else "")
        by_learner.setdefault(name, {}).setdefault(key, []).append(found)
    labelled = {}
    for name, variants in by_learner.items():
        if len(variants) == 1:
            labelled[name] = next(iter(variants.values()))
        else:
            first = json.loads(next(iter(variants)))
            for key, several in variants.items():
                labelled[f"{name} ({_difference(first, json.loads(key))})"] = several
    return labelled


def _is_from_elsewhere(card: Card) -> bool:
    """Whether the weights come from another data set than the tasks: they are no training seed among others."""
    trained_on = ((card.get("checkpoint") or {}).get("identity") or {}).get("data")
    return trained_on is not None and trained_on["fingerprint"] != card["tasks"]["data_fingerprint"]


def _difference(first: Any, other: Any) -> str:
    """Say what distinguishes settings: the values of fields that differ from the first ones, or 'first'."""
    if not isinstance(first, dict) or not isinstance(other, dict):
        return str(other)
    return ", ".join(_differing("", first, other)) or "first settings"


def _differing(prefix: str, first: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield each value that differs, as --set takes it: of a net, say, only what differs in it."""
    for name, value in other.items():
        before = first.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            yield from _differing(f"{prefix}{name}.", before, value)
        elif value != before:
            yield f"{prefix}{name}={value}"
