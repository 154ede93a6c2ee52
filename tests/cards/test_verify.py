"""cfsl verify: a card is true, or it is refused with a reason that names what is not."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cfsl.cli
import report_cards
from archives import add, class_files, write_folder
from cfsl.cards import manifests as manifests_module
from cfsl.cards.card import read_card
from cfsl.cards.consistency import false_marks, run_hash
from cfsl.cards.manifests import Manifests
from cfsl.cards.schema import Card
from cfsl.cards.verify import Verdict, verify_card
from cfsl.errors import CardError
from cfsl.learners.description import described
from cfsl.learners.registry import LEARNERS
from cfsl.runs.run_spec import DataSpec, LearnerSpec, RunSpec, TrainSpec
from cfsl.spec import TaskSpec
from cfsl.training.training_spec import Training

_TASKS = ("--data", "glyphs-400x20", "--type", "D", "--nss", "4", "--k-target", "2", "--tasks", "6")
pytestmark = pytest.mark.usefixtures("glyphs")


def _cfsl(*words: str) -> None:
    """Run the command in this process."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["cfsl", *words])
        cfsl.cli.main()
    assert not stop.value.code


@pytest.fixture(scope="module")
def real(tmp_path_factory, glyphs) -> Path:
    """Return a folder with the cards of two learners, and the manifest of their tasks."""
    folder = tmp_path_factory.mktemp("cards")
    for learner in ("pixel_nn", "chance"):
        _cfsl("eval", learner, *_TASKS, "--progressive", "--out", str(folder / f"{learner}.json"))
    _cfsl("tasks", "export", *_TASKS, "--out", str(folder / "tasks.json.gz"))
    fingerprint = json.loads((folder / "chance.json").read_text())["tasks"]["manifest_fingerprint"]
    (folder / "manifests").mkdir()
    (folder / "tasks.json.gz").rename(folder / "manifests" / f"{fingerprint}.json.gz")
    return folder


@pytest.fixture
def cards(real, tmp_path) -> Path:
    """Return a copy to tamper with."""
    shutil.copytree(real, tmp_path / "cards")
    return tmp_path / "cards"


def verdict(path: Path) -> Verdict:
    return verify_card(path, Manifests())


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    card = json.loads(path.read_text())
    change(card)
    path.write_text(json.dumps(card))


def without_run(card: dict[str, Any]) -> None:
    """Leave out the run, as cards of 'cfsl eval' once did."""
    card["run"] = None
    del card["run_hash"]


