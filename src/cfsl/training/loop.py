"""The outer loop: update, validate, keep the best, and go on exactly where it was after a crash."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import cos, isfinite, pi
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cfsl.data.store import Dataset
from cfsl.data.tasks import Tasks
from cfsl.errors import CheckpointError, LearnerError
from cfsl.harness.devices import require_device
from cfsl.harness.evaluate import evaluate
from cfsl.harness.freed_memory import freed_memory_kept
from cfsl.harness.macs import counting_macs
from cfsl.harness.state import flatten
from cfsl.harness.workers import threads as on_threads
from cfsl.learners.base import Learner, Meta
from cfsl.learners.maml.accelerated import accelerated
from cfsl.metrics.accuracy import summarise, task_accuracies
from cfsl.nets import in_channels_last
from cfsl.training.calibration import calibrated
from cfsl.training.checkpoint import (
    optimizer_tensors,
    read_checkpoint,
    read_notes,
    restore_optimizer,
    unflatten,
    write_checkpoint,
)
from cfsl.training.events import Epoch, Event, Saved, Started, Update, Watcher
from cfsl.training.muon import Muon
from cfsl.training.objective import Objective, objective_of
from cfsl.training.training_spec import Schedule, Start, Training

LAST = "last.safetensors"
START = "start"
"""The folder, in that of a training run, of the run that it starts from."""
_OTHERS_RATE = 0.02
"""With Muon: the rate of vectors, by that of matrices."""
_NO_MATRICES = ("head.", "rates.", "scales.", "critic.")
"""Weights with two dimensions or more that Muon treats as vectors: a classifier, tables by step, a small critic."""


@dataclass
class _Run:
    """A training run in progress."""

    params: dict[str, Tensor]
    stats: dict[str, Tensor]
    average: dict[str, Tensor]
    optimizer: torch.optim.Optimizer
    update: int = 0
    history: list[Epoch] = field(default_factory=list)

    def learned(self) -> Meta:
        """Return the weights to use: averaged ones, if there is an average."""
        return {"params": {**self.params, **self.average}, "stats": self.stats}


def _nobody(event: Event) -> None:
    """Watch nothing."""


def train(
    learner: Learner,
    training: Training,
    data: Dataset,
    folder: Path,
    watch: Watcher = _nobody,
    device: str = "cpu",
    threads: int = 1,
    accelerate: bool = True,
    start: Path | None = None,
) -> list[Epoch]:
    """Train, or go on with a run that was stopped, and return the history; see `best_weights(folder)`.

    A training that starts from another one (`training.start`) takes its weights from the folder `start`, by default
    folder/start; the other one is done first if it is not done there.

    Weights, optimizer and batches live on the device. A run may go on on another one; only on the same, and with as
    many threads, are its bits those of a run that was never stopped. `accelerate` trains by the faster twin of a
    learner, if there is one (see `maml_fast.py`): the same up to rounding, hence no part of the identity of a run.
    """
    require_device(device)
    identity = _identity(learner, training, data)
    twin = accelerated(learner, device) if accelerate and not training.iid else learner
    begun = None
    if training.start is not None:
        earlier, stage = start or folder / START, training.start
        if not is_whole_and_finished(earlier, stage.training, stage.built(), data.fingerprint):
            train(
                stage.built(), stage.training, data, earlier, _nobody, device, threads, accelerate
            )
        begun = best_weights(earlier)

    with on_threads(threads), freed_memory_kept():
        objective = objective_of(twin, training, data, begun)
        counted = objective if twin is learner else objective_of(learner, training, data, begun)
        about = {
            "identity": identity,
            "ran": {"device": device, "threads": threads, "accelerated": twin is not learner},
        }
        return _trained(_Trainee(twin, objective, counted), about, training, data, folder, watch)


def stages_before(training: Training, folder: Path) -> list[tuple[Start, Path]]:
    """Return the stages that a training starts from, the first to be done first, each with its folder."""
    found = []
    stage, place = training.start, folder / START
    while stage is not None:
        found.append((stage, place))
        stage, place = stage.training.start, place / START
    return found[::-1]


class _Trainee(NamedTuple):
    """A learner as it is trained, and what it minimises."""

    learner: Learner
    objective: Objective
    counted: Objective
    """The same objective of the learner as it is specified, whose multiply-accumulates are those of an update."""


def _trained(
    trainee: _Trainee,
    about: dict[str, Any],
    training: Training,
    data: Dataset,
    folder: Path,
    watch: Watcher,
) -> list[Epoch]:
    """Make the updates that are left."""
    learner, objective, counted = trainee
    device = about["ran"]["device"]
    run = _begin(objective, training, device)
    if (folder / LAST).exists():
        _resume(run, folder / LAST, about["identity"])
    validation = Tasks(
        data, training.validation, split="val", numbers=range(training.validation_tasks)
    )
    schedule = training.schedule
    _tidy(folder, run.history, schedule.keep)
    watch(Started(run.update, run.history[-1].accuracy if run.history else None))
    if _is_finished(run.update, run.history, schedule):
        return run.history

    objective.prepare()
    about = about | {"step_macs": _step_macs(counted)}
    while not _is_finished(run.update, run.history, schedule):
        if run.history:
            objective.start_epoch(run.learned())
        epoch = _one_epoch(run, objective, schedule, watch)
        learned = calibrated(learner, run.learned(), data, device)
        epoch.accuracy = _accuracy(learner, learned, validation, device)
        run.history.append(epoch)
        watch(epoch)
        _save(run, learned, folder, about, schedule.keep)
        watch(Saved(epoch, run.update))
    return run.history


def is_whole_and_finished(
    folder: Path, training: Training, learner: Learner, fingerprint: str
) -> bool:
    """Tell whether a run has come to its end; raise if one of its files is damaged, missing, or of another run."""
    if not (folder / LAST).exists():
        return False
    notes = read_notes(folder / LAST)
    wanted = {"learner": _described(learner), "training": training.model_dump(mode="json")}
    _require_same_run(folder / LAST, notes["identity"], wanted, fingerprint)
    history = [Epoch(**epoch) for epoch in notes["history"]]
    for epoch in _best_epochs(history, training.schedule.keep):
        path = folder / _epoch_file(epoch)
        then = read_notes(path)
        _require_same_run(path, then["identity"], wanted, fingerprint)
        if then["history"] != notes["history"][: epoch + 1]:
            raise CheckpointError(f"{path} is an epoch of another run than {LAST}")
    return _is_finished(notes["update"], history, training.schedule)


def _is_finished(update: int, history: list[Epoch], schedule: Schedule) -> bool:
    return update >= schedule.total or _is_out_of_patience(history, schedule)


def notes_of(path: Path) -> dict[str, Any]:
    """Return what a training run wrote about itself, in its folder or in a weights file."""
    if not path.is_dir():
        return read_notes(path)
    if not (path / LAST).exists():
        raise CheckpointError(
            f"{path} holds no training run ({LAST} is missing); name a folder of 'cfsl train'"
        )
    return read_notes(path / LAST)


def best_epochs(folder: Path, count: int) -> list[int]:
    """Return the best epochs of a training folder by validation accuracy, best first."""
    notes = notes_of(folder)
    keep = notes["identity"]["training"]["schedule"]["keep"]
    kept = _best_epochs([Epoch(**epoch) for epoch in notes["history"]], keep)
    if len(kept) < count:
        made = len(notes["history"])
        raise CheckpointError(
            f"{folder} keeps {len(kept)} epochs (the best {keep} of {made}), not {count}"
        )
    return kept[:count]


def best_weights(folder: Path, rank: int = 0) -> Meta:
    """Return the weights of the best epoch by validation accuracy (or the next best, by rank)."""
    return read_weights(folder / _epoch_file(best_epochs(folder, rank + 1)[rank]))


def read_weights(path: Path) -> Meta:
    """Return the learned weights in a checkpoint file, or of the best epoch in a training folder."""
    if path.is_dir():
        return best_weights(path)
    tensors, _ = read_checkpoint(path)
    meta = unflatten(tensors, "meta")
    if not {"params", "stats"} <= meta.keys():
        raise CheckpointError(
            f"{path} holds no weights to use; name a training folder, or one of its epoch files"
        )
    return {"params": in_channels_last(meta["params"]), "stats": meta["stats"]}


def _begin(objective: Objective, training: Training, device: str = "cpu") -> _Run:
    """Draw first weights on the CPU, where they are the same for every device, and move them."""
    meta = objective.init(torch.Generator().manual_seed(training.seed))
    params = _on(in_channels_last(meta["params"]), device)
    learned = {
        name: tensor.requires_grad_()
        for name, tensor in params.items()
        if objective.is_learned(name)
    }
    schedule = training.schedule
    average = (
        {name: tensor.detach().clone() for name, tensor in learned.items()}
        if schedule.average
        else {}
    )
    return _Run(params, _on(meta["stats"], device), average, _optimizer(learned, schedule))


def _step_macs(objective: Objective) -> int:
    """Count the multiply-accumulates of one update, forward and backward; all updates have the same shapes."""
    meta = objective.init(torch.Generator().manual_seed(0))
    params = {name: tensor.detach().clone() for name, tensor in meta["params"].items()}
    learned = [
        tensor.requires_grad_() for name, tensor in params.items() if objective.is_learned(name)
    ]
    objective.prepare()
    with counting_macs() as counted:
        loss, _ = objective.loss(params, dict(meta["stats"]), 0)
        torch.autograd.grad(loss, learned, allow_unused=True)
    return counted.total


def _on(tensors: Mapping[str, Tensor], device: str | torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _optimizer(params: Mapping[str, Tensor], schedule: Schedule) -> torch.optim.Optimizer:
    """Return the optimizer of a schedule; the learned rates of an inner loop may have a rate of their own."""
    rates = {
        name: t for name, t in params.items() if schedule.inner_rate and name.startswith("rates.")
    }
    others = {name: t for name, t in params.items() if name not in rates}
    optimizer = _optimizer_of_weights(others, schedule)

    if rates:
        own = {
            "lr": schedule.inner_rate,
            "full_rate": schedule.inner_rate,
            "weight_decay": schedule.weight_decay,
        }
        optimizer.add_param_group({"params": list(rates.values()), **own})
    return optimizer


def _optimizer_of_weights(
    params: Mapping[str, Tensor], schedule: Schedule
) -> torch.optim.Optimizer:
    if schedule.optimizer == "muon":
        matrices = {
            name: t
            for name, t in params.items()
            if t.ndim > 1 and not name.startswith(_NO_MATRICES)
        }
        vectors = [tensor for name, tensor in params.items() if name not in matrices]
        vector_rate = schedule.vector_rate or _OTHERS_RATE * schedule.rate
        return Muon(matrices.values(), vectors, schedule.rate, vector_rate, schedule.weight_decay)
    weights = list(params.values())
    if schedule.optimizer == "sgd":
        return torch.optim.SGD(
            weights, schedule.rate, momentum=0.9, weight_decay=schedule.weight_decay
        )
    kind = torch.optim.AdamW if schedule.optimizer == "adamw" else torch.optim.Adam
    return kind(weights, schedule.rate, weight_decay=schedule.weight_decay)


def learning_rate(schedule: Schedule, update: int) -> float:
    """Return the rate of update number `update`."""
    warm = min(1.0, (update + 1) / schedule.warmup) if schedule.warmup else 1.0
    falling = (1 + cos(pi * update / schedule.total)) / 2 if schedule.decay == "cosine" else 1.0
    return schedule.rate * warm * falling


def group_rate(group: Mapping[str, Any], schedule: Schedule, update: int) -> float:
    """Return the rate of weights that may have a full rate of their own."""
    return (
        learning_rate(schedule, update)
        * float(group.get("full_rate", schedule.rate))
        / schedule.rate
    )


def _one_epoch(run: _Run, objective: Objective, schedule: Schedule, watch: Watcher) -> Epoch:
    start, losses = time.perf_counter(), []
    for _ in range(schedule.updates):
        rate = learning_rate(schedule, run.update)
        losses.append(_one_update(run, objective, schedule))
        per_second = schedule.batch * len(losses) / (time.perf_counter() - start)
        watch(Update(run.update, losses[-1], rate, per_second))
    seconds = time.perf_counter() - start
    return Epoch(len(run.history), sum(losses) / len(losses), float("nan"), seconds)


def _one_update(run: _Run, objective: Objective, schedule: Schedule) -> float:
    for group in run.optimizer.param_groups:
        group["lr"] = group_rate(group, schedule, run.update)
    loss, stats = objective.loss(run.params, run.stats, run.update)
    run.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    run.optimizer.step()
    run.stats = {name: tensor.detach() for name, tensor in stats.items()}
    with torch.no_grad():
        for name, averaged in run.average.items():
            averaged.lerp_(run.params[name], 1 - schedule.average)
    run.update += 1
    value = float(loss.detach())
    if not isfinite(value):
        raise LearnerError(
            f"the loss became {value} at update {run.update}; lower the learning rate"
        )
    return value


def _accuracy(learner: Learner, meta: Meta, validation: Tasks, device: str) -> float:
    weights = {part: {name: t.detach() for name, t in tree.items()} for part, tree in meta.items()}
    return summarise(
        task_accuracies(evaluate(learner, validation, weights, law=False, device=device))
    ).mean


def _is_out_of_patience(history: list[Epoch], schedule: Schedule) -> bool:
    if schedule.patience is None or not history:
        return False
    best = max(range(len(history)), key=lambda i: history[i].accuracy)
    return len(history) - 1 - best >= schedule.patience


def _best_epochs(history: list[Epoch], count: int) -> list[int]:
    """Return the epochs with the highest validation accuracy, best first; the earlier one of two equals."""
    ranked = sorted(history, key=lambda epoch: (-epoch.accuracy, epoch.epoch))
    return [epoch.epoch for epoch in ranked[:count]]


def _epoch_file(epoch: int) -> str:
    return f"epoch-{epoch:04d}.safetensors"


def _save(run: _Run, learned: Meta, folder: Path, about: dict[str, Any], keep: int) -> None:
    """Write the epoch's weights, then the file that resuming reads, then remove what is no longer needed."""
    notes = about | {"update": run.update, "history": [vars(epoch) for epoch in run.history]}
    best = _best_epochs(run.history, keep)
    newest = run.history[-1].epoch
    if newest in best:
        tensors = {f"meta/{path}": tensor for path, tensor in flatten(learned).items()}
        write_checkpoint(folder / _epoch_file(newest), tensors, notes)
    everything = {f"params/{name}": tensor for name, tensor in run.params.items()}
    everything |= {f"stats/{name}": tensor for name, tensor in run.stats.items()}
    everything |= {f"average/{name}": tensor for name, tensor in run.average.items()}
    write_checkpoint(folder / LAST, everything | optimizer_tensors(run.optimizer), notes)
    _tidy(folder, run.history, keep)


