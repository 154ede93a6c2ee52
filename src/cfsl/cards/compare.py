"""Two cards of the same tasks: which learner is better, and by how much.

If one of them has more tasks than the other and all else is the same, they are compared on those that both have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfsl.cards.card import RESULT, Card, kind_of, share_tasks
from cfsl.cards.card_rows import percent
from cfsl.cards.collect import sound_card
from cfsl.cards.manifests import Manifests
from cfsl.cards.verify import answers_beside
from cfsl.errors import CardError
from cfsl.metrics.accuracy import Summary, summarise, task_accuracies
from cfsl.metrics.answers import Answers, first_tasks
from cfsl.metrics.paired import PairedComparison, compare

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Compared:
    """What two cards come to, side by side."""

    cards: tuple[Card, Card]
    accuracies: tuple[Summary, Summary]
    """Over the tasks that both have, worked out from the answers."""
    paired: PairedComparison
    """The first minus the second."""
    ensembles: bool
    """Whether the ensembles of both were compared; else the best epoch of each."""

    @property
    def sentence(self) -> str:
        """Say it plainly."""
        paired, names = self.paired, ("A", "B")
        tasks = f"{paired.count} task" + ("s" if paired.count > 1 else "")
        if paired.p >= SIGNIFICANT:
            return f"no difference that {tasks} can show (p = {paired.p:.2g})"
        better, worse = names if paired.difference > 0 else reversed(names)
        size = percent(abs(paired.difference), paired.ci95)
        return (
            f"{better} is better than {worse} by {size} points, over {tasks} (p = {paired.p:.2g})"
        )


def compare_cards(a: Path, b: Path, manifests: Manifests) -> Compared:
    """Compare the answers of two cards, task by task; refuse cards of different tasks, or without answers."""
    cards = _comparable(a), _comparable(b)
    if not share_tasks(cards):
        different = "; ".join(_differences(cards[0]["tasks"], cards[1]["tasks"]))
        raise CardError(f"{a} and {b} are of different tasks: {different}")
    together = all("ensemble" in card for card in cards)
    name = "ensemble" if together else ""
    count = min(card["tasks"]["count"] for card in cards)
    answers = (
        _answers(card, path, manifests, name) for card, path in zip(cards, (a, b), strict=True)
    )
    first, second = (first_tasks(one, count) for one in answers)
    accuracies = summarise(task_accuracies(first)), summarise(task_accuracies(second))
    return Compared(cards, accuracies, compare(first, second), together)


def _comparable(path: Path) -> Card:
    card = sound_card(path)
    if kind_of(card) != RESULT:
        raise CardError(
            f"{path} is a card of kind '{kind_of(card)}', which has no answers to compare"
        )
    if card["answers"] is None:
        raise CardError(
            f"{path} has no answers to compare; evaluate again with 'cfsl eval ... --out'"
        )
    return card


def _answers(card: Card, path: Path, manifests: Manifests, name: str) -> Answers:
    try:
        return answers_beside(card, path, manifests)[name]
    except KeyError:
        raise CardError(
            f"{path}: its answers are not those of a learner; see 'cfsl verify {path}'"
        ) from None
    except CardError as error:
        raise type(error)(f"{path}: {error}") from error


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Say in which fields the tasks of two cards differ."""
    before = 0
    for name in ("data", "splits", "split", "seed", "count", "sampler"):
        if a[name] != b[name]:
            before += 1
            yield f"{name} is {a[name]} and {b[name]}"
    for name in sorted(a["spec"].keys() | b["spec"].keys()):
        if a["spec"].get(name) != b["spec"].get(name):
            before += 1
            yield f"spec.{name} is {a['spec'].get(name)} and {b['spec'].get(name)}"
    if not before:
        prints = (f"{card['manifest_fingerprint'][:12]}" for card in (a, b))
        yield "their fingerprints are {} and {}".format(*prints)
