"""The cells of a bench: the run of each cell of a table, or why a cell has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cfsl.data.store import Dataset
from cfsl.errors import DataError, InfeasibleSpecError, SpecError, lookup
from cfsl.learners.base import FixedEmbedding
from cfsl.learners.registry import LEARNERS, NO_WEIGHTS, WeightSource, entry_of, find_learner
from cfsl.presets.profiles import PROFILES
from cfsl.presets.suites import SUITES, Place, Suite, suites_named
from cfsl.runs.data import data_spec, open_data
from cfsl.runs.run_spec import (
    LearnerSpec,
    RunSpec,
    TrainSpec,
    built,
    learner_spec,
    trainer_of,
)
from cfsl.sampling import require_feasible
from cfsl.spec import TaskSpec
from cfsl.training.recipes import fitted_to
from cfsl.training.training_spec import Precision, Training

_PIECE = 100
"""Tasks of a cell between two saves of partial results."""


@dataclass(frozen=True)
class Request:
    """The part of a bench that a user asks for. None stands for the suite's own value."""

    suite: str
    profile: str = "quick"
    data: tuple[str, ...] | None = None
    splits: str | None = None
    learners: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    seeds: int | None = None
    tasks: int | None = None
    changes: Mapping[str, Mapping[str, Any]] | None = None
    """Hyper-parameters by learner, for example the best ones of a sweep."""
    precision: Precision | None = None
    """The precision of training."""


@dataclass(frozen=True)
class Cell:
    """A place in a table, for one training seed."""

    suite: str
    data: str
    learner: str
    column: str
    seed: int
    run: RunSpec | None
    why_not: str = ""
    """Why the cell has no run."""


def cells_of(request: Request) -> list[Cell]:
    """Return all cells of a request, in the order of their tables; refuse unknown names."""
    _require_known(request)
    return [
        cell
        for name in suites_named(request.suite)
        for data in request.data or SUITES[name].data
        for cell in _Table(name, data, request).cells()
    ]


def _require_known(request: Request) -> None:
    """Refuse unknown names, and options that do not go together."""
    lookup({**SUITES, "all": None}, request.suite, "suite")
    lookup(PROFILES, request.profile, "profile")
    for name in request.data or ():
        open_data(name, request.splits)
    for learner in request.learners or ():
        find_learner(learner)

    in_use = {
        learner
        for name in suites_named(request.suite)
        for learner in learners_of(request, SUITES[name])
    }
    for learner in request.changes or {}:
        if learner not in in_use:
            raise SpecError(
                f"there are settings for {learner}, which is not in this bench; "
                "add it to --learners"
            )

    names = {
        column: None
        for name in suites_named(request.suite)
        for data in request.data or SUITES[name].data
        for column in SUITES[name].columns(data)
    }
    for column in request.columns or ():
        lookup(names, column, "column of this suite")

    if request.splits is not None and len(request.data or ()) != 1:
        raise SpecError("--splits belongs to one data set; name it with --data")


def learners_of(request: Request, suite: Suite) -> tuple[str, ...]:
    """Return the rows of a table."""
    return request.learners or suite.learners or tuple(LEARNERS)


