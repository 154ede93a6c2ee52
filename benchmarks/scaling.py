"""Measure how a bench scales with workers, on this machine and in a simulation.

    python benchmarks/scaling.py           (several minutes; needs Ray)
    python benchmarks/scaling.py paper     (only the simulation, with the driver's cost of before)

1. The same cells are run by 'processes' and by 'ray', with one worker and with two, in turns, and
   medians are compared. All workers have started, and done a step of each kind, before the clock
   starts.
2. Steps without work are sent through Ray workers: the time that is left is the cost of the machine
   that runs the bench.
3. Table 1 is carried out by the real schedule with workers that only wait, on a simulated clock,
   and each step costs the bench the time of 2.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.estimate import Times
from cfsl.engine.processes import ProcessWorkers
from cfsl.engine.ray.cluster import RayWorkers
from cfsl.engine.schedule import Event, Finished, StepWorkers, carry_out
from cfsl.engine.steps import PartialResultStep, Step, steps_of
from cfsl.presets.cells import Request, cells_of, runs_of
from cfsl.runs.run_spec import RunSpec

ROUNDS, EMPTY_STEPS = 3, 400
PIECE = 580_000
"""The bytes of the results of 100 tasks of type B with 3 support sets."""
WORKERS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
DRIVER = 0.005
"""Seconds that a step costs the bench, for the simulation alone."""
Hire = Callable[[BenchFolder, int], StepWorkers]
ENGINES: dict[str, Hire] = {
    "processes": ProcessWorkers,
    "ray": lambda bench_folder, count: RayWorkers(bench_folder, count, None),
}


def nobody(event: Event) -> None:
    """Watch nothing."""


# --- measured on this machine


def small_cells(seed: int) -> list[RunSpec]:
    """Return cells of a learner that tunes a network on every task, in eight pieces."""
    request = Request("smoke", "smoke", learners=("init_tune",), columns=("A3", "B3"), tasks=20)
    return [run.replace(task_seed=seed, piece=5) for run in runs_of(cells_of(request))]


@contextlib.contextmanager
def hired(hire: Hire, bench_folder: BenchFolder, count: int) -> Iterator[StepWorkers]:
    """Give workers that have imported everything."""
    with contextlib.closing(hire(bench_folder, count)) as workers:
        carry_out(
            steps_of(run.replace(piece=1) for run in small_warm_up(count)),
            workers,
            bench_folder,
            nobody,
        )
        yield workers


def small_warm_up(count: int) -> list[RunSpec]:
    """Return a cell with a piece for every worker, and then some."""
    request = Request("smoke", "smoke", learners=("pixel_nn",), columns=("A3",), tasks=4 * count)
    return runs_of(cells_of(request))


def seconds_of(hire: Hire, count: int, round_number: int) -> float:
    """Return how long some workers take for the cells."""
    with (
        tempfile.TemporaryDirectory() as folder,
        hired(hire, BenchFolder(Path(folder)), count) as workers,
    ):
        start = time.perf_counter()
        ending = carry_out(
            steps_of(small_cells(round_number + 1)), workers, BenchFolder(Path(folder)), nobody
        )
        assert not ending.failed
        return time.perf_counter() - start


def compare_engines() -> None:
    """Print how long each engine takes."""
    contenders = [(name, count) for count in (1, 2) for name in ENGINES]
    seconds: dict[tuple[str, int], list[float]] = {contender: [] for contender in contenders}
    for round_number in range(ROUNDS):
        for name, count in contenders:
            seconds[name, count].append(seconds_of(ENGINES[name], count, round_number))

    medians = {contender: statistics.median(values) for contender, values in seconds.items()}
    load = os.getloadavg()[0]
    print(f"init_tune on A3 and B3, 8 pieces of 5 tasks; medians of {ROUNDS}, load {load:.1f}")
    for name, count in contenders:
        values = ", ".join(f"{value:.1f}" for value in seconds[name, count])
        ratio = medians["processes", count] / medians[name, count]
        gain = medians[name, 1] / medians[name, count]
        ratios = f"{gain:.2f} x one worker; {ratio:.2f} x as fast as processes"
        print(f"{name:10} {count} workers {medians[name, count]:6.1f} s ({values}); {ratios}")


# --- the cost of the machine that runs the bench


def no_work(versions: Any, order: bytes, files: Any, data: Any, mailbox: Any) -> Any:
    """Return results of the usual size at once."""
    import pickle

    step = pickle.loads(order).step
    return "left", {BenchFolder(Path()).partial_result(step).as_posix(): np.zeros(PIECE, np.uint8)}


def driver_cost() -> float:
    """Print and return the processor seconds that the bench itself spends a step."""
    run = small_warm_up(1)[0].replace(tasks=EMPTY_STEPS, piece=1)
    steps: list[Step] = [PartialResultStep(run, start) for start in range(EMPTY_STEPS)]

    with (
        tempfile.TemporaryDirectory() as folder,
        hired(ENGINES["ray"], BenchFolder(Path(folder)), 2) as workers,
    ):
        workers._do = workers._ray.remote(num_cpus=1, max_retries=0)(no_work)  # type: ignore[attr-defined]
        wall, used = time.perf_counter(), time.process_time()
        carry_out(steps, workers, BenchFolder(Path(folder)), nobody)
        wall, used = time.perf_counter() - wall, time.process_time() - used

    used, wall = used / EMPTY_STEPS, wall / EMPTY_STEPS
    print(f"{EMPTY_STEPS} steps without work, each with {PIECE / 1000:.0f} kB, with 2 workers:")
    print(
        f"{1000 * used:.1f} ms of the bench's processor a step, {1000 * wall:.1f} ms of the clock"
    )
    return used


# --- simulated


class Waiting:
    """Workers that only wait, on a simulated clock, for a bench that spends time on every step."""

    def __init__(self, count: int, seconds: dict[str, float], driver: float) -> None:
        """Start the clock at zero."""
        self._count, self._seconds, self._driver = count, seconds, driver
        self._out: list[tuple[float, int, Step]] = []
        self.clock, self._given = 0.0, 0

    @property
    def free(self) -> int:
        """The number of workers that have nothing to do."""
        return self._count - len(self._out)

    def give(self, step: Step) -> None:
        """Send a step, which costs the bench half of its time."""
        self.clock += self._driver / 2
        self._given += 1
        heapq.heappush(self._out, (self.clock + self._seconds[step.name], self._given, step))

    def next_event(self, timeout: float) -> Event:
        """Go to the end of a step, which costs the bench the other half."""
        end, _, step = heapq.heappop(self._out)
        self.clock = max(self.clock, end) + self._driver / 2
        return Finished(step)

    def close(self) -> None:
        """There is nothing to stop."""


def durations(steps: Sequence[Step], bench_folder: BenchFolder) -> tuple[dict[str, float], str]:
    """Return how long steps take, and the source of these times."""
    times = Times.of(bench_folder)
    return {step.name: times.seconds(step) for step in steps}, times.source


def longest_chain(steps: Sequence[Step], seconds: dict[str, float]) -> float:
    """Return the time that no number of workers can beat."""
    ends: dict[str, float] = {}
    for step in steps:
        ends[step.name] = seconds[step.name] + max(
            (ends.get(need, 0.0) for need in step.needs), default=0.0
        )
    return max(ends.values())


def simulate(profile: str, driver: float) -> None:
    """Print how long Table 1 takes on so many workers, and what limits it."""
    steps = steps_of(runs_of(cells_of(Request("table1", profile))))
    with tempfile.TemporaryDirectory() as folder:
        bench_folder = BenchFolder(Path(folder))
        seconds, source = durations(steps, bench_folder)
        work, chain = sum(seconds.values()), longest_chain(steps, seconds)

        hours = f"{work / 3600:.1f} h of work, longest chain {chain / 3600:.2f} h"
        print(f"\ntable1, {profile}: {len(steps)} steps, {hours}")
        print(f"times of steps: {source}; {1000 * driver:.1f} ms of the bench a step")
        print("workers    hours  efficiency  limited by             schedule")
        for count in WORKERS:
            workers, start = Waiting(count, seconds, driver), time.process_time()
            carry_out(steps, workers, bench_folder, nobody)
            own = 1000 * (time.process_time() - start) / len(steps)

            bounds = {
                "work": work / count,
                "the longest chain": chain,
                "the bench": driver * len(steps),
            }
            limit = max(bounds, key=lambda name: bounds[name])
            total, efficiency = workers.clock / 3600, work / count / workers.clock
            print(f"{count:7} {total:8.2f} {efficiency:10.0%}   {limit:20} {own:6.1f} ms a step")


if __name__ == "__main__":
    if sys.argv[1:] != ["paper"]:
        compare_engines()
    cost = DRIVER if sys.argv[1:] == ["paper"] else driver_cost()
    for profile in ("quick", "paper"):
        simulate(profile, cost)