def _tidy(folder: Path, history: list[Epoch], keep: int) -> None:
    """Remove epochs that are no longer among the best, and what a killed process was writing."""
    kept = {_epoch_file(epoch) for epoch in _best_epochs(history, keep)}
    for path in [*folder.glob("epoch-*.safetensors"), *folder.glob(".*.safetensors.*.part")]:
        if path.name not in kept:
            path.unlink()


def _resume(run: _Run, path: Path, identity: dict[str, Any]) -> None:
    """Put a run where it was; refuse the checkpoint of another run, with what differs."""
    tensors, notes = read_checkpoint(path)
    differences = _differences(notes["identity"], identity)
    if differences:
        raise CheckpointError(
            f"{path.parent} holds another run: {'; '.join(differences[:3])}. Choose another folder, or delete it."
        )
    lacking = sorted(run.stats.keys() - unflatten(tensors, "stats").keys())
    if lacking:
        raise CheckpointError(
            f"{path} has no '{lacking[0]}': it was written by an older version. Train anew elsewhere."
        )
    with torch.no_grad():
        for name, tensor in unflatten(tensors, "params").items():
            run.params[name].copy_(tensor)
        for name, tensor in unflatten(tensors, "average").items():
            run.average[name].copy_(tensor)
    run.stats = {
        name: tensor.to(run.stats[name].device)
        for name, tensor in unflatten(tensors, "stats").items()
    }
    restore_optimizer(run.optimizer, tensors)
    run.update = notes["update"]
    run.history = [Epoch(**epoch) for epoch in notes["history"]]


