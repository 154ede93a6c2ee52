"""The weights of a run: drawn, those of a training run, or those of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cfsl.data.store import Dataset
from cfsl.data.tasks import Tasks
from cfsl.errors import CfslError
from cfsl.harness.sandbox.sandboxed_learner import SandboxedLearner
from cfsl.harness.sandbox.sandboxed_run import sandboxed_first_weights
from cfsl.learners.base import Meta, first_weights
from cfsl.learners.registry import LEARNERS, NO_WEIGHTS
from cfsl.runs.run_spec import DataSpec, LearnerSpec, TrainSpec, WeightsFile, trainer_of
from cfsl.spec import FrozenSpec
from cfsl.training.ready import PREFIX, ready_for, ready_named, require_unseen
from cfsl.training.run_folder import (
    LAST,
    best_epochs,
    best_weights,
    notes_of_run,
    read_weights,
)
from cfsl.training.training_spec import Training

_FITTED_TO_TASK = ("rates.", "scales.", "head.", "critic.", "targets.")
"""Weights whose shape is that of a task: the learner itself judges whether they fit."""


@dataclass(frozen=True)
class Weights:
    """Where the weights of a run are on this machine."""

    path: Path | None
    """The folder of a training run, or a weights file; None: weights are drawn."""

    def of_member(self, rank: int, learner: Any, tasks: Tasks, seed: int) -> Meta:
        """Return the weights of the best epoch (rank 0) or of the next best, or draw them."""
        if self.path is None:
            if isinstance(learner, SandboxedLearner):
                shape = _image_shape(tasks.data)
                return sandboxed_first_weights(learner, shape, tasks.spec, seed=seed)
            generator = torch.Generator().manual_seed(seed)
            return first_weights(learner, _image_shape(tasks.data), tasks.spec, generator)
        return best_weights(self.path, rank) if self.path.is_dir() else read_weights(self.path)

    def notes(self) -> dict[str, Any] | None:
        """Return what the training run wrote about itself."""
        return None if self.path is None else notes_of_run(self.path)

    def best_epochs(self, count: int) -> list[int]:
        """Return the best epochs of the training run, best first."""
        assert self.path is not None, "drawn weights have no epochs"
        return best_epochs(self.path, count)


def weights_asked_for(name: str, checkpoint: Path | None) -> Weights:
    """Return the weights for a learner: those at a path, or drawn ones; refuse what cannot be."""
    entry = LEARNERS.get(name)
    if checkpoint is None:
        if entry is not None and entry.weights.is_trained:
            raise CfslError(
                f"{name} needs weights: run 'cfsl train {name} ...' first and give its folder as "
                f"--checkpoint"
            )
        return Weights(None)

    if not checkpoint.exists():
        raise CfslError(
            f"{checkpoint} does not exist; --checkpoint takes a folder of 'cfsl train' or a "
            f"weights file"
        )
    if entry is not None and entry.weights is NO_WEIGHTS:
        raise CfslError(f"{name} has no weights; leave --checkpoint out")
    return Weights(checkpoint)


def checkpoint_or_ready(
    name: str, checkpoint: Path | None, data: Dataset, split: str
) -> Path | None:
    """Return the checkpoint as it was given, or ready weights that never saw these classes."""
    if checkpoint is None:
        path = ready_for(name, data)
    elif str(checkpoint).startswith(PREFIX):
        path = ready_named(name, str(checkpoint).removeprefix(PREFIX))
    else:
        return checkpoint

    if path is not None:
        require_unseen(path, data, split)
    return path


def origin_of(
    weights: Weights, learner: LearnerSpec, data: DataSpec, splits_name: str
) -> dict[str, Any]:
    """Return the fields of a run spec that say where its weights come from.

    A training run is stated in full if its folder holds the training that serves this learner on
    these data; all other weights are stated by the sha256 of their file.
    """
    notes = weights.notes()
    if weights.path is None or notes is None:
        return {}

    identity = notes.get("identity", {})
    seed = identity.get("training", {}).get("seed", 0)
    trainer = trainer_of(learner)
    trained = {
        name: value for name, value in identity.get("learner", {}).items() if name != "class"
    }
    trained_on = {"fingerprint": data.fingerprint, "splits": splits_name}
    if weights.path.is_dir() and trained == trainer.settings and identity["data"] == trained_on:
        training = Training(**identity["training"])
        return {
            "seed": seed,
            "train": TrainSpec(learner=trainer, data=data, training=training),
        }

    file = weights.path / LAST if weights.path.is_dir() else weights.path
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"seed": seed, "weights": WeightsFile(sha256=digest)}


def require_fit(name: str, learner: Any, meta: Meta, tasks: Tasks, path: Path) -> None:
    """Refuse weights of another learner or network."""
    shape = _image_shape(tasks.data)
    wanted = first_weights(learner, shape, tasks.spec, torch.Generator())
    given: Mapping[str, Any] = {**meta["params"], **meta["stats"]}
    for weight, tensor in {**wanted.get("params", {}), **wanted.get("stats", {})}.items():
        found = given.get(weight)
        if found is not None and (
            found.shape == tensor.shape or weight.startswith(_FITTED_TO_TASK)
        ):
            continue
        what = f"no '{weight}'"
        if found is not None:
            what = f"'{weight}' of shape {tuple(found.shape)}"
        raise CfslError(
            f"{path} has {what}, and {name} needs it in shape {tuple(tensor.shape)}: it was "
            f"trained as another learner or with other --set options; give the same here"
        )


def _unstated(learner: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the defaults of hyper-parameters that a learner states only if they are set."""
    fields = type(learner).model_fields
    defaults = {name: fields[name].default for name in names if name in fields}
    return {
        name: default
        for name, default in defaults.items()
        if name not in learner.replace(**{name: default}).model_dump(mode="json")
    }


def differences_from_training(notes: dict[str, Any] | None, learner: Any) -> list[str]:
    """Say which hyper-parameters are not those that the weights were trained with."""
    trained = notes["identity"]["learner"] if notes else {}
    if trained.get("class") != type(learner).__name__ or not isinstance(learner, FrozenSpec):
        return []
    now = learner.model_dump(mode="json")
    trained = _unstated(learner, now.keys() - trained.keys()) | trained
    changed = [name for name in now if name in trained and trained[name] != now[name]]
    return [
        *(
            f"trained with {name}={trained[name]}, evaluated with {name}={now[name]}"
            for name in changed
        ),
        *(f"trained before there was {name}" for name in now if name not in trained),
    ]


def _image_shape(data: Dataset) -> tuple[int, int, int]:
    recipe = data.info.recipe
    return recipe.channels, recipe.height, recipe.width
