"""The events of a training run, which it reports to whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import TypeAlias

from cfsl.training.training_spec import Schedule

_REPORTS_AN_EPOCH = 10


@dataclass(frozen=True)
class Started:
    """The run is about to make its first update, or to go on."""

    update: int
    """Updates made before: 0, unless a stopped run goes on."""
    accuracy: float | None
    """Validation accuracy of the last epoch before; None if there is none."""


@dataclass(frozen=True)
class Update:
    """An update was made."""

    update: int
    """Updates so far."""
    loss: float
    rate: float
    """The learning rate."""
    per_second: float
    """Tasks (in pretraining: images) per second, in this epoch so far, without validation."""


@dataclass
class Epoch:
    """An epoch ended and was validated.

    It is not on disk yet: a log that is written now has no gap after a crash.
    """

    epoch: int
    """From 0."""
    loss: float
    """The mean over its updates."""
    accuracy: float
    """On the validation tasks."""
    seconds: float
    """Without validation."""


@dataclass(frozen=True)
class Saved:
    """The epoch is on disk: a run that is stopped from now on goes on after it."""

    epoch: Epoch
    update: int
    """Updates so far."""


Event: TypeAlias = Started | Update | Epoch | Saved
Watcher: TypeAlias = Callable[[Event], None]


class Reports:
    """Condenses updates for a log: at most ten reports an epoch, the last one at its end."""

    def __init__(self, schedule: Schedule) -> None:
        """Space the reports by the length of the schedule's epochs."""
        self._updates = schedule.updates
        self._every = ceil(schedule.updates / _REPORTS_AN_EPOCH)
        self._losses: list[float] = []

    def add(self, update: Update) -> Update | None:
        """Return the update with the mean loss since the last report, if it is time for one."""
        self._losses.append(update.loss)
        if update.update % self._updates % self._every:
            return None

        mean = sum(self._losses) / len(self._losses)
        self._losses = []
        return replace(update, loss=mean)
