"""The data-flow law: learners that cheat are stopped, or gain nothing."""

from __future__ import annotations

import collections
import functools
import io
import mmap
import random
import subprocess
import sys
import threading
import time
import types
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

import cfsl
from cfsl.errors import DataFlowError, LearnerError
from cfsl.harness.run import StrictRun
from cfsl.harness.state import StateCodec
from cfsl.learners.base import Support, TaskInfo

IMAGES, LABELS, SETS = 5, 15, 3
INFO = TaskInfo(
    image_shape=(1, 8, 8),
    labels=LABELS,
    nss=SETS,
    n_way=5,
    k_shot=1,
    cci=1,
    overwrite=False,
    seed=3,
)
MEMORY: dict[str, object] = {}


def supports(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    for s in range(SETS):
        labels = torch.arange(5 * s, 5 * s + 5)
        yield Support(torch.rand(IMAGES, 1, 8, 8, generator=generator), labels)


def targets(seed: int = 0) -> torch.Tensor:
    """The images of the support sets: a nearest neighbour on remembered pixels is always right."""
    return torch.cat([support.images for support in supports(seed)])


def run(learner, meta=None, tasks: int = 1, **options):
    """Run tasks under the law, and return the outcome of the last one."""
    strict = StrictRun(learner, meta or {}, **options)
    for task in range(tasks):
        outcome = strict.task(INFO, supports(task), functools.partial(targets, task))
    return outcome


def nearest(images: torch.Tensor, stored: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = torch.full((len(images), LABELS), -1e9)
    distances = ((images[:, None] - stored[None]) ** 2).flatten(2).sum(dim=2)
    for column, label in enumerate(labels.tolist()):
        logits[:, label] = torch.maximum(logits[:, label], -distances[:, column])
    return logits


def remember(place: dict, support: Support) -> None:
    for name in ("images", "labels"):
        value = getattr(support, name).clone()
        place[name] = torch.cat([place[name], value]) if name in place else value


@dataclass(frozen=True)
class Honest:
    """Keeps raw images in the state: allowed, and counted."""

    def begin(self, meta, info):
        return {
            "info": info,
            "images": torch.zeros(0, 1, 8, 8),
            "labels": torch.zeros(0, dtype=torch.int64),
        }

    def observe(self, state, support):
        kept = {
            name: torch.cat([state[name], getattr(support, name)]) for name in ("images", "labels")
        }
        return state | kept

    def predict(self, state, images):
        return nearest(images, state["images"], state["labels"])


def test_an_honest_learner_passes_and_its_memory_is_measured():
    outcome = run(Honest(), tasks=3)
    assert outcome.logits.argmax(dim=1).tolist() == list(range(15))
    images = [0, 5, 10, 15]
    assert outcome.state_bytes == [n * 64 * 4 + n * 8 for n in images]
    assert outcome.bookkeeping_bytes == [n * 8 for n in images]


@dataclass(frozen=True)
class View(Honest):
    """Keeps a view of its images; the state is copied before the originals are destroyed."""

    def observe(self, state, support):
        return state | {"images": support.images[:], "labels": support.labels.view(-1)}


def test_a_view_that_shares_storage_is_copied_and_counted():
    outcome = run(View())
    assert outcome.logits.argmax(dim=1).tolist()[10:] == list(range(10, 15))
    assert outcome.state_bytes[-1] == 5 * 64 * 4 + 5 * 8


@dataclass(frozen=True)
class Cheat:
    """Looks for images where `place` says; the state holds nothing."""

    def begin(self, meta, info):
        return {"info": info}

    def observe(self, state, support):
        remember(self.place(), support)
        return state

    def predict(self, state, images):
        place = self.place()
        return nearest(images, place["images"], place["labels"])


class OnSelf(Cheat):
    def place(self):
        return self.__dict__.setdefault("memory", {})


class InModuleGlobal(Cheat):
    def place(self):
        return MEMORY


class InClassAttribute(Cheat):
    memory: dict = {}  # noqa: RUF012

    def place(self):
        return type(self).memory


class InDefaultArgument(Cheat):
    def place(self, memory={}):  # noqa: B006
        return memory


class InFunctionAttribute(Cheat):
    def place(self):
        return InFunctionAttribute.place.__dict__.setdefault("memory", {})


def in_closure():
    memory: dict = {}

    class InClosure(Cheat):
        def place(self):
            return memory

    return InClosure()


@dataclass(frozen=True)
class InNetworkBuffer(Cheat):
    network: torch.nn.Module = field(default_factory=lambda: torch.nn.Linear(2, 2))

    def observe(self, state, support):
        self.network.register_buffer("hidden", support.images.clone(), persistent=False)
        return state

    def predict(self, state, images):
        return nearest(images, self.network.hidden, torch.arange(10, 15))


class AsNumpyInGlobal(Cheat):
    def observe(self, state, support):
        MEMORY.setdefault("arrays", []).append(support.images.numpy().copy())
        return state


class InKeywordDefault(Cheat):
    def place(self, *, memory={}):  # noqa: B006
        return memory


class InClassMethod(Cheat):
    @classmethod
    def place(cls, memory={}):  # noqa: B006
        return memory


class InArray(Cheat):
    """Overwrites values: neither shape nor type of anything changes."""

    kept = np.zeros((5, 1, 8, 8), np.float32)

    def observe(self, state, support):
        self.kept[:] = support.images.numpy()
        return state


class InTensor(Cheat):
    kept = torch.zeros(5, 1, 8, 8)

    def observe(self, state, support):
        self.kept.copy_(support.images)
        return state


class InSet(Cheat):
    kept: set = set()  # noqa: RUF012

    def observe(self, state, support):
        self.kept.add(support.images.numpy().tobytes())
        return state


class InKey(Cheat):
    """Has one key, which is long and begins as it always did."""

    kept: dict = {"-" * 300: 0}  # noqa: RUF012

    def observe(self, state, support):
        self.kept.clear()
        self.kept["-" * 300 + support.images.numpy().tobytes().hex()] = 0
        return state


class InDeque(Cheat):
    kept = collections.deque([0], maxlen=1)  # noqa: RUF012

    def observe(self, state, support):
        self.kept.append(support.images.numpy().tobytes())
        return state


class InPartial(Cheat):
    kept = functools.partial(list, [])

    def observe(self, state, support):
        self.kept.args[0].append(support.images.numpy().tobytes())
        return state


class InMapping(Cheat):
    kept = mmap.mmap(-1, 5 * 64 * 4)

    def observe(self, state, support):
        self.kept[:] = support.images.numpy().tobytes()
        return state


class InGenerator(Cheat):
    def keep():
        kept = None
        while True:
            kept = yield kept

    kept = keep()
    next(kept)

    def observe(self, state, support):
        self.kept.send(support.images.numpy().tobytes())
        return state


class InCache(Cheat):
    """The cache is full before and after."""

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def kept(data):
        return data

    kept(b"")

    def observe(self, state, support):
        self.kept(support.images.numpy().tobytes())
        return state


@dataclass(frozen=True)
class Wrapper(Cheat):
    """Is honest itself; the learner inside is not."""

    inner: Cheat = field(default_factory=InClassAttribute)

    def observe(self, state, support):
        return self.inner.observe(state, support)


class AsBytesInGlobal(Cheat):
    def observe(self, state, support):
        MEMORY["bytes"] = support.images.numpy().tobytes()
        return state


def wrapped_elsewhere():
    """Return an honest learner around one that is written in another module."""
    module = types.ModuleType("cfsl_law_elsewhere")
    sys.modules[module.__name__] = module
    elsewhere = type(
        "Elsewhere", (InClassAttribute,), {"memory": {}, "__module__": module.__name__}
    )
    return Wrapper(elsewhere())


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (OnSelf, "the learner, memory"),
        (InModuleGlobal, "MEMORY"),
        (InClassAttribute, "class InClassAttribute, memory"),
        (InDefaultArgument, "InDefaultArgument, place"),
        (InFunctionAttribute, "InFunctionAttribute, place"),
        (in_closure, "InClosure, place"),
        (InNetworkBuffer, "the learner, network"),
        (AsNumpyInGlobal, "MEMORY"),
        (AsBytesInGlobal, "MEMORY"),
        (InKeywordDefault, "InKeywordDefault, place"),
        (InClassMethod, "InClassMethod, place"),
        (InArray, "InArray, kept"),
        (InTensor, "InTensor, kept"),
        (InSet, "InSet, kept"),
        (InKey, "InKey, kept"),
        (InDeque, "InDeque, kept"),
        (InPartial, "InPartial, kept"),
        (InMapping, "InMapping, kept"),
        (InGenerator, "InGenerator, kept"),
        (InCache, "InCache, kept"),
        (Wrapper, "class InClassAttribute, memory"),
        (lambda: wrapped_elsewhere(), "class Elsewhere, memory"),
    ],
)
def test_data_kept_beside_the_state_is_found_and_named(make, where):
    MEMORY.clear()
    learner = make()
    with pytest.raises(DataFlowError, match=where) as stopped:
        run(learner)
    assert "\n" not in str(stopped.value) and "observe kept something in" in str(stopped.value)
    MEMORY.clear()
    InClassAttribute.memory.clear()


