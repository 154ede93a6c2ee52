"""cfsl sweep: trials use validation tasks, none is done twice, and a killed sweep can go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from cfsl.data.store import Dataset
from cfsl.data.tasks import Tasks
from cfsl.errors import SpecError
from cfsl.report.sweep_chart import sweep_chart
from cfsl.runs.data import data_spec, open_data
from cfsl.spec import TaskSpec
from cfsl.sweep.hyperparameters import Hyperparameters
from cfsl.sweep.outcome import Row, idle
from cfsl.sweep.paper2 import paper_2_sweep
from cfsl.sweep.space import METHODS, Choices, Range, listed_points, read_space
from cfsl.sweep.study import SweepStudy
from cfsl.sweep.trials import SPLIT, Sweep, run_of, sound, training_for
from cfsl.sweep.workers import Job

pytestmark = pytest.mark.usefixtures("glyphs")
_GLYPHS = ("--data", "glyphs-400x20", "--type", "B", "--nss", "2", "--n-way", "2", "--tasks", "2")
_TINY = (*_GLYPHS, "--set", "net.widths=[4]", "--set", "steps=1")
_SHORT = ("--epochs", "1", "--updates", "2", "--set", "training.batch=4")
_TRAINED = (*_GLYPHS, "--set", "net.widths=[4,4]", *_SHORT)
_TASK = TaskSpec.type_b(2, n_way=2)


def sweep_of(learner: str = "init_tune", **fields) -> Sweep:
    """A small sweep."""
    usual = {
        "learner": learner,
        "base": {"net.widths": [4], "steps": 1},
        "data": data_spec(open_data("glyphs-400x20", None), None),
        "task": _TASK,
        "tasks": 2,
        "task_seed": 0,
        "training": training_for(learner, "short", _TASK, 0, {}),
        "seed": 0,
        "space": {"lr": Choices(choices=(0.01, 0.1))},
        "method": "grid",
        "search_seed": 0,
    }
    return Sweep(**usual | fields)


def _done(values: dict, accuracy: float) -> Row:
    return Row(
        0,
        values,
        "done",
        accuracy=accuracy,
        ci95=0.1,
        atm=1.0,
        macs={"adaptation": 1, "prediction": 1},
    )


def test_what_made_no_difference_wherever_nothing_else_differed_is_told():
    """`axes` is not told: it never varies alone. A failed trial is not counted."""
    rows = [
        _done({"lr": 0.1, "views": "one", "axes": 2}, 0.3),
        _done({"lr": 0.1, "views": "turns", "axes": 2}, 0.3),
        _done({"lr": 0.2, "views": "one", "axes": 2}, 0.5),
        _done({"lr": 0.2, "views": "turns", "axes": 2}, 0.5),
        _done({"lr": 0.4, "views": "one", "axes": 4}, 0.5),
        Row(5, {"lr": 0.4, "views": "turns", "axes": 4}, "failed", error="why"),
    ]
    assert idle(rows) == ["views"]
    assert idle([*rows, _done({"lr": 0.4, "views": "turns", "axes": 4}, 0.6)]) == []
    assert idle([]) == [] and idle(rows[:1]) == []


def study_of(folder: Path, **fields) -> SweepStudy:
    return SweepStudy(folder, sweep_of(**fields), 3)


def table(text: str) -> list[str]:
    """The lines of the printed table."""
    lines = text.splitlines()
    start = next(
        number
        for number, line in enumerate(lines)
        if line.split()[:1] == ["trial"] and "ATM" in line
    )
    return lines[start:]


# What a sweep leaves


def test_the_rate_that_learns_nothing_is_not_best_and_the_best_is_ready_for_bench(run):
    found = run(
        "sweep",
        "init_tune",
        *_GLYPHS,
        "--tasks",
        "12",
        "--set",
        "net.widths=[8,8]",
        "--vary",
        "lr=1e-9,0.05",
    )
    assert found.code == 0 and found.err == ""
    assert found.out.splitlines()[-1] == "--set 'net.widths=[8, 8]' --set lr=0.05"
    folder = Path("sweeps/init_tune-glyphs-400x20-B2")
    assert {path.name for path in folder.iterdir()} == {
        "bench",
        "best.json",
        "locks",
        "study.db",
        "sweep.png",
    }
    best = json.loads((folder / "best.json").read_text())
    assert (
        best["learner"] == "init_tune"
        and best["changes"] == {"net.widths": [8, 8], "lr": 0.05}
        and best["training"] is None
    )
    assert (best["tasks"]["split"], best["tasks"]["count"]) == ("val", 12)
    plan = run(
        "bench",
        "smoke",
        "--learners",
        "init_tune",
        "--settings",
        str(folder / "best.json"),
        "--plan",
    )
    assert plan.code == 0 and plan.err == ""


def test_a_trial_scores_what_eval_scores(run):
    found = run("sweep", "init_tune", *_TINY, "--vary", "lr=0.01,0.1", "--json")
    report = json.loads(found.out)
    for row in report["trials"]:
        lr = row["values"]["lr"]
        card = json.loads(
            run("eval", "init_tune", *_TINY, "--split", "val", "--set", f"lr={lr}", "--json").out
        )
        assert card["metrics"]["accuracy"]["mean"] == row["accuracy"]
        assert card["metrics"]["accuracy"]["ci95"] == row["ci95"]
        assert card["metrics"]["atm"]["total"] == row["atm"]
        assert {part: card["macs"][part] for part in row["macs"]} == row["macs"]
    best = next(row for row in report["trials"] if row["best"])
    assert report["best"]["values"] == best["values"] and best["p"] == 1
    assert best["accuracy"] == max(row["accuracy"] for row in report["trials"])


def test_trials_of_equal_networks_share_one_training(run):
    found = run(
        *(
            "sweep",
            "pretrain_tune_replay",
            *_GLYPHS,
            *_SHORT,
            "--set",
            "inner.net.widths=[4,4]",
            "--out",
            "s",
        ),
        *("--vary", "b=1,2", "--vary", "training.rate=0.01"),
    )
    assert found.code == 0, found.err
    trainings = [path.name for path in Path("s/bench/training").iterdir()]
    assert len(trainings) == 1 and trainings[0].startswith("pretrain_tune-glyphs")
    assert len(list(Path("s/bench/cards").glob("*.json"))) == 2
    assert (
        "'cfsl bench --settings' has its own schedules: it leaves out training.rate=" in found.out
    )
    best = json.loads(Path("s/best.json").read_text())
    assert (
        not any(name.startswith("training") for name in best["changes"])
        and "sets" in best["changes"]
    )
    assert best["training"]["schedule"]["rate"] == best["values"]["training.rate"]


def test_what_changes_the_training_changes_its_name_and_nothing_else_does():
    def training(**values) -> str:
        sweep = sweep_of(
            "pretrain_tune_replay", base={}, space={name: Choices(choices=(0,)) for name in values}
        )
        return run_of(sweep, values).train.hash

    usual = training()
    assert (
        usual == training(b=3) == training(p=1) == training(**{"inner.steps": 9, "inner.lr": 0.5})
    )
    others = [
        training(**{name: value})
        for name, value in (("training.rate", 0.5), ("rate", 0.5), ("filters", 8))
    ]
    others += [training(**{"inner.net.widths": [8, 8]}), training(**{"inner.norm": "batch"})]
    assert len({usual, *others}) == 6


def test_champions_share_one_training_unless_the_weights_are_other_ones():
    def training(**values) -> str:
        space = {name: Choices(choices=(value,)) for name, value in values.items()}
        sweep = sweep_of("champion", base={}, space=space or {"groups": Choices(choices=(True,))})
        return run_of(sweep, values).train.hash

    usual = training()
    assert usual == training(groups=False) == training(numbers="float32")
    assert usual == training(knows_copies=False)
    others = [training(views="one"), training(closeness="cosine"), training(axes=64)]
    others += [training(learns_means=False), training(length_power=0.0)]
    assert len({usual, *others}) == 6


# On which tasks


def test_no_run_and_no_training_of_a_sweep_names_the_test_split():
    for learner, where in (
        ("init_tune", ""),
        ("protonet", ""),
        ("pretrain_tune_replay", "inner."),
        ("maml_low", ""),
    ):
        base, space = {f"{where}net.widths": [4, 4]}, {"training.rate": Choices(choices=(0.1, 0.2))}
        if learner == "init_tune":
            space = {"lr": Range(low=0.01, high=0.1)}
        sweep = sweep_of(learner, base=base, space=space)
        for value in (0.1, 0.2):
            run = run_of(sweep, {next(iter(space)): value})
            assert run.split == SPLIT == "val"
            assert '"test"' not in json.dumps(run.identity())


def test_a_sweep_has_no_field_for_a_split():
    assert not any("split" in name for name in Sweep.model_fields)
    with pytest.raises(SpecError, match="no field 'split'"):
        sweep_of(split="test")


def test_no_image_of_the_test_split_is_opened(run, monkeypatch):
    usual, asked = Dataset.classes_of, []

    def classes_of(data: Dataset, split: str):
        asked.append(split)
        assert split in ("train", "val")
        return usual(data, split)

    def refuse(tasks: Tasks) -> None:
        assert tasks.split in ("train", "val")

    monkeypatch.setattr(Dataset, "classes_of", classes_of)
    monkeypatch.setattr(Tasks, "__post_init__", refuse)
    found = run("sweep", "pretrain_tune", *_TRAINED, "--vary", "lr=0.1")
    assert found.code == 0, found.err
    assert set(asked) == {"train", "val"}


@pytest.mark.parametrize("split", ["test", "train", "all"])
def test_other_splits_are_refused(run, split):
    result = run("sweep", "init_tune", *_TINY, "--vary", "lr=0.01", "--split", split)
    assert result == (2, "", f"cfsl: sweeps are on validation tasks; leave out --split {split}\n")


# Which points


def test_a_univariate_sweep_varies_one_at_a_time_around_what_is_set():
    space = {"lr": Choices(choices=(0.1, 0.2)), "steps": Choices(choices=(1, 3))}
    sweep = sound(sweep_of(method="univariate", space=space, base={"net.widths": [4], "steps": 3}))
    assert sweep.points() == [
        {"lr": 0.01, "steps": 3},
        {"lr": 0.1, "steps": 3},
        {"lr": 0.2, "steps": 3},
        {"lr": 0.01, "steps": 1},
    ]


def test_a_grid_has_every_combination_and_lists_ranges_of_whole_numbers():
    space = read_space(
        {"a": {"low": 1, "high": 3}, "b": {"low": 0, "high": 1, "step": 0.5}, "c": ["x", [1, 2]]}
    )
    points = listed_points("grid", space, {})
    assert (
        len(points) == 18
        and points[0] == {"a": 1, "b": 0, "c": "x"}
        and points[-1] == {"a": 3, "b": 1, "c": [1, 2]}
    )


@pytest.mark.parametrize("data", ["omniglot", "slimagenet64"])
@pytest.mark.parametrize("learner", ["pretrain_tune", "pretrain_tune_replay", "protonet"])
def test_the_sweeps_of_paper_2_are_around_its_values(learner, data):
    task = TaskSpec.type_d(8, 2)
    base, space = paper_2_sweep(learner, data, task)
    replay = ["b", "p"] if learner == "pretrain_tune_replay" else []
    assert list(space) == ["filters", "blocks", "rate", *replay]
    hyperparameters = Hyperparameters(learner, base, training_for(learner, "paper", task, 0, {}))
    centre = {name: hyperparameters.centre(name) for name in space}
    assert all(centre[name] in domain.values() for name, domain in space.items())
    slow = learner == "protonet" and data == "omniglot"
    assert centre["rate"] == (0.001 if slow else 0.01)
    if learner == "pretrain_tune_replay" and data == "omniglot":
        assert centre == {"filters": 128, "blocks": 3, "rate": 0.01, "b": 4, "p": 10}
    points = listed_points("univariate", space, centre)
    assert len(points) == 1 + sum(len(domain.values()) - 1 for domain in space.values())
    changes, training = hyperparameters.settings(centre)
    assert training.schedule.rate == pytest.approx(centre["rate"] / 10)
    net = changes["inner.net" if learner == "pretrain_tune_replay" else "net"]
    assert net["widths"] == [
        centre["filters"] * number for number in range(1, centre["blocks"] + 1)
    ]
    assert net["order"] == ("conv-act-norm" if learner == "protonet" else "conv-norm-act")


def test_the_words_of_paper_2_are_found_in_learners_that_wrap_others():
    training = training_for("pretrain_tune_replay", "short", _TASK, 0, {})
    changes, trained = Hyperparameters("pretrain_tune_replay", {}, training).settings(
        {"b": 3, "p": 7, "rate": 0.5, "blocks": 2}
    )
    assert changes["sets"] == 3 and changes["samples"] == 7 and changes["inner.lr"] == 0.5
    assert changes["inner.net"]["widths"] == [48, 96]
    assert trained.schedule.rate == 0.05
    with pytest.raises(SpecError, match="sets and b both say what sets is"):
        Hyperparameters("pretrain_tune_replay", {"sets": 1}, training).settings({"b": 3})


# The study


def values_of(study: SweepStudy, count: int) -> list[dict]:
    """Take trials and finish them at once, with an accuracy that depends on their values alone."""
    found = []
    for _ in range(count):
        held = study.take()
        if held is None:
            break
        with held.lock:
            study.finish(held, held.values["lr"] - 0.01 * held.values["steps"], {})
        found.append(held.values)
    return found


_SEARCHED = {"lr": Range(low=1e-3, high=0.1, log=True), "steps": Range(low=1, high=20)}


@pytest.mark.parametrize(("method", "stops"), [("tpe", (6, 6, 1)), ("random", (1, 2))])
def test_the_same_seed_gives_the_same_trials_even_if_it_was_stopped(tmp_path, method, stops):
    def found(name: str, stops: tuple[int, ...], seed: int = 0) -> list[dict]:
        sweep, values = sweep_of(method=method, space=_SEARCHED, base={}, search_seed=seed), []
        for count in stops:
            with closing(SweepStudy(tmp_path / name, sweep, total)) as study:
                study.prepare(retry=False)
                values += values_of(study, count)
                held = study.take() if count != stops[-1] else None
                if held is not None:
                    held.lock.release()  # as if it had died over this one
        return values

    total = sum(stops)  # of tpe the first ten are drawn at random
    once = found("once", (total,))
    assert len(once) == total and once == found("stopped", stops)
    assert once[0] != found("other", (1,), seed=1)[0]
    assert all(
        1e-3 <= one["lr"] <= 0.1 and type(one["steps"]) is int and 1 <= one["steps"] <= 20
        for one in once
    )


def test_a_trial_is_given_out_once_and_that_of_a_dead_worker_again(tmp_path):
    with closing(study_of(tmp_path)) as ours, closing(study_of(tmp_path)) as theirs:
        ours.prepare(retry=False)
        first, second = ours.take(), theirs.take()
        assert {first.point, second.point} == {0, 1} and ours.take() is None
        theirs.prepare(retry=False)
        assert theirs.take() is None
        first.lock.release()  # as the system does when a process ends
        theirs.return_dead()
        theirs.return_dead()
        assert theirs.take().point == first.point and theirs.take() is None


def test_a_trial_that_kills_its_workers_is_given_up(tmp_path):
    with closing(study_of(tmp_path)) as study:
        study.prepare(retry=False)
        deaths = 0
        while (held := study.take()) is not None and deaths < 10:
            if held.point == 1:
                held.lock.release()
                study.return_dead()
                deaths += 1
            else:
                study.finish(held, 0.5, {})
        assert deaths == 3 and study.tried()[1].error == "its worker died 3 times; out of memory?"


def test_a_sweep_that_is_stopped_often_gives_nothing_up(tmp_path):
    for _ in range(4):
        with closing(study_of(tmp_path)) as study:
            study.prepare(retry=False)
            study.take().lock.release()
    with closing(study_of(tmp_path)) as study:
        study.prepare(retry=False)
        assert [one.error for one in study.tried()] == [None, None] and study.take() is not None


def test_a_sweep_says_what_made_no_difference(run):
    idle_rates = run("sweep", "init_tune", *_TINY, "--vary", "lr=1e-12,1e-13", "--out", "idle")
    assert "lr made no difference at all, so that init_tune may not use it here" in idle_rates.out
    rates = run("sweep", "init_tune", *_TINY, "--vary", "lr=1e-12,3", "--out", "rates")
    assert rates.code == 0 and "no difference" not in rates.out


def test_another_sweep_in_the_same_folder_is_refused(run):
    arguments = ("sweep", "init_tune", *_TINY, "--vary", "lr=0.01,0.1", "--out", "s")
    assert run(*arguments).code == 0
    for changed, said in (
        ((*arguments, "--tasks", "3"), "tasks is 2 there and 3 here"),
        (
            ["steps=2" if word == "steps=1" else word for word in arguments],
            "base.steps is 1 there and 2 here",
        ),
        ((*arguments, "--vary", "steps=1"), ""),
        ((*arguments, "--seed", "1"), "task_seed is 0 there and 1 here"),
    ):
        result = run(*changed)
        assert result.code == 2 and result.err.count("\n") == 1 and said in result.err
    other = run("sweep", "init_tune", *_TINY, "--vary", "lr=0.01,0.2", "--out", "s")
    assert (
        "s has another sweep: space.lr.choices is [0.01, 0.1] there and [0.01, 0.2] here"
        in other.err
    )
    Path("s/study.db").write_text("no study")
    assert "s/study.db cannot be used as a study" in run(*arguments).err


@pytest.mark.slow
def test_two_workers_never_do_a_trial_twice_and_find_what_one_finds(run):
    arguments = ("sweep", "init_tune", *_TINY, "--vary", "lr=0.01,0.1,0.3", "--json")
    two = run(*arguments, "--out", "two", "--workers", "2")
    assert two.code == 0, two.err
    one = run(*arguments, "--out", "one")
    assert json.loads(two.out)["trials"] == json.loads(one.out)["trials"]
    assert states("two") == {"COMPLETE": 3}


def states(folder: str | Path) -> dict[str, int]:
    """How many trials of a study are in which state."""
    import sqlite3

    with closing(sqlite3.connect(Path(folder) / "study.db")) as file:
        return dict(file.execute("select state, count(*) from trials group by state").fetchall())


@pytest.mark.long
def test_a_sweep_that_was_killed_goes_on_to_the_same_table(run, tmp_path):
    arguments = (
        "sweep",
        "init_tune",
        *_GLYPHS,
        "--set",
        "net.widths=[4]",
        "--vary",
        "lr=0.1,1",
        "--vary",
        "steps=1,2",
    )
    killed = [
        sys.executable,
        "-m",
        "cfsl",
        *arguments,
        "--out",
        str(tmp_path / "killed"),
        "--workers",
        "2",
    ]
    process = subprocess.Popen(killed, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # the first trial is done
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    time.sleep(0.5)  # workers notice at once that their sweep is gone
    left = states(tmp_path / "killed")
    assert left["COMPLETE"] < 4
    again = run(*arguments, "--out", str(tmp_path / "killed"))
    undisturbed = run(*arguments, "--out", str(tmp_path / "undisturbed"))
    assert again.code == 0, again.err
    assert table(again.out)[:5] == table(undisturbed.out)[:5]
    after = states(tmp_path / "killed")
    assert after["COMPLETE"] == 4 and after.keys() <= {"COMPLETE", "FAIL"}
    assert after.get("FAIL", 0) <= 2
    started = [line for line in again.out.splitlines() if line.startswith("trial ")]
    assert len(started) == 4 - left["COMPLETE"]


def test_ctrl_c_leaves_a_sweep_that_goes_on(run, monkeypatch):
    import cfsl.sweep.work

    arguments = ("sweep", "init_tune", *_TINY, "--vary", "lr=0.01,0.1", "--out", "s")
    usual = cfsl.sweep.work.run_plan

    def stop(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(cfsl.sweep.work, "run_plan", stop)
    assert run(*arguments) == (130, "", "cfsl: stopped\n")
    monkeypatch.setattr(cfsl.sweep.work, "run_plan", usual)
    assert run(*arguments).code == 0
    assert states("s") == {"COMPLETE": 2, "FAIL": 1}


def test_a_failing_trial_is_written_down_and_the_others_go_on(run, monkeypatch):
    import cfsl.engine.perform

    usual = cfsl.engine.perform.evaluate_variants

    def fragile(conditions, learner, *more, **named):
        if learner.lr == 0.1:
            raise ValueError("it broke")
        return usual(conditions, learner, *more, **named)

    arguments = ("sweep", "init_tune", *_TINY, "--vary", "lr=0.01,0.1,0.3", "--out", "s")
    monkeypatch.setattr(cfsl.engine.perform, "evaluate_variants", fragile)
    result = run(*arguments)
    assert (
        result.code == 1
        and result.err == "cfsl: trial 1 failed: ValueError: it broke (--retry tries it again)\n"
    )
    assert [line.split()[-1] for line in table(result.out)[1:4]][1] == "failed"
    monkeypatch.setattr(cfsl.engine.perform, "evaluate_variants", usual)
    assert run(*arguments).code == 1
    report = run(*arguments, "--json")
    assert report.code == 1 and [row["state"] for row in json.loads(report.out)["trials"]] == [
        "done",
        "failed",
        "done",
    ]
    mended = run(*arguments, "--retry")
    assert mended.code == 0 and mended.err == "" and "trial 1 (lr=0.1)" in mended.out


# What is refused


def space_file(content: object) -> tuple[str, str]:
    Path("space.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return "--space", "space.json"


_WRONG = {
    "nothing to vary": ([], "say what to vary by one of --vary"),
    "two ways": (["--vary", "lr=1", "--paper2"], "say what to vary by one of"),
    "unknown name": (
        ["--vary", "step=1"],
        "init_tune has no hyper-parameter 'step'; did you mean 'steps'?",
    ),
    "unknown inner name": (["--vary", "net.width=1"], "did you mean 'net.widths'?"),
    "unknown in --set": (["--vary", "lr=1", "--set", "stps=1"], "did you mean 'steps'?"),
    "not trained": (
        ["--vary", "training.rate=1"],
        "init_tune is not trained, so it has no 'training.rate'",
    ),
    "not trained, epochs": (
        ["--vary", "lr=1", "--epochs", "2"],
        "init_tune is not trained; leave out --epochs",
    ),
    "out of range": (["--vary", "lr=0.1,-1"], "Tune.lr=-1 is refused"),
    "two networks": (["--vary", "blocks=2"], "net and net.widths are both given"),
    "not a name": (["--vary", "lr"], "--vary lr is not of the form name=value,value"),
    "name twice": (["--vary", "lr=1", "--vary", "lr=2"], "--vary lr is given twice"),
    "set and varied": (["--vary", "steps=1,2"], "steps is both set and to be varied"),
    "unknown method": (["--vary", "lr=1", "--method", "grids"], "did you mean 'grid'?"),
    "trials of a grid": (["--vary", "lr=1", "--trials", "3"], "leave out --trials"),
    "not of paper 2": (["--paper2"], "there is no learner of paper 2 'init_tune'"),
    "other sampler": (
        ["--vary", "lr=1", "--sampler", "as_released_2020_04"],
        "leave out --sampler",
    ),
    "unknown data": (["--vary", "lr=1", "--data", "glyphz"], "glyphs"),
}
_WRONG_SPACES = {
    "no JSON": ("{", "space.json cannot be read as a space"),
    "empty": ({}, "space.json: a space names at least one hyper-parameter"),
    "no choices": ({"lr": {"choices": []}}, "lr: there is nothing to choose from"),
    "choice twice": ({"lr": [0.1, 0.2, 0.1]}, "lr: 0.1 is there twice"),
    "low above high": ({"lr": {"low": 2, "high": 1}}, "lr: low=2 is above high=1; swap them"),
    "log from 0": (
        {"lr": {"low": 0, "high": 1, "log": True}},
        "lr: a log range cannot begin at low=0",
    ),
    "no number": ({"norm": {"low": 0, "high": 1}}, "norm: 'support' is no number"),
    "unknown key": (
        {"lr": {"low": 0.1, "high": 1, "stp": 1}},
        "lr: Range has no field 'stp'; did you mean 'step'?",
    ),
    "end out of range": ({"lr": {"low": -1, "high": 1}}, "Tune.lr=-1.0 is refused"),
    "neither": ({"lr": 1}, "lr: 1 is neither"),
}


@pytest.mark.parametrize(("arguments", "message"), _WRONG.values(), ids=_WRONG)
def test_mistakes_are_one_line_and_exit_code_2(run, arguments, message):
    result = run("sweep", "init_tune", *_TINY, *arguments)
    assert result.code == 2 and result.out == "" and not Path("sweeps").exists()
    assert result.err.startswith("cfsl: ") and result.err.count("\n") == 1 and message in result.err


@pytest.mark.parametrize(("content", "message"), _WRONG_SPACES.values(), ids=_WRONG_SPACES)
def test_mistakes_in_a_space_are_one_line_and_exit_code_2(run, content, message):
    result = run("sweep", "init_tune", *_TINY, *space_file(content))
    assert result.code == 2 and result.err.count("\n") == 1 and message in result.err


def test_more_that_cannot_be_swept_says_why(run):
    assert (
        "pixel_nn has no hyper-parameters"
        in run("sweep", "pixel_nn", *_GLYPHS, "--vary", "k=1,2").err
    )
    assert "did you mean 'init_tune'" in run("sweep", "init_tun", *_GLYPHS, "--vary", "lr=1").err
    assert "paper 2 has no such task" in run("sweep", "protonet", *_GLYPHS, "--paper2").err
    assert "images of 28x28 vanish" in run("sweep", "init_tune", *_GLYPHS, "--vary", "blocks=9").err
    assert (
        "it must be a whole number"
        in run("sweep", "init_tune", *_GLYPHS, "--vary", "blocks=1.5").err
    )
    continuous = run(
        "sweep",
        "init_tune",
        *_TINY,
        *space_file({"lr": {"low": 0.1, "high": 1}}),
        "--method",
        "grid",
    )
    assert "lr: a range without steps cannot be listed" in continuous.err
    few = run(
        "sweep",
        "protonet",
        *_GLYPHS,
        "--data",
        "glyphs-40x20",
        "--nss",
        "9",
        "--vary",
        "metric=dot",
    )
    assert few.code == 2 and "glyphs-40x20/val has" in few.err


def test_where_training_classes_are_few_episodes_are_narrower_and_it_is_said(run):
    once = ("--epochs", "1", "--updates", "1")
    few = run(
        "sweep", "protonet", *_GLYPHS, "--data", "glyphs-40x20", "--vary", "metric=dot", *once
    )
    said = re.search(
        r"episodes of (\d+) classes x 3 images: glyphs-40x20 has \1 training",
        " ".join(few.out.split()),
    )
    assert few.code == 0 and said


def test_without_optuna_it_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = run("sweep", "init_tune", *_TINY, "--vary", "lr=1")
    assert result == (2, "", "cfsl: cfsl sweep needs Optuna: pip install cfsl[sweep]\n")


# A search over ranges, and pictures


def test_a_search_goes_on_where_it_was_and_can_be_made_longer(run):
    space = {
        "lr": {"low": 0.001, "high": 1, "log": True},
        "steps": {"low": 1, "high": 2},
        "net.widths": [[4], [4, 4]],
    }
    arguments = ("sweep", "init_tune", *_GLYPHS, *space_file(space), "--out", "s", "--json")
    short = json.loads(run(*arguments, "--trials", "2").out)["trials"]
    long = run(*arguments, "--trials", "4")
    assert long.code == 0, long.err
    rows = json.loads(long.out)["trials"]
    assert len(short) == 2 and len(rows) == 4
    assert [row["values"] for row in rows[:2]] == [row["values"] for row in short]
    assert all(row["values"]["net.widths"] in ([4], [4, 4]) for row in rows)


@pytest.mark.parametrize("method", METHODS)
def test_a_picture_has_a_panel_for_every_hyper_parameter(method, tmp_path):
    centre = {"lr": 0.01, "metric": "cosine", "net": {"widths": [4]}}
    changes = ({}, {"lr": 0.1}, {"lr": 1.0}, {"metric": "dot"}, {"net": {"widths": [8]}})
    rows = [
        {
            "trial": n,
            "values": centre | new,
            "accuracy": n / 10,
            "ci95": None if n else 0.1,
            "best": n == 3,
        }
        for n, new in enumerate(changes)
    ]
    rows.append({"trial": 5, "values": centre, "accuracy": None, "ci95": None, "best": False})
    figure = sweep_chart(rows, method, "a title", centre)
    panels = [panel for panel in figure.axes if panel.get_visible()]
    trials = ["trial"] if method in ("tpe", "random") else []
    assert [panel.get_xlabel() for panel in panels] == [*trials, "lr", "metric", "net"]
    assert panels[len(trials)].get_xscale() == "log" and panels[-1].get_xscale() == "linear"
    figure.savefig(tmp_path / "sweep.png")


def test_a_job_opens_the_study_of_its_sweep(tmp_path):
    with closing(Job(sweep_of(), tmp_path, 3).open()) as study:
        assert study.total == 2