def _require_same_run(
    path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any], fingerprint: str
) -> None:
    """Refuse a checkpoint whose learner, training or data are others."""
    found = {"learner": saved["learner"], "training": saved["training"]}
    differences = _differences(found, wanted)
    if saved["data"]["fingerprint"] != fingerprint:
        differences.append("the data set is another")
    if differences:
        raise CheckpointError(f"{path} is of another run: {'; '.join(differences[:3])}")


def _described(learner: Learner) -> dict[str, Any]:
    describe = getattr(learner, "model_dump", lambda mode: {"repr": repr(learner)})
    return {"class": type(learner).__name__, **describe(mode="json")}


def _identity(learner: Learner, training: Training, data: Dataset) -> dict[str, Any]:
    return {
        "learner": _described(learner),
        "training": training.model_dump(mode="json"),
        "data": {"fingerprint": data.fingerprint, "splits": data.splits_name},
    }


def _differences(saved: Any, wanted: Any, where: str = "") -> list[str]:
    """Say where two nested dicts differ; what is as usual may be left out of them."""
    if isinstance(saved, dict) and isinstance(wanted, dict):
        return [
            difference
            for key in sorted(saved.keys() | wanted.keys())
            for difference in _differences(
                saved.get(key), wanted.get(key), f"{where}.{key}" if where else key
            )
        ]
    there, here = ("as usual" if value is None else value for value in (saved, wanted))
    return [] if saved == wanted else [f"{where} is {there} there and {here} here"]
