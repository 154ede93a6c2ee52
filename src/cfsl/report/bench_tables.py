"""The tables that `cfsl bench` shows: the cells of a bench, and the cards that it has made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cfsl.cards.card import read_card
from cfsl.cards.published import published_cell
from cfsl.cards.schema import Card
from cfsl.errors import CardError
from cfsl.presets.suites import SUITES
from cfsl.report.tables import LEGEND, TOGETHER, Entry, entry_of, text_table

if TYPE_CHECKING:
    from cfsl.presets.cells import Cell
    from cfsl.runs.run_spec import RunSpec


@dataclass(frozen=True)
class SuiteTable:
    """One suite on one data set."""

    suite: str
    data: str
    profile: str
    columns: list[str]
    entries: Mapping[str, Mapping[str, Entry]]
    """By learner, then by column."""

    def lines(self, width: int) -> Iterator[str]:
        """Lay it out for a terminal."""
        title = f"{self.suite} on {self.data}, profile {self.profile}: {SUITES[self.suite].what}"
        yield from text_table(title, self.columns, self.entries, width)
        if any(entry.published for row in self.entries.values() for entry in row.values()):
            yield from ("", *LEGEND)
        if any(entry.members > 1 for row in self.entries.values() for entry in row.values()):
            yield TOGETHER

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return an object a cell, for programs."""
        for learner, row in self.entries.items():
            for column, entry in row.items():
                theirs = entry.published
                yield {
                    "suite": self.suite,
                    "data": self.data,
                    "profile": self.profile,
                    "learner": learner,
                    "column": column,
                    "accuracy": entry.mean,
                    "ci95": entry.ci95,
                    "seeds": entry.seeds,
                    "seed_std": entry.seed_std,
                    "members": entry.members,
                    "published": None if theirs is None else theirs.accuracy,
                    "status": None if theirs is None else theirs.status,
                    "difference": entry.difference,
                    "inside": entry.is_inside,
                    "why_not": entry.why_not,
                }


def tables_of(cells: list[Cell], card_path: Callable[[RunSpec], Path]) -> list[SuiteTable]:
    """Put the cards of cells into the tables of their suites; `card_path` says where cards are."""
    by_table: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        by_table.setdefault((cell.suite, cell.data), []).append(cell)
    return [_table(own, card_path) for own in by_table.values()]


def _table(cells: list[Cell], card_path: Callable[[RunSpec], Path]) -> SuiteTable:
    """Return the table of the cells of one suite on one data set."""
    suite, data = cells[0].suite, cells[0].data
    source = SUITES[suite].published
    columns = list(dict.fromkeys(cell.column for cell in cells))
    learners = list(dict.fromkeys(cell.learner for cell in cells))

    entries: dict[str, dict[str, Entry]] = {}
    for learner in learners:
        for column in columns:
            own = [cell for cell in cells if (cell.learner, cell.column) == (learner, column)]
            cards = [card for cell in own if (card := _card(cell, card_path)) is not None]
            theirs = None if source is None else published_cell(source, data, learner, column)
            why_not = next((cell.why_not for cell in own if cell.why_not), "")
            entries.setdefault(learner, {})[column] = entry_of(cards, theirs, why_not)

    profile = next((cell.run.profile for cell in cells if cell.run is not None), "-")
    return SuiteTable(suite, data, profile, columns, entries)


def _card(cell: Cell, card_path: Callable[[RunSpec], Path]) -> Card | None:
    """Return the card of a cell; None if it has none, or one that is damaged."""
    if cell.run is None:
        return None
    path = card_path(cell.run)
    if not path.exists():
        return None
    try:
        return read_card(path)
    except CardError:
        return None
