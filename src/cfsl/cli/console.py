"""What the commands share: text for people, JSON for programs, and progress bars."""

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
    """Print one line on stderr."""
    sys.stderr.write(f"cfsl: {_printable(text)}\n")


def print_json(value: Any) -> None:
    """Print a value for a program, in ASCII: no name can be one that the terminal lacks letters for."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_event(value: dict[str, Any]) -> None:
    """Print a value as one line, at once: a program may be reading along."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _printable(text: str) -> str:
    """Write out line breaks and control characters: a name from somebody's archive must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def open_streams() -> None:
    """Let stdout and stderr take any text, even where they are closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - stays open as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Send the rest of stdout nowhere: its reader has gone, or its disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def counting(
    what: str, total: int | None = None, unit: str = "images"
) -> Iterator[Callable[[int], None]]:
    """Show a bar that is told how many more are done."""
    with _bars() as bars:
        yield _count(bars, what, total, unit)


@contextlib.contextmanager
def fetching(name: str) -> Iterator[tuple[Callable[[int, int], None], Callable[[int], None]]]:
    """Show a bar of bytes that is told how many of how many are here, and a bar of images after it."""
    with _bars() as bars:
        task = bars.add_task(f"fetching {name}", total=None, visible=False, unit="MB")

        def received(done: int, total: int) -> None:
            bars.update(task, completed=done / 1e6, total=total / 1e6 or None, visible=True)

        yield received, _count(bars, f"packing {name}", None, "images")


@contextlib.contextmanager
def stepping(what: str, total: int, unit: str) -> Iterator[Callable[[int, str], None]]:
    """Show a bar that is told how many are done by now, with a note; it may start in the middle."""
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
    """Show a bar for all cells and one for every step that is being done; give the function that events are told to.

    A line is printed for every training and every card, with its `result`.
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
                if isinstance(event, Failed | Died):
                    complain(f"{name}: {event.error if isinstance(event, Failed) else event.how}")
                elif event.step.kind != "piece":
                    say(f"{finished} of {cells} cells: {result(event.step)}")
                    sys.stdout.flush()

        yield watch


def _count(bars: Progress, what: str, total: int | None, unit: str) -> Callable[[int], None]:
    task = bars.add_task(what, total=total, visible=False, unit=unit)
    return lambda finished: bars.update(task, advance=finished, visible=True)


def _bars(*more: ProgressColumn) -> Progress:
    """Return bars that appear on stderr, one by one as they start to move, if stderr is a terminal.

    What is printed meanwhile goes above them if it goes to a terminal, too, and else where it belongs.
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
