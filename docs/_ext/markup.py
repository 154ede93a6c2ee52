"""The few pieces of Markdown that pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LEFT, RIGHT = "---", "--:"


def table(head: Mapping[str, str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; `head` has the alignment of each column under its title."""
    lines = [list(head), list(head.values()), *([cell(text) for text in row] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def cell(text: str) -> str:
    """Return a text that does not end its cell."""
    return text.replace("|", r"\|").replace("\n", " ")


def code(text: object) -> str:
    """Return a text as code, or nothing for no text."""
    return f"`{text}`" if f"{text}" else ""


def block(text: str, language: str = "") -> str:
    """Return a block of code."""
    return f"```{language}\n{text}\n```\n"
