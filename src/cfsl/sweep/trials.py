"""From a point of a sweep to the run that tries it: on validation tasks, always.

Nothing here can name another split: `Sweep` has no field for one, and `run_of` is the only way from a sweep to a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cfsl.errors import SpecError
from cfsl.learners.base import FixedEmbedding
from cfsl.learners.registry import LEARNERS, find_learner
from cfsl.presets.cells import kind_of, opened
from cfsl.runs.run_spec import DataSpec, LearnerSpec, RunSpec, Seed, TrainSpec, built, learner_spec
from cfsl.sampling import require_feasible
from cfsl.spec import Count, FrozenSpec, TaskSpec
from cfsl.sweep.knobs import Knobs, held
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
from cfsl.training.recipes import recipe_for
from cfsl.training.training_spec import Training

SPLIT = "val"
PROFILE = "sweep"
_TRAINERS = {"tasks": "protonet", "pretraining": "pretrain_tune"}
"""Whose training serves all learners of a kind, so that trials of equal networks share one."""
_SHARED = ("net", "metric", "norm")
"""Hyper-parameters that matter to such a training."""
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
        knobs = knobs_of(self)
        return {name: knobs.centre(name) for name in self.space}

    def points(self) -> list[Point] | None:
        """Return all trials beforehand, if the method knows them."""
        return (
            listed_points(self.method, self.space, self.centre) if self.method in LISTED else None
        )


def knobs_of(sweep: Sweep) -> Knobs:
    """Return what can be varied."""
    return Knobs(sweep.learner, sweep.base, sweep.training)


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
    kind, wanted = (
        kind_of(learner),
        {name: value for name, value in lengths.items() if value is not None},
    )
    if kind in ("none", "random"):
        if wanted:
            raise SpecError(f"{learner} is not trained; leave out --{next(iter(wanted))}")
        return None
    training = recipe_for(
        recipe, kind, task.replace(corruption=None), learner=learner, characters=characters
    )
    return training.with_seed(seed).replace(schedule=training.schedule.replace(**wanted))


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
    changes, training = knobs_of(sweep).settings(point)
    spec = learner_spec(sweep.learner, changes)
    embeds = isinstance(built(spec), FixedEmbedding) and sweep.task.corruption is None
    train = None
    if training is not None:
        train = TrainSpec(learner=_trainer(spec), data=sweep.data, training=training)
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


def _trainer(spec: LearnerSpec) -> LearnerSpec:
    """Return the learner that is trained: one for all learners that are trained alike, where there is one."""
    name = _TRAINERS.get(kind_of(spec.name)) if spec.name in LEARNERS else None
    if name is None:
        return spec
    usual, learner = find_learner(name), built(spec)
    wanted = {field: held(learner, field) for field in _SHARED}
    changes = {
        field: v for field, v in wanted.items() if v is not None and v != getattr(usual, field, v)
    }
    if "net" in changes:
        changes["net"] = changes["net"].model_dump(mode="json")
    return learner_spec(name, changes)


def _require_network(run: RunSpec) -> None:
    """Refuse a network that the images vanish in."""
    net, recipe = (
        held(built(run.learner), "net"),
        opened(run.data.name, run.data.splits).info.recipe,
    )
    if net is not None:
        net.feature_count((recipe.channels, recipe.height, recipe.width))


def _require_trainable(data: DataSpec, training: Training) -> None:
    """Refuse tasks that cannot be drawn from the classes to train on, or to validate on."""
    if not training.iid:
        _require(data, "train", training.episodes)
    _require(data, SPLIT, training.validation)


def _require(data: DataSpec, split: str, task: TaskSpec) -> None:
    open_data = opened(data.name, data.splits)
    require_feasible(
        open_data.class_sizes[open_data.classes_of(split)], task, f"{data.name}/{split}"
    )
