"""Boards with a ranking: the best learner of a column, and those that cannot be told from it.

A learner ties with the best if a paired t test on the tasks that both have has p of at least 0.05.
Without the answers of both there is no test: then the best mean alone is marked, and the board says
so. A learner that breaks the data-flow law is an upper bound and is not ranked; nor is a card that
`cfsl verify` refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cfsl.cards.card import share_tasks
from cfsl.cards.collect import CardFile
from cfsl.cards.evidence import NOTHING, Evidence
from cfsl.cards.published import published_cell
from cfsl.metrics.accuracy import PerTask
from cfsl.metrics.paired import paired_p
from cfsl.presets.suites import SUITES
from cfsl.report.board import Board
from cfsl.report.draw_task import describe_spec
from cfsl.report.tables import Entry, entry_of

SIGNIFICANT = 0.05
Mark = Literal["best", "tied", ""]
EvidenceByPath = Mapping[str, Evidence]


@dataclass(frozen=True)
class LeaderboardCell:
    """One learner in one column."""

    entry: Entry
    cards: tuple[CardFile, ...]
    """One a training seed."""
    mark: Mark = ""
    """Among all that are ranked."""
    mark_inductive: Mark = ""
    """Among those that do not look at all targets together."""
    p: float | None = None
    """Of the paired test against the best, where there could be one."""
    refused: bool = False


@dataclass(frozen=True)
class LeaderboardRow:
    """One learner."""

    label: str
    learner: str
    transductive: bool
    breaks_law: bool
    cells: Mapping[str, LeaderboardCell]
    """By column; those without a card have none."""


@dataclass(frozen=True)
class Leaderboard:
    """One suite on one data set in one profile, ranked."""

    suite: str
    data: str
    splits: str
    profile: str
    columns: Mapping[str, str]
    """What each is, in words."""
    rows: Sequence[LeaderboardRow]
    untested: tuple[str, ...]
    """Columns whose best could not be tested against every other.

    Predictions are missing, or tasks differ."""
    repeats: int = 0
    """How many cards are left out, since another has their learner, training and seed."""

    @property
    def title(self) -> str:
        """Say which board this is."""
        return f"{self.suite} on {self.data}"

    @property
    def what(self) -> str:
        """Say what the suite is."""
        return SUITES[self.suite].what

    @property
    def untested_words(self) -> str:
        """Name the columns without a full test."""
        if len(self.untested) == len(self.columns):
            return "every column"
        return ", ".join(self.untested)

    @property
    def entries(self) -> dict[str, dict[str, Entry]]:
        """By learner, then by column."""
        return {
            row.label: {column: cell.entry for column, cell in row.cells.items()}
            for row in self.rows
        }

    @property
    def repeats_words(self) -> str:
        """Say how many cards are left out, if there are any."""
        if not self.repeats:
            return ""
        cards = "1 card is" if self.repeats == 1 else f"{self.repeats} cards are"
        return (
            f"{cards} left out: another has the same learner, training and seed, "
            "and as many tasks or more."
        )

    @property
    def has_ensembles(self) -> bool:
        """Whether several epochs of a run answer together in any cell."""
        return any(cell.entry.members > 1 for row in self.rows for cell in row.cells.values())

    @property
    def has_published(self) -> bool:
        """Whether a paper has a number for any cell."""
        return any(cell.entry.published for row in self.rows for cell in row.cells.values())


def leaderboards(boards: Iterable[Board], evidence: EvidenceByPath) -> list[Leaderboard]:
    """Rank every board."""
    return [_leaderboard(board, evidence) for board in boards]


def without_repeats(boards: Sequence[Board]) -> list[Board]:
    """Leave out boards all of whose cards are on another board of the same profile.

    A board for which a paper has numbers of its own stays. Boards of costs are left out, too (the
    accuracies of Figure 4 mean nothing), and the suite 'smoke' of the papers' data sets.
    """
    kept = [board for board in boards if _has_own_accuracies(board)]
    paths = [_paths(board) for board in kept]
    return [
        board
        for place, board in enumerate(kept)
        if _has_papers_numbers(board)
        or not any(
            _are_alike(board, other)
            # Of two boards of the same cards, the later one stays.
            and (paths[place] < paths[rival] or (paths[place] == paths[rival] and place < rival))
            for rival, other in enumerate(kept)
        )
    ]


def _has_own_accuracies(board: Board) -> bool:
    """Tell whether a board shows accuracies that no other suite is meant to show."""
    is_smoke_of_papers = board.suite == "smoke" and board.data in SUITES["table1"].data
    return SUITES[board.suite].trained and not is_smoke_of_papers


def _are_alike(one: Board, other: Board) -> bool:
    """Tell whether two boards differ in their suites alone."""
    ours = one.data, one.splits, one.profile
    return ours == (other.data, other.splits, other.profile)


def _paths(board: Board) -> set[str]:
    return {found.path for found in board.cards}


def _has_papers_numbers(board: Board) -> bool:
    """Tell whether a paper has numbers for this board that no other suite has."""
    source = SUITES[board.suite].published
    first = next(name for name, suite in SUITES.items() if suite.published == source)
    if source is None or first != board.suite:
        return False

    cells = (
        (cards[0].card.learner.name, column)
        for row in board.rows.values()
        for column, cards in row.items()
    )
    return any(published_cell(source, board.data, learner, column) for learner, column in cells)


def _leaderboard(board: Board, evidence: EvidenceByPath) -> Leaderboard:
    """Rank the learners of every column."""
    rows = [_row(board, label, cells, evidence) for label, cells in board.rows.items()]
    untested = []
    for column in board.columns:
        for inductive in (False, True):
            rows, was_tested = _ranked(rows, column, evidence, inductive=inductive)
            if not (was_tested or inductive):
                untested.append(column)

    specs = SUITES[board.suite].columns(board.data)
    return Leaderboard(
        suite=board.suite,
        data=board.data,
        splits=board.splits,
        profile=board.profile,
        columns={column: describe_spec(specs[column]) for column in board.columns},
        rows=rows,
        untested=tuple(untested),
        repeats=len(board.repeats),
    )


def _row(
    board: Board, label: str, cells: Mapping[str, Sequence[CardFile]], evidence: EvidenceByPath
) -> LeaderboardRow:
    first = next(iter(cells.values()))[0].card
    learner, source = first.learner.name, SUITES[board.suite].published

    made = {}
    for column, found in cells.items():
        theirs = None if source is None else published_cell(source, board.data, learner, column)
        refused = any(evidence.get(one.path, NOTHING).status == "refused" for one in found)
        made[column] = LeaderboardCell(
            entry_of([one.card for one in found], theirs), tuple(found), refused=refused
        )
    return LeaderboardRow(label, learner, first.transductive, first.breaks_law, made)


def _ranked(
    rows: Sequence[LeaderboardRow], column: str, evidence: EvidenceByPath, *, inductive: bool
) -> tuple[list[LeaderboardRow], bool]:
    """Mark the best of a column and its ties; tell whether all others could be tested."""
    ranked = {
        place: row.cells[column]
        for place, row in enumerate(rows)
        if column in row.cells and is_ranked(row, column) and not (inductive and row.transductive)
    }
    if len(ranked) < 2:  # a learner that is alone has beaten nobody
        return list(rows), True

    best = max(ranked, key=lambda place: ranked[place].entry.mean or 0.0)
    ps = {
        place: _p(ranked[best], cell, evidence) for place, cell in ranked.items() if place != best
    }

    marked = list(rows)
    for place, cell in ranked.items():
        p = ps.get(place)
        is_tied = p is not None and p >= SIGNIFICANT
        mark: Mark = "best" if place == best else "tied" if is_tied else ""
        new = replace(cell, mark_inductive=mark) if inductive else replace(cell, mark=mark, p=p)
        marked[place] = replace(rows[place], cells={**rows[place].cells, column: new})
    return marked, None not in ps.values()


def is_ranked(row: LeaderboardRow, column: str) -> bool:
    """Tell whether a row is ranked in a column: it is no upper bound, and no card was refused."""
    cell = row.cells[column]
    return not row.breaks_law and not cell.refused and cell.entry.mean is not None


def _p(best: LeaderboardCell, other: LeaderboardCell, evidence: EvidenceByPath) -> float | None:
    """Return the p of the paired test on the same tasks; None where it cannot be made."""
    found = differences(best, other, evidence)
    return None if found is None else paired_p(found)


def differences(
    cell: LeaderboardCell, other: LeaderboardCell, evidence: EvidenceByPath
) -> PerTask | None:
    """Return the accuracy of one minus that of the other on every task that both have.

    It is the mean over seeds; None where predictions are missing or tasks differ.
    """
    ours, theirs = _per_task(cell, evidence), _per_task(other, evidence)
    cards = (one.card for one in (*cell.cards, *other.cards))
    if ours is None or theirs is None or not share_tasks(cards):
        return None
    count = min(len(ours), len(theirs))
    return np.asarray(ours[:count] - theirs[:count])


def _per_task(cell: LeaderboardCell, evidence: EvidenceByPath) -> PerTask | None:
    found = [evidence.get(one.path, NOTHING).accuracies for one in cell.cards]
    known = [accuracies for accuracies in found if accuracies is not None]
    if not known or len(known) < len(found):
        return None
    count = min(map(len, known))
    return np.asarray(np.mean([accuracies[:count] for accuracies in known], axis=0))


def places(
    boards: Iterable[Leaderboard],
) -> Iterator[tuple[Leaderboard, LeaderboardRow, str, LeaderboardCell]]:
    """Go through all cells of all boards."""
    for board in boards:
        for row in board.rows:
            for column, cell in row.cells.items():
                yield board, row, column, cell
