"""Pages written from the code at every build, into docs/_generated, which git ignores."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command_pages import command_pages
from learner_pages import learner_pages
from measured import measured

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
GENERATED = "_generated"


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before the first one is read."""
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir)))
    # The index lists the generated pages, so it is read again at every build.
    app.connect("env-get-outdated", lambda app, env, added, changed, removed: ["index"])
    app.connect(
        "autodoc-process-docstring", lambda app, what, name, obj, options, lines: _as_rst(lines)
    )
    app.connect("autodoc-process-signature", _plain_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(docs: Path) -> None:
    """Write all generated pages; those of learners and commands that are gone are removed."""
    others = {
        "changelog.md": (ROOT / "CHANGELOG.md").read_text("utf-8"),
        "measured.inc": measured(ROOT),
    }
    pages = learner_pages(ROOT) | command_pages() | others
    folder = docs / GENERATED
    kept = {folder / name for name in pages}
    for path in set(folder.rglob("*.md")) - kept if folder.exists() else ():
        path.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def _as_rst(lines: list[str]) -> None:
    """Turn docstrings, which are plain text, into reStructuredText: indented lines are literal."""
    paragraphs = "\n".join(lines).split("\n\n")
    text = ""
    for number, paragraph in enumerate(paragraphs):
        if "\n+-- " in paragraph:
            paragraph = textwrap.indent(paragraph, "    ")
        is_literal = paragraph.startswith("    ")
        goes_on = number > 0 and paragraphs[number - 1].startswith("    ")
        if is_literal and not goes_on:
            text += "::\n\n"
        text += f"{paragraph if is_literal else _escaped(paragraph)}\n\n"
    lines[:] = text.split("\n")


def _escaped(text: str) -> str:
    """Return prose in which stars and bars are stars and bars, outside of code."""
    parts = re.split(r"(`+[^`]*`+)", text)
    return "".join(
        part if part.startswith("`") else part.replace("*", r"\*").replace("|", r"\|")
        for part in parts
    )


def _plain_signature(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Leave bounds and made-up defaults out of a signature: the text says what they are."""
    return (
        None if signature is None else without_annotated(signature.replace("<factory>", "..."))
    ), returned


def without_annotated(text: str) -> str:
    """Return a signature with X in place of every Annotated[X, ...]."""
    while found := re.search(r"(~?[a-z]+\.)?Annotated\[", text):
        start, inner = found.span()
        depth, comma, end = 1, 0, inner
        while depth:
            depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(text[end], 0)
            comma = comma or (end if depth == 1 and text[end] == "," else 0)
            end += 1
        text = f"{text[:start]}{text[inner:comma]}{text[end:]}"
    return text
