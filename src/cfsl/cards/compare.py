"""Two cards of the same tasks: which learner is better, and by how much.

If one of them has more tasks than the other and all else is the same, they are compared on the
tasks that both have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cfsl.cards.card import RESULT, checked_card, kind_of, read_content, share_tasks
from cfsl.cards.card_rows import percent
from cfsl.cards.manifests import Manifests
from cfsl.cards.schema import Card, CardTasks
from cfsl.cards.verify import stated_answers
from cfsl.errors import CardError
from cfsl.metrics.accuracy import Summary, summarise, task_accuracies
from cfsl.metrics.answers import Answers, first_tasks
from cfsl.metrics.paired import PairedComparison, compare

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Compared:
    """Two cards, side by side."""

    cards: tuple[Card, Card]
    accuracies: tuple[Summary, Summary]
    """Over the tasks that both have, worked out from the answers."""
    paired: PairedComparison
    """The first minus the second."""
    ensembles: bool
    """Whether the ensembles of both were compared; else the best epoch of each."""

    @property
    def sentence(self) -> str:
        """Say which is better."""
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
    """Compare the answers of two cards, task by task.

    Refuse cards of different tasks, or without answers.
    """
    cards = _comparable(a), _comparable(b)
    if not share_tasks(cards):
        different = "; ".join(_differences(cards[0].tasks, cards[1].tasks))
        raise CardError(f"{a} and {b} are of different tasks: {different}")

    ensembles = all(card.ensemble is not None for card in cards)
    part = "ensemble" if ensembles else ""
    count = min(card.tasks.count for card in cards)
    first, second = (
        first_tasks(_answers(card, path, manifests, part), count)
        for card, path in zip(cards, (a, b), strict=True)
    )

    accuracies = summarise(task_accuracies(first)), summarise(task_accuracies(second))
    return Compared(cards, accuracies, compare(first, second), ensembles)


def _comparable(path: Path) -> Card:
    content = read_content(path)
    kind = kind_of(content)
    if kind != RESULT:
        raise CardError(f"{path} is a card of kind '{kind}', which has no answers to compare")

    card = checked_card(content, path)
    if card.answers is None:
        raise CardError(
            f"{path} has no answers to compare; evaluate again with 'cfsl eval ... --out'"
        )
    return card


def _answers(card: Card, path: Path, manifests: Manifests, part: str) -> Answers:
    try:
        return stated_answers(card, path, manifests)[part]
    except KeyError:
        raise CardError(
            f"{path}: its answers are not those of a learner; see 'cfsl verify {path}'"
        ) from None
    except CardError as error:
        raise type(error)(f"{path}: {error}") from error


def _differences(a: CardTasks, b: CardTasks) -> Iterator[str]:
    """Say in which fields the tasks of two cards differ."""
    pairs = {
        name: (getattr(a, name), getattr(b, name))
        for name in ("data", "splits", "split", "seed", "count", "sampler")
    }
    for name in sorted(a.spec.keys() | b.spec.keys()):
        pairs[f"spec.{name}"] = a.spec.get(name), b.spec.get(name)

    different = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    for name, (ours, theirs) in different.items():
        yield f"{name} is {ours} and {theirs}"
    if not different:
        prints = a.manifest_fingerprint[:12], b.manifest_fingerprint[:12]
        yield "their fingerprints are {} and {}".format(*prints)
