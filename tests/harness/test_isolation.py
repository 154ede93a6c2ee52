"""Isolated runs: the same answers, and no memory of a process outlives a support set."""

from __future__ import annotations

import ctypes
import io
import json
import mmap
import os
import queue
import re
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_law import (
    INFO,
    LABELS,
    Honest,
    InFile,
    InLearnedWeights,
    nearest,
    supports,
    targets,
)

from cfsl.errors import CfslError, DataFlowError, LearnerError
from cfsl.harness import law
from cfsl.harness import state as state_module
from cfsl.harness.isolation import fork_server, forked, frames, worker_payload
from cfsl.harness.isolation.fork_server import Template
from cfsl.harness.isolation.isolate import IsolatedRun
from cfsl.harness.run import StrictRun
from cfsl.harness.state import StateCodec
from cfsl.learners.base import Support

fcntl = pytest.importorskip("fcntl", reason="isolated runs need a system that can fork")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture(scope="module")
def template():
    """One for all tests; it imports pytest, or every worker would for this module's learners."""
    program = fork_server._program
    fork_server._program = lambda descriptor: f"import pytest; {program(descriptor)}"
    template = Template()
    fork_server._program = program
    yield template
    template.close()


def task(run, **options):
    with torch.no_grad():
        return run.task(replace(INFO), supports(), targets, **options)


def isolated(learner, template, meta=None, **options):
    return task(IsolatedRun(learner, meta or {}, template=template, **options))


def right(outcome) -> float:
    return float((outcome.logits.argmax(dim=1) == torch.arange(LABELS)).float().mean())


# The same answers


