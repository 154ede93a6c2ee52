"""Tasks as tensors, with random access, slices, iteration and batches."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

from cfsl.corrupt import corrupt
from cfsl.data.images import SplitImages
from cfsl.data.recipe import Recipe
from cfsl.data.splits import splits_hash
from cfsl.data.store import Dataset
from cfsl.errors import SpecError, lookup
from cfsl.sampling import SAMPLER, SAMPLERS, PlanBlock, require_feasible
from cfsl.sampling.philox import Stream
from cfsl.spec import TaskSpec

_IMAGES_AT_ONCE = 1024
_TASKS_PLANNED_AT_ONCE = 1024
_MOST_TASKS = 2**62


class TaskKey(NamedTuple):
    """All that a task depends on: two tasks with equal keys are the same task (rule 23)."""

    data_fingerprint: str
    splits_hash: str
    split: str
    spec_hash: str
    seed: int
    sampler: str
    number: int


@dataclass(frozen=True, eq=False)
class SupportSet:
    """The labelled images that a learner sees at one time."""

    images: Float32[Tensor, "images channels height width"]
    labels: Int64[Tensor, " images"]


@dataclass(frozen=True, eq=False)
class TargetSet:
    """The images that a learner has to label at the end of a task."""

    images: Float32[Tensor, "targets channels height width"]
    labels: Int64[Tensor, " targets"]
    groups: Int64[Tensor, " targets"]
    """The class group (instance test: the support set) that a target was shown in."""
    covered: Float32[Tensor, " targets"]
    """The fraction of each target that corruption replaced; 0 without corruption."""


@dataclass(frozen=True, eq=False)
class Task:
    """One task: support sets in order, and a target set."""

    number: int
    spec: TaskSpec
    recipe: Recipe
    support_sets: tuple[SupportSet, ...]
    target: TargetSet


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """Tasks side by side. Images are float32, or of the precision that a training run asks for."""

    numbers: range
    support_images: Float[Tensor, "tasks sets images channels height width"]
    support_labels: Int64[Tensor, "tasks sets images"]
    target_images: Float[Tensor, "tasks targets channels height width"]
    target_labels: Int64[Tensor, "tasks targets"]
    target_groups: Int64[Tensor, "tasks targets"]
    covered: Float32[Tensor, "tasks targets"]

    def __len__(self) -> int:
        return len(self.numbers)

    def tasks(self, spec: TaskSpec, recipe: Recipe) -> list[Task]:
        """Return the single tasks; their tensors are views of the batch."""
        return [
            Task(
                number,
                spec,
                recipe,
                tuple(map(SupportSet, self.support_images[i], self.support_labels[i])),
                TargetSet(
                    self.target_images[i],
                    self.target_labels[i],
                    self.target_groups[i],
                    self.covered[i],
                ),
            )
            for i, number in enumerate(self.numbers)
        ]


def whole_number(seed: object) -> int:
    """Return a seed as a plain int; refuse 0.0, which would be another seed than 0."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise SpecError(f"seed={seed!r} is refused: a seed is a whole number")
    return operator.index(seed)


