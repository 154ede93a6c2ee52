"""The study of a sweep: an Optuna study in a SQLite file, which says what was tried and who is at what.

Everything that changes the study happens under one lock, so that a trial is never given out twice. A worker holds a
lock of its own for as long as it is at a trial; the system lets go of the lock of a worker that died, and whoever looks
next gives its trial out again. A trial has a point, counted from 0; of two trials with the same point the later counts.
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
"""Workers that may die over a trial while the sweep goes on: the trial may be what kills them."""
_PATIENCE = 60.0
"""Seconds to wait for another process that is writing."""


class HeldTrial(NamedTuple):
    """A trial that is ours until it is told how it ended, or until this process dies."""

    trial: Trial
    point: int
    values: Point
    lock: FileLock


class Tried(NamedTuple):
    """A point, and what is known of it."""

    point: int
    values: Point
    accuracy: float | None
    """None: not done, or failed."""
    measured: Mapping[str, Any]
    """What was written down beside the accuracy."""
    error: str | None


class SweepStudy:
    """The trials of one sweep; any number of processes may have it open."""

    def __init__(self, folder: Path, sweep: Sweep, trials: int) -> None:
        """Open the study, or make it; refuse that of another sweep. `trials` are wanted where the method draws them."""
        optuna = require_optuna()
        self._failed = optuna.trial.TrialState.FAIL
        self._folder, self._sweep = folder, sweep
        self._points = sweep.points()
        self.total = trials if self._points is None else len(self._points)
        (folder / "locks").mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / "locks" / "study.lock")
        with self._lock, _told_plainly(folder / STUDY):
            # The path goes past the URL, in which '?' and '%' would mean something.
            connect = {
                "creator": lambda: sqlite3.connect(
                    folder / STUDY, _PATIENCE, check_same_thread=False
                )
            }
            self._storage = optuna.storages.RDBStorage(f"sqlite:///{STUDY}", engine_kwargs=connect)
            self._study = optuna.create_study(
                storage=self._storage, study_name=_NAME, direction="maximize", load_if_exists=True
            )
            self._require_same()

    def _require_same(self) -> None:
        wanted = self._sweep.model_dump(mode="json")
        there = self._study.user_attrs.get(_SWEEP)
        if there is None:
            self._study.set_user_attr(_SWEEP, wanted)
        elif different := next(_differences(there, wanted), None):
            raise SpecError(
                f"{self._folder} has another sweep: {different}; name another folder with --out"
            )

    def prepare(self, *, retry: bool) -> list[Point]:
        """Give out again what dead workers had, and let all points that a method knows beforehand wait their turn.

        With `retry` failed points wait again; they are returned.
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
        """Give out again what workers had that died just now."""
        with self._lock:
            self._return_dead(count=True)

    def _return_dead(self, *, count: bool) -> None:
        dead = [trial for trial in self._trials("RUNNING") if self._is_free(trial)]
        for trial in dead:
            deaths = trial.user_attrs.get(_DEATHS, 0) + count
            if deaths >= _MOST_DEATHS:
                self._note(trial.number, _ERROR, f"its worker died {deaths} times; out of memory?")
            self._study.tell(trial.number, state=self._failed)
        for point, trial in self._latest().items():
            if trial.state == self._failed and not _has_failed(trial):
                self._enqueue(
                    point, trial.user_attrs[_VALUES], trial.user_attrs.get(_DEATHS, 0) + count
                )

    def _is_free(self, trial: FrozenTrial) -> bool:
        """Tell whether nobody is at a trial."""
        lock = self._trial_lock(trial.number)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
        lock.release()
        return True

    def take(self) -> HeldTrial | None:
        """Take the next trial; None if there is no more to do."""
        with self._lock:
            latest = self._latest()
            if not self._trials("WAITING") and (
                self._points is not None or len(latest) >= self.total
            ):
                return None
            free = next(number for number in range(len(latest) + 1) if number not in latest)
            self._study.sampler = self._sampler(free)
            trial = self._study.ask(self._distributions())
            if _POINT not in trial.user_attrs:
                trial.set_user_attr(_VALUES, self._decoded(trial.params))
                trial.set_user_attr(_POINT, free)  # last: a trial with a point is whole
            lock = self._trial_lock(trial.number)
            lock.acquire(blocking=False)
            return HeldTrial(trial, trial.user_attrs[_POINT], trial.user_attrs[_VALUES], lock)

    def finish(self, held: HeldTrial, accuracy: float, measured: Mapping[str, Any]) -> None:
        """Write down how well a trial did."""
        with self._lock:
            for name, value in measured.items():
                held.trial.set_user_attr(name, value)
            self._study.tell(held.trial, accuracy)

    def fail(self, held: HeldTrial, error: str) -> None:
        """Write down what went wrong."""
        with self._lock:
            held.trial.set_user_attr(_ERROR, error)
            self._study.tell(held.trial, state=self._failed)

    def tried(self) -> list[Tried]:
        """Return all points so far, in their order."""
        with self._lock:
            latest = self._latest()
        return [
            Tried(
                point,
                trial.user_attrs[_VALUES],
                trial.value if trial.state.name == "COMPLETE" else None,
                {name: value for name, value in trial.user_attrs.items() if name not in _OURS},
                trial.user_attrs.get(_ERROR) if _has_failed(trial) else None,
            )
            for point, trial in sorted(latest.items())
        ]

    def close(self) -> None:
        """Let go of the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _trials(self, *states: str) -> list[FrozenTrial]:
        return [
            trial for trial in self._study.get_trials(deepcopy=False) if trial.state.name in states
        ]

    def _latest(self) -> dict[int, FrozenTrial]:
        """Return the trial that counts, by point."""
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
        """Return a sampler that depends on seed and point alone: one that was stopped goes on as it would have."""
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
        """Return the values behind Optuna's, which are numbers, words and nothing else."""
        return {name: _decoded(domain, params[name]) for name, domain in self._sweep.space.items()}


def require_optuna() -> Any:
    """Return Optuna, told to be quiet, or say how to get it."""
    try:
        import optuna
    except ImportError:
        raise CfslError("cfsl sweep needs Optuna: pip install cfsl[sweep]") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextlib.contextmanager
def _told_plainly(path: Path) -> Iterator[None]:
    """Say in one line that a file is no study."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise CfslError(
            f"{path} cannot be used as a study: {first}; move it away, or name another --out"
        ) from error


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
    """Say where two nested dicts differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*here, *(key for key in there if key not in here)]:
            yield from _differences(
                there.get(key), here.get(key), f"{where}.{key}" if where else key
            )
    elif there != here:
        yield f"{where} is {json.dumps(there)} there and {json.dumps(here)} here"
