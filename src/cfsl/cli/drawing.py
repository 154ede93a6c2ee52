"""Which figure is wanted, and from what it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cfsl.errors import SpecError, lookup
from cfsl.presets.board import Board, Found
from cfsl.presets.suites import SUITES
from cfsl.report.clouds import Matrices, matrices_of, paretos_of
from cfsl.report.contests import Differences, differences_of, only, rankings_of
from cfsl.report.evidence import Evidence
from cfsl.report.leaderboard import Leaderboard, leaderboards, without_repeats
from cfsl.report.series import learning_curves, lines_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = ("figure3", "figure4", "scaling", "instance", "corruption")
_Shown = TypeVar("_Shown")


@dataclass(frozen=True)
class Wanted:
    """Which part of the cards a figure shows; nothing named is everything."""

    columns: Sequence[str] = ()
    learners: Sequence[str] = ()
    against: str | None = None
    suite: str | None = None


def drawn(name: str, boards: Sequence[Board], cards: Sequence[Found], wanted: Wanted, manifests: Path | None) -> Figure:
    """Draw a figure; refuse one that there are no cards for, or that could be several."""
    from cfsl.report.figures import (
        differences_figure,
        lines_figure,
        matrices_figure,
        pareto_figure,
        ranking_figure,
    )

    makers: Mapping[str, Callable[[], Figure]] = {
        **dict.fromkeys(
            _LINES,
            lambda: lines_figure(
                _one(name, [line for line in lines_of(boards) if line.figure == name], lambda line: line.where)
            ),
        ),
        "learning": lambda: lines_figure(_one(name, learning_curves(_on(boards, cards)), lambda line: line.where)),
        "pareto": lambda: pareto_figure(
            _one(name, paretos_of(leaderboards(without_repeats(boards), {})), lambda cloud: cloud.where)
        ),
        "forgetting": lambda: matrices_figure(*_matrices(boards, wanted, manifests)),
        "ranking": lambda: ranking_figure(
            _one(
                name,
                rankings_of(only(leaderboards(_of_suite(boards, wanted), {}), wanted.learners, wanted.columns)),
                lambda one: one.where,
            )
        ),
        "paired": lambda: differences_figure(_differences(boards, wanted, manifests)),
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


def _one(name: str, found: Sequence[_Shown], where: Callable[[_Shown], str]) -> _Shown:
    if not found:
        raise SpecError(f"there are no cards for {name} here; 'cfsl bench' makes them")
    if len(found) > 1:
        places = "; ".join(where(one) for one in found)
        raise SpecError(f"there are {len(found)} figures {name}: {places}. Choose one with --data and --profile")
    return found[0]


def _on(boards: Sequence[Board], cards: Sequence[Found]) -> list[Found]:
    """Return the cards that are on these boards; all of them if there are no boards."""
    paths = {one.path for board in boards for row in board.rows.values() for cell in row.values() for one in cell}
    return [found for found in cards if found.path in paths] if boards else list(cards)


def _of_suite(boards: Sequence[Board], wanted: Wanted) -> list[Board]:
    suite = wanted.suite or "table1"
    lookup(SUITES, suite, "suite")
    found = [board for board in boards if board.suite == suite]
    if not found:
        raise SpecError(f"no card here belongs to {suite}; --suite has others")
    return found


def _differences(boards: Sequence[Board], wanted: Wanted, manifests: Path | None) -> Differences:
    if wanted.against is None:
        raise SpecError("say whom the others are compared with: --against LEARNER")
    ranked, evidence = _with_evidence(_of_suite(boards, wanted), manifests)
    only(ranked, [wanted.against], ())
    shown = only(ranked, [*wanted.learners, wanted.against] if wanted.learners else (), wanted.columns)
    return _one("paired", differences_of(shown, evidence, wanted.against), lambda one: one.where)


def _matrices(boards: Sequence[Board], wanted: Wanted, manifests: Path | None) -> tuple[Matrices, str]:
    """Return the matrices, and which column is wanted."""
    if len(wanted.columns) > 1:
        raise SpecError(f"the figure forgetting shows one column, not {len(wanted.columns)}")
    found = matrices_of(*_with_evidence(without_repeats(boards), manifests))
    fitting = [one for one in found if all(column in one.columns for column in wanted.columns)]
    chosen = _one("forgetting", fitting, lambda one: one.where)
    return chosen, [*wanted.columns, *chosen.columns][0]


def _with_evidence(boards: Sequence[Board], manifests: Path | None) -> tuple[list[Leaderboard], dict[str, Evidence]]:
    """Rank the boards by what the answers of their cards say."""
    from cfsl.cli.gathering import Gatherer

    cards = [one for board in boards for row in board.rows.values() for cell in row.values() for one in cell]
    evidence = dict(Gatherer(manifests, verify=False).evidence(cards))
    return leaderboards(boards, evidence), evidence
