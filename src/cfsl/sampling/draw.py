"""The sampler: a pure function from class sizes, spec, seed and task number to image numbers.

Every task shuffles the classes once and gives them to its groups in that order. Every class of a
task shuffles its images once and gives them out in that order, first to the support sets, then to
the target set. Nothing can be drawn twice, so the rules of the specification hold by construction.
All tasks of a block are drawn at the same time.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt64

from cfsl.sampling.feasible import eligible, require_feasible
from cfsl.sampling.philox import Stream, full_shuffle, partial_shuffle
from cfsl.sampling.plan import PlanBlock
from cfsl.spec import TaskSpec

SAMPLER = "cfsl-1"
_IMAGES_AT_ONCE = 120_000  # few enough for all arrays to stay in the processor's cache


def draw_tasks(
    class_sizes: Integer[np.ndarray, " classes"],
    spec: TaskSpec,
    tasks: range,
    *,
    seed: int = 0,
    split: str = "test",
) -> PlanBlock:
    """Draw tasks by their numbers. A task is the same whatever other tasks it is drawn with."""
    require_feasible(class_sizes, spec, f"the {split} split")
    sizes = np.asarray(class_sizes, np.int64)
    plan = PlanBlock.empty(len(tasks), spec.nss, spec.n_way * spec.k_shot, spec.target_images)

    images_per_task = spec.classes * spec.images_per_class + spec.target_images
    step = max(1, _IMAGES_AT_ONCE // images_per_task)
    for start in range(0, len(tasks), step):
        part = slice(start, start + step)
        _draw_into(plan[part], sizes, spec, np.array(tasks[part], np.uint64), (split, seed))
    return plan


def _draw_into(
    plan: PlanBlock,
    class_sizes: Int64[np.ndarray, " classes"],
    spec: TaskSpec,
    tasks: UInt64[np.ndarray, " tasks"],
    split_and_seed: tuple[str, int],
) -> None:
    """Draw the tasks with these numbers, and write them into a plan."""
    layout = _layout(spec)
    images = _draw_images(class_sizes, spec, tasks, split_and_seed)

    plan.support_images[:] = images[layout.support_rows].T.reshape(plan.support_images.shape)
    plan.support_labels[:] = layout.support_labels

    # Targets are shuffled, so that their order says nothing about their labels (rule 16).
    stream = _stream("target order", spec, split_and_seed)
    words = stream.words(tasks, np.zeros_like(tasks), spec.target_images)
    order = full_shuffle(np.ascontiguousarray(words.T))

    places = np.take(layout.target_rows, order)
    places *= len(tasks)
    places += np.arange(len(tasks))[:, None]

    # All places are in range; "clip" spares numpy a second buffer.
    np.take(images.reshape(-1), places, out=plan.target_images, mode="clip")
    np.take(layout.target_labels, order, out=plan.target_labels, mode="clip")
    np.take(layout.target_groups, order, out=plan.target_groups, mode="clip")


def _stream(purpose: str, spec: TaskSpec, split_and_seed: tuple[str, int]) -> Stream:
    """Return the random numbers that a spec has for one purpose (rule 17)."""
    return Stream.named("tasks", SAMPLER, *split_and_seed, spec.draw_json(), purpose)


def _draw_classes(
    class_sizes: Int64[np.ndarray, " classes"],
    spec: TaskSpec,
    tasks: UInt64[np.ndarray, " tasks"],
    split_and_seed: tuple[str, int],
) -> Int64[np.ndarray, "drawn tasks"]:
    """Return the classes of every task, group after group."""
    large_enough = np.flatnonzero(eligible(class_sizes, spec))
    count = len(large_enough)

    left = np.arange(count, count - spec.classes, -1, dtype=np.uint64)
    bounds = np.broadcast_to(left[:, None], (spec.classes, len(tasks)))
    offsets = _stream("classes", spec, split_and_seed).below(bounds, tasks, np.zeros_like(tasks))
    return np.asarray(large_enough[partial_shuffle(offsets, count)])


def _draw_images(
    class_sizes: Int64[np.ndarray, " classes"],
    spec: TaskSpec,
    tasks: UInt64[np.ndarray, " tasks"],
    split_and_seed: tuple[str, int],
) -> Int32[np.ndarray, "images tasks"]:
    """Return shuffled images of the classes of every task.

    Row i x spec.classes + c holds the i-th image of the c-th class of each task.
    """
    classes = _draw_classes(class_sizes, spec, tasks, split_and_seed).reshape(-1)
    sizes = class_sizes[classes].astype(np.uint64)

    bounds = sizes - np.arange(spec.images_per_class, dtype=np.uint64)[:, None]
    rows = np.tile(tasks, spec.classes)
    columns = np.repeat(np.arange(spec.classes, dtype=np.uint64), len(tasks))
    offsets = _stream("images", spec, split_and_seed).below(bounds, rows, columns)
    images = partial_shuffle(offsets, int(sizes.max())).astype(np.int32)

    first_images = np.concatenate([[0], np.cumsum(class_sizes)[:-1]]).astype(np.int32)
    images += first_images[classes]
    return images.reshape(-1, len(tasks))


class _Layout(NamedTuple):
    """Where the images of a task are shown, and under which labels: the same for all its tasks.

    Rows are those of the array that `_draw_images` returns.
    """

    support_rows: Int64[np.ndarray, " supports"]
    support_labels: Int32[np.ndarray, "sets images"]
    target_rows: Int64[np.ndarray, " targets"]
    target_labels: Int32[np.ndarray, " targets"]
    target_groups: Int32[np.ndarray, " targets"]


@functools.lru_cache(maxsize=64)
def _layout(spec: TaskSpec) -> _Layout:
    """Return the layout of the tasks of a spec."""
    return _instance_layout(spec) if spec.kind == "instance" else _class_layout(spec)


def _class_layout(spec: TaskSpec) -> _Layout:
    """Show the first images of a class in support sets, and the next ones as targets.

    Labels number the classes in the order in which they were drawn.
    """
    sets, support_ways, shots = np.indices((spec.nss, spec.n_way, spec.k_shot)).reshape(3, -1)
    support_classes = (sets // spec.interval) * spec.n_way + support_ways
    support_ranks = (sets % spec.interval) * spec.k_shot + shots

    # Targets belong to a whole group, or to one support set of it.
    per_class = spec.target_rule == "per_class"
    shape = (spec.groups if per_class else spec.nss, spec.n_way, spec.k_target)
    owners, target_ways, copies = np.indices(shape).reshape(3, -1)
    target_groups = owners if per_class else owners // spec.interval
    target_classes = target_groups * spec.n_way + target_ways
    earlier_targets = 0 if per_class else (owners % spec.interval) * spec.k_target
    target_ranks = spec.interval * spec.k_shot + earlier_targets + copies

    support_labels = support_ways if spec.overwrite else support_classes
    target_labels = target_ways if spec.overwrite else target_classes
    return _Layout(
        support_rows=support_ranks * spec.classes + support_classes,
        support_labels=support_labels.astype(np.int32).reshape(spec.nss, -1),
        target_rows=target_ranks * spec.classes + target_classes,
        target_labels=target_labels.astype(np.int32),
        target_groups=target_groups.astype(np.int32),
    )


def _instance_layout(spec: TaskSpec) -> _Layout:
    """Give every image a label of its own, and show it k_target times as a target."""
    sets, ways, shots = np.indices((spec.nss, spec.n_way, spec.k_shot)).reshape(3, -1)
    rows = (sets * spec.k_shot + shots) * spec.classes + ways
    labels = np.arange(spec.labels, dtype=np.int32)

    return _Layout(
        support_rows=rows,
        support_labels=labels.reshape(spec.nss, -1),
        target_rows=np.repeat(rows, spec.k_target),
        target_labels=np.repeat(labels, spec.k_target),
        target_groups=np.repeat(sets, spec.k_target).astype(np.int32),
    )