def put(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return what puts a value at a place such as metrics.accuracy.mean.

    A function is given the old value.
    """
    *way, last = (int(key) if key.isdigit() else key for key in place.split("."))

    def change(card: dict[str, Any]) -> None:
        inner: Any = card
        for key in way:
            inner = inner[key]
        if value is DROP:
            del inner[last]
        else:
            inner[last] = value(inner[last]) if callable(value) else value

    return change


DROP = object()


def test_true_cards_are_ok_by_their_manifest_and_by_drawing_again(cards):
    assert [verdict(cards / f"{name}.json") for name in ("pixel_nn", "chance")] == [
        Verdict("ok")
    ] * 2
    shutil.rmtree(cards / "manifests")
    assert verdict(cards / "pixel_nn.json") == Verdict("ok")


def more(old: float) -> float:
    return old * (1 + 1e-6)


def flipped(old: str) -> str:
    return ("0" if old[0] != "0" else "1") + old[1:]


NUMBERS = [
    *(
        f"metrics.{name}.{part}"
        for name in ("accuracy", "cross_entropy", "forgetting")
        for part in ("mean", "std")
    ),
    *(
        f"metrics.{name}.ci95"
        for name in ("accuracy", "cross_entropy", "forgetting", "backward_transfer")
    ),
    "metrics.backward_transfer.mean",
    "metrics.calibration_error",
    "metrics.atm.total",
    "metrics.atm.representation",
    "metrics.atm.bookkeeping",
    "metrics.atm.curve.2",
    "metrics.group_accuracy.1",
    "metrics.progressive_accuracy.3",
]


@pytest.mark.parametrize("place", NUMBERS)
def test_a_number_that_is_a_millionth_too_large_is_refused_by_its_name(cards, place):
    rewrite(cards / "pixel_nn.json", put(place, more))
    found = verdict(cards / "pixel_nn.json")
    assert found.status == "refused" and any(
        reason.startswith(f"{place} is ") for reason in found.reasons
    ), found


TAMPERED = {
    "accuracy above 1": (
        "metrics.accuracy.mean",
        1.2,
        "metrics.accuracy.mean is 1.2: should be less than or equal to",
    ),
    "no number": ("metrics.accuracy.mean", math.nan, "metrics.accuracy.mean is nan"),
    "infinite memory": ("metrics.atm.total", math.inf, "metrics.atm.total is inf"),
    "negative cross-entropy": (
        "metrics.cross_entropy.mean",
        -1.0,
        "metrics.cross_entropy.mean is -1.0",
    ),
    "a text for a number": (
        "metrics.calibration_error",
        "low",
        "metrics.calibration_error is 'low'",
    ),
    "a metric of one's own": (
        "metrics.brilliance",
        1.0,
        "metrics.brilliance is 1.0: extra inputs are not permitted",
    ),
    "a metric left out": ("metrics.forgetting", DROP, "metrics.forgetting is missing"),
    "no metrics": ("metrics", DROP, "it has no metrics"),
    "more memory than its parts": (
        "metrics.atm.total",
        9.0,
        "metrics.atm.total is 9, its parts are 1 and",
    ),
    "diverged": ("metrics.diverged", 0.5, "metrics.diverged is 0.5, the answers give 0.0"),
    "count of tasks": ("tasks.count", 600, "metrics.accuracy.count is 6, tasks.count is 600"),
    "count of accuracies": (
        "metrics.accuracy.count",
        600,
        "metrics.accuracy.count is 600, tasks.count is 6",
    ),
    "numbers of tasks": (
        "tasks.numbers",
        [6, 12, 1],
        "tasks.numbers is range(6, 12), that of the manifest is range(0, 6)",
    ),
    "spec": ("tasks.spec.k_shot", 5, "tasks.spec_hash is "),
    "no spec": ("tasks.spec.nss", 0, "this is no spec of tasks; TaskSpec.nss=0 is refused"),
    "hash of the spec": ("tasks.spec_hash", flipped, "tasks.spec_hash is "),
    "type": ("tasks.task_type", "B", "tasks.task_type is B, that of tasks.spec is D"),
    "fingerprint of the tasks": (
        "tasks.manifest_fingerprint",
        flipped,
        "tasks.manifest_fingerprint is ",
    ),
    "no fingerprint": (
        "tasks.manifest_fingerprint",
        "../../x",
        "tasks.manifest_fingerprint is '../../x': string should",
    ),
    "data": ("tasks.data_fingerprint", flipped, "tasks.data_fingerprint is "),
    "classes": ("tasks.splits_hash", flipped, "tasks.splits_hash is "),
    "split": ("tasks.split", "train", "tasks.split is 'train'"),
    "seed": ("tasks.seed", 1, "tasks.seed is 1, that of the manifest is 0"),
    "sampler": ("tasks.sampler", "cfsl-9", "tasks.sampler is 'cfsl-9'"),
    "a mark that is not due": (
        "transductive",
        True,
        "transductive is true, that of pixel_nn with these settings is false",
    ),
    "law": ("breaks_law", True, "breaks_law is true, that of pixel_nn"),
    "no ensemble": ("ensemble", None, "ensemble is None: should be a valid dictionary"),
    "no mark": ("transductive", DROP, "transductive is missing"),
    "another learner": (
        "learner.name",
        "protonet",
        "learner.class is PixelNN, protonet is a ProtoNet",
    ),
    "settings": ("learner.settings.sharpness", 3, "learner.settings are not those of pixel_nn"),
    "MACs": ("macs.adaptation", -1, "macs.adaptation is -1"),
    "hash without a run": ("run", None, "run_hash is there without a run"),
    "hash of the answers": ("answers.sha256", flipped, "answers.sha256 is "),
    "size of the answers": ("answers.bytes", 7, "answers.bytes is 7"),
    "answers elsewhere": ("answers.file", "../x.npz", "answers.file is '../x.npz'"),
    "answers that are gone": ("answers.file", "y.npz", "y.npz cannot be read: No such file"),
    "newer": ("format", 3, "has format 3"),
}


@pytest.mark.parametrize(("place", "value", "says"), TAMPERED.values(), ids=TAMPERED)
def test_what_was_tampered_with_is_refused_by_its_name(cards, place, value, says):
    rewrite(cards / "pixel_nn.json", put(place, value))
    found = verdict(cards / "pixel_nn.json")
    assert found.status == "refused" and any(says in reason for reason in found.reasons), found


def test_all_that_is_wrong_is_said_at_once(cards):
    rewrite(cards / "pixel_nn.json", put("transductive", True))
    rewrite(cards / "pixel_nn.json", put("tasks.task_type", "B"))
    rewrite(cards / "pixel_nn.json", put("metrics.diverged", 0.5))
    assert len(verdict(cards / "pixel_nn.json").reasons) == 3


def test_an_ensemble_without_answers_is_refused(cards):
    def add(card):
        card["run"]["members"] = 2
        card["run_hash"] = run_hash(card["run"])
        card["ensemble"] = {"members": 2, "metrics": card["metrics"], "macs": card["macs"]}

    rewrite(cards / "pixel_nn.json", add)
    assert verdict(cards / "pixel_nn.json").reasons == (
        "answers are of the learner, metrics are of the learner, ensemble",
    )


def test_a_card_that_was_cut_short_is_refused(cards):
    path = cards / "pixel_nn.json"
    path.write_text(path.read_text()[:-40])
    assert "is damaged, or no result card" in str(verdict(path))


def test_one_changed_byte_of_the_answers_is_refused(cards):
    path = cards / "pixel_nn.answers.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "answers.sha256 is " in str(verdict(cards / "pixel_nn.json"))


def name_anew(path: Path) -> None:
    """Let a card name the answers that are beside it now, as a forger would."""
    content = path.with_suffix(".answers.npz").read_bytes()
    stated = {
        "file": f"{path.stem}.answers.npz",
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
    }
    rewrite(path, put("answers", stated))


def test_swapped_answers_are_refused_even_if_the_card_names_them(cards):
    shutil.copy(cards / "chance.answers.npz", cards / "pixel_nn.answers.npz")
    assert "answers.bytes is " in str(verdict(cards / "pixel_nn.json"))
    name_anew(cards / "pixel_nn.json")
    reasons = verdict(cards / "pixel_nn.json").reasons
    for number in (
        "accuracy.mean",
        "cross_entropy.mean",
        "atm.total",
        "calibration_error",
        "group_accuracy.0",
    ):
        assert any(reason.startswith(f"metrics.{number} is ") for reason in reasons), number


FORGED = {
    "a label that no task has": (
        "predicted",
        lambda p: np.where(p == p.max(), 77, p),
        "predicted goes from 0 to 77",
    ),
    "fewer tasks": (
        "predicted",
        lambda p: p[:-1],
        "predicted is uint8 (5, 20); integers (6, 20) are needed",
    ),
    "likelier": (
        "log_likelihood",
        lambda p: np.where(p < -8, p * 0.9, p),
        "metrics.cross_entropy.mean is ",
    ),
    "surer": ("confidence", lambda p: np.minimum(1, p * np.float16(1.5)), "confidence"),
    "less memory": ("state_bytes", lambda p: p // 2, "metrics.atm.total is "),
    "other answers on the way": (
        "progressive",
        lambda p: p[:, ::-1],
        "metrics.progressive_accuracy.0 is ",
    ),
}


@pytest.mark.parametrize(("array", "change", "says"), FORGED.values(), ids=FORGED)
def test_forged_answers_are_refused(cards, array, change, says):
    path = cards / "pixel_nn.answers.npz"
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays[array] = np.ascontiguousarray(change(arrays[array]), arrays[array].dtype)
    np.savez_compressed(path, **arrays)
    name_anew(cards / "pixel_nn.json")
    found = verdict(cards / "pixel_nn.json")
    assert found.status == "refused" and says in str(found), found


def test_a_damaged_manifest_is_refused_and_named(cards):
    (path,) = (cards / "manifests").iterdir()
    path.write_bytes(path.read_bytes()[:-50])
    assert f"{path} cannot be read as a task manifest" in str(verdict(cards / "pixel_nn.json"))


def test_other_tasks_than_the_card_says_are_noticed_by_drawing_again(cards):
    shutil.rmtree(cards / "manifests")
    for place, value in (("tasks.seed", 1), ("tasks.split", "train"), ("tasks.sampler", "cfsl-9")):
        shutil.copy(cards / "pixel_nn.json", cards / "other.json")
        rewrite(cards / "other.json", put(place, value))
        found = verdict(cards / "other.json")
        assert found.status == "refused" and ("seed" in str(found) or "sampler" in str(found)), (
            found
        )


# --- what cannot be checked -----------------------------------------------------------------------


def test_a_card_whose_tasks_are_not_known_here_is_unchecked_and_told_what_to_do(cards, monkeypatch):
    shutil.rmtree(cards / "manifests")
    monkeypatch.setattr(manifests_module, "current_folder", lambda name: None)
    found = verdict(cards / "pixel_nn.json")
    assert found.status == "unchecked" and "its tasks are not known here; put manifests/" in str(
        found
    )
    rewrite(cards / "pixel_nn.json", put("metrics.atm.total", 9.0))
    assert verdict(cards / "pixel_nn.json").status == "refused"


def test_what_a_card_names_is_never_drawn_or_fetched_for_it(cards, data_root):
    shutil.rmtree(cards / "manifests")
    rewrite(cards / "pixel_nn.json", put("tasks.data", "glyphs-401x20"))
    rewrite(cards / "pixel_nn.json", without_run)
    assert (
        verdict(cards / "pixel_nn.json").status == "unchecked"
        and not (data_root / "glyphs-401x20").exists()
    )


def test_manifests_are_found_in_a_folder_that_is_named_and_one_above_the_card(
    cards, monkeypatch, tmp_path
):
    monkeypatch.setattr(manifests_module, "current_folder", lambda name: None)
    (cards / "manifests").rename(tmp_path / "manifests")
    assert verdict(cards / "pixel_nn.json") == Verdict("ok")
    (tmp_path / "manifests").rename(tmp_path / "elsewhere")
    assert verdict(cards / "pixel_nn.json").status == "unchecked"
    assert verify_card(cards / "pixel_nn.json", Manifests(tmp_path / "elsewhere")) == Verdict("ok")


def test_a_card_without_answers_is_checked_in_part(cards):
    rewrite(cards / "pixel_nn.json", put("answers", None))
    assert verdict(cards / "pixel_nn.json") == Verdict("in part", ("no predictions",))
    rewrite(cards / "pixel_nn.json", put("metrics.accuracy.ci95", more))
    rewrite(cards / "pixel_nn.json", put("metrics.accuracy.ci95", more))
    assert "which is not that of std" in str(verdict(cards / "pixel_nn.json"))


def test_the_marks_of_somebodys_own_learner_are_taken_on_trust_and_its_code_is_not_run(cards):
    rewrite(cards / "pixel_nn.json", put("learner.name", "antigravity:Fly"))
    rewrite(cards / "pixel_nn.json", without_run)
    found = verdict(cards / "pixel_nn.json")
    assert (
        found.status == "in part"
        and "taken on trust" in str(found)
        and "antigravity" not in sys.modules
    )


# --- tasks of several names -----------------------------------------------------------------------


@pytest.fixture
def two_names(tmp_path, data_root) -> Iterator[list[str]]:
    """Return two names of the same images."""
    names = ["one-name", "another-name"]
    source = write_folder(tmp_path / "source", class_files(dict.fromkeys(map(str, range(90)), 3)))
    for name in names:
        add(source, data_root, name=name)
    yield names
    for name in names:
        shutil.rmtree(data_root / name)


@pytest.fixture
def same_tasks(request, tmp_path, glyphs, two_names, monkeypatch) -> list[Path]:
    """Return two true cards of the same tasks that differ in a name.

    The manifest is that of the first.
    """
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text(json.dumps(dict(glyphs.splits)))
    names = {
        "data": two_names,
        "splits": [glyphs.splits_name, "mine.json"],
        "sampler": ["as_released_2020_04", "as_released_2020_08"],
    }[request.param]
    setting = [
        "--data",
        glyphs.name,
        "--type",
        "B",
        "--nss",
        "2",
        "--k-target",
        "1",
        "--tasks",
        "3",
    ]
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    for path, name in zip(paths, names, strict=True):
        _cfsl("eval", "pixel_nn", *setting, f"--{request.param}", name, "--out", str(path))
    first, second = (json.loads(path.read_text())["tasks"] for path in paths)
    assert {key for key in first if first[key] != second[key]} == {request.param}
    _cfsl("tasks", "export", *setting, f"--{request.param}", names[0], "--out", "tasks.json.gz")
    Path("manifests").mkdir()
    Path("tasks.json.gz").rename(f"manifests/{first['manifest_fingerprint']}.json.gz")
    return paths


def together(paths: list[Path]) -> list[Verdict]:
    manifests = Manifests()
    return [verify_card(path, manifests) for path in paths]


@pytest.mark.parametrize("same_tasks", ["data", "sampler"], indirect=True)
def test_true_cards_of_the_same_tasks_are_ok_whatever_the_names_of_their_neighbours(same_tasks):
    for order in (same_tasks, same_tasks[::-1]):
        assert together(order) == [Verdict("ok")] * 2
    shutil.rmtree(same_tasks[0].parent / "manifests")
    for order in (same_tasks, same_tasks[::-1]):
        assert together(order) == [Verdict("ok")] * 2


@pytest.mark.parametrize("same_tasks", ["splits"], indirect=True)
def test_a_card_of_a_copied_split_file_is_judged_as_if_it_were_alone(same_tasks):
    first, second = together(same_tasks)
    assert first == Verdict("ok") and second.status == "in part"
    assert together(same_tasks[::-1]) == [second, first]
    shutil.rmtree(same_tasks[0].parent / "manifests")
    first, second = together(same_tasks)
    assert first == Verdict("ok") and second.status == "unchecked"
    assert together(same_tasks[::-1]) == [second, first]


@pytest.mark.parametrize("same_tasks", ["data", "splits", "sampler"], indirect=True)
def test_a_name_that_cannot_be_checked_is_taken_on_trust_and_nothing_else_is(
    same_tasks, request, monkeypatch
):
    monkeypatch.setattr(manifests_module, "current_folder", lambda name: None)
    name, path = request.node.callspec.params["same_tasks"], same_tasks[1]
    first, second = together(same_tasks)
    assert first == Verdict("ok") and second.status == "in part"
    (reason,) = second.reasons
    assert reason.startswith(f"tasks.{name} is ") and reason.endswith(
        "the tasks are the same, so this is taken on trust"
    )
    for place, value in (
        ("seed", 1),
        ("split", "val"),
        ("count", 2),
        ("numbers", [3, 6, 1]),
        ("spec_hash", flipped),
    ):
        shutil.copy(path, path.with_name("false.json"))
        rewrite(path.with_name("false.json"), put(f"tasks.{place}", value))
        found = verdict(path.with_name("false.json"))
        assert found.status == "refused" and f"tasks.{place} is " in str(found), found
    rewrite(path, put("metrics.atm.curve.1", more))
    assert "metrics.atm.curve.1 is " in str(verdict(path)) and verdict(path).status == "refused"


def test_what_a_name_stands_for_is_only_open_to_doubt_under_another_name(cards, monkeypatch):
    monkeypatch.setattr(manifests_module, "current_folder", lambda name: None)
    for name, fact in (("data", "data_fingerprint"), ("splits", "splits_hash")):
        shutil.copy(cards / "pixel_nn.json", cards / "other.json")
        rewrite(cards / "other.json", without_run)
        rewrite(cards / "other.json", put(f"tasks.{fact}", flipped))
        assert verdict(cards / "other.json").status == "refused"
        rewrite(cards / "other.json", put(f"tasks.{name}", "mine"))
        found = verdict(cards / "other.json")
        assert (
            found.status == "in part"
            and f"tasks.{name} is 'mine', that of the manifest is " in str(found)
        )


def test_a_name_that_gives_other_tasks_is_refused(cards):
    rewrite(cards / "pixel_nn.json", put("tasks.sampler", "as_released_2020_04"))
    (reason,) = verdict(cards / "pixel_nn.json").reasons
    assert reason == "tasks.sampler is 'as_released_2020_04', that of the manifest is 'cfsl-1'"


# --- marks and runs -------------------------------------------------------------------------------


def card_of(name: str, **changes: Any) -> Card:
    """Return the card of a learner, with the marks that it has."""
    learner = LEARNERS[name].build(**changes)
    marks = {mark: bool(getattr(learner, mark, False)) for mark in ("transductive", "breaks_law")}
    stated = json.loads(json.dumps({"name": name, **described(learner)}))
    return report_cards.card(name, TaskSpec.type_b(3), 0.5).replace(learner=stated, **marks)


@pytest.mark.parametrize("name", LEARNERS)
def test_the_marks_of_every_learner_follow_from_its_name_and_settings(name):
    card = card_of(name)
    assert list(false_marks(card)) == []
    for mark in ("transductive", "breaks_law"):
        flipped_mark = card.replace(**{mark: mark not in card.marks})
        assert [mark in problem for problem in false_marks(flipped_mark)] == [True]


def test_a_learner_that_looks_at_all_targets_cannot_hide_it():
    card = card_of("protonet", norm="batch")
    assert card.transductive and list(false_marks(card)) == []
    (problem,) = false_marks(card.replace(transductive=False))
    assert problem == "transductive is false, that of protonet with these settings is true"


def test_a_learner_that_breaks_the_law_cannot_be_set_not_to():
    learner = card_of("joint").learner.content()
    learner["settings"]["breaks_law"] = False
    (problem,) = false_marks(card_of("joint").replace(learner=learner, breaks_law=False))
    assert problem.startswith("breaks_law is false")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, glyphs) -> Path:
    """Return the card of a trained learner and its ensemble, with all that a bench writes on it."""
    folder = tmp_path_factory.mktemp("trained")
    path = folder / "protonet.json"
    setting = (
        "--data",
        "glyphs-400x20",
        "--type",
        "B",
        "--nss",
        "2",
        "--k-target",
        "1",
        "--set",
        "net.widths=[8,8]",
    )
    run = str(folder / "run")
    _cfsl("train", "protonet", *setting, "--epochs", "2", "--updates", "2", "--out", run)
    extra = ("--tasks", "5", "--progressive", "--checkpoint", run, "--ensemble", "2")
    _cfsl("eval", "protonet", *setting, *extra, "--out", str(path))
    rewrite(path, lambda card: card.update(profile="quick", run=full_run(card)))
    rewrite(path, hash_again)
    return path


def full_run(card: dict[str, Any]) -> dict[str, Any]:
    """Return the run that a bench would have made a card from."""
    tasks, changes = card["tasks"], {"net.widths": [8, 8]}
    learner = LearnerSpec(name="protonet", changes=changes, settings=card["learner"]["settings"])
    data = DataSpec(
        name=tasks["data"], fingerprint=tasks["data_fingerprint"], splits_hash=tasks["splits_hash"]
    )
    training = Training(**card["checkpoint"]["identity"]["training"])
    return RunSpec(
        profile="quick",
        learner=learner,
        data=data,
        task=TaskSpec(**tasks["spec"]),
        tasks=5,
        train=TrainSpec(learner=learner, data=data, training=training),
        members=2,
        progressive=True,
    ).identity()


def hash_again(card: dict[str, Any]) -> None:
    card["run_hash"] = run_hash(card["run"])


@pytest.fixture
def benched(trained, tmp_path) -> Path:
    """Return a copy to tamper with."""
    for path in trained.parent.glob("protonet.*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "protonet.json"


def test_a_run_is_held_against_its_hash(benched):
    assert verdict(benched) == Verdict("ok")
    rewrite(benched, put("run.profile", "smoke"))
    assert "run_hash is " in str(verdict(benched))


_ZEROS = "0" * 64
CONTRADICTING = {
    "profile": ("profile", "paper", "run.profile is 'quick', profile is 'paper'"),
    "settings": (
        "learner.settings.metric",
        "cosine",
        "run.learner.settings.metric is 'euclidean', learner.settings.metric is 'cosine'",
    ),
    "inner settings": (
        "run.learner.settings.net.bias",
        3,
        "run.learner.settings.net.bias is 3, learner.settings.net.",
    ),
    "name of the learner": (
        "run.learner.name",
        "sca",
        "run.learner.name is 'sca', learner.name is 'protonet'",
    ),
    "members": ("ensemble.members", 3, "run.members is 2, ensemble.members is 3"),
    "members of the run": ("run.members", 1, "run.members is 1, ensemble.members is 2"),
    "average": (
        "run.average",
        "probabilities",
        "run.average is 'probabilities', ensemble.average is 'logits'",
    ),
    "seed": ("run.seed", 7, "run.seed is 7, checkpoint.identity.training.seed is 0"),
    "name of the data": (
        "run.data.name",
        "omniglot",
        "run.data.name is 'omniglot', tasks.data is 'glyphs-400x20'",
    ),
    "data": (
        "run.data.fingerprint",
        _ZEROS,
        f"run.data.fingerprint is '{_ZEROS}', tasks.data_fingerprint is ",
    ),
    "classes": (
        "run.data.splits_hash",
        _ZEROS,
        f"run.data.splits_hash is '{_ZEROS}', tasks.splits_hash is ",
    ),
    "spec": ("run.task.k_target", 2, "run.task.k_target is 2, tasks.spec.k_target is 1"),
    "count": ("run.tasks", 6, "run.tasks is 6, tasks.count is 5"),
    "seed of the tasks": ("run.task_seed", 1, "run.task_seed is 1, tasks.seed is 0"),
    "split": ("run.split", "val", "run.split is 'val', tasks.split is 'test'"),
    "progressive": (
        "run.progressive",
        False,
        "run.progressive is false, metrics.progressive_accuracy is there",
    ),
    "no training": ("run.train", None, "run.train is null, checkpoint is there"),
    "no checkpoint": ("checkpoint", None, "run.train is there, checkpoint is null"),
    "training": (
        "run.train.training.schedule.epochs",
        9,
        "run.train.training.schedule.epochs is 9, "
        "checkpoint.identity.training.schedule.epochs is 2",
    ),
    "trained settings": (
        "run.train.learner.settings.norm",
        "batch",
        "run.train.learner.settings.norm is 'batch', checkpoint.identity.learner.norm is 'running'",
    ),
    "trained on": (
        "run.train.data.fingerprint",
        _ZEROS,
        f"run.train.data.fingerprint is '{_ZEROS}', checkpoint.identity.data.fingerprint is ",
    ),
    "no learner": ("run.learner", None, "run.learner is None: should be a valid dictionary"),
}


@pytest.mark.parametrize(("place", "value", "says"), CONTRADICTING.values(), ids=CONTRADICTING)
def test_a_run_that_the_card_contradicts_is_refused_by_both_values(benched, place, value, says):
    rewrite(benched, put(place, value))
    rewrite(benched, hash_again)
    found = verdict(benched)
    assert (
        found.status == "refused" and len(found.reasons) == 1 and found.reasons[0].startswith(says)
    ), found


def test_a_run_of_several_members_has_an_ensemble(benched):
    rewrite(benched, put("ensemble", DROP))
    assert "run.members is 2, ensemble.members is not there" in str(verdict(benched))


def test_what_an_older_version_did_not_write_is_no_contradiction(benched):
    for place in (
        "members",
        "average",
        "progressive",
        "learner.settings.metric",
        "train.training.validation_tasks",
    ):
        rewrite(benched, put(f"run.{place}", DROP))
    rewrite(benched, put("checkpoint.identity.learner.norm", DROP))
    rewrite(benched, hash_again)
    assert verdict(benched) == Verdict("ok")


def test_somebodys_own_learner_is_described_by_texts_that_do_not_contradict_each_other(benched):
    rewrite(benched, put("run.train.learner.settings", "package.Learner"))
    rewrite(
        benched,
        put(
            "checkpoint.identity.learner", {"class": "Learner", "repr": "<package.Learner at 0x7f>"}
        ),
    )
    rewrite(benched, hash_again)
    assert verdict(benched) == Verdict("ok")


ODD = {
    "checkpoint": "x",
    "checkpoint.identity": None,
    "checkpoint.identity.data": {},
    "checkpoint.identity.learner": [],
    "checkpoint.identity.training": None,
    "checkpoint.identity.training.schedule.epochs": "many",
    "checkpoint.identity.training.validation": {},
    "checkpoint.history": {"a": None},
    "checkpoint.history.0.accuracy": "NaN",
    "circumstances.environment": "x",
    "circumstances.environment.cfsl": None,
    "circumstances.training_seconds": -1,
    "circumstances.seconds": "long",
    "run.learner": None,
    "run.data": "glyphs",
    "run.data.splits": 3,
    "run.train.learner.name": [],
    "run.train.training": "long",
    "macs.adaptation": 10**30,
}


@pytest.mark.parametrize("place", ODD)
def test_a_card_of_an_odd_shape_is_refused_by_its_place(benched, place):
    rewrite(benched, put(place, ODD[place]))
    found = verdict(benched)
    assert found.status == "refused" and found.reasons[0].startswith(f"{place}"), found
    with pytest.raises(CardError) as refusal:
        read_card(benched)
    assert str(refusal.value).startswith(f"{benched}: {place}") and "\n" not in str(refusal.value)


def test_cards_of_odd_shapes_are_named_and_the_others_are_done(run, benched):
    for number, (place, value) in enumerate(
        [*ODD.items(), ("circumstances.environment", None), ("run.data", DROP)]
    ):
        shutil.copy(benched, f"{number:02}.json")
        rewrite(Path(f"{number:02}.json"), put(place, value))
    done = run("verify", ".")
    assert done.code == 1 and done.err == ""
    assert done.out.endswith(f"protonet.json: ok\n{number + 2} cards: 1 ok, {number + 1} refused\n")
    for command in (["results", "list", "."], ["report", ".", "--no-verify", "--no-pictures"]):
        done = run(*command)
        assert done.code == 1 and "Traceback" not in done.err
        assert [f"{n:02}.json: " in line for n, line in enumerate(done.err.splitlines())] == [
            True
        ] * (number + 1)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_a_line_a_card_and_a_summary(run, cards):
    done = run("verify", str(cards))
    assert done == (0, f"{cards}/chance.json: ok\n{cards}/pixel_nn.json: ok\n2 cards: 2 ok\n", "")
    rewrite(cards / "chance.json", put("metrics.diverged", 1))
    (cards / "choice.json").write_text('{"format": 2, "kind": "choice"}')
    (cards / "notes.json").write_text('{"format": 7, "anything": "else"}')
    done = run("verify", str(cards))
    assert done.code == 1 and done.err == ""
    first, second, last = done.out.splitlines()
    assert first == f"{cards}/chance.json: REFUSED: metrics.diverged is 1, the answers give 0.0"
    assert second.endswith("pixel_nn.json: ok")
    assert last == "2 cards: 1 ok, 1 refused; 2 files of other kinds skipped"


def test_the_command_prints_json_for_programs(run, cards):
    rewrite(cards / "chance.json", put("answers", None))
    done = run("verify", str(cards / "chance.json"), str(cards / "pixel_nn.json"), "--json")
    assert done.code == 0 and json.loads(done.out) == {
        f"{cards}/chance.json": {"status": "in part", "reasons": ["no predictions"]},
        f"{cards}/pixel_nn.json": {"status": "ok", "reasons": []},
    }


def test_strict_fails_what_was_not_checked_in_full(run, cards):
    rewrite(cards / "chance.json", put("answers", None))
    assert run("verify", str(cards)).code == 0
    assert run("verify", str(cards), "--strict").code == 1
    assert run("verify", str(cards / "pixel_nn.json"), "--strict").code == 0


def test_a_damaged_card_among_others_is_refused_and_the_others_are_checked(run, cards):
    (cards / "broken.json").write_text('{"format": 2,')
    done = run("verify", str(cards), "--manifests", str(cards / "manifests"))
    assert done.code == 1 and done.out.splitlines()[-1] == "3 cards: 2 ok, 1 refused"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["."], "there are no result cards in ."),
        ([], "Missing argument"),
    ],
)
def test_nothing_to_verify_is_a_mistake(run, words, says):
    done = run("verify", *words)
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1


def test_an_ensemble_is_verified_with_its_members(run, glyphs):
    small = ("--set", "net.widths=[8,8]")
    setting = ("--data", "glyphs-400x20", "--type", "few-shot", "--k-target", "1", *small)
    assert (
        run("train", "protonet", *setting, "--epochs", "2", "--updates", "2", "--out", "here").code
        == 0
    )
    evaluated = run(
        "eval",
        "protonet",
        *setting,
        "--tasks",
        "5",
        "--checkpoint",
        "here",
        "--ensemble",
        "2",
        "--out",
        "e.json",
    )
    assert evaluated.code == 0, evaluated.err
    assert run("verify", "e.json", "--strict").out == "e.json: ok\n1 card: 1 ok\n"
    rewrite(Path("e.json"), put("ensemble.metrics.accuracy.mean", 0.75))
    assert "ensemble.metrics.accuracy.mean is 0.75" in run("verify", "e.json").out


def test_every_committed_card_is_true(run):
    results = Path(__file__).parent.parent.parent / "results"
    done = run("verify", str(results), "--strict")
    assert done.code == 0, done.out
