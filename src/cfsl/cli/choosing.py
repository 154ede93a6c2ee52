"""cfsl choose: try combinations of hyper-parameters on validation tasks, and name the best."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cfsl.cli.console import counting, print_json, say
from cfsl.cli.evaluation import Changes, Json, Name
from cfsl.cli.option_values import (
    look_in_current_folder,
    parsed_changes,
    parsed_lists,
    set_options,
    written_change,
)
from cfsl.cli.task_options import TaskOptions, takes_task_options
from cfsl.errors import SpecError

if TYPE_CHECKING:
    from cfsl.data.tasks import Tasks
    from cfsl.sweep.choice import Tried
    from cfsl.sweep.space import Point, Space

SPLIT = "val"
_MOST_COMBINATIONS = 200


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
    """Try every combination of hyper-parameters' values on validation tasks; say which is best."""
    from cfsl.cards.card import write_content
    from cfsl.harness.evaluate import Conditions
    from cfsl.runs.perform import perform
    from cfsl.runs.run_spec import built, learner_spec
    from cfsl.runs.weights import weights_asked_for
    from cfsl.sweep.choice import choice_card, ranked

    if options.split != SPLIT:
        raise SpecError(f"choices are made on validation tasks; leave out --split {options.split}")

    look_in_current_folder()
    fixed = parsed_changes(changes or [])
    base = learner_spec(learner, fixed)
    points = combinations(tries, fixed)
    candidates = [learner_spec(learner, fixed | point) for point in points]
    chosen_tasks = options.tasks(range(tasks))
    weights = weights_asked_for(learner, checkpoint)

    answers, total = [], len(points) * tasks
    with counting(f"trying {len(points)} x {learner}", total, "tasks") as progress:
        for candidate in candidates:
            run = options.run(candidate, chosen_tasks, weights)
            done = perform(run, weights, Conditions(accelerate=True), progress=progress)
            answers.append(done.answers[""])

    tried = ranked(points, answers)
    to_set = set_options(next(one for one in tried if one.best).values)
    card = choice_card(learner, built(base), tried, to_set, chosen_tasks, weights.notes())

    if json:
        print_json(card)
    else:
        _say_table(learner, tried, chosen_tasks)
    if out is not None:
        write_content(out, card)
        if not json:
            say(f"wrote {out}")
    if not json:
        say(to_set)


def combinations(tries: list[str], fixed: Iterable[str]) -> list[Point]:
    """Read every name=value,value and return all combinations; refuse what is fixed already."""
    from cfsl.sweep.space import Choices, listed_points

    values = parsed_lists("--try", tries)
    for name in fixed:
        if name in values:
            raise SpecError(f"{name} is both given by --set and to be tried; leave out one of them")

    count = math.prod(len(several) for several in values.values())
    if count > _MOST_COMBINATIONS:
        raise SpecError(
            f"{count} combinations are too many to try; give fewer values, {_MOST_COMBINATIONS} at "
            f"most"
        )

    space: Space = {name: Choices(choices=tuple(several)) for name, several in values.items()}
    return listed_points("grid", space, {})


def _say_table(learner: str, tried: list[Tried], tasks: Tasks) -> None:
    from cfsl.report.draw_task import describe_spec

    say(f"{learner} on {tasks.data.name}/{tasks.split}, {len(tasks)} tasks")
    say(f"  {describe_spec(tasks.spec)}")

    header = ["", *tried[0].values, "accuracy %", "to the best", "p", "ATM"]
    rows = [header, *([one.mark, *_shown(one)] for one in tried)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    say(explained_marks(one.mark for one in tried))


def explained_marks(marks: Iterable[str]) -> str:
    """Explain the marks that a table of tried values shows."""
    ties = "; ~ not significantly worse (paired t test)" if "~" in marks else ""
    return f"* best mean{ties}"


def _shown(one: Tried) -> list[str]:
    from cfsl.cards.card_rows import percent

    values = [written_change("", value).removeprefix("=") for value in one.values.values()]
    accuracy = percent(one.accuracy["mean"], one.accuracy["ci95"])
    compared = ["", ""] if one.best else [percent(one.difference, one.ci95), f"{one.p:.2g}"]
    return [*values, accuracy, *compared, f"{one.atm:.4f}"]
