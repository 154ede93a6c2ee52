"""One page a learner, from its file: what it is, equations, departures, settings, numbers."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from equations import EQUATIONS
from markup import LEFT, RIGHT, block, code, table

FOLDER = "learners"
SHARED = {
    "inner_loop.py": "cfsl.learners.maml.inner_loop",
    "maml_high.py": "cfsl.learners.maml.maml_high",
    "embedding.py": "cfsl.learners.champion.embedding",
    "closeness.py": "cfsl.learners.champion.closeness",
}
"""Files that a learner's own text points to; their texts come after it."""
FUNCTIONS = ("embed", "begin", "observe", "predict", "episode_loss")
Cards = Mapping[Path, Any]


def learner_pages(root: Path) -> dict[str, str]:
    """Return the pages by file name."""
    from cfsl.learners.registry import LEARNERS

    cards = cards_below(root / "results")
    pages = {
        f"{FOLDER}/{name}.md": _page(name, entry, cards, root) for name, entry in LEARNERS.items()
    }
    rows = [
        [f"[`{name}`]({name}.md)", entry.what, entry.weights.what]
        for name, entry in LEARNERS.items()
    ]
    contents = "\n".join(LEARNERS)
    pages[f"{FOLDER}/index.md"] = (
        "# Learners\n\nA page each, written from the learner's own file: what it is, where it "
        "departs from its paper, its hyper-parameters, and what it has reached. Learners that are "
        "not here: "
        "[frozen backbones](../../interop.md), and [your own](../../adding-a-learner.md).\n\n"
        f"{table({'learner': LEFT, 'what it does': LEFT, 'weights': LEFT}, rows)}\n"
        f"```{{toctree}}\n:hidden:\n\n{contents}\n```\n"
    )
    return pages


def cards_below(folder: Path) -> Cards:
    """Return all sound result cards below a folder, if there is one."""
    from cfsl.cards.collect import collected

    return collected([folder]).cards if folder.is_dir() else {}


def _page(name: str, entry: Any, cards: Cards, root: Path) -> str:
    learner = entry.build()
    module = importlib.import_module(type(learner).__module__)
    text = inspect.getdoc(module) or ""
    parts = [
        f"# `{name}`\n",
        f"*{entry.what[0].upper()}{entry.what[1:]}.* "
        f"Weights: {entry.weights.what}.{_marks(learner)}\n",
        f"File: `{Path(module.__file__ or '').relative_to(root)}`{_cited(entry.cite)}.\n",
        "## Equation\n",
        block(EQUATIONS[name], "text"),
        "## What it is\n",
        with_headings(text),
        *_shared_texts(text, module.__name__),
        "## Its functions\n",
        _functions(learner),
        "## Hyper-parameters\n",
        _fields(name, learner),
        "## What it has reached\n",
        numbers(name, cards, root),
        _published(name),
    ]
    return "\n".join(parts)


def _marks(learner: Any) -> str:
    marks = [word for word in ("transductive", "breaks_law") if getattr(learner, word, False)]
    return f" Marked {' and '.join(code(mark) for mark in marks)} on every card." if marks else ""


def _cited(cite: str) -> str:
    return f"; cited as `{cite}`" if cite else ""


def with_headings(text: str) -> str:
    """Return a docstring as Markdown, with a heading for where the learner departs."""
    found = re.search(r"(?m)^Where it departs from ([^:,.]+)([:,])\s*", text)
    if found is None:
        return f"{text}\n"
    after = text[found.end() :] if found[2] == ":" else text[found.start() :]
    heading = f"## Where it departs from {found[1]}"
    return f"{text[: found.start()]}{heading}\n\n{after[0].upper()}{after[1:]}\n"


def _shared_texts(text: str, own: str) -> list[str]:
    """Return the texts that a learner's text points to, under a heading each."""
    told = {file: place for file, place in SHARED.items() if file in text and place != own}
    texts = {
        file: inspect.getdoc(importlib.import_module(place)) or "" for file, place in told.items()
    }
    return [
        f"## From `{file}`\n\n{with_headings(text).replace('## ', '### ')}"
        for file, text in texts.items()
    ]


def _functions(learner: Any) -> str:
    """Return what each function of the learner says of itself, with the numbers of equations."""
    found = [(name, inspect.getdoc(getattr(type(learner), name, None))) for name in FUNCTIONS]
    rows = [[code(name), (text or "").split("\n\n")[0]] for name, text in found if text]
    return table({"function": LEFT, "what it does": LEFT}, rows)


