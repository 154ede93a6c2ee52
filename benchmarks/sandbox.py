"""What the sandbox costs: the same tasks checked and sandboxed, in turns, in one run.

    python benchmarks/sandbox.py [--data glyphs] [--tasks 20] [--rounds 5]

It prints medians over the rounds: wall time and processor time a call of the learner (`begin`, one
`observe` a support set, `predict`), what the sandbox adds, and what 600 tasks then take. On a
machine that does other things, too, only the processor time says something.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from cfsl import TaskSpec, load
from cfsl.data.tasks import Tasks
from cfsl.harness.evaluate import Conditions, evaluate_under
from cfsl.harness.sandbox.connection import the_server
from cfsl.learners.base import Learner, Meta, first_weights
from cfsl.learners.registry import find_learner

LEARNERS = ("pixel_nn", "protonet")
SETS = 3
CALLS = SETS + 2
LEVELS = {"checked": Conditions(table=False), "sandboxed": Conditions(table=False, isolate=True)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--learners", nargs="+", default=LEARNERS)
    options = parser.parse_args()

    tasks = Tasks(load(options.data), TaskSpec.type_b(nss=SETS), numbers=range(options.tasks))
    print(f"{'':12}{'level':12}{'wall ms':>10}{'cpu ms':>10}{'600 tasks, cpu s':>20}")
    for name in options.learners:
        learner = find_learner(name)
        info = tasks.data.info.recipe
        shape = info.channels, info.height, info.width
        meta = first_weights(learner, shape, tasks.spec, torch.Generator().manual_seed(0))
        compare(name, learner, tasks, meta, options.rounds)


def compare(name: str, learner: Learner, tasks: Tasks, meta: Meta, rounds: int) -> None:
    """Time both levels in turns, and print a line for each.

    What a run does once, such as sending the weights, is no cost of a call: a run of one task is
    taken off. There is no table of embeddings.
    """
    found: dict[str, list[tuple[float, float]]] = {level: [] for level in LEVELS}
    the_server()
    for _ in range(rounds):
        for level, conditions in LEVELS.items():
            one = timed(lambda: evaluate_under(conditions, learner, tasks[:1], meta))  # noqa: B023
            all_of_them = timed(lambda: evaluate_under(conditions, learner, tasks, meta))  # noqa: B023
            calls = (len(tasks) - 1) * CALLS
            found[level].append(
                ((all_of_them[0] - one[0]) / calls, (all_of_them[1] - one[1]) / calls)
            )

    medians = {
        level: [1e3 * statistics.median(column) for column in zip(*times, strict=True)]
        for level, times in found.items()
    }
    for level, (wall, processor) in medians.items():
        total = 600 * CALLS * processor / 1e3
        print(f"{name:12}{level:12}{wall:10.2f}{processor:10.2f}{total:20.1f}")
    added = [b - a for a, b in zip(medians["checked"], medians["sandboxed"], strict=True)]
    print(f"{name:12}{'added':12}{added[0]:10.2f}{added[1]:10.2f}")


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return the wall time and the processor time of all processes that take part, in seconds."""
    wall, processor = time.perf_counter(), processor_seconds()
    run()
    return time.perf_counter() - wall, processor_seconds() - processor


def processor_seconds() -> float:
    """Return the processor time of this process, of the fork server and of its children."""
    fields = Path(f"/proc/{the_server().pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
