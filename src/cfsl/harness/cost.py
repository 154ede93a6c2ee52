"""What a task costs: multiply-accumulates (MACs) and memory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

import torch

from cfsl.data.tasks import Tasks
from cfsl.harness.evaluate import task_info
from cfsl.harness.macs import counting_macs
from cfsl.harness.peak import PeakMemory
from cfsl.harness.sandbox.sandboxed_run import SandboxedRun
from cfsl.harness.workers import threads
from cfsl.learners.base import FixedEmbedding, Learner, Meta, Support

T = TypeVar("T")


@dataclass(frozen=True)
class TaskMacs:
    """MACs of one task."""

    adaptation: int
    """For all support sets, embedding included."""
    prediction: int
    """For all targets, embedding included."""


def measure_macs(learner: Learner, tasks: Tasks, meta: Meta) -> TaskMacs:
    """Count the MACs of the first task; all tasks of a spec have the same shapes and counts."""
    of_learning, of_prediction = counting_macs(), counting_macs()
    learned, predicted = _run_first_task(learner, tasks, meta, of_learning, of_prediction)
    return TaskMacs(learned.total, predicted.total)


def measure_peak_memory(learner: Learner, tasks: Tasks, meta: Meta) -> int:
    """Run the first task and return the most bytes that its tensors took at once.

    The weights and the images of the task are not counted.
    """
    memory = PeakMemory()
    _run_first_task(learner, tasks, meta, memory, memory)
    return memory.peak


def measure_in_sandbox(learner: Learner, tasks: Tasks, meta: Meta) -> tuple[TaskMacs, int]:
    """Return the MACs and the peak memory of the first task, both counted inside the sandbox."""
    info = task_info(tasks, tasks.numbers[0])

    def measured(kind: str) -> tuple[int, int]:
        task = tasks[0]
        supports = (Support(support.images, support.labels) for support in task.support_sets)
        return run.measure(kind, info, supports, lambda: task.target.images)

    run = SandboxedRun(learner, meta)
    with threads(1), torch.no_grad():
        macs = TaskMacs(*measured("macs"))
        peak = max(measured("memory"))
    return macs, peak


def _run_first_task(
    learner: Learner,
    tasks: Tasks,
    meta: Meta,
    watch_learning: AbstractContextManager[T],
    watch_prediction: AbstractContextManager[T],
) -> tuple[T, T]:
    """Run the first task, watched by the two contexts, and return what these give.

    It runs on one thread: beside other processes, several threads would wait for each other.
    """
    task, info = tasks[0], task_info(tasks, tasks.numbers[0])

    def shown(images: torch.Tensor) -> torch.Tensor:
        return learner.embed(meta, images) if isinstance(learner, FixedEmbedding) else images

    with threads(1), torch.no_grad():
        with watch_learning as learned:
            state = learner.begin(meta, info)
            for support in task.support_sets:
                images = shown(support.images)
                state = learner.observe(state, Support(images, support.labels))

        with watch_prediction as predicted:
            learner.predict(state, shown(task.target.images))

    return learned, predicted
