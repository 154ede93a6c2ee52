"""How long does one core train until it is as good as the published numbers?

    python benchmarks/time_to_accuracy.py                 (Omniglot; about a quarter of an hour)
    python benchmarks/time_to_accuracy.py --seed 1 --learner protonet --lengths 400 500 --data omniglot-antialiased

Task type B, three support sets, on validation classes: the published ProtoNets (95.30 %) and the best published learner
(SCA, 96.84 %). Both were published for test classes, which are the easier ones: nothing is chosen on those here.

A schedule ends with a small learning rate, so there is no "accuracy on the way": each length is a run of its own, from
the start, from the shortest to the first that reaches the goal. Time is that of the processor for the updates, on one
thread; reading the data and validating are not counted. Maps are computed in bfloat16 where the processor has
instructions for it, or as --precision says. The published code needs 7.9 and 94 hours of the same core,
calculated from its measured step times and its 125,000 updates.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import cfsl
from cfsl.harness.devices import has_bfloat16
from cfsl.harness.evaluate import evaluate
from cfsl.learners.champion import Champion
from cfsl.learners.protonet import ProtoNet
from cfsl.training.events import Event, Started, Update
from cfsl.training.loop import best_weights, train
from cfsl.training.recipes import recipe_for
from cfsl.training.spec import Precision, Training

GOALS = {"ProtoNets, published": (95.30, "7.9 h"), "best published": (96.84, "94 h")}
LENGTHS = {"champion": (100, 125, 150, 200, 250, 300, 400, 600), "protonet": (200, 250, 300, 400, 500, 700, 1000, 1400)}
VALIDATION_TASKS = 1000
PROTONET_RATE = 0.07


class Run(NamedTuple):
    """One schedule from its start to its end."""

    updates: int
    minutes: float
    accuracy: float
    interval: float


def learner_named(name: str) -> Any:
    """Return the published network, or the champion, both with the cosine: measuring spreads would take longer."""
    return ProtoNet(metric="cosine") if name == "protonet" else Champion(closeness="cosine")


def recipe_of(learner: Any, task: cfsl.TaskSpec) -> Training:
    """Return the champion's recipe; for ProtoNets, which learn from single images, with episodes of 64 classes x 3.

    Those have no turned classes: a net of that size takes long to make use of them.
    """
    recipe = recipe_for("short", "champion", task)
    if isinstance(learner, Champion):
        return recipe
    usual = recipe_for("short", "tasks", task)
    schedule = recipe.schedule.replace(rate=PROTONET_RATE)
    return recipe.replace(episodes=usual.episodes, augmentation=usual.augmentation, schedule=schedule)


def timed(learner: Any, data: cfsl.Dataset, updates: int, seed: int, precision: str) -> Run:
    """Train for so many updates, and ask on validation tasks."""
    task = cfsl.TaskSpec.type_b(nss=3)
    recipe = recipe_of(learner, task)
    warm = min(recipe.schedule.warmup, updates // 5)
    average = max(0.0, min(0.99, 1 - 10 / updates))
    schedule = recipe.schedule.replace(epochs=1, updates=updates, warmup=warm, average=average, precision=precision)
    training = recipe.replace(schedule=schedule, validation_tasks=1, seed=seed)
    ticks: list[float] = []

    def watch(event: Event) -> None:
        if isinstance(event, Started | Update):
            ticks.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        train(learner, training, data, Path(folder), watch)
        weights = best_weights(Path(folder))
    tasks = cfsl.Tasks(data, task, split="val", numbers=range(VALIDATION_TASKS))
    found = cfsl.summarise(cfsl.task_accuracies(evaluate(learner, tasks, weights, law=False)))
    return Run(updates, (ticks[-1] - ticks[0]) / 60, 100 * found.mean, 100 * (found.ci95 or 0))


def runs(name: str, data: cfsl.Dataset, lengths: Iterable[int], seed: int, precision: str) -> Iterator[Run]:
    """Train longer and longer, until all goals are reached."""
    for updates in lengths:
        run = timed(learner_named(name), data, updates, seed, precision)
        print(f"  {name}: {run.updates} updates, {run.minutes:.2f} min: {run.accuracy:.2f} +- {run.interval:.2f} %")
        yield run
        if run.accuracy >= max(goal for goal, _ in GOALS.values()):
            return


def main() -> None:
    """Print the minutes until each goal."""
    parser = argparse.ArgumentParser(description="Minutes on one core until validation reaches the published numbers.")
    parser.add_argument("--seed", type=int, default=0, help="of first weights and training data")
    parser.add_argument("--data", default="omniglot")
    parser.add_argument("--learner", choices=list(LENGTHS), help="only this one")
    parser.add_argument("--lengths", type=int, nargs="+", help="updates of each run, in the place of the usual ones")
    fastest = "bfloat16" if has_bfloat16("cpu") else "float32"
    parser.add_argument("--precision", choices=get_args(Precision), default=fastest)
    asked = parser.parse_args()
    data = cfsl.load(asked.data)
    print(f"{asked.data}, maps in {asked.precision}")
    lines = []
    for name in [asked.learner] if asked.learner else LENGTHS:
        lengths = sorted(asked.lengths or LENGTHS[name])
        made = list(runs(name, data, lengths, asked.seed, asked.precision))
        for what, (goal, published) in GOALS.items():
            first = next((run for run in made if run.accuracy >= goal), None)
            reached = f"{first.minutes:.2f} min ({first.updates} updates)" if first else "not reached"
            lines.append(f"{name:<10}{goal:.2f} % ({what}): {reached}; published code {published}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
