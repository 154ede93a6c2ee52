"""What two figures that compare learners show, as plain rows like those of curves.py.

One is the order of the learners of each column, the other is paired differences from one learner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cfsl.errors import SpecError
from cfsl.metrics.accuracy import summarise
from cfsl.metrics.paired import paired_p
from cfsl.report.curves import Point
from cfsl.report.leaderboard import (
    EvidenceByPath,
    Leaderboard,
    LeaderboardRow,
    differences,
    is_ranked,
)


@dataclass(frozen=True)
class Ranking:
    """The learners of every column, the best first."""

    where: str
    rows: list[Point]
    """With "panel" (the column), "series", "label", "x" and its half "width" in percent (None for
    one task), "published" (percent or None) and its "status". Upper bounds and refused cards are
    not ranked."""


@dataclass(frozen=True)
class Differences:
    """By how many points learners are better than one of them, on the same tasks."""

    where: str
    against: str
    columns: list[str]
    rows: list[Point]
    """With "column", "series", "x" and its half "width" in points (None for one task), and "p" of
    the paired test. Upper bounds and refused cards are left out, but others may be compared with an
    upper bound."""


def only(
    boards: Iterable[Leaderboard], learners: Sequence[str], columns: Sequence[str]
) -> list[Leaderboard]:
    """Leave out other learners and columns than those that are named; refuse unknown names.

    Where no learner or no column is named, all of them stay.
    """
    boards = list(boards)
    _refuse_unknown("learner", learners, [row.label for board in boards for row in board.rows])
    _refuse_unknown("column", columns, [column for board in boards for column in board.columns])
    kept = []
    for board in boards:
        shown = {
            name: what for name, what in board.columns.items() if not columns or name in columns
        }
        rows = [
            replace(
                row, cells={column: cell for column, cell in row.cells.items() if column in shown}
            )
            for row in board.rows
            if not learners or row.label in learners
        ]
        rows = [row for row in rows if row.cells]
        if rows:
            kept.append(replace(board, columns=shown, rows=rows))
    return kept


def _refuse_unknown(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            there = ", ".join(dict.fromkeys(known)) or "none"
            raise SpecError(f"no card here is of the {what} '{name}'; there are: {there}")


def rankings_of(boards: Iterable[Leaderboard]) -> list[Ranking]:
    """Return the order of the learners of each board that has two to compare in a column."""
    made = (Ranking(_where(board), [*_ranking_points(board)]) for board in boards)
    return [ranking for ranking in made if ranking.rows]


def _where(board: Leaderboard) -> str:
    return f"{board.suite} on {board.data}, splits {board.splits}, profile {board.profile}"


def _ranking_points(board: Leaderboard) -> Iterator[Point]:
    for column in board.columns:
        rows = [row for row in board.rows if column in row.cells and is_ranked(row, column)]
        rows.sort(key=lambda row: -(row.cells[column].entry.mean or 0.0))

        for row in rows if len(rows) > 1 else ():
            entry = row.cells[column].entry
            yield {
                "panel": column,
                "series": row.label,
                "label": _marked(row),
                "x": 100 * (entry.mean or 0.0),
                "width": None if entry.ci95 is None else 100 * entry.ci95,
                "published": None if entry.published is None else 100 * entry.published.accuracy,
                "status": None if entry.published is None else entry.published.status,
            }


def _marked(row: LeaderboardRow) -> str:
    return f"{row.label}, transductive" if row.transductive else row.label


def differences_of(
    boards: Iterable[Leaderboard], evidence: EvidenceByPath, against: str
) -> list[Differences]:
    """Return the paired differences of every board with two learners' answers to the same tasks."""
    made = []
    for board in boards:
        base = next((row for row in board.rows if row.label == against), None)
        if base is not None:
            rows = [*_difference_points(board, base, evidence)]
            columns = [
                column for column in board.columns if any(row["column"] == column for row in rows)
            ]
            made.append(Differences(_where(board), against, columns, rows))

    return [one for one in made if one.rows]


def _difference_points(
    board: Leaderboard, base: LeaderboardRow, evidence: EvidenceByPath
) -> Iterator[Point]:
    for row in (row for row in board.rows if row is not base):
        for column in (
            column for column in board.columns if column in row.cells and column in base.cells
        ):
            if not is_ranked(row, column):
                continue
            found = differences(row.cells[column], base.cells[column], evidence)
            if found is not None:
                summary = summarise(found)
                yield {
                    "column": column,
                    "series": _marked(row),
                    "x": 100 * summary.mean,
                    "width": None if summary.ci95 is None else 100 * summary.ci95,
                    "p": paired_p(found),
                }