def _fields(name: str, learner: Any) -> str:
    fields = {
        field: getattr(learner, field) for field in type(learner).model_fields if field != "kind"
    }
    if not fields:
        return "None.\n"
    notes, kinds = attribute_notes(type(learner))
    rows = [[code(field), code(_value(value)), code(kinds.get(field, "")), notes.get(field, "")]
            for field, value in fields.items()]  # fmt: skip
    changed = next(
        (field for field, value in fields.items() if not hasattr(value, "model_dump")),
        next(iter(fields)),
    )
    return (
        f"Change one by `--set {changed}=VALUE`, or in Python by "
        f'`find_learner("{name}").replace({changed}=...)`.\n\n'
        + table({"name": LEFT, "default": LEFT, "type": LEFT, "what it is": LEFT}, rows)
    )


def _value(value: Any) -> str:
    """Return a default in one line; a value with fields of its own by those."""
    if hasattr(value, "model_dump"):
        own = ", ".join(
            f"{name}={_value(getattr(value, name))}"
            for name in type(value).model_fields
            if name != "kind"
        )
        return f"{type(value).__name__}({own})"
    return repr(value)


def attribute_notes(cls: type) -> tuple[dict[str, str], dict[str, str]]:
    """Return docstrings and annotations of a class's fields, those of its bases included."""
    notes: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not owner.__module__.startswith("cfsl.learners"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body  # type: ignore[attr-defined]
        for statement, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                kinds[statement.target.id] = ast.unparse(statement.annotation)
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    notes[statement.target.id] = " ".join(str(after.value.value).split())
    return notes, kinds


def numbers(name: str, cards: Cards, root: Path) -> str:
    """Return the table of a learner's cards."""
    from cfsl.cards.card_rows import row_of

    own = {path: row_of(path, card) for path, card in cards.items() if card.learner.name == name}
    if not own:
        return "There is no card of it in `results/` yet.\n"
    numbers_of = ("accuracy", "cross-entropy", "ATM", "MACs to learn", "MACs to answer")
    head = (
        {"data": LEFT, "tasks": LEFT}
        | dict.fromkeys(numbers_of, RIGHT)
        | {"profile": LEFT, "card": LEFT}
    )
    ordered = sorted(own.items(), key=lambda item: _order(item[1]))
    rows = [_numbers(row, path.relative_to(root)) for path, row in ordered]
    return (
        "Accuracy in percent, with half the width of the 95 % interval over tasks. Cards say all "
        f"that is needed to run them again.\n\n{table(head, rows)}"
    )


def _order(row: Mapping[str, Any]) -> tuple[str, str, int, str]:
    return str(row["data"]), str(row["task_type"]), int(row["nss"]), str(row["file"])


def _numbers(row: Mapping[str, Any], path: Path) -> list[str]:
    interval = f" +- {100 * row['accuracy_ci95']:.2f}" if row["accuracy_ci95"] is not None else ""
    return [
        str(row["data"]),
        f"{row['column']}, {row['tasks']} tasks",
        f"{100 * row['accuracy']:.2f}{interval}",
        _decimal(row["cross_entropy"], 3),
        _decimal(row["atm"], 4),
        _large(row["macs_to_learn"]),
        _large(row["macs_to_answer"]),
        str(row["profile"] or ""),
        code(path.as_posix()),
    ]


def _decimal(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _large(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _published(name: str) -> str:
    """Return what the papers printed, each number with how far it can be trusted."""
    from cfsl.cards.published import published

    cells = [cell for cell in published() if cell.learner == name]
    if not cells:
        return ""
    head = {
        "table": LEFT,
        "data": LEFT,
        "tasks": LEFT,
        "accuracy": RIGHT,
        "status": LEFT,
        "why": LEFT,
    }
    shown = table(head, _grouped(cells))
    return (
        f"## What the papers printed\n\nSee [errata](../../errata.md) for the evidence.\n\n{shown}"
    )


def _place(cell: Any) -> str:
    paper = {"antoniou2020": "paper 1", "kowadlo2022": "paper 2"}[cell.paper]
    single = ", without ensembles" if cell.source == "replication_single" else ""
    return f"{paper}, {cell.table}{single}"


def _grouped(cells: Iterable[Any]) -> Iterator[list[str]]:
    """Put the columns of a table that have the same verdict into one row."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for cell in cells:
        found.setdefault((_place(cell), cell.data, cell.status, cell.reason), []).append(cell)
    for (where, data, status, reason), alike in found.items():
        columns, accuracies = (
            [cell.column for cell in alike],
            [f"{100 * cell.accuracy:.2f}" for cell in alike],
        )
        yield [where, data, ", ".join(columns), " / ".join(accuracies), status, reason]
