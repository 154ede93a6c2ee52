"""Chooses the figure that was asked for, and the boards that it is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from cfsl.cards.collect import CardFile
from cfsl.cards.evidence import Evidence
from cfsl.errors import SpecError, lookup
from cfsl.presets.suites import SUITES
from cfsl.report.board import Board
from cfsl.report.curves import learning_curves, lines_of
from cfsl.report.forgetting_and_costs import Matrices, matrices_of, paretos_of
from cfsl.report.leaderboard import Leaderboard, leaderboards, places, without_repeats
from cfsl.report.rankings import Differences, Ranking, differences_of, only, rankings_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = ("figure3", "figure4", "scaling", "instance", "corruption")
_Shown = TypeVar("_Shown")


@runtime_checkable
class ReadEvidence(Protocol):
    """Reads the answers of cards; `verify` checks every number, too."""

    def __call__(self, cards: Sequence[CardFile], *, verify: bool) -> Mapping[str, Evidence]:
        """Return the evidence of every card, by its path."""


@dataclass(frozen=True)
class Wanted:
    """Which part of the cards a figure shows."""

    columns: Sequence[str] = ()
    """Nothing named is everything; so for learners."""
    learners: Sequence[str] = ()
    against: str | None = None
    suite: str | None = None
    """Nothing named is table1."""


def drawn(
    name: str,
    boards: Sequence[Board],
    cards: Sequence[CardFile],
    wanted: Wanted,
    read_evidence: ReadEvidence,
) -> Figure:
    """Draw a figure; refuse one that there are no cards for, or that could be several."""
    from cfsl.report.figures import (
        differences_figure,
        lines_figure,
        matrices_figure,
        pareto_figure,
        ranking_figure,
    )

    def curves() -> Figure:
        fitting = [lines for lines in lines_of(boards) if lines.figure == name]
        return lines_figure(_only_one(name, fitting, lambda lines: lines.where))

    def learning() -> Figure:
        found = learning_curves(_on(boards, cards))
        return lines_figure(_only_one(name, found, lambda lines: lines.where))

    def pareto() -> Figure:
        found = paretos_of(leaderboards(without_repeats(boards), {}))
        return pareto_figure(_only_one(name, found, lambda pareto: pareto.where))

    makers: Mapping[str, Callable[[], Figure]] = {
        **dict.fromkeys(_LINES, curves),
        "learning": learning,
        "pareto": pareto,
        "forgetting": lambda: matrices_figure(*_matrices(boards, wanted, read_evidence)),
        "ranking": lambda: ranking_figure(_ranking(boards, wanted, read_evidence)),
        "paired": lambda: differences_figure(_differences(boards, wanted, read_evidence)),
    }
    maker = lookup(makers, name, "figure")
    _refuse_unused(name, wanted)
    return maker()


_USES = {
    "forgetting": {"columns"},
    "ranking": {"columns", "learners", "suite"},
    "paired": {"columns", "learners", "suite", "against"},
}


def _refuse_unused(name: str, wanted: Wanted) -> None:
    """Refuse what would change nothing in this figure."""
    for option, value in vars(wanted).items():
        if value and option not in _USES.get(name, ()):
            able = ", ".join(figure for figure, options in _USES.items() if option in options)
            raise SpecError(f"--{option} says nothing to the figure {name}; it is for: {able}")


def _only_one(name: str, found: Sequence[_Shown], where: Callable[[_Shown], str]) -> _Shown:
    if not found:
        raise SpecError(f"there are no cards for {name} here; 'cfsl bench' makes them")
    if len(found) > 1:
        places = "; ".join(where(one) for one in found)
        raise SpecError(
            f"there are {len(found)} figures {name}: {places}. "
            "Choose one with --data, --splits and --profile"
        )
    return found[0]


def _on(boards: Sequence[Board], cards: Sequence[CardFile]) -> list[CardFile]:
    """Return the cards that are on these boards; all of them if there are no boards."""
    paths = {one.path for board in boards for one in board.cards}
    return [found for found in cards if found.path in paths] if boards else list(cards)


def _of_suite(boards: Sequence[Board], wanted: Wanted) -> list[Board]:
    """Return the boards of the suite that is wanted; say which suites there are if it has none."""
    suite = wanted.suite or "table1"
    if not lookup(SUITES, suite, "suite").trained:
        raise SpecError(
            f"nobody is trained in {suite}, so that nobody is better; it measures costs"
        )

    found = [board for board in boards if board.suite == suite]
    if not found:
        there = ", ".join(dict.fromkeys(board.suite for board in boards)) or "none"
        raise SpecError(
            f"no card that is wanted belongs to {suite}; "
            f"--suite chooses among those there are: {there}"
        )
    return found


def _shown(
    boards: Sequence[Board], wanted: Wanted, learners: Sequence[str], read_evidence: ReadEvidence
) -> tuple[list[Leaderboard], Mapping[str, Evidence]]:
    """Return what is wanted of some boards, and what its answers say.

    Cards that `cfsl verify` refuses are not ranked.
    """
    unverified = only(leaderboards(boards, {}), learners, wanted.columns)
    shown = [one for _, _, _, cell in places(unverified) for one in cell.cards]
    evidence = read_evidence(shown, verify=True)
    return only(leaderboards(boards, evidence), learners, wanted.columns), evidence


def _ranking(boards: Sequence[Board], wanted: Wanted, read_evidence: ReadEvidence) -> Ranking:
    suite = _of_suite(boards, wanted)
    shown, _ = _shown(suite, wanted, wanted.learners, read_evidence)
    found = rankings_of(shown)
    if not found:
        raise SpecError(
            "there is nobody to compare: a ranking takes two learners with cards of the same column"
        )
    return _only_one("ranking", found, lambda one: one.where)


def _differences(
    boards: Sequence[Board], wanted: Wanted, read_evidence: ReadEvidence
) -> Differences:
    if wanted.against is None:
        raise SpecError("say whom the others are compared with: --against LEARNER")
    suite = _of_suite(boards, wanted)
    # An unknown learner is refused before any answer is read.
    only(leaderboards(suite, {}), [wanted.against], wanted.columns)

    others = [*wanted.learners, wanted.against] if wanted.learners else ()
    shown, evidence = _shown(suite, wanted, others, read_evidence)
    found = differences_of(shown, evidence, wanted.against)
    if not found:
        raise SpecError(
            f"there is nobody to compare: a paired test takes answers of {wanted.against} "
            "and of another learner to the same tasks, beside their cards"
        )
    return _only_one("paired", found, lambda one: one.where)


def _matrices(
    boards: Sequence[Board], wanted: Wanted, read_evidence: ReadEvidence
) -> tuple[Matrices, str]:
    """Return the matrices, and which column is wanted."""
    if len(wanted.columns) > 1:
        raise SpecError(f"the figure forgetting shows one column, not {len(wanted.columns)}")

    kept = without_repeats(boards)
    cards = [one for board in kept for one in board.cards]
    evidence = read_evidence(cards, verify=False)
    found = matrices_of(leaderboards(kept, evidence), evidence)
    fitting = [one for one in found if all(column in one.columns for column in wanted.columns)]
    if found and not fitting:
        there = ", ".join(dict.fromkeys(column for one in found for column in one.columns))
        raise SpecError(
            f"no card that was asked along the way is of column {wanted.columns[0]}; "
            f"there are: {there}"
        )

    chosen = _only_one("forgetting", fitting, lambda one: one.where)
    return chosen, [*wanted.columns, *chosen.columns][0]
