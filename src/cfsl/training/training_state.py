"""The state of a training run: everything that an update changes, and that a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import cos, isfinite, pi
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cfsl.errors import CheckpointError, LearnerError
from cfsl.learners.base import Meta
from cfsl.nets import in_channels_last
from cfsl.training.checkpoint import (
    optimizer_tensors,
    read_checkpoint,
    restore_optimizer,
    unflatten,
)
from cfsl.training.events import Epoch
from cfsl.training.muon import Muon
from cfsl.training.objective import Objective
from cfsl.training.run_folder import LAST, history_in, require_resumable
from cfsl.training.training_spec import Schedule, Training

_VECTOR_RATE = 0.02
"""With Muon: the rate of vectors, as a part of that of matrices."""
_NO_MATRICES = ("head.", "rates.", "scales.", "critic.")
"""Weights with two dimensions or more that Muon treats as vectors: a classifier, tables by step, a
small critic."""


@dataclass
class TrainingState:
    """Weights, optimizer and history of a training run."""

    params: dict[str, Tensor]
    stats: dict[str, Tensor]
    average: dict[str, Tensor]
    """The moving average of the learned weights; empty if the schedule has none."""
    optimizer: torch.optim.Optimizer
    update: int = 0
    """Updates so far."""
    history: list[Epoch] = field(default_factory=list)

    @classmethod
    def begin(cls, objective: Objective, training: Training, device: str = "cpu") -> TrainingState:
        """Draw first weights on the CPU, which are the same for every device, and move them."""
        first = objective.init(torch.Generator().manual_seed(training.seed))
        params = _on_device(in_channels_last(first["params"]), device)
        stats = _on_device(first["stats"], device)
        learned = _require_gradients(params, objective)

        average = {}
        if training.schedule.average:
            average = {name: tensor.detach().clone() for name, tensor in learned.items()}
        return cls(params, stats, average, optimizer_of(learned, training.schedule))

    def learned(self) -> Meta:
        """Return the weights to use: averaged ones, if there is an average."""
        return {"params": {**self.params, **self.average}, "stats": self.stats}

    def make_update(self, objective: Objective, schedule: Schedule) -> float:
        """Make the next update and return its loss; stop if that is not finite."""
        for group in self.optimizer.param_groups:
            group["lr"] = group_rate(group, schedule, self.update)

        loss, stats = objective.loss(self.params, self.stats, self.update)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

        self.stats = {name: tensor.detach() for name, tensor in stats.items()}
        with torch.no_grad():
            for name, averaged in self.average.items():
                averaged.lerp_(self.params[name], 1 - schedule.average)
        self.update += 1

        value = float(loss.detach())
        if not isfinite(value):
            raise LearnerError(
                f"the loss became {value} at update {self.update}; lower the learning rate"
            )
        return value

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is needed to go on, by its path in a checkpoint."""
        parts = {"params": self.params, "stats": self.stats, "average": self.average}
        weights = {
            f"{part}/{name}": tensor
            for part, tree in parts.items()
            for name, tensor in tree.items()
        }
        return weights | optimizer_tensors(self.optimizer)

    def resume(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Go on from the last checkpoint in a folder; refuse that of another run."""
        path = folder / LAST
        tensors, notes = read_checkpoint(path)
        require_resumable(path, notes["identity"], identity)

        saved = {part: unflatten(tensors, part) for part in ("params", "stats", "average")}
        lacking = sorted(self.stats.keys() - saved["stats"].keys())
        if lacking:
            raise CheckpointError(
                f"{path} has no '{lacking[0]}': it was written by an older version. "
                f"Train anew elsewhere."
            )

        with torch.no_grad():
            for name, tensor in saved["params"].items():
                self.params[name].copy_(tensor)
            for name, tensor in saved["average"].items():
                self.average[name].copy_(tensor)
        self.stats = {
            name: tensor.to(self.stats[name].device) for name, tensor in saved["stats"].items()
        }
        restore_optimizer(self.optimizer, tensors)

        self.update = notes["update"]
        self.history = history_in(notes)


def _on_device(tensors: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _require_gradients(params: Mapping[str, Tensor], objective: Objective) -> dict[str, Tensor]:
    """Let the weights that are learned require gradients, and return them."""
    return {
        name: tensor.requires_grad_()
        for name, tensor in params.items()
        if objective.is_learned(name)
    }


def optimizer_of(params: Mapping[str, Tensor], schedule: Schedule) -> torch.optim.Optimizer:
    """Return the optimizer of a schedule; it may have another rate for learned inner rates."""
    inner_rates = {
        name: tensor
        for name, tensor in params.items()
        if schedule.inner_rate and name.startswith("rates.")
    }
    weights = {name: tensor for name, tensor in params.items() if name not in inner_rates}
    optimizer = _optimizer_of_weights(weights, schedule)

    if inner_rates:
        group = {
            "params": list(inner_rates.values()),
            "lr": schedule.inner_rate,
            "full_rate": schedule.inner_rate,
            "weight_decay": schedule.weight_decay,
        }
        optimizer.add_param_group(group)
    return optimizer


def _optimizer_of_weights(
    params: Mapping[str, Tensor], schedule: Schedule
) -> torch.optim.Optimizer:
    rate, weight_decay = schedule.rate, schedule.weight_decay

    if schedule.optimizer == "muon":
        matrices = {
            name: tensor
            for name, tensor in params.items()
            if tensor.ndim > 1 and not name.startswith(_NO_MATRICES)
        }
        vectors = [tensor for name, tensor in params.items() if name not in matrices]
        vector_rate = schedule.vector_rate or _VECTOR_RATE * rate
        return Muon(matrices.values(), vectors, rate, vector_rate, weight_decay)

    weights = list(params.values())
    if schedule.optimizer == "sgd":
        return torch.optim.SGD(weights, rate, momentum=0.9, weight_decay=weight_decay)
    kind = torch.optim.AdamW if schedule.optimizer == "adamw" else torch.optim.Adam
    return kind(weights, rate, weight_decay=weight_decay)


def learning_rate(schedule: Schedule, update: int) -> float:
    """Return the rate of update number `update`."""
    warm = min(1.0, (update + 1) / schedule.warmup) if schedule.warmup else 1.0
    falling = (1 + cos(pi * update / schedule.total)) / 2 if schedule.decay == "cosine" else 1.0
    return schedule.rate * warm * falling


def group_rate(group: Mapping[str, Any], schedule: Schedule, update: int) -> float:
    """Return the rate of a group of weights, which may have a full rate of its own."""
    full_rate = float(group.get("full_rate", schedule.rate))
    return learning_rate(schedule, update) * full_rate / schedule.rate
