"""From a point of a sweep to the run that tries it: on validation tasks, always.

Nothing here can name another split: `Sweep` has no field for one, and `run_of` is the only way from a sweep to a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cfsl.errors import SpecError
from cfsl.learners.base import FixedEmbedding
from cfsl.learners.overrides import field_of
from cfsl.learners.registry import entry_of
from cfsl.runs.data import open_data
from cfsl.runs.run_spec import DataSpec, RunSpec, Seed, TrainSpec, built, learner_spec, trainer_of
from cfsl.sampling import require_feasible
from cfsl.spec import Count, FrozenSpec, TaskSpec
from cfsl.sweep.hyperparameters import Hyperparameters
from cfsl.sweep.space import (
    LISTED,
    Choices,
    Method,
    Point,
    Range,
    Space,
    corner_points,
    listed_points,
)
from cfsl.training.recipes import training_asked_for
from cfsl.training.training_spec import Training

SPLIT = "val"
PROFILE = "sweep"
_PIECE = 25
"""Tasks that are run in one go: what a killed sweep loses at most."""


class Sweep(FrozenSpec):
    """All that decides the trials of a sweep. Two sweeps that are equal here are the same study."""

    learner: str
    base: dict[str, Any]
    """Values of hyper-parameters that are not varied, or that a univariate sweep varies around."""
    data: DataSpec
    task: TaskSpec
    tasks: Count
    task_seed: Seed
    training: Training | None
    seed: Seed
    """Of training, or of weights that are never trained."""
    space: dict[str, Range | Choices]
    method: Method
    search_seed: Seed
    """Of the methods that draw their trials."""

    @property
    def centre(self) -> Point:
        """The values of the varied hyper-parameters where they are not varied."""
        hyperparameters = hyperparameters_of(self)
        return {name: hyperparameters.centre(name) for name in self.space}

    def points(self) -> list[Point] | None:
        """Return all trials beforehand, if the method knows them."""
        return (
            listed_points(self.method, self.space, self.centre) if self.method in LISTED else None
        )


def hyperparameters_of(sweep: Sweep) -> Hyperparameters:
    """Return what can be varied."""
    return Hyperparameters(sweep.learner, sweep.base, sweep.training)


def training_for(
    learner: str,
    recipe: str,
    task: TaskSpec,
    seed: int,
    lengths: Mapping[str, int | None],
    *,
    characters: bool = True,
) -> Training | None:
    """Return how a learner is trained, as 'cfsl train' does it; None if it is not."""
    if not entry_of(learner).weights.is_trained:
        given = [name for name, value in lengths.items() if value is not None]
        if given:
            raise SpecError(f"{learner} is not trained; leave out --{given[0]}")
        return None

    clean = task.replace(corruption=None)
    return training_asked_for(learner, recipe, clean, seed, lengths, characters=characters)


def sound(sweep: Sweep) -> Sweep:
    """Return a sweep whose every value the learner, the data and the training can take; refuse any other."""
    centre = sweep.centre
    fitted = sweep.replace(space=_fitted(sweep.space, centre))
    if sweep.method != "univariate" and (twice := sorted(sweep.base.keys() & sweep.space.keys())):
        raise SpecError(
            f"{twice[0]} is both set and to be varied; leave out one of them, or take --method univariate"
        )
    for point in fitted.points() or corner_points(fitted.space, centre):
        run = run_of(fitted, point)
        _require_network(run)
        if run.train is not None:
            _require_trainable(sweep.data, run.train.training)
    _require(sweep.data, SPLIT, sweep.task)
    return fitted


def _fitted(space: Space, centre: Point) -> Space:
    """Let a range be of fractions where the learner has one, though its ends are whole numbers."""
    fitted = dict(space)
    for name, domain in space.items():
        if not isinstance(domain, Range):
            continue
        if isinstance(centre[name], bool) or not isinstance(centre[name], int | float):
            raise SpecError(
                f"{name}: {centre[name]!r} is no number, so it has no range; give choices"
            )
        if isinstance(centre[name], float):
            fitted[name] = domain.replace(low=float(domain.low), high=float(domain.high))
    return fitted


def run_of(sweep: Sweep, point: Point) -> RunSpec:
    """Return the run that tries a point."""
    changes, training = hyperparameters_of(sweep).settings(point)
    spec = learner_spec(sweep.learner, changes)
    embeds = isinstance(built(spec), FixedEmbedding) and sweep.task.corruption is None
    train = None
    if training is not None:
        train = TrainSpec(learner=trainer_of(spec), data=sweep.data, training=training)
    return RunSpec(
        profile=PROFILE,
        learner=spec,
        data=sweep.data,
        task=sweep.task,
        split=SPLIT,
        tasks=sweep.tasks,
        task_seed=sweep.task_seed,
        seed=sweep.seed,
        train=train,
        piece=sweep.tasks if embeds else _PIECE,  # a table of embeddings is made once a piece
    )


def _require_network(run: RunSpec) -> None:
    """Refuse a network that the images vanish in."""
    net, recipe = (
        field_of(built(run.learner), "net"),
        open_data(run.data.name, run.data.splits).info.recipe,
    )
    if net is not None:
        net.feature_count((recipe.channels, recipe.height, recipe.width))


def _require_trainable(data: DataSpec, training: Training) -> None:
    """Refuse tasks that cannot be drawn from the classes to train on, or to validate on."""
    if not training.iid:
        _require(data, "train", training.episodes)
    _require(data, SPLIT, training.validation)


def _require(data: DataSpec, split: str, task: TaskSpec) -> None:
    there = open_data(data.name, data.splits)
    require_feasible(there.class_sizes[there.classes_of(split)], task, f"{data.name}/{split}")