class InLearnedWeights(Cheat):
    def observe(self, state, support):
        state["weights"].copy_(support.images.mean(dim=0).flatten()[:4])
        return state

    def begin(self, meta, info):
        return {"info": info, "weights": meta["weights"]}

    def predict(self, state, images):
        return torch.zeros(len(images), LABELS) + state["weights"].sum()


def test_learned_weights_that_were_written_to_are_noticed():
    with pytest.raises(DataFlowError, match="learned weights 'weights' in place"):
        run(InLearnedWeights(), {"weights": torch.zeros(4)})


class InFile(Cheat):
    path = "unset"

    def observe(self, state, support):
        np.save(type(self).path, support.images.numpy())
        return state


class InCodeFile(Cheat):
    path = "unset"

    def observe(self, state, support):
        with open(type(self).path, "wb") as file:  # noqa: PTH123
            file.write(support.images.numpy().tobytes())
        return state


class InLink(Cheat):
    def observe(self, state, support):
        Path(InCodeFile.path).symlink_to(support.images.numpy().tobytes()[:50].hex())
        return state


def test_code_is_read_and_not_written_and_a_link_is_not_made(tmp_path):
    InCodeFile.path = str(tmp_path / "memory.py")
    with pytest.raises(DataFlowError, match=r"opened the file .*memory\.py"):
        run(InCodeFile())
    with pytest.raises(DataFlowError, match="made a link"):
        run(InLink())
    assert list(tmp_path.iterdir()) == []


