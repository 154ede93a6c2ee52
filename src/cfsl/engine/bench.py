"""A bench: runs that are to be done, in a folder where some may be done already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.schedule import Ending, StepWorkers, Watch, carry_out
from cfsl.engine.steps import (
    CardStep,
    PartialResultStep,
    Step,
    TrainStep,
    learned_together,
    steps_of,
)
from cfsl.runs.run_spec import RunSpec


@dataclass
class Plan:
    """The steps that are still to be done, and the runs and steps that are not."""

    runs: list[RunSpec]
    look_only: bool = False
    """Whether nothing may be changed."""
    done: list[RunSpec] = field(default_factory=list)
    """Runs that have their cards."""
    steps: list[Step] = field(default_factory=list)
    """Still to be done, in an order that can be followed."""
    failed: dict[str, str] = field(default_factory=dict)
    """Steps that failed before, with their errors: they are tried again on request."""
    blocked: dict[str, str] = field(default_factory=dict)
    """Steps that need a failed step, with the name of that step."""
    aside: list[str] = field(default_factory=list)
    """A sentence about every damaged file that was set aside."""


def planned(
    runs: Sequence[RunSpec],
    bench_folder: BenchFolder,
    *,
    retry: bool = False,
    look_only: bool = False,
) -> Plan:
    """Return what is done and what is not.

    Damaged files are set aside, unless you `look_only`.
    """
    if not look_only:
        bench_folder.remove_abandoned_parts()

    plan = Plan(list(runs), look_only=look_only)
    for run in runs:
        if _is_done(CardStep(run), bench_folder, plan):
            plan.done.append(run)

    finished = {run.hash for run in plan.done}
    for step in steps_of(run for run in runs if run.hash not in finished):
        _add_to_plan(step, bench_folder, plan, retry=retry)

    plan.steps = learned_together(plan.steps)
    return plan


def _add_to_plan(step: Step, bench_folder: BenchFolder, plan: Plan, *, retry: bool) -> None:
    """Add a step that is not done to a plan: as failed before, as blocked, or as to be done."""
    if not isinstance(step, CardStep) and _is_done(step, bench_folder, plan):
        return

    failure = bench_folder.failure(step)
    if failure is not None and retry:
        failure = None
        if not plan.look_only:
            bench_folder.forget_failure(step)

    unmet = [need for need in step.needs if need in plan.failed or need in plan.blocked]
    if failure is not None:
        plan.failed[step.name] = str(failure.get("error"))
    elif unmet:
        plan.blocked[step.name] = plan.blocked.get(unmet[0], unmet[0])
    else:
        plan.steps.append(step)


def _is_done(step: Step, bench_folder: BenchFolder, plan: Plan) -> bool:
    done, damage = bench_folder.checked(step, look_only=plan.look_only)
    if damage is not None and damage not in plan.aside:
        plan.aside.append(damage)
    return done


def run_plan(
    plan: Plan, bench_folder: BenchFolder, start_workers: Callable[[], StepWorkers], watch: Watch
) -> Ending:
    """Do the steps of a plan; workers are only started if there are any steps."""
    ending = Ending(failed=dict(plan.failed), blocked=dict(plan.blocked))

    if plan.steps:
        with closing(start_workers()) as workers:
            now = carry_out(plan.steps, workers, bench_folder, watch)
        ending.done += now.done
        ending.failed |= now.failed
        ending.blocked |= now.blocked

    return ending


def trainings(steps: Sequence[Step]) -> list[TrainStep]:
    """Return the steps that train."""
    return [step for step in steps if isinstance(step, TrainStep)]


def partial_steps(steps: Sequence[Step]) -> list[PartialResultStep]:
    """Return the steps that run tasks."""
    return [step for step in steps if isinstance(step, PartialResultStep)]
