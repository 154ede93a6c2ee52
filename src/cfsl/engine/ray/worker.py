"""The side of the workers of a Ray cluster: a step is done in a private folder, and its files are sent back.

Nothing is shared with the machine of the bench but what Ray carries. On every machine there is one folder

    <temporary folder>/cfsl-ray-<user id>/data/<key>/       a data set, kept for the next bench
    <temporary folder>/cfsl-ray-<user id>/desks/<number>/   where a worker does a step; cleared by the next one there
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch
from filelock import FileLock, Timeout

import cfsl
from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.local import event_of
from cfsl.engine.perform import Tell
from cfsl.engine.ray.file_bundle import Parcel, files_in, packed, unpack
from cfsl.engine.ray.messages import Reports, TrainingReports
from cfsl.engine.schedule import Failed
from cfsl.engine.steps import CardStep, PartialResultStep, Step, TrainStep
from cfsl.training.run_folder import LAST


class Order(NamedTuple):
    """A step that a worker is to do."""

    number: int
    step: Step
    data: str
    """The key that its data set is kept under."""
    sizes: dict[str, int]
    """The files of its data set, with their bytes."""
    between: float
    """The least seconds between two reports."""


def versions() -> dict[str, str]:
    """Return what must be the same on all machines, or numbers may differ."""
    return {"cfsl": cfsl.__version__, "torch": str(torch.__version__)}


def do(
    wanted: dict[str, str], order: bytes, parcels: Sequence[Any], data: Sequence[Any], mailbox: Any
) -> Any:
    """Do a step, in a worker. Return ("left", files), ("failed", error, trace) or ("unfit", why this machine is).

    `parcels` and `data` hold references: files that the step needs, and its data set, which is only fetched if this
    machine does not have it. The order is pickled, so that versions can be compared before it is understood.
    """
    here = versions()
    if here != wanted:
        differ = ", ".join(
            f"{name} {here[name]} and not {wanted[name]}"
            for name in wanted
            if here[name] != wanted[name]
        )
        return "unfit", f"{platform.node()} has {differ}; install the same versions on all machines"
    torch.set_num_threads(1)
    return _done(pickle.loads(order), ray.get(list(parcels)), data, mailbox)


def _done(order: Order, parcels: list[Parcel], data: Sequence[Any], mailbox: Any) -> Any:
    step, home = order.step, _home()
    os.environ["CFSL_DATA"] = str(_unpacked(home / "data" / order.data, order.sizes, data))
    with _desk(home / "desks") as desk, contextlib.chdir(desk):
        for parcel in parcels:
            unpack(parcel, desk)
        bench_folder = BenchFolder(desk)
        event = event_of(step, bench_folder, _reports(order, bench_folder, mailbox))
        if isinstance(event, Failed):
            return "failed", event.error, event.trace
        return "left", packed(desk, left_by(step, bench_folder))


def _reports(order: Order, bench_folder: BenchFolder, mailbox: Any) -> Tell:
    reports = Reports(mailbox, order.number, order.between)
    if isinstance(order.step, TrainStep):
        return TrainingReports(
            reports, bench_folder.path, bench_folder.training(order.step.spec) / LAST
        )
    return reports


def left_by(step: Step, bench_folder: BenchFolder) -> list[Path]:
    """Return the files that a step leaves, in the order to be written in: what others are found by comes last."""
    match step:
        case TrainStep(spec=train):
            return sorted(
                files_in(bench_folder.training(train)), key=lambda path: path.name == LAST
            )
        case PartialResultStep():
            return [bench_folder.partial_result(single) for single in step.singles]
        case CardStep(spec=run):
            card = bench_folder.card(run)
            beside = [path for path in files_in(card.parent) if path != card]
            return [*files_in(bench_folder.path / "manifests"), *beside, card]


def _home() -> Path:
    """Return this user's folder on this machine; one that somebody else has put there is not trusted."""
    user = os.getuid()
    home = Path(tempfile.gettempdir()) / f"cfsl-ray-{user}"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != user:
        raise PermissionError(
            f"{home} on {platform.node()} belongs to another user; remove it, or set TMPDIR"
        )
    return home


def _unpacked(root: Path, sizes: dict[str, int], data: Sequence[Any]) -> Path:
    """Return a data root that has the data set, which is fetched and written once a machine."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root.with_suffix(".lock")):
        if not all(
            _has_size(root / name, size) for name, size in sizes.items()
        ):  # temporary folders get swept
            part = root.with_suffix(".part")
            for folder in (root, part):
                shutil.rmtree(folder, ignore_errors=True)
            unpack(ray.get(data[0]), part)
            part.rename(root)
    return root


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


@contextlib.contextmanager
def _desk(desks: Path) -> Iterator[Path]:
    """Give the first folder that nobody works in, emptied of what a worker left that was killed."""
    desks.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        lock, desk = FileLock(desks / f"{number}.lock"), desks / str(number)
        try:
            lock.acquire(blocking=False)
            break
        except Timeout:
            number += 1
    try:
        shutil.rmtree(desk, ignore_errors=True)
        desk.mkdir()
        yield desk
    finally:
        shutil.rmtree(desk, ignore_errors=True)
        lock.release()