class InOpenFile(Cheat):
    """The file was opened before the run."""

    number = -1

    def observe(self, state, support):
        mmap.mmap(self.number, 64)[:] = support.images.numpy().tobytes()[:64]
        return state


def test_a_file_that_was_open_already_is_not_mapped(tmp_path):
    with (tmp_path / "memory").open("w+b") as file:
        file.write(bytes(64))
        file.flush()
        InOpenFile.number = file.fileno()
        with pytest.raises(DataFlowError, match="mapped a file or shared memory"):
            run(InOpenFile())
        file.seek(0)
        assert file.read() == bytes(64)


class ImportsLate(Honest):
    def observe(self, state, support):
        import cfsl_law_late  # noqa: F401

        return super().observe(state, support)


def test_a_module_may_be_imported_late_and_leaves_no_file(tmp_path, monkeypatch):
    (tmp_path / "cfsl_law_late.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    run(ImportsLate())
    assert [path.name for path in tmp_path.iterdir()] == ["cfsl_law_late.py"]
    assert sys.dont_write_bytecode is False


def test_a_file_is_stopped_before_it_is_written(tmp_path):
    InFile.path = str(tmp_path / "memory.npy")
    with pytest.raises(DataFlowError, match=r"opened the file .*memory\.npy"):
        run(InFile())
    assert list(tmp_path.iterdir()) == []


class InThread(Cheat):
    def observe(self, state, support):
        images = support.images.clone()

        def keep_images():
            time.sleep(0.3 + 0 * len(images))

        threading.Thread(target=keep_images, name="hidden", daemon=True).start()
        return state


def test_a_background_thread_is_noticed():
    with pytest.raises(DataFlowError, match=r"thread running \(hidden\)"):
        run(InThread())
    time.sleep(0.4)


class InProcess(Cheat):
    def observe(self, state, support):
        import subprocess

        subprocess.run(["true"], check=False)
        return state


def test_another_process_is_stopped():
    with pytest.raises(DataFlowError, match="started a process"):
        run(InProcess())


class InTorchGenerator(Cheat):
    def observe(self, state, support):
        torch.manual_seed(int(support.images.sum() * 1000))
        return state


class InNumpyGenerator(Cheat):
    def observe(self, state, support):
        np.random.seed(7)
        return state


class InPythonGenerator(Cheat):
    def observe(self, state, support):
        random.seed(float(support.images.sum()))
        return state


@pytest.mark.parametrize(
    ("learner", "name"),
    [(InTorchGenerator(), "torch"), (InNumpyGenerator(), "numpy"), (InPythonGenerator(), "random")],
)
def test_global_generators_carry_nothing(learner, name):
    with pytest.raises(DataFlowError, match=f"global generator of .*{name}"):
        run(learner)


class InAnotherModule(Cheat):
    def observe(self, state, support):
        threading.cfsl_hidden = support.images.clone()
        return state


def test_a_tensor_hidden_in_another_module_is_found_alive():
    try:
        with pytest.raises(DataFlowError, match=r"tensor of shape \(5, 1, 8, 8\) alive in a dict"):
            run(InAnotherModule())
    finally:
        del threading.cfsl_hidden


class KeepsTheTensorItself(Cheat):
    """Hides the very tensor it was given where nobody looks; it has been overwritten by then."""

    def observe(self, state, support):
        threading.cfsl_given = support.images
        return state

    def predict(self, state, images):
        assert torch.isnan(threading.cfsl_given).all()
        return torch.zeros(len(images), LABELS)


def test_the_given_tensor_itself_is_worthless_afterwards():
    try:
        run(KeepsTheTensorItself(), thorough_tasks=0)
    finally:
        del threading.cfsl_given


class LooksBack(Cheat):
    """Walks up the call stack and through all living tensors for the labels of the targets."""

    def observe(self, state, support):
        return state

    def predict(self, state, images):
        import gc
        import sys

        wanted = list(range(15))
        frame = sys._getframe()
        while frame.f_back is not None and "test_law" not in frame.f_back.f_code.co_filename:
            frame = frame.f_back
            for value in frame.f_locals.values():
                assert not (isinstance(value, torch.Tensor) and value.flatten().tolist() == wanted)
        for thing in gc.get_objects():
            if type(thing) is torch.Tensor and thing.numel() == 15 and thing.dtype == torch.int64:
                assert thing.flatten().tolist() != wanted
        return torch.zeros(len(images), LABELS)


def test_target_labels_are_nowhere_to_be_found():
    run(LooksBack())


class ComparesTargets(Honest):
    def predict(self, state, images):
        return super().predict(state, images - images.mean(dim=0))


class DeclaredTransductive(ComparesTargets):
    transductive = True


def test_a_learner_that_looks_at_targets_jointly_must_say_so():
    with pytest.raises(DataFlowError, match="Declare transductive = True"):
        run(ComparesTargets())
    assert run(DeclaredTransductive()).logits.shape == (15, 15)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"x": object()}, r"state\['x'\] is a object"),
        ({"x": [1, {"y": "text"}]}, r"state\['x'\]\[1\]\['y'\] is a str"),
        ({"x": np.zeros(3)}, "ndarray"),
        ({"x": lambda: 1}, "function"),
    ],
)
def test_a_state_is_a_tree_of_tensors_and_numbers(state, says):
    with pytest.raises(DataFlowError, match=says):
        StateCodec({}, INFO).pack(state)


