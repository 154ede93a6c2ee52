"""The command line: help with examples, JSON for programs, one line for errors of the user."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import cfsl
import cfsl.cli
from cfsl.cli.sweep import _say_outcome
from cfsl.learners.registry import find_learner
from cfsl.spec import TaskSpec
from cfsl.training.checkpoint import read_checkpoint, write_checkpoint
from cfsl.training.loop import train
from cfsl.training.recipes import recipe_for

_GLYPHS = ("--data", "glyphs-400x20")


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Return a folder of eight classes with six small images each, one class with a wicked name."""
    rng = np.random.default_rng(1)
    for name in [f"class{number}" for number in range(7)] + ["[bold]x[/bold]<script>[/y]"]:
        folder = tmp_path / "pictures" / name.replace("/", "_")
        folder.mkdir(parents=True)
        for number in range(6):
            Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(
                folder / f"{number}.png"
            )
    return tmp_path / "pictures"


@pytest.fixture
def empty_root(tmp_path, monkeypatch) -> Path:
    """Let data sets live in a folder of this test's own."""
    monkeypatch.setenv("CFSL_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


def _process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "cfsl", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )


def _commands(command=None, path=("cfsl",)):
    """Walk the tree of commands."""
    command = command or typer.main.get_command(cfsl.cli.app)
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, (*path, name))


_COMMANDS = {" ".join(path): command for path, command in _commands()}


def test_all_commands_are_found():
    assert {
        "cfsl",
        "cfsl data",
        "cfsl data list",
        "cfsl tasks show",
        "cfsl tasks verify",
    } <= _COMMANDS.keys()
    assert len(_COMMANDS) >= 11


