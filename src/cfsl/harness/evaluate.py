"""Many tasks through one learner: the numbers behind every result."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int32
from torch import Tensor

from cfsl.data.tasks import Tasks
from cfsl.errors import LearnerError, SpecError
from cfsl.harness.devices import require_device
from cfsl.harness.embedding_table import Table, embedding_table, remembered_table
from cfsl.harness.freed_memory import freed_memory_kept
from cfsl.harness.run import Outcome, Run, StrictRun, TrustingRun
from cfsl.harness.sandbox.sandboxed_learner import SandboxedLearner
from cfsl.harness.sandbox.sandboxed_run import SandboxedRun
from cfsl.harness.trace import Trace
from cfsl.harness.workers import Progress, Workers, on_device, threads
from cfsl.learners.base import FixedEmbedding, Learner, Meta, Support, TaskInfo
from cfsl.learners.maml.accelerated import accelerated
from cfsl.sampling import SAMPLER
from cfsl.sampling.plan import groups_seen

_PLANNED_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The conditions under which tasks are run."""

    progressive: bool = False
    """Ask for all targets after every support set, too."""
    table: bool = True
    """Embed each image of the split once, if the learner is a `FixedEmbedding`: the same answers,
    sooner."""
    law: bool = True
    """Enforce the data-flow law. Without it the learner is trusted: for validation during training,
    where nothing is published."""
    device: str = "cpu"
    isolate: bool = False
    """Run every call of the learner in a locked process of its own (see `sandbox/`): the same
    answers, and nowhere to hide anything."""
    accelerate: bool = False
    """Run the faster twin of the learner, if there is one (see `learners/maml/accelerated.py`):
    the same answers up to rounding."""