def test_a_state_comes_back_as_it_was_and_shares_no_memory():
    weights = {"net": {"a": torch.rand(3, 4), "b": torch.rand(2)}}
    codec = StateCodec(weights, INFO)
    state = {
        "own": torch.rand(2, 3).half(),
        "empty": torch.zeros(0, 5),
        "list": [torch.arange(3), None, (1, 2.5, True)],
        "weights": weights["net"]["a"],
        "info": INFO,
    }
    packed = codec.pack(state)
    assert packed.total == 12 + 24 + 3 * 8 and packed.bookkeeping == 24 + 3 * 8

    back = codec.unpack(packed)
    assert back["own"].equal(state["own"])
    assert back["list"][2] == (1, 2.5, True)
    assert back["empty"].shape == (0, 5)
    assert back["weights"] is weights["net"]["a"] and back["info"] is INFO
    back["own"].zero_()
    assert codec.unpack(packed)["own"].equal(state["own"])


def test_weights_that_a_learner_has_changed_count_as_its_own():
    weights = {"a": torch.ones(10)}
    packed = StateCodec(weights, INFO).pack({"a": weights["a"] * 1, "part": weights["a"][:5]})
    assert packed.total == 40 + 20


class WrongShape(Honest):
    def predict(self, state, images):
        return super().predict(state, images)[:, :3]


