"""The tables and numbers of docs/findings and docs/strong.md, from the cards in results/.

    python docs/_ext/findings_tables.py          (a part of `make leaderboard`)

A page says in a comment which cards a table is made of. This program writes the table between that
comment and the next one. The comment is TOML:

    <!-- table of cards
    folder = "omniglot-quick"
    columns = ["B3 / B5", "C3", ["ATM on D4", "D4", "atm"]]
    rows = [
      "protonet",
      ["three seeds", "protonet seeds=0,1,2", "accuracy"],
      "multiproto - protonet",
      ["published", "published=table1 protonet"],
    ]
    -->
    <!-- end of table -->

A column is a column of a suite, or several of them in one cell, or [title, column, measure]. A row
is a selector of cards, or [title, selector], or [title, selector, measure]. Two selectors with
" - " between them are compared task by task. A selector is one of

    protonet                        the card of this learner, training seed 0, in `folder`
    glyphs/champion                 the same in another folder
    protonet seeds=0,1,2            the mean of three training seeds
    omniglot/champion-small-{}.json the card in this file; {} is the column
    a.json & b.json                 the mean of several selectors
    published=table1 protonet       what a paper printed
    text=20                         no card: this text in every column

A sentence may hold a number of the same kind, between two comments on one line:

    <!-- number: multiproto - protonet on C3 -->+16.65 ± 0.53<!-- from cards -->
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from learner_pages import Cards, cards_below
from markup import LEFT, RIGHT, code, table

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "omniglot-quick"
PAGES = ("docs/findings.md", "docs/findings/*.md", "docs/strong.md")
TABLE = re.compile(
    r"(?P<head><!-- table of cards\n(?P<plan>.*?)-->\n)(?P<made>.*?)(?P<end><!-- end of table -->)",
    re.S,
)
NUMBER = re.compile(
    r"(?P<head><!-- number: (?P<what>[^\n]+?) on (?P<column>\S+?)(?: as (?P<measure>[^\n]+?))? -->)"
    r"(?P<made>[^\n]*?)(?P<end><!-- from cards -->)"
)
TEXT = "text="
GIGA = 1e9


class Place(NamedTuple):
    """Where a card is looked for."""

    folder: str
    learner: str
    column: str
    seed: int


class Selector(NamedTuple):
    """What a row names: cards of a learner, a file or a published number."""

    name: str
    folder: str
    seeds: tuple[int, ...] = (0,)
    published: str = ""


def selector_of(words: str, folder: str) -> Selector:
    """Read a selector."""
    parts = words.split()
    options = dict(part.split("=", 1) for part in parts if "=" in part)
    name = next(part for part in parts if "=" not in part)
    if "/" in name and not name.endswith(".json"):
        folder, name = name.split("/", 1)

    seeds = tuple(int(seed) for seed in options.get("seeds", "0").split(","))
    return Selector(name, folder, seeds, options.get("published", ""))


@dataclass(frozen=True)
class Results:
    """The cards below results/, by place and by file."""

    root: Path
    cards: Cards = field(repr=False)

    @cached_property
    def by_place(self) -> Mapping[Place, list[Path]]:
        """Return the files of every place; a card may stand in columns of several suites."""
        from cfsl.cards.card_rows import row_of
        from cfsl.report.board import places_of

        found: dict[Place, list[Path]] = {}
        for path, card in self.cards.items():
            row = row_of(path, card)
            for column in {column for _, column in places_of(card.tasks)}:
                place = Place(path.parent.name, str(row["learner"]), column, int(row["seed"] or 0))
                found.setdefault(place, []).append(path)
        return found

    def file_of(self, selector: Selector, column: str, seed: int) -> Path | None:
        """Return the one card of a selector, or None; several cards are an error."""
        if selector.name.endswith(".json"):
            path = self.root / "results" / selector.name.format(column)
            return path if path in self.cards else None

        place = Place(selector.folder, selector.name, column, seed)
        files = self.by_place.get(place, [])
        if len(files) > 1:
            raise SystemExit(f"several cards for {place}: {', '.join(map(str, files))}")
        return files[0] if files else None

    def row(self, path: Path) -> Mapping[str, Any]:
        """Return a card as one flat row."""
        from cfsl.cards.card_rows import row_of

        return row_of(path, self.cards[path])


# ---- measures


def accuracy(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean accuracy in percent."""
    return f"{100 * _mean(rows, 'accuracy'):.2f}"


