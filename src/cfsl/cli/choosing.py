"""cfsl choose: hyper-parameters are chosen by a command, on validation tasks."""

from __future__ import annotations

import itertools
import json as json_module
import math
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.cli.console import counting, print_json, say
from cfsl.cli.evaluation import (
    Changes,
    Json,
    Name,
    built_learner,
    checkpoint_notes,
    weights_for,
)
from cfsl.cli.option_values import parsed_change, parsed_value, written_change
from cfsl.cli.task_options import TaskOptions, takes_task_options
from cfsl.errors import SpecError
from cfsl.learners.overrides import changed

if TYPE_CHECKING:
    from cfsl.data.tasks import Tasks
    from cfsl.harness.trace import Trace

SPLIT = "val"
_MOST_COMBINATIONS = 200
_SIGNIFICANT = 0.05


@takes_task_options
def choose(
    options: TaskOptions,
    learner: Name,
    tries: Annotated[
        list[str],
        typer.Option(
            "--try", help="A hyper-parameter and the values to try, such as strength=0,10,100."
        ),
    ],
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of a training run, or a weights file.")
    ] = None,
    tasks: Annotated[int, typer.Option(help="How many tasks.", min=1)] = 100,
    out: Annotated[
        Path | None, typer.Option(help="Where to write all that was tried (.json).")
    ] = None,
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Try every combination of some hyper-parameters' values on validation tasks, and say which is best."""
    if options.split != SPLIT:
        raise SpecError(f"choices are made on validation tasks; leave out --split {options.split}")
    built = built_learner(learner, changes)
    candidates = [(values, changed(built, values)) for values in combinations(tries, changes or [])]
    chosen_tasks = options.tasks(range(tasks))
    traces = []
    with counting(
        f"trying {len(candidates)} x {learner}", len(candidates) * tasks, "tasks"
    ) as progress:
        for _, candidate in candidates:
            meta = weights_for(learner, candidate, checkpoint, chosen_tasks)
            traces.append(_trace(candidate, chosen_tasks, meta, progress))
    tried = ranked([values for values, _ in candidates], traces)
    card = _card(learner, built, tried, chosen_tasks, checkpoint)
    if json:
        print_json(card)
    else:
        _say_table(learner, tried, chosen_tasks)
    if out is not None:
        _write(out, card, quiet=json)
    if not json:
        say(card["options"])


@dataclass(frozen=True)
class Tried:
    """One combination of values, and what came of it."""

    values: dict[str, Any]
    accuracy: dict[str, Any]
    """Mean, standard deviation, confidence interval and count, over tasks."""
    difference: float
    """Of the accuracy to that of the best combination, on the same tasks; 0 for the best itself."""
    ci95: float | None
    p: float
    """Of the paired t test against the best combination."""
    atm: float
    best: bool

    @property
    def mark(self) -> str:
        """Tell the best, and what is not significantly worse."""
        if self.best:
            return "*"
        return "~" if self.p >= _SIGNIFICANT else " "


def combinations(tries: list[str], changes: list[str]) -> list[dict[str, Any]]:
    """Read every name=value,value and return all combinations, in the order given; refuse what --set gives, too."""
    values: dict[str, list[Any]] = {}
    fixed = {parsed_change(change)[0] for change in changes}
    for text in tries:
        name, sign, listed = text.partition("=")
        if not sign or not name:
            raise SpecError(f"--try {text} is not of the form name=value,value")
        if name in values:
            raise SpecError(
                f"--try {name} is given twice; give all its values at once, as {name}=value,value"
            )
        if name in fixed:
            raise SpecError(f"{name} is both given by --set and to be tried; leave out one of them")
        values[name] = _listed(name, listed)
    count = math.prod(len(several) for several in values.values())
    if count > _MOST_COMBINATIONS:
        raise SpecError(
            f"{count} combinations are too many to try; give fewer values, {_MOST_COMBINATIONS} at most"
        )
    return [
        dict(zip(values, combination, strict=True))
        for combination in itertools.product(*values.values())
    ]