class NoTensor(Honest):
    def predict(self, state, images):
        return super().predict(state, images).tolist()


@pytest.mark.parametrize(
    ("learner", "says"), [(WrongShape(), r"\(15, 3\); .* \(15, 15\)"), (NoTensor(), "gave list")]
)
def test_answers_of_the_wrong_kind_are_refused(learner, says):
    with pytest.raises(LearnerError, match=says):
        run(learner)


# Tasks that are not watched closely


def waits_for_late_tasks(*, clears_up: bool):
    """Return a learner that is honest for 20 tasks and then hides images, and its count of tasks.

    The count is kept in a module that is not watched. A learner that clears up hides images only
    as long as a task lasts.
    """
    count = types.ModuleType("not_watched")
    count.tasks = 0

    class Waits(Honest):
        def begin(self, meta, info):
            count.tasks += 1
            return {}

        def observe(self, state, support):
            if count.tasks > 20:
                remember(MEMORY, support)
            return state

        def predict(self, state, images):
            if clears_up:
                MEMORY.clear()
            return torch.zeros(len(images), LABELS)

    return Waits(), count


def test_a_learner_that_waits_and_clears_up_is_caught_in_a_task_drawn_at_random():
    learner, count = waits_for_late_tasks(clears_up=True)
    MEMORY.clear()
    with pytest.raises(DataFlowError, match="MEMORY"):
        run(learner, tasks=200)
    assert 20 < count.tasks < 200


@pytest.fixture
def only_the_first_tasks_closely(monkeypatch):
    """Never draw a task that is watched closely."""
    monkeypatch.setattr("cfsl.harness.run.secrets.randbelow", lambda most: 1)


def test_what_is_kept_is_found_at_the_end_of_a_task_that_is_not_watched_closely(
    only_the_first_tasks_closely,
):
    learner, count = waits_for_late_tasks(clears_up=False)
    MEMORY.clear()
    with pytest.raises(DataFlowError, match="MEMORY"):
        run(learner, tasks=200)
    assert count.tasks == 21


class ScribblesLate(Honest):
    """Writes to its weights in a late task, in a way that torch does not notice."""

    def begin(self, meta, info):
        return {"weights": meta["w"], "labels": info.labels}

    def observe(self, state, support):
        return state

    def predict(self, state, images):
        state["weights"].numpy()[0] += 1 if images[0].sum() == state["weights"][1] else 0
        return torch.zeros(len(images), state["labels"])


def test_weights_that_changed_in_any_task_are_found_at_the_end(
    glyphs, only_the_first_tasks_closely
):
    tasks = cfsl.Tasks(glyphs, cfsl.TaskSpec.type_b(nss=2, n_way=2), numbers=range(30))
    sums = torch.stack([task.target.images[0].sum() for task in tasks])
    late = next(i for i in range(8, 30) if sums[i] not in sums[:8])
    with pytest.raises(DataFlowError, match="learned weights 'w'"):
        cfsl.evaluate(ScribblesLate(), tasks, {"w": torch.tensor([0.0, float(sums[late])])})


def test_tasks_are_run_on_one_thread_whatever_the_process_has(glyphs):
    class Counts(Honest):
        def predict(self, state, images):
            return torch.full((len(images), state["info"].labels), float(torch.get_num_threads()))

        def observe(self, state, support):
            return state

    tasks = cfsl.Tasks(glyphs, cfsl.TaskSpec.type_b(nss=2, n_way=2), numbers=range(1))
    torch.set_num_threads(2)
    try:
        assert (cfsl.evaluate(Counts(), tasks).logits == 1).all()
    finally:
        torch.set_num_threads(1)


