"""Which figure is wanted, and from what it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cfsl.errors import SpecError, lookup
from cfsl.presets.board import Board, Found
from cfsl.report.clouds import Matrices, matrices_of, paretos_of
from cfsl.report.evidence import Evidence
from cfsl.report.leaderboard import Leaderboard, leaderboards, without_repeats
from cfsl.report.series import learning_curves, lines_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = ("figure3", "figure4", "scaling", "instance", "corruption")
_Shown = TypeVar("_Shown")


def drawn(
    name: str, boards: Sequence[Board], cards: Sequence[Found], column: str | None, manifests: Path | None
) -> Figure:
    """Draw a figure; refuse one that there are no cards for, or that could be several."""
    from cfsl.report.figures import lines_figure, matrices_figure, pareto_figure

    makers: Mapping[str, Callable[[], Figure]] = {
        **dict.fromkeys(
            _LINES,
            lambda: lines_figure(
                _one(name, [line for line in lines_of(boards) if line.figure == name], lambda line: line.where)
            ),
        ),
        "learning": lambda: lines_figure(_one(name, learning_curves(_on(boards, cards)), lambda line: line.where)),
        "pareto": lambda: pareto_figure(_one(name, paretos_of(_ranked(boards, {})), lambda cloud: cloud.where)),
        "forgetting": lambda: matrices_figure(*_matrices(boards, column, manifests)),
    }
    return lookup(makers, name, "figure")()


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


def _ranked(boards: Sequence[Board], evidence: Mapping[str, Evidence]) -> list[Leaderboard]:
    return leaderboards(without_repeats(boards), evidence)


def _matrices(boards: Sequence[Board], column: str | None, manifests: Path | None) -> tuple[Matrices, str]:
    """Return the matrices, and which column is wanted."""
    from cfsl.cli.gathering import Gatherer

    kept = without_repeats(boards)
    cards = [one for board in kept for row in board.rows.values() for cell in row.values() for one in cell]
    evidence = dict(Gatherer(manifests, verify=False).evidence(cards))
    found = matrices_of(leaderboards(kept, evidence), evidence)
    fitting = [one for one in found if column is None or column in one.columns]
    chosen = _one("forgetting", fitting, lambda one: one.where)
    return chosen, column or chosen.columns[0]
