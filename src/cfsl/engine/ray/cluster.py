"""The engine 'ray': steps on the machines of a Ray cluster, or on this one (docs/cluster.md).

Only this machine reads and writes the folder of the bench. The files that a step needs are sent
with it; the files that it writes are sent back, and written here. Ray never tries a step twice: the
schedule does that.
"""

from __future__ import annotations

import itertools
import pickle
import queue
import time
import traceback
from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.ray.file_bundle import Checkpoint
from cfsl.engine.ray.joining import joined_cluster, started_here
from cfsl.engine.ray.transfer import StepInputs, write_checkpoint, write_result
from cfsl.engine.schedule import Busy, Died, Event, Failed, Finished, Told
from cfsl.engine.steps import Step, TrainStep
from cfsl.errors import CfslError

_LOOK_AGAIN = 2.0
"""Seconds between two looks at how many processors the cluster has."""
_BETWEEN_REPORTS = 0.2
"""Seconds between two reports of a worker on how far it is ..."""
_MOST_REPORTS = 500
"""... and reports a second of all workers together: there may be a thousand of them."""
_PATIENCE = 60.0
"""Seconds until the queue is asked again, if there were no messages."""
_NOT_IMPORTED = "failed to import on the worker"
"""How Ray says that it does not find our code."""
_MESSAGES = -1
"""This number stands for messages of the queue; all other numbers are those of steps."""


@dataclass
class _SentStep:
    """A step that a worker has."""

    step: Step
    reference: Any
    """To the report that is going to come back."""
    lock: ExitStack
    """Keeps other benches from the step."""
    died: Died | None = None
    """Set when its worker has died, but its last messages may not be read yet."""


