"""The schedule: a worker gets a step as soon as all steps that it needs are done.

A step that fails stops only the steps that need it; if it does several cells, each cell is then
tried alone. A step whose worker died is given to another worker. A step that another bench is
doing is tried again later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.perform import Progress
from cfsl.engine.steps import PartialResultStep, Step, names_of

_MOST_DEATHS = 3
"""Workers that may die over a step before it counts as failed: the step may be what kills them."""
_LOOK_AGAIN = 1.0
"""Seconds until a step that another bench is doing is tried again."""


class Told(NamedTuple):
    """A worker has told how far a step is."""

    step: Step
    progress: Progress


class Finished(NamedTuple):
    """A step is done."""

    step: Step


class Failed(NamedTuple):
    """A step went wrong."""

    step: Step
    error: str
    trace: str


class Busy(NamedTuple):
    """Another bench is doing the step."""

    step: Step


class Died(NamedTuple):
    """The worker of a step died."""

    step: Step
    how: str


Event: TypeAlias = Told | Finished | Failed | Busy | Died


class StepWorkers(Protocol):
    """One worker or several, in this process or elsewhere, that do steps."""

    @property
    def free(self) -> int:
        """How many more steps it can take now."""
        ...

    def give(self, step: Step) -> None:
        """Start a step."""
        ...

    def next_event(self, timeout: float) -> Event | None:
        """Wait so many seconds for something to happen."""
        ...

    def close(self) -> None:
        """Stop everything at once; what was begun is left as a killed process leaves it."""
        ...


@dataclass
class Ending:
    """How all steps ended."""

    done: list[Step] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """The error of each step that went wrong, by its name."""
    blocked: dict[str, str] = field(default_factory=dict)
    """For each step that was not tried: the name of the one that it needed and that failed."""


Watch = Callable[[Event], None]


def carry_out(
    steps: Sequence[Step], workers: StepWorkers, bench_folder: BenchFolder, watch: Watch
) -> Ending:
    """Do all steps, of which none is done yet.

    A step that another one needs is either in `steps`, before it, or done.
    """
    unfinished = _UnfinishedSteps(steps, bench_folder)
    running = 0

    while unfinished.waiting or running:
        while workers.free and (step := unfinished.next_ready()) is not None:
            workers.give(step)
            running += 1

        event = workers.next_event(_LOOK_AGAIN)
        if event is not None:
            watch(event)
            running -= not isinstance(event, Told)
            unfinished.take(event)

    return unfinished.ending


class _UnfinishedSteps:
    """The steps that are still to be done."""

    def __init__(self, steps: Sequence[Step], bench_folder: BenchFolder) -> None:
        self.waiting = {step.name: step for step in steps}
        self.ending = Ending()
        self._names = {name for step in steps for name in names_of(step)}
        """The names of all steps that are not done: those that wait and those that run."""
        self._bench_folder = bench_folder
        self._deaths: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def next_ready(self) -> Step | None:
        """Return a step whose needs are met, if there is one.

        Cards and partial results come before further training runs, so that results come early.
        """
        ready = [step for step in self.waiting.values() if self._is_ready(step)]
        if not ready:
            return None

        chosen = min(ready, key=lambda step: _ORDER[step.kind])
        return self.waiting.pop(chosen.name)

    def _is_ready(self, step: Step) -> bool:
        not_before = self._not_before.get(step.name, 0.0)
        return self._names.isdisjoint(step.needs) and time.monotonic() >= not_before

    def take(self, event: Event) -> None:
        """Take note of what happened."""
        name = event.step.name
        match event:
            case Finished(step):
                self._names.difference_update(names_of(step))
                self.ending.done.append(step)

            # One of several cells may be at fault: each is tried alone.
            case Failed(PartialResultStep(others=(_, *_)) as step) | Died(
                PartialResultStep(others=(_, *_)) as step
            ):
                self.waiting |= {single.name: single for single in step.singles}

            case Busy(step):
                self._not_before[name] = time.monotonic() + _LOOK_AGAIN
                self.waiting[name] = step

            case Died(step, how):
                self._deaths[name] = self._deaths.get(name, 0) + 1
                if self._deaths[name] < _MOST_DEATHS:
                    self.waiting[name] = step
                else:
                    error = f"its worker died {_MOST_DEATHS} times ({how}); out of memory?"
                    self._give_up(step, error, "")

            case Failed(step, error, trace):
                self._give_up(step, error, trace)

    def _give_up(self, step: Step, error: str, trace: str) -> None:
        """Write down why a step failed, and block all steps that need it."""
        self._bench_folder.write_failure(step, error, trace)
        self.ending.failed[step.name] = error

        # A step may stand before one that it needs: go on until no further step is lost.
        lost, found = {step.name: step.name}, True
        while found:
            found = False
            for later in list(self.waiting.values()):
                cause = next((lost[need] for need in later.needs if need in lost), None)
                if cause is not None:
                    lost[later.name], found = cause, True
                    self.ending.blocked[later.name] = cause
                    del self.waiting[later.name]


_ORDER: Mapping[str, int] = {"card": 0, "piece": 1, "train": 2}
