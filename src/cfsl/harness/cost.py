"""What a task costs: multiply-accumulates and memory, of learning from support sets and of answering for targets."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from cfsl.data.tasks import Tasks
from cfsl.harness.evaluate import task_info
from cfsl.harness.macs import counting_macs
from cfsl.harness.peak import PeakMemory
from cfsl.harness.workers import threads
from cfsl.learners.base import FixedEmbedding, Learner, Meta, Support


@dataclass(frozen=True)
class TaskMacs:
    """MACs of one task."""

    adaptation: int
    """All support sets, embedding included."""
    prediction: int
    """All targets, embedding included."""


def measure_macs(learner: Learner, tasks: Tasks, meta: Meta) -> TaskMacs:
    """Run the first task and count; every task of a spec has the same shapes, and so the same count."""
    learning, answering = counting_macs(), counting_macs()
    learned, answered = _learn_and_predict(learner, tasks, meta, learning, answering)
    return TaskMacs(learned.total, answered.total)


def measure_peak_memory(learner: Learner, tasks: Tasks, meta: Meta) -> int:
    """Run the first task; return the most bytes of tensors at once, beside the weights and the images of the task."""
    memory = PeakMemory()
    _learn_and_predict(learner, tasks, meta, memory, memory)
    return memory.peak


def _learn_and_predict(
    learner: Learner,
    tasks: Tasks,
    meta: Meta,
    learning: AbstractContextManager[Any],
    answering: AbstractContextManager[Any],
) -> tuple[Any, Any]:
    """Run the first task, watched, on one thread: beside other processes, several would wait for each other."""
    task, info = tasks[0], task_info(tasks, tasks.numbers[0])
    embed = learner.embed if isinstance(learner, FixedEmbedding) else None
    with threads(1), torch.no_grad():
        with learning as learned:
            state = learner.begin(meta, info)
            for support in task.support_sets:
                images = embed(meta, support.images) if embed else support.images
                state = learner.observe(state, Support(images, support.labels))
        with answering as answered:
            learner.predict(state, embed(meta, task.target.images) if embed else task.target.images)
    return learned, answered
