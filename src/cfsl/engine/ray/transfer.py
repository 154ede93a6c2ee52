"""The transfer of files to the workers of a Ray cluster, and from them.

The files that steps need lie in the cluster's object store: a data set once, and a training run
once for all the steps that need it. Each machine fetches them from there once.
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
from cfsl.engine.ray.file_bundle import Checkpoint, FileBundle, files_in, packed, unpack
from cfsl.engine.steps import CardStep, PartialResultStep, Step, TrainStep, partial_steps_of
from cfsl.errors import DataError
from cfsl.runs.run_spec import DataSpec, TrainSpec
from cfsl.training.run_folder import LAST

_RUNS_IN_STORE = 32
"""Training runs that the object store keeps; an older one is put there again when it is needed."""


class StoredData(NamedTuple):
    """A data set in the object store."""

    key: str
    """Stands for the contents of all its files."""
    sizes: dict[str, int]
    """Its files, with their sizes in bytes."""
    reference: Any


class StepInputs:
    """Puts the files that steps need into the object store."""

    def __init__(self, bench_folder: BenchFolder, put: Callable[[Any], Any]) -> None:
        """`put` stores an object and returns a reference to it."""
        self._bench_folder, self._put = bench_folder, put
        self.data = functools.lru_cache(maxsize=None)(self._stored_data)
        self._finished_run = functools.lru_cache(maxsize=_RUNS_IN_STORE)(self._run)

    def files(self, step: Step) -> list[Any]:
        """Return references to the files that a step needs, without its data set."""
        splits = self._own_splits(step.spec.data)
        match step:
            case TrainStep(spec=train):
                so_far = self._run(self._bench_folder.training(train))
                return [*splits, *self._weights(train.start), so_far]

            case PartialResultStep(spec=run):
                return [*splits, *self._weights(run.train)]

            case CardStep(spec=run):
                paths = [self._bench_folder.partial_result(step) for step in partial_steps_of(run)]
                results = self._put(packed(self._bench_folder.path, paths))
                return [*splits, *self._weights(run.train), results]

    def _weights(self, train: TrainSpec | None) -> list[Any]:
        return [] if train is None else [self._finished_run(self._bench_folder.training(train))]

    def _run(self, folder: Path) -> Any:
        """Store the files of a training run; there are none if it has not begun."""
        return self._put(packed(self._bench_folder.path, files_in(folder)))

    def _own_splits(self, data: DataSpec) -> list[Any]:
        """Store the user's own split file, which a worker finds under the same name."""
        if data.splits is None or not data.splits.lower().endswith(".json"):
            return []
        path = PurePath(data.splits)
        if path.is_absolute() or ".." in path.parts:
            raise DataError(
                f"{path} cannot be sent to other machines; "
                f"name a split file below the current folder"
            )
        return [self._put(packed(Path(), [Path(path)]))]

    def _stored_data(self, spec: DataSpec) -> StoredData:
        folder = current_folder(spec.name)
        if folder is None:
            raise DataError(f"data set '{spec.name}' is not here any more; add it again")

        root = folder.parent.parent
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        bundle = packed(root, [*files, folder.parent / "current"])

        # The fingerprint stands for the pixels, so that arrays need not be read again.
        key = hashlib.sha256(spec.fingerprint.encode())
        for name, content in bundle.items():
            key.update(name.encode() if name.endswith(".npy") else content.data)

        sizes = {name: content.nbytes for name, content in bundle.items()}
        return StoredData(f"{spec.name}-{key.hexdigest()[:32]}", sizes, self._put(bundle))


def write_result(step: Step, files: FileBundle, bench_folder: BenchFolder) -> None:
    """Write the files of a step that a worker has done.

    A card is written after the files that it names; its partial results are not needed any more.
    """
    match step:
        case TrainStep(spec=train):
            write_checkpoint(train, Checkpoint(files, list(files)), bench_folder)
        case PartialResultStep():
            unpack(files, bench_folder.path)
        case CardStep(spec=run):
            unpack(files, bench_folder.path)
            discard_partial_results(run, bench_folder)


def write_checkpoint(train: TrainSpec, checkpoint: Checkpoint, bench_folder: BenchFolder) -> None:
    """Write a checkpoint as training does: the file that training resumes from comes last.

    Files that the checkpoint does not name are removed then. If one of its files is missing,
    because a message was lost, the checkpoint before it stays.
    """
    root, folder = bench_folder.path, bench_folder.training(train)
    newest = (folder / LAST).relative_to(root).as_posix()
    older = {name: content for name, content in checkpoint.changed.items() if name != newest}
    unpack(older, root)

    present = {path.relative_to(root).as_posix() for path in files_in(folder)} | {newest}
    if present.issuperset(checkpoint.names):
        unpack({newest: checkpoint.changed[newest]}, root)
        for name in present.difference(checkpoint.names):
            (root / name).unlink()
