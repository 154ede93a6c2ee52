"""From a point of a sweep to the run that tries it, always on validation tasks.

No code here can name another split: `Sweep` has no field for one, and only `run_of` makes a run
from a sweep.
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
"""Tasks between two saves of partial results: a killed sweep loses at most these."""


class Sweep(FrozenSpec):
    """All that decides the trials of a sweep. Two equal sweeps are the same study."""

    learner: str
    base: dict[str, Any]
    """Values of hyper-parameters that are not varied, and the centre of a univariate sweep."""
    data: DataSpec
    task: TaskSpec
    tasks: Count
    task_seed: Seed
    training: Training | None
    seed: Seed
    """Seed of training, or of weights that are never trained."""
    space: dict[str, Range | Choices]
    method: Method
    search_seed: Seed
    """Seed of the methods that draw their trials."""

    @property
    def centre(self) -> Point:
        """The values that the hyper-parameters of the space have if they are not varied."""
        hyperparameters = hyperparameters_of(self)
        return {name: hyperparameters.centre(name) for name in self.space}

    def points(self) -> list[Point] | None:
        """Return the points of all trials; None if the method draws them one after another."""
        return (
            listed_points(self.method, self.space, self.centre) if self.method in LISTED else None
        )


def hyperparameters_of(sweep: Sweep) -> Hyperparameters:
    """Return the hyper-parameters that a sweep can vary."""
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
    """Return the training that 'cfsl train' gives a learner; None if the learner is not trained."""
    if not entry_of(learner).weights.is_trained:
        given = [name for name, value in lengths.items() if value is not None]
        if given:
            raise SpecError(f"{learner} is not trained; leave out --{given[0]}")
        return None

    clean = task.replace(corruption=None)
    return training_asked_for(learner, recipe, clean, seed, lengths, characters=characters)


def sound(sweep: Sweep) -> Sweep:
    """Return a sweep whose values the learner, the data and the training accept.

    Any other sweep is refused. Ranges are floats where the learner has a float.
    """
    centre = sweep.centre
    fitted = sweep.replace(space=_fitted(sweep.space, centre))
    if sweep.method != "univariate" and (twice := sorted(sweep.base.keys() & sweep.space.keys())):
        raise SpecError(
            f"{twice[0]} is both set and to be varied; "
            "leave out one of them, or take --method univariate"
        )

    for point in fitted.points() or corner_points(fitted.space, centre):
        run = run_of(fitted, point)
        _require_network(run)
        if run.train is not None:
            _require_trainable(sweep.data, run.train.training)

    _require(sweep.data, SPLIT, sweep.task)
    return fitted


def _fitted(space: Space, centre: Point) -> Space:
    """Make the ends of a range floats where the value of the learner is a float."""
    fitted = dict(space)
    for name, domain in space.items():
        if not isinstance(domain, Range):
            continue

        value = centre[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpecError(f"{name}: {value!r} is no number, so it has no range; give choices")
        if isinstance(value, float):
            fitted[name] = domain.replace(low=float(domain.low), high=float(domain.high))

    return fitted


def run_of(sweep: Sweep, point: Point) -> RunSpec:
    """Return the run that tries a point."""
    changes, training = hyperparameters_of(sweep).settings(point)
    spec = learner_spec(sweep.learner, changes)

    train = None
    if training is not None:
        train = TrainSpec(learner=trainer_of(spec), data=sweep.data, training=training)

    # Such a learner makes a table of embeddings for every piece: one piece, one table.
    embeds = isinstance(built(spec), FixedEmbedding) and sweep.task.corruption is None
    piece = sweep.tasks if embeds else _PIECE

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
        piece=piece,
    )


def _require_network(run: RunSpec) -> None:
    """Refuse a network whose pooling leaves nothing of the images."""
    net = field_of(built(run.learner), "net")
    recipe = open_data(run.data.name, run.data.splits).info.recipe
    if net is not None:
        net.feature_count((recipe.channels, recipe.height, recipe.width))


def _require_trainable(data: DataSpec, training: Training) -> None:
    """Refuse tasks that cannot be drawn from the classes to train on, or to validate on."""
    if not training.iid:
        _require(data, "train", training.episodes)
    _require(data, SPLIT, training.validation)


def _require(data: DataSpec, split: str, task: TaskSpec) -> None:
    dataset = open_data(data.name, data.splits)
    require_feasible(dataset.class_sizes[dataset.classes_of(split)], task, f"{data.name}/{split}")
