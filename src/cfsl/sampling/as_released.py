"""The samplers of the published code, for comparison only: never use them for results.

Both follow the code published with "Defining Benchmarks for Continual Few-Shot Learning", down to
its generators (classes from RandomState(index), images from RandomState(seed + index)):

as_released_2020_04    the code behind the paper's tables. All support sets of a class group hold
                       the *same* images, and a class gets a new label in every support set,
                       whatever the class change interval.
as_released_2020_08    after the corrections of August 2020. Labels are right, but images are
                       redrawn for every support set, so that support images come back as targets
                       (with 20 images a class: 5 of 100 targets at NSS=4, CCI=2, and 37 % of them
                       at NSS=CCI=10).

Both draw k_target targets per class *and support set*, repeats included. The published experiments
all had seed 100.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int, Integer

from cfsl.errors import InfeasibleSpecError, SpecError
from cfsl.sampling.plan import PlanBlock
from cfsl.spec import TaskSpec


def as_released_2020_04(
    class_sizes: Integer[np.ndarray, " classes"],
    spec: TaskSpec,
    tasks: range,
    *,
    seed: int = 100,
    split: str = "test",
) -> PlanBlock:
    """Draw as the code of April 2020 did: a group repeats its images under new labels."""
    return _draw(class_sizes, spec, tasks, seed, split, redraw=False)


def as_released_2020_08(
    class_sizes: Integer[np.ndarray, " classes"],
    spec: TaskSpec,
    tasks: range,
    *,
    seed: int = 100,
    split: str = "test",
) -> PlanBlock:
    """Draw as the corrected code of August 2020 did: images redrawn for every support set."""
    return _draw(class_sizes, spec, tasks, seed, split, redraw=True)


def _draw(
    class_sizes: Integer[np.ndarray, " classes"],
    spec: TaskSpec,
    tasks: range,
    seed: int,
    split: str,
    *,
    redraw: bool,
) -> PlanBlock:
    """Draw the tasks one by one; only images and the label rule differ between the two releases."""
    _require_drawable(class_sizes, spec, split)
    if not len(tasks):
        target_images = spec.nss * spec.n_way * spec.k_target
        return PlanBlock.empty(0, spec.nss, spec.n_way * spec.k_shot, target_images)
    _require_seeds(seed, tasks)

    drawn = np.stack([_draw_images(class_sizes, spec, task, seed, redraw=redraw) for task in tasks])
    supports, targets = drawn[..., : spec.k_shot], drawn[..., spec.k_shot :]

    sets = np.arange(spec.nss)[:, None, None]
    label_group = sets // spec.interval if redraw else sets
    first_label = 0 if spec.overwrite else label_group * spec.n_way
    labels = np.arange(spec.n_way)[:, None] + first_label
    groups = sets // spec.interval

    n = len(tasks)
    return PlanBlock(
        support_images=supports.reshape(n, spec.nss, -1),
        support_labels=_spread(labels, supports.shape).reshape(n, spec.nss, -1),
        target_images=targets.reshape(n, -1),
        target_labels=_spread(labels, targets.shape).reshape(n, -1),
        target_groups=_spread(groups, targets.shape).reshape(n, -1),
    )


def _require_seeds(seed: int, tasks: range) -> None:
    """Refuse seeds that numpy's old generator does not take, for classes or for images."""
    low, high = sorted((tasks[0], tasks[-1]))
    if low + min(seed, 0) < 0 or high + max(seed, 0) >= 2**32:
        raise SpecError(
            f"the published code takes seeds from 0 to 2**32 - 1, not seed {seed} with tasks "
            f"{tasks[0]} to {tasks[-1]}"
        )


def _spread(numbers: Int[np.ndarray, "..."], shape: tuple[int, ...]) -> Int[np.ndarray, "..."]:
    """Give every image of a class the label or the group of that class."""
    return np.broadcast_to(numbers, shape).astype(np.int32)


def _draw_images(
    class_sizes: Integer[np.ndarray, " classes"],
    spec: TaskSpec,
    task: int,
    seed: int,
    *,
    redraw: bool,
) -> Int[np.ndarray, "sets ways samples"]:
    """Return the images of one task: first the supports of a class, then its targets."""
    class_generator = np.random.RandomState(task)
    image_generator = np.random.RandomState(seed + task)
    first_images = np.concatenate([[0], np.cumsum(class_sizes)[:-1]])
    samples = spec.k_shot + spec.k_target

    sets = []
    unused = np.arange(len(class_sizes))
    for _ in range(spec.groups):
        chosen = class_generator.choice(unused, size=spec.n_way, replace=False)
        unused = unused[~np.isin(unused, chosen)]
        class_generator.shuffle(chosen)

        for position in range(spec.interval):
            if redraw or position == 0:
                positions = [
                    image_generator.choice(class_sizes[c], size=samples, replace=False)
                    for c in chosen
                ]
                images = first_images[chosen][:, None] + np.stack(positions)
            sets.append(images)
    return np.stack(sets).astype(np.int32)


def _require_drawable(
    class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec, split: str
) -> None:
    """Refuse specs that the published code cannot draw."""
    if spec.kind != "class" or spec.nss % spec.interval:
        raise SpecError(
            f"the published code draws class tasks whose nss is a multiple of cci, not "
            f"kind='{spec.kind}', nss={spec.nss}, cci={spec.cci}; use the default sampler"
        )

    smallest = int(class_sizes.min()) if len(class_sizes) else 0
    needed = spec.k_shot + spec.k_target
    if len(class_sizes) < spec.classes or smallest < needed:
        raise InfeasibleSpecError(
            f"the {split} split has {len(class_sizes)} classes of at least {smallest} images; this "
            f"task needs {spec.classes} classes of {needed}. Lower nss, n_way or k_target."
        )
