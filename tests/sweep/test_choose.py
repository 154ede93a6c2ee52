"""cfsl choose tries all combinations on validation tasks; --set and --try reach inner values."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from cfsl.cli.choosing import combinations
from cfsl.cli.option_values import parsed_change, written_change
from cfsl.errors import SpecError
from cfsl.harness.trace import Trace
from cfsl.learners.ewc import Ewc
from cfsl.learners.overrides import changed
from cfsl.learners.registry import find_learner
from cfsl.learners.replay import Replay
from cfsl.learners.tune import Tune
from cfsl.nets import conv4
from cfsl.sweep.choice import ranked

_GLYPHS = ("--data", "glyphs-400x20")
pytestmark = pytest.mark.usefixtures("glyphs")
_QUICK = (*_GLYPHS, "--type", "B", "--nss", "2", "--n-way", "2", "--tasks", "3")


def trace_of(right: list[list[bool]], state_bytes: int = 7) -> Trace:
    """Two labels, all targets of label 0; a row of `right` is a task."""
    hits = np.array(right)
    tasks = len(hits)
    return Trace(
        logits=np.where(np.stack([hits, ~hits], axis=2), 1.0, 0.0).astype(np.float32),
        labels=np.zeros(hits.shape, np.int64),
        groups=np.zeros(hits.shape, np.int64),
        state_bytes=np.full((tasks, 2), state_bytes, np.int64),
        bookkeeping_bytes=np.zeros((tasks, 2), np.int64),
        support_bytes=70,
    )


# What is chosen


def test_the_learning_rate_that_learns_nothing_is_not_chosen(run):
    result = run(
        "choose",
        "init_tune",
        *_GLYPHS,
        "--type",
        "few-shot",
        "--tasks",
        "12",
        "--try",
        "lr=1e-9,0.05",
    )
    assert result.code == 0 and result.err == ""
    lines = result.out.splitlines()
    assert lines[-1] == "--set lr=0.05"
    header, nothing, best = lines[2:5]
    assert header.split() == ["lr", "accuracy", "%", "to", "the", "best", "p", "ATM"]
    assert nothing.split()[0] == "1e-09" and best.split()[:2] == ["*", "0.05"]
    assert float(nothing.split()[4]) < -5 and float(nothing.split()[7]) < 0.05


def test_the_order_of_the_values_does_not_matter(run):
    result = run(
        "choose",
        "init_tune",
        *_GLYPHS,
        "--type",
        "few-shot",
        "--tasks",
        "12",
        "--try",
        "lr=0.05,1e-9",
    )
    assert result.out.splitlines()[-1] == "--set lr=0.05"


def test_the_line_to_use_can_be_used(run):
    narrow = (*_QUICK, "--set", "inner.net.widths=[8,8]")
    found = run(
        "choose",
        "ewc_init",
        *narrow,
        "--try",
        "strength=0,10",
        "--try",
        "inner.lr=0.001,0.05",
        "--json",
    )
    card = json.loads(found.out)
    assert set(card["chosen"]) == {"strength", "inner.lr"}
    used = run(
        "eval", "ewc_init", *narrow, "--split", "val", *shlex.split(card["options"]), "--json"
    )
    assert used.code == 0, used.err
    best = next(one for one in card["tried"] if one["best"])
    assert json.loads(used.out)["metrics"]["accuracy"] == best["accuracy"]
    assert json.loads(used.out)["metrics"]["atm"]["total"] == best["atm"]
    assert json.loads(used.out)["learner"]["settings"]["inner"]["lr"] == card["chosen"]["inner.lr"]


def test_the_best_mean_is_chosen_and_what_is_not_worse_is_marked():
    half, most = (
        [[True, False, False, False]] * 6,
        [[True, True, True, False]] * 5 + [[True, True, False, False]],
    )
    close = [[True, True, True, False]] * 4 + [[True, True, False, False]] * 2
    tried = ranked(
        [{"a": 1}, {"a": 2}, {"a": 3}], [trace_of(half), trace_of(most), trace_of(close, 14)]
    )
    assert [one.mark for one in tried] == [" ", "*", "~"]
    assert [one.accuracy["mean"] for one in tried] == pytest.approx([1 / 4, 17 / 24, 2 / 3])
    assert [one.difference for one in tried] == pytest.approx([-11 / 24, 0, -1 / 24])
    assert tried[0].p < 0.001 and tried[1].p == 1 and tried[2].p == pytest.approx(0.3632, abs=1e-4)
    assert [one.atm for one in tried] == pytest.approx([0.1, 0.1, 0.2])


def test_of_equals_the_first_is_chosen():
    same = [[True, False]] * 3
    tried = ranked([{"a": 1}, {"a": 2}], [trace_of(same), trace_of(same)])
    assert [one.mark for one in tried] == ["*", "~"]


def test_marks_are_explained(run):
    result = run("choose", "chance", *_QUICK, "--try", "x=1")
    assert result.code == 2
    result = run("choose", "init_tune", *_QUICK, "--try", "lr=0.01,0.010001")
    assert "~ not significantly worse" in result.out and result.out.splitlines()[3].startswith(
        ("*", "~")
    )
    result = run("choose", "init_tune", *_QUICK, "--try", "lr=0.01")
    assert "~" not in result.out and result.out.splitlines()[-1] == "--set lr=0.01"


# On which tasks


def split_file(name: str, classes: list[str], small: str) -> tuple[str, str]:
    """Write a split in which one part has too few classes for any task."""
    parts = {"train": classes[:100], "val": classes[100:250], "test": classes[250:]}
    Path(name).write_text(json.dumps(parts | {small: parts[small][:3]}))
    return "--splits", name


def test_no_class_of_the_test_split_is_looked_at(run, glyphs):
    """With three test classes there are no test tasks to choose by."""
    split = split_file("few-test.json", glyphs.info.class_names, "test")
    result = run("choose", "init_tune", *_QUICK, *split, "--try", "lr=0.01")
    assert result.code == 0 and "glyphs-400x20/val, 3 tasks" in result.out
    split = split_file("few-val.json", glyphs.info.class_names, "val")
    result = run("choose", "init_tune", *_QUICK, *split, "--try", "lr=0.01")
    assert result.code == 2 and "glyphs-400x20/val has 3 classes" in result.err


@pytest.mark.parametrize("split", ["test", "train", "all"])
def test_other_splits_are_refused(run, split):
    result = run("choose", "init_tune", *_QUICK, "--try", "lr=0.01", "--split", split)
    assert result == (
        2,
        "",
        f"cfsl: choices are made on validation tasks; leave out --split {split}\n",
    )


def test_asking_for_validation_tasks_is_the_default(run):
    named, default = (
        run("choose", "init_tune", *_QUICK, "--try", "lr=0.01", *more).out
        for more in (("--split", "val"), ())
    )
    assert named == default


def test_the_choice_is_written_down(run, glyphs):
    arguments = (
        "choose",
        "init_tune",
        *_QUICK,
        "--try",
        "lr=0.01,0.1",
        "--set",
        "steps=1",
        "--out",
        "new/choice.json",
    )
    result = run(*arguments)
    assert "wrote new/choice.json" in result.out.splitlines()
    card = json.loads(Path("new/choice.json").read_text())
    assert (card["kind"], card["tasks"]["split"], card["tasks"]["count"]) == ("choice", "val", 3)
    assert card["learner"]["name"] == "init_tune" and card["learner"]["settings"]["steps"] == 1
    assert [one["values"] for one in card["tried"]] == [{"lr": 0.01}, {"lr": 0.1}]
    assert card["options"] == result.out.splitlines()[-1]
    printed = json.loads(run(*arguments, "--json").out)
    assert printed["tried"] == card["tried"] and printed["chosen"] == card["chosen"]


# What can be tried


def test_every_combination_is_tried_in_the_order_given():
    assert combinations(["a=1,2", "b=x,y"], []) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1,2.5,1e-3", [1, 2.5, 0.001]),
        ("a=cosine,dot", ["cosine", "dot"]),
        ("a=cosine, 2", ["cosine", 2]),
        ("a=[1,2],[3]", [[1, 2], [3]]),
        ("a=true,null", [True, None]),
        ("a=b=c", ["b=c"]),
    ],
)
def test_values_are_json_or_words(text, values):
    assert [one["a"] for one in combinations([text], [])] == values


_TWENTY = "lr=" + ",".join(str(number) for number in range(1, 21))
_WRONG = {
    "no --try": ([], "Missing option '--try'"),
    "no value": (["--try", "lr"], "--try lr is not of the form name=value,value"),
    "no name": (["--try", "=1"], "--try =1 is not of the form"),
    "empty list": (["--try", "lr="], "--try lr= has an empty value"),
    "gap in the list": (["--try", "lr=1,,2"], "has an empty value"),
    "value twice": (["--try", "lr=1,2,1"], "has 1 twice"),
    "name twice": (["--try", "lr=1", "--try", "lr=2"], "--try lr is given twice"),
    "set and tried": (
        ["--try", "lr=1,2", "--set", "lr=1"],
        "lr is both given by --set and to be tried",
    ),
    "unknown name": (["--try", "step=1,2"], "Tune has no field 'step'; did you mean 'steps'?"),
    "unknown inner name": (
        ["--try", "net.width=1"],
        "ConvNet has no field 'width'; did you mean 'widths'?",
    ),
    "unknown outer name": (["--try", "inner.lr=1"], "Tune has no field 'inner'"),
    "no inner value": (["--try", "norm.lr=1"], "norm has no hyper-parameters to change"),
    "bad value": (["--try", "lr=0.1,fast"], "Tune.lr='fast' is refused"),
    "out of range": (["--try", "lr=0.1,-1"], "Tune.lr=-1 is refused"),
    "too many": (
        ["--try", _TWENTY, "--try", "steps=1,2,3,4,5,6,7,8,9,10,11"],
        "220 combinations are too many to try",
    ),
    "no such folder": (["--try", "lr=1", "--checkpoint", "nowhere"], "nowhere does not exist"),
    "no tasks": (["--try", "lr=1", "--tasks", "0"], "--tasks"),
}


@pytest.mark.parametrize(("arguments", "message"), _WRONG.values(), ids=_WRONG)
def test_mistakes_are_one_line_and_exit_code_2(run, arguments, message):
    result = run("choose", "init_tune", *_QUICK, *arguments)
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("cfsl: ") and result.err.count("\n") == 1
    assert message in result.err


def test_learners_without_weights_or_hyper_parameters_say_so(run):
    assert "needs weights" in run("choose", "protonet", *_QUICK, "--try", "metric=dot").err
    assert "did you mean 'init_tune'" in run("choose", "init_tun", *_QUICK, "--try", "lr=1").err
    assert "Missing argument" in run("choose", "--try", "lr=1").err


# Dotted names


def test_a_dotted_name_changes_an_inner_value_and_nothing_else():
    learner = Replay(inner=Ewc(inner=Tune(steps=3)), sets=4)
    new = changed(
        learner,
        {"inner.inner.lr": 0.5, "inner.strength": 7.0, "sets": 5, "inner.inner.net.widths": [8, 8]},
    )
    tune = Tune(steps=3, lr=0.5, net=conv4(48, "conv-norm-act").replace(widths=(8, 8)))
    assert new == Replay(inner=Ewc(inner=tune, strength=7.0), sets=5)
    assert learner == Replay(inner=Ewc(inner=Tune(steps=3)), sets=4)
    assert changed(learner, {}) is learner


def test_a_value_and_a_part_of_it_cannot_both_be_given():
    with pytest.raises(SpecError, match=r"inner and inner\.lr are both given"):
        changed(find_learner("ewc_init"), {"inner": Tune(), "inner.lr": 0.1})


def test_eval_takes_dotted_names_too(run):
    result = run(
        "eval", "ewc_init", *_QUICK, "--set", "inner.lr=0.125", "--set", "inner.steps=1", "--json"
    )
    settings = json.loads(result.out)["learner"]["settings"]
    assert (settings["inner"]["lr"], settings["inner"]["steps"], settings["inner"]["norm"]) == (
        0.125,
        1,
        "support",
    )
    wrong = run("eval", "ewc_init", *_QUICK, "--set", "iner.lr=0.125")
    assert wrong.code == 2 and "Ewc has no field 'iner'; did you mean 'inner'?" in wrong.err
    wrong = run("eval", "ewc_init", *_QUICK, "--set", "strength")
    assert wrong.code == 2 and "--set strength is not of the form name=value" in wrong.err


@pytest.mark.parametrize("value", [1, 0.001, True, None, "cosine", "1", "null", "a b", [1, 2]])
def test_what_is_written_is_read_again(value):
    assert parsed_change(written_change("x.y", value)) == ("x.y", value)
