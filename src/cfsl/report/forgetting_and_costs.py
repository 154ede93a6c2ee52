"""What two figures show, as plain rows like those of curves.py.

One is the forgetting matrices, the other is accuracy against what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cfsl.cards.evidence import NOTHING
from cfsl.cards.schema import Card
from cfsl.metrics.accuracy import over_seeds
from cfsl.report.curves import Point
from cfsl.report.leaderboard import EvidenceByPath, Leaderboard, LeaderboardCell


@dataclass(frozen=True)
class Matrices:
    """Accuracy on each class group after each support set, for every learner of a column."""

    where: str
    columns: list[str]
    rows: list[Point]
    """With "series", "column", "x" (the group), "y" (after which set), "value" in percent, and how
    many groups are "across"."""


@dataclass(frozen=True)
class Pareto:
    """Accuracy against ATM and MACs, in every column."""

    where: str
    columns: list[str]
    rows: list[Point]
    """With "series", "column", "x" (ATM), "y", "low", "high", "macs", and whether the point is on
    the "front"."""

    @property
    def series(self) -> list[str]:
        """Who is shown, in order."""
        return list(dict.fromkeys(row["series"] for row in self.rows))


def _where(board: Leaderboard) -> str:
    return f"{board.data}, profile {board.profile}"


def _columns_by_place(boards: Iterable[Leaderboard]) -> dict[str, list[tuple[Leaderboard, str]]]:
    """Return the columns of each data set and profile; tasks of several suites are there once."""
    seen = set()
    found: dict[str, list[tuple[Leaderboard, str]]] = {}

    for board in boards:
        for column in board.columns:
            cell = next(row.cells[column] for row in board.rows if column in row.cells)
            key = (_where(board), board.splits, cell.cards[0].card.tasks.spec_hash)
            if key not in seen:
                seen.add(key)
                found.setdefault(_where(board), []).append((board, column))
    return found


def matrices_of(boards: Iterable[Leaderboard], evidence: EvidenceByPath) -> list[Matrices]:
    """Return the forgetting matrices of every data set and profile that has any."""
    made = []
    for where, columns in _columns_by_place(boards).items():
        rows = [
            point
            for board, column in columns
            for row in board.rows
            if column in row.cells and (matrix := _matrix(row.cells[column], evidence)) is not None
            for point in _matrix_points(row.label, column, matrix)
        ]
        if rows:
            made.append(Matrices(where, list(dict.fromkeys(row["column"] for row in rows)), rows))

    return made


def _matrix(cell: LeaderboardCell, evidence: EvidenceByPath) -> np.ndarray | None:
    """Return the mean over seeds; None if a seed has none, or if there is a single group."""
    found = [evidence.get(one.path, NOTHING).matrix for one in cell.cards]
    known = [matrix for matrix in found if matrix is not None]

    if (
        not known
        or len(known) < len(found)
        or len({matrix.shape for matrix in known}) > 1
        or known[0].shape[1] < 2
    ):
        return None
    return np.asarray(np.mean(known, axis=0))


def _matrix_points(learner: str, column: str, matrix: np.ndarray) -> list[Point]:
    return [
        {"series": learner, "column": column, "x": group + 1, "y": after + 1}
        | {"value": 100 * float(value), "across": matrix.shape[1]}
        for (after, group), value in np.ndenumerate(matrix)
        if not math.isnan(value)
    ]


def paretos_of(boards: Iterable[Leaderboard]) -> list[Pareto]:
    """Return accuracy against costs for every data set and profile.

    A column must have at least three learners.
    """
    made = []

    for where, columns in _columns_by_place(boards).items():
        rows: list[Point] = []
        for board, column in columns:
            points = [
                _costs(row.label, column, row.cells[column])
                for row in board.rows
                if column in row.cells and not row.breaks_law and not row.cells[column].refused
            ]
            rows += _with_front(points) if len(points) > 2 else []
        if rows:
            made.append(Pareto(where, list(dict.fromkeys(row["column"] for row in rows)), rows))
    return made


def _costs(learner: str, column: str, cell: LeaderboardCell) -> Point:
    cards = [one.card for one in cell.cards]
    mean, width = 100 * (cell.entry.mean or 0.0), 100 * (cell.entry.ci95 or 0.0)

    return {
        "series": learner,
        "column": column,
        "x": over_seeds([card.headline.atm.total for card in cards]).mean,
        "y": mean,
        "low": mean - width,
        "high": mean + width,
        "macs": over_seeds([_macs(card) for card in cards]).mean,
        "text": f"{mean:.2f} ± {width:.2f} %",
    }


def _macs(card: Card) -> float:
    """Return the MACs to learn and answer a task; those of all members of an ensemble."""
    macs = card.macs if card.ensemble is None else card.ensemble.macs
    return float(macs.adaptation + macs.prediction)


def _with_front(points: Sequence[Point]) -> list[Point]:
    """Mark the Pareto front: the points that no other point dominates in accuracy, ATM and MACs."""
    values = [(-point["y"], point["x"], point["macs"]) for point in points]
    return [
        point | {"front": not any(_beats(other, own) for other in values)}
        for point, own in zip(points, values, strict=True)
    ]


def _beats(other: tuple[float, ...], own: tuple[float, ...]) -> bool:
    return other != own and all(theirs <= ours for theirs, ours in zip(other, own, strict=True))
