"""Sandboxed runs: the same answers, in processes that can reach nothing."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
    pytest.skip("the sandbox needs Linux on x86-64", allow_module_level=True)

import sandboxed_learners as learners
from test_law import INFO, LABELS, supports, targets

from cfsl.errors import CfslError, DataFlowError, LearnerError
from cfsl.harness.run import StrictRun
from cfsl.harness.sandbox import child, lock
from cfsl.harness.sandbox.connection import ForkServer, the_server
from cfsl.harness.sandbox.lock import Limits
from cfsl.harness.sandbox.sandboxed_run import SandboxedRun, introduced
from cfsl.learners.base import Support

CHANCE = 1 / LABELS


def task(run, **options):
    with torch.no_grad():
        return run.task(replace(INFO), supports(), targets, **options)


def sandboxed(learner, meta=None, **options):
    return task(SandboxedRun(learner, meta or {}, **options))


def right(outcome) -> float:
    return float((outcome.logits.argmax(dim=1) == torch.arange(LABELS)).float().mean())


# The same answers


@pytest.mark.parametrize("name", ["protonet", "multiproto", "init_tune", "pretrain_tune_replay"])
def test_sandboxed_results_equal_strict_results_to_the_bit(name):
    from cfsl.learners.registry import find_learner

    learner, info = find_learner(name), replace(INFO, image_shape=(1, 28, 28))
    meta = learner.init(info.image_shape, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    shown = [
        Support(torch.rand(5, 1, 28, 28, generator=generator), s * 5 + torch.arange(5))
        for s in range(3)
    ]
    asked = torch.rand(6, 1, 28, 28, generator=generator).to(memory_format=torch.channels_last)

    def copies():
        return [Support(one.images.clone(), one.labels.clone()) for one in shown]

    sandboxed_run = SandboxedRun(learner, meta)
    with torch.no_grad():
        sandboxed_run.compare_structures_with(info, copies())
        strict, apart = (
            run.task(info, copies(), lambda: asked, progressive=True)
            for run in (StrictRun(learner, meta), sandboxed_run)
        )
    assert torch.equal(strict.logits, apart.logits)
    assert all(map(torch.equal, strict.progressive, apart.progressive))
    assert len(apart.progressive) == 3
    assert strict.state_bytes == apart.state_bytes
    assert strict.bookkeeping_bytes == apart.bookkeeping_bytes


def test_the_command_line_says_sandbox_on_the_card(data_root):
    words = ["random_embedding", "--tasks", "2", "--nss", "2", "--n-way", "2", "--k-target", "2"]
    plain, locked = evaluated(*words), evaluated(*words, "--isolate", "sandbox")
    assert (plain["isolation"], locked["isolation"]) == ("none", "sandbox")
    for same in ("metrics", "macs", "learner", "transductive", "breaks_law"):
        assert plain[same] == locked[same]
    assert invoked(*words, "--isolate", "magic").exit_code == 2


def invoked(*words: str):
    from typer.testing import CliRunner

    from cfsl.cli import app

    return CliRunner().invoke(app, ["eval", "--data", "glyphs-60x12", "--json", *words])


def evaluated(*words: str) -> dict[str, object]:
    result = invoked(*words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


OWN_LEARNER = """
import os
from pathlib import Path

import torch
from own_helper import LARGE

with open("imported_by", "a") as file:
    file.write(str(os.getpid()))
"""
QUIET_LEARNER = """
import torch
from own_helper import LARGE


class Own:
    @property
    def transductive(self):
        return False

    def init(self, image_shape, generator):
        return {"net": {"w": torch.rand(2, generator=generator)}}

    def begin(self, meta, info):
        return {"n": info.labels, "w": meta["net"]["w"]}

    def observe(self, state, support):
        return state

    def predict(self, state, images):
        return torch.full((len(images), state["n"]), LARGE) + state["w"].sum()
