"""cfsl bench: every engine runs a cell once, also after a kill; no failure stops other cells."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cfsl.cards.card import read_card
from cfsl.cards.consistency import run_hash
from cfsl.engine.bench import planned, run_plan
from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.local import LocalWorker
from cfsl.engine.steps import learned_together, steps_of
from cfsl.presets.cells import Request, cells_of, runs_of
from cfsl.runs.data import open_data
from cfsl.runs.run_spec import RunSpec
from cfsl.training.checkpoint import read_notes
from killed_writer import kill_while_writing

pytestmark = pytest.mark.usefixtures("glyphs")
CELLS = ("smoke", "--tasks", "3", "--columns", "A3,B3", "--learners", "pixel_nn,anil,chance")
NARROW = Path(__file__).parent.parent / "golden" / "narrow_anil.json"
TINY = (*CELLS, "--settings", str(NARROW))
BROKEN = """
from cfsl.learners.pixel_nn import PixelNN

class Broken(PixelNN):
    def predict(self, state, images):
        raise RuntimeError("the learner is broken")

class Unlucky(PixelNN):
    def predict(self, state, images):
        import os
        if "CFSL_TEST_UNLUCKY" in os.environ:
            raise RuntimeError("the learner is broken")
        return super().predict(state, images)

class Deadly(PixelNN):
    def predict(self, state, images):
        import os
        os._exit(9)
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cfsl", "bench", *arguments]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"} | more


def bench(*arguments: str, cwd: Path | None = None, preexec_fn=None, **variables: str):
    return subprocess.run(
        command(*arguments),
        env=environment(**variables),
        text=True,
        capture_output=True,
        cwd=cwd,
        preexec_fn=preexec_fn,
    )


def content(folder: Path) -> dict[str, object]:
    """Return all that must be the same bits: cards without circumstances, answers and manifests."""
    cards = {
        path.name: {**read_card(path).content(), "circumstances": None}
        for path in folder.glob("cards/*.json")
    }
    files = {
        path.name: path.read_bytes()
        for path in [*folder.glob("cards/*.npz"), *folder.glob("manifests/*")]
    }
    return cards | files


