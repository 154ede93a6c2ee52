"""How long learners are trained, and on how many tasks: as published, in an evening, in minutes.

A profile is on every card: numbers of different profiles are never ranked against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cfsl.learners.registry import (
    CHAMPION_TRAINING,
    META_TRAINED,
    PRETRAINED,
    TRAINED_ON_TASKS,
    WeightSource,
    entry_of,
)
from cfsl.spec import TaskSpec
from cfsl.training.recipes import recipe_for
from cfsl.training.training_spec import Training

SHARED_EPISODES = TaskSpec.type_b(3)
"""Validation tasks of the training that all learners that fit any task share."""
PRETRAINING_VALIDATION = TaskSpec.type_d(4, 2)
"""Validation tasks of the pretrained network that all task types share; they fine-tune it."""
_HIGH_END = ("maml_high", "sca")


@dataclass(frozen=True)
class Profile:
    """How long learners are trained, and on how many tasks they are tested."""

    what: str
    tasks: int
    """Test tasks a cell."""
    seeds: int | None
    """Training seeds; None: as many as the paper of the suite."""
    members: int
    """Best epochs that answer together, as in paper 1; paper 2 uses the best epoch alone."""
    progressive: bool
    """Whether learners are also asked after every support set."""
    training: Callable[[str, TaskSpec, bool], Training]
    """The training, given the learner, the task, and whether the images are characters."""
    shared_validation: Mapping[WeightSource, TaskSpec]
    """Validation tasks of a training that is done once for all columns of a data set, by the source
    of the weights. Any other training is done for each column, and validated on its tasks."""
    changes: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Hyper-parameters by learner that were chosen for such a schedule."""
    published_networks: bool = False
    """Whether paper 2's experiments have the networks, buffers and steps that the paper chose."""


def _paper(learner: str, task: TaskSpec, characters: bool) -> Training:
    training = recipe_for("paper", learner, task, characters=characters)
    if learner in _HIGH_END:
        return training.replace(schedule=training.schedule.replace(optimizer="adam"))
    return training


class _Length(NamedTuple):
    epochs: int
    updates: int
    """In each epoch."""


_QUICK_LENGTHS: Mapping[WeightSource, _Length] = {
    TRAINED_ON_TASKS: _Length(20, 100),
    PRETRAINED: _Length(6, 200),
    META_TRAINED: _Length(10, 50),
}
"""A training that is not here is as long as its recipe says."""
_QUICK_LENGTHS_ON_PHOTOGRAPHS = {**_QUICK_LENGTHS, TRAINED_ON_TASKS: _Length(10, 100)}
"""An image is six times as much work as a character."""
_QUICK_LENGTHS_OF_LEARNERS: Mapping[str, _Length] = {
    "maml_low": _Length(20, 100),
    "maml_high": _Length(8, 50),
    "sca": _Length(8, 50),
}
"""Learners whose training is not as long as their weight source says."""


def _quick(learner: str, task: TaskSpec, characters: bool) -> Training:
    training = recipe_for("short", learner, task, characters=characters)
    lengths = _QUICK_LENGTHS if characters else _QUICK_LENGTHS_ON_PHOTOGRAPHS
    length = _QUICK_LENGTHS_OF_LEARNERS.get(learner) or lengths.get(entry_of(learner).weights)
    if length is None:
        return training

    batch = 1 if learner in _HIGH_END else training.schedule.batch
    schedule = training.schedule.replace(**length._asdict(), batch=batch)
    return training.replace(schedule=schedule)


_SMOKE_SCHEDULES: Mapping[WeightSource, dict[str, Any]] = {
    TRAINED_ON_TASKS: {"epochs": 2, "updates": 20},
    PRETRAINED: {"epochs": 2, "updates": 20, "batch": 64},
    META_TRAINED: {"epochs": 2, "updates": 3, "batch": 1},
    CHAMPION_TRAINING: {"epochs": 2, "updates": 20},
}


def _smoke(learner: str, task: TaskSpec, characters: bool) -> Training:
    training = recipe_for("short", learner, task, characters=characters)
    changes = _SMOKE_SCHEDULES[entry_of(learner).weights]
    schedule = training.schedule.replace(**changes, warmup=2)
    return training.replace(schedule=schedule, validation_tasks=4)


_STRONG_SCHEDULES: Mapping[WeightSource, dict[str, Any]] = {
    TRAINED_ON_TASKS: {"precision": "bfloat16"},
    PRETRAINED: {"epochs": 4, "updates": 150, "precision": "bfloat16"},
}
"""What differs from 'quick': the networks of paper 2 are large. They are trained in bfloat16, and
pretrained for half as long."""


def _strong(learner: str, task: TaskSpec, characters: bool) -> Training:
    """Train in stages if a learner has a recipe for that, and for a short time otherwise."""
    entry = entry_of(learner)
    if "strong" in entry.own_recipes:
        return recipe_for("strong", learner, task, characters=characters)

    training = _quick(learner, task, characters)
    changes = _STRONG_SCHEDULES.get(entry.weights, {})
    return training.replace(schedule=training.schedule.replace(**changes))


_SERVES_ANY_TASK = {TRAINED_ON_TASKS: SHARED_EPISODES, CHAMPION_TRAINING: SHARED_EPISODES}
_SERVES_ANY_TASK_AND_PRETRAINED = {**_SERVES_ANY_TASK, PRETRAINED: PRETRAINING_VALIDATION}

_SHORT_CHANGES: Mapping[str, dict[str, Any]] = {
    **{name: {"metric": "cosine"} for name in ("protonet", "multiproto", "protonet_replay")},
    "joint": {"inner.metric": "cosine"},
    "pretrain_tune": {"lr": 0.03},
    "ewc_pretrain": {"inner.lr": 0.03, "strength": 1e4},
    "pretrain_tune_replay": {"inner.lr": 0.03},
}
"""Hyper-parameters chosen on Omniglot's validation tasks ('cfsl choose'; see results/)."""

PROFILES: Mapping[str, Profile] = {
    "smoke": Profile(
        "minutes: every learner is run, none learns much",
        tasks=20,
        seeds=1,
        members=2,
        progressive=True,
        training=_smoke,
        shared_validation=_SERVES_ANY_TASK_AND_PRETRAINED,
        changes=_SHORT_CHANGES,
    ),
    "quick": Profile(
        "useful numbers on two CPU cores in an evening",
        tasks=600,
        seeds=1,
        members=1,
        progressive=False,
        training=_quick,
        shared_validation=_SERVES_ANY_TASK_AND_PRETRAINED,
        changes=_SHORT_CHANGES,
    ),
    "strong": Profile(
        "learners at their published strength: the MAML family in stages, paper 2's networks",
        tasks=600,
        seeds=1,
        members=5,
        progressive=False,
        training=_strong,
        shared_validation=_SERVES_ANY_TASK,
        changes=_SHORT_CHANGES,
        published_networks=True,
    ),
    "paper": Profile(
        "the published protocol",
        tasks=600,
        seeds=None,
        members=5,
        progressive=False,
        training=_paper,
        shared_validation={},
        published_networks=True,
    ),
}
