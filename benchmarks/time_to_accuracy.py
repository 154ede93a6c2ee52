"""Measure how long one core trains until it is as good as the published numbers.

    python benchmarks/time_to_accuracy.py --learner champion    (Omniglot; minutes; also protonet)
    python benchmarks/time_to_accuracy.py --learner maml_high   (an hour or two; also sca)
    python benchmarks/time_to_accuracy.py --learner protonet --seed 1 --lengths 400 500

Tasks are of type B with three support sets, on validation classes. The goals of `champion` and
`protonet` are the published ProtoNets (95.30 %) and the best published learner (SCA, 96.84 %);
those of `maml_high` and `sca` are their own published numbers. All were published for test classes,
which are easier; nothing is chosen on test classes here.

A schedule ends with a small learning rate, so there is no "accuracy on the way": each length is a
run of its own, from the shortest to the first that reaches the goal. Time is that of the processor
for the updates, on one thread; reading the data and validation are not counted. Maps are computed
in bfloat16 where the processor has instructions for it, or as --precision says. The hours of the
published code are calculated from its measured step times and its 125,000 updates.

`maml_high` and `sca` are trained by the recipe "strong". A length is a percentage of the updates of
every stage; the time is that of all stages together, with the embedding of all training images
between them.
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
from cfsl.learners.champion.champion import Champion
from cfsl.learners.protonet import ProtoNet
from cfsl.learners.registry import find_learner
from cfsl.training.events import Epoch, Event, Started, Update
from cfsl.training.loop import train
from cfsl.training.recipes import recipe_for
from cfsl.training.run_folder import best_weights, stages_before
from cfsl.training.training_spec import Precision, Training

_PUBLISHED = {"ProtoNets, published": (95.30, "7.9 h"), "best published": (96.84, "94 h")}
GOALS = {
    "champion": _PUBLISHED,
    "protonet": _PUBLISHED,
    "maml_high": {"MAML++ H, published": (96.14, "76 h")},
    "sca": {"SCA, published": (96.84, "94 h")},
}
LENGTHS = {
    "champion": (100, 125, 150, 200, 250, 300, 400, 600),
    "protonet": (200, 250, 300, 400, 500, 700, 1000, 1400),
    "maml_high": (25, 50, 100),
    "sca": (25, 50, 100),
}
"""Numbers of updates; for learners that are trained in stages, percentages of the recipe's."""
STAGED = ("maml_high", "sca")
VALIDATION_TASKS = 1000
PROTONET_RATE = 0.07


class Run(NamedTuple):
    """One schedule from its start to its end."""

    length: int
    minutes: float
    accuracy: float
    interval: float


def learner_named(name: str) -> Any:
    """Return the published network or the champion, with cosines: evidence would take longer."""
    return ProtoNet(metric="cosine") if name == "protonet" else Champion(closeness="cosine")


def recipe_of(learner: Any, task: cfsl.TaskSpec) -> Training:
    """Return the champion's recipe; for ProtoNets with episodes of 64 classes x 3 images.

    ProtoNets learn from single images. They get no turned classes: a network of that size takes
    long to make use of them.
    """
    recipe = recipe_for("short", "champion", task)
    if isinstance(learner, Champion):
        return recipe

    usual = recipe_for("short", "protonet", task)
    schedule = recipe.schedule.replace(rate=PROTONET_RATE)
    return recipe.replace(
        episodes=usual.episodes, augmentation=usual.augmentation, schedule=schedule
    )


