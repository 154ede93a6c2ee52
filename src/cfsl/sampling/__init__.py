"""Sampling: spec, class sizes, seed and task number give image numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from jaxtyping import Integer

from cfsl.sampling.as_released import as_released_2020_04, as_released_2020_08
from cfsl.sampling.companions import partner_of, with_companions
from cfsl.sampling.draw import SAMPLER, draw_tasks
from cfsl.sampling.feasible import is_feasible, most_feasible, nearest_feasible, require_feasible
from cfsl.sampling.plan import PlanBlock, TaskPlan
from cfsl.spec import TaskSpec


class Sampler(Protocol):
    """A pure function from class sizes, spec, seed and task numbers to image numbers."""

    def __call__(
        self,
        class_sizes: Integer[np.ndarray, " classes"],
        spec: TaskSpec,
        tasks: range,
        *,
        seed: int,
        split: str,
    ) -> PlanBlock:
        """Draw the tasks with these numbers."""
        ...


SAMPLERS: Mapping[str, Sampler] = {
    SAMPLER: draw_tasks,
    "as_released_2020_04": as_released_2020_04,
    "as_released_2020_08": as_released_2020_08,
}

__all__ = [
    "SAMPLER",
    "SAMPLERS",
    "PlanBlock",
    "Sampler",
    "TaskPlan",
    "draw_tasks",
    "is_feasible",
    "most_feasible",
    "nearest_feasible",
    "partner_of",
    "require_feasible",
    "with_companions",
]
