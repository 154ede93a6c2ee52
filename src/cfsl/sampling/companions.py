"""Episodes whose classes are hard to tell apart: half of them are look-alikes of the other half."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt64

from cfsl.sampling.plan import PlanBlock


def partner_of(labels: int) -> Int64[np.ndarray, " labels"]:
    """Return for every label the one that it is a companion of; the first half are companions of nobody."""
    own, half = np.arange(labels), labels // 2
    return np.where(own < labels - half, own, own - (labels - half))


def with_companions(
    plan: PlanBlock,
    class_sizes: Integer[np.ndarray, " classes"],
    look_alikes: Integer[np.ndarray, "classes nearest"],
    words: UInt64[np.ndarray, "tasks labels"],
) -> PlanBlock:
    """Return a plan in which the second half of the labels stand for classes that look like those of the first half.

    Every label stands for one class. Which of its look-alikes a class is joined by is drawn by the random words; one
    that is in the task already, or has too few images, is passed over. Where none is left, the class that was drawn
    stays. A companion takes the place of that class with images of the same numbers: distinct ones stay distinct.
    """
    starts = np.cumsum(class_sizes) - class_sizes
    supports, targets = plan.support_images.copy(), plan.target_images.copy()
    for task in range(len(plan)):
        drawn = _classes(plan, task, starts)
        joined = _joined(drawn, class_sizes, look_alikes, words[task])
        shift = (starts[joined] - starts[drawn]).astype(np.int32)
        supports[task] += shift[plan.support_labels[task]]
        targets[task] += shift[plan.target_labels[task]]
    return replace(plan, support_images=supports, target_images=targets)


def _classes(
    plan: PlanBlock, task: int, starts: Integer[np.ndarray, " classes"]
) -> Int64[np.ndarray, " labels"]:
    """Return the class of every label."""
    images: Int32[np.ndarray, " images"] = plan.support_images[task].reshape(-1)
    labels = plan.support_labels[task].reshape(-1)
    classes = np.empty(int(labels.max()) + 1, np.int64)
    classes[labels] = np.searchsorted(starts, images, side="right") - 1
    return classes


def _joined(
    drawn: Int64[np.ndarray, " labels"],
    class_sizes: Integer[np.ndarray, " classes"],
    look_alikes: Integer[np.ndarray, "classes nearest"],
    words: UInt64[np.ndarray, " labels"],
) -> Int64[np.ndarray, " labels"]:
    """Return the classes of a task with companions."""
    joined, taken = drawn.copy(), set(drawn.tolist())
    for label, partner in enumerate(partner_of(len(drawn))):
        if label == partner:
            continue
        candidates = np.roll(
            look_alikes[drawn[partner]], -int(words[label] % np.uint64(look_alikes.shape[1]))
        )
        fitting = (
            c
            for c in candidates.tolist()
            if c not in taken and class_sizes[c] >= class_sizes[drawn[label]]
        )
        companion = next(fitting, None)
        if companion is not None:
            taken.add(companion)
            joined[label] = companion
    return joined
