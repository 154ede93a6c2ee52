"""Episodes whose classes are hard to tell apart: half of them are look-alikes of the other half."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt64

from cfsl.sampling.plan import PlanBlock


def partner_of(labels: int) -> Int64[np.ndarray, " labels"]:
    """Return for every label the label that it accompanies.

    The labels of the first half accompany none: they are returned as they are.
    """
    own, alone = np.arange(labels), labels - labels // 2
    return np.where(own < alone, own, own - alone)


def with_companions(
    plan: PlanBlock,
    class_sizes: Integer[np.ndarray, " classes"],
    look_alikes: Integer[np.ndarray, "classes nearest"],
    words: UInt64[np.ndarray, "tasks labels"],
) -> PlanBlock:
    """Return a plan whose second half of classes are look-alikes ("companions") of the first half.

    Every label stands for one class. The random words choose one of the look-alikes of a class. A
    look-alike that is in the task already, or has too few images, is passed over; where none is
    left, the class that was drawn stays. A companion replaces a class image by image, by images at
    the same positions: distinct images stay distinct.
    """
    starts = np.cumsum(class_sizes) - class_sizes
    supports, targets = plan.support_images.copy(), plan.target_images.copy()

    for task in range(len(plan)):
        drawn = _classes(plan, task, starts)
        chosen = _with_companions(drawn, class_sizes, look_alikes, words[task])

        shift = (starts[chosen] - starts[drawn]).astype(np.int32)
        supports[task] += shift[plan.support_labels[task]]
        targets[task] += shift[plan.target_labels[task]]
    return replace(plan, support_images=supports, target_images=targets)


def _classes(
    plan: PlanBlock, task: int, starts: Integer[np.ndarray, " classes"]
) -> Int64[np.ndarray, " labels"]:
    """Return the class of every label of a task."""
    images: Int32[np.ndarray, " images"] = plan.support_images[task].reshape(-1)
    labels = plan.support_labels[task].reshape(-1)

    classes = np.empty(int(labels.max()) + 1, np.int64)
    classes[labels] = np.searchsorted(starts, images, side="right") - 1
    return classes


def _with_companions(
    drawn: Int64[np.ndarray, " labels"],
    class_sizes: Integer[np.ndarray, " classes"],
    look_alikes: Integer[np.ndarray, "classes nearest"],
    words: UInt64[np.ndarray, " labels"],
) -> Int64[np.ndarray, " labels"]:
    """Replace classes of the second half by look-alikes of those of the first half."""
    chosen, taken = drawn.copy(), set(drawn.tolist())

    for label, partner in enumerate(partner_of(len(drawn))):
        if label == partner:
            continue

        # The random word says at which look-alike the search begins.
        alike = look_alikes[drawn[partner]]
        alike = np.roll(alike, -int(words[label] % np.uint64(len(alike))))
        needed = class_sizes[drawn[label]]
        fitting = (c for c in alike.tolist() if c not in taken and class_sizes[c] >= needed)

        companion = next(fitting, None)
        if companion is not None:
            taken.add(companion)
            chosen[label] = companion
    return chosen
