"""The study of a sweep: an Optuna study in a SQLite file, which records every trial and its state.

A process changes the study only while it holds the lock of the study, so that no two workers get
the same trial. A worker also holds a lock of its own while it does a trial. If the worker dies, the
system releases that lock, and the next process that looks puts the trial back into the queue.

Every trial has the number of a point, counted from 0. Where two trials have the same point, the
later one counts.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from cfsl.errors import CfslError, SpecError
from cfsl.sweep.space import Choices, Domain, Point, Range
from cfsl.sweep.trials import Sweep

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

STUDY = "study.db"
_NAME = "cfsl"
_SWEEP, _POINT, _VALUES, _DEATHS, _ERROR = "sweep", "point", "values", "deaths", "error"
_OURS = {_POINT, _VALUES, _DEATHS, _ERROR}
_MOST_DEATHS = 3
"""A trial fails when this many workers have died during it: the trial may be what kills them."""
_SECONDS_TO_WAIT = 60.0
"""Seconds to wait while another process writes."""


class HeldTrial(NamedTuple):
    """A trial that belongs to this process until the trial has ended or the process dies."""

    trial: Trial
    point: int
    values: Point
    lock: FileLock


class Tried(NamedTuple):
    """A point, and the result of its trial so far."""

    point: int
    values: Point
    accuracy: float | None
    """None if the trial is not done or has failed."""
    measured: Mapping[str, Any]
    """All measurements but the accuracy."""
    error: str | None


class SweepStudy:
    """The trials of one sweep; any number of processes may have it open."""

    def __init__(self, folder: Path, sweep: Sweep, trials: int) -> None:
        """Open the study or create it; refuse the study of another sweep.

        `trials` is the number of trials of a method that draws its points.
        """
        optuna = require_optuna()
        self._failed = optuna.trial.TrialState.FAIL
        self._folder, self._sweep = folder, sweep
        self._points = sweep.points()
        self.total = trials if self._points is None else len(self._points)

        (folder / "locks").mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / "locks" / "study.lock")

        # The path is not in the URL, because a URL gives '?' and '%' a meaning.
        def connect() -> sqlite3.Connection:
            return sqlite3.connect(folder / STUDY, _SECONDS_TO_WAIT, check_same_thread=False)

        with self._lock, _readable_error(folder / STUDY):
            self._storage = optuna.storages.RDBStorage(
                f"sqlite:///{STUDY}", engine_kwargs={"creator": connect}
            )
            self._study = optuna.create_study(
                storage=self._storage, study_name=_NAME, direction="maximize", load_if_exists=True
            )
            self._require_same()

    def _require_same(self) -> None:
        wanted = self._sweep.model_dump(mode="json")
        stored = self._study.user_attrs.get(_SWEEP)

        if stored is None:
            self._study.set_user_attr(_SWEEP, wanted)
        elif different := next(_differences(stored, wanted), None):
            raise SpecError(
                f"{self._folder} has another sweep: {different}; name another folder with --out"
            )

    def prepare(self, *, retry: bool) -> list[Point]:
        """Put the points of a listed method, and the trials of dead workers, into the queue.

        With `retry` the failed points are put into the queue again. Return those.
        """
        with self._lock:
            self._return_dead(count=False)
            latest = self._latest()

            for point, values in enumerate(self._points or []):
                if point not in latest:
                    self._enqueue(point, values)

            failed = [trial for trial in latest.values() if _has_failed(trial)] if retry else []
            for trial in failed:
                self._enqueue(trial.user_attrs[_POINT], trial.user_attrs[_VALUES])

            return [trial.user_attrs[_VALUES] for trial in failed]

    def return_dead(self) -> None:
        """Put the trials of workers that have just died back into the queue."""
        with self._lock:
            self._return_dead(count=True)

    def _return_dead(self, *, count: bool) -> None:
        """Put the trials of dead workers back into the queue.

        With `count` a death counts towards those after which the trial fails.
        """
        dead = [trial for trial in self._trials("RUNNING") if self._is_free(trial)]
        for trial in dead:
            deaths = trial.user_attrs.get(_DEATHS, 0) + count
            if deaths >= _MOST_DEATHS:
                self._note(trial.number, _ERROR, f"its worker died {deaths} times; out of memory?")
            self._study.tell(trial.number, state=self._failed)

        # A trial that ended without an error of its own was interrupted.
        for point, trial in self._latest().items():
            if trial.state == self._failed and not _has_failed(trial):
                deaths = trial.user_attrs.get(_DEATHS, 0) + count
                self._enqueue(point, trial.user_attrs[_VALUES], deaths)

    def _is_free(self, trial: FrozenTrial) -> bool:
        """Tell whether no worker holds the lock of a trial."""
        lock = self._trial_lock(trial.number)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
        lock.release()
        return True

    def take(self) -> HeldTrial | None:
        """Take the next trial; None if no trial is left."""
        with self._lock:
            latest = self._latest()
            may_draw = self._points is None and len(latest) < self.total
            if not self._trials("WAITING") and not may_draw:
                return None

            free = next(number for number in range(len(latest) + 1) if number not in latest)
            self._study.sampler = self._sampler(free)
            trial = self._study.ask(self._distributions())

            # The point is written last: a trial that has a point also has its values.
            if _POINT not in trial.user_attrs:
                trial.set_user_attr(_VALUES, self._decoded(trial.params))
                trial.set_user_attr(_POINT, free)

            lock = self._trial_lock(trial.number)
            lock.acquire(blocking=False)
            return HeldTrial(trial, trial.user_attrs[_POINT], trial.user_attrs[_VALUES], lock)

    def finish(self, held: HeldTrial, accuracy: float, measured: Mapping[str, Any]) -> None:
        """Record the accuracy and the other measurements of a trial."""
        with self._lock:
            for name, value in measured.items():
                held.trial.set_user_attr(name, value)
            self._study.tell(held.trial, accuracy)

    def fail(self, held: HeldTrial, error: str) -> None:
        """Record the error of a trial that has failed."""
        with self._lock:
            held.trial.set_user_attr(_ERROR, error)
            self._study.tell(held.trial, state=self._failed)

    def tried(self) -> list[Tried]:
        """Return the points of all trials so far, in order."""
        with self._lock:
            latest = self._latest()
        return [_tried(point, trial) for point, trial in sorted(latest.items())]

    def close(self) -> None:
        """Close the file of the study."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _trials(self, *states: str) -> list[FrozenTrial]:
        return [
            trial for trial in self._study.get_trials(deepcopy=False) if trial.state.name in states
        ]

    def _latest(self) -> dict[int, FrozenTrial]:
        """Return the latest trial of every point."""
        trials = self._study.get_trials(deepcopy=False)
        return {trial.user_attrs[_POINT]: trial for trial in trials if _POINT in trial.user_attrs}

    def _enqueue(self, point: int, values: Point, deaths: int = 0) -> None:
        encoded = {name: _encoded(value) for name, value in values.items()}
        self._study.enqueue_trial(
            encoded, user_attrs={_POINT: point, _VALUES: values, _DEATHS: deaths}
        )

    def _note(self, number: int, name: str, value: Any) -> None:
        study = self._storage.get_study_id_from_name(_NAME)
        self._storage.set_trial_user_attr(
            self._storage.get_trial_id_from_study_id_trial_number(study, number), name, value
        )

    def _trial_lock(self, number: int) -> FileLock:
        return FileLock(self._folder / "locks" / f"trial-{number:05d}.lock")

    def _sampler(self, point: int) -> BaseSampler:
        """Return a sampler that depends on the seed and the point alone.

        So a sweep that was stopped draws the same points when it is continued.
        """
        from optuna.samplers import RandomSampler, TPESampler

        seed = int(np.random.SeedSequence([self._sweep.search_seed, point]).generate_state(1)[0])
        return TPESampler(seed=seed) if self._sweep.method == "tpe" else RandomSampler(seed=seed)

    def _distributions(self) -> dict[str, BaseDistribution]:
        if self._points is None:
            return {name: _distribution(domain) for name, domain in self._sweep.space.items()}

        values: dict[str, list[Any]] = {name: [] for name in self._sweep.space}
        for point in self._points:
            for name, value in point.items():
                if value not in values[name]:
                    values[name].append(value)

        return {
            name: _distribution(Choices(choices=tuple(several))) for name, several in values.items()
        }

    def _decoded(self, params: Mapping[str, Any]) -> Point:
        """Return the values that Optuna's parameters stand for: Optuna has only simple values."""
        return {name: _decoded(domain, params[name]) for name, domain in self._sweep.space.items()}


