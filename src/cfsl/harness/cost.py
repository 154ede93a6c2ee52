"""What a task costs in multiply-accumulates: learning from the support sets, and answering for the targets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cfsl.data.tasks import Tasks
from cfsl.harness.evaluate import task_info
from cfsl.harness.macs import counting_macs
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
    task, info = tasks[0], task_info(tasks, tasks.numbers[0])
    embed = learner.embed if isinstance(learner, FixedEmbedding) else None
    with torch.no_grad():
        with counting_macs() as learning:
            state = learner.begin(meta, info)
            for support in task.support_sets:
                images = embed(meta, support.images) if embed else support.images
                state = learner.observe(state, Support(images, support.labels))
        with counting_macs() as answering:
            learner.predict(state, embed(meta, task.target.images) if embed else task.target.images)
    return TaskMacs(learning.total, answering.total)
