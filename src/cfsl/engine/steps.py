"""A plan as steps: train, run some tasks, put a card together. Each says which others must be done before."""

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
    """Run some of the tasks of a cell, and of others that are learned with it (see `learned_together`)."""

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
        together = f"{_learned(self.spec)}, {len(self.others) + 1} corruptions"
        return f"{together if self.others else _cell(self.spec)}, tasks {self.start}-{self.numbers[-1]}"

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
    """Put the card of a cell together."""

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
        return (*_training(self.spec), *(piece.name for piece in partial_steps_of(self.spec)))


Step: TypeAlias = TrainStep | PartialResultStep | CardStep


def partial_steps_of(run: RunSpec) -> list[PartialResultStep]:
    """Return the pieces of a cell; a cell of few tasks is one piece."""
    return [PartialResultStep(run, start) for start in range(0, run.tasks, run.piece)]


def steps_of(runs: Iterable[RunSpec]) -> list[Step]:
    """Return all steps of some cells, what is shared only once, each after those that it needs."""
    steps: dict[str, Step] = {}
    for run in runs:
        for step in _steps_of(run):
            steps.setdefault(step.name, step)
    return list(steps.values())


def learned_together(steps: Iterable[Step]) -> list[Step]:
    """Let one step do the pieces of cells that differ in the corruption of their targets only: it learns once for all.

    It stands where the first of them stood.
    """
    together: dict[tuple[str, int], Step] = {}
    for step in steps:
        if isinstance(step, PartialResultStep):
            key = step.spec.learning_name, step.start
            first = together.setdefault(key, step)
            if isinstance(first, PartialResultStep) and first is not step:
                together[key] = replace(first, others=(*first.others, step.spec, *step.others))
        else:
            together[step.name, 0] = step
    return list(together.values())


def names_of(step: Step) -> tuple[str, ...]:
    """Return the names of all steps that are done once this step is done."""
    return (
        tuple(single.name for single in step.singles)
        if isinstance(step, PartialResultStep)
        else (step.name,)
    )


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
    done = run.task.corruption
    if done is None:
        return _learned(run)
    return f"{_learned(run)} {done.shape if isinstance(done, Occlusion) else done.kind} {done.fraction:g}"


def _learned(run: RunSpec) -> str:
    """Say what is learned, whatever is done to the targets afterwards."""
    return f"{run.learner.name} on {run.data.name} {run.task.task_type} {run.task.nss}"


def _training(run: RunSpec) -> tuple[str, ...]:
    return () if run.train is None else (TrainStep(run.train).name,)
