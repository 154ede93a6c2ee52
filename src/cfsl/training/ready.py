"""Ready weights: they come with the package, so that a learner can be tried at once.

A file holds the weights of one training run, its notes, and the names of the classes that it was
trained on. The weights are never used on tasks of those classes: on another split, a part of the
test classes would have been trained on.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from cfsl.data.store import Dataset
from cfsl.errors import CheckpointError, did_you_mean
from cfsl.harness.state import flatten
from cfsl.training.checkpoint import read_notes, write_checkpoint
from cfsl.training.run_folder import best_weights, notes_of_run

PREFIX = "ready:"
_FOLDER = Path(str(files("cfsl"))) / "weights"
_SUFFIX = ".safetensors"


def ready_for(learner: str, data: Dataset) -> Path | None:
    """Return the ready weights of a learner for a data set, if there are some."""
    path = _FOLDER / f"{learner}-{data.name.partition('-')[0]}{_SUFFIX}"
    return path if path.exists() else None


def ready_named(learner: str, name: str) -> Path:
    """Return the ready weights 'ready:NAME' of a learner, or say which ones it has."""
    path = _FOLDER / f"{learner}-{name}{_SUFFIX}"
    if path.exists():
        return path

    files = _FOLDER.glob(f"{learner}-*{_SUFFIX}")
    known = sorted(file.stem.removeprefix(f"{learner}-") for file in files)
    others = "; there are none"
    if known:
        others = f"{did_you_mean(name, known)} There are: {', '.join(known)}"
    raise CheckpointError(f"{learner} has no ready weights '{name}'{others}")


def require_unseen(path: Path, data: Dataset, split: str) -> None:
    """Refuse weights that were trained on classes of the tasks to come."""
    trained = set(read_notes(path)["classes"])
    names = data.splits.get(split, data.info.class_names)
    seen = sorted(trained.intersection(names))
    if seen:
        raise CheckpointError(
            f"{path.name} was trained on {len(seen)} of the {len(names)} classes of "
            f"{data.name}/{split} ('{seen[0]}' for one). Train for this split with 'cfsl train', "
            f"and give its folder as --checkpoint"
        )


def make_ready(folder: Path, data: Dataset, path: Path) -> None:
    """Write the best weights of a training run as a file of ready weights.

    The file has no classifier head, but the names of the training classes.
    """
    notes = notes_of_run(folder)
    kept: dict[str, Any] = {
        part: {name: tensor for name, tensor in tree.items() if not name.startswith("head.")}
        for part, tree in best_weights(folder).items()
    }

    tensors = {f"meta/{name}": tensor for name, tensor in flatten(kept).items()}
    write_checkpoint(path, tensors, notes | {"classes": list(data.splits["train"])})
