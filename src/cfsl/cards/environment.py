"""What ran the code: versions and hardware, no names of machines or people."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy
import torch

from cfsl import __version__


def environment(device: str = "cpu") -> dict[str, Any]:
    """Return versions and hardware, ready for JSON."""
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
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