@pytest.mark.parametrize("path", _COMMANDS)
def test_every_command_has_help_with_an_example_and_every_option_is_explained(path):
    result = CliRunner().invoke(cfsl.cli.app, [*path.split()[1:], "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout and path in result.stdout.split("Example")[1]
    assert _COMMANDS[path].help
    for parameter in _COMMANDS[path].params:
        assert getattr(parameter, "help", None), f"{path} {parameter.name} has no help"


def test_help_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['cfsl', '--help']\n"
        "import cfsl.cli\n"
        "try: cfsl.cli.main()\n"
        "except SystemExit as stop: print('code', stop.code, file=sys.stderr)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.startswith("code 0\n") and "Usage" in done.stdout
    heavy = {"torch", "pydantic", "numpy", "matplotlib", "PIL", "jaxtyping"}
    assert not heavy & set(done.stderr.split())


def test_version(run):
    assert run("--version") == (0, f"cfsl {cfsl.__version__}\n", "")


_WRONG = {
    "unknown command": (["dta"], "No such command 'dta'. Did you mean 'data'?"),
    "unknown option": (["tasks", "show", "--typ", "B"], "--typ"),
    "no number": (["tasks", "show", "--nss", "many"], "Invalid value for '--nss'"),
    "missing argument": (["data", "info"], "Missing argument"),
    "too few tasks": (["tasks", "export", "--tasks", "0"], "'--tasks'"),
    "unknown data set": (
        ["tasks", "show", "--data", "glyphs-400x2O"],
        "did you mean 'glyphs-400x20'?",
    ),
    "unknown data set to fetch": (["data", "fetch", "omnigot"], "did you mean 'omniglot'?"),
    "data set of the info": (["data", "info", "glyfs"], "data set 'glyfs' is not here"),
    "data set to verify": (["data", "verify", "nothing"], "data set 'nothing' is not here"),
    "absurd glyphs": (
        ["tasks", "show", "--data", "glyphs-0x20"],
        "glyphs has from 1 to 250,000 classes",
    ),
    "endless name": (["data", "info", "glyphs-" + "9" * 5000 + "x20"], "x20' is not here"),
    "unknown type": (["tasks", "show", "--type", "wid"], "did you mean 'wide'?"),
    "unknown split": (["tasks", "show", *_GLYPHS, "--split", "tset"], "did you mean 'test'?"),
    "unknown split file": (["tasks", "show", *_GLYPHS, "--splits", "x"], "It has like_omniglot"),
    "unknown sampler": (
        ["tasks", "show", *_GLYPHS, "--sampler", "cfsl-2"],
        "did you mean 'cfsl-1'?",
    ),
    "infeasible": (
        ["tasks", "show", *_GLYPHS, "--nss", "100"],
        "Lower nss to 10, or use data='glyphs-4000x20'",
    ),
    "infeasible export": (
        ["tasks", "export", *_GLYPHS, "--k-target", "50"],
        "Lower k_target to 19",
    ),
    "nonsense spec": (["tasks", "show", *_GLYPHS, "--nss", "0"], "nss=0"),
    "negative index": (["tasks", "show", *_GLYPHS, "--index", "-1"], "tasks are numbered from 0"),
    "endless index": (
        ["tasks", "show", *_GLYPHS, "--index", "9" * 20],
        "tasks are numbered from 0",
    ),
    "endless first": (
        ["tasks", "export", *_GLYPHS, "--first", "9" * 20],
        "tasks are numbered from 0",
    ),
    "no folder for a picture": (
        ["tasks", "show", *_GLYPHS, "--out", "no/t.png"],
        "no/t.png cannot be written",
    ),
    "odd picture": (["tasks", "show", *_GLYPHS, "--out", "t.xyz"], "should end in .png"),
    "folder as a picture": (["tasks", "show", *_GLYPHS, "--out", "."], "cannot be written"),
    "no folder for a manifest": (
        ["tasks", "export", *_GLYPHS, "--out", "no/t.gz"],
        "no/t.gz cannot be written",
    ),
    "published of another split": (
        ["tasks", "verify", "--published", "omniglot", "--splits", "x"],
        "reference split",
    ),
    "recipe of glyphs": (
        ["data", "fetch", "glyphs-20x20", "--recipe", "antialiased"],
        "no recipe 'antialiased'",
    ),
    "two corruptions": (
        ["tasks", "show", "--noise", ".1", "--occlusion", ".1"],
        "--noise and --occlusion",
    ),
    "fraction above 1": (["tasks", "show", "--noise", "1.5"], "fraction=1.5 is refused"),
    "fraction of 0": (["tasks", "show", "--occlusion", "0"], "fraction=0"),
    "fraction nan": (["tasks", "show", "--noise", "nan"], "fraction=nan is refused"),
    "odd occluder": (
        ["tasks", "show", "--occlusion", ".2", "--occluder", "star"],
        "'disc' or 'square'",
    ),
    "occluder alone": (["tasks", "show", "--occluder", "disc"], "--occlusion"),
    "nothing to verify": (["tasks", "verify"], "nothing to verify"),
    "no manifest": (
        ["tasks", "verify", "no.json.gz"],
        "no.json.gz cannot be read as a task manifest",
    ),
    "nothing published": (
        ["tasks", "verify", "--published", "omniglott"],
        "did you mean 'omniglot'?",
    ),
    "nothing to add": (["data", "add", "x", "--from", "no"], "no does not exist"),
    "name of glyphs": (["data", "add", "glyphs", "--from", "."], "'glyphs' is made by cfsl itself"),
    "impossible name": (
        ["data", "add", "[bold]x[/bold]", "--from", "."],
        "'[bold]x[/bold]' cannot be the name",
    ),
    "a setting twice": (
        ["eval", "champion", "--set", "axes=512", "--set", "axes=10"],
        "--set axes=512 and --set axes=10",
    ),
    "more labels than a task has": (
        ["eval", "chance", *_GLYPHS, "--type", "D", "--sampler", "as_released_2020_04"],
        "20 labels, where tasks of this setting have 10",
    ),
    "control characters": (["data", "info", "a\x1b[31m\nb"], r"'a\x1b[31m\nb' is not here"),
}


@pytest.mark.parametrize(("arguments", "message"), _WRONG.values(), ids=_WRONG)
def test_mistakes_are_one_line_and_exit_code_2(run, glyphs, arguments, message):
    result = run(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert (
        result.err.startswith("cfsl: ")
        and result.err.count("\n") == 1
        and result.err.endswith("\n")
    )
    assert message in result.err


def test_the_published_sampler_is_evaluated_where_labels_are_those_of_the_setting(run, glyphs):
    some = ("eval", "pixel_nn", *_GLYPHS, "--tasks", "2", "--sampler")
    assert run(*some, "as_released_2020_04", "--type", "B").code == 0
    assert run(*some, "as_released_2020_08", "--type", "D").code == 0


def test_a_sweep_says_how_a_bench_takes_the_precision_that_it_chose(capsys):
    chosen = {"training.precision": "bfloat16", "training.rate": 0.01}
    data, task = SimpleNamespace(name="glyphs"), TaskSpec.type_b(3)
    asked = SimpleNamespace(
        learner="anil",
        data=data,
        task=task,
        tasks=2,
        method="grid",
        space=dict.fromkeys(chosen),
        training=object(),
    )
    _say_outcome(
        SimpleNamespace(sweep=asked, folder=Path("s")), [], {"values": chosen, "changes": {}}
    )
    said = capsys.readouterr().out
    assert "leaves out training.precision; give it as --precision bfloat16\n" in said
    assert "it leaves out training.rate=0.01\n" in said


def test_no_command_is_help_and_exit_code_2(run):
    result = run("data")
    assert result.code == 2 and "Usage" in result.out and result.err == "cfsl: give a command\n"


def test_a_real_process_fails_in_one_line():
    done = _process("tasks", "show", "--type", "E")
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr.startswith("cfsl: there is no task type 'E'") and done.stderr.count("\n") == 1
    )


def test_a_bug_is_not_hidden(run, monkeypatch):
    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr("cfsl.data.store.installed", broken)
    monkeypatch.setattr(sys, "argv", ["cfsl", "data", "list"])
    with pytest.raises(ZeroDivisionError):
        cfsl.cli.main()


def test_ctrl_c_is_said_in_one_line(run, monkeypatch):
    def stopped():
        raise KeyboardInterrupt

    monkeypatch.setattr("cfsl.data.store.installed", stopped)
    assert run("data", "list") == (130, "", "cfsl: stopped\n")


def test_json_is_all_there_is_on_stdout(run, glyphs, pictures, empty_root, data_root, monkeypatch):
    added = run("data", "add", "own", "--from", str(pictures), "--size", "16", "--json")
    assert added.code == 0 and added.err == ""
    assert json.loads(added.out)["images"] == 48
    fetched = json.loads(run("data", "fetch", "glyphs-30x8", "--json").out)
    assert (fetched["classes"], fetched["images"]) == (30, 240)
    listed = json.loads(run("data", "list", "--json").out)
    assert listed["root"] == str(empty_root)
    assert {name for name, entry in listed["data"].items() if entry["here"]} == {
        "own",
        "glyphs-30x8",
    }
    assert (
        not listed["data"]["omniglot"]["here"]
        and "fetch omniglot" in listed["data"]["omniglot"]["how"]
    )
    info = json.loads(run("data", "info", "glyphs-30x8", "--json").out)
    assert info == fetched and info["recipe"]["height"] == 28
    verified = json.loads(run("data", "verify", "own", "--json").out)
    assert verified == {
        "name": "own",
        "fingerprint": json.loads(added.out)["fingerprint"],
        "intact": True,
        "matches_reference": None,
    }
    monkeypatch.setenv("CFSL_DATA", str(data_root))
    shown = json.loads(run("tasks", "show", *_GLYPHS, "--type", "C", "--index", "3", "--json").out)
    assert (shown["index"], shown["labels"], shown["spec"]["overwrite"]) == (3, 5, True)
    assert _width(shown["picture"]) > 500
    exported = json.loads(run("tasks", "export", *_GLYPHS, "--tasks", "4", "--json").out)
    assert exported["tasks"] == 4 and Path(exported["path"]).stat().st_size == exported["bytes"]
    checked = run("tasks", "verify", exported["path"], "--json")
    assert checked.code == 0 and json.loads(checked.out) == {exported["path"]: "ok"}


def test_exported_tasks_verify_and_do_not_depend_on_the_day(run, glyphs):
    for name in ("a.gz", "b.gz"):
        result = run(
            "tasks", "export", *_GLYPHS, "--type", "d", "--tasks", "5", "--seed", "3", "--out", name
        )
        assert result.code == 0
    assert Path("a.gz").read_bytes() == Path("b.gz").read_bytes()
    assert run("tasks", "verify", "a.gz", "b.gz") == (0, "a.gz: ok\nb.gz: ok\n", "")


def _width(path: str) -> int:
    with Image.open(path) as image:
        return image.width


def _rewrite(path: str, change) -> None:
    """Change a manifest by hand."""
    content = json.loads(gzip.decompress(Path(path).read_bytes()))
    change(content)
    Path(path).write_bytes(gzip.compress(json.dumps(content).encode()))


def test_changed_manifests_are_noticed(run, glyphs):
    def seed(content):
        content["seed"] = 1

    def label(content):
        content["tasks"]["target_labels"][0][0] ^= 1

    def sampler(content):
        content["sampler"] = "another"

    def loss(content):
        del content["images"]

    outcomes = {}
    for change in (seed, label, sampler, loss):
        run("tasks", "export", *_GLYPHS, "--tasks", "3", "--out", "t.gz")
        _rewrite("t.gz", change)
        outcomes[change.__name__] = run("tasks", "verify", "t.gz")
    assert outcomes["seed"] == (1, "t.gz: task 0 differs\n", "")
    assert outcomes["label"].code == 2 and "t.gz was changed" in outcomes["label"].err
    assert outcomes["sampler"].code == 2 and "another" in outcomes["sampler"].err
    assert outcomes["loss"].code == 2 and "not a complete task manifest" in outcomes["loss"].err


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b"[]", mtime=0), gzip.compress(b"{}", mtime=0)[:-4]],
)
def test_unreadable_manifests_are_refused_in_one_line(run, content):
    Path("t.gz").write_bytes(content)
    result = run("tasks", "verify", "t.gz")
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("cfsl: t.gz ") and result.err.count("\n") == 1


