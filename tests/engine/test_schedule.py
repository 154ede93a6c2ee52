"""Steps are given out when what they need is done; one that fails stops only those that need it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.perform import Progress
from cfsl.engine.schedule import Busy, Died, Ending, Event, Failed, Finished, Told, carry_out
from cfsl.engine.steps import (
    CardStep,
    PartialResultStep,
    Step,
    TrainStep,
    learned_together,
    names_of,
    partial_steps_of,
    steps_of,
)
from cfsl.presets.cells import Request, cells_of, runs_of
from cfsl.spec import Noise, TaskSpec

pytestmark = pytest.mark.usefixtures("glyphs")


def runs(learners: str = "pixel_nn,protonet,multiproto", columns: str = "A3,B3", tasks: int = 4):
    request = Request(
        "smoke", "smoke", learners=tuple(learners.split(",")), columns=tuple(columns.split(","))
    )
    return [run.replace(tasks=tasks, piece=2) for run in runs_of(cells_of(request))]


class FakeWorkers:
    """Ends steps as it is told to."""

    def __init__(self, slots: int, ends: Callable[[Step, int], Event]) -> None:
        self._slots, self._ends = slots, ends
        self.order: list[str] = []
        self._out: list[Step] = []

    @property
    def free(self) -> int:
        return self._slots - len(self._out)

    def give(self, step: Step) -> None:
        assert self.free > 0
        self.order.append(step.name)
        self._out.append(step)

    def next_event(self, timeout: float) -> Event | None:
        if not self._out:
            return None
        step = self._out.pop()  # the last given ends first: the worst order there is
        return self._ends(step, self.order.count(step.name))

    def close(self) -> None: ...


def done_by(workers: FakeWorkers, steps: list[Step], folder: Path) -> Ending:
    return carry_out(steps, workers, BenchFolder(folder), lambda event: None)


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_a_step_is_given_out_after_all_that_it_needs_and_once(tmp_path, slots):
    steps = steps_of(runs())
    workers = FakeWorkers(slots, lambda step, times: Finished(step))
    ending = done_by(workers, steps, tmp_path)
    assert sorted(workers.order) == sorted(step.name for step in steps) and len(ending.done) == len(
        steps
    )
    for step in steps:
        assert all(
            workers.order.index(need) < workers.order.index(step.name) for need in step.needs
        )


def test_learners_that_can_share_a_training_share_it():
    steps = steps_of(runs())
    assert sum(isinstance(step, TrainStep) for step in steps) == 1
    assert sum(isinstance(step, PartialResultStep) for step in steps) == 3 * 2 * 2
    assert sum(isinstance(step, CardStep) for step in steps) == 3 * 2


def corrupted(run, *fractions: float):
    """Return instance tests that differ in their noise only."""
    tasks = [
        TaskSpec.instance(2, k_target=2, corruption=Noise(fraction=fraction))
        for fraction in fractions
    ]
    return [run.replace(task=task, progressive=False) for task in tasks]


def test_cells_that_differ_in_the_corruption_of_targets_only_are_learned_together():
    run = runs("pixel_nn", "A3")[0]
    several = corrupted(run, 0.1, 0.2, 0.4)
    steps = learned_together(steps_of([*several, *several]))
    assert [type(step).__name__ for step in steps] == ["PartialResultStep"] * 2 + ["CardStep"] * 3
    assert [single.spec for single in steps[0].singles] == several
    done = {name for step in steps[:2] for name in names_of(step)}
    assert all(done.issuperset(card.needs) for card in steps[2:]) and len(done) == 6
    other_seed, other_length = several[0].replace(task_seed=1), several[0].replace(tasks=5)
    apart = [run, several[0].replace(progressive=True), other_seed, other_length]
    pieces = [
        step for step in learned_together(steps_of([several[0], *apart])) if step.kind == "piece"
    ]
    assert all(not piece.others for piece in pieces) and len(pieces) == 2 + 2 + 2 + 2 + 3


def test_weights_that_are_drawn_for_a_task_are_not_shared_by_others(glyphs):
    several = corrupted(runs("anil", "A3")[0], 0.1, 0.2)
    assert several[0].learning_name == several[1].learning_name
    drawn = [run.replace(train=None) for run in several]
    assert drawn[0].learning_name != drawn[1].learning_name


@pytest.mark.parametrize("how", [Failed, Died])
def test_a_step_of_several_cells_that_fails_is_done_cell_by_cell(tmp_path, how):
    several = corrupted(runs("pixel_nn", "A3")[0], 0.1, 0.2, 0.4)
    steps = learned_together(steps_of(several))
    bad = several[1]

    def ends(step: Step, times: int) -> Event:
        if step.kind == "piece" and bad in (single.spec for single in step.singles):
            return Failed(step, "no", "trace") if how is Failed else Died(step, "exit code -9")
        return Finished(step)

    ending = done_by(FakeWorkers(2, ends), steps, tmp_path)
    carded = [step.spec.hash for step in ending.done if step.kind == "card"]
    assert sorted(carded) == sorted([several[0].hash, several[2].hash])
    assert set(ending.failed) == {piece.name for piece in partial_steps_of(bad)}
    assert list(ending.blocked) == [CardStep(bad).name]
    assert BenchFolder(tmp_path).failure(partial_steps_of(several[0])[0]) is None


def test_pieces_cover_every_task_once():
    run = runs("pixel_nn", "A3", tasks=5)[0]
    assert [number for piece in partial_steps_of(run) for number in piece.numbers] == list(range(5))


def test_what_needs_a_failed_step_is_not_tried_and_everything_else_is_done(tmp_path):
    steps = steps_of(runs())
    workers = FakeWorkers(
        2,
        lambda step, times: Failed(step, "no", "trace") if step.kind == "train" else Finished(step),
    )
    ending = done_by(workers, steps, tmp_path)
    assert list(ending.failed.values()) == ["no"]
    assert len(ending.blocked) == 2 * 2 * 3 and set(ending.blocked.values()) == set(ending.failed)
    assert {step.spec.learner.name for step in ending.done} == {"pixel_nn"}
    training = next(step for step in steps if step.kind == "train")
    assert BenchFolder(tmp_path).failure(training) == {
        "step": training.name,
        "error": "no",
        "trace": "trace",
    }


def test_a_failed_stage_blocks_all_later_stages_whatever_order_they_stand_in(tmp_path):
    request = Request("table1", "strong", data=("glyphs",), learners=("sca",), columns=("B3",))
    steps = steps_of(runs_of(cells_of(request)))
    trainings = [step for step in steps if isinstance(step, TrainStep)]
    others = [step for step in steps if not isinstance(step, TrainStep)]
    assert len(trainings) == 3

    workers = FakeWorkers(1, lambda step, times: Failed(step, "no memory", ""))
    ending = done_by(workers, [*trainings[::-1], *others], tmp_path)
    assert list(ending.failed) == [trainings[0].name]
    assert ending.blocked.keys() == {step.name for step in [*trainings[1:], *others]}


def test_a_step_whose_worker_dies_is_given_to_another_up_to_three_times(tmp_path):
    steps = steps_of(runs("pixel_nn", "A3"))
    card = steps[-1].name
    once = FakeWorkers(1, lambda step, times: Died(step, "-9") if times == 1 else Finished(step))
    assert len(done_by(once, steps, tmp_path).done) == len(steps) and once.order.count(card) == 2
    always = FakeWorkers(
        1, lambda step, times: Died(step, "exit code -9") if step.name == card else Finished(step)
    )
    ending = done_by(always, steps, tmp_path)
    assert always.order.count(card) == 3 and "died 3 times (exit code -9)" in ending.failed[card]


def test_a_step_that_another_bench_is_at_is_looked_at_again(tmp_path, monkeypatch):
    monkeypatch.setattr("cfsl.engine.schedule._LOOK_AGAIN", 0.01)
    steps = steps_of(runs("pixel_nn", "A3"))
    workers = FakeWorkers(1, lambda step, times: Busy(step) if times < 3 else Finished(step))
    assert len(done_by(workers, steps, tmp_path).done) == len(steps)


def test_progress_ends_no_step(tmp_path):
    steps, told = steps_of(runs("pixel_nn", "A3")), []

    def ends(step: Step, times: int) -> Event:
        if step.name not in told:
            told.append(step.name)
            workers._out.append(step)
            return Told(step, Progress(1, 2, "tasks"))
        return Finished(step)

    workers = FakeWorkers(1, ends)
    assert (
        len(done_by(workers, steps, tmp_path).done) == len(steps)
        and workers.order.count(steps[0].name) == 1
    )


def test_only_one_process_has_the_lock(tmp_path):
    step = steps_of(runs("pixel_nn", "A3"))[0]
    with (
        BenchFolder(tmp_path).locked(step) as first,
        BenchFolder(tmp_path).locked(step) as second,
    ):
        assert (first, second) == (True, False)
    with BenchFolder(tmp_path).locked(step) as again:
        assert again