def evaluate(
    learner: Learner,
    tasks: Tasks,
    meta: Meta | None = None,
    *,
    progressive: bool = False,
    table: bool = True,
    law: bool = True,
    device: str = "cpu",
    workers: int | Workers = 1,
    isolate: bool = False,
    accelerate: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Run the learner, with the weights `meta`, over the tasks, and return all answers.

    `progressive` also asks for all targets after every support set. `table` lets a learner with
    an `embed` of its own embed each image of the split once. `law` enforces the data-flow law.
    `isolate` runs every call of the learner in a sandbox: a locked process of its own.
    `accelerate` takes the faster twin of a learner that has one. `workers` is the number of
    processes that share the tasks, and `progress` is told how many more tasks are finished.

    `workers` and `isolate` change no bit of the answers; `table` and `accelerate` round otherwise.
    """
    conditions = Conditions(
        progressive=progressive,
        table=table,
        law=law,
        device=device,
        isolate=isolate,
        accelerate=accelerate,
    )
    return evaluate_under(conditions, learner, tasks, meta or {}, workers, progress)


def evaluate_under(
    conditions: Conditions,
    learner: Learner,
    tasks: Tasks,
    meta: Meta,
    workers: int | Workers = 1,
    progress: Progress | None = None,
) -> Trace:
    """Run the learner over the tasks under these conditions, and return all answers.

    Everything is computed on one thread, so the answers are the same bits with any number of
    workers. Tasks that look up a table are so fast that workers would only cost time.
    """
    learner = _checked(learner, tasks, conditions)

    if workers != 1 and not _uses_table(learner, tasks, conditions):
        in_worker = functools.partial(evaluate_under, conditions)
        with Workers.of(workers) as pool:
            return pool.run(in_worker, learner, tasks, meta, progress)

    return _trace(tasks, _outcomes(learner, tasks, meta, conditions, progress))


def evaluate_variants(
    conditions: Conditions,
    learner: Learner,
    variants: Sequence[Tasks],
    meta: Meta,
    progress: Progress | None = None,
) -> list[Trace]:
    """Run tasks that differ in the corruption of their targets only, learning each task once.

    The support sets of all variants are the same, and so is the state after them: the learner is
    asked about the targets of each variant in turn. Every trace has the bits that `evaluate_under`
    gives for its variant alone.
    """
    if len(variants) == 1:
        return [evaluate_under(conditions, learner, variants[0], meta, progress=progress)]
    _require_learned_together(variants, conditions)

    first, *others = variants
    learner = _checked(learner, first, conditions)
    outcomes = _outcomes(learner, first, meta, conditions, progress, others)

    other_outcomes = [
        [replace(outcome, logits=outcome.other_logits[i]) for outcome in outcomes]
        for i in range(len(others))
    ]
    return list(map(_trace, variants, [outcomes, *other_outcomes]))


def _require_learned_together(variants: Sequence[Tasks], conditions: Conditions) -> None:
    """Refuse tasks that do not share their support sets, or that have to be run alone."""
    if conditions.progressive:
        raise LearnerError(
            "tasks that are asked about all along are not learned once for all; run them one by one"
        )
    if len({_what_is_learned(tasks) for tasks in variants}) != 1:
        raise SpecError(
            "only tasks that differ in nothing but the corruption of their targets are learned "
            "together"
        )
    if any(tasks.spec.corruption is None for tasks in variants):
        raise SpecError(
            "clean targets may be embedded beforehand, and are run alone; give corrupted ones"
        )


def _what_is_learned(tasks: Tasks) -> tuple[object, ...]:
    """Return everything that decides the support sets of tasks."""
    key = tasks.key(0)
    return key._replace(spec_hash=tasks.spec.draw_json()), tasks.spec.overwrite, tasks.numbers


def _checked(learner: Learner, tasks: Tasks, conditions: Conditions) -> Learner:
    """Refuse what cannot be run; return the learner that runs: itself or its faster twin."""
    if not len(tasks):
        raise LearnerError("there are no tasks to evaluate; give at least one")
    if conditions.isolate and not conditions.law:
        raise LearnerError("isolate=True enforces the law and law=False does not; give one of them")
    if isinstance(learner, SandboxedLearner) and not conditions.isolate:
        raise LearnerError(f"{learner.place} was made for a sandbox; evaluate it with isolate=True")
    _require_labels_of_spec(tasks)
    require_device(conditions.device)

    if conditions.isolate and conditions.accelerate:
        raise LearnerError(
            "isolate=True runs no kernels that are loaded at first use; leave accelerate out"
        )
    return accelerated(learner, conditions.device) if conditions.accelerate else learner


def _require_labels_of_spec(tasks: Tasks) -> None:
    """Refuse tasks with more labels than their spec says: nothing has room for the others."""
    drawn = 1 + int(tasks.plan(tasks.numbers[:1]).support_labels.max())
    if drawn > tasks.spec.labels:
        raise SpecError(
            f"the sampler {tasks.sampler} gives a class a new label in every support set: {drawn} "
            f"labels, where tasks of this setting have {tasks.spec.labels}, so that nothing can be "
            f"evaluated on them; take the sampler {SAMPLER} or as_released_2020_08, or new classes "
            f"in every support set (cci=1)"
        )


def _outcomes(
    learner: Learner,
    tasks: Tasks,
    meta: Meta,
    conditions: Conditions,
    progress: Progress | None,
    variants: Sequence[Tasks] = (),
) -> list[Outcome]:
    """Run all tasks in this process, one after the other.

    At the end of each task the learner is also asked about the targets of its `variants`.
    """
    _fill_caches(tasks)
    meta = on_device(meta, conditions.device)
    if getattr(learner, "needs_loading", False) and not conditions.isolate:
        _load(learner, tasks, meta)
    uses_table = _uses_table(learner, tasks, conditions)
    outcomes = []

    with (
        threads(1),
        freed_memory_kept(),
        torch.no_grad(),
        _started(learner, meta, conditions, embedded=uses_table) as run,
    ):
        table = _table(run, learner, meta, tasks, conditions) if uses_table else None
        if isinstance(run, SandboxedRun):
            _show_first_task(run, tasks, table)

        for task in _unlabelled(tasks):
            images = _TaskImages(tasks, task, table, conditions.device)
            outcome = run.task(
                replace(task_info(tasks, task.number), device=conditions.device),
                images.support_sets(),
                images.targets,
                progressive=conditions.progressive,
                others=[replace(images, tasks=variant).targets for variant in variants],
            )
            outcomes.append(outcome)
            if progress is not None:
                progress(1)

    return outcomes


def _show_first_task(run: SandboxedRun, tasks: Tasks, table: Table | None) -> None:
    """Let a run see what states look like in task 0 of the setting, whichever tasks it runs."""
    first = replace(tasks, numbers=range(1))
    images = _TaskImages(first, next(_unlabelled(first)), table, "cpu")
    run.compare_structures_with(task_info(first, 0), images.support_sets())


def _load(learner: Learner, tasks: Tasks, meta: Meta) -> None:
    """Let a learner run a task unwatched, so that it has loaded what it loads at first use."""
    images = _TaskImages(tasks, next(_unlabelled(tasks[:1])), None, "cpu")
    info = task_info(tasks, tasks.numbers[0])
    TrustingRun(learner, meta).task(info, images.support_sets(), images.targets)


def _fill_caches(tasks: Tasks) -> None:
    """Let tasks and data set fill their caches now.

    The globals of a script may hold both. They are watched, and must not change later.
    """
    tasks.images.normalised(tasks.plan(tasks.numbers[:1]).target_images)


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
class _UnlabelledTask:
    """A task without the labels of its targets: they must be nowhere while a learner runs."""

    number: int
    support_images: Int32[np.ndarray, "sets images"]
    support_labels: Int32[np.ndarray, "sets images"]
    target_images: Int32[np.ndarray, " targets"]


def _unlabelled(tasks: Tasks) -> Iterator[_UnlabelledTask]:
    for start in range(0, len(tasks), _PLANNED_AT_ONCE):
        yield from _draw_unlabelled(tasks, tasks.numbers[start : start + _PLANNED_AT_ONCE])


def _draw_unlabelled(tasks: Tasks, numbers: range) -> list[_UnlabelledTask]:
    """Draw tasks. The plan with the labels of their targets is gone when this returns."""
    plan = tasks.plan(numbers)
    targets = plan.target_images.copy()
    return [
        _UnlabelledTask(number, plan.support_images[i], plan.support_labels[i], targets[i])
        for i, number in enumerate(numbers)
    ]


@dataclass(frozen=True)
class _TaskImages:
    """The images of a task, made when they are asked for: raw ones, or rows of a table."""

    tasks: Tasks
    task: _UnlabelledTask
    table: Float[Tensor, "all *features"] | None
    device: str

    def support_sets(self) -> Iterator[Support]:
        """Make one support set at a time."""
        for images, labels in zip(self.task.support_images, self.task.support_labels, strict=True):
            yield Support(self._images(images), self._on_device(labels))

    def targets(self) -> Tensor:
        """Make the target images anew."""
        if self.table is not None:
            return self._images(self.task.target_images)

        number = self.task.number
        images, _ = self.tasks.targets_of(self.task.target_images[None], range(number, number + 1))
        return torch.from_numpy(images[0]).to(self.device)

    def _images(self, numbers: Int32[np.ndarray, " n"]) -> Tensor:
        if self.table is not None:
            return self.table[self._on_device(numbers)]
        return torch.from_numpy(self.tasks.images.normalised(numbers)).to(self.device)

    def _on_device(self, numbers: Int32[np.ndarray, " n"]) -> Tensor:
        return torch.from_numpy(numbers.astype(np.int64)).to(self.device)


def _uses_table(learner: Learner, tasks: Tasks, conditions: Conditions) -> bool:
    """Tell whether images are looked up in a table.

    A table holds clean images, each embedded on its own: it serves neither corrupted targets nor
    a transductive learner.
    """
    if not conditions.table or not isinstance(learner, FixedEmbedding):
        return False
    return tasks.spec.corruption is None and not getattr(learner, "transductive", False)


@contextlib.contextmanager
def _started(
    learner: Learner, meta: Meta, conditions: Conditions, *, embedded: bool
) -> Iterator[Run]:
    """Yield what runs tasks. After the last task, check the weights and end all processes."""
    if conditions.isolate:
        yield SandboxedRun(learner, meta, embedded=embedded)
    elif conditions.law:
        strict = StrictRun(learner, meta, embedded=embedded)
        yield strict
        strict.require_unchanged_weights()
    else:
        yield TrustingRun(learner, meta, embedded=embedded)


def _table(run: Run, learner: Learner, meta: Meta, tasks: Tasks, conditions: Conditions) -> Table:
    """Return all images embedded; in a sandbox, by new processes each time."""
    if conditions.isolate:
        return embedding_table(run.embed, tasks, conditions.device)
    return remembered_table(run.embed, learner, meta, tasks, conditions.device)


def _trace(tasks: Tasks, outcomes: Sequence[Outcome]) -> Trace:
    """Put the answers together with the labels, which are drawn only now."""
    plan, spec = tasks.plan(), tasks.spec
    image_bytes = 4 * tasks.data.pixels[0].size

    progressive = None
    if outcomes[0].progressive:
        answers = [torch.stack(outcome.progressive).cpu().numpy() for outcome in outcomes]
        progressive = np.stack(answers).astype(np.int32)

    return Trace(
        logits=torch.stack([outcome.logits for outcome in outcomes]).float().numpy(),
        labels=plan.target_labels.astype(np.int64),
        groups=plan.target_groups.astype(np.int64),
        state_bytes=np.array([outcome.state_bytes for outcome in outcomes], np.int64),
        bookkeeping_bytes=np.array([outcome.bookkeeping_bytes for outcome in outcomes], np.int64),
        support_bytes=spec.support_images * image_bytes,
        progressive=progressive,
        seen=None if progressive is None else groups_seen(spec),
    )
