"""Tasks shared out among processes give the same bits; costs are measured as they arise."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cfsl
from cfsl.errors import DataFlowError, LearnerError
from cfsl.harness.cost import measure_macs, measure_peak_memory
from cfsl.harness.peak import PeakMemory
from cfsl.harness.trace import Trace, joined
from cfsl.harness.workers import SentTensor, Workers, threads
from cfsl.learners.chance import Chance
from cfsl.learners.protonet import ProtoNet
from cfsl.learners.tune import init_tune
from cfsl.nets import conv4, in_channels_last

KEPT: list[Any] = []
AT_WORK = """
import os, pathlib, time
from cfsl.learners.chance import Chance

pathlib.Path(f"{os.getpid()}.here").touch()

class Slow(Chance):
    def observe(self, state, support):
        time.sleep(600)
        return state
"""
STARTING = """
import os, pathlib, sys, time

if "--multiprocessing-fork" in sys.orig_argv:
    pathlib.Path(f"{os.getpid()}.here").touch()
    time.sleep(600)
"""


class Keeper(Chance):
    """Keeps what it saw in its module."""

    def observe(self, state: Any, support: Any) -> Any:
        KEPT.append(support.images.sum().item())
        return state


class Dying(Chance):
    """Takes its process down."""

    def observe(self, state: Any, support: Any) -> Any:
        os._exit(3)


@pytest.fixture(scope="module")
def workers() -> Any:
    with Workers(2) as pool:
        yield pool


def some_tasks(data: cfsl.Dataset, count: int = 5) -> cfsl.Tasks:
    return cfsl.Tasks(
        data, cfsl.TaskSpec.type_d(nss=4, cci=2, n_way=2, k_target=2), numbers=range(3, 3 + count)
    )


def same(a: Trace, b: Trace) -> bool:
    return all(np.array_equal(vars(a)[name], vars(b)[name]) for name in vars(a))


@pytest.mark.parametrize(
    "learner",
    [init_tune(net=conv4(4, "conv-norm-act"), steps=2), ProtoNet(net=conv4(4, "conv-act-norm"))],
)
def test_workers_give_the_bits_of_one_process(
    glyphs: cfsl.Dataset, workers: Workers, learner: Any
) -> None:
    meta = learner.init((1, 28, 28), torch.Generator().manual_seed(0))
    meta = {"params": in_channels_last(meta["params"]), "stats": meta["stats"]}
    tasks, options = some_tasks(glyphs), {"table": False, "progressive": True}

    counts: list[int] = []
    here = cfsl.evaluate(learner, tasks, meta, **options)
    there = cfsl.evaluate(learner, tasks, meta, **options, workers=workers, progress=counts.append)

    assert same(here, there)
    assert sum(counts) == 5
    assert not any(tensor.is_shared() for tensor in meta["params"].values())


def test_a_learner_that_breaks_the_law_is_stopped_in_a_worker_too(
    glyphs: cfsl.Dataset, workers: Workers
) -> None:
    with pytest.raises(DataFlowError, match="KEPT"):
        cfsl.evaluate(Keeper(), some_tasks(glyphs), workers=workers)


def test_a_learner_that_cannot_travel_is_refused_with_what_to_do(
    glyphs: cfsl.Dataset, workers: Workers
) -> None:
    class Local(Chance):
        """Nobody can import it."""

    with pytest.raises(LearnerError, match="top of a module"):
        cfsl.evaluate(Local(), some_tasks(glyphs), workers=workers)


def test_a_worker_that_dies_is_one_line(glyphs: cfsl.Dataset) -> None:
    with Workers(1) as pool, pytest.raises(LearnerError, match="worker process died"):
        cfsl.evaluate(Dying(), some_tasks(glyphs, 2), workers=pool)


@pytest.mark.parametrize(
    ("learner", "module", "code", "processes"),
    [("slow:Slow", "slow.py", AT_WORK, 3), ("init_tune", "sitecustomize.py", STARTING, 2)],
    ids=["at work", "starting"],
)
def test_ctrl_c_ends_all_workers_at_once_in_one_line(
    glyphs: cfsl.Dataset, tmp_path: Path, learner: str, module: str, code: str, processes: int
) -> None:
    (tmp_path / module).write_text(code)
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    words = f"-m cfsl eval {learner} --data glyphs-400x20 --tasks 40 --workers 2"
    one = subprocess.Popen(
        [sys.executable, *words.split()],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=tmp_path,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        while len(here := list(tmp_path.glob("*.here"))) < processes:
            assert one.poll() is None
            time.sleep(0.05)
        os.killpg(one.pid, signal.SIGINT)
        out, err = one.communicate(timeout=30)
    finally:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
    assert (one.returncode, out, err) == (130, "", "cfsl: stopped\n")
    for pid in (int(path.stem) for path in here):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("count", [0, -1])
def test_there_is_at_least_one_worker(glyphs: cfsl.Dataset, count: int) -> None:
    with pytest.raises(LearnerError, match="at least 1"):
        cfsl.evaluate(Chance(), some_tasks(glyphs), workers=count)


@given(st.integers(1, 6), st.lists(st.integers(0, 6), max_size=4), st.booleans())
def test_traces_of_pieces_joined_are_the_trace_of_all(
    tasks: int, cuts: list[int], progressive: bool
) -> None:
    generator = np.random.default_rng(tasks)

    def whole_numbers(*shape: int) -> Any:
        return generator.integers(0, 9, shape)

    whole = Trace(
        logits=generator.normal(size=(tasks, 3, 2)).astype(np.float32),
        labels=whole_numbers(tasks, 3),
        groups=whole_numbers(tasks, 3),
        state_bytes=whole_numbers(tasks, 3),
        bookkeeping_bytes=whole_numbers(tasks, 3),
        support_bytes=7,
        progressive=whole_numbers(tasks, 2, 3).astype(np.int32) if progressive else None,
        seen=np.array([1, 2]) if progressive else None,
    )
    per_task = ("logits", "labels", "groups", "state_bytes", "bookkeeping_bytes", "progressive")
    edges = sorted({0, tasks, *(cut for cut in cuts if cut < tasks)})
    pieces = [
        Trace(
            **vars(whole)
            | {name: vars(whole)[name][a:b] for name in per_task if vars(whole)[name] is not None}
        )
        for a, b in itertools.pairwise(edges)
    ]
    assert same(joined(pieces), whole)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_tensor_arrives_with_its_layout(layout: torch.memory_format) -> None:
    tensor = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(
        memory_format=layout
    )
    arrived = SentTensor.of(tensor).received()
    assert torch.equal(arrived, tensor)
    assert arrived.stride() == tensor.stride()


def test_evaluation_leaves_the_number_of_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_peak_memory_counts_what_lives_at_once() -> None:
    weights = torch.ones(1000)
    with PeakMemory() as memory:
        doubled = weights * 2
        view = doubled[:10]
        del doubled
        assert memory.peak == 4000
        del view
        for _ in range(5):
            kept = torch.zeros(1000)  # the old one lives until the new one is there
        kept += 1
    assert memory.peak == 8000


def test_a_graph_of_gradients_counts_for_peak_memory() -> None:
    weights = torch.ones(1000, requires_grad=True)
    with PeakMemory() as memory:
        product = weights
        for _ in range(10):
            product = product * weights
    assert memory.peak == 40_000


def test_memory_of_tuning_does_not_grow_with_the_number_of_steps(glyphs: cfsl.Dataset) -> None:
    peaks = []
    for steps in (2, 20):
        learner = init_tune(net=conv4(4, "conv-norm-act"), steps=steps)
        meta = learner.init((1, 28, 28), torch.Generator().manual_seed(0))
        peaks.append(measure_peak_memory(learner, some_tasks(glyphs, 1), meta))
    assert peaks[0] == peaks[1] > 0


def test_costs_are_measured_on_one_thread_whatever_is_set(glyphs: cfsl.Dataset) -> None:
    seen = []

    class Watched(Chance):
        def predict(self, state: Any, images: Any) -> Any:
            seen.append(torch.get_num_threads())
            return super().predict(state, images)

    with threads(2):
        measure_macs(Watched(), some_tasks(glyphs, 1), {})
        measure_peak_memory(Watched(), some_tasks(glyphs, 1), {})
        assert seen == [1, 1] and torch.get_num_threads() == 2
