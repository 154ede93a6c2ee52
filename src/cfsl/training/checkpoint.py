"""Checkpoint files: tensors and notes in one safetensors file, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cfsl.errors import CheckpointError
from cfsl.files import written_whole
from cfsl.nets import in_channels_last

_FORMAT = "cfsl-checkpoint-1"
T = TypeVar("T")


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write tensors and notes (JSON values) as one file."""
    metadata = {"format": _FORMAT, "notes": json.dumps(notes, sort_keys=True)}
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as part:
            # Not save_file: it has a temporary file of its own, which stays if it is killed.
            part.write_bytes(save(plain, metadata))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} cannot be written: {error}. Earlier checkpoints are untouched."
        ) from error


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and notes; no code is ever loaded."""
    return _read(path, _all_tensors)


def read_notes(path: Path) -> dict[str, Any]:
    """Read the notes without the tensors; a file that was cut short is refused all the same."""
    return _read(path, lambda file: None)[1]


def _all_tensors(file: Any) -> dict[str, Tensor]:
    return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict


def _read(path: Path, read_from: Callable[[Any], T]) -> tuple[T, dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            content = read_from(file)
        notes = json.loads(metadata["notes"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a whole checkpoint ({error}); delete it, or name another"
        ) from error

    if metadata.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path} has format {metadata.get('format')}; this version reads {_FORMAT}"
        )
    return content, notes


def unflatten(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    """Return the tensors below `prefix` as nested dicts (paths are cut at '/')."""
    tree: dict[str, Any] = {}
    for path, tensor in tensors.items():
        if path.startswith(f"{prefix}/"):
            *folders, name = path.removeprefix(f"{prefix}/").split("/")
            node = tree
            for folder in folders:
                node = node.setdefault(folder, {})
            node[name] = tensor
    return tree


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of an optimizer's state by 'optimizer/<parameter>/<name>'."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer/{i}/{name}": value
        for i, slots in state.items()
        for name, value in slots.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimizer its state back, in the layout of its weights and on their device."""
    saved = optimizer.state_dict()
    saved["state"] = {
        int(i): in_channels_last(slots) for i, slots in unflatten(tensors, "optimizer").items()
    }
    optimizer.load_state_dict(saved)