@dataclass(frozen=True, eq=False)
class Tasks(Sequence[Task]):
    """The tasks of one spec on one split of a data set.

    Example: ``Tasks(load("glyphs"), TaskSpec.type_b(nss=3))[17]`` is task 17 of the test split. A
    task depends on the data set, its split, the spec, the seed, the sampler and its number alone.
    """

    data: Dataset
    spec: TaskSpec
    split: str = "test"
    seed: int = 0
    numbers: range = range(600)
    sampler: str = SAMPLER

    def __post_init__(self) -> None:
        lookup(SAMPLERS, self.sampler, "sampler")
        object.__setattr__(self, "seed", whole_number(self.seed))
        if not isinstance(self.numbers, range):
            raise SpecError(
                f"numbers={self.numbers!r} is refused: give a range of task numbers, such as "
                f"range(600)"
            )

        if len(self.numbers):
            low, high = sorted((self.numbers[0], self.numbers[-1]))
            if low < 0 or high >= _MOST_TASKS:
                raise SpecError(
                    f"tasks are numbered from 0 on, below 2**62, not from {low} to {high}"
                )

        if self.sampler == SAMPLER:
            require_feasible(self.class_sizes, self.spec, f"{self.data.name}/{self.split}")

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Tasks: ...
    def __getitem__(self, index: int | slice) -> Task | Tasks:
        """Return one task, or the tasks of a slice (which are drawn when they are used)."""
        if isinstance(index, slice):
            return replace(self, numbers=self.numbers[index])

        number = self.numbers[index]
        alone = range(number, number + 1)
        return self.gathered(self.plan(alone), alone).tasks(self.spec, self.data.info.recipe)[0]

    def __iter__(self) -> Iterator[Task]:
        for batch in self.batches():
            yield from batch.tasks(self.spec, self.data.info.recipe)

    def batches(self, size: int | None = None) -> Iterator[TaskBatch]:
        """Yield all tasks in order, `size` at a time; the last batch may be smaller.

        The default size makes batches that fit in the processor's cache.
        """
        if size is None:
            size = max(1, _IMAGES_AT_ONCE // (self.spec.support_images + self.spec.target_images))
        if size < 1:
            raise SpecError(f"a batch holds at least one task, not {size}")

        # Plans are drawn for more tasks than a batch has, since drawing has a cost per call.
        planned = max(1, _TASKS_PLANNED_AT_ONCE // size) * size
        for start in range(0, len(self), planned):
            numbers = self.numbers[start : start + planned]
            plan = self.plan(numbers)

            for first in range(0, len(numbers), size):
                part = slice(first, first + size)
                yield self.gathered(plan[part], numbers[part])

    def plan(self, numbers: range | None = None) -> PlanBlock:
        """Return the image numbers of the tasks, counted over the split; no pixel is read."""
        return SAMPLERS[self.sampler](
            self.class_sizes,
            self.spec,
            self.numbers if numbers is None else numbers,
            seed=self.seed,
            split=self.split,
        )

    def key(self, position: int) -> TaskKey:
        """Return the key of the task at `position`."""
        return TaskKey(
            data_fingerprint=self.data.fingerprint,
            splits_hash=splits_hash(self.data.splits),
            split=self.split,
            spec_hash=self.spec.hash,
            seed=self.seed,
            sampler=self.sampler,
            number=self.numbers[position],
        )

    @functools.cached_property
    def classes(self) -> Int64[np.ndarray, " classes"]:
        """The numbers of the split's classes in the data set."""
        return self.data.classes_of(self.split)

    @functools.cached_property
    def class_sizes(self) -> Int64[np.ndarray, " classes"]:
        """The number of images of each class of the split."""
        return np.asarray(self.data.class_sizes[self.classes])

    @property
    def images(self) -> SplitImages:
        """The split's images; they belong to the data set, so that all its tasks share them."""
        return self.data.shared(
            (SplitImages, self.split), lambda: SplitImages.of(self.data, self.classes)
        )

    def gathered(self, plan: PlanBlock, numbers: range) -> TaskBatch:
        """Return the images of a plan as tensors; corrupt the targets if the spec says so."""
        targets, covered = self.targets_of(plan.target_images, numbers)
        return TaskBatch(
            numbers=numbers,
            support_images=torch.from_numpy(self.images.normalised(plan.support_images)),
            support_labels=torch.from_numpy(plan.support_labels.astype(np.int64)),
            target_images=torch.from_numpy(targets),
            target_labels=torch.from_numpy(plan.target_labels.astype(np.int64)),
            target_groups=torch.from_numpy(plan.target_groups.astype(np.int64)),
            covered=torch.from_numpy(covered),
        )

    def targets_of(
        self, targets: Int32[np.ndarray, "tasks targets"], numbers: range
    ) -> tuple[
        Float32[np.ndarray, "tasks targets channels height width"],
        Float32[np.ndarray, "tasks targets"],
    ]:
        """Return target images, and the fraction of each that corruption replaced.

        Corruption changes pixels in [0, 1], before they are normalised.
        """
        if self.spec.corruption is None:
            return self.images.normalised(targets), np.zeros(targets.shape, np.float32)

        stream = Stream.named("corruption", SAMPLER, self.split, self.seed, self.spec.draw_json())
        images = self.images.in_unit_range(targets)
        covered = np.empty(targets.shape, np.float32)

        for i, number in enumerate(numbers):
            images[i], covered[i] = corrupt(
                images[i], self.spec.corruption, stream=stream, task=number
            )

        self.images.normalise(images)
        return images, covered
