"""cfsl bench: a table or figure of the papers, in one command."""

from __future__ import annotations

import json as json_module
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.cli.console import complain, print_json, say, working
from cfsl.cli.option_values import known_precision, listed, look_in_current_folder, slow_precision
from cfsl.errors import CfslError, SpecError, lookup

if TYPE_CHECKING:
    from cfsl.engine.bench import Plan
    from cfsl.engine.bench_folder import BenchFolder
    from cfsl.engine.schedule import Ending, Event, StepWorkers
    from cfsl.engine.steps import Step
    from cfsl.presets.cells import Cell

_FAILED = 1


def bench(
    suite: Annotated[
        str,
        typer.Argument(
            help="table1, figure3, figure4, replication, scaling, instance, corruption, smoke, "
            "or all (but smoke)."
        ),
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            help="smoke (minutes), quick (an evening on two cores; the default), strong (stages) "
            "or paper (published)."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data sets, with commas; default: the suite's.")
    ] = None,
    splits: Annotated[
        str | None, typer.Option(help="Split file of the data set: a name, or a path.")
    ] = None,
    learners: Annotated[
        str | None, typer.Option(help="Learners, with commas; default: the suite's.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns, with commas, such as B3,D4; default: all.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Training seeds, instead of the profile's.", min=1)
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(help="Test tasks a cell, instead of the profile's.", min=1)
    ] = None,
    settings: Annotated[
        list[Path] | None,
        typer.Option(help="Hyper-parameters of a learner, as 'cfsl sweep' writes them."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="What maps are computed in while training: float32 (usual) or bfloat16."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for cards and training runs; what is there is not redone.")
    ] = Path("bench"),
    engine: Annotated[
        str | None,
        typer.Option(
            help="local, processes (default where there are several cores) or ray (a cluster)."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Steps at once; default: the cores.", min=1)
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; default: one on this machine.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what there is to do, and how long it takes.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run a table or figure of the papers: train, evaluate, and show ours beside theirs.

    Stop and go on at any time.
    """
    from cfsl.engine.bench import planned, run_plan
    from cfsl.engine.bench_folder import BenchFolder
    from cfsl.engine.estimate import Times
    from cfsl.presets.cells import Request, cells_of, runs_of

    signal.signal(signal.SIGTERM, _stop)
    look_in_current_folder()
    if out.exists() and not out.is_dir():
        raise SpecError(f"--out {out} is a file; name a folder")

    start_workers = _workers_of(engine, workers, address)
    request = Request(
        suite=suite,
        profile=profile or ("smoke" if suite == "smoke" else "quick"),
        data=listed("data", data),
        splits=splits,
        learners=listed("learners", learners),
        columns=listed("columns", columns),
        seeds=seeds,
        tasks=tasks,
        changes=_changes(settings or []),
        precision=None if precision is None else known_precision(precision),
    )
    slower = slow_precision(request.precision, "cpu") if engine != "ray" else None
    if slower:
        complain(slower)

    bench_folder = BenchFolder(out)
    cells = cells_of(request)
    prepared = planned(runs_of(cells), bench_folder, retry=retry, look_only=plan)
    for damage in prepared.aside:
        complain(damage)

    if plan:
        _say_plan(cells, prepared, bench_folder, json=json)
        return
    if not prepared.runs:
        reasons = "; ".join(reason for reason, _ in _reasons(cells))
        raise CfslError(f"nothing can be run: {reasons}")

    # The longest training runs come first, so that no worker waits for one at the end.
    times = Times.of(bench_folder)
    prepared.steps.sort(key=lambda step: -times.seconds(step) if step.kind == "train" else 0.0)

    # A learner of your own may print, which must not get into the JSON.
    left = len(prepared.runs) - len(prepared.done)
    learner_output = redirect_stdout(sys.stderr) if json else nullcontext()
    with working(left, partial(_result, bench_folder), quiet=json) as watch, learner_output:
        ending = run_plan(prepared, bench_folder, lambda: start_workers(bench_folder, watch), watch)

    _say_end(cells, ending, bench_folder, json=json)
    if ending.failed:
        raise typer.Exit(_FAILED)


def _result(bench_folder: BenchFolder, step: Step) -> str:
    """Describe the result of a step."""
    from cfsl.cards.card import read_card
    from cfsl.cards.card_rows import percent

    if step.kind != "card":
        return f"{step.label}: done"
    accuracy = read_card(bench_folder.card(step.spec)).headline.accuracy
    return f"{step.label.removesuffix(', costs')}: {percent(accuracy.mean, accuracy.ci95)} %"


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _changes(files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Read files of hyper-parameters: {"learner": name, "changes": {name: value}}."""
    read = {}
    for path in files:
        try:
            content = json_module.loads(path.read_text(encoding="utf-8"))
            learner, changes = str(content["learner"]), dict(content["changes"])
        except OSError as error:
            raise SpecError(f"--settings {path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            example = '{"learner": "protonet", "changes": {}}'
            raise SpecError(
                f"{path} has no settings of a learner, such as {example}: {error}"
            ) from error

        if learner in read:
            raise SpecError(f"{path} is a second file of settings for {learner}; give one")
        read[learner] = changes

    return read


StartWorkers = Callable[["BenchFolder", Callable[["Event"], None]], "StepWorkers"]


def _workers_of(engine: str | None, workers: int | None, address: str | None) -> StartWorkers:
    """Return the function that starts the workers of an engine."""
    count = workers or _cores()
    name = engine or ("processes" if count > 1 else "local")

    if address is not None and name != "ray":
        raise SpecError(f"--address is that of a Ray cluster; give --engine ray, not {name}")
    if name == "local" and workers is not None and workers > 1:
        raise SpecError(
            f"--engine local does one step at a time, not {workers}; use --engine processes"
        )

    engines: dict[str, StartWorkers] = {
        "local": _local,
        "processes": _processes(count),
        "ray": _ray(workers, address),
    }
    return lookup(engines, name, "engine")


def _cores() -> int:
    """Return how many cores this process may use."""
    import os

    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _local(bench_folder: BenchFolder, watch: Callable[[Event], None]) -> StepWorkers:
    from cfsl.engine.local import LocalWorker

    return LocalWorker(bench_folder, watch)


def _processes(count: int) -> StartWorkers:
    def start_workers(bench_folder: BenchFolder, watch: Callable[[Event], None]) -> StepWorkers:
        from cfsl.engine.processes import ProcessWorkers

        return ProcessWorkers(bench_folder, count)

    return start_workers


def _ray(count: int | None, address: str | None) -> StartWorkers:
    def start_workers(bench_folder: BenchFolder, watch: Callable[[Event], None]) -> StepWorkers:
        from cfsl.engine.ray.cluster import RayWorkers

        return RayWorkers(bench_folder, count, address)

    return start_workers


def _say_plan(cells: list[Cell], plan: Plan, bench_folder: BenchFolder, *, json: bool) -> None:
    """Say what there is to do, cell by cell, and how long it takes."""
    from cfsl.engine.bench import partial_steps, trainings
    from cfsl.engine.estimate import Times

    times, done = Times.of(bench_folder), {run.hash for run in plan.done}
    lines = [(cell, _state(cell, done, plan), cell.why_not) for cell in cells]
    states = Counter(state for _, state, _ in lines)

    seconds = {step.name: times.seconds(step) for step in plan.steps}
    total = sum(seconds.values())
    summary = {
        "cells": states,
        "trainings": len(trainings(plan.steps)),
        "pieces": len(partial_steps(plan.steps)),
        "failed before": len(plan.failed),
        "core hours": total / 3600,
    }
    if json:
        rows = [_plan_row(cell, state, why) for cell, state, why in lines]
        print_json(summary | {"plan": rows, "steps": seconds})
        return

    for text in _plan_lines(lines):
        say(text)
    for step in trainings(plan.steps):
        schedule, hours = _schedule(step.spec.training), _hours(seconds[step.name])
        say(f"train {step.spec.name}: {schedule}, {hours}")

    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    say(
        f"{len(cells)} cells: {counts}; "
        f"{summary['trainings']} trainings, {summary['pieces']} pieces of evaluation"
    )
    if plan.failed:
        say(f"{len(plan.failed)} steps failed before; --retry tries them again")
    say(f"about {_hours(total)} on one core, {_hours(total / 2)} on two ({times.source})")


def _plan_row(cell: Cell, state: str, why: str) -> dict[str, Any]:
    return {
        "suite": cell.suite,
        "data": cell.data,
        "learner": cell.learner,
        "column": cell.column,
        "seed": cell.seed,
        "state": state,
        "why": why,
        "run": None if cell.run is None else cell.run.hash,
    }


def _state(cell: Cell, done: set[str], plan: Plan) -> str:
    from cfsl.engine.steps import steps_of

    if cell.run is None:
        return "not applicable"
    if cell.run.hash in done:
        return "done"

    impossible = plan.failed.keys() | plan.blocked.keys()
    if impossible and any(step.name in impossible for step in steps_of([cell.run])):
        return "failed before"
    return "to do"


def _plan_lines(lines: list[tuple[Cell, str, str]]) -> Iterator[str]:
    """Yield a line for every learner of a table: which of its columns are in which state."""
    grouped: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for cell, state, why in lines:
        group = grouped.setdefault((cell.suite, cell.data, cell.learner), {})
        columns = group.setdefault(f"{state}: {why}" if why else state, [])
        if cell.column not in columns:
            columns.append(cell.column)

    for (suite, data, learner), states in grouped.items():
        for state, columns in states.items():
            yield f"{suite:<12}{data:<16}{learner:<22}{' '.join(columns)}  {state}"


def _schedule(training: Any) -> str:
    schedule, batch = training.schedule, training.schedule.batch
    each = f"{batch} images" if training.iid else f"{batch} {training.episodes.n_way}-way tasks"
    updates = f"{schedule.epochs} x {schedule.updates} updates of {each}"
    return f"{updates}, validated with nss {training.validation.nss}"


def _hours(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def _say_end(cells: list[Cell], ending: Ending, bench_folder: BenchFolder, *, json: bool) -> None:
    """Show the tables, then which results are missing and why."""
    from cfsl.report.bench_tables import tables_of

    tables = tables_of(cells, bench_folder.card)
    if json:
        rows = [row for table in tables for row in table.rows()]
        print_json({"cells": rows, "failed": ending.failed, "blocked": ending.blocked})
        return

    width = shutil.get_terminal_size((120, 24)).columns
    for table in tables:
        for line in table.lines(width):
            say(line)
        say()

    for reason, names in _reasons(cells):
        say(f"not applicable: {', '.join(names)}: {reason}")
    for name, error in ending.failed.items():
        trace = f"{bench_folder.path / 'failed' / name}.json"
        complain(f"{name} failed: {error} (trace in {trace}; --retry tries again)")
    for name, cause in ending.blocked.items():
        complain(f"{name} was not run, since {cause} failed")

    say(f"cards are in {bench_folder.path / 'cards'}")


def _reasons(cells: list[Cell]) -> list[tuple[str, list[str]]]:
    """Return why cells are not applicable, and which."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        if cell.run is None:
            name = f"{cell.data} {cell.column}"
            names = reasons.setdefault(cell.why_not, [])
            if name not in names:
                names.append(name)
    return list(reasons.items())
