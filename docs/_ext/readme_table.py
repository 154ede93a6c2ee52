"""The table at the top of the README, from the cards in results/: `make leaderboard` puts it there.

python docs/_ext/readme_table.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from learner_pages import cards_below
from markup import LEFT, code, table

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- made by 'make leaderboard' -->\n", "<!-- until here -->\n"
BOARD = ("table1", "omniglot", "reference", "quick")
TYPES: Mapping[str, tuple[str, ...]] = {
    "B, NSS 3 / 5 / 10": ("B3", "B5", "B10"),
    "C, NSS 3 / 5 / 10": ("C3", "C5", "C10"),
    "A, NSS 3 / 5 / 10": ("A3", "A5", "A10"),
    "D, NSS 4 / 8": ("D4", "D8"),
}
COLUMNS = [column for columns in TYPES.values() for column in columns]
NOTHING = "-"


def readme_table(root: Path) -> str:
    """Return accuracies on Omniglot in profile quick, best first, published ones below."""
    from cfsl.cards.collect import CardFile
    from cfsl.report.board import boards

    found = [CardFile(str(path), card) for path, card in cards_below(root / "results").items()]
    board = next(
        board
        for board in boards(found)
        if (board.suite, board.data, board.splits, board.profile) == BOARD
    )
    return table({"": LEFT, **dict.fromkeys(TYPES, LEFT)}, _rows(board.rows))


def _rows(learners: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield a row for every learner, and one below it for what was published."""
    from cfsl.cards.published import published_cell
    from cfsl.report.tables import entry_of

    ours = {
        learner: {
            column: entry_of([one.card for one in cards], None).mean
            for column, cards in columns.items()
        }
        for learner, columns in learners.items()
    }
    for learner, row in sorted(ours.items(), key=lambda item: -item[1]["D4"]):
        yield [
            code(learner),
            *_joined({column: f"{100 * mean:.2f}" for column, mean in row.items()}),
        ]
        cells = {
            column: published_cell("table1", "omniglot", learner, column) for column in COLUMNS
        }
        theirs = {column: _printed(cell) for column, cell in cells.items() if cell}
        if theirs:
            yield ["published", *_joined(theirs)]


def _printed(cell: Any) -> str:
    number = f"{100 * cell.accuracy:.2f}"
    return number if cell.status == "sound" else f"*{number}*"


def _joined(numbers: Mapping[str, str]) -> Iterator[str]:
    """Yield a cell for every task type."""
    for columns in TYPES.values():
        yield " / ".join(numbers.get(column, NOTHING) for column in columns)


def spliced(readme: str, made: str) -> str:
    """Return a text with another table between the two marks."""
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}{made}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(spliced(path.read_text("utf-8"), readme_table(ROOT)), "utf-8")
    sys.stdout.write(f"wrote the table to {path.name}\n")