def accuracy_with_interval(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean accuracy with half the 95 % interval over tasks."""
    return _percent(_mean(rows, "accuracy"), _mean(rows, "accuracy_ci95"))


def interval(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return half the 95 % interval over tasks alone."""
    return f"{100 * _mean(rows, 'accuracy_ci95'):.2f}"


def seed_deviation(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the standard deviation over training seeds in points."""
    from cfsl.metrics.accuracy import over_seeds

    return f"{100 * (over_seeds([row['accuracy'] for row in rows]).std or 0):.2f}"


def training_tasks(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many tasks the weights were trained on."""
    row = rows[0]
    return f"{row['epochs'] * row['updates'] * row['batch']:,}"


def ensemble(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the accuracy of several epochs that answer together."""
    return _percent(_mean(rows, "ensemble_accuracy"), _mean(rows, "ensemble_accuracy_ci95"))


def forgetting(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return forgetting in points."""
    return f"{100 * _mean(rows, 'forgetting'):.1f}"


def atm(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return ATM to four digits."""
    return f"{_mean(rows, 'atm'):.4g}"


def tasks(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many tasks a card has."""
    return f"{int(_mean(rows, 'tasks')):,}"


def macs_to_learn(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return billions of operations."""
    return f"{_mean(rows, 'macs_to_learn') / GIGA:.3g} G"


def macs_to_answer(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return billions of operations."""
    return f"{_mean(rows, 'macs_to_answer') / GIGA:.3g} G"


def macs(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return billions of operations for learning and answering together."""
    total = _mean(rows, "macs_to_learn") + _mean(rows, "macs_to_answer")
    return f"{total / GIGA:.3g} G"


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(float(row[name]) for row in rows) / len(rows)


def _percent(mean: float, ci95: float, sign: str = "") -> str:
    from cfsl.cards.card_rows import percent

    return percent(mean, ci95, sign).replace("+-", "±")


MEASURES = {
    "accuracy": accuracy,
    "accuracy ±": accuracy_with_interval,
    "±": interval,
    "seed deviation": seed_deviation,
    "training tasks": training_tasks,
    "ensemble": ensemble,
    "forgetting": forgetting,
    "atm": atm,
    "tasks": tasks,
    "macs to learn": macs_to_learn,
    "macs to answer": macs_to_answer,
    "macs": macs,
}
NEEDS = {
    "ensemble": "ensemble_accuracy",
    "forgetting": "forgetting",
    "training tasks": "epochs",
}
"""What a card may lack: its cell is then empty."""
PAIRED = ("difference ±", "difference", "±", "p")
COSTS = ("atm", "macs", "macs to learn", "macs to answer", "tasks", "training tasks")
"""Measures that have no interval, and that no difference and no published number has."""


@cache
def _manifests() -> Any:
    """Return what finds the tasks of cards, and remembers those of the card before."""
    from cfsl.cards.manifests import Manifests

    return Manifests()


@cache
def _compared(first: Path, second: Path) -> Any:
    from cfsl.cards.compare import compare_cards

    return compare_cards(first, second, _manifests()).paired


def _paired(first: Path, second: Path, measure: str) -> str:
    """Return the first card minus the second, on the tasks that both have."""
    found = _compared(first, second)
    if measure == "p":
        return "< 1e-200" if found.p < 1e-200 else f"{found.p:.2g}"
    if measure == "difference":
        return f"{100 * found.difference:+.2f}"
    if measure == "±":
        return f"{100 * found.ci95:.2f}"
    return _percent(found.difference, found.ci95, "+")


# ---- cells


def cell(results: Results, words: str, column: str, measure: str, folder: str) -> str:
    """Return the text of one cell; nothing where a card is missing."""
    selector = selector_of(words, folder)
    if measure in COSTS and (" - " in words or selector.published):
        return ""
    if " - " in words:
        first, second = (_files(results, part, column, folder)[0] for part in words.split(" - "))
        if first is None or second is None:
            return ""
        return _paired(first, second, measure if measure in PAIRED else PAIRED[0])

    if selector.published:
        return _published(selector, column)

    files = [path for part in words.split(" & ") for path in _files(results, part, column, folder)]
    rows = [results.row(path) for path in files if path is not None]
    is_known = all(row[NEEDS.get(measure, "accuracy")] is not None for row in rows)
    return MEASURES[measure](rows) if len(rows) == len(files) and is_known else ""


def _files(results: Results, words: str, column: str, folder: str) -> list[Path | None]:
    """Return the card of every training seed of a selector."""
    selector = selector_of(words.strip(), folder)
    return [results.file_of(selector, column, seed) for seed in selector.seeds]


def _published(selector: Selector, column: str) -> str:
    """Return a published accuracy; in italics where a defect made it."""
    from cfsl.cards.published import published_cell

    found = published_cell(selector.published, "omniglot", selector.name, column)
    if found is None:
        return ""
    number = f"{100 * found.accuracy:.2f}"
    return f"*{number}*" if found.status == "superseded" else number


# ---- tables


class Column(NamedTuple):
    """A column of a table: a title, one or more columns of a suite, and a measure of its own."""

    title: str
    names: tuple[str, ...]
    measure: str = ""


class Row(NamedTuple):
    """A row of a table."""

    title: str
    words: str
    measure: str = ""


def column_of(stated: str | Sequence[str]) -> Column:
    """Read a column as a page states it."""
    title, names, *measure = [stated, stated] if isinstance(stated, str) else stated
    return Column(title, tuple(name.strip() for name in names.split("/")), *measure)


def row_of_table(stated: str | Sequence[str]) -> Row:
    """Read a row as a page states it; one without a title is named by its selector."""
    if not isinstance(stated, str):
        return Row(*stated)
    if " - " not in stated:
        return Row(code(stated), stated)
    return Row(f"{' - '.join(map(code, stated.split(' - ')))}, paired", stated)


def made_table(results: Results, plan: str) -> str:
    """Return the table that a page asks for."""
    stated = tomllib.loads(plan)
    folder, usual = stated.get("folder", FOLDER), stated.get("show", "accuracy")
    columns = [column_of(column) for column in stated["columns"]]

    head = {"": LEFT} | {column.title: RIGHT for column in columns}
    rows = [
        [row.title, *(_joined(results, row, column, usual, folder) for column in columns)]
        for row in map(row_of_table, stated["rows"])
    ]
    return f"\n{table(head, rows)}\n"


def _joined(results: Results, row: Row, column: Column, usual: str, folder: str) -> str:
    """Return one cell, which has a number for every column of a suite that it names."""
    if row.words.startswith(TEXT):
        return row.words.removeprefix(TEXT)
    if row.measure == "±" and column.measure in COSTS:
        return ""

    measure = column.measure or row.measure or usual
    texts = [cell(results, row.words, name, measure, folder) for name in column.names]
    return " / ".join(text or "-" for text in texts) if any(texts) else ""


def remade(results: Results, page: str) -> str:
    """Return a page with its tables and numbers made again."""

    def with_table(found: re.Match[str]) -> str:
        return f"{found['head']}{made_table(results, found['plan'])}{found['end']}"

    def with_number(found: re.Match[str]) -> str:
        measure = found["measure"] or "accuracy"
        number = cell(results, found["what"], found["column"], measure, FOLDER)
        if not number:
            raise SystemExit(f"there is no card for '{found['what']}' on {found['column']}")
        return f"{found['head']}{number}{found['end']}"

    return NUMBER.sub(with_number, TABLE.sub(with_table, page))


def pages(root: Path) -> Iterator[Path]:
    """Yield the pages that hold tables or numbers of cards."""
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


def write(root: Path, places: Iterable[Path]) -> None:
    """Make the tables of these pages again."""
    results = Results(root, cards_below(root / "results"))
    for path in places:
        text = path.read_text("utf-8")
        path.write_text(remade(results, text), "utf-8")
        sys.stdout.write(f"wrote the tables of {path.relative_to(root)}\n")


if __name__ == "__main__":
    write(ROOT, [Path(name).resolve() for name in sys.argv[1:]] or pages(ROOT))
