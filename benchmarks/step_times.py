"""Measure how long the steps of a bench take, for `cfsl bench --plan`.

    python benchmarks/step_times.py [data set ...] [--learners champion,protonet]

The seconds of an image, by learner and kind of image, go to src/cfsl/engine/step_times.json. They
are seconds of the processor, so that others may use the machine meanwhile. Data sets and learners
that are not named keep the times that were measured before.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from cfsl.data.tasks import Tasks
from cfsl.engine.estimate import PLACE, eval_images, image_kind, train_images
from cfsl.harness.evaluate import Conditions, evaluate_under
from cfsl.harness.workers import threads
from cfsl.learners.base import FixedEmbedding, first_weights
from cfsl.learners.registry import LEARNERS
from cfsl.presets.cells import Request, cells_of
from cfsl.runs.data import data_of
from cfsl.runs.run_spec import RunSpec, TrainSpec, built
from cfsl.training.events import Event, Update
from cfsl.training.loop import train
from cfsl.training.training_spec import Training

UPDATES = 3
TASKS = 2
TASKS_OF_A_TABLE = 100
STAGED = ("maml_high", "sca")
"""Learners whose inner loop is trained on a table."""


def main(names: list[str], learners: tuple[str, ...]) -> None:
    """Measure and write."""
    measured = json.loads(PLACE.read_text()) if PLACE.exists() else {}
    for name in names:
        request = Request("table1", "quick", (name,), learners=learners, columns=("B3",))
        for cell in cells_of(request):
            if cell.run is None:
                print(f"{name} {cell.learner}: {cell.why_not}")
                continue

            times = {"eval": evaluation(cell.run)}
            if cell.run.train is not None:
                times["train"] = training(cell.run.train)
            if cell.learner in STAGED:
                times |= stages(name, cell.learner, measured.setdefault(image_kind(name), {}))

            measured.setdefault(image_kind(cell.run.data.name), {})[cell.learner] = times
            PLACE.write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n")
            shown = {kind: f"{1e3 * seconds:.2f} ms an image" for kind, seconds in times.items()}
            print(name, cell.learner, shown)


def evaluation(run: RunSpec) -> float:
    """Return the seconds of an evaluated image, when everything is loaded, with new weights."""
    learner, data = built(run.learner), data_of(run.data)
    recipe = data.info.recipe
    shape = (recipe.channels, recipe.height, recipe.width)
    others, meta = (
        first_weights(learner, shape, run.task, torch.Generator().manual_seed(seed))
        for seed in range(2)
    )
    count = TASKS_OF_A_TABLE if isinstance(learner, FixedEmbedding) else TASKS
    tasks, conditions = Tasks(data, run.task, numbers=range(count)), Conditions(accelerate=True)

    evaluate_under(conditions, learner, tasks[:1], others)
    start = time.process_time()
    evaluate_under(conditions, learner, tasks, meta)
    return (time.process_time() - start) / (count * eval_images(run.task))


def stages(data: str, learner: str, measured: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the seconds of an image that is looked up in a table.

    Put those of an image of the first stage into `measured`.
    """
    request = Request("table1", "strong", (data,), learners=(learner,), columns=("B3",))
    run = cells_of(request)[0].run
    assert run is not None and run.train is not None

    first = run.train
    while first.start is not None:
        first = first.start
    measured.setdefault(first.learner.name, {"train": training(first)})
    return {"table": training(run.train)}


def shortened(spec: Training) -> Training:
    """Return a training with two epochs of a few updates in every stage."""
    start = spec.start
    if start is not None:
        start = start.replace(training=shortened(start.training))
    schedule = spec.schedule.replace(epochs=2, updates=UPDATES)
    return spec.replace(validation_tasks=1, schedule=schedule, start=start)


def training(train_spec: TrainSpec) -> float:
    """Return the seconds of a training image in a second epoch, when everything is loaded."""
    spec = train_spec.training
    clock: list[float] = []

    def watch(event: Event) -> None:
        if isinstance(event, Update):
            clock.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        data = data_of(train_spec.data)
        train(built(train_spec.learner), shortened(spec), data, Path(folder), watch)
    return (clock[-1] - clock[UPDATES]) / ((UPDATES - 1) * train_images(spec))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures how long steps of a bench take.")
    parser.add_argument("data", nargs="*", default=["omniglot", "slim-tiny"])
    parser.add_argument("--learners", default=",".join(LEARNERS), help="with commas; default: all")
    asked = parser.parse_args()
    with threads(1):
        main(asked.data, tuple(asked.learners.split(",")))