def test_a_manifest_of_an_own_split_is_verified_with_that_split(run, glyphs):
    names = glyphs.info.class_names
    Path("mine.json").write_text(
        json.dumps({"train": names[:100], "val": names[100:200], "test": names[200:]})
    )
    assert (
        run(
            "tasks", "export", *_GLYPHS, "--splits", "mine.json", "--nss", "30", "--tasks", "2"
        ).code
        == 0
    )
    result = run("tasks", "verify", "tasks.json.gz")
    assert result.code == 2 and "has no split file 'mine'" in result.err
    assert run("tasks", "verify", "tasks.json.gz", "--splits", "mine.json").code == 0
    assert run("tasks", "verify", "tasks.json.gz", "--splits", "like_omniglot").code != 0


def test_own_pictures_can_be_added_and_shown(run, pictures, empty_root):
    assert run("data", "add", "own", "--from", str(pictures), "--size", "24").code == 0
    result = run(
        "tasks",
        "show",
        "--data",
        "own",
        "--split",
        "all",
        "--nss",
        "2",
        "--n-way",
        "3",
        "--out",
        "t.png",
    )
    assert result.code == 0 and result.err == ""
    assert result.out.splitlines() == [
        "type B, 2 support sets of 3 classes x 1 image, new classes every set: 6 labels, "
        "30 targets",
        "wrote t.png",
    ]
    assert _width("t.png") > 500
    again = run("data", "add", "own", "--from", str(pictures), "--size", "20")
    assert again.code == 2 and "--replace" in again.err


