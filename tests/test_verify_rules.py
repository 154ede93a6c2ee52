"""cfsl verify: a card is true, or it is refused with a reason that names what is not."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cfsl.cli
from cfsl.learners.registry import LEARNERS
from cfsl.results import manifests as manifests_module
from cfsl.results.claims import false_marks, run_hash
from cfsl.results.evaluation import described
from cfsl.results.manifests import Manifests
from cfsl.results.verify import Verdict, verify_card

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


def put(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return what puts a value at a place such as metrics.accuracy.mean; a function is given the old value."""
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
    assert [verdict(cards / f"{name}.json") for name in ("pixel_nn", "chance")] == [Verdict("ok")] * 2
    shutil.rmtree(cards / "manifests")
    assert verdict(cards / "pixel_nn.json") == Verdict("ok")


def more(old: float) -> float:
    return old * (1 + 1e-6)


def flipped(old: str) -> str:
    return ("0" if old[0] != "0" else "1") + old[1:]


NUMBERS = [
    *(f"metrics.{name}.{part}" for name in ("accuracy", "cross_entropy", "forgetting") for part in ("mean", "std")),
    *(f"metrics.{name}.ci95" for name in ("accuracy", "cross_entropy", "forgetting", "backward_transfer")),
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
    assert found.status == "refused" and any(reason.startswith(f"{place} is ") for reason in found.reasons), found


TAMPERED = {
    "accuracy above 1": ("metrics.accuracy.mean", 1.2, "metrics.accuracy.mean is 1.2: should be less than or equal to"),
    "no number": ("metrics.accuracy.mean", math.nan, "metrics.accuracy.mean is nan"),
    "infinite memory": ("metrics.atm.total", math.inf, "metrics.atm.total is inf"),
    "negative cross-entropy": ("metrics.cross_entropy.mean", -1.0, "metrics.cross_entropy.mean is -1.0"),
    "a text for a number": ("metrics.calibration_error", "low", "metrics.calibration_error is 'low'"),
    "a metric of one's own": ("metrics.brilliance", 1.0, "metrics.brilliance is 1.0: extra inputs are not permitted"),
    "a metric left out": ("metrics.forgetting", DROP, "metrics.forgetting is missing"),
    "no metrics": ("metrics", DROP, "it has no metrics"),
    "more memory than its parts": ("metrics.atm.total", 9.0, "metrics.atm.total is 9, its parts are 1 and"),
    "diverged": ("metrics.diverged", 0.5, "metrics.diverged is 0.5, the answers give 0.0"),
    "count of tasks": ("tasks.count", 600, "metrics.accuracy.count is 6, tasks.count is 600"),
    "count of accuracies": ("metrics.accuracy.count", 600, "metrics.accuracy.count is 600, tasks.count is 6"),
    "numbers of tasks": (
        "tasks.numbers",
        [6, 12, 1],
        "tasks.numbers are [6, 12, 1], those of the manifest are range(0",
    ),
    "spec": ("tasks.spec.k_shot", 5, "tasks.spec_hash is "),
    "no spec": ("tasks.spec.nss", 0, "tasks.spec: TaskSpec.nss=0 is refused"),
    "hash of the spec": ("tasks.spec_hash", flipped, "tasks.spec_hash is "),
    "type": ("tasks.task_type", "B", "tasks.task_type is B, that of tasks.spec is D"),
    "fingerprint of the tasks": ("tasks.manifest_fingerprint", flipped, "tasks.manifest_fingerprint is "),
    "no fingerprint": (
        "tasks.manifest_fingerprint",
        "../../x",
        "tasks.manifest_fingerprint is '../../x': string should",
    ),
    "data set": ("tasks.data", "omniglot", "tasks.data is 'omniglot', that of the manifest is 'glyphs-400x20'"),
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
    "no mark": ("transductive", DROP, "transductive is missing"),
    "another learner": ("learner.name", "protonet", "learner.class is PixelNN, protonet is a ProtoNet"),
    "settings": ("learner.settings.sharpness", 3, "learner.settings are not those of pixel_nn"),
    "MACs": ("macs.adaptation", -1, "macs.adaptation is -1"),
    "hash without a run": ("run_hash", "a" * 64, "run_hash is there without a run"),
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
    stated = {"file": f"{path.stem}.answers.npz", "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    rewrite(path, put("answers", stated))


def test_swapped_answers_are_refused_even_if_the_card_names_them(cards):
    shutil.copy(cards / "chance.answers.npz", cards / "pixel_nn.answers.npz")
    assert "answers.bytes is " in str(verdict(cards / "pixel_nn.json"))
    name_anew(cards / "pixel_nn.json")
    reasons = verdict(cards / "pixel_nn.json").reasons
    for number in ("accuracy.mean", "cross_entropy.mean", "atm.total", "calibration_error", "group_accuracy.0"):
        assert any(reason.startswith(f"metrics.{number} is ") for reason in reasons), number


FORGED = {
    "a label that no task has": ("predicted", lambda p: np.where(p == p.max(), 77, p), "predicted goes from 0 to 77"),
    "fewer tasks": ("predicted", lambda p: p[:-1], "predicted is uint8 (5, 20); integers (6, 20) are needed"),
    "likelier": ("log_likelihood", lambda p: np.where(p < -8, p * 0.9, p), "metrics.cross_entropy.mean is "),
    "surer": ("confidence", lambda p: np.minimum(1, p * np.float16(1.5)), "confidence"),
    "less memory": ("state_bytes", lambda p: p // 2, "metrics.atm.total is "),
    "other answers on the way": ("progressive", lambda p: p[:, ::-1], "metrics.progressive_accuracy.0 is "),
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
        assert found.status == "refused" and ("seed" in str(found) or "sampler" in str(found)), found


# --- what cannot be checked -----------------------------------------------------------------------------------------


def test_a_card_whose_tasks_are_not_known_here_is_unchecked_and_told_what_to_do(cards, monkeypatch):
    shutil.rmtree(cards / "manifests")
    monkeypatch.setattr(manifests_module, "current_folder", lambda name: None)
    found = verdict(cards / "pixel_nn.json")
    assert found.status == "unchecked" and "its tasks are not known here; put manifests/" in str(found)
    rewrite(cards / "pixel_nn.json", put("metrics.atm.total", 9.0))
    assert verdict(cards / "pixel_nn.json").status == "refused"


def test_what_a_card_names_is_never_drawn_or_fetched_for_it(cards, data_root):
    shutil.rmtree(cards / "manifests")
    rewrite(cards / "pixel_nn.json", put("tasks.data", "glyphs-401x20"))
    assert verdict(cards / "pixel_nn.json").status == "unchecked" and not (data_root / "glyphs-401x20").exists()


def test_manifests_are_found_in_a_folder_that_is_named_and_one_above_the_card(cards, monkeypatch, tmp_path):
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
    found = verdict(cards / "pixel_nn.json")
    assert found.status == "in part" and "taken on trust" in str(found) and "antigravity" not in sys.modules


# --- marks and runs -------------------------------------------------------------------------------------------------


def card_of(name: str, **changes: Any) -> dict[str, Any]:
    learner = LEARNERS[name].build(**changes)
    marks = {mark: bool(getattr(learner, mark, False)) for mark in ("transductive", "breaks_law")}
    return {"learner": {"name": name, **described(learner)}, **marks}


@pytest.mark.parametrize("name", LEARNERS)
def test_the_marks_of_every_learner_follow_from_its_name_and_settings(name):
    card = json.loads(json.dumps(card_of(name)))
    assert list(false_marks(card)) == []
    for mark in ("transductive", "breaks_law"):
        assert [mark in problem for problem in false_marks(card | {mark: not card[mark]})] == [True]


def test_a_learner_that_looks_at_all_targets_cannot_hide_it():
    card = card_of("protonet", norm="batch")
    assert card["transductive"] and list(false_marks(card)) == []
    (problem,) = false_marks(card | {"transductive": False})
    assert problem == "transductive is false, that of protonet with these settings is true"


def test_a_learner_that_breaks_the_law_cannot_be_set_not_to():
    card = card_of("joint")
    card["learner"]["settings"]["breaks_law"] = card["breaks_law"] = False
    (problem,) = false_marks(card)
    assert problem.startswith("breaks_law is false")


def test_a_run_is_held_against_its_hash_and_the_card(cards):
    tasks = json.loads((cards / "pixel_nn.json").read_text())["tasks"]
    run = {"profile": "short", "learner": {"name": "pixel_nn"}, "task": tasks["spec"], "tasks": 6, "seed": 0}

    def state(card):
        card.update(run=run, run_hash=run_hash(run), profile="short")

    rewrite(cards / "pixel_nn.json", state)
    assert verdict(cards / "pixel_nn.json") == Verdict("ok")
    rewrite(cards / "pixel_nn.json", put("run.seed", 1))
    assert "run_hash is " in str(verdict(cards / "pixel_nn.json"))
    rewrite(cards / "pixel_nn.json", state)
    rewrite(cards / "pixel_nn.json", put("profile", "paper"))
    assert "run.profile is 'short', the card says 'paper'" in str(verdict(cards / "pixel_nn.json"))


# --- the command ----------------------------------------------------------------------------------------------------


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
    [(["nowhere"], "nowhere does not exist"), (["."], "there are no result cards in ."), ([], "Missing argument")],
)
def test_nothing_to_verify_is_a_mistake(run, words, says):
    done = run("verify", *words)
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1


def test_an_ensemble_is_verified_with_its_members(run, glyphs):
    small = ("--set", "net.widths=[8,8]")
    setting = ("--data", "glyphs-400x20", "--type", "few-shot", "--k-target", "1", *small)
    assert run("train", "protonet", *setting, "--epochs", "2", "--updates", "2", "--out", "here").code == 0
    evaluated = run(
        "eval", "protonet", *setting, "--tasks", "5", "--checkpoint", "here", "--ensemble", "2", "--out", "e.json"
    )
    assert evaluated.code == 0, evaluated.err
    assert run("verify", "e.json", "--strict").out == "e.json: ok\n1 card: 1 ok\n"
    rewrite(Path("e.json"), put("ensemble.metrics.accuracy.mean", 0.75))
    assert "ensemble.metrics.accuracy.mean is 0.75" in run("verify", "e.json").out


def test_every_committed_card_is_true(run):
    results = Path(__file__).parent.parent / "results"
    done = run("verify", str(results), "--strict")
    assert done.code == 0, done.out
