"""A result card: one JSON file that says what was run, on what, and what came out."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cfsl import __version__
from cfsl.errors import CfslError
from cfsl.files import written_whole
from cfsl.harness.trace import Trace
from cfsl.metrics.accuracy import summarise, task_accuracies, task_cross_entropies
from cfsl.metrics.answers import NO_ANSWER, predicted_labels
from cfsl.metrics.calibration import expected_calibration_error
from cfsl.metrics.forgetting import backward_transfer, forgetting, group_accuracies, progressive_accuracy
from cfsl.metrics.memory import atm

FORMAT = 1


def measurements(trace: Trace) -> dict[str, Any]:
    """Return every metric of a trace, ready for JSON; fractions, not percent."""
    memory = atm(trace)
    measured: dict[str, Any] = {
        "accuracy": asdict(summarise(task_accuracies(trace))),
        "cross_entropy": asdict(summarise(task_cross_entropies(trace))),
        "calibration_error": expected_calibration_error(trace),
        "diverged": float((predicted_labels(trace.logits) == NO_ANSWER).mean()),
        "atm": {
            "total": memory.total,
            "representation": memory.representation,
            "bookkeeping": memory.bookkeeping,
            "curve": [float(value) for value in memory.curve],
        },
        "group_accuracy": [float(value) for value in group_accuracies(trace)],
    }
    if trace.progressive is not None:
        per_task = {"forgetting": forgetting(trace), "backward_transfer": backward_transfer(trace)}
        measured["progressive_accuracy"] = [float(value) for value in progressive_accuracy(trace).mean]
        measured |= {name: asdict(summarise(v)) for name, v in per_task.items() if v is not None}
    return measured


def environment(device: str = "cpu") -> dict[str, Any]:
    """Return what ran the code: versions and hardware, no names of machines or people."""
    import numpy
    import torch

    return {
        "cfsl": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor(device),
        "device": device,
        "cores": os.cpu_count(),
    }


def processor(device: str) -> str:
    """Name the hardware that computed, so that times can be compared."""
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_card(path: Path, card: dict[str, Any]) -> None:
    """Write a card, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as part:
            part.write_text(json.dumps({"format": FORMAT} | card, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise CfslError(f"{path} cannot be written: {error.strerror or error}") from error
