"""A log for TensorBoard; when a stopped run goes on, no step is in it twice or missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cfsl.errors import CfslError
from cfsl.training.events import Epoch, Event, Reports, Started, Update, Watcher
from cfsl.training.training_spec import Training

_FOLDER = "tensorboard"


def require_tensorboard() -> None:
    """Say how to get TensorBoard if it is not installed."""
    _writer_class()


@contextlib.contextmanager
def tensorboard_log(folder: Path, training: Training) -> Iterator[Watcher]:
    """Yield a watcher that writes loss, rate, speed and validation accuracy to the run's folder."""
    log = _Log(folder / _FOLDER, training)
    try:
        yield log
    finally:
        log.close()


class _Log:
    """Writes events as scalars; the step of a scalar is the number of updates so far."""

    def __init__(self, folder: Path, training: Training) -> None:
        self._folder, self._schedule = folder, training.schedule
        self._speed = "images_per_second" if training.iid else "tasks_per_second"
        self._reports = Reports(training.schedule)
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            # Updates after the last checkpoint of a killed run are made, and logged, again.
            self._writer = _writer_class()(str(self._folder), purge_step=event.update + 1)
        elif isinstance(event, Update):
            self._write_update(self._reports.add(event))
        elif isinstance(event, Epoch):
            step = (event.epoch + 1) * self._schedule.updates
            self._writer.add_scalar("validation_accuracy", event.accuracy, step)
            self._writer.flush()

    def _write_update(self, report: Update | None) -> None:
        if report is None:
            return
        scalars = {"loss": report.loss, "rate": report.rate, self._speed: report.per_second}
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, report.update)

    def close(self) -> None:
        """Write what is not written yet."""
        if self._writer is not None:
            self._writer.close()


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise CfslError(
            "TensorBoard is not installed; install it with: pip install cfsl[tensorboard]"
        ) from error
    return SummaryWriter