def test_classes_that_are_never_drawn_are_mentioned(run, pictures, empty_root):
    (pictures / "class0" / "0.png").unlink()
    run("data", "add", "own", "--from", str(pictures), "--size", "24")
    result = run("tasks", "show", "--data", "own", "--split", "all", "--nss", "1")
    assert "1 of 8 classes of own/all have fewer than 6 images and are never drawn" in result.out


@pytest.mark.parametrize(
    "title", ["[bold]x[/bold]", "<script>alert(1)</script>", "[/x]", ":smile:", "a\x1b[2Jb"]
)
def test_names_are_printed_literally(run, pictures, empty_root, title):
    literal = title.replace("\x1b", r"\x1b")
    added = run("data", "add", title, "--from", str(pictures), "--as", "own", "--size", "8")
    assert added.code == 0 and f"title:            {literal}\n" in added.out
    listed = run("data", "list")
    assert f"  own               {literal}: 8 classes, 48 images, 8 x 8 RGB\n" in listed.out


def test_list_survives_a_damaged_data_set(run, pictures, empty_root):
    for name in ("good", "no-pixels", "no-info", "nonsense", "no-folder"):
        run("data", "add", name, "--from", str(pictures), "--size", "8")
    (empty_root / "no-pixels" / "1" / "pixels.npy").unlink()
    (empty_root / "no-info" / "1" / "dataset.json").write_text("{")
    (empty_root / "nonsense" / "1" / "dataset.json").write_text('{"format": 1}')
    shutil.rmtree(empty_root / "no-folder" / "1")
    result = run("data", "list")
    assert result.code == 0 and result.err == ""
    lines = {line.split()[0]: line for line in result.out.splitlines() if line.startswith("  ")}
    assert "8 classes, 48 images" in lines["good"]
    assert "omniglot" in lines
    listed = json.loads(run("data", "list", "--json").out)["data"]
    for name in ("no-pixels", "no-info", "nonsense", "no-folder"):
        assert "DAMAGED: " in lines[name]
        assert listed[name]["damaged"] and listed[name]["here"]
    assert listed["good"]["damaged"] is None
    damaged = run("data", "verify", "no-pixels")
    assert damaged.code == 2 and "pixels.npy is missing or damaged" in damaged.err


