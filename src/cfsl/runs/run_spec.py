"""What is to be run, in full: a training run, or the run of a learner on tasks.

A run is known by the hash of everything that decides its numbers: the learner with all its
hyper-parameters, the data by fingerprint, the tasks, the training with its seed. The same cell in
two suites is therefore one run, and a cell that was run before is found again.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from cfsl.harness.sandbox.sandboxed_learner import SandboxedLearner
from cfsl.learners.base import ShapedByTask
from cfsl.learners.description import described
from cfsl.learners.overrides import changed, field_of
from cfsl.learners.registry import LEARNERS, STARTS, find_learner
from cfsl.sampling import SAMPLER
from cfsl.spec import Count, FrozenSpec, TaskSpec
from cfsl.training.training_spec import Training

Seed = Annotated[int, Field(ge=0)]
_SHORT = 10
"""Digits of a hash that go into the name of a file."""


class DataSpec(FrozenSpec):
    """A data set under one of its splits."""

    name: str
    splits: str | None = None
    fingerprint: str
    """Of pixels, recipe, class names and sizes: a name may stand for other data elsewhere."""
    splits_hash: str


class LearnerSpec(FrozenSpec):
    """A learner with all its hyper-parameters."""

    name: str
    changes: dict[str, Any]
    """What differs from the learner of this name, by dotted names such as inner.lr."""
    source: str | None = None
    """The sha256 of the file of a learner of your own: its numbers are those of its code."""
    settings: Any
    """All hyper-parameters, changed or not: defaults may change later, and runs must not."""


def learner_spec(
    name: str, changes: Mapping[str, Any], sandboxed: SandboxedLearner | None = None
) -> LearnerSpec:
    """Return the identity of a learner; a sandboxed one is not imported here."""
    bare = LearnerSpec(name=name, changes=dict(changes), settings=None)
    learner = built(bare) if sandboxed is None else sandboxed
    is_ours = name in LEARNERS or name in STARTS or name.startswith("cfsl.")

    source = None
    if not is_ours:
        source = _sha256(_file_of(learner) if sandboxed is None else _file_of_module(name))
    return bare.replace(settings=described(learner)["settings"], source=source)


def _sha256(path: Path | None) -> str | None:
    try:
        return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _file_of(learner: Any) -> Path | None:
    """Return the file that the class of a learner is written in."""
    try:
        return Path(inspect.getfile(type(learner)))
    except (OSError, TypeError):
        return None


def _file_of_module(place: str) -> Path | None:
    """Return the file of the module in package.module:Class, found without importing anything."""
    found, folders, name = None, None, ""
    for part in place.partition(":")[0].split("."):
        name = f"{name}.{part}".lstrip(".")
        found = PathFinder.find_spec(name, folders)
        if found is None:
            return None
        folders = found.submodule_search_locations
    return None if found is None or found.origin is None else Path(found.origin)


def built(spec: LearnerSpec) -> Any:
    """Build a learner, as it was specified."""
    return changed(find_learner(spec.name), spec.changes)


def trainer_of(spec: LearnerSpec) -> LearnerSpec:
    """Return the learner whose training serves a learner.

    Learners with the same values of the shared hyper-parameters have the same trainer. A learner
    whose weights serve no other is its own trainer.
    """
    source = LEARNERS[spec.name].weights if spec.name in LEARNERS else None
    if source is None or not source.trainer:
        return spec

    trainer, learner = find_learner(source.trainer), built(spec)
    changes = {}
    for field in source.shared_fields:
        value = field_of(learner, field)
        if value is not None and value != getattr(trainer, field):
            changes[field] = (
                value.model_dump(mode="json") if isinstance(value, FrozenSpec) else value
            )
    return learner_spec(source.trainer, changes)


class TrainSpec(FrozenSpec):
    """A training run, which may serve many cells."""

    kind: Literal["train"] = "train"
    learner: LearnerSpec
    data: DataSpec
    training: Training

    @functools.cached_property
    def hash(self) -> str:
        """The sha256 of all that decides the weights."""
        return _hash(self.model_dump(mode="json"))

    @property
    def name(self) -> str:
        """The name of its folder."""
        learner = self.learner.name.replace(":", "-")
        return f"{learner}-{self.data.name}-s{self.training.seed}-{self.hash[:_SHORT]}"

    @functools.cached_property
    def start(self) -> TrainSpec | None:
        """The training run whose weights this one starts from, if there is one."""
        stage = self.training.start
        if stage is None:
            return None
        return TrainSpec(
            learner=learner_spec(stage.learner, stage.changes),
            data=self.data,
            training=stage.training,
        )


class WeightsFile(FrozenSpec):
    """Weights from a file: trained for another learner, on other data, or in an unknown way."""

    sha256: str


_STATED_IF_SET: Mapping[str, Any] = {"weights": None, "sampler": SAMPLER}
"""Fields that came later: runs that do not need them keep their hash."""


class RunSpec(FrozenSpec):
    """A cell: one learner on the tasks of one setting."""

    kind: Literal["run"] = "run"
    profile: str
    """The name of the schedule: numbers of different profiles are never ranked together."""
    learner: LearnerSpec
    data: DataSpec
    task: TaskSpec
    split: str = "test"
    tasks: Count = 600
    task_seed: Seed = 0
    seed: Seed = 0
    """Of training, or of weights that are never trained."""
    train: TrainSpec | None = None
    """The training run that the weights come from."""
    weights: WeightsFile | None = None
    """The file that the weights come from. Without it and without `train` weights are drawn, if the
    learner has any."""
    members: Count = 1
    """So many of the best epochs also answer together."""
    average: Literal["logits", "probabilities"] = "logits"
    progressive: bool = False
    """Also ask after every support set."""
    piece: Count = 100
    """Tasks of one partial result: several workers can share a cell. It changes no number."""
    sampler: str = SAMPLER
    """What draws the tasks."""

    @model_serializer(mode="wrap")
    def _without_unset_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        stated: dict[str, Any] = dump(self)
        return {
            name: value
            for name, value in stated.items()
            if name not in _STATED_IF_SET or value != _STATED_IF_SET[name]
        }

    def identity(self) -> dict[str, Any]:
        """Return all that decides the numbers of this run, ready for JSON."""
        return self.model_dump(mode="json", exclude={"piece"})

    @functools.cached_property
    def hash(self) -> str:
        """The sha256 of the identity: what the card of this run is found by."""
        return _hash(self.identity())

    @property
    def name(self) -> str:
        """The name of its card."""
        return f"{self.unhashed_name}-{self.hash[:_SHORT]}"

    @property
    def learning_name(self) -> str:
        """The name of all runs that learn the same tasks alike, and differ in corruptions only.

        Not those that are asked all along, or whose first weights may depend on the whole task.
        """
        draws_for_task = self.train is None and isinstance(built(self.learner), ShapedByTask)
        if self.task.corruption is None or self.progressive or draws_for_task:
            return self.name
        learned = self.identity() | {
            "task": self.task.model_dump(mode="json", exclude={"corruption"}),
            "piece": self.piece,
        }
        return f"{self.unhashed_name}-corrupted-{_hash(learned)}"

    @property
    def unhashed_name(self) -> str:
        """What its name begins with, whatever fields a run may have."""
        learner = self.learner.name.replace(":", "-")
        place = f"{self.data.name}-{self.task.task_type}-nss{self.task.nss}"
        return f"{place}-{learner}-{self.profile}-s{self.seed}"


def _hash(identity: dict[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