def require_optuna() -> Any:
    """Return Optuna with its log switched off; say how to install it if it is missing."""
    try:
        import optuna
    except ImportError:
        raise CfslError("cfsl sweep needs Optuna: pip install cfsl[sweep]") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextlib.contextmanager
def _readable_error(path: Path) -> Iterator[None]:
    """Turn an error of the database into one line that names the file."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise CfslError(
            f"{path} cannot be used as a study: {first}; move it away, or name another --out"
        ) from error


def _tried(point: int, trial: FrozenTrial) -> Tried:
    return Tried(
        point,
        trial.user_attrs[_VALUES],
        accuracy=trial.value if trial.state.name == "COMPLETE" else None,
        measured={name: value for name, value in trial.user_attrs.items() if name not in _OURS},
        error=trial.user_attrs.get(_ERROR) if _has_failed(trial) else None,
    )


def _has_failed(trial: FrozenTrial) -> bool:
    return trial.state.name == "FAIL" and _ERROR in trial.user_attrs


def _distribution(domain: Domain) -> BaseDistribution:
    from optuna import distributions

    if isinstance(domain, Choices):
        return distributions.CategoricalDistribution([_encoded(value) for value in domain.choices])
    if domain.whole:
        return distributions.IntDistribution(
            int(domain.low), int(domain.high), domain.log, int(domain.step or 1)
        )
    return distributions.FloatDistribution(domain.low, domain.high, domain.log, domain.step)


def _encoded(value: Any) -> Any:
    return (
        value
        if value is None or isinstance(value, bool | int | float | str)
        else json.dumps(value, sort_keys=True)
    )


def _decoded(domain: Domain, encoded: Any) -> Any:
    if isinstance(domain, Range):
        return encoded
    return next(value for value in domain.choices if _encoded(value) == encoded)


def _differences(there: Any, here: Any, where: str = "") -> Iterator[str]:
    """Yield a sentence for each place where two nested dicts differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*here, *(key for key in there if key not in here)]:
            yield from _differences(
                there.get(key), here.get(key), f"{where}.{key}" if where else key
            )
    elif there != here:
        yield f"{where} is {json.dumps(there)} there and {json.dumps(here)} here"
