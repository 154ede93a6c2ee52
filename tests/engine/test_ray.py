"""The engine 'ray': machines that share no files, some of which die, make the same cards."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from cfsl.engine.bench import planned
from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.local import LocalWorker
from cfsl.engine.ray.file_bundle import Checkpoint, packed
from cfsl.engine.schedule import Busy, Died, Ending, Event, Finished, Told, carry_out
from cfsl.engine.steps import Step, TrainStep, steps_of
from cfsl.errors import CfslError, DataError
from cfsl.presets.cells import Request, cells_of, runs_of
from cfsl.runs.run_spec import RunSpec
from cfsl.spec import TaskSpec

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
# With a token of our own Ray writes no file to the user's home folder. Ray reads it when imported.
os.environ |= {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "of-the-tests-of-cfsl-and-of-nobody-else",
}
_UPDATES = 6
"""In an epoch."""
_MARK = "CFSL_TEST_OF_NODE"
_DYING = """
import os
from pathlib import Path
from cfsl.learners.pixel_nn import PixelNN
from cfsl.learners.protonet import ProtoNet

class Always(PixelNN):
    def begin(self, meta, info):
        os._exit(7)

class Once(ProtoNet):
    def episode_loss(self, params, stats, batch, *, turns, moment):
        died = Path(__file__).with_name("died")
        if moment.epoch == 1 and not died.exists():
            died.touch()
            os._exit(9)
        return super().episode_loss(params, stats, batch, turns=turns, moment=moment)
