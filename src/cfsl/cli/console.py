"""What the commands share: printing, progress bars, and errors as one line."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a line for a person; names from data sets are not read as markup."""
    out.print(text, markup=False)


def print_json(value: Any) -> None:
    """Print a value for a program."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def counting(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar that is told how many more are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda finished: bar.advance(task, finished)


@contextlib.contextmanager
def downloading(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of bytes."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
