"""Where tensors can live on this machine."""

from __future__ import annotations

import torch

from cfsl.errors import SpecError


def available_devices() -> list[str]:
    """Return the names of the devices that this machine has."""
    is_available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    return [name for name, available in is_available.items() if available]


def require_device(name: str) -> None:
    """Refuse a device that this machine does not have."""
    available = available_devices()
    if name not in available:
        raise SpecError(f"device '{name}' is not available here; available: {', '.join(available)}")


def has_bfloat16(device: str) -> bool:
    """Tell whether a device is known to have instructions for bfloat16.

    Without them, computing in bfloat16 takes longer than in float32.
    """
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device != "cpu":
        return False

    # Older versions of torch do not know what a processor can do.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any("bf16" in name and value is True for name, value in capabilities.items())
