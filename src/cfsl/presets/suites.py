"""The suites: every table and figure of the papers as cells to be run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cfsl.presets import columns
from cfsl.presets.columns import Columns
from cfsl.presets.hyper import buffer_changes, paper_2_changes, paper_2_rate, photos_or_characters
from cfsl.spec import TaskSpec
from cfsl.training.training_spec import Training

PAPER_1 = (
    "init_tune",
    "pretrain_tune",
    "ewc_init",
    "ewc_pretrain",
    "protonet",
    "maml_low",
    "maml_high",
    "sca",
)
PAPER_2 = ("pretrain_tune", "pretrain_tune_replay", "protonet")
BOTH = ("omniglot", "slimagenet64")
FIGURE_4_DATA = "glyphs-3200x2"
"""The data set has classes for 640 support sets, with one support and one target image each."""


@dataclass(frozen=True)
class Place:
    """The place of a cell. Hyper-parameters and schedules of the papers depend on it."""

    learner: str
    data: str
    column: str
    task: TaskSpec


def _no_changes(place: Place) -> dict[str, Any]:
    return {}


def _unchanged(training: Training, place: Place) -> Training:
    return training


@dataclass(frozen=True)
class Suite:
    """A table or figure."""

    what: str
    columns: Callable[[str], Columns]
    """The columns, given the name of a data set."""
    learners: tuple[str, ...]
    data: tuple[str, ...] = BOTH
    published: str | None = None
    """The name of its table among the published numbers."""
    seeds: int = 3
    """Training seeds of the paper."""
    ensembles: bool = True
    """Whether the paper lets its best epochs answer together."""
    paper_changes: Callable[[Place], dict[str, Any]] = _no_changes
    """Hyper-parameters in the profile 'paper'."""
    changes: Callable[[Place], dict[str, Any]] = _no_changes
    """Hyper-parameters in the other profiles: those that need no network of their own."""
    paper_training: Callable[[Training, Place], Training] = _unchanged
    """How the training differs from that of paper 1, in the profile 'paper'."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every run, such as the split, in every profile."""
    trained: bool = True


def _buffers(place: Place) -> dict[str, Any]:
    return buffer_changes(place.learner, place.data, place.column, place.task)


def _paper_2(place: Place) -> dict[str, Any]:
    return paper_2_changes(place.learner, place.data, place.column, place.task)


def _replication_training(training: Training, place: Place) -> Training:
    """Paper 2, Table 2: 15 epochs of pretraining, 100 of ProtoNets."""
    return training.replace(
        schedule=training.schedule.replace(epochs=100 if place.learner == "protonet" else 15)
    )


def _paper_2_training(
    training: Training, place: Place, epochs: Mapping[str, Mapping[str, int]]
) -> Training:
    """Paper 2, section 3.4: epochs of 500 updates, 200 validation tasks, and rates of its own."""
    own = epochs[photos_or_characters(place.data)]
    schedule = training.schedule.replace(
        epochs=own.get(f"{place.learner}/{place.task.nss}", own.get(place.learner, own["all"])),
        rate=paper_2_rate(place.learner, place.data, place.column, place.task),
    )
    return training.replace(schedule=schedule, validation_tasks=200)


_SCALING_EPOCHS = {"omniglot": {"all": 10}, "slimagenet64": {"all": 30}}
_INSTANCE_EPOCHS = {
    "omniglot": {"all": 40, "protonet": 10}
    | {f"pretrain_tune/{nss}": epochs for nss, epochs in ((2, 50), (4, 40), (10, 20), (20, 20))},
    "slimagenet64": {"all": 40},
}
_scaling_training = functools.partial(_paper_2_training, epochs=_SCALING_EPOCHS)
_instance_training = functools.partial(_paper_2_training, epochs=_INSTANCE_EPOCHS)
_of_paper_2 = functools.partial(
    Suite, learners=PAPER_2, seeds=5, ensembles=False, paper_changes=_paper_2, changes=_buffers
)


def _table_1(data: str) -> Columns:
    return columns.TABLE_1_TINY if data == "slim-tiny" else columns.TABLE_1


def _corruption(data: str) -> Columns:
    photos = photos_or_characters(data) == "slimagenet64"
    return columns.corrupted(columns.MORE_OCCLUSION if photos else columns.OCCLUSION)


def _always(fixed: Columns) -> Callable[[str], Columns]:
    return lambda data: fixed


SUITES: Mapping[str, Suite] = {
    "table1": Suite(
        "paper 1, Table 1: eight methods on task types A to D",
        _table_1,
        PAPER_1,
        published="table1",
    ),
    "figure3": Suite(
        "paper 1, Figure 3: accuracy over the number of support sets, with and without overwrite",
        _always(columns.FIGURE_3),
        PAPER_1,
        published="table1",
    ),
    "figure4": Suite(
        "paper 1, Figure 4: memory and multiply-accumulates for 1 to 640 support sets, measured",
        _always(columns.FIGURE_4),
        (*PAPER_1, "pretrain_tune_replay"),
        data=(FIGURE_4_DATA,),
        fixed={"tasks": 1, "split": "all"},
        trained=False,
    ),
    "replication": Suite(
        "paper 2, Table 2: two methods of paper 1 after the repair of the code",
        _always(columns.REPLICATION),
        ("pretrain_tune", "protonet"),
        data=("omniglot",),
        published="replication",
        paper_training=_replication_training,
    ),
    "scaling": _of_paper_2(
        "paper 2, Tables 7 and 8: up to 200 classes, in wide or deep tasks",
        _always(columns.SCALING),
        published="scaling",
        paper_training=_scaling_training,
    ),
    "instance": _of_paper_2(
        "paper 2, Tables 3 and 4: telling 20 images of one class apart",
        _always(columns.INSTANCE),
        published="instance",
        paper_training=_instance_training,
    ),
    "corruption": _of_paper_2(
        "paper 2, Figures 8 and 9: the instance test under noise and occlusion",
        _corruption,
        paper_training=_instance_training,
    ),
    "smoke": Suite(
        "every learner on small tasks of every type, in minutes",
        _always(columns.SMOKE),
        (),
        data=("glyphs-400x20",),
    ),
}
ALL = "all"
"""Every suite but 'smoke'."""


def suites_named(name: str) -> Iterable[str]:
    """Return the suites that a name stands for."""
    return [suite for suite in SUITES if suite != "smoke"] if name == ALL else [name]
