"""Our numbers beside the published ones, from the cards in results/: a part of the errata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from learner_pages import cards_below
from markup import LEFT, RIGHT, code, table

HEAD = {
    "learner": LEFT,
    "data": LEFT,
    "tasks": LEFT,
    "published": RIGHT,
    "ours": RIGHT,
    "card": LEFT,
}
FULL = 600
"""Tasks of a card that can be set beside a paper's table."""


def measured(root: Path) -> str:
    """Return two tables of cells that have a card: superseded ones, and sound ones."""
    rows = {status: list(_rows(root, status)) for status in ("superseded", "sound")}
    return "\n".join(
        [
            "Superseded cells:\n",
            table(HEAD, rows["superseded"]) if rows["superseded"] else "There are no cards yet.\n",
            "Sound cells:\n",
            table(HEAD, rows["sound"]) if rows["sound"] else "There are no cards yet.\n",
        ]
    )


def _rows(root: Path, status: str) -> Iterator[list[str]]:
    """Yield the rows of one table, in the order of the papers' columns."""
    from cfsl.cards.card_rows import row_of
    from cfsl.cards.published import published

    cards = [(path, row_of(path, card)) for path, card in cards_below(root / "results").items()]
    for cell in published():
        if cell.source != "table1" or cell.status != status:
            continue
        place = (cell.learner, cell.data, cell.column)
        for path, row in cards:
            if (row["learner"], row["data"], row["column"]) == place and _is_full(row):
                ours = f"{100 * row['accuracy']:.2f} +- {100 * row['accuracy_ci95']:.2f}"
                printed = f"{100 * cell.accuracy:.2f}"
                yield [
                    code(cell.learner),
                    cell.data,
                    cell.column,
                    printed,
                    ours,
                    code(path.relative_to(root).as_posix()),
                ]


def _is_full(row: Mapping[str, Any]) -> bool:
    return row["split"] == "test" and row["task_seed"] == 0 and int(row["tasks"]) >= FULL
