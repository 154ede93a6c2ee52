"""The outer loop: update, validate, keep the best epochs, and go on exactly after a crash."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cfsl.data.store import Dataset
from cfsl.data.tasks import Tasks
from cfsl.harness.devices import require_device
from cfsl.harness.evaluate import evaluate
from cfsl.harness.freed_memory import freed_memory_kept
from cfsl.harness.macs import counting_macs
from cfsl.harness.state import flatten
from cfsl.harness.workers import threads as on_threads
from cfsl.learners.base import Learner, Meta
from cfsl.learners.maml.accelerated import accelerated
from cfsl.metrics.accuracy import summarise, task_accuracies
from cfsl.training.calibration import calibrated
from cfsl.training.checkpoint import write_checkpoint
from cfsl.training.events import Epoch, Event, Saved, Started, Update, Watcher
from cfsl.training.objective import Objective, objective_of
from cfsl.training.run_folder import (
    LAST,
    START,
    best_of,
    best_weights,
    epoch_file,
    identity_of,
    is_finished,
    is_whole_and_finished,
    remove_leftovers,
)
from cfsl.training.training_spec import Schedule, Start, Training
from cfsl.training.training_state import TrainingState, learning_rate


def _ignore(event: Event) -> None:
    """Watch nothing."""


def train(
    learner: Learner,
    training: Training,
    data: Dataset,
    folder: Path,
    watch: Watcher = _ignore,
    *,
    device: str = "cpu",
    threads: int = 1,
    accelerate: bool = True,
    start: Path | None = None,
) -> list[Epoch]:
    """Train, or go on with a run that was stopped; return the history (see `best_weights(folder)`).

    A training that starts from another one (`training.start`) takes its weights from the folder
    `start`, by default folder/start. The other one is trained there first if it is not finished.

    Weights, optimizer and batches live on the device. A stopped run may continue on another device;
    its bits are those of a run that was never stopped only on the same device and with as many
    threads.

    `accelerate` trains by the faster twin of a learner, if there is one (see
    `learners/maml/accelerated.py`): the same up to rounding, hence no part of the identity of a
    run.
    """
    require_device(device)
    identity = identity_of(learner, training, data)
    trained = accelerated(learner, device) if accelerate and not training.iid else learner

    start_weights = None
    if training.start is not None:
        earlier = start or folder / START
        _finish_stage(
            training.start, data, earlier, device=device, threads=threads, accelerate=accelerate
        )
        start_weights = best_weights(earlier)

    with on_threads(threads), freed_memory_kept():
        objective = objective_of(trained, training, data, start_weights)
        numbers = range(training.validation_tasks)
        validation = Tasks(data, training.validation, split="val", numbers=numbers)

        state = TrainingState.begin(objective, training, device)
        if (folder / LAST).exists():
            state.resume(folder, identity)
        remove_leftovers(folder, state.history, training.schedule.keep)

        watch(Started(state.update, state.history[-1].accuracy if state.history else None))
        if is_finished(state.update, state.history, training.schedule):
            return state.history

        objective.prepare()
        # The kernels of a twin are hidden from the counter, so the learner itself is counted.
        counted = objective
        if trained is not learner:
            counted = objective_of(learner, training, data, start_weights)
        notes = {
            "identity": identity,
            "ran": {
                "device": device,
                "threads": threads,
                "accelerated": trained is not learner,
            },
            "step_macs": _step_macs(counted),
        }
        run = _Run(trained, objective, training, data, validation, device, folder, notes)
        return run.to_the_end(state, watch)


def _finish_stage(
    stage: Start, data: Dataset, folder: Path, *, device: str, threads: int, accelerate: bool
) -> None:
    """Train the stage that another training starts from, if it is not finished."""
    learner, training = stage.built(), stage.training
    if not is_whole_and_finished(folder, training, learner, data.fingerprint):
        train(
            learner,
            training,
            data,
            folder,
            device=device,
            threads=threads,
            accelerate=accelerate,
        )


@dataclass(frozen=True)
class _Run:
    """What a training run trains, on what, and where."""

    learner: Learner
    """The learner as it is trained: perhaps the faster twin of the one that was asked for."""
    objective: Objective
    training: Training
    data: Dataset
    validation: Tasks
    device: str
    folder: Path
    notes: Mapping[str, Any]
    """What every checkpoint says about the run."""

    def to_the_end(self, state: TrainingState, watch: Watcher) -> list[Epoch]:
        """Make the epochs that are left, and return all of them."""
        schedule = self.training.schedule
        while not is_finished(state.update, state.history, schedule):
            if state.history:
                self.objective.start_epoch(state.learned())
            epoch = _one_epoch(state, self.objective, schedule, watch)

            learned = calibrated(self.learner, state.learned(), self.data, self.device)
            epoch.accuracy = _accuracy(self.learner, learned, self.validation, self.device)
            state.history.append(epoch)

            # A log that is written before the checkpoint has no gap after a crash.
            watch(epoch)
            self._save(state, learned)
            watch(Saved(epoch, state.update))

        return state.history

    def _save(self, state: TrainingState, learned: Meta) -> None:
        """Write the weights of the epoch, then the file that resuming reads; then clear up."""
        history, keep = state.history, self.training.schedule.keep
        notes = {
            **self.notes,
            "update": state.update,
            "history": [vars(epoch) for epoch in history],
        }

        newest = history[-1].epoch
        if newest in best_of(history, keep):
            weights = {f"meta/{path}": tensor for path, tensor in flatten(learned).items()}
            write_checkpoint(epoch_file(self.folder, newest), weights, notes)
        write_checkpoint(self.folder / LAST, state.tensors(), notes)
        remove_leftovers(self.folder, history, keep)


def _one_epoch(
    state: TrainingState, objective: Objective, schedule: Schedule, watch: Watcher
) -> Epoch:
    """Make the updates of an epoch; its accuracy is not known yet."""
    started, losses = time.perf_counter(), []
    for _ in range(schedule.updates):
        rate = learning_rate(schedule, state.update)
        losses.append(state.make_update(objective, schedule))
        per_second = schedule.batch * len(losses) / (time.perf_counter() - started)
        watch(Update(state.update, losses[-1], rate, per_second))

    seconds = time.perf_counter() - started
    return Epoch(len(state.history), sum(losses) / len(losses), float("nan"), seconds)


def _accuracy(learner: Learner, meta: Meta, validation: Tasks, device: str) -> float:
    """Return the mean accuracy on the validation tasks."""
    weights = {
        part: {name: tensor.detach() for name, tensor in tree.items()}
        for part, tree in meta.items()
    }
    trace = evaluate(learner, validation, weights, law=False, device=device)
    return summarise(task_accuracies(trace)).mean


def _step_macs(objective: Objective) -> int:
    """Count the multiply-accumulates of one update, forward and backward; all are alike."""
    first = objective.init(torch.Generator().manual_seed(0))
    params = {name: tensor.detach().clone() for name, tensor in first["params"].items()}
    learned = [
        tensor.requires_grad_() for name, tensor in params.items() if objective.is_learned(name)
    ]
    objective.prepare()

    with counting_macs() as macs:
        loss, _ = objective.loss(params, dict(first["stats"]), 0)
        torch.autograd.grad(loss, learned, allow_unused=True)
    return macs.total
