"""The names of the rows of a board: a learner, and what tells its rows from each other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cfsl.cards.schema import Card

_OF_A_COLUMN = ("seed", "episodes", "validation", "validation_tasks")
"""Fields in which the trainings of one row may differ."""


class RowNames:
    """Names rows by learner and, where it matters, by what differs from its usual settings.

    A profile chooses settings for every column. They are one row unless a column has several; the
    settings that fill most columns need no mention. Cards of no profile have the settings that
    somebody gave: all but the usual settings of all boards have rows of their own. So have
    different trainings with the same seed.
    """

    def __init__(self, columns: Sequence[Sequence[Card]], usual: Mapping[str, str] | None) -> None:
        """Take in the cards of all columns and, for cards of no profile, the usual settings."""
        places: dict[str, dict[str, set[int]]] = {}
        """By learner, then by settings: the columns that have cards with them."""
        for number, cards in enumerate(columns):
            for card in cards:
                of_learner = places.setdefault(_learner_of(card), {})
                of_learner.setdefault(_settings(card), set()).add(number)

        self._usual = usual or {
            name: max(variants, key=lambda key: len(variants[key]))
            for name, variants in places.items()
        }
        self._told_apart = {
            name for name, variants in places.items() if usual or _share_a_column(variants)
        }
        self._usual_training = _usual_training_where_several(columns)

    def of(self, card: Card) -> str:
        """Return the name of the row that a card is in."""
        name, different = _learner_of(card), []
        if name in self._told_apart:
            different.append(_difference(json.loads(self._usual[name]), card.learner.settings))
        usual_training = self._usual_training.get((name, _settings(card)))
        if usual_training is not None:
            different.append(_difference(json.loads(usual_training), json.loads(_training(card))))

        said = ", ".join(part for part in different if part)
        return f"{name} ({said})" if said else name


def _share_a_column(variants: Mapping[str, set[int]]) -> bool:
    """Tell whether any column has cards with several settings of one learner."""
    return sum(map(len, variants.values())) > len(set().union(*variants.values()))


def usual_settings(cards: Iterable[Card]) -> dict[str, str]:
    """Return the settings that most cards of each learner have; of as many, the first ones."""
    counted: dict[str, Counter[str]] = {}
    for card in cards:
        counted.setdefault(_learner_of(card), Counter())[_settings(card)] += 1
    return {name: settings.most_common(1)[0][0] for name, settings in counted.items()}


def _usual_training_where_several(columns: Sequence[Sequence[Card]]) -> dict[tuple[str, str], str]:
    """Return the training of most cards, where a column has several with the same seed.

    The keys are learner and settings.
    """
    counted: dict[tuple[str, str], Counter[str]] = {}
    several = set()
    for cards in columns:
        trainings: dict[tuple[str, str, int], str] = {}
        for card in cards:
            variant, training = (_learner_of(card), _settings(card)), _training(card)
            counted.setdefault(variant, Counter())[training] += 1
            if trainings.setdefault((*variant, card.training_seed), training) != training:
                several.add(variant)
    return {variant: counted[variant].most_common(1)[0][0] for variant in several}


def _training(card: Card) -> str:
    """Return the training of a card as JSON, without what may differ from column to column."""
    training = {} if card.training is None else card.training.content()
    kept = {name: value for name, value in training.items() if name not in _OF_A_COLUMN}
    return json.dumps(kept, sort_keys=True)


def _learner_of(card: Card) -> str:
    name = card.learner.name
    return f"{name} (trained on other data)" if _is_from_other_data(card) else name


def _settings(card: Card) -> str:
    return json.dumps(card.learner.settings, sort_keys=True)


def _is_from_other_data(card: Card) -> bool:
    """Tell whether the weights come from another data set than the tasks.

    Such a card is not one training seed among others.
    """
    identity = None if card.checkpoint is None else card.checkpoint.identity
    if identity is None or identity.data is None:
        return False
    return identity.data.fingerprint != card.tasks.data_fingerprint


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
