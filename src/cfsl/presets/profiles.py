"""How long everything is trained, and how much is asked: as published, in an evening, or in minutes.

A profile is on every card: numbers of different profiles are never ranked against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cfsl.spec import TaskSpec
from cfsl.training.recipes import RECIPES, recipe_for
from cfsl.training.training_spec import Training

SHARED_EPISODES = TaskSpec.type_b(3)
"""What learners that fit any task are validated on where one training serves them all."""
PRETRAINING_VALIDATION = TaskSpec.type_d(4, 2)
"""What a pretrained network is judged by, tuned, where one serves every task type."""
_HIGH_END = ("maml_high", "sca")


@dataclass(frozen=True)
class Profile:
    """How much is done."""

    what: str
    tasks: int
    """Test tasks a cell."""
    seeds: int | None
    """Training seeds; None: as many as the paper of the suite."""
    members: int
    """Best epochs that answer together, as in paper 1; paper 2 has the best alone."""
    progressive: bool
    """Whether learners are also asked after every support set."""
    trains_once: bool
    """Whether a learner that fits any task is trained once a data set, not for every column."""
    training: Callable[[str, str, TaskSpec, bool], Training]
    """Of the kind of training, the learner, the task, and whether the images are characters."""
    changes: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Hyper-parameters by learner that were chosen for such a schedule."""
    published_networks: bool = False
    """Whether paper 2's experiments have the networks, buffers and steps that the paper chose for each; the best epoch
    of pretraining is then that of the column's own tasks, as in both papers."""


def _paper(kind: str, learner: str, task: TaskSpec, characters: bool) -> Training:
    training = recipe_for("paper", kind, task, characters=characters)
    if learner in _HIGH_END:
        return training.replace(schedule=training.schedule.replace(optimizer="adam"))
    return training


_QUICK_LENGTHS: Mapping[str, tuple[int, int]] = {
    "tasks": (20, 100),
    "pretraining": (6, 200),
    "maml_low": (20, 100),
    "maml_high": (8, 50),
    "sca": (8, 50),
    "anil": (10, 50),
    "proto_maml": (10, 50),
}
"""Epochs, and updates in each, by learner or by kind of training."""
_QUICK_ON_PHOTOGRAPHS: Mapping[str, tuple[int, int]] = {**_QUICK_LENGTHS, "tasks": (10, 100)}
"""An image is six times as much work as a character."""


def _quick(kind: str, learner: str, task: TaskSpec, characters: bool) -> Training:
    training = recipe_for("short", kind, task, characters=characters)
    if kind == "champion":
        return training
    lengths = _QUICK_LENGTHS if characters else _QUICK_ON_PHOTOGRAPHS
    epochs, updates = lengths.get(learner) or lengths.get(kind) or (10, 50)
    batch = 1 if learner in _HIGH_END else training.schedule.batch
    schedule = training.schedule.replace(epochs=epochs, updates=updates, batch=batch)
    return training.replace(schedule=schedule)


_SMOKE_LENGTHS: Mapping[str, dict[str, Any]] = {
    "tasks": {"epochs": 2, "updates": 20},
    "pretraining": {"epochs": 2, "updates": 20, "batch": 64},
    "meta": {"epochs": 2, "updates": 3, "batch": 1},
    "champion": {"epochs": 2, "updates": 20},
}


def _smoke(kind: str, learner: str, task: TaskSpec, characters: bool) -> Training:
    training = recipe_for("short", kind, task, characters=characters)
    schedule = training.schedule.replace(**_SMOKE_LENGTHS[kind], warmup=2)
    return training.replace(schedule=schedule, validation_tasks=4)


def _strong(kind: str, learner: str, task: TaskSpec, characters: bool) -> Training:
    """Train in stages where the recipe 'strong' has stages for a learner, and others for a short time.

    The networks of paper 2 are large: they are trained in bfloat16, and pretrained for half as long as in 'quick'.
    """
    if learner in RECIPES["strong"]:
        return recipe_for("strong", kind, task, learner=learner, characters=characters)

    training = _quick(kind, learner, task, characters)
    if kind == "pretraining":
        training = training.replace(schedule=training.schedule.replace(epochs=4, updates=150))
    if kind in ("pretraining", "tasks"):
        training = training.replace(schedule=training.schedule.replace(precision="bfloat16"))
    return training


_SHORT_CHANGES: Mapping[str, dict[str, Any]] = {
    **{name: {"metric": "cosine"} for name in ("protonet", "multiproto", "protonet_replay")},
    "joint": {"inner.metric": "cosine"},
    "pretrain_tune": {"lr": 0.03},
    "ewc_pretrain": {"inner.lr": 0.03, "strength": 1e4},
    "pretrain_tune_replay": {"inner.lr": 0.03},
}
"""Hyper-parameters that were chosen on Omniglot's validation tasks ('cfsl choose'; see results/)."""

PROFILES: Mapping[str, Profile] = {
    "smoke": Profile(
        "minutes: every learner is run, none learns much",
        20,
        1,
        2,
        True,
        True,
        _smoke,
        _SHORT_CHANGES,
    ),
    "quick": Profile(
        "useful numbers on two CPU cores in an evening",
        600,
        1,
        1,
        False,
        True,
        _quick,
        _SHORT_CHANGES,
    ),
    "strong": Profile(
        "learners at their published strength: the MAML family in stages, paper 2's networks",
        *(600, 1, 5, False, True, _strong, _SHORT_CHANGES),
        published_networks=True,
    ),
    "paper": Profile(
        "the published protocol", 600, None, 5, False, False, _paper, published_networks=True
    ),
}
