"""Many tasks through one learner: the numbers behind every result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int32
from torch import Tensor

from cfsl.data.tasks import Tasks
from cfsl.errors import LearnerError
from cfsl.harness.run import Outcome, StrictRun, TrustingRun
from cfsl.harness.trace import Trace
from cfsl.learners.base import FixedEmbedding, Learner, Meta, Support, TaskInfo
from cfsl.spec import TaskSpec

_EMBEDDED_AT_ONCE = 256


def evaluate(
    learner: Learner,
    tasks: Tasks,
    meta: Meta | None = None,
    *,
    progressive: bool = False,
    table: bool = True,
    law: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Run the learner over the tasks, under the data-flow law, and return what came out.

    A learner with an embedding of its own (`embed`) embeds each image of the split once, unless `table` is off; the
    answers are the same. `progressive` also asks for all targets after every support set. `law=False` trusts the
    learner: for validation during training, where nothing is published.
    """
    meta = {} if meta is None else meta
    embedding = _embedding_table(learner, tasks, meta) if table and _can_use_table(learner, tasks) else None
    kind = StrictRun if law else TrustingRun
    run = kind(learner, meta, embedded=embedding is not None)
    outcomes = []
    with torch.no_grad():
        for task in _unlabelled(tasks):
            supports = _Supports(tasks, task, embedding)
            outcome = run.task(task_info(tasks, task.number), iter(supports), supports.targets, progressive=progressive)
            outcomes.append(outcome)
            if progress is not None:
                progress(1)
    return _trace(tasks, outcomes, progressive=progressive)


def task_info(tasks: Tasks, number: int) -> TaskInfo:
    """Return what a learner is told about a task."""
    spec, recipe = tasks.spec, tasks.data.info.recipe
    name = f"learner\x1f{tasks.split}\x1f{tasks.seed}\x1f{spec.draw_json()}\x1f{number}"
    return TaskInfo(
        image_shape=(recipe.channels, recipe.height, recipe.width),
        labels=spec.labels,
        nss=spec.nss,
        n_way=spec.n_way,
        k_shot=spec.k_shot,
        cci=spec.interval,
        overwrite=spec.overwrite,
        seed=int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little"),
    )


@dataclass(frozen=True)
class _Unlabelled:
    """A task without the labels of its targets: they must be nowhere while a learner runs."""

    number: int
    support_images: Int32[np.ndarray, "sets images"]
    support_labels: Int32[np.ndarray, "sets images"]
    target_images: Int32[np.ndarray, " targets"]


def _unlabelled(tasks: Tasks) -> Iterator[_Unlabelled]:
    for number in tasks.numbers:
        yield _draw_unlabelled(tasks, number)


def _draw_unlabelled(tasks: Tasks, number: int) -> _Unlabelled:
    plan = tasks.plan(range(number, number + 1)).task(0)
    return _Unlabelled(number, plan.support_images, plan.support_labels, plan.target_images.copy())


@dataclass(frozen=True)
class _Supports:
    """Makes the support sets and the targets of a task when they are asked for."""

    tasks: Tasks
    task: _Unlabelled
    table: Float[Tensor, "all *features"] | None

    def __iter__(self) -> Iterator[Support]:
        for images, labels in zip(self.task.support_images, self.task.support_labels, strict=True):
            yield Support(self._shown(images), torch.from_numpy(labels.astype(np.int64)))

    def _shown(self, numbers: Int32[np.ndarray, " n"]) -> Tensor:
        if self.table is not None:
            return self.table[torch.from_numpy(numbers.astype(np.int64))]
        return torch.from_numpy(self.tasks.images.normalised(numbers))

    def targets(self) -> Tensor:
        """Return the target images anew."""
        if self.table is not None:
            return self._shown(self.task.target_images)
        number = self.task.number
        images, _ = self.tasks.targets_of(self.task.target_images[None], range(number, number + 1))
        return torch.from_numpy(images[0])


def _can_use_table(learner: Learner, tasks: Tasks) -> bool:
    """A table holds clean images, so corrupted targets need the long way."""
    return isinstance(learner, FixedEmbedding) and tasks.spec.corruption is None


def _embedding_table(learner: Learner, tasks: Tasks, meta: Meta) -> Float[Tensor, "all *features"]:
    """Embed every image of the split, each on its own."""
    assert isinstance(learner, FixedEmbedding)
    count, parts = len(tasks.images.rows), []
    with torch.no_grad():
        for start in range(0, count, _EMBEDDED_AT_ONCE):
            numbers = np.arange(start, min(start + _EMBEDDED_AT_ONCE, count), dtype=np.int32)
            parts.append(learner.embed(meta, torch.from_numpy(tasks.images.normalised(numbers))))
    return torch.cat(parts)


def _trace(tasks: Tasks, outcomes: list[Outcome], *, progressive: bool) -> Trace:
    """Put the answers together with the labels, which are drawn only now."""
    if not outcomes:
        raise LearnerError("there are no tasks to evaluate; give at least one")
    plan, spec = tasks.plan(), tasks.spec
    image_bytes = 4 * tasks.data.pixels[0].size
    answers = np.stack([np.stack([a.numpy() for a in o.progressive]) for o in outcomes]) if progressive else None
    return Trace(
        logits=torch.stack([outcome.logits for outcome in outcomes]).float().numpy(),
        labels=plan.target_labels.astype(np.int64),
        groups=plan.target_groups.astype(np.int64),
        state_bytes=np.array([outcome.state_bytes for outcome in outcomes], np.int64),
        bookkeeping_bytes=np.array([outcome.bookkeeping_bytes for outcome in outcomes], np.int64),
        support_bytes=spec.support_images * image_bytes,
        progressive=None if answers is None else answers.astype(np.int32),
        seen=_groups_seen(spec) if progressive else None,
    )


def _groups_seen(spec: TaskSpec) -> np.ndarray:
    """Return how many groups had been shown after each support set."""
    sets = np.arange(spec.nss, dtype=np.int64)
    return sets + 1 if spec.kind == "instance" else sets // spec.interval + 1
