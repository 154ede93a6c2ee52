"""The engine 'local': one step after the other, in this process."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable

from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.perform import Outcome, Report, perform
from cfsl.engine.schedule import Busy, Event, Failed, Finished, Told
from cfsl.engine.steps import Step


class LocalWorker:
    """Does a step when it is asked for the next event."""

    def __init__(self, bench_folder: BenchFolder, watch: Callable[[Event], None]) -> None:
        """`watch` gets the progress of a step while it is being done."""
        self._bench_folder, self._watch = bench_folder, watch
        self._given: deque[Step] = deque()

    @property
    def free(self) -> int:
        """One step at a time."""
        return 1 - len(self._given)

    def give(self, step: Step) -> None:
        """Take a step."""
        self._given.append(step)

    def next_event(self, timeout: float) -> Event | None:
        """Do the step."""
        if not self._given:
            time.sleep(timeout)  # another bench is doing all steps that are ready
            return None

        step = self._given.popleft()
        return event_of(
            step, self._bench_folder, lambda progress: self._watch(Told(step, progress))
        )

    def close(self) -> None:
        """There is nothing to stop."""


def event_of(step: Step, bench_folder: BenchFolder, report: Report) -> Event:
    """Do a step and return how it ended."""
    try:
        outcome = perform(step, bench_folder, report)
    except (Exception, SystemExit) as error:  # one failing cell must not stop the others
        return Failed(step, f"{type(error).__name__}: {error}", traceback.format_exc())
    return Busy(step) if outcome is Outcome.BUSY else Finished(step)
