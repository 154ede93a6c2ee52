"""Many tasks through one learner: the numbers behind every result."""

from __future__ import annotations

import contextlib
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
from cfsl.harness.isolation.isolate import IsolatedRun
from cfsl.harness.run import Outcome, StrictRun, TrustingRun
from cfsl.harness.trace import Trace
from cfsl.harness.workers import Workers, on_device, threads
from cfsl.learners.base import FixedEmbedding, Learner, Meta, Support, TaskInfo
from cfsl.learners.maml.accelerated import accelerated
from cfsl.sampling import SAMPLER
from cfsl.sampling.plan import groups_seen

_PLANNED_AT_ONCE = 256


@dataclass(frozen=True)
class Conditions:
    """Under which conditions tasks are run."""

    progressive: bool = False
    """Also ask for all targets after every support set."""
    table: bool = True
    """Embed each image of the split once, if the learner has an embedding of its own; the answers are the same."""
    law: bool = True
    """Enforce the data-flow law. Without it the learner is trusted: for validation, where nothing is published."""
    device: str = "cpu"
    isolate: bool = False
    """Let a new process see every support set, and another give the answers (see `isolate.py`)."""
    accelerate: bool = False
    """Run the faster twin of a learner, if there is one (see `maml_fast.py`): the same up to rounding."""


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
    """Run the learner over the tasks, under the data-flow law, and return what came out.

    A learner with an embedding of its own (`embed`) embeds each image of the split once, unless `table` is off; the
    answers are the same. `progressive` also asks for all targets after every support set. `law=False` trusts the
    learner: for validation during training, where nothing is published. `workers` shares the tasks out among so many
    processes; the answers are the same, to the bit, as everything is computed on one thread. (A table needs none.)
    `accelerate` runs the faster twin of a learner, if there is one: the same answers up to rounding.
    `isolate` lets a new process see every support set: the same answers, and nowhere in memory to hide anything.
    """
    conditions = Conditions(progressive, table, law, device, isolate, accelerate)
    return evaluate_under(
        conditions, learner, tasks, {} if meta is None else meta, workers, progress
    )


