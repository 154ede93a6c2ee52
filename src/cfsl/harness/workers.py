"""Tasks shared out among processes, one thread each.

A task is the same alone and among others, and everything is computed on one thread, so the answers are the same to the
bit however many workers there are. On two cores, two processes of one thread do more than one process of two threads.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cfsl.data.tasks import Tasks
from cfsl.errors import LearnerError
from cfsl.harness.isolation.helper_process import Hiring
from cfsl.harness.trace import Trace, joined
from cfsl.learners.base import Learner, Meta

Told = Callable[[int], None]
Runner = Callable[[Learner, Tasks, Meta, Any, Told], Trace]
_SHARES = 4
"""A worker gets its tasks in so many pieces, so that none waits long for the other at the end."""


class Workers:
    """Processes that run tasks: `with Workers(2) as workers: evaluate(..., workers=workers)`.

    Starting them takes seconds, so keep them for several evaluations. An error, or Ctrl-C, ends them at once.
    """

    def __init__(self, count: int) -> None:
        """Prepare so many workers; they start when there is work."""
        if count < 1:
            raise LearnerError(f"{count} workers cannot do anything; give at least 1")
        self._count = count
        self._hiring = Hiring()
        self._pool = ProcessPoolExecutor(
            count, mp_context=self._hiring, initializer=torch.set_num_threads, initargs=(1,)
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
            self._hiring.end()

    def run(
        self,
        runner: Runner,
        learner: Learner,
        tasks: Tasks,
        meta: Meta,
        conditions: Any,
        progress: Told,
    ) -> Trace:
        """Run all tasks, piece by piece, wherever there is a free worker; return one trace, in the tasks' order."""
        _require_sendable(learner)
        size = max(1, -(-len(tasks) // (self._count * _SHARES)))
        job = _Job(uuid.uuid4().hex, runner, learner, tasks, _mapped(_Sent, meta), conditions)
        starts = range(0, len(tasks), size)
        pieces = {
            self._pool.submit(_run_piece, job, slice(start, start + size)): start
            for start in starts
        }
        return joined(
            [
                trace
                for _, trace in sorted(self._finished(pieces, progress), key=lambda piece: piece[0])
            ]
        )

    def _finished(
        self, pieces: dict[Future[Trace], int], progress: Told
    ) -> Iterator[tuple[int, Trace]]:
        try:
            for piece in as_completed(pieces):
                trace = piece.result()
                progress(len(trace.logits))
                yield pieces[piece], trace
        except BrokenProcessPool as error:
            raise LearnerError(
                "a worker process died (out of memory?); try fewer workers"
            ) from error
        except BaseException:
            for piece in pieces:
                piece.cancel()
            raise


class _Job(NamedTuple):
    """What a worker needs to know. Weights travel as arrays: sent as tensors they would become shared memory."""

    name: str
    runner: Runner
    learner: Learner
    tasks: Tasks
    meta: Any
    conditions: Any


_TASKS: dict[str, Tasks] = {}
"""In a worker: the tasks of the job at hand, with the images they have read."""


def _run_piece(job: _Job, piece: slice) -> Trace:
    """In a worker: run some of the tasks."""
    if job.name not in _TASKS:
        _TASKS.clear()
        _TASKS[job.name] = job.tasks
    meta = _mapped(lambda sent: sent.tensor(), job.meta)
    return job.runner(
        job.learner, _TASKS[job.name][piece], meta, job.conditions, lambda finished: None
    )


def _require_sendable(learner: Learner) -> None:
    try:
        ForkingPickler.dumps(learner)
    except (PicklingError, AttributeError, TypeError) as error:
        raise LearnerError(
            f"{type(learner).__name__} cannot be sent to another process ({error}); "
            f"define it at the top of a module, or use one worker"
        ) from error


class _Sent:
    """A tensor on its way: values and layout, since other layouts compute other roundings."""

    def __init__(self, tensor: Tensor) -> None:
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        self._values = tensor.detach().cpu().permute(order).contiguous().numpy()
        self._order = order

    def tensor(self) -> Tensor:
        back = [self._order.index(axis) for axis in range(len(self._order))]
        return torch.from_numpy(self._values.copy()).permute(back)


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
    """Compute on so many threads. Another number, or another kind of processor, may round otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