def test_verify_notices_a_changed_pixel_and_lost_names(run, pictures, empty_root):
    run("data", "add", "own", "--from", str(pictures), "--size", "8")
    assert run("data", "verify", "own").out.startswith("own is intact: 48 images, fingerprint ")
    names = empty_root / "own" / "1" / "images.txt"
    names.write_text(names.read_text().partition("\n")[2])
    assert "47 names for 48 images" in run("data", "verify", "own").err
    pixels = empty_root / "own" / "1" / "pixels.npy"
    content = bytearray(pixels.read_bytes())
    content[-1] ^= 1
    pixels.write_bytes(content)
    result = run("data", "verify", "own")
    assert result.code == 2 and "own is damaged: its pixels hash to" in result.err


def test_nothing_breaks_in_a_narrow_terminal(run, pictures, empty_root, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    name = "n" * 64
    assert run("data", "add", name, "--from", str(pictures), "--size", "8").code == 0
    assert f"  {name}  8 classes" in run("data", "list").out
    assert run("tasks", "show", "--help").code == 0


def test_info_says_how_long_tasks_can_be(run, glyphs):
    out = run("data", "info", "glyphs-400x20").out
    assert "split:            like_omniglot: train 296, val 52, test 52\n" in out
    lines = [line.split() for line in out.splitlines()[-4:]]
    assert lines[0] == ["A", "B,", "C", "D", "(CCI", "2)", "instance"]
    assert lines[3] == ["test", "15", "10", "20", "20"]


@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_who_leaves_early_gets_no_traceback(data_root, buffering):
    for arguments in (("data", "list"), ("data", "list", "--json"), ("--help",)):
        reader, writer = os.pipe()
        os.close(reader)
        done = _written_to(writer, *arguments, buffering=buffering)
        os.close(writer)
        assert done.returncode == 1 and done.stderr == ""


@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_disk_is_said_in_one_line(data_root, buffering):
    with Path("/dev/full").open("w") as full:
        done = _written_to(full, "data", "list", "--json", buffering=buffering)
    assert done.returncode == 2 and done.stderr == "cfsl: output: No space left on device\n"


def _written_to(stdout, *arguments: str, buffering: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cfsl", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": buffering},
        text=True,
        timeout=60,
        check=False,
    )


def test_any_name_can_be_printed_in_any_terminal():
    done = _process(
        "data", "info", "\u00e9\udcff\n", env=os.environ | {"PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 2 and done.stderr.startswith(
        r"cfsl: data set '\xe9\udcff\n' is not here"
    )


def test_progress_is_shown_on_stderr_if_that_is_a_terminal(pictures, empty_root):
    control, terminal = pty.openpty()
    arguments = ("data", "add", "own", "--from", str(pictures), "--size", "8", "--json")
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "cfsl", *arguments],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=environment,
        check=True,
    )
    os.close(terminal)
    shown = os.read(control, 1 << 16).decode()
    os.close(control)
    assert "packing own" in shown and "images" in shown
    assert json.loads(done.stdout)["images"] == 48