def evaluate_under(
    conditions: Conditions,
    learner: Learner,
    tasks: Tasks,
    meta: Meta,
    workers: int | Workers = 1,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Do what `evaluate` does, under conditions that are all said together."""
    learner = _ready(learner, tasks, conditions)
    told = progress or (lambda finished: None)
    if workers == 1 or _uses_table(learner, tasks, conditions):
        return run_tasks(learner, tasks, meta, conditions, told)
    with Workers.of(workers) as pool:
        return pool.run(run_tasks, learner, tasks, meta, conditions, told)


def _ready(learner: Learner, tasks: Tasks, conditions: Conditions) -> Learner:
    """Refuse what cannot be run, and return the learner or its faster twin."""
    if not len(tasks):
        raise LearnerError("there are no tasks to evaluate; give at least one")
    if conditions.isolate and not conditions.law:
        raise LearnerError("isolate=True enforces the law and law=False does not; give one of them")
    _require_labels_of_spec(tasks)
    require_device(conditions.device)
    if conditions.isolate and conditions.accelerate:
        raise LearnerError(
            "isolate=True runs no kernels that are loaded at first use; leave accelerate out"
        )
    return accelerated(learner, conditions.device) if conditions.accelerate else learner


def _require_labels_of_spec(tasks: Tasks) -> None:
    """Refuse tasks with more labels than their spec says: learners, networks and cards have room for those only."""
    drawn = 1 + int(tasks.plan(tasks.numbers[:1]).support_labels.max())
    if drawn > tasks.spec.labels:
        raise SpecError(
            f"the sampler {tasks.sampler} gives a class a new label in every support set: {drawn} labels, where tasks "
            f"of this setting have {tasks.spec.labels}, so that nothing can be evaluated on them; take the sampler "
            f"{SAMPLER} or as_released_2020_08, or new classes in every support set (cci=1)"
        )


def run_tasks(
    learner: Learner,
    tasks: Tasks,
    meta: Meta,
    conditions: Conditions,
    progress: Callable[[int], None],
) -> Trace:
    """Run all tasks in this process, one after the other."""
    return _run_variants(learner, [tasks], meta, conditions, progress)[0]


def evaluate_variants(
    conditions: Conditions,
    learner: Learner,
    variants: Sequence[Tasks],
    meta: Meta,
    progress: Callable[[int], None] | None = None,
) -> list[Trace]:
    """Do what `evaluate_under` does for tasks that differ in the corruption of their targets only, learning each once.

    The support sets are the same, so the state after them is, too: it is asked about each variant's targets in turn.
    Every trace is, to the bit, what its variant gives alone.
    """
    if len(variants) == 1:
        return [evaluate_under(conditions, learner, variants[0], meta, progress=progress)]
    if conditions.progressive:
        raise LearnerError(
            "tasks that are asked about all along are not learned once for all; run them one by one"
        )
    if len({_what_is_learned(tasks) for tasks in variants}) != 1:
        raise SpecError(
            "only tasks that differ in nothing but the corruption of their targets are learned together"
        )
    if any(tasks.spec.corruption is None for tasks in variants):
        raise SpecError(
            "clean targets may be embedded beforehand, and are run alone; give corrupted ones"
        )
    learner = _ready(learner, variants[0], conditions)
    return _run_variants(learner, variants, meta, conditions, progress or (lambda finished: None))


def _what_is_learned(tasks: Tasks) -> tuple[object, ...]:
    """Return all that decides the support sets of tasks."""
    key = tasks.key(0)
    return key._replace(spec_hash=tasks.spec.draw_json()), tasks.spec.overwrite, tasks.numbers


def _run_variants(
    learner: Learner,
    variants: Sequence[Tasks],
    meta: Meta,
    conditions: Conditions,
    progress: Callable[[int], None],
) -> list[Trace]:
    """Learn the tasks of the first variant, and ask about the targets of all."""
    tasks = variants[0]
    _fill_caches(tasks)
    meta = on_device(meta, conditions.device)
    if getattr(learner, "needs_loading", False):
        _load(learner, tasks, meta)
    uses_table = _uses_table(learner, tasks, conditions)
    with (
        threads(1),
        freed_memory_kept(),
        torch.no_grad(),
        _started(learner, meta, conditions, embedded=uses_table) as run,
    ):
        embedding = _table(run, learner, meta, tasks, conditions) if uses_table else None
        outcomes = []
        for task in _unlabelled(tasks):
            info = replace(task_info(tasks, task.number), device=conditions.device)
            supports = _Supports(tasks, task, embedding, conditions.device)
            others = [replace(supports, tasks=variant).targets for variant in variants[1:]]
            outcomes.append(
                run.task(
                    info,
                    iter(supports),
                    supports.targets,
                    progressive=conditions.progressive,
                    others=others,
                )
            )
            progress(1)
        if isinstance(run, StrictRun):
            run.require_unchanged_weights()
    return [
        _trace(
            variant,
            [replace(outcome, logits=[outcome.logits, *outcome.others][i]) for outcome in outcomes],
            progressive=conditions.progressive,
        )
        for i, variant in enumerate(variants)
    ]


def _load(learner: Learner, tasks: Tasks, meta: Meta) -> None:
    """Let a learner run a task unwatched, so that whatever it loads is loaded."""
    supports = _Supports(tasks, next(_unlabelled(tasks[:1])), None, "cpu")
    TrustingRun(learner, meta).task(
        task_info(tasks, tasks.numbers[0]), iter(supports), supports.targets
    )


def _fill_caches(tasks: Tasks) -> None:
    """Let tasks and data set remember what they remember: a script's globals may hold both, and are watched."""
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
class _Unlabelled:
    """A task without the labels of its targets: they must be nowhere while a learner runs."""

    number: int
    support_images: Int32[np.ndarray, "sets images"]
    support_labels: Int32[np.ndarray, "sets images"]
    target_images: Int32[np.ndarray, " targets"]


def _unlabelled(tasks: Tasks) -> Iterator[_Unlabelled]:
    for start in range(0, len(tasks), _PLANNED_AT_ONCE):
        yield from _draw_unlabelled(tasks, tasks.numbers[start : start + _PLANNED_AT_ONCE])


def _draw_unlabelled(tasks: Tasks, numbers: range) -> list[_Unlabelled]:
    plan = tasks.plan(numbers)
    targets = plan.target_images.copy()
    return [
        _Unlabelled(number, plan.support_images[i], plan.support_labels[i], targets[i])
        for i, number in enumerate(numbers)
    ]


@dataclass(frozen=True)
class _Supports:
    """Makes the support sets and the targets of a task when they are asked for."""

    tasks: Tasks
    task: _Unlabelled
    table: Float[Tensor, "all *features"] | None
    device: str

    def __iter__(self) -> Iterator[Support]:
        for images, labels in zip(self.task.support_images, self.task.support_labels, strict=True):
            yield Support(
                self._shown(images), torch.from_numpy(labels.astype(np.int64)).to(self.device)
            )

    def _shown(self, numbers: Int32[np.ndarray, " n"]) -> Tensor:
        if self.table is not None:
            return self.table[torch.from_numpy(numbers.astype(np.int64)).to(self.device)]
        return torch.from_numpy(self.tasks.images.normalised(numbers)).to(self.device)

    def targets(self) -> Tensor:
        """Return the target images anew."""
        if self.table is not None:
            return self._shown(self.task.target_images)
        number = self.task.number
        images, _ = self.tasks.targets_of(self.task.target_images[None], range(number, number + 1))
        return torch.from_numpy(images[0]).to(self.device)


def _uses_table(learner: Learner, tasks: Tasks, conditions: Conditions) -> bool:
    """A table holds clean images, each embedded on its own: no corrupted targets, and no transductive learner."""
    if not conditions.table or not isinstance(learner, FixedEmbedding):
        return False
    return tasks.spec.corruption is None and not getattr(learner, "transductive", False)


@contextlib.contextmanager
def _started(
    learner: Learner, meta: Meta, conditions: Conditions, *, embedded: bool
) -> Iterator[StrictRun | TrustingRun | IsolatedRun]:
    """Yield what runs tasks; afterwards its processes have ended."""
    if conditions.isolate:
        with IsolatedRun(learner, meta, embedded=embedded) as run:
            yield run
    else:
        yield (StrictRun if conditions.law else TrustingRun)(learner, meta, embedded=embedded)


def _table(
    run: StrictRun | TrustingRun | IsolatedRun,
    learner: Learner,
    meta: Meta,
    tasks: Tasks,
    conditions: Conditions,
) -> Table:
    """Return all images embedded; in isolation, by a new process each time."""
    if conditions.isolate:
        return embedding_table(run.embed, tasks, conditions.device)
    return remembered_table(run.embed, learner, meta, tasks, conditions.device)


def _trace(tasks: Tasks, outcomes: list[Outcome], *, progressive: bool) -> Trace:
    """Put the answers together with the labels, which are drawn only now."""
    plan, spec = tasks.plan(), tasks.spec
    image_bytes = 4 * tasks.data.pixels[0].size
    answers = (
        np.stack([np.stack([a.cpu().numpy() for a in o.progressive]) for o in outcomes])
        if progressive
        else None
    )
    return Trace(
        logits=torch.stack([outcome.logits for outcome in outcomes]).float().numpy(),
        labels=plan.target_labels.astype(np.int64),
        groups=plan.target_groups.astype(np.int64),
        state_bytes=np.array([outcome.state_bytes for outcome in outcomes], np.int64),
        bookkeeping_bytes=np.array([outcome.bookkeeping_bytes for outcome in outcomes], np.int64),
        support_bytes=spec.support_images * image_bytes,
        progressive=None if answers is None else answers.astype(np.int32),
        seen=groups_seen(spec) if progressive else None,
    )