@pytest.fixture(scope="module")
def undisturbed(glyphs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder where the bench TINY was run in this process."""
    request = Request(
        "smoke", "smoke", learners=("pixel_nn", "anil", "chance"), columns=("A3", "B3"), tasks=3
    )
    narrow = replace(request, changes={"anil": json.loads(NARROW.read_text())["changes"]})
    return done_here(runs_of(cells_of(narrow)), tmp_path_factory.mktemp("undisturbed"))


def done_here(runs: list[RunSpec], folder: Path) -> Path:
    bench_folder = BenchFolder(folder)
    ending = run_plan(
        planned(runs, bench_folder),
        bench_folder,
        lambda: LocalWorker(bench_folder, lambda e: None),
        lambda e: None,
    )
    assert not ending.failed
    return folder


def test_a_bench_leaves_a_card_for_every_cell_and_nothing_that_it_no_longer_needs(undisturbed):
    assert (
        len(list(undisturbed.glob("cards/*.json")))
        == len(list(undisturbed.glob("cards/*.answers.npz")))
        == 6
    )
    assert len(list(undisturbed.glob("manifests/*.json.gz"))) == 2
    assert [path.name.split("-")[0] for path in undisturbed.glob("training/*")] == ["anil", "anil"]
    assert not list(undisturbed.glob("pieces/*")) and not list(undisturbed.rglob("*.part"))


def test_every_card_of_a_bench_can_be_verified(undisturbed, run):
    verified = run("verify", str(undisturbed / "cards"), "--strict")
    assert verified.code == 0 and "6 ok" in verified.out


@pytest.mark.parametrize("workers", ["2", pytest.param("1", marks=pytest.mark.long)])
def test_the_engine_and_the_number_of_workers_change_no_bit(undisturbed, tmp_path, workers):
    done = bench(*TINY, "--engine", "processes", "--workers", workers, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert content(tmp_path) == content(undisturbed)


@pytest.mark.long
def test_pieces_change_no_bit(tmp_path):
    found = []
    for piece in (2, 5):
        request = Request(
            "smoke", "smoke", learners=("init_tune", "anil"), columns=("B3",), tasks=5
        )
        runs = [run.replace(piece=piece) for run in runs_of(cells_of(request))]
        found.append(content(done_here(runs, tmp_path / str(piece))))
    assert found[0] == found[1] and len(found[0]) == 5


def test_what_is_done_is_not_done_again(undisturbed, run, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "copy")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*.json")}
    planned = run("bench", *TINY, "--out", "copy", "--plan")
    assert planned.code == 0 and "6 cells: 6 done; 0 trainings" in planned.out
    again = run("bench", *TINY, "--engine", "local", "--out", "copy")
    assert again.code == 0 and "pixel_nn" in again.out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*.json")} == before


def rewritten(path: Path, change) -> None:
    """Give a card another run, with its hash, and the name that goes with it."""
    card = json.loads(path.read_text())
    change(card["run"])
    card["run_hash"] = run_hash(card["run"])
    new = path.with_name(f"{path.stem[:-10]}{card['run_hash'][:10]}.json")
    new.write_text(json.dumps(card))
    path.unlink()


def test_a_card_from_before_a_field_was_added_is_still_that_cell_s(undisturbed, run, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "copy")
    anil, pixels = (
        next(tmp_path.glob(f"copy/cards/*-B-*-{name}-*.json")) for name in ("anil", "pixel_nn")
    )
    rewritten(anil, lambda spec: spec["train"]["training"]["augmentation"].pop("blends"))
    planned = run("bench", *TINY, "--out", "copy", "--plan")
    assert planned.code == 0 and "6 cells: 6 done; 0 trainings" in planned.out
    rewritten(pixels, lambda spec: spec.update(task_seed=1))
    planned = run("bench", *TINY, "--out", "copy", "--plan")
    assert planned.code == 0 and "1 to do" in planned.out and planned.err == ""
    odd = next(tmp_path.glob("copy/cards/*-A-*-pixel_nn-*.json"))
    odd.write_text(json.dumps(json.loads(odd.read_text()) | {"run": []}))
    planned = run("bench", *TINY, "--out", "copy", "--plan")
    assert planned.code == 0 and "4 done" in planned.out and "2 to do" in planned.out
    false = next(tmp_path.glob("copy/cards/*-A-*-chance-*.json"))
    card = json.loads(false.read_text())
    false.write_text(json.dumps(card | {"run_hash": "0" * 64}))
    planned = run("bench", *TINY, "--out", "copy", "--plan")
    assert planned.code == 0 and "3 done" in planned.out and "3 to do" in planned.out


def test_a_cell_of_another_suite_or_order_is_the_same_cell(undisturbed, run, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "copy")
    planned = run(
        "bench", "table1", "--profile", "smoke", "--data", "glyphs-400x20",
        "--learners", "chance,pixel_nn",
        "--columns", "B3", "--tasks", "3", "--out", "copy", "--plan",
    )  # fmt: skip
    assert planned.code == 0 and "2 cells: 2 done" in planned.out


def test_one_failing_cell_stops_no_other_and_the_exit_code_tells(run, tmp_path):
    (tmp_path / "unlucky.py").write_text(BROKEN)
    some = (
        "smoke",
        "--tasks",
        "3",
        "--columns",
        "A3",
        "--learners",
        "unlucky:Unlucky,pixel_nn",
        "--out",
        "out",
    )
    done = bench(
        *some, "--engine", "processes", "--workers", "1", cwd=tmp_path, CFSL_TEST_UNLUCKY="1"
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "the learner is broken" in done.stderr and "--retry" in done.stderr
    assert [path.name.split("-")[4] for path in tmp_path.glob("out/cards/*.json")] == ["pixel_nn"]
    failures = list(tmp_path.glob("out/failed/*.json"))
    assert len(failures) == 1 and "in predict" in json.loads(failures[0].read_text())["trace"]
    unasked = run("bench", *some, "--engine", "local")
    assert unasked.code == 1 and "the learner is broken" in unasked.err
    retried = run("bench", *some, "--engine", "local", "--retry")
    assert retried.code == 0, retried.err
    assert len(list(tmp_path.glob("out/cards/*.json"))) == 2


@pytest.mark.long
def test_a_learner_that_kills_its_worker_fails_alone(tmp_path):
    (tmp_path / "mine.py").write_text(BROKEN)
    some = (
        "smoke",
        "--tasks",
        "3",
        "--columns",
        "A3",
        "--learners",
        "mine:Deadly,pixel_nn",
        "--out",
        "out",
    )
    done = bench(*some, "--engine", "processes", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 1 and "its worker died 3 times (exit code 9)" in done.stderr
    assert [path.name.split("-")[4] for path in tmp_path.glob("out/cards/*.json")] == ["pixel_nn"]


def cut_card(folder: Path) -> Path:
    path = next(folder.glob("cards/*pixel_nn*.json"))
    path.write_text(path.read_text()[:100])
    return path


def lose_answers(folder: Path) -> Path:
    path = next(folder.glob("cards/*pixel_nn*.json"))
    path.with_name(f"{path.stem}.answers.npz").unlink()
    return path


def cut_checkpoint(folder: Path) -> Path:
    for path in folder.glob("cards/*anil*"):
        path.unlink()
    path = next(folder.glob("training/*/last.safetensors"))
    path.write_bytes(path.read_bytes()[:2000])
    return path


def cut_epoch(folder: Path) -> Path:
    for path in folder.glob("cards/*anil*"):
        path.unlink()
    path = next(folder.glob("training/*/epoch-0000.safetensors"))
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize("damage", [cut_card, lose_answers, cut_checkpoint, cut_epoch])
def test_what_is_damaged_is_named_set_aside_and_done_again(undisturbed, run, tmp_path, damage):
    shutil.copytree(undisturbed, tmp_path / "copy")
    damaged = damage(tmp_path / "copy")
    others = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").glob("cards/*chance*")}
    done = run("bench", *TINY, "--engine", "local", "--out", "copy")
    assert done.code == 0 and str(damaged.relative_to(tmp_path)) in done.err and "aside" in done.err
    assert len(list((tmp_path / "copy" / "aside").iterdir())) == 1
    assert content(tmp_path / "copy") == content(undisturbed)
    assert {path: path.stat().st_mtime_ns for path in others} == others


def test_two_benches_in_one_folder_both_finish_and_no_card_is_lost(undisturbed, run, tmp_path):
    other = subprocess.Popen(
        command(*TINY, "--engine", "local", "--out", str(tmp_path)),
        env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while not list(
        tmp_path.glob("cards/*.json")
    ):  # it takes longer to start than this process, which runs already
        assert other.poll() is None
        time.sleep(0.05)
    code, out, err = run("bench", *TINY, "--engine", "local", "--out", str(tmp_path))
    assert code == 0 and "n/a" not in out and " - " not in out, err
    out, err = other.communicate()
    assert other.returncode == 0 and "n/a" not in out and " - " not in out, err
    assert content(tmp_path) == content(undisturbed)


STOPPED = (130, -signal.SIGINT)
"""A shell shows 130 for both: python -m now and then ends by the signal itself."""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_stopped_bench_says_so_leaves_no_process_and_goes_on(undisturbed, run, tmp_path, number):
    one = subprocess.Popen(
        command(*TINY, "--engine", "processes", "--workers", "2", "--out", str(tmp_path)),
        env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    while not list(tmp_path.glob("cards/*.json")):
        assert one.poll() is None
        time.sleep(0.05)
    one.send_signal(number)
    _, err = one.communicate(timeout=30)
    assert one.returncode in STOPPED and "stopped" in err and "Traceback" not in err
    assert wait_for_end_of_group(one.pid)
    assert run("bench", *TINY, "--engine", "local", "--out", str(tmp_path)).code == 0
    assert content(tmp_path) == content(undisturbed)


HEARS_CTRL_C_AT_ITS_START = """
import os, signal, sys

if "--multiprocessing-fork" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_is_for_the_bench_even_while_its_workers_start(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HEARS_CTRL_C_AT_ITS_START)
    some = (
        "smoke",
        "--tasks",
        "2",
        "--columns",
        "A3",
        "--learners",
        "pixel_nn",
        "--engine",
        "processes",
    )
    done = bench(*some, "--workers", "1", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert len(list(tmp_path.glob("bench/cards/*.json"))) == 1


def test_a_bench_names_the_corruption_of_each_cell_that_it_is_through_with(run):
    columns = "instance1-noise-0.4,instance1-noise-0.05,instance1-disc-0.3"
    some = ("--data", "glyphs-400x20", "--profile", "smoke", "--learners", "chance", "--tasks", "2")
    done = run("bench", "corruption", *some, "--columns", columns, "--engine", "local")
    assert done.code == 0, done.err
    cells = re.findall(r"of 3 cells: chance on glyphs-400x20 instance 2 (.+): ", done.out)
    assert sorted(cells) == ["disc 0.3", "noise 0.05", "noise 0.4"]


def test_a_step_of_several_corruptions_is_named_after_none_of_them():
    asked = Request("corruption", "quick", ("glyphs-400x20",), learners=("chance",), tasks=2)
    runs = runs_of(cells_of(replace(asked, columns=("instance1-noise-0.4", "instance1-disc-0.3"))))
    assert steps_of(runs)[0].label == "chance on glyphs-400x20 instance 2 noise 0.4, tasks 0-1"
    assert (
        learned_together(steps_of(runs))[0].label
        == "chance on glyphs-400x20 instance 2, 2 corruptions, tasks 0-1"
    )


def wait_for_end_of_group(group: int) -> bool:
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("folder", ["cards", "manifests", "failed", "pieces/some-run"])
def test_a_bench_that_goes_on_removes_the_part_files_of_killed_processes(tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True)
    left = kill_while_writing(tmp_path / folder / "anything.json")

    planned([], BenchFolder(tmp_path), look_only=True)
    assert left.exists()

    planned([], BenchFolder(tmp_path))
    assert not left.exists()


@pytest.mark.long
def test_a_bench_that_is_killed_at_twenty_random_moments_ends_with_the_same_cards(
    undisturbed, tmp_path
):
    moments = random.Random(5)
    kills, starts = 0, 0
    for _ in range(120):
        # A new folder after an end or ten kills, so that kills come at every stage of a bench.
        folder = tmp_path / str(starts + kills // 10)
        one = subprocess.Popen(
            command(*TINY, "--engine", "processes", "--workers", "2", "--out", str(folder)),
            env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            one.wait(moments.uniform(1.0, 9.0))
            starts += 1
        except subprocess.TimeoutExpired:
            whole = (
                moments.random() < 0.5
            )  # the bench alone, whose workers end by themselves, or all at once
            os.killpg(one.pid, signal.SIGKILL) if whole else one.kill()
            one.wait()
            assert wait_for_end_of_group(one.pid)
            kills += 1
        if kills == 20:
            break
    assert kills == 20
    for folder in tmp_path.iterdir():
        assert bench(*TINY, "--engine", "processes", "--out", str(folder)).returncode == 0
        assert content(folder) == content(undisturbed)
        assert not list(folder.glob("aside/*"))


@pytest.mark.long
def test_a_bench_that_is_killed_three_times_ends_with_the_same_cards(undisturbed, tmp_path):
    for seconds in (2.0, 3.5, 5.0):
        one = subprocess.Popen(
            command(*TINY, "--engine", "processes", "--workers", "2", "--out", str(tmp_path)),
            env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        time.sleep(seconds)
        one.kill()
        one.wait()
        assert wait_for_end_of_group(one.pid)
    assert bench(*TINY, "--engine", "local", "--out", str(tmp_path)).returncode == 0
    assert content(tmp_path) == content(undisturbed)


@pytest.mark.long
def test_a_full_disk_is_a_failed_cell_with_a_reason_and_leaves_no_half_file(tmp_path):
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = bench(*CELLS, "--engine", "local", "--out", str(tmp_path), preexec_fn=small_files)
    assert (
        done.returncode == 1 and "Traceback" not in done.stderr and "File too large" in done.stderr
    )
    assert not list(tmp_path.rglob("*.part")) and not list(
        tmp_path.glob("training/*/*.safetensors")
    )
    assert bench(*CELLS, "--engine", "local", "--out", str(tmp_path), "--retry").returncode == 0


def test_a_data_set_that_is_too_small_for_a_column_is_said_to_be_and_the_others_are_run(run):
    some = ("--data", "glyphs-400x20", "--profile", "smoke", "--learners", "chance", "--tasks", "2")
    done = run("bench", "scaling", *some, "--columns", "baseline1,wide2", "--engine", "local")
    assert done.code == 0 and "n/a" in done.out
    assert "not applicable: glyphs-400x20 wide2:" in done.out and "needs 200" in done.out
    assert len(list(Path("bench/cards").glob("*.json"))) == 1


def test_where_validation_classes_are_few_training_is_validated_on_fewer_support_sets_and_says_so(
    run,
):
    names = open_data("glyphs-400x20", None).info.class_names
    parts = {"train": (0, 300), "val": (300, 320), "test": (320, 400)}
    Path("mine.json").write_text(
        json.dumps({part: names[first:end] for part, (first, end) in parts.items()})
    )
    mine = ("--data", "glyphs-400x20", "--splits", "mine.json")
    done = run(
        "bench", "table1", *mine, "--learners", "maml_low", "--columns", "B3,B10,D8", "--plan"
    )
    assert done.code == 0 and "not applicable" not in done.out
    assert re.findall(r"validated with nss (\d+)", done.out) == ["3", "4", "8"]
    done = run(
        "train", "protonet", *mine, "--type", "B", "--nss", "5", "--epochs", "1", "--updates", "1"
    )
    assert (
        done.code == 0
        and "validated with nss 4: glyphs-400x20 has 20 validation classes" in done.out
    )
    assert (
        read_notes(next(Path("runs").rglob("last.safetensors")))["identity"]["training"][
            "validation"
        ]["nss"]
        == 4
    )
    assert "episodes of" not in done.out
    done = run(
        "train",
        "anil",
        *mine,
        "--type",
        "B",
        "--nss",
        "5",
        "--epochs",
        "1",
        "--updates",
        "1",
        "--out",
        "head",
    )
    assert done.code == 0 and "validated with nss 4" in done.out and "best epoch 1" in done.out
    done = run(
        "train", "protonet", *mine, "--type", "B", "--nss", "4", "--n-way", "30", "--out", "other"
    )
    assert done.code == 2 and "val has 20 classes; this task needs 120" in done.err


@pytest.mark.parametrize(("learner", "images"), [("protonet", 3), ("champion", 5)])
def test_where_training_classes_are_few_episodes_are_narrower_and_it_is_said(run, learner, images):
    names = open_data("glyphs-400x20", None).info.class_names
    Path("few.json").write_text(
        json.dumps({"train": names[:30], "val": names[30:50], "test": names[50:]})
    )
    few = ("--data", "glyphs-400x20", "--splits", "few.json")
    done = run(
        "train",
        learner,
        *few,
        "--type",
        "B",
        "--nss",
        "2",
        "--epochs",
        "1",
        "--updates",
        "1",
        "--out",
        "run",
    )
    assert (
        done.code == 0
        and f"episodes of 30 classes x {images} images: glyphs-400x20 has 30" in done.out
    )
    assert (
        read_notes(Path("run/last.safetensors"))["identity"]["training"]["episodes"]["n_way"] == 30
    )
    done = run("bench", "table1", *few, "--learners", learner, "--columns", "B3", "--plan")
    assert "of 1 30-way tasks, validated with nss 3" in done.out
    done = run("train", "maml_low", *few, "--type", "B", "--nss", "7", "--out", "other")
    assert done.code == 2 and "train has 30 classes; this task needs 35" in done.err


@pytest.mark.parametrize("classes", [0, 1])
def test_where_there_is_nothing_to_tell_apart_the_others_are_run_all_the_same(run, classes):
    names = open_data("glyphs-400x20", None).info.class_names
    Path(f"{classes}.json").write_text(
        json.dumps({"train": names[:classes], "val": names[1:51], "test": names[51:]})
    )
    none = ("--data", "glyphs-400x20", "--splits", f"{classes}.json")
    done = run(
        "bench", "table1", *none, "--learners", "protonet,pixel_nn", "--columns", "B3", "--plan"
    )
    assert done.code == 0 and re.search(
        rf"not applicable: .*train has {classes} classes; this task needs 64", done.out
    )
    assert "1 to do" in done.out


def test_four_classes_are_enough_to_pretrain_on_whatever_tasks_are_asked_about(run):
    names = open_data("glyphs-400x20", None).info.class_names
    Path("four.json").write_text(
        json.dumps({"train": names[:4], "val": names[4:50], "test": names[50:]})
    )
    four = ("--data", "glyphs-400x20", "--splits", "four.json", "--type", "B", "--nss", "3")
    done = run("train", "pretrain_tune", *four, "--epochs", "1", "--updates", "1", "--out", "run")
    assert done.code == 0 and "best epoch 1" in done.out


def test_a_data_set_that_is_not_there_is_said_to_be_missing(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CFSL_DATA", str(tmp_path / "no-data"))
    done = run("bench", "instance", "--learners", "chance", "--plan")
    assert done.code == 0 and "not applicable: data set 'omniglot' is not here" in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tabel1",), "there is no suite 'tabel1'; did you mean 'table1'?"),
        (("table1", "--profile", "quikc"), "there is no profile 'quikc'; did you mean 'quick'?"),
        (("table1", "--learners", "protonets"), "did you mean 'protonet'?"),
        (("table1", "--columns", "b3"), "did you mean 'B3'?"),
        (("table1", "--columns", "B4"), "there is no column of this suite 'B4'"),
        (("smoke", "--engine", "process"), "did you mean 'processes'?"),
        (("smoke", "--engine", "local", "--workers", "2"), "one step at a time"),
        (("smoke", "--address", "auto"), "--engine ray"),
        (("table1", "--splits", "official"), "--data"),
        (("smoke", "--settings", "no-such.json"), "no-such.json"),
        (("smoke", "--seeds", "0"), "--seeds"),
        (("smoke", "--precision", "float16"), "did you mean 'bfloat16'?"),
    ],
)
def test_bad_input_is_one_line(run, arguments, says):
    done = run("bench", *arguments)
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1 and done.out == ""


def test_settings_of_a_sweep_change_the_learner_and_the_cell(run):
    Path("best.json").write_text(json.dumps({"learner": "init_tune", "changes": {"lr": 0.5}}))
    some = (
        "smoke",
        "--learners",
        "init_tune",
        "--columns",
        "A3",
        "--tasks",
        "2",
        "--engine",
        "local",
    )
    assert run("bench", *some, "--settings", "best.json").code == run("bench", *some).code == 0
    rates = {read_card(path).learner.settings["lr"] for path in Path("bench/cards").glob("*.json")}
    assert rates == {0.5, 0.01}


def test_a_precision_is_on_the_card_and_a_slow_one_is_told(run, monkeypatch):
    monkeypatch.setattr("cfsl.harness.devices.has_bfloat16", lambda device: False)
    some = (
        "smoke",
        "--learners",
        "protonet,maml_low",
        "--columns",
        "A3",
        "--tasks",
        "2",
        "--engine",
        "local",
    )
    done = run("bench", *some, "--precision", "bfloat16")
    assert (
        "no instructions for bfloat16" in done.err
        and "need float32: train it with --precision float32" in done.err
    )
    assert done.code == 1  # the one learner fails alone
    (card,) = (read_card(path) for path in Path("bench/cards").glob("*.json"))
    assert card.run.train.training.schedule.precision == "bfloat16"


def test_weights_of_another_run_are_set_aside_and_trained_again(undisturbed, run, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "copy")
    first, second = sorted((tmp_path / "copy" / "training").iterdir())
    first.rename(tmp_path / "between")
    second.rename(first)
    (tmp_path / "between").rename(second)
    for path in (tmp_path / "copy").glob("cards/*anil*"):
        path.unlink()
    done = run("bench", *TINY, "--engine", "local", "--out", "copy")
    assert done.code == 0 and done.err.count("is of another run") == 2
    assert content(tmp_path / "copy") == content(undisturbed)


def test_a_plan_changes_nothing(undisturbed, run, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "copy")
    cut_card(tmp_path / "copy")
    before = sorted((tmp_path / "copy").rglob("*"))
    planned = run("bench", *TINY, "--out", "copy", "--plan", "--retry")
    assert planned.code == 0 and "will be set aside" in planned.err and planned.err.count("\n") == 1
    assert "5 done" in planned.out and "1 to do" in planned.out
    assert sorted((tmp_path / "copy").rglob("*")) == before


def test_a_learner_of_your_own_is_found_in_the_current_folder_and_is_another_when_its_code_changes(
    run,
):
    own = BROKEN.replace("raise RuntimeError", "return super().predict(state, images) #")
    some = (
        "smoke",
        "--tasks",
        "2",
        "--columns",
        "A3",
        "--learners",
        "ownlearner:Broken",
        "--engine",
        "local",
    )
    Path("ownlearner.py").write_text(own)
    assert run("bench", *some).code == 0
    Path("ownlearner.py").write_text(own + "# changed")
    assert "1 to do" in run("bench", *some, "--plan").out
    Path("ownlearner.py").write_text(own)
    assert "1 done" in run("bench", *some, "--plan").out


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("class Mine:\n    def __init__(self, x): ...", "cannot be made: TypeError"),
        ("class Mine: ...", "is no learner: it has no begin, no observe, no predict"),
        ("Mine = int", "is no learner"),
        ("this is no python", "cannot be imported"),
        ("raise OSError('no')", "cannot be imported: no"),
    ],
)
def test_a_bad_learner_of_your_own_is_one_line(run, code, says, request):
    name = f"bad{abs(hash(request.node.name))}"
    Path(f"{name}.py").write_text(code)
    done = run("bench", "smoke", "--learners", f"{name}:Mine", "--plan")
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1


def test_settings_that_would_not_be_used_are_refused(run):
    Path("a.json").write_text(json.dumps({"learner": "init_tune", "changes": {"lr": 0.5}}))
    done = run("bench", "smoke", "--learners", "chance", "--settings", "a.json", "--plan")
    assert done.code == 2 and "settings for init_tune, which is not in this bench" in done.err
    twice = run(
        "bench",
        "smoke",
        "--learners",
        "init_tune",
        "--settings",
        "a.json",
        "--settings",
        "a.json",
        "--plan",
    )
    assert twice.code == 2 and "a second file of settings for init_tune" in twice.err


def test_a_folder_that_is_a_file_and_names_that_name_nothing_are_refused(run):
    Path("afile").write_text("")
    assert "afile is a file" in run("bench", "smoke", "--out", "afile").err
    assert "names nothing" in run("bench", "smoke", "--learners", ",").err
    assert "did you mean 'glyphs" in run("bench", "smoke", "--data", "glyphs-400x2O").err


def test_a_column_that_a_suite_has_on_other_data_only_is_not_applicable(run):
    from cfsl.presets.cells import Request, cells_of

    cells = cells_of(
        Request("table1", data=("glyphs-400x20",), learners=("chance",), columns=("B3",))
    )
    assert [cell.column for cell in cells] == ["B3"] and cells[0].run is not None


def test_a_learner_that_ends_the_process_or_prints_is_kept_in_its_place(run):
    one_cell = ("--tasks", "2", "--columns", "A3", "--engine", "local")
    Path("leaving.py").write_text(
        BROKEN.replace('raise RuntimeError("the learner is broken")', "raise SystemExit(3)")
    )
    done = run("bench", "smoke", *one_cell, "--learners", "leaving:Broken,chance")
    assert done.code == 1 and "SystemExit: 3" in done.err and "chance" in done.out
    talking = BROKEN.replace(
        "raise RuntimeError", 'print("hello"); return super().predict(state, images) #'
    )
    Path("talking.py").write_text(talking)
    said = run("bench", "smoke", *one_cell, "--learners", "talking:Broken", "--json")
    assert said.code == 0 and json.loads(said.out)["failed"] == {} and "hello" in said.err
