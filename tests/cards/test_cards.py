"""Cards: a run gives the same card again, old cards load, and stored numbers were measured."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import cfsl
from cfsl.cards import answers_file
from cfsl.cards.answers_file import read_answers, write_answers
from cfsl.cards.card import (
    measurements,
    read_card,
    read_content,
    write_card,
    write_content,
)
from cfsl.cards.manifests import Manifests
from cfsl.cards.schema import Card, SchemaError
from cfsl.cards.verify import Verdict, stated_answers, verify_card
from cfsl.data.manifest import Manifest
from cfsl.errors import CardError
from cfsl.harness.trace import Trace
from cfsl.metrics.accuracy import task_accuracies, task_cross_entropies
from cfsl.metrics.answers import NO_ANSWER, Answers, answers_of, rounded
from cfsl.runs.evaluation import evaluation_of
from make_traces import make_trace, traces

GOLDEN = Path(__file__).parent.parent / "golden" / "cards"
NAN, INF = math.nan, math.inf


def same(a: Answers, b: Answers) -> bool:
    """Tell whether two answers are the same to the bit."""
    pairs = ((getattr(a, field.name), getattr(b, field.name)) for field in fields(Answers))
    return all(
        np.array_equal(x, y) and getattr(x, "dtype", 0) == getattr(y, "dtype", 0) for x, y in pairs
    )


@pytest.fixture(scope="module")
def tasks(glyphs) -> cfsl.Tasks:
    return cfsl.Tasks(glyphs, cfsl.TaskSpec.type_d(nss=4, k_target=2), numbers=range(5))


@pytest.fixture(scope="module")
def wild(tasks) -> Trace:
    """Return the trace of a learner that is sure, unsure, diverged and absurd by turns."""
    rng, plan, spec = np.random.default_rng(3), tasks.plan(), tasks.spec
    logits = rng.normal(0, 9, (len(tasks), spec.target_images, spec.labels)).astype(np.float32)
    logits[0, :4, :2] = [[NAN, 1], [INF, 0], [-INF, 3], [3e38, -3e38]]
    logits[1, 0] = -INF
    logits[2, 1] = 0
    logits[3] *= 0.01
    return Trace(
        logits=logits,
        labels=plan.target_labels.astype(np.int64),
        groups=plan.target_groups.astype(np.int64),
        state_bytes=rng.integers(70_000, 90_000, (len(tasks), spec.nss + 1)),
        bookkeeping_bytes=np.full((len(tasks), spec.nss + 1), 7),
        support_bytes=4 * spec.support_images * 784,
        progressive=rng.integers(
            0, spec.labels, (len(tasks), spec.nss, spec.target_images), np.int32
        ),
        seen=np.array([1, 1, 2, 2]),
    )


# --- answers --------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(traces(min_groups=2))
def test_answers_have_every_metric_of_their_trace(trace):
    answers = answers_of(trace)
    assert answers_of(answers) is answers
    assert measurements(answers) == measurements(trace)


@settings(max_examples=25)
@given(traces())
def test_rounding_leaves_accuracy_alone_and_moves_cross_entropy_by_less_than_a_thousandth(trace):
    answers = rounded(answers_of(trace))
    assert np.array_equal(task_accuracies(answers), task_accuracies(trace))
    np.testing.assert_allclose(
        task_cross_entropies(answers), task_cross_entropies(trace), rtol=1e-3, atol=1e-7
    )


def test_rounding_twice_is_rounding_once(wild):
    once = rounded(answers_of(wild))
    assert same(rounded(once), once) and not same(once, answers_of(wild))


def test_rounding_keeps_the_finite_finite_and_the_infinite_infinite():
    answers = rounded(answers_of(make_trace([[[1e6, 0.0], [0.0, -INF], [NAN, 0.0]]], [[1, 1, 1]])))
    assert answers.log_likelihood.tolist() == [[-65504.0, -INF, -INF]]
    assert answers.predicted.tolist() == [[0, 0, NO_ANSWER]] and answers.confidence.tolist() == [
        [1.0, 1.0, 1.0]
    ]


# --- answers on disk ------------------------------------------------------------------------------


def test_answers_come_back_to_the_bit_from_what_is_stored(tmp_path, tasks, wild):
    answers = {
        "": answers_of(wild),
        "ensemble": replace(answers_of(wild), progressive=None, seen=None),
    }
    write_answers(tmp_path / "x.npz", answers)
    found = read_answers(tmp_path / "x.npz", Manifest.of(tasks))
    assert found.keys() == answers.keys()
    assert all(same(found[part], rounded(answers[part])) for part in answers)


def test_the_same_answers_give_the_same_bytes_and_labels_are_not_among_them(tmp_path, wild):
    for name in ("a.npz", "b.npz"):
        write_answers(tmp_path / name, {"": answers_of(wild)})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz") as stored:
        kinds = {name: (stored[name].dtype.str, stored[name].shape) for name in stored.files}
    tasks, targets = wild.labels.shape
    wrong = int((answers_of(wild).predicted != wild.labels).sum())
    assert kinds == {
        "predicted": ("|i1", (tasks, targets)),
        "log_likelihood": ("<f2", (tasks, targets)),
        "confidence": ("<f2", (wrong,)),
        "state_bytes": ("<u4", (tasks, 5)),
        "bookkeeping_bytes": ("|u1", (1, 5)),
        "support_bytes": ("<i8", ()),
        "progressive": ("|u1", (tasks, 4, targets)),
    }


def change(path: Path, **arrays) -> None:
    """Write an .npz file again with other arrays in it; None leaves one out."""
    with np.load(path) as stored:
        kept = dict(stored) | arrays
    np.savez(path, **{name: array for name, array in kept.items() if array is not None})


HALF = np.float16
DAMAGES = {
    "no predictions": ({"predicted": None}, "there is no predicted"),
    "an unknown array": ({"spy": np.zeros(1)}, "unknown array 'spy'"),
    "a label too many": (
        {"predicted": np.full((5, 20), 10)},
        "predicted goes from 10 to 10; -1 to 9 is possible",
    ),
    "tasks too few": (
        {"predicted": np.zeros((4, 20), int)},
        "predicted is int64 (4, 20); integers (5, 20) are needed",
    ),
    "fractions of labels": ({"predicted": np.zeros((5, 20))}, "predicted is float64"),
    "NaN": ({"log_likelihood": np.full((5, 20), NAN, HALF)}, "log_likelihood holds NaN"),
    "too likely": ({"log_likelihood": np.full((5, 20), 1, HALF)}, "log_likelihood is above 0"),
    "full precision": ({"log_likelihood": np.zeros((5, 20))}, "log_likelihood is float64"),
    "unlikely and said": (
        {"log_likelihood": np.full((5, 20), -8, HALF)},
        "confidence is below what the surest of all",
    ),
    "confidences too few": ({"confidence": np.zeros(3, HALF)}, "confidence is float16 (3,)"),
    "memory below nothing": ({"state_bytes": np.full((1, 5), -1)}, "state_bytes goes from -1"),
    "memory at too few times": (
        {"state_bytes": np.zeros((1, 4), int)},
        "integers (1, 5) are needed",
    ),
    "bookkeeping of nothing": (
        {"state_bytes": np.zeros((1, 5), int)},
        "bookkeeping_bytes is above state_bytes",
    ),
    "odd images": ({"support_bytes": np.array(81)}, "support_bytes is 81"),
    "code": ({"predicted": np.array([print], object)}, "cannot be read as the answers of a card"),
}


@pytest.mark.parametrize(("arrays", "says"), DAMAGES.values(), ids=DAMAGES)
def test_answers_that_nobody_can_have_given_are_refused(tmp_path, tasks, wild, arrays, says):
    path = tmp_path / "x.npz"
    write_answers(path, {"": answers_of(wild)})
    change(path, **arrays)
    with pytest.raises(CardError) as refusal:
        read_answers(path, Manifest.of(tasks))
    assert says in str(refusal.value) and str(path) in str(refusal.value)


def test_answers_that_unpack_to_too_much_are_refused(tmp_path, tasks, wild, monkeypatch):
    write_answers(tmp_path / "x.npz", {"": answers_of(wild)})
    monkeypatch.setattr(answers_file, "MOST_BYTES", 100)
    with pytest.raises(CardError, match="more than 100 are refused"):
        read_answers(tmp_path / "x.npz", Manifest.of(tasks))


# --- cards ----------------------------------------------------------------------------------------


def test_the_same_run_gives_the_same_card_but_for_its_circumstances(tmp_path, tasks):
    from cfsl.learners.registry import find_learner

    for name in ("a", "b"):
        done = evaluation_of("pixel_nn", find_learner("pixel_nn"), tasks, {})
        write_card(tmp_path / name / "card.json", done.card, {"": done.answers})
    a, b = (json.loads((tmp_path / name / "card.json").read_text()) for name in ("a", "b"))
    assert (
        a.pop("circumstances").keys() == b.pop("circumstances").keys() == {"seconds", "environment"}
    )
    assert a == b and a["answers"]["file"] == "card.answers.npz" and a["format"] == 2
    answers = (tmp_path / "a" / "card.answers.npz").read_bytes()
    assert a["answers"]["sha256"] == hashlib.sha256(answers).hexdigest() and a["answers"][
        "bytes"
    ] == len(answers)


def test_a_card_is_read_as_it_was_returned_with_all_that_the_caller_put_on_it(tmp_path, wild):
    card = {
        "learner": {"name": "x"},
        "tasks": {},
        "metrics": measurements(wild),
        "macs": {},
        "run": {"seed": 3},
        "profile": "short",
        "history": [{"loss": NAN}],
    }
    written = write_content(tmp_path / "new" / "x.json", card)
    read = read_content(tmp_path / "new" / "x.json")
    assert math.isnan(read.pop("history")[0]["loss"]) and written.pop("history")
    assert read == written and read["metrics"]["cross_entropy"]["mean"] == INF
    assert (read["run"], read["profile"], read["answers"]) == ({"seed": 3}, "short", None)


def test_a_card_is_json_to_the_letter_even_if_a_number_is_infinite(tmp_path, wild):
    write_content(tmp_path / "x.json", {"metrics": measurements(wild)})

    def refuse(constant):
        raise AssertionError(constant)

    content = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    assert content["metrics"]["cross_entropy"]["mean"] == "Infinity"


WRONG = {
    "damaged": ('{"format": 2, "lear', "is damaged, or no result card"),
    "empty": ("", "is damaged, or no result card"),
    "a list": ("[]", "it states no format"),
    "something else": ('{"version": 7}', "it states no format"),
    "newer": (
        '{"format": 3}',
        "has format 3, which a newer cfsl wrote; this version reads up to 2",
    ),
    "nonsense": ('{"format": "two"}', "it states no format"),
    "true": ('{"format": true}', "it states no format"),
    "half": ('{"format": 2, "learner": {}, "macs": {}}', "it has no tasks, no metrics"),
    "too deep": ("[" * 100_000, "is damaged, or no result card"),
    "deep inside": (
        '{"format": 2, "learner": {}, "tasks": {}, "macs": {}, '
        f'"metrics": {{"a": {"[" * 800 + "]" * 800}}}}}',
        "is damaged, or no result card",
    ),
}


@pytest.mark.parametrize(("text", "says"), WRONG.values(), ids=WRONG)
def test_what_is_no_card_of_a_known_format_is_refused_in_one_line(tmp_path, text, says):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(CardError) as refusal:
        read_card(tmp_path / "x.json")
    assert says in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_card_that_is_not_there_or_cannot_be_written_is_said_in_one_line(tmp_path):
    with pytest.raises(CardError, match=r"x\.json cannot be read: No such file"):
        read_card(tmp_path / "x.json")
    (tmp_path / "file").touch()
    with pytest.raises(CardError, match="cannot be written"):
        write_content(tmp_path / "file" / "x.json", {})


# --- golden cards: never changed again ------------------------------------------------------------

FILES = {
    "format-1.json": "16c9c2d4b3aba42673dc847b264cf046228b6b5a60858e34ae8955afb6f70e11",
    "format-2.json": "0972d6e6583aa8fcb5aa6df902c8b3f8acacf8cb47bd6fc31b383d44fef2837b",
    "format-2.answers.npz": "f05ddab1fc3c622891df44db253a076ad7d6ba6c20df123339f16724996fc7f4",
}
READ = {
    1: "5eb81e75880826cad52c0cf83e8fb086ce139630a755a0c95fece8c818faed10",
    2: "1828eeefb1bb1fe3802d3d827833ebd0f10fef3407d6e3cacdc162d049a35cae",
}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", FILES)
def test_golden_files_were_not_changed(name):
    assert digest((GOLDEN / name).read_bytes()) == FILES[name]


@pytest.mark.parametrize("version", READ)
def test_golden_cards_still_load_and_come_out_the_same(version):
    card = read_card(GOLDEN / f"format-{version}.json")
    text = json.dumps(card.content(), sort_keys=True, separators=(",", ":"))
    assert digest(text.encode()) == READ[version]


def test_a_card_of_format_1_is_read_as_one_of_format_2():
    old, card = (
        json.loads((GOLDEN / "format-1.json").read_text()),
        read_content(GOLDEN / "format-1.json"),
    )
    around = card["circumstances"]
    assert (card["format"], card["upgraded_from"], card["answers"], card["run"]) == (
        2,
        1,
        None,
        None,
    )
    assert around["seconds"] == old["seconds"] and around["environment"] == old["environment"]
    assert around["training_seconds"] == [
        epoch["seconds"] for epoch in old["checkpoint"]["history"]
    ]
    assert (
        "seconds" not in card
        and "environment" not in card
        and "seconds" not in str(card["checkpoint"])
    )
    assert card["metrics"] == old["metrics"] and card["tasks"] == old["tasks"]


@pytest.mark.parametrize(
    "value", ["x", [], {"history": None}, {"history": [None]}, {"history": {"a": None}}, -1]
)
def test_a_card_of_format_1_with_an_odd_checkpoint_is_read_and_then_refused_by_its_place(
    tmp_path, value
):
    card = json.loads((GOLDEN / "format-1.json").read_text()) | {"checkpoint": value}
    (tmp_path / "x.json").write_text(json.dumps(card))
    with pytest.raises(SchemaError) as refusal:
        Card.of(read_content(tmp_path / "x.json"))
    (problem,) = refusal.value.problems
    assert problem.startswith("checkpoint")


def test_the_numbers_of_the_golden_card_still_follow_from_its_answers():
    path = GOLDEN / "format-2.json"
    card, tasks = read_card(path), Manifests()
    answers = stated_answers(card, path, tasks)[""]
    assert measurements(answers)["accuracy"]["mean"] == pytest.approx(
        card.metrics.accuracy.mean, rel=1e-12
    )
    assert measurements(answers)["cross_entropy"] == pytest.approx(
        card.metrics.cross_entropy.content(), rel=1e-12
    )
    assert verify_card(path, tasks) == Verdict("ok")
    assert verify_card(GOLDEN / "format-1.json", tasks) == Verdict(
        "in part", ("no predictions (format 1)",)
    )
