"""Measure what each stage of the recipe 'strong' is worth to MAML++ High-End, on one column.

    python benchmarks/stages.py          (Omniglot, C with three support sets; hours of one core)
    python benchmarks/stages.py --task B --rows recipe "no turned or mirrored images" --percent 25

Every row is trained by the recipe with one change, and answers validation tasks. Stages that rows
have in common are trained once; runs that are finished in the folder are not trained again. Minutes
are those of the processor for the whole training.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import cfsl
from cfsl.harness.evaluate import evaluate
from cfsl.learners.registry import find_learner
from cfsl.spec import FrozenSpec
from cfsl.training.loop import train
from cfsl.training.recipes import fitted_to
from cfsl.training.run_folder import best_weights
from cfsl.training.strong import CONVOLUTION, HEAD, Memory, maml_high, memory_for
from cfsl.training.training_spec import Augmentation, Training

TASKS = {"B": cfsl.TaskSpec.type_b(3), "C": cfsl.TaskSpec.type_c(3)}
VALIDATION_TASKS = 600


def as_it_is(training: Training) -> Training:
    """Change nothing."""
    return training


def without_positions(training: Training) -> Training:
    """Show the inner loop images as they are."""
    return training.replace(augmentation=Augmentation())


def with_the_other_memory(training: Training) -> Training:
    """Let the convolution remember tasks of type B, or the head those of type C."""
    other: Memory = HEAD if memory_for(training.episodes) is CONVOLUTION else CONVOLUTION

    schedule = training.schedule.replace(rate=other.rate, inner_rate=other.inner_rate)
    return training.replace(
        first_inner_rates=other.first_inner_rates, zero_head=other.zero_head, schedule=schedule
    )


def with_published_rates(training: Training) -> Training:
    """Start all inner rates from .01, as published."""
    return training.replace(first_inner_rates=())


def without_sums(training: Training) -> Training:
    """Train the maps of the embedding as ProtoNets alone."""
    assert training.start is not None
    alone = training.start.replace(
        learner="protonet", changes={"metric": "cosine", "net": {"kind": "high_end"}}
    )
    return training.replace(start=alone)


def without_look_alikes(training: Training) -> Training:
    """Draw all classes of an episode of stage 1 at random."""
    assert training.start is not None
    first = training.start.training.replace(companions=0)
    return training.replace(start=training.start.replace(training=first))


ROWS: Mapping[str, Callable[[Training], Training]] = {
    "recipe": as_it_is,
    "no turned or mirrored images": without_positions,
    "the other layer remembers": with_the_other_memory,
    "rates from .01": with_published_rates,
    "stage 1 without sums of cosines": without_sums,
    "stage 1 without look-alikes": without_look_alikes,
}


def shortened(training: Training, percent: int) -> Training:
    """Return a training with this percentage of the updates of every stage."""
    schedule, start = training.schedule, training.start
    shorter = schedule.replace(updates=max(1, schedule.updates * percent // 100))
    if start is not None:
        start = start.replace(training=shortened(start.training, percent))
    return training.replace(schedule=shorter, start=start)


def named(spec: FrozenSpec) -> str:
    """Return a name for the folder of a training run."""
    return hashlib.sha256(spec.canonical_json().encode()).hexdigest()[:10]


def main() -> None:
    """Train and print a line for every row."""
    parser = argparse.ArgumentParser(description="What each stage of the recipe 'strong' is worth.")
    parser.add_argument("--data", default="omniglot")
    parser.add_argument("--task", choices=list(TASKS), default="C")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--percent", type=int, default=100, help="of the updates of every stage")
    parser.add_argument("--folder", type=Path, default=Path("stages"), help="of the training runs")
    asked = parser.parse_args()

    data, task, learner = cfsl.load(asked.data), TASKS[asked.task], find_learner("maml_high")
    tasks = cfsl.Tasks(data, task, split="val", numbers=range(VALIDATION_TASKS))
    for row in asked.rows:
        training = fitted_to(data, shortened(ROWS[row](maml_high(task)), asked.percent))
        assert training.start is not None

        began = time.process_time()
        start = asked.folder / f"start-{named(training.start)}"
        train(training.start.built(), training.start.training, data, start)
        folder = asked.folder / f"{task.task_type}-{named(training)}"
        train(learner, training, data, folder, start=start)

        minutes = (time.process_time() - began) / 60
        trace = evaluate(learner, tasks, best_weights(folder), law=False)
        found = cfsl.summarise(cfsl.task_accuracies(trace))
        accuracy = f"{100 * found.mean:6.2f} +- {100 * (found.ci95 or 0):.2f} %"
        print(f"{row:<34}{accuracy}  {minutes:6.1f} min", flush=True)


if __name__ == "__main__":
    main()
