"""Learners that cheat gain nothing in a sandbox, and leave nothing behind."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
    pytest.skip("the sandbox needs Linux on x86-64", allow_module_level=True)

import sandboxed_learners as learners
from test_law import INFO, LABELS, supports, targets

from cfsl.errors import LearnerError
from cfsl.harness.sandbox.connection import the_server
from cfsl.harness.sandbox.lock import Limits
from cfsl.harness.sandbox.sandboxed_run import SandboxedRun

CHANCE = 1 / LABELS
SHARED = Path("/dev/shm/cfsl-cheat")
WEIGHTS = {"weights": torch.zeros(5000, dtype=torch.uint8)}


@pytest.fixture
def folder():
    """A folder with a file that cheats may want to change."""
    shutil.rmtree(learners.FOLDER, ignore_errors=True)
    SHARED.unlink(missing_ok=True)
    learners.FOLDER.mkdir()
    (learners.FOLDER / "victim").write_bytes(b"victim")
    yield learners.FOLDER
    shutil.rmtree(learners.FOLDER)
    SHARED.unlink(missing_ok=True)


@pytest.mark.parametrize("name", sorted(learners.CHEATS))
def test_a_cheat_is_at_chance_or_refused_and_leaves_nothing_behind(folder, name):
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    run = SandboxedRun(
        learners.CHEATS[name](), WEIGHTS, thorough_tasks=0, limits=Limits(seconds=20)
    )
    try:
        with torch.no_grad():
            outcome = run.task(replace(INFO), supports(), targets)
    except LearnerError as refusal:
        assert "\n" not in str(refusal)
    else:
        answers = outcome.logits.argmax(dim=1)
        assert float((answers == torch.arange(LABELS)).float().mean()) <= CHANCE + 1e-6

    assert [path.name for path in folder.iterdir()] == ["victim"]
    assert (folder / "victim").read_bytes() == b"victim"
    assert not SHARED.exists()
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority
    server = the_server().pid
    assert not Path(f"/proc/{server}/task/{server}/children").read_text().split()


WORK_ELSEWHERE = (
    *("OnModule", "OnTorch", "OnClass", "OnTaskInfo", "InNativeMemory", "InCache", "InGarbage"),
    *("InPatchedHarness", "InWeights", "InSharedMapping", "InMemoryFile", "InPipe"),
    *("InFile", "InFileNatively", "InNames", "InDatabase", "InQueueFile", "InFileTimes"),
    *("InSharedMemoryFolder", "InDescriptorFlags", "InLock", "InSocket", "StartsThread"),
    *("Truncates", "Deletes", "RunsProgram", "SlowsParent"),
    *("ByClock", "ByMonotonicClock", "ByCoarseClock", "ByNativeTime", "ByTimeOfDay", "ByUsage"),
    *("ByUptime", "ByFileTime", "ByTimer", "ByWaiting", "ByProcessorCounter", "BySystemCall"),
    "ByProcessNumber",
)


PROGRAM = """
import sys, torch
import sandboxed_learners as learners, test_law as law
from cfsl.harness.run import TrustingRun

for name in sys.argv[1:]:
    weights = {"weights": torch.zeros(5000, dtype=torch.uint8)}
    run = TrustingRun(learners.CHEATS[name](), weights)
    (learners.FOLDER / "victim").write_bytes(b"victim")
    outcome = run.task(law.INFO, law.supports(), law.targets)
    right = float((outcome.logits.argmax(dim=1) == torch.arange(law.LABELS)).float().mean())
    print(name, right, flush=True)
    for path in learners.FOLDER.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
"""


def test_the_same_cheats_work_without_a_sandbox(folder):
    """They run in a process of their own, which some of them leave in disorder."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *WORK_ELSEWHERE],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"{name} 1.0" for name in WORK_ELSEWHERE]
