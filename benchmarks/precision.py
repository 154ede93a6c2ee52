"""Measure how much faster an update is in bfloat16 than in float32.

    python benchmarks/precision.py            (glyphs, whose shapes are Omniglot's; about a minute)

The two take turns in one process on one thread, each with weights of its own, and medians of the
processor's time are compared. An update is everything: drawing and warping the images, the network,
its gradients and the optimizer.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import cfsl
from cfsl.harness.devices import has_bfloat16
from cfsl.learners.champion.champion import Champion
from cfsl.learners.maml.maml_high import MamlHigh
from cfsl.learners.protonet import ProtoNet
from cfsl.training.events import Event, Started, Update
from cfsl.training.loop import train
from cfsl.training.recipes import recipe_for
from cfsl.training.training_spec import Precision

CONTENDERS = {
    "champion": Champion(),
    "protonet": ProtoNet(metric="cosine"),
    "maml_high": MamlHigh(),
}
"""Learners by their names."""
UPDATES, TURNS, WARM = 4, 3, 1


def seconds(name: str, learner: Any, data: cfsl.Dataset, precision: Precision) -> list[float]:
    """Train a few updates, and return how long each took but for the first."""
    recipe = recipe_for("short", name, cfsl.TaskSpec.type_b(nss=3))
    schedule = recipe.schedule.replace(epochs=1, updates=UPDATES, precision=precision)
    training = recipe.replace(schedule=schedule, validation_tasks=1)
    ticks: list[float] = []

    def watch(event: Event) -> None:
        if isinstance(event, Started | Update):
            ticks.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        train(learner, training, data, Path(folder), watch)
    return [after - before for before, after in zip(ticks[WARM:], ticks[WARM + 1 :], strict=False)]


def main() -> None:
    """Print seconds and ratios."""
    if not has_bfloat16("cpu"):
        print("this processor has no instructions for bfloat16: expect it to be the slower one")
    data = cfsl.load("glyphs")

    for name, learner in CONTENDERS.items():
        times: dict[str, list[float]] = {precision: [] for precision in get_args(Precision)}
        for _ in range(TURNS):
            for precision, taken in times.items():
                taken += seconds(name, learner, data, precision)

        medians = {precision: statistics.median(taken) for precision, taken in times.items()}
        each = ", ".join(f"{precision} {taken:.3f} s" for precision, taken in medians.items())
        ratio = medians["float32"] / medians["bfloat16"]
        print(f"{learner.kind:<10} {each}: {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
