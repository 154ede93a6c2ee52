"""The results table of the README, from the cards in results/: `make leaderboard` puts it there.

python docs/_ext/readme_table.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from learner_pages import cards_below
from markup import LEFT, RIGHT, code, table

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- made by 'make leaderboard' -->\n", "<!-- until here -->\n"
DATA = ("table1", "omniglot", "reference")
TYPES: Mapping[str, tuple[str, ...]] = {
    "A, NSS 3/5/10": ("A3", "A5", "A10"),
    "B, NSS 3/5/10": ("B3", "B5", "B10"),
    "C, NSS 3/5/10": ("C3", "C5", "C10"),
    "D, NSS 4/8": ("D4", "D8"),
}
UPDATES = "updates (% of published)"
LEARNERS = (
    "champion",
    "multiproto",
    "protonet",
    "maml_high",
    "sca",
    "maml_low",
    "ewc_pretrain",
    "pretrain_tune",
)
STAGED = ("maml_high", "sca")
"""Learners whose cards of profile `strong` are shown in the place of `quick`, once there is one."""
FIRST = "B3"
"""The column that rows are sorted by."""
TOGETHER = {"best published, five models together": ("table1", "replication")}
ALONE = {"best published, one model": ("replication_single",)}
NOTHING = "-"


class Row(NamedTuple):
    """One learner, one profile, and whether its best epochs answer together."""

    label: str
    updates: str
    accuracies: Mapping[str, float]


def readme_table(root: Path) -> str:
    """Return accuracies on Omniglot, best first, and below them the best published ones."""
    head = {"": LEFT, UPDATES: RIGHT, **dict.fromkeys(TYPES, LEFT)}
    ours = sorted(_rows(root), key=lambda row: -row.accuracies.get(FIRST, 0))
    rows = [[row.label, row.updates, *_joined(row.accuracies)] for row in ours]
    theirs = [[label, "", *_published(sources)] for label, sources in {**ALONE, **TOGETHER}.items()]
    return table(head, rows + theirs)


def _rows(root: Path) -> Iterator[Row]:
    """Yield a row for the best epoch of every learner, and one for its best epochs together."""
    from cfsl.cards.collect import CardFile
    from cfsl.report.board import boards

    found = [CardFile(str(path), card) for path, card in cards_below(root / "results").items()]
    by_profile = {
        board.profile: board.rows
        for board in boards(found)
        if (board.suite, board.data, board.splits) == DATA
    }
    for learner in LEARNERS:
        is_strong = learner in STAGED and learner in by_profile.get("strong", {})
        columns = by_profile["strong" if is_strong else "quick"][learner]
        cells = {column: [one.card for one in cards] for column, cards in columns.items()}
        yield from _rows_of(learner, cells, in_stages=is_strong)


def _rows_of(learner: str, cells: Mapping[str, list[Any]], *, in_stages: bool) -> Iterator[Row]:
    """Yield the rows of one learner from its cards by column."""
    every = [card for cards in cells.values() for card in cards]
    seeds = min(len(cards) for cards in cells.values())
    remarks = [
        f"{seeds} seeds" if seeds > 1 else "",
        "in stages" if in_stages else "",
        "transductive" if every[0].transductive else "",
    ]
    updates = _share(max(updates_of(card) for card in every))

    single = {column: _mean([card.metrics for card in cards]) for column, cards in cells.items()}
    yield Row(_label(learner, remarks), updates, single)

    together = {
        column: _mean([card.ensemble.metrics for card in cards])
        for column, cards in cells.items()
        if all(card.ensemble for card in cards)
    }
    if together:
        members = cells[next(iter(together))][0].ensemble.members
        remarks.append(f"{members} epochs together")
        yield Row(_label(learner, remarks), updates, together)


def _label(learner: str, remarks: Sequence[str]) -> str:
    return ", ".join([code(learner), *filter(None, remarks)])


def _mean(metrics: Sequence[Any]) -> float:
    """Return the mean accuracy over training seeds."""
    return float(sum(one.accuracy.mean for one in metrics) / len(metrics))


def updates_of(card: Any) -> int:
    """Return the updates behind a card, those of the stages before included."""
    training, updates = card.training.content(), 0
    while training:
        updates += training["schedule"]["epochs"] * training["schedule"]["updates"]
        training = (training.get("start") or {}).get("training")
    return updates


def _share(updates: int) -> str:
    """Return a number of updates, and how much of the published schedule that is."""
    from cfsl.spec import TaskSpec
    from cfsl.training.recipes import paper

    published = paper(TaskSpec.type_b(nss=3)).schedule.total
    return f"{updates:,} ({100 * updates / published:.1f})"


def _published(sources: Sequence[str]) -> Iterator[str]:
    """Yield for every task type the best published numbers, and whose they are."""
    for columns in TYPES.values():
        best = [cell for cell in (_best(sources, column) for column in columns) if cell]
        learners = dict.fromkeys(code(cell.learner) for cell in best)
        yield f"{_marked(best)} ({', '.join(learners)})" if best else NOTHING


def _best(sources: Sequence[str], column: str) -> Any:
    """Return the best number of a column; one that a defect has changed only if all are."""
    from cfsl.cards.published import published

    cells = [
        cell
        for cell in published()
        if cell.source in sources and cell.data == "omniglot" and cell.column == column
    ]
    return max(cells, key=lambda cell: (cell.status != "superseded", cell.accuracy), default=None)


def _marked(cells: Sequence[Any]) -> str:
    """Return published numbers: in italics if a defect has changed them, ≈ for a trend."""
    (status,) = {cell.status for cell in cells}
    numbers = "/".join(f"{100 * cell.accuracy:.2f}" for cell in cells)
    return {"sound": numbers, "trend": f"≈ {numbers}", "superseded": f"*{numbers}*"}[status]


def _joined(accuracies: Mapping[str, float]) -> Iterator[str]:
    """Yield a cell for every task type."""
    for columns in TYPES.values():
        numbers = [
            f"{100 * accuracies[column]:.2f}" if column in accuracies else NOTHING
            for column in columns
        ]
        yield "/".join(numbers) if set(numbers) != {NOTHING} else NOTHING


def spliced(readme: str, made: str) -> str:
    """Return a text with another table between the two marks."""
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}{made}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(spliced(path.read_text("utf-8"), readme_table(ROOT)), "utf-8")
    sys.stdout.write(f"wrote the table to {path.name}\n")