class _Table:
    """The cells of one suite on one data set."""

    def __init__(self, name: str, data: str, request: Request) -> None:
        self._name, self._data, self._request = name, data, request
        self._suite, self._profile = SUITES[name], PROFILES[request.profile]

    def cells(self) -> Iterator[Cell]:
        """Yield the cells of every learner, column and seed."""
        columns = self._suite.columns(self._data)
        wanted = [column for column in self._request.columns or columns if column in self._known()]

        for learner in learners_of(self._request, self._suite):
            for column in wanted:
                if column not in columns:
                    known = ", ".join(columns)
                    why_not = f"{self._name} has other columns on {self._data}: {known}"
                    yield Cell(self._name, self._data, learner, column, 0, None, why_not)
                    continue

                place = Place(learner, self._data, column, columns[column])
                for seed in range(self._seeds(learner)):
                    yield self._cell(place, seed)

    def _known(self) -> set[str]:
        """Return the columns that this suite has on any data set that was asked for."""
        return {
            column
            for data in self._request.data or self._suite.data
            for column in self._suite.columns(data)
        }

    def _seeds(self, learner: str) -> int:
        """Return the number of seeds. A learner that draws no weights has one seed."""
        if entry_of(learner).weights is NO_WEIGHTS or not self._suite.trained:
            return 1
        return self._request.seeds or self._profile.seeds or self._suite.seeds

    def _cell(self, place: Place, seed: int) -> Cell:
        run, why_not = None, ""
        try:
            run = self._run(place, seed)
        except (InfeasibleSpecError, DataError) as error:
            why_not = str(error)

        return Cell(self._name, place.data, place.learner, place.column, seed, run, why_not)

    def _run(self, place: Place, seed: int) -> RunSpec:
        data = open_data(place.data, self._request.splits)
        learner = learner_spec(place.learner, self._changes(place))

        fields: dict[str, Any] = {
            "tasks": self._request.tasks or self._profile.tasks,
            **self._suite.fixed,
        }
        _require(data, fields.get("split", "test"), place.task)
        train = self._train(place, learner, seed) if self._suite.trained else None

        # Such a learner makes a table of embeddings for every piece: one piece, one table.
        embeds = isinstance(built(learner), FixedEmbedding) and place.task.corruption is None
        piece = fields["tasks"] if embeds else _PIECE

        return RunSpec(
            profile=self._request.profile,
            learner=learner,
            data=data_spec(data, self._request.splits),
            task=place.task,
            seed=seed,
            train=train,
            members=min(self._members(), train.training.schedule.keep) if train else 1,
            progressive=self._profile.progressive,
            piece=piece,
            **fields,
        )

    def _members(self) -> int:
        return self._profile.members if self._suite.ensembles else 1

    def _changes(self, place: Place) -> dict[str, Any]:
        """Return the hyper-parameters that are not the learner's own.

        Those of the suite replace those of the profile; those of the request replace both.
        """
        asked = dict((self._request.changes or {}).get(place.learner, {}))
        of_suite = (
            self._suite.paper_changes if self._profile.published_networks else self._suite.changes
        )

        return {**self._profile.changes.get(place.learner, {}), **of_suite(place), **asked}

    def _train(self, place: Place, learner: LearnerSpec, seed: int) -> TrainSpec | None:
        """Return the training of a learner; None if the learner is not trained.

        Learners that can share their weights have the same training.
        """
        weights = entry_of(place.learner).weights
        if not weights.is_trained:
            return None

        data = open_data(place.data, self._request.splits)
        training = fitted_to(data, self._training(weights, place))
        _require_trainable(data, training)
        return TrainSpec(
            learner=trainer_of(learner),
            data=data_spec(data, self._request.splits),
            training=training.with_seed(seed),
        )

    def _training(self, weights: WeightSource, place: Place) -> Training:
        task = self._profile.shared_validation.get(weights, place.task.replace(corruption=None))
        characters = open_data(place.data, self._request.splits).info.recipe.channels == 1
        training = self._profile.training(place.learner, task, characters)

        if self._request.precision is not None:
            training = training.replace(
                schedule=training.schedule.replace(precision=self._request.precision)
            )

        if self._request.profile == "paper":
            return self._suite.paper_training(training, place)
        return training


def _require_trainable(data: Dataset, training: Training) -> None:
    """Refuse tasks that cannot be drawn from the classes to train on, or to validate on."""
    if not training.iid:
        _require(data, "train", training.episodes)
    _require(data, "val", training.validation)


def _require(data: Dataset, split: str, task: TaskSpec) -> None:
    require_feasible(data.class_sizes[data.classes_of(split)], task, f"{data.name}/{split}")


def runs_of(cells: Sequence[Cell]) -> list[RunSpec]:
    """Return every run once."""
    return list({cell.run.hash: cell.run for cell in cells if cell.run is not None}.values())


def suite_of(name: str) -> Suite:
    """Return a suite by its name."""
    return lookup(SUITES, name, "suite")
