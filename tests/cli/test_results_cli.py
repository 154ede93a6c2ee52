"""cfsl results and compare: cards as a table, as text, as files, and against each other."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from cfsl.cards.card_rows import COLUMNS, percent
from cfsl.cards.collect import collected
from cfsl.report.card_text import text_plot

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "cards"
OLD, NEW = "format-1.json", "format-2.json"
_TASKS = ("--data", "glyphs-400x20", "--type", "D", "--nss", "4", "--k-target", "2", "--tasks", "3")


@pytest.fixture
def cards(tmp_path) -> Path:
    """Return a folder with an old and a new card, and the choice of some hyper-parameters."""
    shutil.copytree(GOLDEN, tmp_path / "results" / "golden")
    (tmp_path / "results" / "choice.json").write_text('{"format": 2, "kind": "choice"}')
    return tmp_path / "results"


# --- list -----------------------------------------------------------------------------------------


def test_list_is_a_table_of_all_cards_below_a_folder(run, cards):
    done = run("results", "list")
    assert done.code == 0 and done.err == ""
    header, old, new, last = done.out.splitlines()
    assert re.split(" {2,}", header) == [
        "data", "column", "learner", "seed", "accuracy %", "ATM", "MACs to learn", "schedule",
        "file",
    ]  # fmt: skip
    assert re.split(" {2,}", old) == [
        "omniglot", "D4", "protonet", "1", "98.99 +- 0.15", "0.0421", "198,958,080", "20 x 100 x 1",
        "results/golden/format-1.json",
    ]  # fmt: skip
    assert re.split(" {2,}", new)[:4] == ["glyphs-400x20", "D4", "pixel_nn", "-"]
    assert last == "2 cards; 1 file of other kinds skipped"
    starts = {
        line.index(word) for line, word in ((header, "accuracy"), (old, "98.99"), (new, "38.33"))
    }
    assert len(starts) == 1


@pytest.mark.parametrize(
    ("corruption", "column"),
    [
        ({"kind": "noise", "fraction": 0.4}, "D4 noise 0.4"),
        ({"kind": "occlusion", "shape": "disc", "fraction": 0.05, "value": 0.0}, "D4 disc 0.05"),
    ],
)
def test_spoiled_targets_are_seen_in_the_column(run, cards, corruption, column):
    card = json.loads((cards / "golden" / NEW).read_text())
    card["tasks"]["spec"]["corruption"] = corruption
    (cards / "golden" / NEW).write_text(json.dumps(card))
    new = run("results", "list").out.splitlines()[2]
    assert re.split(" {2,}", new)[:3] == ["glyphs-400x20", column, "pixel_nn"]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("--data", "omniglot"), [OLD]),
        (("--learner", "pixel_nn"), [NEW]),
        (("--type", "d"), [OLD, NEW]),
        (("--type", "B"), []),
        (("--type", "D", "--data", "omniglot", "--learner", "chance"), []),
    ],
)
def test_list_shows_what_is_asked_for(run, cards, words, left):
    done = run("results", "list", *words, "--json")
    assert [Path(row["file"]).name for row in json.loads(done.out)] == left
    assert done.code == 0 and run("results", "list", *words).out.count("format-") == len(left)


def test_marks_and_ensembles_are_seen_in_the_list(run, cards):
    card = json.loads((cards / "golden" / NEW).read_text())
    card |= {"breaks_law": True, "transductive": True, "profile": "short", "column": "Table 7"}
    card["ensemble"] = {"members": 3, "metrics": card["metrics"], "macs": card["macs"]}
    (cards / "golden" / NEW).write_text(json.dumps(card))
    out = run("results", "list").out
    assert "pixel_nn*~" in out and "Table 7" in out and "short" in out and out.count("38.33") == 2
    assert "* breaks the data-flow law" in out and "~ transductive" in out


DAMAGED = {
    "cut short": '{"format": 2, "learner"',
    "without numbers": '{"format": 2, "learner": {}, "tasks": {}, "metrics": {}, "macs": {}}',
    "of the future": '{"format": 9, "learner": {}}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("command", [("list",), ("export",), ("list", "--json")])
def test_a_damaged_card_is_named_and_the_others_are_still_there(run, cards, text, command):
    (cards / "broken.json").write_text(text)
    done = run("results", *command)
    assert (
        done.code == 1
        and done.err.startswith("cfsl: results/broken.json")
        and done.err.count("\n") == 1
    )
    assert "omniglot" in done.out or "wrote 2 cards" in done.out


def test_json_files_that_are_no_cards_are_passed_over_below_folders_only(cards):
    (cards / "plan.json").write_text('{"format": 1, "steps": []}')
    (cards / ".hidden.json").write_text("{")
    found = collected([cards])
    assert [path.name for path in found.cards] == [OLD, NEW] and found.damaged == {}
    assert sorted(path.name for path in found.others) == ["choice.json", "plan.json"]
    assert list(collected([cards / "plan.json"]).damaged) == [cards / "plan.json"]


def test_a_folder_that_is_not_there_is_a_mistake(run):
    done = run("results", "list")
    assert (
        done.code == 2
        and done.err == "cfsl: results does not exist; name result cards, or folders of them\n"
    )


# --- show -----------------------------------------------------------------------------------------


def test_show_says_all_that_is_on_a_card(run, cards):
    out = run("results", "show", f"results/golden/{OLD}").out
    for text in (
        "protonet on omniglot/test, 600 tasks", "type D, 4 support sets", "98.99 +- 0.15 %",
        "cross-entropy", "forgetting", "by group", "20 epochs x 100 updates x 1",
        "validation accuracy in %, by epoch", "|*", '"metric": "cosine"', '"cci": 2',
        "sampler cfsl-1", "manifest  ", "Intel(R) Xeon(R)", "answers: none",
    ):  # fmt: skip
        assert text in out, text
    out = run("results", "show", f"results/golden/{NEW}").out
    assert "answers: format-2.answers.npz" in out and "validation accuracy" not in out


def test_show_says_the_command_that_makes_a_card_again_if_it_is_known(run, cards):
    card = json.loads((cards / "golden" / NEW).read_text()) | {
        "command": "cfsl bench table1",
        "profile": "short",
    }
    (cards / "golden" / NEW).write_text(json.dumps(card))
    out = run("results", "show", f"results/golden/{NEW}").out
    assert "command: cfsl bench table1" in out and "profile: short" in out


def test_show_refuses_what_is_no_result(run, cards):
    done = run("results", "show", "results/choice.json")
    assert done.code == 2 and "is a card of kind 'choice'" in done.err
    assert (
        json.loads(run("results", "show", "results/choice.json", "--json").out)["kind"] == "choice"
    )
    (cards / "x.json").write_text(
        '{"format": 2, "learner": {}, "tasks": {}, "metrics": {}, "macs": {}}'
    )
    assert "learner.name is missing" in run("results", "show", "results/x.json").err


def test_a_plot_has_its_highest_on_top_and_its_lowest_below():
    lines = list(text_plot([10.0, 30.0, 20.0, 40.0]))
    assert lines[0] == "  40.0 |   *" and lines[5] == "  10.0 |*" and lines[-1].endswith("---- 4")
    assert [line.count("*") for line in text_plot([5.0] * 3)] == [0, 0, 0, 0, 0, 3, 0]
    assert max(len(line) for line in text_plot([float(x) for x in range(1000)])) < 80


# --- export ---------------------------------------------------------------------------------------


def test_export_writes_a_row_a_card_with_the_documented_columns(run, cards):
    assert run("results", "export", "--out", "a.csv").out == "wrote 2 cards to a.csv\n"
    assert run("results", "export", "--format", "jsonl", "--out", "a.jsonl").code == 0
    with Path("a.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert [list(row) for row in (*table, *lines)] == [[*COLUMNS, "file"]] * 4
    assert float(table[0]["accuracy"]) == lines[0]["accuracy"] == pytest.approx(0.98987, abs=1e-5)
    assert (table[1]["epochs"], lines[1]["epochs"], lines[0]["epochs"]) == ("", None, 20)
    text = (ROOT / "docs" / "results.md").read_text()
    assert [name for name in (*COLUMNS, "file") if f"`{name}`" not in text] == []


def test_export_replaces_no_file_unasked(run, cards):
    Path("a.csv").write_text("mine")
    refused = run("results", "export", "--out", "a.csv")
    assert (
        refused.code == 2
        and "a.csv is there already" in refused.err
        and Path("a.csv").read_text() == "mine"
    )
    assert (
        run("results", "export", "--out", "a.csv", "--overwrite").code == 0
        and Path("a.csv").read_text() != "mine"
    )
    assert "did you mean 'jsonl'?" in run("results", "export", "--format", "json").err
    assert "cannot be written" in run("results", "export", "--out", "no/a.csv").err


def test_infinity_is_nothing_in_json_lines(run, cards):
    card = json.loads((cards / "golden" / NEW).read_text())
    card["metrics"]["cross_entropy"] |= {"mean": "Infinity", "std": None, "ci95": None}
    (cards / "golden" / NEW).write_text(json.dumps(card))
    assert run("results", "export", "--format", "jsonl", "--out", "a.jsonl").code == 0
    assert json.loads(Path("a.jsonl").read_text().splitlines()[1])["cross_entropy"] is None
    assert "inf" in run("results", "show", f"results/golden/{NEW}").out


def example(language: str) -> str:
    match = re.search(
        rf"```{language}\n(.*?)```", (ROOT / "docs" / "results.md").read_text(), re.DOTALL
    )
    assert match is not None
    return match[1]


def test_the_example_for_pandas_runs(run, cards, capsys):
    pytest.importorskip("pandas")
    assert run("results", "export").code == 0
    exec(example("python"), {})
    assert "protonet" in capsys.readouterr().out


def test_the_example_for_duckdb_runs(run, cards, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(cards.parent)
    rows = duckdb.sql(example("sql")).fetchall()
    assert sorted(row[0] for row in rows) == ["pixel_nn", "protonet"]


def test_every_key_of_a_card_is_documented():
    text = (ROOT / "docs" / "results.md").read_text()
    for name in (OLD, NEW):
        card = json.loads((GOLDEN / name).read_text())
        keys = [key for key in card if key not in ("seconds", "environment", "metrics")]
        keys += [*card["tasks"], *(f".{key}" for key in card["metrics"])]
        assert [key for key in keys if f"{key}`" not in text] == []


# --- compare --------------------------------------------------------------------------------------


@pytest.fixture
def three(run, glyphs):
    """Write the cards of three runs: two on the same tasks, one on others."""
    for name, words in {
        "nn": ("pixel_nn", *_TASKS, "--tasks", "20"),
        "chance": ("chance", *_TASKS, "--tasks", "20"),
        "other": ("chance", *_TASKS, "--type", "B", "--seed", "5"),
    }.items():
        assert run("eval", *words, "--out", f"{name}.json").code == 0


def test_compare_says_which_is_better_on_the_same_tasks(run, three):
    done = run("compare", "nn.json", "chance.json")
    assert done.code == 0 and done.err == ""
    assert "A  pixel_nn, nn.json" in done.out and "B  chance, chance.json" in done.out
    assert done.out.count("accuracy ") == done.out.count("MACs ") == done.out.count("ATM ") == 2
    assert re.search(
        r"^A is better than B by \d+\.\d\d \+- \d+\.\d\d points, over 20 tasks \(p = ",
        done.out,
        re.M,
    )
    assert "B is better than A by " in run("compare", "chance.json", "nn.json").out
    told = json.loads(run("compare", "chance.json", "nn.json", "--json").out)
    assert told["difference"] < 0 and told["count"] == 20 and told["p"] < 0.05
    assert told["a"]["learner"] == "chance" and told["difference"] == pytest.approx(
        told["a"]["accuracy"]["mean"] - told["b"]["accuracy"]["mean"]
    )


def test_compare_takes_the_tasks_that_both_cards_have(run, three):
    assert run("eval", "chance", *_TASKS, "--tasks", "7", "--out", "few.json").code == 0
    told = json.loads(run("compare", "nn.json", "few.json", "--json").out)
    assert run("eval", "pixel_nn", *_TASKS, "--tasks", "7", "--out", "few-nn.json").code == 0
    same = json.loads(run("compare", "few-nn.json", "few.json", "--json").out)
    assert told["count"] == 7 and told["a"]["accuracy"] == same["a"]["accuracy"]
    assert (told["difference"], told["p"]) == (same["difference"], same["p"])


def test_compare_does_not_call_equals_better(run, three):
    out = run("compare", "nn.json", "nn.json").out
    assert out.splitlines()[-1] == "no difference that 20 tasks can show (p = 1)"


def test_compare_refuses_other_tasks_and_says_in_what_they_differ(run, three):
    done = run("compare", "nn.json", "other.json")
    differences = "seed is 0 and 5; count is 20 and 3; spec.cci is 2 and 1"
    assert done == (2, "", f"cfsl: nn.json and other.json are of different tasks: {differences}\n")


def test_compare_refuses_cards_that_it_cannot_check(run, three, cards):
    for words, says in (
        (("nn.json", f"results/golden/{OLD}"), "has no answers to compare; evaluate again"),
        (("nn.json", "results/choice.json"), "is a card of kind 'choice'"),
        (("nn.json", "nowhere.json"), "nowhere.json cannot be read"),
    ):
        done = run("compare", *words)
        assert done.code == 2 and says in done.err and done.err.count("\n") == 1
    shutil.copy("chance.answers.npz", "nn.answers.npz")
    assert "nn.json: answers.bytes is " in run("compare", "nn.json", "chance.json").err


@pytest.mark.parametrize(
    ("mean", "ci95", "sign", "shown"),
    [
        (0.9867, 0.0017, "", "98.67 +- 0.17"),
        (0.998846, 0.000079, "", "99.885 +- 0.008"),
        (-0.000076, 0.000036, "+", "-0.008 +- 0.004"),
        (0.0123, 0.002, "+", "+1.23 +- 0.20"),
        (1.0, 0.0, "", "100.00 +- 0.00"),
        (0.5, None, "", "50.00"),
        (None, None, "", "-"),
    ],
)
def test_so_many_tasks_that_two_digits_would_hide_their_interval_are_shown_with_three(
    mean, ci95, sign, shown
):
    assert percent(mean, ci95, sign) == shown