def test_a_learner_in_the_current_folder_is_evaluated_by_its_import_path(run, glyphs):
    Path("of_the_current_folder.py").write_text(
        "import torch\n"
        "class Mine:\n"
        "    def begin(self, meta, info): return {'info': info}\n"
        "    def observe(self, state, support): return state\n"
        "    def predict(self, state, images):\n"
        "        return torch.zeros(len(images), state['info'].labels)\n"
    )
    done = run("eval", "of_the_current_folder:Mine", *_GLYPHS, "--tasks", "3", "--json")
    assert done.code == 0, done.err
    card = json.loads(done.out)
    assert (
        card["learner"]["name"] == "of_the_current_folder:Mine"
        and card["metrics"]["atm"]["total"] == 0
    )
    assert card["tasks"]["count"] == 3 and card["metrics"]["accuracy"]["mean"] == pytest.approx(
        1 / 15
    )


def test_learners_that_need_weights_say_how_to_get_them(run, glyphs):
    result = run("eval", "protonet", "--data", "glyphs-400x20")
    assert result.code == 2 and "cfsl train protonet" in result.err
    assert (
        run("train", "chance").code == 2
        and "did you mean 'protonet'" in run("eval", "protonets").err
    )


_SMALL = ("--set", "net.widths=[4, 4]")
_TRAIN = (
    "train",
    "protonet",
    *_GLYPHS,
    "--type",
    "few-shot",
    "--n-way",
    "5",
    "--k-target",
    "1",
    *_SMALL,
)


def _events(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_train_prints_an_event_a_line_for_programs(run, glyphs):
    done = run(*_TRAIN, "--epochs", "2", "--updates", "12", "--out", "here", "--json")
    assert done.code == 0 and done.err == ""
    events = _events(done.out)
    updates = 6 * ["update"]
    assert [event["event"] for event in events] == [
        "start",
        *updates,
        "epoch",
        *updates,
        "epoch",
        "end",
    ]
    start, first, epoch, end = events[0], events[1], events[7], events[-1]
    assert start["resumed_at"] == 0 and start["folder"] == "here" and start["device"] == "cpu"
    assert start["learner"]["name"] == "protonet" and start["training"]["schedule"]["epochs"] == 2
    assert start["training"]["schedule"]["updates"] == 12 and start["training"]["seed"] == 0
    assert set(first) == {"event", "update", "loss", "rate", "tasks_per_second"}
    assert [event["update"] for event in events if event["event"] == "update"] == list(
        range(2, 25, 2)
    )
    assert {"epoch", "loss", "accuracy", "seconds", "update"} <= set(epoch) and epoch[
        "update"
    ] == 12
    best = max(
        (event for event in events if event["event"] == "epoch"),
        key=lambda event: event["accuracy"],
    )
    assert end == {
        "event": "end",
        "best_epoch": best["epoch"],
        "accuracy": best["accuracy"],
        "folder": "here",
    }
    again = _events(run(*_TRAIN, "--epochs", "2", "--updates", "12", "--out", "here", "--json").out)
    assert (
        [event["event"] for event in again] == ["start", "end"]
        and again[0]["resumed_at"] == 24
        and again[1] == end
    )


def test_train_prints_a_line_an_epoch_for_people_and_nothing_else(run, glyphs):
    done = run(*_TRAIN, "--epochs", "2", "--updates", "1", "--training-seed", "3")
    assert done.code == 0 and done.err == ""
    first, second, last = done.out.splitlines()
    assert first.startswith("epoch 1/2: loss ") and second.startswith("epoch 2/2: loss ")
    assert " %, " in first and last.endswith(
        f"weights are in {Path('runs') / 'protonet-glyphs-400x20-short'}"
    )
    other = run(*_TRAIN, "--epochs", "2", "--updates", "1", "--training-seed", "4")
    assert other.code == 2 and "training.seed is 3 there and 4 here" in other.err


def _in_terminal(*arguments: str, folder: Path, columns: int = 100) -> tuple[str, str]:
    """Run the command with stderr on a terminal; return the text on stdout and on the terminal."""
    control, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "cfsl", *arguments]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=terminal, env=environment, text=True
    ) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # which is how a terminal ends
            while chunk := os.read(control, 1 << 16):
                shown += chunk
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(control)
    assert process.returncode == 0, shown.decode()
    return printed, shown.decode()


def test_train_shows_live_progress_on_a_terminal_and_keeps_events_out_of_it(tmp_path, glyphs):
    # Long enough for a bar that is drawn ten times a second.
    out, shown = _in_terminal(
        *_TRAIN, "--epochs", "2", "--updates", "12", "--json", folder=tmp_path
    )
    assert [event["event"] for event in _events(out)].count("epoch") == 2
    assert "protonet" in shown and "updates" in shown and "tasks/s" in shown
    assert "loss " in shown and "val " in shown and '"event"' not in shown