def test_weights_that_are_written_and_put_back_within_a_task_are_noticed():
    class Scribbles(Honest):
        def observe(self, state, support):
            state["weights"].numpy()[:] = 7
            return state

        def begin(self, meta, info):
            return {"weights": meta["w"]}

        def predict(self, state, images):
            state["weights"].numpy()[:] = 0
            return torch.zeros(len(images), LABELS)

    with pytest.raises(DataFlowError, match="learned weights 'w'"):
        run(Scribbles(), {"w": torch.zeros(3)})


SCRIPT = """
import torch
import cfsl

data = cfsl.load("glyphs-60x12")
spec = cfsl.TaskSpec.type_b(nss=2, n_way=2, k_target=2)
tasks = cfsl.Tasks(data, spec, numbers=range(3), split="all")

class Mine:
    def begin(self, meta, info):
        return {"labels": info.labels}

    def observe(self, state, support):
        return state

    def predict(self, state, images):
        return torch.zeros(len(images), state["labels"])

print(cfsl.evaluate(Mine(), tasks).logits.shape)
"""


def test_a_script_may_hold_its_data_and_tasks_beside_its_learner(tmp_path, data_root, monkeypatch):
    monkeypatch.setenv("CFSL_DATA", str(data_root))
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "(3, 8, 4)", done.stderr


# Places that do not show what they hold, and calls that are easily forgotten

BUFFER = io.BytesIO()
GENERATOR = torch.Generator()


class InBuffer(Honest):
    """Keeps pixels in memory that no Python object refers to."""

    def observe(self, state, support):
        BUFFER.write(support.images.numpy().tobytes())
        return state


class InGeneratorObject(Honest):
    """Keeps a number in the seed of a generator of its own."""

    def observe(self, state, support):
        GENERATOR.manual_seed(int(support.images.sum() * 1e6))
        return state


@pytest.mark.parametrize(
    ("cheat", "where"), [(InBuffer, "BUFFER"), (InGeneratorObject, "GENERATOR")]
)
def test_content_that_python_does_not_show_is_seen(cheat, where):
    with pytest.raises(DataFlowError, match=where):
        run(cheat())


class InfinitelyJoint(Honest):
    """Looks at all targets together, and says so by infinities only."""

    def predict(self, state, images):
        first = images.flatten(1).sum(dim=1).argmax() == torch.arange(len(images))
        return torch.where(first[:, None], 0.0, float("-inf")).expand(-1, LABELS).clone()


def test_infinite_answers_that_depend_on_other_targets_are_noticed():
    with pytest.raises(DataFlowError, match="some are infinite"):
        run(InfinitelyJoint())


class OddList(list):
    """Could run code whenever somebody looks at it."""


@pytest.mark.parametrize("state", [OddList([1]), collections.namedtuple("Pair", "a b")(1, 2)])
def test_a_state_is_made_of_plain_containers(state):
    with pytest.raises(DataFlowError, match="a state is a tree"):
        StateCodec({}, INFO).pack(state)


class Embedding(Honest):
    """Embeds by flattening; `embed` is where the cheats below cheat."""

    def begin(self, meta, info):
        return {"labels": torch.zeros(info.labels)}

    def observe(self, state, support):
        return state

    def predict(self, state, images):
        return images[:, :1] + state["labels"]

    def embed(self, meta, images):
        return images.flatten(1)


class EmbedsJointly(Embedding):
    def embed(self, meta, images):
        return images.flatten(1) - images.flatten(1).mean(dim=0)


class EmbedsToFile(Embedding):
    def embed(self, meta, images):
        Path("kept").write_bytes(b"pixels")
        return images.flatten(1)


@pytest.mark.parametrize(
    ("cheat", "says"), [(EmbedsJointly, "jointly"), (EmbedsToFile, "opened the file")]
)
def test_the_law_holds_while_a_table_is_made(cheat, says, glyphs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tasks = cfsl.Tasks(glyphs, cfsl.TaskSpec.type_b(nss=2), numbers=range(2))
    assert cfsl.evaluate(Embedding(), tasks).logits.shape == (2, 50, 10)
    with pytest.raises(DataFlowError, match=says):
        cfsl.evaluate(cheat(), tasks)
    assert not [*tmp_path.iterdir()]
