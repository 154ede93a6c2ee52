"""What the rows of a board are called: their learner, and what tells it from other rows of the same learner."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cfsl.cards.card import Card

_OF_A_COLUMN = ("seed", "episodes", "validation", "validation_tasks")
"""What the trainings of a row may differ in."""


class RowNames:
    """Names rows by learner and, where it matters, by what differs from the learner's usual settings.

    A profile chooses settings for every column, and they are one row unless a column has several; the ones that fill
    most columns need no mention. Cards of no profile have whatever settings somebody gave: all others than the usual
    ones of all boards, which are given, have rows of their own. So have different trainings with the same seed.
    """

    def __init__(self, columns: Sequence[Sequence[Card]], usual: Mapping[str, str] | None) -> None:
        """Take in the cards of all columns and, for cards of no profile, the usual settings."""
        shown: dict[str, dict[str, set[int]]] = {}
        for number, cards in enumerate(columns):
            for card in cards:
                shown.setdefault(_learner_of(card), {}).setdefault(_settings(card), set()).add(
                    number
                )
        self._usual = usual or {
            name: max(variants, key=lambda key: len(variants[key]))
            for name, variants in shown.items()
        }
        self._told_apart = {
            name
            for name, variants in shown.items()
            if usual
            or sum(len(numbers) for numbers in variants.values())
            > len(set().union(*variants.values()))
        }
        self._usual_training = _usual_training_where_several(columns)

    def of(self, card: Card) -> str:
        """Return the name of the row that a card is in."""
        name, different = _learner_of(card), []
        if name in self._told_apart:
            different.append(
                _difference(json.loads(self._usual[name]), card["learner"]["settings"])
            )
        usual_training = self._usual_training.get((name, _settings(card)))
        if usual_training is not None:
            different.append(_difference(json.loads(usual_training), json.loads(_training(card))))
        said = ", ".join(part for part in different if part)
        return f"{name} ({said})" if said else name


def usual_settings(cards: Iterable[Card]) -> dict[str, str]:
    """Return the settings that most cards of a learner have; the first ones where several have as many."""
    counted: dict[str, Counter[str]] = {}
    for card in cards:
        counted.setdefault(_learner_of(card), Counter())[_settings(card)] += 1
    return {name: settings.most_common(1)[0][0] for name, settings in counted.items()}


def seed_of(card: Card) -> int:
    """Return the training seed of a card."""
    run, notes = card.get("run") or {}, card.get("checkpoint") or {}
    if "seed" in run:
        return int(run["seed"])
    return int(notes.get("identity", {}).get("training", {}).get("seed", 0))


def _usual_training_where_several(columns: Sequence[Sequence[Card]]) -> dict[tuple[str, str], str]:
    """Return the training of most cards, by learner and settings, where a column has several with the same seed."""
    counted: dict[tuple[str, str], Counter[str]] = {}
    several = set()
    for cards in columns:
        trainings: dict[tuple[str, str, int], str] = {}
        for card in cards:
            variant, training = (_learner_of(card), _settings(card)), _training(card)
            counted.setdefault(variant, Counter())[training] += 1
            if trainings.setdefault((*variant, seed_of(card)), training) != training:
                several.add(variant)
    return {variant: counted[variant].most_common(1)[0][0] for variant in several}


def _training(card: Card) -> str:
    training = ((card.get("checkpoint") or {}).get("identity") or {}).get("training") or {}
    return json.dumps(
        {name: value for name, value in training.items() if name not in _OF_A_COLUMN},
        sort_keys=True,
    )


def _learner_of(card: Card) -> str:
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