"""


def test_a_learner_of_ones_own_is_never_imported_by_the_process_that_judges(
    data_root, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_helper.py").write_text("LARGE = 7.0\n")
    (tmp_path / "own_learner.py").write_text(QUIET_LEARNER)
    (tmp_path / "own_cheat.py").write_text(OWN_LEARNER)
    size = ["--tasks", "2", "--nss", "2", "--n-way", "2", "--k-target", "2", "--isolate", "sandbox"]

    card = evaluated("own_learner:Own", *size)
    assert card["learner"]["class"] == "Own" and card["isolation"] == "sandbox"
    assert card["metrics"]["atm"]["total"] > 0
    refused = invoked("own_cheat:Own", *size)
    assert isinstance(refused.exception, LearnerError)
    assert "own_learner" not in sys.modules and "own_cheat" not in sys.modules
    assert not (tmp_path / "imported_by").exists()


@pytest.mark.parametrize("enabled", [False, True])
def test_gradients_are_on_in_a_child_if_they_are_here(enabled):
    run = SandboxedRun(learners.TellsGradMode(), {}, thorough_tasks=0)
    with torch.set_grad_enabled(enabled):
        assert run.task(INFO, [], targets).logits[0, 0] == float(enabled)


@pytest.mark.parametrize(
    "learner", [learners.Honest(), learners.UsesHelper(), learners.UsesOptimizer()]
)
def test_honest_learners_of_ones_own_work(learner):
    outcome = sandboxed(learner)
    assert right(outcome) == 1.0


def test_answers_are_checked_here():
    with pytest.raises(DataFlowError, match="Declare transductive = True"):
        sandboxed(learners.Jointly())
    sandboxed(learners.Transductive())


def test_weights_that_a_child_writes_to_are_its_own_copy():
    weights = {"weights": torch.zeros(5000, dtype=torch.uint8)}
    assert right(sandboxed(learners.InWeights(), weights)) == pytest.approx(CHANCE)
    assert not weights["weights"].any()


def test_a_child_has_two_descriptors():
    assert sandboxed(learners.TellsDescriptors(), thorough_tasks=0).logits[0, 0] == 1


def test_the_fork_server_shares_no_memory_and_has_one_thread():
    sandboxed(learners.Honest())
    process = Path(f"/proc/{the_server().pid}")
    modes = [line.split()[1] for line in (process / "maps").read_text().splitlines()]
    assert not [mode for mode in modes if "w" in mode and "s" in mode]
    assert len(list((process / "task").iterdir())) == 1


# Structure is counted where it depends on what was seen


STRUCTURES = ("names", "order", "nothing", "shapes", "dtypes", "kinds", "references", "nesting")


@pytest.mark.parametrize("way", STRUCTURES)
def test_what_a_structure_says_is_counted(way):
    weights = {"weights": torch.zeros(3), "other": torch.zeros(3)}
    run = SandboxedRun(learners.InStructure(way), weights, thorough_tasks=0)
    with torch.no_grad():
        run.compare_structures_with(INFO, supports(0))
        first = run.task(INFO, supports(0), targets)
        sizes = [run.task(INFO, supports(seed), targets).state_bytes for seed in range(1, 4)]
    assert first.state_bytes == [0] * 4
    assert any(max(size) > 20 for size in sizes)


def test_a_state_is_counted_here_and_not_by_the_child():
    run = SandboxedRun(learners.Honest(), {})
    with torch.no_grad():
        run.compare_structures_with(INFO, supports(0))
        sizes = run.task(INFO, supports(1), targets).state_bytes
    assert sizes == [n * (64 * 4 + 8) for n in (0, 5, 10, 15)]


# What goes wrong


NO_ANSWER = r"{}\.observe gave no answer: its process {}"
UNREADABLE = r"the answer of {}\.observe cannot be read: .*"


@pytest.mark.parametrize(
    ("learner", "says"),
    [
        (learners.Leaves(), NO_ANSWER.format("Leaves", "ended with exit code 7")),
        (learners.Segfaults(), NO_ANSWER.format("Segfaults", "was ended by signal 11 .*")),
        (learners.Exits(), r"Exits\.observe raised SystemExit: 3"),
        (learners.Raises(), r"Raises\.observe raised ValueError: two lines\?\[31m"),
        (learners.RaisesBadly(), r"RaisesBadly\.observe raised UnspeakableError: "),
        (
            learners.RaisesAtLength(),
            r"RaisesAtLength\.observe .*: x+\.\.\.|.* sent an answer of .*",
        ),
        (learners.Refuses(), r"there is no 'stats'"),
        (
            learners.BadLuck(),
            r"BadLuck cannot be made again in a process of its own: ValueError: invalid .*",
        ),
        (learners.ForgesNothing(), UNREADABLE.format("ForgesNothing")),
        (learners.ForgesGarbage(), UNREADABLE.format("ForgesGarbage")),
        (learners.ForgesReference(), UNREADABLE.format("ForgesReference")),
        (learners.ForgesKind(), NO_ANSWER.format("ForgesKind", "sent something .*")),
        (learners.ForgesLength(), NO_ANSWER.format("ForgesLength", "sent an answer of .*")),
        (learners.ForgesHalf(), NO_ANSWER.format("ForgesHalf", "ended with exit code 0")),
        (learners.ForgesProblem(), UNREADABLE.format("ForgesProblem")),
        (learners.ForgesDeepProblem(), NO_ANSWER.format("ForgesDeepProblem", ".*")),
        (learners.ForgesShape(), r"ForgesShape\.predict gave a list, not a tensor"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_child_that_fails_is_one_line(learner, says):
    with pytest.raises(LearnerError) as stopped:
        sandboxed(learner)
    assert re.fullmatch(says, str(stopped.value)), stopped.value
    assert _children(the_server().pid) == []


def test_an_error_tells_the_learners_own_frames_and_no_others():
    with pytest.raises(LearnerError) as stopped:
        sandboxed(learners.Raises())
    (note,) = stopped.value.__notes__
    assert re.fullmatch(r"  .*sandboxed_learners.py, line \d+, in observe", note)


@pytest.mark.parametrize(
    "learner",
    [learners.Endless(), learners.Bomb(), learners.ForkBomb(), learners.Overflows()],
    ids=lambda given: type(given).__name__,
)
def test_what_never_ends_is_ended(learner):
    limits = Limits(seconds=3, memory=2**29)
    with pytest.raises(LearnerError):
        sandboxed(learner, limits=limits)
    assert _children(the_server().pid) == []


def test_what_a_learner_prints_goes_nowhere(capfd):
    assert right(sandboxed(learners.Prints())) == 1.0
    assert capfd.readouterr() == ("", "")


RETURNED = [name for name in vars(learners.Returns) if not name.startswith("_")]
RETURNED = sorted(set(RETURNED) - {"begin", "observe", "predict", "what"})


@pytest.mark.parametrize("what", RETURNED)
def test_what_may_not_cross_is_refused_in_one_line(what):
    with pytest.raises(DataFlowError, match=r"^state\['x'\]\[0\]") as stopped:
        sandboxed(learners.Returns(what))
    assert "\n" not in str(stopped.value) and len(str(stopped.value)) < 300


def test_a_learner_that_cannot_be_pickled_is_told_so():
    class Local(learners.Honest):
        pass

    with pytest.raises(LearnerError, match=r"^Local cannot be sent to another process: .*module"):
        SandboxedRun(Local(), {})


def test_what_cannot_be_sandboxed_is_refused_in_one_line(monkeypatch):
    with pytest.raises(LearnerError, match="on the CPU; the learned weights 'a' are not"):
        SandboxedRun(learners.Honest(), {"a": torch.zeros(1, device="meta")})
    with pytest.raises(LearnerError, match="on the CPU, not on cuda"):
        SandboxedRun(learners.Honest(), {}).task(replace(INFO, device="cuda"), [], targets)

    monkeypatch.setattr(child, "_in_child", True)
    with pytest.raises(LearnerError, match="if __name__ == '__main__':"):
        ForkServer()


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("sys.platform", "darwin", "it needs Linux"),
        ("sys.platform", "win32", "it needs Linux"),
        ("platform.machine", lambda: "aarch64", "x86_64, and this is aarch64"),
        ("_libseccomp", lambda: (_ for _ in ()).throw(OSError()), "libseccomp.so.2"),
    ],
)
def test_a_system_without_what_it_needs_is_refused(monkeypatch, place, value, says):
    monkeypatch.setattr(f"cfsl.harness.sandbox.lock.{place}", value)
    with pytest.raises(CfslError, match=f"the sandbox cannot be used here: .*{says}"):
        lock.require_support()


def _children(pid: int) -> list[int]:
    """Return the children of a process, dead ones that nobody has waited for included."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(number) for number in path.read_text().split()] if path.exists() else []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_fork_server_that_was_killed_is_one_line_and_the_next_run_starts_another():
    run = SandboxedRun(learners.Honest(), {})
    assert right(task(run)) == 1.0
    pid = the_server().pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LearnerError, match="the process that starts the others was ended by sig"):
        task(run)
    assert pid not in _children(os.getpid())
    assert right(task(run)) == 1.0