"""


def runs(*learners: str, columns: tuple[str, ...] = ("A3", "B3"), seeds: int = 1) -> list[RunSpec]:
    """Return small cells of some learners."""
    request = Request("smoke", "smoke", learners=learners, columns=columns, seeds=seeds, tasks=4)
    return [_trained_briefly(run) for run in runs_of(cells_of(request))]


def _trained_briefly(run: RunSpec) -> RunSpec:
    if run.train is None:
        return run
    training = run.train.training
    schedule = training.schedule.replace(epochs=2, updates=_UPDATES, batch=1)
    brief = training.replace(episodes=TaskSpec.type_b(3), schedule=schedule, validation_tasks=2)
    return run.replace(train=run.train.replace(training=brief))


def some_runs() -> list[RunSpec]:
    """Return four cells with two trainings."""
    return [*runs("pixel_nn"), *runs("protonet", columns=("B3",), seeds=2)]


class Done(NamedTuple):
    """What a bench on a cluster of one machine came to."""

    bench_folder: BenchFolder
    ending: Ending
    events: list[Event]
    on_locked: Event | None
    """What came of a step that another bench was at."""
    locked_when_out: bool
    """Whether another bench could have a step that was out."""
    closed_on: Step
    """A training that was out when the workers were closed."""


def assert_same_results(ours: BenchFolder, theirs: BenchFolder) -> None:
    """Hold that two benches left the same files, but for the circumstances on their cards."""
    names = sorted(path.relative_to(theirs.path) for path in _results(theirs))
    assert names
    for name in names:
        one, other = ((bench_folder.path / name).read_bytes() for bench_folder in (ours, theirs))
        if name.suffix == ".json":
            one, other = ({**json.loads(card), "circumstances": None} for card in (one, other))
        assert one == other, name


def _results(bench_folder: BenchFolder) -> list[Path]:
    return [
        path for part in ("cards", "manifests") for path in (bench_folder.path / part).iterdir()
    ]


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Give a folder with a short name, as sockets need it."""
    with tempfile.TemporaryDirectory(
        prefix="ray", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


@contextlib.contextmanager
def ray_workers(bench_folder: BenchFolder, count: int | None, address: str | None) -> Iterator[Any]:
    """Give Ray workers; drop what Ray leaves in memory, which warns when it is collected."""
    from cfsl.engine.ray.cluster import RayWorkers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with contextlib.closing(RayWorkers(bench_folder, count, address)) as workers:
            yield workers
        gc.collect()


def assert_tidy(bench_folder: BenchFolder) -> None:
    """Hold that nothing half-written or no longer needed is left."""
    assert not list(bench_folder.path.rglob("*.part"))
    assert not list((bench_folder.path / "pieces").glob("*"))


# --- one machine


@pytest.fixture(scope="module")
def reference(glyphs, tmp_path_factory) -> BenchFolder:
    """Return what the engine 'local' makes of some cells."""
    bench_folder = BenchFolder(tmp_path_factory.mktemp("local"))
    carry_out(
        steps_of(some_runs()),
        LocalWorker(bench_folder, lambda event: None),
        bench_folder,
        lambda event: None,
    )
    return bench_folder


@pytest.fixture(scope="module")
def done(glyphs, tmp_path_factory) -> Done:
    """Run cells of which some die, then a step that is locked, then one that is stopped."""
    bench_folder, modules, events = (
        BenchFolder(tmp_path_factory.mktemp("ray")),
        tmp_path_factory.mktemp("modules"),
        [],
    )
    (modules / "dying_learners.py").write_text(_DYING)
    with pytest.MonkeyPatch.context() as patch, short_folder() as temporary:
        patch.syspath_prepend(modules)
        patch.setenv("PYTHONPATH", str(modules), prepend=os.pathsep)
        patch.setenv("TMPDIR", str(temporary))
        with ray_workers(bench_folder, 2, None) as workers:
            cells = [
                *some_runs(),
                *runs("dying_learners:Always", "dying_learners:Once", columns=("A3",)),
            ]
            ending = carry_out(
                planned(cells, bench_folder).steps, workers, bench_folder, events.append
            )
            step = TrainStep(runs("pretrain_tune", columns=("A3",))[0].train)
            with bench_folder.locked(step):
                workers.give(step)
                on_locked = workers.next_event(5.0)
            workers.give(step)
            events.append(workers.next_event(60.0))
            with bench_folder.locked(step) as mine:
                locked = mine
    return Done(bench_folder, ending, events, on_locked, locked, step)


@pytest.mark.long
def test_a_cluster_gives_the_same_cards_as_this_process(done: Done, reference: BenchFolder):
    assert_same_results(done.bench_folder, reference)


@pytest.mark.long
def test_a_worker_that_dies_is_named_and_stops_no_other(done: Done):
    (name,) = done.ending.failed
    assert name.startswith("piece-") and "dying_learners-Always" in name
    assert "worker died 3 times" in done.ending.failed[name]
    assert sum(isinstance(event, Died) and event.step.name == name for event in done.events) == 3
    assert list(done.ending.blocked.values()) == [name]
    assert len(list((done.bench_folder.path / "cards").glob("*.json"))) == 5


@pytest.mark.long
def test_a_training_whose_worker_dies_goes_on_from_its_last_epoch(done: Done):
    mine = [
        event
        for event in done.events
        if "Once" in event.step.name and isinstance(event.step, TrainStep)
    ]
    deaths = [number for number, event in enumerate(mine) if isinstance(event, Died)]
    assert len(deaths) == 1
    after = [event.progress.done for event in mine[deaths[0] :] if isinstance(event, Told)]
    assert after and after[0] == _UPDATES
    assert isinstance(mine[-1], Finished)


@pytest.mark.long
def test_progress_is_told_and_nothing_is_left_over(done: Done):
    trained = {
        event.step.name
        for event in done.events
        if isinstance(event, Told) and event.step.kind == "train"
    }
    assert len(trained) == 4
    assert not list((done.bench_folder.path / "pieces").glob("*"))


@pytest.mark.long
def test_a_step_is_out_for_one_bench_at_a_time(done: Done):
    assert done.on_locked == Busy(done.closed_on)
    assert not done.locked_when_out


@pytest.mark.long
def test_closing_gives_claims_back_and_leaves_no_part_of_a_file(done: Done):
    assert isinstance(done.events[-1], Told) and done.events[-1].step == done.closed_on
    with done.bench_folder.locked(done.closed_on) as mine:
        assert mine
    assert not list(done.bench_folder.path.rglob("*.part"))


# --- two machines


class Node(NamedTuple):
    """A machine of a cluster, or what passes for one here: it shares no folder with the others."""

    mark: str
    temporary: Path

    def kill(self) -> None:
        """Kill whatever runs on it."""
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"{_MARK}={self.mark}".encode() in environment.read_bytes().split(b"\0"):
                    os.kill(int(environment.parent.name), signal.SIGKILL)

    def trains(self) -> bool:
        """Tell whether one of its workers is training."""
        return any(self.temporary.glob("cfsl-ray-*/desks/*/training"))

    def data_sets(self) -> list[str]:
        """Return what it has fetched."""
        return [path.parent.name for path in self.temporary.glob("cfsl-ray-*/data/*/*/current")]


def start(folder: Path, *options: str) -> Node:
    """Start a node whose folders are all its own."""
    node = Node(f"{os.getpid()}-{folder.name}", folder / "tmp")
    for part in ("tmp", "home", "data"):
        (folder / part).mkdir(parents=True)
    own = {
        "HOME": folder / "home",
        "CFSL_DATA": folder / "data",
        "TMPDIR": node.temporary,
        _MARK: node.mark,
    }
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        *options,
        f"--temp-dir={folder}",
    ]
    try:
        subprocess.run(
            [*command, "--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats"],
            env={**os.environ, **{name: str(value) for name, value in own.items()}},
            cwd=folder,
            check=True,
            capture_output=True,
            timeout=60,
        )
    except BaseException:
        node.kill()
        raise
    return node