class RayWorkers:
    """The processors of a cluster."""

    def __init__(self, bench_folder: BenchFolder, count: int | None, address: str | None) -> None:
        """Join the cluster at an address, or start one on this machine.

        The cluster does `count` steps at once, or one on every processor.
        """
        self._ray = joined_cluster(address, count)
        try:
            self._begin(bench_folder, count)
        except BaseException:
            self._ray.shutdown()
            raise

    def _begin(self, bench_folder: BenchFolder, count: int | None) -> None:
        from cfsl.engine.ray import messages, worker  # which import Ray

        self._bench_folder, self._count, self._worker = bench_folder, count, worker
        self._processors, self._looked = 0, 0.0
        if not self._slots():
            raise CfslError(
                "the Ray cluster has no processors for steps; start a node with "
                "'ray start --num-cpus=...'"
            )

        self._inputs = StepInputs(bench_folder, self._ray.put)
        self._do = self._ray.remote(num_cpus=1, max_retries=0)(worker.do)
        self._queue = started_here(self._ray, messages.MessageQueue)

        self._numbers = itertools.count()
        self._sent: dict[int, _SentStep] = {}
        self._arrived: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        self._events: deque[Event] = deque()
        self._await_messages()

    @property
    def free(self) -> int:
        """How many more steps the cluster can take now; machines may come and go."""
        return max(0, self._slots() - len(self._sent))

    def _slots(self) -> int:
        if time.monotonic() - self._looked > _LOOK_AGAIN:
            self._processors = int(self._ray.cluster_resources().get("CPU", 0))
            self._looked = time.monotonic()
        return self._count or self._processors

    def give(self, step: Step) -> None:
        """Lock a step and send it to a worker, unless it is done or another bench is doing it."""
        with ExitStack() as lock:
            if not lock.enter_context(self._bench_folder.locked(step)):
                self._events.append(Busy(step))
            elif self._bench_folder.checked(step)[0]:
                self._events.append(Finished(step))

            else:
                number = next(self._numbers)
                reference = self._send(number, step)
                self._sent[number] = _SentStep(step, reference, lock.pop_all())
                self._await(number, reference)

    def _send(self, number: int, step: Step) -> Any:
        """Send a step to a worker, and return a reference to the report that comes back."""
        data, files = self._inputs.data(step.spec.data), self._inputs.files(step)
        between = max(_BETWEEN_REPORTS, self._slots() / _MOST_REPORTS)
        order = pickle.dumps(self._worker.Order(number, step, data.key, data.sizes, between))
        return self._do.remote(self._worker.versions(), order, files, [data.reference], self._queue)

    def _await(self, number: int, reference: Any) -> None:
        reference.future().add_done_callback(lambda future: self._arrived.put((number, future)))

    def _await_messages(self) -> None:
        self._await(_MESSAGES, self._queue.take.remote(_PATIENCE))

    def next_event(self, timeout: float) -> Event | None:
        """Wait for the cluster."""
        until = time.monotonic() + timeout
        while not self._events:
            try:
                number, future = self._arrived.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None

            if number == _MESSAGES:
                self._read_messages(future)
            else:
                self._end(number, future)

        return self._events.popleft()

    def _read_messages(self, future: Future[Any]) -> None:
        """Read the messages about steps that workers still have, and wait for the next ones."""
        try:
            messages = future.result()
        except self._ray.exceptions.RayError:  # the queue died, and Ray starts it anew
            messages = []
            time.sleep(_BETWEEN_REPORTS)

        for number, message in messages or self._deaths():
            if number in self._sent:
                self._read(number, message)
        self._await_messages()

    def _read(self, number: int, message: Any) -> None:
        step = self._sent[number].step
        if isinstance(message, Died):
            self._close(number, message)
        elif isinstance(message, Checkpoint) and isinstance(step, TrainStep):
            with suppress(OSError):  # such as a full disk, which the end of the step reports
                write_checkpoint(step.spec, message, self._bench_folder)
        else:
            self._events.append(Told(step, message))

    def _deaths(self) -> list[tuple[int, Died]]:
        """Return the deaths that wait in the queue for their turn, as messages."""
        return [(number, sent.died) for number, sent in self._sent.items() if sent.died is not None]

    def _end(self, number: int, future: Future[Any]) -> None:
        """Take note of how a step ended.

        A death goes through the queue, so that it is read after the last checkpoint.
        """
        sent = self._sent[number]
        event = self._event_of(sent.step, future)
        if isinstance(event, Died):
            sent.died = event
            self._queue.post.remote(number, event)
        else:
            self._close(number, event)

    def _close(self, number: int, event: Event) -> None:
        """Report how a step ended, and unlock it."""
        self._sent.pop(number).lock.close()
        self._events.append(event)

    def _event_of(self, step: Step, future: Future[Any]) -> Event:
        errors = self._ray.exceptions
        try:
            report = future.result()
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.RayError):  # a file was lost on its way to the worker
                return Died(step, _one_line(error.cause))

            if _NOT_IMPORTED in str(error.cause):
                raise CfslError(
                    "a machine of the Ray cluster has no cfsl, or an old one; install this version"
                ) from error
            return Failed(step, _one_line(error.cause), str(error))
        except errors.RayError as error:
            return Died(step, _one_line(error))

        match report:
            case ("left", files):
                return self._write_result(step, files)
            case ("failed", error, trace):
                return Failed(step, error, trace)
            case _:  # a machine that is not fit is not the fault of a step
                raise CfslError(report[1])

    def _write_result(self, step: Step, files: Any) -> Event:
        try:
            write_result(step, files, self._bench_folder)
        except OSError as error:  # such as a full disk
            return Failed(step, _one_line(error), traceback.format_exc())
        return Finished(step)

    def close(self) -> None:
        """Stop everything at once, and leave the cluster."""
        for sent in self._sent.values():
            with suppress(Exception):  # whatever is wrong with the cluster, locks are given back
                self._ray.cancel(sent.reference, force=True)

        self._ray.shutdown()
        while self._sent:
            self._sent.popitem()[1].lock.close()


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