@pytest.mark.parametrize("name", ["protonet", "multiproto", "init_tune", "pretrain_tune_replay"])
def test_isolated_results_equal_strict_results_to_the_bit(template, name):
    from cfsl.learners.registry import find_learner

    learner, info = find_learner(name), replace(INFO, image_shape=(1, 28, 28))
    meta = learner.init(info.image_shape, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    shown = [
        Support(torch.rand(5, 1, 28, 28, generator=generator), s * 5 + torch.arange(5))
        for s in range(3)
    ]
    asked = torch.rand(6, 1, 28, 28, generator=generator).to(memory_format=torch.channels_last)
    runs = StrictRun(learner, meta), IsolatedRun(learner, meta, template=template)
    with torch.no_grad():
        strict, apart = (
            run.task(
                info,
                [Support(s.images.clone(), s.labels.clone()) for s in shown],
                lambda: asked,
                progressive=True,
            )
            for run in runs
        )

    assert torch.equal(strict.logits, apart.logits)
    assert all(map(torch.equal, strict.progressive, apart.progressive))
    assert len(apart.progressive) == 3
    assert strict.state_bytes == apart.state_bytes
    assert strict.bookkeeping_bytes == apart.bookkeeping_bytes


def test_the_command_line_isolates_and_says_so_on_the_card(data_root):
    from typer.testing import CliRunner

    from cfsl.cli import app

    words = (
        "eval random_embedding --data glyphs-60x12 --tasks 2 --nss 2 --n-way 2 --k-target 2 "
        "--json --isolate"
    )
    cards = [
        json.loads(CliRunner().invoke(app, [*words.split(), kind]).stdout)
        for kind in ("none", "process")
    ]
    assert [card["isolation"] for card in cards] == ["none", "process"]
    assert cards[0]["metrics"] == cards[1]["metrics"]
    assert CliRunner().invoke(app, [*words.split(), "magic"]).exit_code == 2


def test_weights_and_images_arrive_as_they_lay_in_memory():
    last = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tree = {
        "net": {
            "a": last,
            "b": torch.rand(3, 2).t(),
            "c": torch.rand(2, 1).expand(2, 3),
            "d": torch.zeros(0, 2),
        }
    }
    codec = StateCodec({}, INFO)
    arrived = codec.unpack(codec.pack(tree))
    back = worker_payload.laid_out(arrived, worker_payload.strides_of(tree))["net"]

    assert all(torch.equal(back[key], tree["net"][key]) for key in "abcd")
    assert back["a"].stride() == last.stride()
    assert back["b"].stride() == (1, 2)
    assert back["c"].stride() == (3, 1)


class TellsGradMode(Honest):
    def predict(self, state, images):
        return torch.full((len(images), LABELS), float(torch.is_grad_enabled()))


@pytest.mark.parametrize("enabled", [False, True])
def test_gradients_are_on_in_a_worker_if_they_are_here(template, enabled):
    run = IsolatedRun(TellsGradMode(), {}, template=template, thorough_tasks=0)
    with torch.set_grad_enabled(enabled):
        assert run.task(INFO, [], targets).logits[0, 0] == float(enabled)


# Cheats that a strict run does not see


@dataclass(frozen=True)
class Smuggler:
    """Keeps every image where `hide` puts it, and has a perfect memory if `found` returns it."""

    def begin(self, meta, info):
        return {"info": info}

    def observe(self, state, support):
        self.hide(support.images.numpy().copy(), support.labels.numpy().copy(), state)
        return state

    def predict(self, state, images):
        found = self.found(state)
        if not found:
            return torch.zeros(len(images), LABELS)

        stored, labels = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return nearest(images, torch.from_numpy(stored), torch.from_numpy(labels))


IMAGE_BYTES, LABEL_BYTES = 5 * 64 * 4, 5 * 8
SUPPORT_SET_BYTES = IMAGE_BYTES + LABEL_BYTES


def read_support_set(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and the labels of a support set from their bytes."""
    images = np.frombuffer(content[:IMAGE_BYTES], np.float32).reshape(5, 1, 8, 8)
    return images.copy(), np.frombuffer(content[IMAGE_BYTES:], np.int64).copy()


class InAnotherModule(Smuggler):
    place = json

    def hide(self, images, labels, state):
        self.place.cfsl_hidden = [*self.found(state), (images, labels)]

    def found(self, state):
        return getattr(self.place, "cfsl_hidden", [])


class OnTorch(InAnotherModule):
    place = torch.nn


class InNativeMemory(Smuggler):
    """Python forgets the buffer and never frees it; what is kept elsewhere is an address."""

    def hide(self, images, labels, state):
        data = images.tobytes() + labels.tobytes()
        buffer = ctypes.create_string_buffer(data, len(data))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))
        json.cfsl_hidden = (*getattr(json, "cfsl_hidden", ()), ctypes.addressof(buffer))

    def found(self, state):
        addresses = getattr(json, "cfsl_hidden", ())
        return [
            read_support_set(ctypes.string_at(address, SUPPORT_SET_BYTES)) for address in addresses
        ]


class OlderThread(threading.Thread):
    """Keeps messages in a local variable of a thread that was there before the run."""

    def __init__(self):
        super().__init__(daemon=True)
        self.messages, self.answers = queue.Queue(), queue.Queue()

    def run(self):
        kept = []
        while (message := self.messages.get()) != "end":
            if message == "all":
                self.answers.put(list(kept))
            else:
                kept.append(message)


class InOlderThread(Smuggler):
    def hide(self, images, labels, state):
        if hasattr(json, "cfsl_hidden"):
            json.cfsl_hidden.messages.put((images, labels))

    def found(self, state):
        if not hasattr(json, "cfsl_hidden"):
            return []
        json.cfsl_hidden.messages.put("all")
        return json.cfsl_hidden.answers.get()


class InPatchedHarness(Smuggler):
    """Replaces a function of cfsl by one that remembers."""

    def hide(self, images, labels, state):
        kept, plain = [*self.found(state), (images, labels)], StateCodec.unpack

        def unpack(codec, packed):
            return plain(codec, packed)

        unpack.kept = kept
        StateCodec.unpack = unpack

    def found(self, state):
        return getattr(StateCodec.unpack, "kept", [])


class OnTaskInfo(Smuggler):
    """The info of a task is allowed in a state; so is what somebody has pinned to it."""

    def hide(self, images, labels, state):
        object.__setattr__(state["info"], "cfsl_hidden", [*self.found(state), (images, labels)])

    def found(self, state):
        return getattr(state["info"], "cfsl_hidden", [])


class InSharedMapping(Smuggler):
    """Writes to memory that its module, when it was imported, has made for all later processes."""

    def hide(self, images, labels, state):
        json.cfsl_shared.write(images.tobytes() + labels.tobytes())

    def found(self, state):
        filled = json.cfsl_shared[:].rstrip(b"\0")
        starts = range(0, len(filled), SUPPORT_SET_BYTES)
        blocks = [json.cfsl_shared[start : start + SUPPORT_SET_BYTES] for start in starts]
        return [read_support_set(block) for block in blocks]


if not hasattr(json, "cfsl_shared"):
    json.cfsl_shared = mmap.mmap(-1, 1 << 16)


@pytest.fixture
def clean():
    """Take away what smugglers leave behind in this process."""
    plain = StateCodec.unpack
    yield
    StateCodec.unpack = plain
    json.cfsl_shared.seek(0)
    json.cfsl_shared.write(bytes(1 << 16))
    json.cfsl_shared.seek(0)
    for place in (json, torch.nn):
        vars(place).pop("cfsl_hidden", None)


@pytest.mark.parametrize(
    "cheat",
    [
        InAnotherModule,
        OnTorch,
        InNativeMemory,
        InOlderThread,
        InPatchedHarness,
        OnTaskInfo,
        InSharedMapping,
    ],
)
def test_what_a_strict_run_cannot_see_is_gone_with_the_process(template, clean, cheat):
    thread = OlderThread()
    if cheat is InOlderThread:
        thread.start()
        json.cfsl_hidden = thread
    assert right(task(StrictRun(cheat(), {}))) == 1.0, "the docs say that this works in one process"
    assert right(isolated(cheat(), template, thorough_tasks=0)) == pytest.approx(1 / LABELS)
    thread.messages.put("end")


class InNewThread(Smuggler):
    def hide(self, images, labels, state):
        threading.Thread(target=time.sleep, args=(60,), name="hidden", daemon=True).start()


class BehindTheGuard(Smuggler):
    """Switches the guard off, and writes a file from a thread that nobody watches."""

    path = Path("unset")

    def hide(self, images, labels, state):
        law._WATCHED.call = None
        problems = []

        def write():
            try:
                self.path.write_bytes(images.tobytes())
            except Exception as error:
                problems.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        if problems:
            raise problems[0]


def test_the_law_is_enforced_in_workers(template, tmp_path, monkeypatch):
    with pytest.raises(
        DataFlowError, match=r"InNewThread.observe left a thread running \(hidden\)"
    ):
        isolated(InNewThread(), template)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataFlowError, match=r"InFile.observe opened the file unset"):
        isolated(InFile(), template)
    with pytest.raises(DataFlowError, match="BehindTheGuard opened the file unset"):
        isolated(BehindTheGuard(), template)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_a_worker_writes_to_are_its_own_copy(template):
    weights = {"weights": torch.zeros(4)}
    run = IsolatedRun(InLearnedWeights(), weights, template=template)
    for _ in range(2):  # the second worker finds them as the first did
        with pytest.raises(DataFlowError, match="changed its learned weights 'weights' in place"):
            task(run)
    assert weights["weights"].tolist() == [0] * 4


class Liar(Honest):
    """Makes its process count nothing."""

    def observe(self, state, support):
        StateCodec._count = lambda codec, size, bookkeeping: None
        return super().observe(state, support)


def test_a_state_is_measured_by_us_and_not_by_its_worker(template):
    outcome = isolated(Liar(), template)
    assert outcome.state_bytes == [n * (64 * 4 + 8) for n in (0, 5, 10, 15)]
    assert right(outcome) == 1.0


class CountsDescriptors(Honest):
    """Leaves a mark on the standard descriptors, and counts the others and the marks it finds."""

    def observe(self, state, support):
        for number in range(3):
            fcntl.fcntl(number, fcntl.F_SETFL, os.O_NONBLOCK)
        return state

    def predict(self, state, images):
        names = [path.readlink() for path in Path("/dev/fd").iterdir() if path.exists()]
        flags = [fcntl.fcntl(number, fcntl.F_GETFL) for number in range(3)]
        marked = [flag for flag in flags if flag & os.O_NONBLOCK]
        alien = [name for name in names if str(name) != os.devnull]
        return torch.full((len(images), LABELS), float(len(alien) + 10 * len(marked)))


@LINUX
def test_a_worker_has_one_connection_and_shares_no_memory(template):
    assert isolated(CountsDescriptors(), template).logits[0, 0] == 1
    process = Path(f"/proc/{template.pid}")
    modes = [line.split()[1] for line in (process / "maps").read_text().splitlines()]
    assert not [mode for mode in modes if "w" in mode and "s" in mode]
    assert len(list((process / "task").iterdir())) == 1, (
        "only a process of one thread may be forked"
    )


class ForksNatively(Honest):
    """Leaves a process behind that Python knows nothing of; answers with its number."""

    def predict(self, state, images):
        process = ctypes.PyDLL(None).fork()
        if process == 0:
            time.sleep(60)
            os._exit(0)
        return torch.full((len(images), LABELS), process, dtype=torch.float64)


@LINUX
def test_what_a_worker_has_started_ends_with_it(template):
    process = int(isolated(ForksNatively(), template, thorough_tasks=0).logits[0, 0])
    deadline = time.monotonic() + 5
    while _lives(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process > 1 and not _lives(process)


class Jointly(Honest):
    def predict(self, state, images):
        return super().predict(state, images - images.mean(dim=0))


def test_answers_are_checked_by_us(template):
    with pytest.raises(DataFlowError, match="Declare transductive = True"):
        isolated(Jointly(), template)
    with pytest.raises(LearnerError, match=r"ForgedShape.predict gave .*\(15, 3\)"):
        isolated(ForgedShape(), template)
    with pytest.raises(
        LearnerError, match=r"the answer of Forged\.observe cannot be read: KeyError: 'tree'"
    ):
        isolated(Forged(), template)


def answer_directly(header: bytes, body: bytes = b"") -> None:
    """Write a frame to whatever connection this process has, and end."""
    for number in range(3, 64):
        try:
            os.write(number, struct.pack("<QQ", len(header), len(body)) + header + body)
        except OSError:
            continue
    os._exit(0)


class Forged(Honest):
    def observe(self, state, support):
        return answer_directly(b"{}")


class ForgedShape(Honest):
    def predict(self, state, images):
        return answer_directly(b'{"tree": {"tensor": ["float32", [15, 3]]}}', bytes(15 * 3 * 4))


@pytest.mark.parametrize(
    "tree",
    [
        {"pickle": "gASVIAAAAAAAAAA"},
        {"tensor": ["float32", [2]]},
        {"tensor": ["float32", [-1]]},
        {"tensor": ["load", [1]]},
        {"tensor": ["float32", [0.5]]},
        {"dict": [[[1, 2], None]]},
        {"dict": [[2**70, None]]},
        {"list": None},
        {"list": [], "tuple": []},
        2**63,
        "text",
        [],
    ],
)
def test_what_a_worker_sends_is_read_by_a_closed_list(tree):
    with pytest.raises((ValueError, TypeError, AttributeError)):
        frames.read(tree, io.BytesIO(b"1234"))


def test_a_state_survives_being_sent():
    weights = {"net": {"a": torch.rand(3, 4)}}
    codec = StateCodec(weights, INFO)
    state = {
        "own": torch.rand(2, 3).half(),
        7: [torch.zeros(0, 5), None, (1, float("nan"), True), -(2**63)],
        "weights": weights["net"]["a"],
        "info": INFO,
    }
    packed, parts = codec.pack(state), []
    text = json.dumps(frames.written(packed.tree, parts))
    back = frames.read(json.loads(text), io.BytesIO(b"".join(parts)))
    assert repr(back) == repr(packed.tree) and back["info"] is state_module.INFO


@pytest.mark.parametrize(("state", "says"), [({(1, 2): 0}, "keys are names"), ([2**63], "64 bits")])
def test_what_cannot_be_sent_is_refused(state, says):
    with pytest.raises(DataFlowError, match=says):
        StateCodec({}, INFO).pack(state)


# What goes wrong


class Leaves(Honest):
    def observe(self, state, support):
        os._exit(7)


class Segfaults(Honest):
    def observe(self, state, support):
        ctypes.string_at(0)


class Exits(Honest):
    def observe(self, state, support):
        sys.exit(3)


class Raises(Honest):
    def observe(self, state, support):
        raise ValueError("two\nlines")


class Refuses(Honest):
    def begin(self, meta, info):
        raise LearnerError("there is no 'stats'")


class BadLuck(Honest):
    def __reduce__(self):
        return (int, ("text",))


@pytest.mark.parametrize(
    ("learner", "says"),
    [
        (Leaves(), r"Leaves\.observe gave no answer: its worker process ended with exit code 7"),
        (
            Segfaults(),
            r"Segfaults\.observe gave no answer: its worker process was ended by signal 11 .*",
        ),
        (Exits(), r"Exits\.observe raised SystemExit: 3"),
        (Raises(), r"Raises\.observe raised ValueError: two lines"),
        (Refuses(), r"there is no 'stats'"),
        (
            BadLuck(),
            r"BadLuck cannot be made again in a worker process: ValueError: invalid literal.*",
        ),
    ],
)
def test_a_worker_that_fails_is_one_line(template, learner, says):
    run = IsolatedRun(learner, {}, template=template)
    with pytest.raises(LearnerError) as stopped:
        task(run)
    assert re.fullmatch(says, str(stopped.value)), stopped.value
    assert all("In the worker process" in note for note in getattr(stopped.value, "__notes__", []))
    assert _children(template.pid) == []


def test_a_learner_that_cannot_be_pickled_is_told_so(template):
    class Local(Honest):
        pass

    with pytest.raises(
        LearnerError, match=r"^Local cannot be sent to a worker process: .*top of a module"
    ) as stopped:
        IsolatedRun(Local(), {}, template=template)
    assert "\n" not in str(stopped.value)


def test_what_cannot_be_isolated_is_refused(template, monkeypatch):
    with pytest.raises(LearnerError, match="on the CPU; the learned weights 'a' are not"):
        IsolatedRun(Honest(), {"a": torch.zeros(1, device="meta")}, template=template)
    with pytest.raises(LearnerError, match="on the CPU, not on cuda"):
        IsolatedRun(Honest(), {}, template=template).task(
            replace(INFO, device="cuda"), supports(), targets
        )
    monkeypatch.setattr(forked, "_in_worker", True)
    with pytest.raises(LearnerError, match="if __name__ == '__main__':"):
        Template()
    monkeypatch.delattr(os, "fork")
    with pytest.raises(CfslError, match="can fork processes"):
        Template()


def _children(pid: int) -> list[int]:
    """Return the children of a process, dead ones that nobody has waited for included."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@LINUX
def test_nothing_is_left_of_a_template_that_was_closed_or_killed():
    with IsolatedRun(Honest(), {}) as run:
        assert right(task(run)) == 1.0
        pid = run._template.pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(
            LearnerError, match=r"the process that starts the workers was ended by signal 9"
        ):
            task(run)
    assert pid not in _children(os.getpid())
    run.close()
    forgotten = Template()
    pid, control = forgotten.pid, forgotten._control
    del forgotten
    assert not _lives(pid) and pid not in _children(os.getpid()) and control.fileno() == -1


SCRIPT = """
import time

import torch
from cfsl.harness.isolation.isolate import IsolatedRun
from cfsl.learners.base import TaskInfo


class Sleeps:
    def begin(self, meta, info):
        return {}

    def observe(self, state, support):
        return state

    def predict(self, state, images):
        if len(images) == 1:
            time.sleep(600)
        return torch.zeros(len(images), 2)


if __name__ == "__main__":
    info = TaskInfo((1, 2, 2), labels=2, nss=1, n_way=2, k_shot=1, cci=1, overwrite=False, seed=0)
    run = IsolatedRun(Sleeps(), {}, thorough_tasks=0)
    run.task(info, [], lambda: torch.zeros(3, 1, 2, 2))
    print(run._template.pid, flush=True)
    run.task(info, [], lambda: torch.zeros(1, 1, 2, 2))
"""


@LINUX
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_nothing_is_left_when_a_script_with_its_own_learner_is_stopped(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, str(script)], **pipes, start_new_session=True
    ) as process:
        try:
            template = int(process.stdout.readline())
            time.sleep(0.3)
            (worker,) = _children(template)
            assert os.getsid(template) == template, "Ctrl-C must not reach it"
            os.killpg(process.pid, number)
            process.communicate(timeout=20)
        finally:
            process.kill()
    deadline = time.monotonic() + 10
    while (_lives(template) or _lives(worker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(template) and not _lives(worker)
    assert process.returncode == -number
