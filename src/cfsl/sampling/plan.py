"""The images of a task as numbers: no pixel has been read yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64

from cfsl.spec import TaskSpec


@dataclass(frozen=True, eq=False)
class TaskPlan:
    """One task. Images are numbered class after class, over the classes of the sampler's input."""

    support_images: Int32[np.ndarray, "sets images"]
    support_labels: Int32[np.ndarray, "sets images"]
    target_images: Int32[np.ndarray, " targets"]
    target_labels: Int32[np.ndarray, " targets"]
    target_groups: Int32[np.ndarray, " targets"]
    """The class group (instance test: the support set) that a target was shown in."""


@dataclass(frozen=True, eq=False)
class PlanBlock:
    """The plans of many tasks of one spec."""

    support_images: Int32[np.ndarray, "tasks sets images"]
    support_labels: Int32[np.ndarray, "tasks sets images"]
    target_images: Int32[np.ndarray, "tasks targets"]
    target_labels: Int32[np.ndarray, "tasks targets"]
    target_groups: Int32[np.ndarray, "tasks targets"]

    @classmethod
    def empty(cls, tasks: int, sets: int, images: int, targets: int) -> PlanBlock:
        """Return arrays for so many tasks, not filled in yet."""
        shapes = [(tasks, sets, images)] * 2 + [(tasks, targets)] * 3
        return cls(*(np.empty(shape, np.int32) for shape in shapes))

    def __len__(self) -> int:
        return len(self.support_images)

    def __getitem__(self, part: slice) -> PlanBlock:
        """Return some of the tasks."""
        return PlanBlock(**{name: getattr(self, name)[part] for name in self.__dataclass_fields__})

    def task(self, position: int) -> TaskPlan:
        """Return the task at `position` of this block."""
        return TaskPlan(
            self.support_images[position],
            self.support_labels[position],
            self.target_images[position],
            self.target_labels[position],
            self.target_groups[position],
        )


def groups_seen(spec: TaskSpec) -> Int64[np.ndarray, " sets"]:
    """Return the number of groups (instance test: support sets) seen after each support set."""
    sets = np.arange(spec.nss, dtype=np.int64)
    return sets + 1 if spec.kind == "instance" else sets // spec.interval + 1
