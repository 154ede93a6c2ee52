"""What goes on a page: cards, the boards they are on, and what was found out about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cfsl.cards.collect import CardFile, collected
from cfsl.cards.evidence import NOTHING, Evidence
from cfsl.report.board import Board, boards
from cfsl.report.images import AnsweredTask, TaskPicture, file_uri
from cfsl.report.leaderboard import Leaderboard, leaderboards, without_repeats
from cfsl.report.task_examples import task_examples

if TYPE_CHECKING:
    from cfsl.cards.evidence_reader import EvidenceReader

ProgressBar: TypeAlias = Callable[
    [str, int, str], AbstractContextManager[Callable[[int], None] | None]
]
"""Shows a bar for an activity, a total and a unit; what it gives is told how many are done."""


@dataclass(frozen=True)
class CardsOnBoards:
    """The cards at some places, each once, and the boards that they are on."""

    cards: list[CardFile]
    boards: list[Board]
    damaged: list[str]
    """What is wrong with files that should be cards."""
    others: int
    """How many files are of other kinds."""


@dataclass(frozen=True)
class SweepPicture:
    """The picture of a sweep."""

    title: str
    alt: str
    path: str
    uri: str


@dataclass(frozen=True)
class Material:
    """All that goes on a page."""

    folders: Sequence[str]
    cards: Sequence[CardFile]
    boards: Sequence[Board]
    """All of them: figures are drawn from them."""
    leaderboards: Sequence[Leaderboard]
    """Those that are shown as tables."""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    """By the path of a card; a card without any was not looked at."""
    damaged: Sequence[str] = ()
    others: int = 0
    pictures: Sequence[TaskPicture] = ()
    answered: Sequence[AnsweredTask] = ()
    sweeps: Sequence[SweepPicture] = ()
    notes: Sequence[str] = ()
    """What had to be left out, and why."""
    live: bool = False
    """Whether the page is served and asks for news."""

    def evidence_of(self, card: CardFile) -> Evidence:
        """Return the evidence of a card."""
        return self.evidence.get(card.path, NOTHING)


def cards_on_boards(places: Iterable[Path]) -> CardsOnBoards:
    """Read the cards at these places and put them on boards."""
    found = collected(places)
    # A copy in another folder is no second training seed.
    once: dict[str, CardFile] = {}
    for path, card in found.cards.items():
        text = json.dumps(card.content(), sort_keys=True)
        once.setdefault(text, CardFile(str(path), card))

    cards = list(once.values())
    return CardsOnBoards(cards, boards(cards), list(found.damaged.values()), len(found.others))


def no_progress_bar(what: str, total: int, unit: str) -> AbstractContextManager[None]:
    """Show nothing."""
    return nullcontext()


def material_at(
    places: Sequence[Path],
    reader: EvidenceReader,
    *,
    pictures: bool,
    progress_bar: ProgressBar = no_progress_bar,
) -> Material:
    """Read all cards at these places, and their answers, and return what a page says of them."""
    found = cards_on_boards(places)
    with progress_bar("reading answers", len(found.cards), "cards") as progress:
        evidence = reader.read_all(found.cards, progress)

    shown = without_repeats(found.boards)
    details: dict[str, Any] = {}
    if pictures:
        examples = task_examples(shown, evidence)
        details = {"pictures": examples.pictures, "answered": examples.answered}
        details["notes"] = examples.notes

    return Material(
        folders=[str(place) for place in places],
        cards=found.cards,
        boards=found.boards,
        leaderboards=leaderboards(shown, evidence),
        evidence=evidence,
        damaged=found.damaged,
        others=found.others,
        sweeps=sweeps_below(places),
        **details,
    )


def sweeps_below(folders: Sequence[Path]) -> list[SweepPicture]:
    """Return the pictures of the sweeps below folders, with the settings that each found best."""
    pictures = sorted(
        path for folder in folders if folder.is_dir() for path in folder.rglob("sweep.png")
    )
    found = []
    for picture in pictures:
        try:
            best = json.loads((picture.parent / "best.json").read_text(encoding="utf-8"))
            learner, changes = str(best["learner"]), best["changes"]
            uri = file_uri(picture.read_bytes())
        except (OSError, ValueError, KeyError, TypeError):
            continue

        named = ", ".join(f"{name} = {value}" for name, value in changes.items())
        chosen = named or "the usual settings"
        alt = f"Validation accuracy of the trials of a sweep of {learner}; the best has {chosen}"
        found.append(SweepPicture(f"Sweep of {learner}", alt, str(picture.parent), uri))
    return found
