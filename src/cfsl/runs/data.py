"""The data of a run: opened by name, and refused if another data set has taken the name."""

from __future__ import annotations

import functools
from pathlib import Path

from cfsl.data.catalog import load
from cfsl.data.splits import splits_hash
from cfsl.data.store import Dataset, current_folder
from cfsl.data.tasks import Tasks
from cfsl.errors import DataError
from cfsl.runs.run_spec import DataSpec, RunSpec


def open_data(name: str, splits: str | None) -> Dataset:
    """Open a data set under one of its splits, or under a split file; glyphs are drawn."""
    if splits is None or not splits.endswith(".json"):
        return _loaded(name, splits, current_folder(name), None)
    return _loaded(name, Path(splits), current_folder(name), Path(splits).resolve())


@functools.lru_cache(maxsize=16)
def _loaded(
    name: str, splits: str | Path | None, folder: Path | None, split_file: Path | None
) -> Dataset:
    """Load a data set once, as long as its folder and its split file are the same."""
    return load(name, splits=splits)


def data_spec(data: Dataset, splits: str | None) -> DataSpec:
    """Return the identity of an open data set; naming its usual split makes no difference."""
    return DataSpec(
        name=data.name,
        splits=None if splits == data.info.default_splits else splits,
        fingerprint=data.fingerprint,
        splits_hash=splits_hash(data.splits),
    )


def data_of(spec: DataSpec) -> Dataset:
    """Open the data set of a run, and refuse one that only has the same name."""
    data = open_data(spec.name, spec.splits)
    if (data.fingerprint, splits_hash(data.splits)) != (spec.fingerprint, spec.splits_hash):
        raise DataError(
            f"{spec.name} is not the data set that the plan was made for: its fingerprint is "
            f"{data.fingerprint[:12]}, the plan's is {spec.fingerprint[:12]}; plan again"
        )
    return data


def tasks_of(run: RunSpec, numbers: range | None = None) -> Tasks:
    """Return the tasks of a run, or those with these numbers."""
    return Tasks(
        data_of(run.data),
        run.task,
        split=run.split,
        seed=run.task_seed,
        numbers=range(run.tasks) if numbers is None else numbers,
        sampler=run.sampler,
    )
