"""The folder of a training run: which files it holds, and which run they belong to.

last.safetensors          everything that is needed to go on after the newest epoch
epoch-0007.safetensors    the weights of an epoch, for each of the best epochs so far
start/                    the folder of the run that this one starts from, if there is one

Every file holds the notes of its run: what was trained on what (`identity`), the device and the
number of threads (`ran`), the multiply-accumulates of an update (`step_macs`), the number of
updates so far (`update`), and all epochs so far (`history`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfsl.data.store import Dataset
from cfsl.errors import CheckpointError
from cfsl.learners.base import Learner, Meta
from cfsl.nets import in_channels_last
from cfsl.training.checkpoint import read_checkpoint, read_notes, unflatten
from cfsl.training.events import Epoch
from cfsl.training.training_spec import Schedule, Start, Training

LAST = "last.safetensors"
START = "start"
_MOST_DIFFERENCES = 3
"""An error names so many differences at most."""


def stages_before(training: Training, folder: Path) -> list[tuple[Start, Path]]:
    """Return the stages that a training starts from, the first one first, each with its folder."""
    stages = []
    stage, folder = training.start, folder / START
    while stage is not None:
        stages.append((stage, folder))
        stage, folder = stage.training.start, folder / START
    return stages[::-1]


def notes_of_run(path: Path) -> dict[str, Any]:
    """Return what a training run wrote about itself: from its folder or from one of its files."""
    if not path.is_dir():
        return read_notes(path)
    if not (path / LAST).exists():
        raise CheckpointError(
            f"{path} holds no training run ({LAST} is missing); name a folder of 'cfsl train'"
        )
    return read_notes(path / LAST)


def best_epochs(folder: Path, count: int) -> list[int]:
    """Return the best epochs of a training folder by validation accuracy, best first."""
    notes = notes_of_run(folder)
    keep = notes["identity"]["training"]["schedule"]["keep"]
    kept = best_of(history_in(notes), keep)
    if len(kept) < count:
        raise CheckpointError(
            f"{folder} keeps {len(kept)} epochs (the best {keep} of {len(notes['history'])}), "
            f"not {count}"
        )
    return kept[:count]


def best_weights(folder: Path, rank: int = 0) -> Meta:
    """Return the weights of the best epoch by validation accuracy, or of the next best by rank."""
    return read_weights(epoch_file(folder, best_epochs(folder, rank + 1)[rank]))


def read_weights(path: Path) -> Meta:
    """Return the weights in a checkpoint file, or of the best epoch in a training folder."""
    if path.is_dir():
        return best_weights(path)

    tensors, _ = read_checkpoint(path)
    meta = unflatten(tensors, "meta")
    if not {"params", "stats"} <= meta.keys():
        raise CheckpointError(
            f"{path} holds no weights to use; name a training folder, or one of its epoch files"
        )
    return {"params": in_channels_last(meta["params"]), "stats": meta["stats"]}


def is_whole_and_finished(
    folder: Path, training: Training, learner: Learner, fingerprint: str
) -> bool:
    """Tell whether a run has come to its end.

    Raise an error if one of its files is damaged, missing, or of another run.
    """
    last = folder / LAST
    if not last.exists():
        return False

    wanted = _described(learner, training)
    notes = read_notes(last)
    _require_same_run(last, notes["identity"], wanted, fingerprint)
    history = history_in(notes)

    for epoch in best_of(history, training.schedule.keep):
        path = epoch_file(folder, epoch)
        its_notes = read_notes(path)
        _require_same_run(path, its_notes["identity"], wanted, fingerprint)
        if its_notes["history"] != notes["history"][: epoch + 1]:
            raise CheckpointError(f"{path} is an epoch of another run than {LAST}")

    return is_finished(notes["update"], history, training.schedule)


def is_finished(update: int, history: list[Epoch], schedule: Schedule) -> bool:
    """Tell whether all updates were made, or the validation accuracy no longer improves."""
    return update >= schedule.total or _is_out_of_patience(history, schedule)


def _is_out_of_patience(history: list[Epoch], schedule: Schedule) -> bool:
    """Tell whether the last epochs, as many as the schedule has patience, were not better."""
    if schedule.patience is None or not history:
        return False
    best = max(range(len(history)), key=lambda i: history[i].accuracy)
    return len(history) - 1 - best >= schedule.patience


def best_of(history: list[Epoch], count: int) -> list[int]:
    """Return the epochs with the highest validation accuracy, best first; of equals the earlier."""
    ranked = sorted(history, key=lambda epoch: (-epoch.accuracy, epoch.epoch))
    return [epoch.epoch for epoch in ranked[:count]]


def history_in(notes: Mapping[str, Any]) -> list[Epoch]:
    """Return all epochs up to a checkpoint."""
    return [Epoch(**epoch) for epoch in notes["history"]]


def epoch_file(folder: Path, epoch: int) -> Path:
    """Return the file of an epoch's weights."""
    return folder / f"epoch-{epoch:04d}.safetensors"


def remove_leftovers(folder: Path, history: list[Epoch], keep: int) -> None:
    """Remove epochs that are no longer among the best, and files that were never finished."""
    kept = {epoch_file(folder, epoch) for epoch in best_of(history, keep)}
    for path in [*folder.glob("epoch-*.safetensors"), *folder.glob(".*.safetensors.*.part")]:
        if path not in kept:
            path.unlink()


def identity_of(learner: Learner, training: Training, data: Dataset) -> dict[str, Any]:
    """Return what tells a training run from all others, ready for JSON."""
    return {
        **_described(learner, training),
        "data": {"fingerprint": data.fingerprint, "splits": data.splits_name},
    }


def _described(learner: Learner, training: Training) -> dict[str, Any]:
    """Return the settings of a learner and of its training."""
    describe = getattr(learner, "model_dump", lambda mode: {"repr": repr(learner)})
    return {
        "learner": {"class": type(learner).__name__, **describe(mode="json")},
        "training": training.model_dump(mode="json"),
    }


def require_resumable(path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on with the checkpoint of a run that has another identity."""
    differences = _differences(saved, wanted)
    if differences:
        raise CheckpointError(
            f"{path.parent} holds another run: {_listed(differences)}. "
            f"Choose another folder, or delete it."
        )


def _require_same_run(
    path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any], fingerprint: str
) -> None:
    """Refuse a checkpoint whose learner, training or data are others."""
    differences = _differences({part: saved[part] for part in wanted}, wanted)
    if saved["data"]["fingerprint"] != fingerprint:
        differences.append("the data set is another")
    if differences:
        raise CheckpointError(f"{path} is of another run: {_listed(differences)}")


def _listed(differences: list[str]) -> str:
    return "; ".join(differences[:_MOST_DIFFERENCES])


def _differences(saved: Any, wanted: Any, where: str = "") -> list[str]:
    """Say where two nested dicts differ; a field at its default may be missing in either."""
    if isinstance(saved, Mapping) and isinstance(wanted, Mapping):
        return [
            difference
            for key in sorted(saved.keys() | wanted.keys())
            for difference in _differences(
                saved.get(key), wanted.get(key), f"{where}.{key}" if where else key
            )
        ]
    if saved == wanted:
        return []
    there, here = ("as usual" if value is None else value for value in (saved, wanted))
    return [f"{where} is {there} there and {here} here"]
