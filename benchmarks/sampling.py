"""Measure how fast tasks are drawn, against a plain sampler.

    python benchmarks/sampling.py            (glyphs; the same shapes as Omniglot)

The plain sampler is what one would write first: numpy's `Generator.choice` for the classes and for
the images of each class, images copied one by one to float tensors, then stacked. Both take turns
in one process on one thread; the figure is the ratio of the medians.
"""

from __future__ import annotations

import collections
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import cfsl
from cfsl.sampling import draw_tasks

PLAIN_TASKS, FAST_TASKS, ROUNDS = 100, 2000, 9


def plain_plan(
    sizes: np.ndarray, spec: cfsl.TaskSpec, generator: np.random.Generator
) -> list[list[tuple[int, int]]]:
    """Draw the images of one task of type B: class after class, support and target."""
    classes = generator.choice(len(sizes), size=spec.classes, replace=False)
    return [
        [(c, i) for i in generator.choice(sizes[c], size=spec.images_per_class, replace=False)]
        for c in classes
    ]


def plain_task(
    pixels: np.ndarray, plan: list[list[tuple[int, int]]], per_class: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy the images of one task, one by one, to float tensors and stack them."""
    supports, targets = [], []
    for images in plan:
        tensors = [
            torch.tensor(pixels[c * per_class + i].copy()).to(torch.float32) / 255
            for c, i in images
        ]
        supports.append(tensors[0])
        targets.extend(tensors[1:])
    return torch.stack(supports), torch.stack(targets)


def rate(run: Callable[[], object], tasks: int) -> float:
    """Return tasks a second of one run."""
    start = time.perf_counter()
    run()
    return tasks / (time.perf_counter() - start)


def contenders(data: cfsl.Dataset, nss: int) -> dict[str, tuple[Callable[[], object], int]]:
    """Return the functions that are timed, each with the number of tasks it makes."""
    spec = cfsl.TaskSpec.type_b(nss=nss)
    tasks = cfsl.Tasks(data, spec, numbers=range(FAST_TASKS))
    sizes, per_class = tasks.class_sizes, int(tasks.class_sizes[0])
    test_pixels = data.pixels[tasks.images.rows]
    generator = np.random.default_rng(0)

    def plain_tensors() -> None:
        for _ in range(PLAIN_TASKS):
            plain_task(test_pixels, plain_plan(sizes, spec, generator), per_class)

    def plain_indices() -> None:
        for _ in range(PLAIN_TASKS):
            plain_plan(sizes, spec, generator)

    return {
        "plain, to tensors": (plain_tensors, PLAIN_TASKS),
        "plain, indices": (plain_indices, PLAIN_TASKS),
        "cfsl, to tensors": (lambda: collections.deque(tasks.batches(), maxlen=0), FAST_TASKS),
        "cfsl, indices": (lambda: draw_tasks(sizes, spec, range(FAST_TASKS)), FAST_TASKS),
    }


def compare(data: cfsl.Dataset, nss: int) -> None:
    """Time all in turn, and print medians and ratios."""
    runs = contenders(data, nss)
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, (run, count) in runs.items():
            rates[name].append(rate(run, count))

    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, median in medians.items():
        print(f"NSS={nss:<3} {name:<18} {median:>10,.0f} tasks/s")

    plain, indices = medians["plain, to tensors"], medians["cfsl, indices"]
    print(f"NSS={nss:<3} to tensors: {medians['cfsl, to tensors'] / plain:.0f}x the plain sampler")
    alone = indices / medians["plain, indices"]
    ratios = f"{indices / plain:.0f}x the plain sampler, {alone:.0f}x its indices alone"
    print(f"NSS={nss:<3} indices:    {ratios}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    data_set = cfsl.load(sys.argv[1] if len(sys.argv) > 1 else "glyphs")
    for support_sets in (3, 10):
        compare(data_set, support_sets)
