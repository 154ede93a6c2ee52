"""Tasks shared out among processes, one thread each.

A task is the same alone and among others, and everything is computed on one thread, so the answers
are the same bits with any number of workers. On two cores, two processes of one thread do more than
one process of two threads.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cfsl.data.tasks import Tasks
from cfsl.errors import LearnerError
from cfsl.harness.helper_process import HelperContext
from cfsl.harness.trace import Trace, joined
from cfsl.learners.base import Learner, Meta

Progress: TypeAlias = Callable[[int], None]
"""Is told how many more tasks are finished."""
_RunTasks: TypeAlias = Callable[[Learner, Tasks, Meta], Trace]
"""Runs tasks in a worker; it can be pickled."""
_PIECES_A_WORKER = 4
"""A worker gets its tasks in so many pieces, so that none waits long for the others at the end."""


class Workers:
    """Processes that run tasks: `with Workers(2) as workers: evaluate(..., workers=workers)`.

    Starting them takes seconds, so keep them for several evaluations. An error, or Ctrl-C, ends
    them at once.
    """

    def __init__(self, count: int) -> None:
        """Prepare so many workers; they start when there is work."""
        if count < 1:
            raise LearnerError(f"{count} workers cannot do anything; give at least 1")
        self._count = count
        self._context = HelperContext()
        self._pool = ProcessPoolExecutor(
            count, mp_context=self._context, initializer=torch.set_num_threads, initargs=(1,)
        )

    @classmethod
    def of(cls, workers: int | Workers) -> contextlib.AbstractContextManager[Workers]:
        """Return workers that end with the block, or go on if they were there before."""
        return contextlib.nullcontext(workers) if isinstance(workers, Workers) else cls(workers)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:
            self._context.end()

    def run(
        self,
        run_tasks: _RunTasks,
        learner: Learner,
        tasks: Tasks,
        meta: Meta,
        progress: Progress | None = None,
    ) -> Trace:
        """Let free workers run the tasks piece by piece; return one trace, in the tasks' order."""
        _require_sendable(learner)
        size = max(1, -(-len(tasks) // (self._count * _PIECES_A_WORKER)))
        weights = _mapped(SentTensor.of, meta)
        job = _Job(uuid.uuid4().hex, run_tasks, learner, tasks, weights)

        starts = range(0, len(tasks), size)
        pieces = [self._pool.submit(_run_piece, job, slice(at, at + size)) for at in starts]
        self._wait_for(pieces, progress)
        return joined([piece.result() for piece in pieces])

    def _wait_for(self, pieces: list[Future[Trace]], progress: Progress | None) -> None:
        """Report pieces as they finish; cancel all others when one fails."""
        try:
            for piece in as_completed(pieces):
                trace = piece.result()
                if progress is not None:
                    progress(len(trace.logits))
        except BrokenProcessPool as error:
            raise LearnerError(
                "a worker process died (out of memory?); try fewer workers"
            ) from error
        except BaseException:
            for piece in pieces:
                piece.cancel()
            raise


class _Job(NamedTuple):
    """What a worker needs to know."""

    name: str
    run_tasks: _RunTasks
    learner: Learner
    tasks: Tasks
    weights: Mapping[str, Any]
    """Nested dicts of `SentTensor`."""


_TASKS: dict[str, Tasks] = {}
"""In a worker: the tasks of the current job, by its name, with the images they have read."""


def _run_piece(job: _Job, piece: slice) -> Trace:
    """In a worker: run some of the tasks."""
    if job.name not in _TASKS:
        _TASKS.clear()
        _TASKS[job.name] = job.tasks

    meta = _mapped(SentTensor.received, job.weights)
    return job.run_tasks(job.learner, _TASKS[job.name][piece], meta)


def _require_sendable(learner: Learner) -> None:
    try:
        ForkingPickler.dumps(learner)
    except (PicklingError, AttributeError, TypeError) as error:
        raise LearnerError(
            f"{type(learner).__name__} cannot be sent to another process ({error}); "
            f"define it at the top of a module, or use one worker"
        ) from error


class SentTensor(NamedTuple):
    """A tensor on its way to another process: sent as it is, it would become shared memory.

    Its layout in memory is kept, since other layouts compute other roundings.
    """

    values: np.ndarray
    """Contiguous in the order of the axes in memory."""
    axes: list[int]
    """The axes of the tensor, the one with the largest stride first."""

    @classmethod
    def of(cls, tensor: Tensor) -> SentTensor:
        """Prepare a tensor for sending."""
        axes = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        return cls(tensor.detach().cpu().permute(axes).contiguous().numpy(), axes)

    def received(self) -> Tensor:
        """Return the tensor in the layout that it had."""
        back = [self.axes.index(axis) for axis in range(len(self.axes))]
        return torch.from_numpy(self.values.copy()).permute(back)


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to the leaves of nested dicts."""
    if hasattr(tree, "items"):
        return {key: _mapped(function, value) for key, value in tree.items()}
    return function(tree)


def on_device(meta: Meta, device: str) -> Meta:
    """Return the weights on a device."""
    moved: Meta = _mapped(lambda tensor: tensor.to(device), meta)
    return moved


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute on so many threads; another number of them may round otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