def timed(learner: Any, data: cfsl.Dataset, updates: int, seed: int, precision: str) -> Run:
    """Train for so many updates, and evaluate on validation tasks."""
    task = cfsl.TaskSpec.type_b(nss=3)
    recipe = recipe_of(learner, task)
    warm = min(recipe.schedule.warmup, updates // 5)
    average = max(0.0, min(0.99, 1 - 10 / updates))
    schedule = recipe.schedule.replace(
        epochs=1, updates=updates, warmup=warm, average=average, precision=precision
    )
    training = recipe.replace(schedule=schedule, validation_tasks=1, seed=seed)
    ticks: list[float] = []

    def watch(event: Event) -> None:
        if isinstance(event, Started | Update):
            ticks.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        train(learner, training, data, Path(folder), watch)
        weights = best_weights(Path(folder))
    return _judged(learner, data, weights, updates, ticks[-1] - ticks[0])


def timed_stages(learner: Any, data: cfsl.Dataset, percent: int, seed: int) -> Run:
    """Train in stages, each for this percentage of its updates, and evaluate."""
    recipe = recipe_for("strong", learner.kind, cfsl.TaskSpec.type_b(nss=3))
    training = _shortened(recipe.with_seed(seed), percent)
    seconds, ticks = 0.0, list[float]()

    def watch(event: Event) -> None:
        nonlocal seconds
        if isinstance(event, Started | Update | Epoch):
            now = time.process_time()
            seconds += now - ticks.pop() if isinstance(event, Update) else 0.0
            ticks[:] = [now]

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for stage, stage_folder in stages_before(training, folder):
            train(stage.built(), stage.training, data, stage_folder, watch)
        train(learner, training, data, folder, watch)
        return _judged(learner, data, best_weights(folder), percent, seconds)


def _shortened(training: Training, percent: int) -> Training:
    """Return a training with this percentage of every stage, in one epoch.

    Look-alikes need two epochs, since they come after the first.
    """
    schedule, start = training.schedule, training.start
    epochs = 2 if training.companions else 1
    updates = max(1, schedule.total * percent // 100 // epochs)
    shorter = schedule.replace(epochs=epochs, updates=updates)
    if start is not None:
        start = start.replace(training=_shortened(start.training, percent))
    return training.replace(schedule=shorter, start=start, validation_tasks=1)


def _judged(learner: Any, data: cfsl.Dataset, weights: Any, length: int, seconds: float) -> Run:
    """Evaluate on validation tasks."""
    spec = cfsl.TaskSpec.type_b(nss=3)
    tasks = cfsl.Tasks(data, spec, split="val", numbers=range(VALIDATION_TASKS))
    found = cfsl.summarise(cfsl.task_accuracies(evaluate(learner, tasks, weights, law=False)))
    return Run(length, seconds / 60, 100 * found.mean, 100 * (found.ci95 or 0))


def runs(
    name: str, data: cfsl.Dataset, lengths: Iterable[int], seed: int, precision: str
) -> Iterator[Run]:
    """Train longer and longer, until all goals are reached."""
    for length in lengths:
        if name in STAGED:
            run = timed_stages(find_learner(name), data, length, seed)
        else:
            run = timed(learner_named(name), data, length, seed, precision)

        done = f"{_length(name, length)}, {run.minutes:.2f} min"
        print(f"  {name}: {done}: {run.accuracy:.2f} +- {run.interval:.2f} %", flush=True)
        yield run

        if run.accuracy >= max(goal for goal, _ in GOALS[name].values()):
            return


def _length(name: str, length: int) -> str:
    return f"{length} % of all stages" if name in STAGED else f"{length} updates"


def main() -> None:
    """Print the minutes until each goal."""
    parser = argparse.ArgumentParser(
        description="Minutes on one core until validation reaches the published numbers."
    )
    parser.add_argument("--seed", type=int, default=0, help="of first weights and training data")
    parser.add_argument("--data", default="omniglot")
    parser.add_argument("--learner", choices=list(LENGTHS), help="only this one")
    parser.add_argument(
        "--lengths", type=int, nargs="+", help="of each run, in the place of the usual ones"
    )
    fastest = "bfloat16" if has_bfloat16("cpu") else "float32"
    parser.add_argument("--precision", choices=get_args(Precision), default=fastest)
    asked = parser.parse_args()

    data = cfsl.load(asked.data)
    print(f"{asked.data}, maps in {asked.precision}")
    lines = []
    for name in [asked.learner] if asked.learner else LENGTHS:
        lengths = sorted(asked.lengths or LENGTHS[name])
        made = list(runs(name, data, lengths, asked.seed, asked.precision))
        for what, (goal, published) in GOALS[name].items():
            first = next((run for run in made if run.accuracy >= goal), None)
            reached = "not reached"
            if first is not None:
                reached = f"{first.minutes:.2f} min ({_length(name, first.length)})"
            lines.append(f"{name:<10}{goal:.2f} % ({what}): {reached}; published code {published}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
