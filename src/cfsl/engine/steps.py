"""Steps: train, run some tasks, write a card. Each step names the steps that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from cfsl.runs.run_spec import RunSpec, TrainSpec
from cfsl.spec import Occlusion


@dataclass(frozen=True)
class TrainStep:
    """Train a learner."""

    spec: TrainSpec
    kind: Literal["train"] = "train"

    @property
    def name(self) -> str:
        """What the step is known by, in files too."""
        return f"train-{self.spec.name}"

    @property
    def label(self) -> str:
        """What the step is called when people watch."""
        return f"training {self.spec.learner.name} on {self.spec.data.name}"

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the training run that this one starts from, if there is one."""
        return () if self.spec.start is None else (TrainStep(self.spec.start).name,)


@dataclass(frozen=True)
class PartialResultStep:
    """Run some tasks of a cell, and of cells that are learned with it (see `learned_together`)."""

    spec: RunSpec
    start: int
    others: tuple[RunSpec, ...] = ()
    kind: Literal["piece"] = "piece"

    @property
    def name(self) -> str:
        """What the step is known by, in files too."""
        return f"piece-{self.spec.name}-{self.start:06d}"

    @property
    def singles(self) -> list[PartialResultStep]:
        """Return the same tasks, cell by cell."""
        return [PartialResultStep(run, self.start) for run in (self.spec, *self.others)]

    @property
    def label(self) -> str:
        """What the step is called when people watch."""
        cells = _cell(self.spec)
        if self.others:
            cells = f"{_learned(self.spec)}, {len(self.others) + 1} corruptions"
        return f"{cells}, tasks {self.start}-{self.numbers[-1]}"

    @property
    def numbers(self) -> range:
        """The numbers of its tasks."""
        return range(self.start, min(self.start + self.spec.piece, self.spec.tasks))

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the step that trains the learner, if there is one."""
        return _training(self.spec)


@dataclass(frozen=True)
class CardStep:
    """Write the card of a cell from its partial results."""

    spec: RunSpec
    kind: Literal["card"] = "card"

    @property
    def name(self) -> str:
        """What the step is known by, in files too."""
        return f"card-{self.spec.name}"

    @property
    def label(self) -> str:
        """What the step is called when people watch."""
        return f"{_cell(self.spec)}, costs"

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the steps that run its tasks, and the one that trains the learner."""
        return (*_training(self.spec), *(step.name for step in partial_steps_of(self.spec)))


Step: TypeAlias = TrainStep | PartialResultStep | CardStep


def partial_steps_of(run: RunSpec) -> list[PartialResultStep]:
    """Return the steps that run the tasks of a cell; few tasks are one step."""
    return [PartialResultStep(run, start) for start in range(0, run.tasks, run.piece)]


def steps_of(runs: Iterable[RunSpec]) -> list[Step]:
    """Return all steps of some cells: a shared step only once, each after those that it needs."""
    steps: dict[str, Step] = {}
    for run in runs:
        for step in _steps_of(run):
            steps.setdefault(step.name, step)
    return list(steps.values())


def learned_together(steps: Iterable[Step]) -> list[Step]:
    """Join the steps of cells that differ only in the corruption of their targets.

    The joined step learns once for all of these cells. It stands where the first of them stood.
    """
    together: dict[tuple[str, int], Step] = {}
    for step in steps:
        if not isinstance(step, PartialResultStep):
            together[step.name, 0] = step
            continue

        key = step.spec.learning_name, step.start
        first = together.setdefault(key, step)
        if isinstance(first, PartialResultStep) and first is not step:
            together[key] = replace(first, others=(*first.others, step.spec, *step.others))

    return list(together.values())


def names_of(step: Step) -> tuple[str, ...]:
    """Return the names of all steps that are done once this step is done."""
    if isinstance(step, PartialResultStep):
        return tuple(single.name for single in step.singles)
    return (step.name,)


def _steps_of(run: RunSpec) -> Iterator[Step]:
    if run.train is not None:
        yield from _training_steps(run.train)
    yield from partial_steps_of(run)
    yield CardStep(run)


def _training_steps(train: TrainSpec) -> Iterator[Step]:
    """Yield the stages of a training, each after the one that it starts from."""
    if train.start is not None:
        yield from _training_steps(train.start)
    yield TrainStep(train)


def _cell(run: RunSpec) -> str:
    corruption = run.task.corruption
    if corruption is None:
        return _learned(run)

    kind = corruption.shape if isinstance(corruption, Occlusion) else corruption.kind
    return f"{_learned(run)} {kind} {corruption.fraction:g}"


def _learned(run: RunSpec) -> str:
    """Name learner, data and task, without the corruption of the targets."""
    return f"{run.learner.name} on {run.data.name} {run.task.task_type} {run.task.nss}"


def _training(run: RunSpec) -> tuple[str, ...]:
    return () if run.train is None else (TrainStep(run.train).name,)