SCRIPT = """
import time

import torch
from cfsl.harness.sandbox.connection import the_server
from cfsl.harness.sandbox.sandboxed_run import SandboxedRun
from cfsl.learners.base import TaskInfo


class Stays:
    def begin(self, meta, info):
        return {}

    def observe(self, state, support):
        return state

    def predict(self, state, images):
        while len(images) == 1:
            pass
        return torch.zeros(len(images), 2)


if __name__ == "__main__":
    info = TaskInfo(
        image_shape=(1, 2, 2), labels=2, nss=1, n_way=2, k_shot=1, cci=1, overwrite=False, seed=0
    )
    run = SandboxedRun(Stays(), {}, thorough_tasks=0)
    run.task(info, [], lambda: torch.zeros(3, 1, 2, 2))
    print(the_server().pid, flush=True)
    run.task(info, [], lambda: torch.zeros(1, 1, 2, 2))
"""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_nothing_is_left_when_a_script_with_its_own_learner_is_stopped(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, str(script)], **pipes, start_new_session=True
    ) as process:
        try:
            server = int(process.stdout.readline())
            deadline = time.monotonic() + 20
            while not _children(server) and time.monotonic() < deadline:
                time.sleep(0.1)
            (worker,) = _children(server)
            assert os.getsid(server) == server, "Ctrl-C must not reach it"
            os.killpg(process.pid, number)
            process.communicate(timeout=20)
        finally:
            process.kill()

    deadline = time.monotonic() + 10
    while (_lives(server) or _lives(worker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(server) and not _lives(worker)
    assert process.returncode == -number


def test_sources_without_end_are_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "endless_learner.py").write_bytes(b"#" * 2**25)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LearnerError, match=r"cannot be sandboxed: the sources .* more than 16 MB"):
        introduced("endless_learner:Own", {})


UNWRITABLE = """
class Own:
    begin = observe = predict = len

    def model_dump(self, mode):
        return {"x": float("nan")}
"""


@pytest.mark.parametrize("text", [UNWRITABLE, UNWRITABLE.replace('float("nan")', r'"\ud800"')])
def test_what_cannot_stand_on_a_card_is_refused(tmp_path, monkeypatch, text):
    (tmp_path / "own_card.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LearnerError, match="it does not describe a learner"):
        introduced("own_card:Own", {})
