"""cfsl sweep: a study of hyper-parameters on validation tasks, which can be stopped and goes on."""

from __future__ import annotations

import contextlib
import json as json_module
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.cli.choosing import SPLIT, explained_marks
from cfsl.cli.console import complain, print_json, say, stepping
from cfsl.cli.evaluation import Changes, Json, Name
from cfsl.cli.option_values import (
    look_in_current_folder,
    parsed_changes,
    parsed_lists,
    set_options,
    written_change,
)
from cfsl.cli.task_options import TaskOptions, takes_task_options
from cfsl.cli.training import say_what_was_fitted
from cfsl.errors import SpecError, lookup

if TYPE_CHECKING:
    from cfsl.spec import TaskSpec
    from cfsl.sweep.outcome import Row
    from cfsl.sweep.space import Space
    from cfsl.sweep.trials import Sweep
    from cfsl.sweep.work import Ended, Happening
    from cfsl.sweep.workers import Job

_FAILED = 1
_TRIALS = 20
_PICTURE = "sweep.png"
_DOTS_PER_INCH = 160


@takes_task_options
def sweep(
    options: TaskOptions,
    learner: Name,
    space: Annotated[
        Path | None,
        typer.Option(help='JSON file: {"lr": {"low": 0.001, "high": 0.1, "log": true}, ...}.'),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A hyper-parameter and its values, such as lr=0.003,0.01,0.03."),
    ] = None,
    paper2: Annotated[
        bool,
        typer.Option(
            "--paper2", help="Vary what paper 2 varied, one at a time, around its values."
        ),
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(
            help="grid (default of --vary), univariate (of --paper2), tpe (of --space) or random."
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help=f"For tpe and random; default {_TRIALS}.", min=1)
    ] = None,
    tasks: Annotated[int, typer.Option(help="Validation tasks a trial.", min=1)] = 100,
    recipe: Annotated[
        str, typer.Option(help="Of training, if there is any: short or paper.")
    ] = "short",
    epochs: Annotated[
        int | None, typer.Option(help="Epochs, instead of the recipe's.", min=1)
    ] = None,
    updates: Annotated[
        int | None, typer.Option(help="Updates in an epoch, instead of the recipe's.", min=1)
    ] = None,
    training_seed: Annotated[
        int, typer.Option(help="Seed of first weights and training data.", min=0)
    ] = 0,
    search_seed: Annotated[int, typer.Option(help="Seed of tpe and random.", min=0)] = 0,
    workers: Annotated[int, typer.Option(help="Processes that do trials at once.", min=1)] = 1,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder; default: sweeps/LEARNER-DATA-TYPEnss.")
    ] = None,
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Search hyper-parameters on validation tasks: train and evaluate every trial.

    Stop and go on at any time.
    """
    from cfsl.runs.data import data_spec
    from cfsl.sweep.study import require_optuna
    from cfsl.sweep.trials import Sweep, sound, training_for
    from cfsl.sweep.workers import Job
    from cfsl.training.recipes import fitted_to

    signal.signal(signal.SIGTERM, _stop)
    look_in_current_folder()
    require_optuna()
    _require_validation(options)

    task = options.spec()
    chosen = _method(method, trials, space, vary, paper2=paper2)
    base, wanted = _space(learner, options.data, task, space, vary, paper2=paper2)

    data = options.open()
    lengths = {"epochs": epochs, "updates": updates}
    characters = data.info.recipe.channels == 1
    wished = training_for(learner, recipe, task, training_seed, lengths, characters=characters)
    training = wished and fitted_to(data, wished)
    if wished and training and not json:
        say_what_was_fitted(wished, training, data)

    asked = sound(
        Sweep(
            learner=learner,
            base=base | parsed_changes(changes or []),
            data=data_spec(data, options.splits),
            task=task,
            tasks=tasks,
            task_seed=options.seed,
            training=training,
            seed=training_seed,
            space=wanted,
            method=chosen,
            search_seed=search_seed,
        )
    )
    name = f"{learner.replace(':', '-')}-{options.data}-{task.task_type}{task.nss}"
    folder = out or Path("sweeps") / name

    failed = _swept(Job(asked, folder, trials or _TRIALS), workers, retry=retry, json=json)
    if failed:
        raise typer.Exit(_FAILED)


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _require_validation(options: TaskOptions) -> None:
    if options.split != SPLIT:
        raise SpecError(f"sweeps are on validation tasks; leave out --split {options.split}")
    if options.sampler != TaskOptions().sampler:
        raise SpecError(
            f"sweeps are on tasks of the sampler {TaskOptions().sampler}; leave out --sampler"
        )


def _method(
    method: str | None, trials: int | None, space: Path | None, vary: Any, *, paper2: bool
) -> Any:
    """Return the method that was asked for, or the usual one."""
    from cfsl.sweep.space import LISTED, METHODS

    if [space is not None, bool(vary), paper2].count(True) != 1:
        raise SpecError(
            "say what to vary by one of --vary name=value,value, --space FILE.json and --paper2"
        )

    name = method or ("univariate" if paper2 else "tpe" if space else "grid")
    lookup(METHODS, name, "method")
    if paper2 and name != "univariate":
        raise SpecError(f"paper 2 varied one hyper-parameter at a time; leave out --method {name}")
    if trials is not None and name in LISTED:
        raise SpecError(
            f"--method {name} has as many trials as there are values; leave out --trials"
        )

    return name


def _space(
    learner: str,
    data: str,
    task: TaskSpec,
    space: Path | None,
    vary: list[str] | None,
    *,
    paper2: bool,
) -> tuple[dict[str, Any], Space]:
    """Return the fixed values and the space of those that vary."""
    from cfsl.sweep.paper2 import paper_2_sweep
    from cfsl.sweep.space import read_space

    if paper2:
        return paper_2_sweep(learner, data, task)
    if space is None:
        return {}, read_space(parsed_lists("--vary", vary or []))

    try:
        return {}, read_space(json_module.loads(space.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SpecError(f"{space} cannot be read as a space: {error}") from error
    except SpecError as error:
        raise SpecError(f"{space}: {error}") from error


def _swept(job: Job, workers: int, *, retry: bool, json: bool) -> bool:
    """Do the trials that are left, show the result, and tell whether any trial failed."""
    from cfsl.sweep.outcome import best_of, rows_of, write_best
    from cfsl.sweep.work import forget_failures, work
    from cfsl.sweep.workers import work_together

    with contextlib.closing(job.open()) as study:
        forget_failures(job.sweep, study.prepare(retry=retry), job.folder)
        done = sum(one.accuracy is not None for one in study.tried())
        with _watching(study.total, done, quiet=json) as watch:
            if workers == 1:
                work(study, job.sweep, job.folder, watch)
            else:
                work_together(job, study, min(workers, max(1, study.total - done)), watch)
        rows = rows_of(study.tried(), job.folder)

    best = best_of(job.sweep, rows, job.folder)
    if best is not None:
        write_best(best, job.folder)
        _draw(job.sweep, rows, job.folder)

    if json:
        print_json(_report(job, rows, best))
    else:
        _say_outcome(job, rows, best)
    return any(row.error for row in rows)


@contextlib.contextmanager
def _watching(total: int, done: int, *, quiet: bool) -> Iterator[Callable[[Happening], None]]:
    """Show a bar over all trials, with a note on the running ones; print a line for each result."""
    from cfsl.sweep.work import Begun, Came

    notes: dict[int, str] = {}
    with stepping("trials", total, f"of {total} trials") as show:

        def watch(event: Happening) -> None:
            nonlocal done
            if isinstance(event, Begun):
                notes[event.point] = f"trial {event.point}"
            elif isinstance(event, Came):
                notes[event.point] = f"trial {event.point}: {event.note}"
            else:
                notes.pop(event.point, None)
                done += event.error is None
                if not quiet:
                    say(_trial_line(event))
                    sys.stdout.flush()

            show(done, "; ".join(notes.values()))

        yield watch


def _trial_line(trial: Ended) -> str:
    result = f"failed: {trial.error}"
    if trial.accuracy is not None:
        result = f"{100 * trial.accuracy:.2f} %"
    return f"trial {trial.point} ({_written(trial.values)}): {result}"


def _draw(sweep: Sweep, rows: Sequence[Row], folder: Path) -> None:
    from cfsl.files import written_whole
    from cfsl.report.sweep_chart import sweep_chart
    from cfsl.sweep.space import Range

    log = [name for name, domain in sweep.space.items() if isinstance(domain, Range) and domain.log]
    task = f"{sweep.task.task_type} with {sweep.task.nss} support sets"
    title = f"{sweep.learner} on {sweep.data.name}, {task}, {sweep.tasks} tasks"
    chart = sweep_chart([asdict(row) for row in rows], sweep.method, title, sweep.centre, log)

    with written_whole(folder / _PICTURE) as part:
        chart.savefig(part, dpi=_DOTS_PER_INCH, format="png")


def _report(job: Job, rows: Sequence[Row], best: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "kind": "sweep",
        "sweep": job.sweep.model_dump(mode="json"),
        "folder": str(job.folder),
        "trials": [asdict(row) for row in rows],
        "best": best,
        "options": None if best is None else set_options(best["changes"]),
    }


def _say_outcome(job: Job, rows: Sequence[Row], best: dict[str, Any] | None) -> None:
    from cfsl.report.draw_task import describe_spec
    from cfsl.sweep.outcome import idle
    from cfsl.sweep.space import METHODS

    sweep = job.sweep
    method = METHODS[sweep.method]
    say(f"{sweep.learner} on {sweep.data.name}/{SPLIT}, {sweep.tasks} tasks; {method}")
    say(f"  {describe_spec(sweep.task)}")
    _say_table(sweep, rows)

    for row in rows:
        if row.error:
            complain(f"trial {row.trial} failed: {row.error} (--retry tries it again)")
    left = sum(row.accuracy is None and not row.error for row in rows)
    if left:
        say(
            f"{left} trials are not done; another sweep is at them: "
            "the best so far may not stay the best"
        )
    for name in idle(rows):
        say(f"{name} made no difference at all, so that {sweep.learner} may not use it here")

    if best is None:
        return
    say(f"wrote {job.folder / 'best.json'} and {job.folder / _PICTURE}")
    _say_what_bench_leaves_out(sweep, best)
    if best["changes"]:
        say(set_options(best["changes"]))


def _say_table(sweep: Sweep, rows: Sequence[Row]) -> None:
    """Show the trials as a table; the row of a trial without a result is shorter."""
    header = ["", "trial", *sweep.space, "accuracy %", "to the best", "p value", "ATM", "MMACs"]
    table = [header, *(_cells(row) for row in rows)]
    widths = [
        max(len(cells[column]) for cells in table if column < len(cells))
        for column in range(len(header))
    ]

    for cells in table:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        say("  ".join(padded).rstrip())
    say(explained_marks(row.mark for row in rows))


def _say_what_bench_leaves_out(sweep: Sweep, best: dict[str, Any]) -> None:
    """Name the values that 'cfsl bench --settings' does not take from the best trial."""
    values = best["values"]
    trained = {name: value for name, value in values.items() if name.startswith("training.")}
    precision = trained.pop("training.precision", None)

    if precision is not None:
        say(
            "'cfsl bench --settings' leaves out training.precision; "
            f"give it as --precision {precision}"
        )
    own_schedules = "'cfsl bench --settings' has its own schedules: it leaves out"
    if trained:
        say(f"{own_schedules} {_written(trained)}")
    elif "rate" in values and sweep.training is not None:
        say(f"{own_schedules} the tenth of rate that training has")


def _cells(row: Row) -> list[str]:
    from cfsl.cards.card_rows import percent

    values = [_value(value) for value in row.values.values()]
    if row.accuracy is None or row.macs is None:
        return [row.mark, str(row.trial), *values, row.state]

    compared = ["", ""]
    if not row.best and row.difference is not None:
        compared = [percent(row.difference, row.difference_ci95), f"{row.p:.2g}"]
    millions = (row.macs["adaptation"] + row.macs["prediction"]) / 1e6
    accuracy = percent(row.accuracy, row.ci95)
    costs = [f"{row.atm:.4f}", f"{millions:,.1f}"]
    return [row.mark, str(row.trial), *values, accuracy, *compared, *costs]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return written_change("", value).removeprefix("=")


def _written(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())