@pytest.fixture
def two_nodes() -> Iterator[tuple[str, Node, Node]]:
    """Start a cluster of two."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here, nodes = "--node-ip-address=127.0.0.1", []
    with short_folder() as folder:
        try:
            nodes.append(
                start(folder / "1", "--head", f"--port={port}", here, "--include-dashboard=false")
            )
            nodes.append(start(folder / "2", f"--address=127.0.0.1:{port}", here))
            yield f"127.0.0.1:{port}", *nodes
        finally:
            for node in nodes:
                node.kill()


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")
def test_a_bench_outlives_a_machine(two_nodes, reference: BenchFolder, tmp_path: Path):
    address, head, second = two_nodes
    bench_folder, events = BenchFolder(tmp_path), []

    def watch(event: Event) -> None:
        if second.trains() and not any(isinstance(event, Died) for event in events):
            second.kill()
        events.append(event)

    steps = planned(some_runs(), bench_folder).steps
    with ray_workers(bench_folder, None, address) as workers:
        assert workers.free == 2
        ending = carry_out(steps, workers, bench_folder, watch)
    assert len([event for event in events if isinstance(event, Died)]) == 1
    assert not ending.failed and not ending.blocked
    assert len(ending.done) == len(steps) == len({step.name for step in ending.done})
    assert head.data_sets() == second.data_sets() == ["glyphs-400x20"]
    assert_same_results(bench_folder, reference)
    assert_tidy(bench_folder)


# --- without a cluster


def test_steps_done_in_a_folder_of_their_own_send_back_what_this_process_makes(
    glyphs, tmp_path, monkeypatch
):
    """What a worker does, without Ray: all that it is given is what goes out with a step."""
    from cfsl.engine.ray import messages, worker
    from cfsl.engine.ray.transfer import StepInputs, write_result

    messages_sent: list[Any] = []
    queue = SimpleNamespace(
        post=SimpleNamespace(remote=lambda number, message: messages_sent.append((number, message)))
    )
    for module in (messages, worker):
        monkeypatch.setattr(module, "ray", SimpleNamespace(get=lambda reference: reference))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "away"))
    steps, local = steps_of(runs("protonet", columns=("B3",))), BenchFolder(tmp_path / "local")
    carry_out(steps, LocalWorker(local, lambda event: None), local, lambda event: None)
    bench_folder, home = BenchFolder(tmp_path / "here"), os.environ["CFSL_DATA"]
    inputs = StepInputs(bench_folder, lambda bundle: bundle)
    for number, step in enumerate(steps):
        data, files = inputs.data(step.spec.data), inputs.files(step)
        order = pickle.dumps(worker.Order(number, step, data.key, data.sizes, 0.0))
        monkeypatch.setenv("CFSL_DATA", str(tmp_path / "nothing"))
        kind, left = worker.do(worker.versions(), order, files, [data.reference], queue)
        monkeypatch.setenv("CFSL_DATA", home)
        assert kind == "left"
        write_result(step, left, bench_folder)
    assert_same_results(bench_folder, local)
    assert_tidy(bench_folder)
    (away,) = (tmp_path / "away").glob("cfsl-ray-*")  # torch may keep files of its own there
    assert [path.parent.name for path in away.glob("data/*/*/current")] == ["glyphs-400x20"]
    assert not [path for path in away.glob("desks/*") if path.is_dir()]
    sent = [number for number, message in messages_sent if isinstance(message, Checkpoint)]
    assert sent == [
        number for number, step in enumerate(steps) if isinstance(step, TrainStep) for _ in range(2)
    ]


def test_an_address_where_nobody_listens_is_one_line(run: Callable, glyphs):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        result = run(
            "bench", "smoke", "--learners", "pixel_nn", "--engine", "ray", "--address", address
        )
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert f"the Ray cluster at {address} cannot be reached" in result.err


@pytest.mark.parametrize("address", ["nonsense", "ray://127.0.0.1:10001", "host:port"])
def test_what_is_no_address_is_refused(address: str, tmp_path: Path):
    from cfsl.engine.ray.cluster import RayWorkers

    with pytest.raises(CfslError, match="is no address of a Ray cluster"):
        RayWorkers(BenchFolder(tmp_path), None, address)


def test_without_ray_it_is_said_how_to_get_it(monkeypatch, tmp_path: Path):
    from cfsl.engine.ray.cluster import RayWorkers

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CfslError, match=r"^the engine 'ray' needs Ray: pip install cfsl\[ray\]$"):
        RayWorkers(BenchFolder(tmp_path), None, None)


def test_a_machine_with_another_version_says_so():
    from cfsl.engine.ray.worker import do, versions

    kind, why = do({**versions(), "torch": "0.1"}, b"not even read", [], [], None)
    assert kind == "unfit"
    assert "torch" in why and "not 0.1; install the same versions on all machines" in why


def test_a_checkpoint_of_which_a_file_was_lost_changes_nothing(glyphs, tmp_path: Path):
    from cfsl.engine.ray.transfer import write_checkpoint

    train = runs("protonet", columns=("A3",))[0].train
    ours, theirs = BenchFolder(tmp_path / "ours"), BenchFolder(tmp_path / "theirs")
    for bench_folder, text in ((ours, "old"), (theirs, "new")):
        bench_folder.training(train).mkdir(parents=True)
        for name in ("last", "epoch-0000") if bench_folder is ours else ("last", "epoch-0002"):
            (bench_folder.training(train) / f"{name}.safetensors").write_text(text)
    files = packed(theirs.path, sorted(theirs.training(train).iterdir()))
    lost = next(iter(files)).replace("0002", "0001")
    write_checkpoint(train, Checkpoint(files, [*files, lost]), ours)
    assert (ours.training(train) / "last.safetensors").read_text() == "old"
    assert (ours.training(train) / "epoch-0000.safetensors").exists()
    write_checkpoint(train, Checkpoint(files, list(files)), ours)
    assert (ours.training(train) / "last.safetensors").read_text() == "new"
    assert not (ours.training(train) / "epoch-0000.safetensors").exists()


def test_a_split_file_travels_only_from_below_the_current_folder(glyphs, tmp_path: Path):
    from cfsl.engine.ray.transfer import StepInputs

    step = steps_of(runs("pixel_nn"))[0]
    for splits in ("/etc/mine.json", "../mine.json"):
        away = step.spec.replace(data=step.spec.data.replace(splits=splits))
        with pytest.raises(DataError, match="below the current folder"):
            StepInputs(BenchFolder(tmp_path), lambda bundle: bundle).files(type(step)(away, 0))