def test_pretraining_counts_images(run, glyphs):
    small = (*_SMALL, "--set", "steps=1")
    setting = (*_GLYPHS, "--type", "few-shot", "--n-way", "5", "--k-target", "1")
    done = run(
        "train", "pretrain_tune", *setting, *small, "--epochs", "1", "--updates", "2", "--json"
    )
    assert done.code == 0, done.err
    assert all(
        event["images_per_second"] > 0 for event in _events(done.out) if event["event"] == "update"
    )


def test_train_logs_for_tensorboard_if_it_is_there(run, glyphs, monkeypatch):
    arguments = (
        *_TRAIN,
        "--epochs",
        "1",
        "--updates",
        "2",
        "--out",
        "here",
        "--log",
        "tensorboard",
    )
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch.utils.tensorboard", None)
        refused = run(*arguments)
    assert (
        refused.code == 2
        and "pip install cfsl[tensorboard]" in refused.err
        and not Path("here").exists()
    )
    assert len(refused.err.splitlines()) == 1
    assert run(*arguments).code == 0 and any(Path("here/tensorboard").iterdir())
    assert run(*_TRAIN, "--epochs", "1", "--updates", "2", "--out", "plain").code == 0
    assert not Path("plain/tensorboard").exists()
    assert run(*_TRAIN, "--log", "tensorbord").err.startswith(
        "cfsl: there is no log 'tensorbord'; did you mean"
    )


def test_train_refuses_a_device_that_is_not_there(run):
    refused = run(*_TRAIN, "--device", "tpu")
    assert refused.code == 2 and refused.err.startswith(
        "cfsl: device 'tpu' is not available here; available: cpu"
    )


def test_an_ensemble_is_reported_beside_the_single_best(run, glyphs):
    assert run(*_TRAIN, "--epochs", "3", "--updates", "2", "--out", "here").code == 0
    setting = (
        *_GLYPHS,
        "--type",
        "few-shot",
        "--n-way",
        "5",
        "--k-target",
        "1",
        "--tasks",
        "20",
        *_SMALL,
    )
    command = ("eval", "protonet", *setting, "--checkpoint", "here")
    alone = json.loads(run(*command, "--json").out)
    both = json.loads(run(*command, "--json", "--ensemble", "3", "--out", "card.json").out)
    together = both["ensemble"]
    assert (
        both["metrics"] == alone["metrics"]
        and both["macs"] == alone["macs"]
        and "ensemble" not in alone
    )
    assert (together["members"], together["average"], sorted(together["epochs"])) == (
        3,
        "logits",
        [0, 1, 2],
    )
    assert together["macs"] == {
        part: 3 * alone["macs"][part] for part in ("adaptation", "prediction")
    }
    assert together["metrics"]["atm"]["total"] == pytest.approx(
        3 * alone["metrics"]["atm"]["total"]
    )
    assert together["metrics"]["cross_entropy"] != alone["metrics"]["cross_entropy"]
    assert json.loads(Path("card.json").read_text())["ensemble"] == together
    one = json.loads(run(*command, "--json", "--ensemble", "1").out)["ensemble"]
    parts = ("adaptation", "prediction")
    assert one["metrics"] == alone["metrics"] and one["macs"] == {
        part: alone["macs"][part] for part in parts
    }
    averaged = run(*command, "--ensemble", "2", "--average", "probabilities")
    assert averaged.code == 0 and averaged.out.count("  accuracy  ") == 2
    assert "ensemble of 2: epochs " in averaged.out and "mean of probabilities" in averaged.out


