"""cfsl: the benchmark for continual few-shot learning.

import cfsl

data = cfsl.load("glyphs")
tasks = cfsl.Tasks(data, cfsl.TaskSpec.type_d(nss=4, cci=2))
task = tasks[17]
print(task.support_sets[0].images.shape, task.target.images.shape)
cfsl.draw_task(task).save("task.png")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cfsl.data.catalog import load
    from cfsl.data.manifest import Manifest
    from cfsl.data.store import Dataset
    from cfsl.data.tasks import SupportSet, TargetSet, Task, TaskBatch, Tasks
    from cfsl.errors import CfslError
    from cfsl.harness.evaluate import evaluate
    from cfsl.harness.trace import Trace
    from cfsl.harness.workers import Workers
    from cfsl.metrics.accuracy import summarise, task_accuracies
    from cfsl.metrics.memory import atm
    from cfsl.report.draw_task import draw_task
    from cfsl.spec import Noise, Occlusion, TaskSpec

_MODULE_OF = {
    "CfslError": "cfsl.errors",
    "Dataset": "cfsl.data.store",
    "Manifest": "cfsl.data.manifest",
    "Noise": "cfsl.spec",
    "Occlusion": "cfsl.spec",
    "SupportSet": "cfsl.data.tasks",
    "TargetSet": "cfsl.data.tasks",
    "Task": "cfsl.data.tasks",
    "TaskBatch": "cfsl.data.tasks",
    "TaskSpec": "cfsl.spec",
    "Tasks": "cfsl.data.tasks",
    "Trace": "cfsl.harness.trace",
    "Workers": "cfsl.harness.workers",
    "atm": "cfsl.metrics.memory",
    "draw_task": "cfsl.report.draw_task",
    "evaluate": "cfsl.harness.evaluate",
    "load": "cfsl.data.catalog",
    "summarise": "cfsl.metrics.accuracy",
    "task_accuracies": "cfsl.metrics.accuracy",
}

__all__ = [
    "CfslError",
    "Dataset",
    "Manifest",
    "Noise",
    "Occlusion",
    "SupportSet",
    "TargetSet",
    "Task",
    "TaskBatch",
    "TaskSpec",
    "Tasks",
    "Trace",
    "Workers",
    "atm",
    "draw_task",
    "evaluate",
    "load",
    "summarise",
    "task_accuracies",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `cfsl --help` does not wait for torch."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'cfsl' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
