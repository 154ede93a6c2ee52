"""A worker of a Ray cluster: it does a step in a private folder, and sends the files back.

A worker shares nothing with the machine of the bench but the objects that Ray carries. On every
machine there is one folder:

    <temporary folder>/cfsl-ray-<user id>/data/<key>/       a data set, kept for the next bench
    <temporary folder>/cfsl-ray-<user id>/desks/<number>/   where a worker does a step; the next
                                                            worker there clears it
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
from cfsl.engine.perform import Report
from cfsl.engine.ray.file_bundle import FileBundle, files_in, packed, unpack
from cfsl.engine.ray.messages import Reports, TrainingReports
from cfsl.engine.schedule import Failed
from cfsl.engine.steps import CardStep, PartialResultStep, Step, TrainStep
from cfsl.training.run_folder import LAST


class Order(NamedTuple):
    """A step that a worker is to do."""

    number: int
    step: Step
    data: str
    """The key of its data set, which names its folder on every machine."""
    sizes: dict[str, int]
    """The files of its data set, with their sizes in bytes."""
    between: float
    """The least seconds between two reports."""


def versions() -> dict[str, str]:
    """Return what must be the same on all machines, or numbers may differ."""
    return {"cfsl": cfsl.__version__, "torch": str(torch.__version__)}


def do(
    wanted: dict[str, str], order: bytes, bundles: Sequence[Any], data: Sequence[Any], queue: Any
) -> Any:
    """Do a step, in a worker.

    Return ("left", files), ("failed", error, trace) or ("unfit", why this machine is).

    `bundles` and `data` hold references: files that the step needs, and its data set, which is
    only fetched if this machine does not have it. The order is pickled, so that versions can be
    compared before it is read.
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
    return _done(pickle.loads(order), ray.get(list(bundles)), data, queue)


def _done(order: Order, bundles: list[FileBundle], data: Sequence[Any], queue: Any) -> Any:
    step, home = order.step, _home()
    os.environ["CFSL_DATA"] = str(_unpacked(home / "data" / order.data, order.sizes, data))

    with _work_folder(home / "desks") as folder, contextlib.chdir(folder):
        for bundle in bundles:
            unpack(bundle, folder)

        bench_folder = BenchFolder(folder)
        event = event_of(step, bench_folder, _reports(order, bench_folder, queue))

        if isinstance(event, Failed):
            return "failed", event.error, event.trace
        return "left", packed(folder, result_files(step, bench_folder))


def _reports(order: Order, bench_folder: BenchFolder, queue: Any) -> Report:
    reports = Reports(queue, order.number, order.between)
    if not isinstance(order.step, TrainStep):
        return reports

    newest = bench_folder.training(order.step.spec) / LAST
    return TrainingReports(reports, bench_folder.path, newest)


def result_files(step: Step, bench_folder: BenchFolder) -> list[Path]:
    """Return the files that a step wrote, in the order to write them in.

    The file that names the others comes last.
    """
    match step:
        case TrainStep(spec=train):
            files = files_in(bench_folder.training(train))
            return sorted(files, key=lambda path: path.name == LAST)

        case PartialResultStep():
            return [bench_folder.partial_result(single) for single in step.singles]

        case CardStep(spec=run):
            card = bench_folder.card(run)
            beside = [path for path in files_in(card.parent) if path != card]
            return [*files_in(bench_folder.path / "manifests"), *beside, card]


def _home() -> Path:
    """Return this user's folder on this machine; refuse a folder of another user."""
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
        # Systems delete old files of temporary folders: every file is looked for.
        if not all(_has_size(root / name, size) for name, size in sizes.items()):
            part = root.with_suffix(".part")
            for folder in (root, part):
                shutil.rmtree(folder, ignore_errors=True)
            unpack(ray.get(data[0]), part)
            part.rename(root)

    return root


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


@contextlib.contextmanager
def _work_folder(parent: Path) -> Iterator[Path]:
    """Give the first folder that no other worker uses, without the files of a killed worker."""
    parent.mkdir(parents=True, exist_ok=True)

    number = 0
    while True:
        lock, folder = FileLock(parent / f"{number}.lock"), parent / str(number)
        try:
            lock.acquire(blocking=False)
            break
        except Timeout:
            number += 1

    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
