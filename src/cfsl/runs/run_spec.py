"""What is to be run, in full: a training run, and a cell of a table. Frozen checked values with a name of their own.

A run is known by the hash of everything that decides its numbers: the learner with all its hyper-parameters, the data
by fingerprint, the tasks, the training with its seed. The same cell in two suites is therefore one run, and a cell
that was run before is found again, whoever asks for it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from cfsl.learners.base import ShapedByTask
from cfsl.learners.overrides import changed
from cfsl.learners.registry import LEARNERS, STARTS, find_learner
from cfsl.runs.evaluation import described
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
    """Of pixels, recipe, class names and sizes: the same name may stand for other data elsewhere."""
    splits_hash: str


class LearnerSpec(FrozenSpec):
    """A learner with all its hyper-parameters."""

    name: str
    changes: dict[str, Any]
    """What differs from the learner as it is known by its name, by dotted names such as inner.lr."""
    source: str | None = None
    """The sha256 of the file of a learner of your own: its numbers are those of its code."""
    settings: Any
    """All hyper-parameters, those that were not changed included: defaults may move, and runs must not."""


def learner_spec(name: str, changes: Mapping[str, Any]) -> LearnerSpec:
    """Return the identity of a learner."""
    bare = LearnerSpec(name=name, changes=dict(changes), settings=None)
    learner = built(bare)
    is_ours = name in LEARNERS or name in STARTS or name.startswith("cfsl.")
    return bare.replace(settings=described(learner)["settings"], source=None if is_ours else _source(learner))


def _source(learner: Any) -> str | None:
    """Return the sha256 of the file that a learner is written in."""
    try:
        return hashlib.sha256(Path(inspect.getfile(type(learner))).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return None


def built(spec: LearnerSpec) -> Any:
    """Build a learner, as it was specified."""
    return changed(find_learner(spec.name), spec.changes)


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
        return f"{self.learner.name.replace(':', '-')}-{self.data.name}-s{self.training.seed}-{self.hash[:_SHORT]}"

    @functools.cached_property
    def start(self) -> TrainSpec | None:
        """The training run whose weights this one starts from, if there is one."""
        stage = self.training.start
        if stage is None:
            return None
        return TrainSpec(learner=learner_spec(stage.learner, stage.changes), data=self.data, training=stage.training)


class RunSpec(FrozenSpec):
    """A cell: one learner on the tasks of one setting."""

    kind: Literal["run"] = "run"
    profile: str
    """What the schedule is called: numbers of different profiles are never ranked against each other."""
    learner: LearnerSpec
    data: DataSpec
    task: TaskSpec
    split: str = "test"
    tasks: Count = 600
    task_seed: Seed = 0
    seed: Seed = 0
    """Of training, or of weights that are never trained."""
    train: TrainSpec | None = None
    """Where the weights come from; None: they are drawn, or there are none."""
    members: Count = 1
    """So many of the best epochs also answer together."""
    average: Literal["logits", "probabilities"] = "logits"
    progressive: bool = False
    """Also ask after every support set."""
    piece: Count = 100
    """Tasks that are run in one go, so that several workers can share a cell. It changes no number."""

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
        """What runs have in common that learn the same tasks in the same way, and are asked about corrupted targets.

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
    return hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