def _listed(name: str, text: str) -> list[Any]:
    """Read values between commas: JSON, whose lists have commas of their own, or words."""
    read = parsed_value(f"[{text}]")
    values = (
        read if isinstance(read, list) else [parsed_value(part.strip()) for part in text.split(",")]
    )
    if not values or "" in values:
        raise SpecError(f"--try {name}={text} has an empty value; write {name}=value,value")
    for position, value in enumerate(values):
        if value in values[:position]:
            raise SpecError(f"--try {name}={text} has {json_module.dumps(value)} twice")
    return values


def ranked(combinations: list[dict[str, Any]], traces: list[Trace]) -> list[Tried]:
    """Compare every combination with the best, which is the one of the highest mean, and the first of equals."""
    from cfsl.metrics.accuracy import summarise, task_accuracies
    from cfsl.metrics.memory import atm
    from cfsl.metrics.paired import compare

    accuracies = [summarise(task_accuracies(trace)) for trace in traces]
    best = max(range(len(traces)), key=lambda number: accuracies[number].mean)
    tried = []
    for number, (values, trace) in enumerate(zip(combinations, traces, strict=True)):
        paired = compare(trace, traces[best])
        summary = asdict(accuracies[number])
        tried.append(
            Tried(
                values,
                summary,
                paired.difference,
                paired.ci95,
                paired.p,
                atm(trace).total,
                number == best,
            )
        )
    return tried


def _trace(learner: Any, tasks: Tasks, meta: Any, progress: Callable[[int], None]) -> Trace:
    from cfsl.harness.evaluate import evaluate

    return evaluate(learner, tasks, meta, accelerate=True, progress=progress)


def _say_table(learner: str, tried: list[Tried], tasks: Tasks) -> None:
    from cfsl.report.draw_task import describe_spec

    say(f"{learner} on {tasks.data.name}/{tasks.split}, {len(tasks)} tasks")
    say(f"  {describe_spec(tasks.spec)}")
    header = ["", *tried[0].values, "accuracy %", "to the best", "p", "ATM"]
    rows = [header, *([one.mark, *_shown(one)] for one in tried)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    say(
        "* best mean"
        + (
            "; ~ not significantly worse (paired t test)"
            if any(o.mark == "~" for o in tried)
            else ""
        )
    )


def _shown(one: Tried) -> list[str]:
    from cfsl.cards.card_rows import percent

    values = [written_change("", value).removeprefix("=") for value in one.values.values()]
    accuracy = percent(one.accuracy["mean"], one.accuracy["ci95"])
    compared = ["", ""] if one.best else [percent(one.difference, one.ci95), f"{one.p:.2g}"]
    return [*values, accuracy, *compared, f"{one.atm:.4f}"]


def _options(values: dict[str, Any]) -> str:
    """Return what to put on the command line."""
    return " ".join(
        f"--set {shlex.quote(written_change(name, value))}" for name, value in values.items()
    )


def _card(
    learner: str, built: Any, tried: list[Tried], tasks: Tasks, checkpoint: Path | None
) -> dict[str, Any]:
    from cfsl.cards.environment import environment
    from cfsl.runs.evaluation import described, tasks_described

    best = next(one for one in tried if one.best)
    return {
        "kind": "choice",
        "learner": {"name": learner, **described(built)},
        "checkpoint": None if checkpoint is None else checkpoint_notes(checkpoint),
        "tasks": tasks_described(tasks),
        "tried": [asdict(one) for one in tried],
        "chosen": best.values,
        "options": _options(best.values),
        "circumstances": {"environment": environment()},
    }


def _write(out: Path, card: dict[str, Any], *, quiet: bool) -> None:
    from cfsl.cards.card import write_content

    write_content(out, card)
    if not quiet:
        say(f"wrote {out}")