def test_an_ensemble_that_cannot_be_is_refused_in_one_line(run, glyphs):
    assert run(*_TRAIN, "--epochs", "2", "--updates", "1", "--out", "here").code == 0
    command = ("eval", "protonet", *_GLYPHS, *_SMALL, "--tasks", "2")
    for arguments, complaint in (
        (
            ("--checkpoint", "here", "--ensemble", "3"),
            "here keeps 2 epochs (the best 5 of 2), not 3",
        ),
        (("--ensemble", "2"), "give its folder as --checkpoint"),
        (
            ("--checkpoint", "here/epoch-0000.safetensors", "--ensemble", "2"),
            "give its folder as --checkpoint",
        ),
        (("--checkpoint", "here", "--average", "logits"), "give its size with --ensemble"),
        (
            ("--checkpoint", "here", "--ensemble", "2", "--average", "logit"),
            "did you mean 'logits'?",
        ),
    ):
        refused = run(*command, *arguments)
        assert (
            refused.code == 2 and complaint in refused.err and len(refused.err.splitlines()) == 1
        ), refused.err


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, glyphs):
    """Train ProtoNets for one update."""
    folder = tmp_path_factory.mktemp("small") / "run"
    training = recipe_for("short", "protonet", TaskSpec.type_b(nss=2))
    schedule = training.schedule.replace(epochs=1, updates=1)
    train(
        find_learner("protonet"),
        training.replace(schedule=schedule, validation_tasks=2),
        glyphs,
        folder,
    )
    return str(folder)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["eval", "chance"], "chance has no weights"),
        (["eval", "sca", "--nss", "2"], "and sca needs it in shape"),
        (
            ["eval", "protonet", "--set", "net.widths=[8,8]"],
            "of shape (64, 1, 3, 3), and protonet needs it in shape",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(run, small_run, words, says):
    result = run(*words, *_GLYPHS, "--tasks", "1", "--checkpoint", small_run)
    assert result.code == 2 and says in result.err and result.err.count("\n") == 1


def test_weights_under_other_settings_are_used_and_said(run, small_run):
    quick = (
        "eval",
        "protonet",
        *_GLYPHS,
        "--nss",
        "2",
        "--tasks",
        "2",
        "--checkpoint",
        small_run,
        "--progressive",
    )
    same, other = run(*quick), run(*quick, "--set", "metric=cosine")
    assert "note:" not in same.out and "back transfer" in same.out
    assert "note: trained with metric=euclidean, evaluated with metric=cosine" in other.out


def test_a_setting_that_is_stated_only_where_it_is_unusual_is_compared_with_the_usual_one(
    run, small_run
):
    last = run(
        "eval",
        "protonet",
        *_GLYPHS,
        "--tasks",
        "2",
        "--checkpoint",
        small_run,
        "--set",
        "prototype=last",
    )
    assert "note: trained with prototype=mean, evaluated with prototype=last" in last.out


def test_weights_from_before_there_was_a_setting_are_said_to_be(run, small_run, tmp_path):
    tensors, notes = read_checkpoint(next(Path(small_run).glob("epoch-*")))
    del notes["identity"]["learner"]["metric"]
    write_checkpoint(tmp_path / "older.safetensors", tensors, notes)
    older = run(
        "eval",
        "protonet",
        *_GLYPHS,
        "--nss",
        "2",
        "--tasks",
        "2",
        "--checkpoint",
        "older.safetensors",
    )
    assert older.code == 0 and "note: trained before there was metric" in older.out


@pytest.mark.parametrize(
    "words", [("--seed", "7"), ("--split", "all"), ("--sampler", "as_released_2020_04")]
)
def test_train_refuses_options_that_it_would_not_heed(run, words):
    result = run("train", "protonet", *_GLYPHS, *words)
    assert result.code == 2 and f"{words[0]} is for evaluation" in result.err


def test_train_takes_a_precision_and_says_where_it_takes_longer(run, monkeypatch):
    short = (*_TRAIN, "--epochs", "1", "--updates", "1")
    start = _events(run(*short, "--precision", "bfloat16", "--json").out)[0]
    assert start["training"]["schedule"]["precision"] == "bfloat16"
    monkeypatch.setattr("cfsl.harness.devices.has_bfloat16", lambda device: False)
    warned = (
        "this processor has no instructions for bfloat16: --precision float32 takes less time here"
    )
    assert warned in run(*short, "--precision", "bfloat16").out
    plain = run(*short, "--out", "other")
    assert plain.code == 0 and warned not in plain.out
    refused = run(*short, "--precision", "float16")
    assert refused.code == 2 and "bfloat16" in refused.err and refused.err.count("\n") == 1


def test_a_folder_without_a_run_is_said_to_be_none(run, tmp_path):
    result = run("eval", "protonet", *_GLYPHS, "--checkpoint", str(tmp_path))
    assert result.code == 2 and "holds no training run" in result.err
