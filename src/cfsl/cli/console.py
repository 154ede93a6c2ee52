"""Output of all commands: text for people, JSON for programs, and progress bars."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID


def say(text: str = "") -> None:
    """Print a line for a person."""
    sys.stdout.write(_printable(text) + "\n")


def complain(text: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"cfsl: {_printable(text)}\n")


def print_json(value: Any) -> None:
    """Print a value for a program, in ASCII, which every terminal and every program can read."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_event(value: dict[str, Any]) -> None:
    """Print a value as one line, and at once: a program may read it while the command runs."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _printable(text: str) -> str:
    """Replace line breaks and control characters by their escape sequences.

    A text may hold a name from an archive that somebody made to take over the terminal.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def open_streams() -> None:
    """Make stdout and stderr accept any text, even if they are closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # It stays open as long as the process.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Discard the rest of stdout, whose reader has gone, or whose disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def counting(
    what: str, total: int | None = None, unit: str = "images"
) -> Iterator[Callable[[int], None]]:
    """Show a bar; the function that is given is called with the number of units just done."""
    with _bars() as bars:
        yield _advance(bars, what, total, unit)


@contextlib.contextmanager
def fetching(name: str) -> Iterator[tuple[Callable[[int, int], None], Callable[[int], None]]]:
    """Show a bar of a download, and after it a bar of images that are packed.

    The first function is called with the bytes received and the bytes in all, the second one with
    the number of images just packed.
    """
    with _bars() as bars:
        task = bars.add_task(f"fetching {name}", total=None, visible=False, unit="MB")

        def received(done: int, total: int) -> None:
            bars.update(task, completed=done / 1e6, total=total / 1e6 or None, visible=True)

        yield received, _advance(bars, f"packing {name}", None, "images")


@contextlib.contextmanager
def stepping(what: str, total: int, unit: str) -> Iterator[Callable[[int, str], None]]:
    """Show a bar; the function is called with the number of units done by now, and a note.

    The bar appears at the first call, and may start in the middle.
    """
    from rich.progress import TextColumn

    with _bars(TextColumn("{task.fields[note]}", markup=False)) as bars:
        tasks: list[TaskID] = []

        def show(done: int, note: str) -> None:
            if not tasks:
                tasks.append(bars.add_task(what, total=total, completed=done, unit=unit, note=note))

            bars.update(tasks[0], completed=done, note=note)

        yield show


@contextlib.contextmanager
def working(
    cells: int, result: Callable[[Any], str], *, quiet: bool
) -> Iterator[Callable[[Any], None]]:
    """Show a bar for all cells, and one for every step that is being done.

    The function that is given takes the events of an engine, and prints a line with the `result`
    for every training run and every card, unless `quiet`.
    """
    from rich.progress import TextColumn

    from cfsl.engine.schedule import Busy, Died, Failed, Finished, Told

    with _bars(TextColumn("{task.fields[note]}", markup=False)) as bars:
        whole = bars.add_task("all cells", total=cells, unit=f"of {cells} cells", note="")
        shown: dict[str, TaskID] = {}
        finished = 0

        def watch(event: Any) -> None:
            nonlocal finished
            name = event.step.name
            if isinstance(event, Told):
                done, total, unit, note = event.progress
                if name not in shown:
                    shown[name] = bars.add_task(event.step.label, total=total, unit=unit, note=note)
                bars.update(shown[name], completed=done, note=note)
                return

            if name in shown:
                bars.remove_task(shown.pop(name))
            if isinstance(event, Finished) and event.step.kind == "card":
                finished += 1
                bars.update(whole, completed=finished)

            if not quiet and not isinstance(event, Busy):
                if isinstance(event, Failed):
                    complain(f"{name}: {event.error}")
                elif isinstance(event, Died):
                    complain(f"{name}: {event.how}")
                elif event.step.kind != "piece":
                    say(f"{finished} of {cells} cells: {result(event.step)}")
                    sys.stdout.flush()

        yield watch


def _advance(bars: Progress, what: str, total: int | None, unit: str) -> Callable[[int], None]:
    """Add a bar that appears when it moves; return the function that moves it."""
    task = bars.add_task(what, total=total, visible=False, unit=unit)
    return lambda finished: bars.update(task, advance=finished, visible=True)


def _bars(*more: ProgressColumn) -> Progress:
    """Return bars that are shown on stderr, if it is a terminal.

    Text that is printed to a terminal meanwhile stands above them.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12 if more else 40),
        TextColumn("{task.completed:,.0f} {task.fields[unit]}", markup=False),
        *more,
        TimeRemainingColumn(),
    )
    return Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
    )
