"""The tables of docs/api.md: every name that the page documents, and what its docstring says first.

python docs/_ext/api_page.py          (a part of `make docs`)

The directives of the page are read by Sphinx alone. These tables are for those who read the page
as a file: one stands before each block of directives and names what is in it.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from markup import LEFT, code, table

PAGE = Path(__file__).resolve().parents[1] / "api.md"
BEGIN, END = "<!-- from docstrings -->\n", "<!-- end of names -->\n"
PLACE = re.compile(
    rf"{BEGIN}.*?{END}(?P<directives>\n```{{eval-rst}}\n(?P<listed>.*?)^```$)", re.S | re.M
)
DIRECTIVE = re.compile(
    r"^\.\. auto(?P<kind>function|class|module):: (?P<path>\S+)\n(?P<options>(?:   \S.*\n)*)", re.M
)


def remade(page: str) -> str:
    """Return the page with its tables made anew."""
    return PLACE.sub(
        lambda found: f"{BEGIN}{_table(list(names(found['listed'])))}{END}{found['directives']}",
        page,
    )


def names(directives: str) -> Iterator[str]:
    """Yield the full names of what directives document, but for the members of classes."""
    for found in DIRECTIVE.finditer(directives):
        members = re.search(r":members: (.+)", found["options"])
        if found["kind"] == "module" and members:
            yield from (f"{found['path']}.{member}" for member in members[1].split(", "))
        else:
            yield found["path"]


def _table(listed: list[str]) -> str:
    head = {"name": LEFT, "what it is": LEFT}
    return table(head, ([code(name), first_sentence(name)] for name in listed))


def first_sentence(name: str) -> str:
    """Return the first sentence of the docstring behind a full name, in one line."""
    text = inspect.getdoc(_named(name)) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


def _named(name: str) -> object:
    """Import what has this full name: a module, or something in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


if __name__ == "__main__":
    PAGE.write_text(remade(PAGE.read_text("utf-8")), "utf-8")
    sys.stdout.write(f"wrote the tables of {PAGE.name}\n")
