"""Freed memory stays with the process during computations, and goes back to the system after."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cfsl
from cfsl.harness import freed_memory
from cfsl.harness.freed_memory import freed_memory_kept
from cfsl.learners.protonet import ProtoNet
from cfsl.nets import conv4
from cfsl.training.loop import train
from cfsl.training.recipes import recipe_for
from cfsl.training.run_folder import best_weights

MEGABYTES = 40
NUMBERS = MEGABYTES * 2**18
SMALL = ProtoNet(net=conv4(4, "conv-act-norm"))
needs_glibc = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")),
    reason="the C library is another one",
)


FAULTS = f"""
import resource
import torch
from cfsl.harness.freed_memory import freed_memory_kept

def faults(times=5, settling=30):
    # Memory is aligned: the first maps do not fit into the places of others.
    for _ in range(settling):
        torch.ones({NUMBERS})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones({NUMBERS})
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

outside = faults()
"""


def printed(script: str) -> list[float]:
    """Run a script in a new process, which has kept no memory, and return the numbers it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return [float(number) for number in done.stdout.split()]


@needs_glibc
def test_a_map_takes_the_place_of_the_one_before_it() -> None:
    outside, inside = printed(f"{FAULTS}\nwith freed_memory_kept():\n    print(outside, faults())")
    assert inside * 10 < outside


@needs_glibc
def test_a_block_within_another_does_not_end_it() -> None:
    outside, inside = printed(f"""{FAULTS}
with freed_memory_kept():
    with freed_memory_kept():
        pass
    print(outside, faults())
""")
    assert inside * 10 < outside


@needs_glibc
def test_memory_goes_back_to_the_system_at_the_end() -> None:
    (given_back,) = printed(f"""
import torch
from cfsl.harness.freed_memory import freed_memory_kept

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

with freed_memory_kept():
    maps = [torch.ones({NUMBERS}) for _ in range(4)]
    small = torch.ones(1000)
    del maps
    kept = resident()
print(kept - resident())
""")
    assert given_back > 3 * MEGABYTES


def test_it_is_kept_in_training_and_in_evaluation_and_no_longer(
    tmp_path: Path, glyphs: cfsl.Dataset
) -> None:
    users: list[int] = []

    def count_users(_: object) -> None:
        users.append(freed_memory._USERS._count)

    task = cfsl.TaskSpec.type_b(nss=2)
    recipe = recipe_for("short", "protonet", task)
    schedule = recipe.schedule.replace(epochs=1, updates=2, warmup=1)
    training = recipe.replace(schedule=schedule, validation_tasks=1)
    train(SMALL, training, glyphs, tmp_path / "run", count_users)
    assert users
    assert set(users) == {1}

    users.clear()
    weights = best_weights(tmp_path / "run")
    tasks = cfsl.Tasks(glyphs, task, numbers=range(2))
    cfsl.evaluate(SMALL, tasks, weights, progress=count_users)
    assert set(users) == {1}
    assert freed_memory._USERS._count == 0


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    def refuse(name: None) -> Callable[[], None]:
        raise AssertionError("asked for a library")

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with freed_memory_kept():
        pass


def test_a_c_library_without_such_settings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with freed_memory_kept():
        pass
