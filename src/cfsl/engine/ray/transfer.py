"""What goes out to the workers of a cluster with a step, and what is done with the files that come back.

What goes out lies in the cluster's object store: a training run once for all the steps that need it, a data set once
for all. Each machine fetches it from there once.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from cfsl.data.store import current_folder
from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.perform import discard_partial_results
from cfsl.engine.ray.file_bundle import Checkpoint, Parcel, files_in, packed, unpack
from cfsl.engine.steps import CardStep, PartialResultStep, Step, TrainStep, partial_steps_of
from cfsl.errors import DataError
from cfsl.runs.run_spec import DataSpec, TrainSpec
from cfsl.training.run_folder import LAST

_RUNS_IN_STORE = 32
"""Training runs that are kept in the object store; one that is asked for again later is put there again."""


class StoredData(NamedTuple):
    """A data set in the object store."""

    key: str
    """Stands for the contents of all its files."""
    sizes: dict[str, int]
    """Its files, with their bytes."""
    reference: Any


class Outgoing:
    """Puts what steps need into the object store."""

    def __init__(self, bench_folder: BenchFolder, put: Callable[[Any], Any]) -> None:
        """`put` stores an object and returns a reference to it."""
        self._bench_folder, self._put = bench_folder, put
        self.data = functools.lru_cache(maxsize=None)(self._stored_data)
        self._finished_run = functools.lru_cache(maxsize=_RUNS_IN_STORE)(self._run)

    def files(self, step: Step) -> list[Any]:
        """Return references to the files that a step needs, the data set apart."""
        splits = self._own_splits(step.spec.data)
        match step:
            case TrainStep(spec=train):
                return [
                    *splits,
                    *self._weights(train.start),
                    self._run(self._bench_folder.training(train)),
                ]
            case PartialResultStep(spec=run):
                return [*splits, *self._weights(run.train)]
            case CardStep(spec=run):
                pieces = packed(
                    self._bench_folder.path,
                    [self._bench_folder.partial_result(piece) for piece in partial_steps_of(run)],
                )
                return [*splits, *self._weights(run.train), self._put(pieces)]

    def _weights(self, train: TrainSpec | None) -> list[Any]:
        return [] if train is None else [self._finished_run(self._bench_folder.training(train))]

    def _run(self, folder: Path) -> Any:
        """Store the files that a training run has, which are none if it has not begun."""
        return self._put(packed(self._bench_folder.path, files_in(folder)))

    def _own_splits(self, data: DataSpec) -> list[Any]:
        """Store the user's own split file, which workers find under the name that it has here."""
        if data.splits is None or not data.splits.lower().endswith(".json"):
            return []
        path = PurePath(data.splits)
        if path.is_absolute() or ".." in path.parts:
            raise DataError(
                f"{path} cannot be sent to other machines; name a split file below the current folder"
            )
        return [self._put(packed(Path(), [Path(path)]))]

    def _stored_data(self, spec: DataSpec) -> StoredData:
        folder = current_folder(spec.name)
        if folder is None:
            raise DataError(f"data set '{spec.name}' is not here any more; add it again")
        root = folder.parent.parent
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        parcel = packed(root, [*files, folder.parent / "current"])
        key = hashlib.sha256(spec.fingerprint.encode())  # of the pixels, among other things
        for name, content in parcel.items():
            key.update(name.encode() if name.endswith(".npy") else content.data)
        sizes = {name: content.nbytes for name, content in parcel.items()}
        return StoredData(f"{spec.name}-{key.hexdigest()[:32]}", sizes, self._put(parcel))


def put_down(step: Step, files: Parcel, bench_folder: BenchFolder) -> None:
    """Write what a step left; a card comes after all it speaks of, and its pieces are not needed then."""
    match step:
        case TrainStep(spec=train):
            keep(train, Checkpoint(files, list(files)), bench_folder)
        case PartialResultStep():
            unpack(files, bench_folder.path)
        case CardStep(spec=run):
            unpack(files, bench_folder.path)
            discard_partial_results(run, bench_folder)


def keep(train: TrainSpec, checkpoint: Checkpoint, bench_folder: BenchFolder) -> None:
    """Write a checkpoint as training does: the file that it goes on from last; then remove what is not needed.

    If a file that it speaks of is missing, because a message got lost, the checkpoint before it stays.
    """
    folder = bench_folder.training(train)
    newest = (folder / LAST).relative_to(bench_folder.path).as_posix()
    unpack(
        {name: content for name, content in checkpoint.changed.items() if name != newest},
        bench_folder.path,
    )
    there = {path.relative_to(bench_folder.path).as_posix() for path in files_in(folder)} | {newest}
    if there.issuperset(checkpoint.names):
        unpack({newest: checkpoint.changed[newest]}, bench_folder.path)
        for name in there.difference(checkpoint.names):
            (bench_folder.path / name).unlink()
