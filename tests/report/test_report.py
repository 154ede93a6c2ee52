"""The report: who is best and why, what a page shows, and that it harms nobody."""

from __future__ import annotations

import csv
import html.parser
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cfsl.cards import verify
from cfsl.cards.collect import CardFile
from cfsl.cards.evidence import Evidence
from cfsl.cards.published import published_cell
from cfsl.cli.option_values import listed
from cfsl.errors import SpecError
from cfsl.learners.registry import LEARNERS
from cfsl.report import material as report_material
from cfsl.report.bibliography import ENTRIES, keys_of
from cfsl.report.board import boards
from cfsl.report.curves import learning_curves, lines_of
from cfsl.report.figures import (
    differences_figure,
    lines_figure,
    matrices_figure,
    pareto_figure,
    ranking_figure,
)
from cfsl.report.forgetting_and_costs import matrices_of, paretos_of
from cfsl.report.leaderboard import leaderboards, without_repeats
from cfsl.report.leaderboard_forms import FORMS, csv_form, latex_form, markdown_form
from cfsl.report.page import page
from cfsl.report.rankings import Differences, differences_of, only, rankings_of
from cfsl.report.remake import remake
from cfsl.report.serve import LOOPBACK, Built, server
from cfsl.report.styles import DARK, LIGHT, styles
from cfsl.report.tables import Entry, text_table
from cfsl.spec import TaskSpec
from report_cards import card, cards_of, changed, material, summary, written

ROOT = Path(__file__).parent.parent.parent
A3, B3 = TaskSpec.type_a(3), TaskSpec.type_b(3)
WICKED = "<script>alert(1)</script>"
PAPER_2 = ["pretrain_tune", "pretrain_tune_replay", "protonet"]


def found(learner: str, accuracy: float, spec: TaskSpec = B3, **fields) -> CardFile:
    made = card(learner, spec, accuracy, **fields)
    ending = f"{fields.get('profile')}-{fields.get('seed', 0)}"
    return CardFile(f"cards/{learner}-{spec.task_type}{spec.nss}-{ending}.json", made)


def board_of(cards, evidence=None):
    """Rank the cards on the board of Table 1."""
    return next(
        board for board in leaderboards(boards(cards), evidence or {}) if board.suite == "table1"
    )


def marks(board, column="B3"):
    return {row.label: row.cells[column].mark for row in board.rows if column in row.cells}


# Who is best.


def test_who_cannot_be_told_from_the_best_by_a_paired_test_is_marked_too():
    cards = [found("protonet", 0.80), found("maml_low", 0.795), found("init_tune", 0.5)]
    hard = np.random.default_rng(0).normal(0, 0.1, 100)  # some tasks are hard for everybody
    noise = np.random.default_rng(1).normal(0, 0.05, 100)
    per_task = {
        "protonet": 0.8 + hard,
        "maml_low": 0.795 + hard + noise - noise.mean(),
        "init_tune": 0.5 + hard,
    }
    evidence = {one.path: Evidence("ok", (), per_task[one.card.learner.name]) for one in cards}
    board = board_of(cards, evidence)
    assert (
        marks(board) == {"protonet": "best", "maml_low": "tied", "init_tune": ""}
        and not board.untested
    )
    evidence[cards[1].path] = Evidence(
        "ok", (), 0.795 + hard
    )  # the same gap, but in every single task
    assert marks(board_of(cards, evidence))["maml_low"] == ""


def test_without_predictions_the_best_mean_alone_is_marked_and_the_board_says_so():
    cards = [found("protonet", 0.80), found("maml_low", 0.7999)]
    board = board_of(cards, {cards[0].path: Evidence("ok", (), np.full(5, 0.8))})
    assert marks(board) == {"protonet": "best", "maml_low": ""} and board.untested == ("B3",)
    assert "no tie is claimed" in markdown_form(
        [board], None
    ) and "no tie is claimed" in latex_form([board], None)


def test_cards_of_other_tasks_are_not_tested_against_each_other():
    cards = [found("protonet", 0.80), found("maml_low", 0.80)]
    cards[1] = changed(cards[1], {"tasks.manifest_fingerprint": "0" * 64})
    board = board_of(cards, {one.path: Evidence("ok", (), np.full(5, 0.8)) for one in cards})
    assert marks(board) == {"protonet": "best", "maml_low": ""} and board.untested == ("B3",)


def test_of_cards_with_more_and_with_fewer_tasks_those_that_both_have_are_tested():
    cards = [found("protonet", 0.80), found("maml_low", 0.795)]
    fewer = {"count": 50, "numbers": [0, 50, 1], "manifest_fingerprint": "0" * 64}
    cards[1] = changed(cards[1], {f"tasks.{name}": value for name, value in fewer.items()})
    hard = np.random.default_rng(0).normal(0, 0.1, 600)
    evidence = {
        cards[0].path: Evidence("ok", (), 0.8 + hard),
        cards[1].path: Evidence("ok", (), 0.795 + hard[:50]),
    }
    board = board_of(cards, evidence)
    assert marks(board) == {"protonet": "best", "maml_low": ""} and not board.untested
    assert board.rows[1].cells["B3"].p < 1e-9
    cards[1] = changed(cards[1], {"tasks.numbers": [1, 51, 1]})
    assert board_of(cards, evidence).untested == ("B3",)


def test_upper_bounds_and_refused_cards_are_not_ranked_and_who_is_alone_has_not_won():
    cards = [
        found("joint", 0.99),
        found("maml_low", 0.95),
        found("protonet", 0.9),
        found("init_tune", 0.2),
    ]
    board = board_of(cards, {cards[1].path: Evidence("refused", ("a lie",))})
    assert marks(board) == {"joint": "", "maml_low": "", "protonet": "best", "init_tune": ""}
    assert marks(board_of(cards[2:3])) == {"protonet": ""}


def test_transductive_learners_are_ranked_among_all_but_there_is_a_ranking_without_them():
    board = board_of([found("sca", 0.95), found("protonet", 0.9), found("init_tune", 0.2)])
    assert marks(board)["sca"] == "best"
    inductive = {row.label: row.cells["B3"].mark_inductive for row in board.rows}
    assert inductive == {"init_tune": "", "protonet": "best", "sca": ""}


def test_profiles_are_never_mixed_in_a_ranking():
    cards = [
        found("protonet", 0.9, profile="smoke"),
        found("maml_low", 0.8, profile="quick"),
        found("sca", 0.7),
    ]
    ranked = [board for board in leaderboards(boards(cards), {}) if board.suite == "table1"]
    assert {board.profile: [row.label for row in board.rows] for board in ranked} == {
        "quick": ["maml_low", "sca"],
        "smoke": ["protonet"],
    }


def test_seeds_are_one_cell_and_their_task_accuracies_are_averaged_before_the_test():
    cards = [found("protonet", 0.8 + 0.02 * seed, seed=seed) for seed in range(3)] + [
        found("maml_low", 0.82)
    ]
    evidence = {
        one.path: Evidence("ok", (), np.full(50, one.card.metrics.accuracy.mean)) for one in cards
    }
    board = board_of(cards, evidence)
    cell = next(row for row in board.rows if row.label == "protonet").cells["B3"]
    assert cell.entry.seeds == 3 and cell.entry.mean == pytest.approx(0.82) and len(cell.cards) == 3
    assert set(marks(board).values()) == {"best", "tied"}


def test_a_board_of_cards_that_are_on_another_is_left_out_unless_a_paper_has_numbers_for_it():
    ours = list(cards_of("table1", ["protonet"], data="glyphs-400x20"))
    assert [board.suite for board in without_repeats(boards(ours))] == ["table1"]
    theirs = list(cards_of("table1", ["protonet"]))
    assert [board.suite for board in without_repeats(boards(theirs))] == [
        "table1",
        "replication",
        "scaling",
    ]
    assert not without_repeats(
        boards(list(cards_of("figure4", ["protonet"], data="glyphs-3200x2")))
    )


# Tables for elsewhere.


def test_latex_is_balanced_and_escapes_what_tex_would_misread():
    text = latex_form([board_of([found("a_b & 50% {x}\\#$^~", 0.9), found("protonet", 0.8)])], None)
    assert r"a\_b \& 50\% \{x\}\textbackslash{}\#\$\textasciicircum{}\textasciitilde{}" in text
    assert text.count(r"\begin{") == text.count(r"\end{") and text.count(r"\toprule") == 1
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {1}
    assert r"$\mathbf{90.00 \pm 1.00}$" in text and r"$95.30$" in text


def test_markdown_leads_to_cards_and_lets_no_name_break_the_table():
    text = markdown_form(
        [board_of([found(f"{WICKED}|x", 0.9), found("protonet", 0.8)])], Path("docs/l.md")
    )
    assert "\\<script\\>alert(1)\\</script\\>\\|x" in text
    assert "[80.00](../cards/protonet-B3-None-0.json) ± 1.00" in text and "*95.30*" in text


@pytest.mark.parametrize(
    ("mean", "ci95", "inside", "line"),
    [
        (0.950, 0.004, True, "-0.30 inside"),
        (0.956, 0.004, True, "+0.30 inside"),
        (0.950, 0.002, False, "-0.30"),
        (0.956, 0.002, False, "+0.30"),
        (0.956, None, False, "+0.30"),
        (None, None, False, ""),
    ],
)
def test_ours_is_compared_with_the_published_number_and_its_place_in_our_interval_is_told(
    mean, ci95, inside, line
):
    entry = Entry(mean, ci95, published=published_cell("table1", "omniglot", "protonet", "B3"))
    assert entry.is_inside is inside and Entry(mean, ci95).is_inside is False
    *_, theirs, apart = text_table("title", ["B3"], {"protonet": {"B3": entry}}, 80)
    assert (
        theirs.split() == ["published", "95.30"]
        and apart.removeprefix("  difference").strip() == line
    )


def test_csv_has_a_line_a_cell():
    rows = list(csv.DictReader(io.StringIO(csv_form([board_of([found("protonet", 0.8)])], None))))
    assert len(rows) == 1 and rows[0]["accuracy"] == "0.8" and rows[0]["status"] == "sound"


def test_the_committed_leaderboard_is_that_of_the_committed_cards(run, tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results")
    assert (
        run("table", "all", "results", "--format", "markdown", "--out", "docs/leaderboard.md").code
        == 0
    )
    made, committed = ((root / "docs" / "leaderboard.md").read_text() for root in (tmp_path, ROOT))
    assert made == committed, "run 'make leaderboard'"


# Figures.


@pytest.mark.parametrize(
    ("suite", "data", "figure"),
    [
        ("figure3", "omniglot", "figure3"),
        ("figure4", "glyphs-3200x2", "figure4"),
        ("scaling", "omniglot", "scaling"),
        ("instance", "slimagenet64", "instance"),
        ("corruption", "slimagenet64", "corruption"),
    ],
)
def test_every_figure_of_the_papers_is_drawn_from_its_cards(tmp_path, suite, data, figure):
    lines = [
        line
        for line in lines_of(boards(list(cards_of(suite, PAPER_2, data=data))))
        if line.figure == figure
    ]
    assert len(lines) == 1 and sorted(lines[0].series) == PAPER_2
    lines_figure(lines[0]).savefig(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 5000


def test_a_figure_without_cards_is_not_there():
    assert (
        lines_of(boards([found("protonet", 0.9)])) == []
        and paretos_of(leaderboards(boards([]), {})) == []
    )


def test_both_curves_of_figure_3_begin_at_one_support_set():
    lines = lines_of(boards(list(cards_of("figure3", ["protonet"]))))[0]
    assert {
        panel: [row["x"] for row in lines.rows if row["panel"] == panel] for panel in lines.panels
    } == {
        "B: new classes": [1, 3, 5, 10],
        "C: new classes with overwrite": [1, 3, 5, 10],
    }


def test_curves_under_corruption_begin_with_clean_images():
    cards = [*cards_of("corruption", ["protonet"]), *cards_of("instance", ["protonet"])]
    lines = next(line for line in lines_of(boards(cards)) if line.figure == "corruption")
    assert [row["x"] for row in lines.rows if row["panel"] == "noise, 4 x 5"] == [
        0.0,
        0.05,
        0.1,
        0.2,
        0.4,
    ]


def test_the_front_has_what_nobody_beats_in_all_of_accuracy_memory_and_operations(tmp_path):
    cards = [found("protonet", 0.9), found("maml_low", 0.8), found("init_tune", 0.95)]
    cards[2] = changed(cards[2], {"metrics.atm.total": 9.0})
    pareto = paretos_of([board_of(cards)])[0]
    assert {row["series"]: row["front"] for row in pareto.rows} == {
        "protonet": True,
        "maml_low": False,
        "init_tune": True,
    }
    pareto_figure(pareto).savefig(tmp_path / "pareto.pdf")


def test_long_names_leave_room_for_the_panels():
    pareto = paretos_of(
        [board_of([found(name, 0.9) for name in ("protonet", "maml_low", "init_tune")])]
    )[0]
    long = "champion (knows_copies=False, net.embedding=64, net.widths=[16, 24, 48, 64], views=one)"
    figure = pareto_figure(replace(pareto, rows=[{**row, "series": long} for row in pareto.rows]))
    shown = figure.legends[0].get_texts()[0].get_text()
    assert shown.replace("\n", " ") == long and max(map(len, shown.splitlines())) <= 32


def test_forgetting_is_shown_where_learners_were_asked_after_every_support_set(tmp_path):
    cards = [found("protonet", 0.9), found("maml_low", 0.8)]
    matrix = np.array([[0.9, np.nan, np.nan], [0.8, 0.9, np.nan], [0.7, 0.8, 0.9]])
    evidence = {cards[0].path: Evidence("ok", (), None, matrix)}
    shown = matrices_of([board_of(cards)], evidence)[0]
    assert len(shown.rows) == 6 and {row["series"] for row in shown.rows} == {"protonet"}
    matrices_figure(shown, "B3").savefig(tmp_path / "forgetting.png")


def test_a_ranking_has_the_best_first_in_every_column_with_what_was_published(tmp_path):
    cards = [
        found("protonet", 0.9),
        found("sca", 0.95),
        found("chance", 0.07),
        found("joint", 0.99),
    ]
    cards += [found("protonet", 0.99, A3), found("maml_low", 0.999)]
    ranking = rankings_of([board_of(cards, {cards[-1].path: Evidence("refused", ("a lie",))})])[0]
    # joint breaks the law, maml_low was refused, and in A3 protonet has nobody to be ranked with.
    assert [(row["panel"], row["label"]) for row in ranking.rows] == [
        ("B3", "sca, transductive"),
        ("B3", "protonet"),
        ("B3", "chance"),
    ]
    best, second, last = ranking.rows
    assert (best["x"], best["width"]) == pytest.approx((95, 1))
    assert (
        best["published"] == pytest.approx(96.84) and best["status"] == second["status"] == "sound"
    )
    assert last["published"] is None and last["status"] is None
    ranking_figure(ranking).savefig(tmp_path / "ranking.png")


def test_paired_differences_are_of_tasks_that_both_went_through(tmp_path):
    cards = [found(name, 0.5, spec) for name in ("protonet", "maml_low") for spec in (B3, A3)]
    hard = np.random.default_rng(0).normal(0, 0.1, 50)
    apart = np.array([0.01, 0.03] * 25)
    # maml_low on A3 had other tasks
    cards[3] = changed(cards[3], {"tasks.manifest_fingerprint": "0" * 64})
    evidence = {one.path: Evidence("ok", (), 0.5 + hard) for one in cards}
    evidence[cards[2].path] = Evidence("ok", (), 0.5 + hard + apart)
    found_out = differences_of([board_of(cards, evidence)], evidence, "protonet")[0]
    assert found_out.columns == ["B3"] and len(found_out.rows) == 1
    row = found_out.rows[0]
    # By hand: mean 2 points, deviation 1 / sqrt(49 / 50) points, t(49, .975) = 2.0096.
    assert (row["x"], row["width"]) == pytest.approx(
        (2, 2.0096 * 1 / (49 / 50) ** 0.5 / 50**0.5), abs=1e-4
    )
    assert row["series"] == "maml_low" and row["p"] < 1e-10
    differences_figure(found_out).savefig(tmp_path / "paired.png")
    assert not differences_of([board_of(cards, evidence)], evidence, "sca")


def test_figures_of_who_is_better_have_no_interval_for_one_task_and_bear_long_names(
    tmp_path, recwarn
):
    long = "champion (knows_copies=False, net.embedding=64, net.widths=[16, 24, 48, 64], views=one)"
    cards = [
        changed(one, {"metrics.accuracy.ci95": None})
        for one in (found("protonet", 1.0), found(long, 0.5))
    ]
    evidence = {
        one.path: Evidence("ok", (), np.array([one.card.metrics.accuracy.mean])) for one in cards
    }
    board = board_of(cards, evidence)
    ranking, apart = rankings_of([board])[0], differences_of([board], evidence, long)[0]
    assert [row["width"] for row in [*ranking.rows, *apart.rows]] == [None, None, None]
    ranking_figure(ranking).savefig(tmp_path / "ranking.png")
    differences_figure(apart).savefig(tmp_path / "paired.png")
    assert not recwarn.list
    assert listed("learners", f"protonet, {long},protonet") == ("protonet", long)


def test_differences_that_tasks_cannot_show_are_hollow():
    points = [
        {"column": "B3", "x": 2.0, "width": 1.0, "series": name, "p": p}
        for name, p in (("a", 0.01), ("b", 0.2))
    ]
    figure = differences_figure(Differences("here", "protonet", ["B3"], points))
    first, second = (bars.lines[0].get_markerfacecolor() for bars in figure.axes[0].containers)
    assert first != "white" and second == "white"
    named = figure.legends[0].get_lines()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert all(line.get_markerfacecolor() != "white" for line in named)


def test_paired_differences_leave_out_who_is_not_ranked_and_say_who_is_transductive():
    cards = [found(name, 0.5) for name in ("protonet", "maml_low", "joint", "sca")]
    evidence = {one.path: Evidence("ok", (), np.arange(10) / 10) for one in cards}
    shown = differences_of([board_of(cards, evidence)], evidence, "protonet")[0]
    assert [row["series"] for row in shown.rows] == ["maml_low", "sca, transductive"]
    below = differences_of([board_of(cards, evidence)], evidence, "joint")[0]
    assert [row["series"] for row in below.rows] == ["protonet", "maml_low", "sca, transductive"]
    evidence[cards[1].path] = replace(evidence[cards[1].path], status="refused")
    shown = differences_of([board_of(cards, evidence)], evidence, "protonet")[0]
    assert [row["series"] for row in shown.rows] == ["sca, transductive"]


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_a_ranking_is_drawn_where_all_are_at_the_end_of_the_axis(tmp_path, accuracy):
    ranking = rankings_of([board_of([found("protonet", accuracy), found("chance", accuracy)])])[0]
    ranking_figure(ranking).savefig(tmp_path / "ranking.png")


def test_who_is_better_says_of_which_splits():
    cards = [found("protonet", 0.9), found("maml_low", 0.8)]
    others = [
        changed(one._replace(path=f"{one.path}-"), {"tasks.splits": "official"}) for one in cards
    ]
    places = [
        one.where
        for one in rankings_of(leaderboards(boards([*cards, *others]), {}))
        if "table1" in one.where
    ]
    assert len(set(places)) == 2 and any("official" in place for place in places)


def test_a_figure_can_leave_out_learners_and_columns_but_not_ones_that_are_not_there():
    board = board_of([found("protonet", 0.9), found("maml_low", 0.8), found("maml_low", 0.8, A3)])
    kept = only([board], ["maml_low"], ["A3"])[0]
    assert [row.label for row in kept.rows] == ["maml_low"] and list(kept.columns) == ["A3"]
    assert list(kept.rows[0].cells) == ["A3"] and only([board], ["protonet"], ["A3"]) == []
    with pytest.raises(SpecError, match="learner 'sca'; there are: protonet, maml_low"):
        only([board], ["sca"], [])
    with pytest.raises(SpecError, match="column 'D4'; there are: B3, A3"):
        only([board], [], ["D4"])


def test_a_training_that_serves_many_cards_is_one_curve():
    cards = [found("protonet", 0.9), found("protonet", 0.9, TaskSpec.type_a(3))]
    assert [row["x"] for row in learning_curves(cards)[0].rows] == [1, 2, 3]


def test_no_two_learners_look_alike_and_all_stand_out_from_the_page():
    looks = styles([*LEARNERS, "somebody:Else", "protonet (metric=cosine)"])
    assert len(set(looks.values())) == len(looks)
    assert min(_contrast(colour, "#ffffff") for colour in LIGHT) >= 3
    assert min(_contrast(colour, "#191c21") for colour in DARK) >= 3


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [
            share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
            for share in shares
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# How to have it again, and whom to cite.


def _run(**changes):
    run = {
        "profile": "quick",
        "learner": {"name": "protonet", "changes": {"metric": "cosine"}, "settings": {}},
        "data": {
            "name": "omniglot",
            "splits": None,
            "fingerprint": "d" * 64,
            "splits_hash": "e" * 64,
        },
        "split": "test",
        "tasks": 600,
        "task_seed": 0,
        "seed": 0,
    }
    return card("protonet", B3, 0.9, run=run | changes, run_hash="abc" * 21 + "a")


def test_a_card_of_a_bench_tells_the_command_that_makes_it_again():
    plain = remake(_run())
    assert (
        plain.command
        == "cfsl bench table1 --profile quick --data omniglot --learners protonet --columns B3"
    )
    assert "run hash abcabcabcabc" in plain.note and not plain.settings
    other = remake(
        _run(seed=2, tasks=50, learner={"name": "protonet", "changes": {"metric": "euclidean"}})
    )
    assert other.command.endswith("--columns B3 --seeds 3 --tasks 50 --settings settings.json")
    assert json.loads(other.settings) == {"learner": "protonet", "changes": {"metric": "euclidean"}}
    assert remake(_run(split="val")).command == "" and "no cell" in remake(_run(split="val")).note
    training = _run().training.content()
    training["schedule"]["precision"] = "bfloat16"
    run = _run().run.content()
    fast = remake(_run(train={**run, "training": training}))
    assert fast.command.endswith("--columns B3 --precision bfloat16")


def test_a_card_of_an_evaluation_tells_its_options_and_what_it_cannot_tell(run, data_root):
    import shlex

    made = remake(
        card("pixel_nn", TaskSpec.type_d(4, 2), 0.5, data="glyphs-400x20", checkpoint=None)
    )
    words = shlex.split(made.command)[1:]
    words[words.index("reference")] = "like_omniglot"
    words[words.index("600")] = "2"
    result = json.loads(run(*words, "--json").out)
    assert result["tasks"]["spec"] == TaskSpec.type_d(4, 2).model_dump(mode="json")
    trained = remake(card("protonet", B3, 0.5))
    assert "--checkpoint RUN" in trained.command and "does not name" in trained.note
    assert remake(card("protonet", B3, 0.5, command="cfsl eval x")).command == "cfsl eval x"


def test_every_learner_and_task_has_its_references():
    assert {entry.cite for entry in LEARNERS.values() if entry.cite} <= ENTRIES.keys()
    assert all(text.startswith("@") and f"{{{key}," in text for key, text in ENTRIES.items())
    assert all(text.count("{") == text.count("}") for text in ENTRIES.values())
    assert keys_of(card("maml_low", B3, 0.5)) == [
        "cfsl",
        "antoniou2020",
        "lake2015",
        "antoniou2019",
    ]
    assert "kowadlo2022" in keys_of(card("chance", TaskSpec.instance(4, 5), 0.5))


# The page.


class _Reader(html.parser.HTMLParser):
    """Collects what a browser would take for elements."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def wicked_page() -> str:
    cards = [found(WICKED, 0.9), found("protonet", 0.8), found("maml_low", 0.7)]
    wicked = {
        "learner.settings": {"</script><img src=x onerror=alert(1)>": "</SCRIPT>"},
        "circumstances.environment.processor": WICKED,
    }
    cards[0] = changed(cards[0], wicked)
    return page(material([f"folder {WICKED}"], cards, damaged=[f"x {WICKED}"], notes=[WICKED]))


def test_a_wicked_name_is_text_and_nothing_else(wicked_page):
    reader = _Reader()
    reader.feed(wicked_page)
    scripts = [attributes for tag, attributes in reader.tags if tag == "script"]
    assert (
        all("nonce" in one or one["type"].startswith("application/") for one in scripts)
        and len(scripts) == 6
    )
    assert not [
        1
        for tag, attributes in reader.tags
        if tag == "img" or any(name.startswith("on") for name in attributes)
    ]
    assert WICKED not in wicked_page and "&lt;script&gt;alert(1)&lt;/script&gt;" in wicked_page


def test_the_page_loads_nothing_from_anywhere(wicked_page):
    reader = _Reader()
    reader.feed(wicked_page)
    for _, attributes in reader.tags:
        for name in ("src", "href", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    policy = next(a["content"] for tag, a in reader.tags if tag == "meta" and a.get("http-equiv"))
    assert (
        "default-src 'none'" in policy
        and "connect-src 'none'" in policy
        and "unsafe-eval" not in policy
    )
    assert "/version" not in wicked_page, "only a served page asks for news"
    assert len(wicked_page.encode()) < 1_500_000 and wicked_page.count("vegaEmbed=") == 1


def test_the_tables_of_the_page_can_be_read_aloud(wicked_page):
    reader = _Reader()
    reader.feed(wicked_page)
    headers = [attributes for tag, attributes in reader.tags if tag == "th"]
    assert headers and all(one.get("scope") in ("col", "row") for one in headers)
    assert wicked_page.count("<caption") == wicked_page.count('<table class="leaderboard')
    assert all(
        one.get("aria-sort") == "none"
        for one in headers
        if one["scope"] == "col" and "aria-sort" in one
    )
    assert all(a.get("aria-label") for tag, a in reader.tags if a.get("role") == "img")
    names = [a.get("id") for _, a in reader.tags if a.get("id")]
    assert len(names) == len(set(names))


def test_a_thousand_cards_stay_below_three_megabytes():
    names = [f"learner{number}" for number in range(13)]
    cards = [
        one
        for suite in ("table1", "corruption", "scaling", "instance")
        for one in cards_of(suite, names)
    ]
    cards += cards_of("corruption", names, data="slimagenet64")
    assert len(cards) > 1000 and len(page(material(["x"], cards)).encode()) < 3_000_000


def test_an_empty_folder_is_an_empty_page():
    text = page(material(["nothing"], []))
    assert "There are no result cards here yet." in text and "vegaEmbed=" not in text


def test_a_page_without_the_extra_report_has_its_tables_and_says_what_is_missing(monkeypatch):
    cards = [found("protonet", 0.9)]
    assert "vegaEmbed=" in page(material(["x"], cards))

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "vl_convert" else find_spec(name, *rest),
    )

    text = page(material(["x"], cards))
    assert '<table class="leaderboard' in text and "vegaEmbed=" not in text
    assert "which need vl-convert-python: pip install cfsl[report]" in text


def test_rows_of_one_learner_are_told_apart_by_what_differs_in_their_settings():
    settings = {"metric": "cosine", "net": {"filters": 64, "order": "conv-act-norm"}}
    first = changed(found("protonet", 0.9), {"learner.settings": settings})
    other = changed(first, {"learner.settings.net.filters": 16})
    labels = [
        label for board in boards([first, other]) if board.suite == "table1" for label in board.rows
    ]
    assert labels == ["protonet", "protonet (net.filters=16)"]


def test_settings_have_the_same_name_in_every_column():
    """The settings that fill most columns need no mention, even where others are alone."""
    usual = [found("protonet", 0.9, TaskSpec.type_b(nss)) for nss in (3, 5, 10)]
    other = [found("protonet", 0.8, TaskSpec.type_b(3)), found("protonet", 0.7, TaskSpec.type_c(3))]
    settings = {"metric": "euclidean", "added_later": 1}
    other = [changed(one, {"learner.settings": {"metric": "cosine"}}) for one in other]
    usual = [changed(one, {"learner.settings": settings}) for one in usual]
    (board,) = (board for board in boards([*other, *usual]) if board.suite == "table1")
    assert {label: list(row) for label, row in board.rows.items()} == {
        "protonet": ["B3", "B5", "B10"],
        "protonet (metric=cosine, no added_later)": ["B3", "C3"],
    }


def test_settings_that_a_profile_chose_for_every_column_are_one_row():
    cards = [found("protonet", 0.9, TaskSpec.type_b(nss)) for nss in (3, 5)]
    cards[1] = changed(cards[1], {"learner.settings": {"metric": "cosine"}})
    (board,) = (board for board in boards(cards) if board.suite == "table1")
    assert {label: list(row) for label, row in board.rows.items()} == {"protonet": ["B3", "B5"]}


def test_cards_of_no_profile_name_whatever_is_not_usual_on_all_boards():
    """The one card of its learner on its board, but not what that learner is elsewhere."""
    usual = [found("protonet", 0.9, TaskSpec.type_b(nss)) for nss in (3, 5)]
    other = found("protonet", 0.8, TaskSpec.type_b(10), profile=None)
    other = changed(other, {"learner.settings.metric": "cosine"})
    ranked = [board for board in boards([other, *usual]) if board.suite == "table1"]
    assert {board.profile: list(board.rows) for board in ranked} == {
        "own": ["protonet (metric=cosine)"],
        "quick": ["protonet"],
    }


def test_a_cell_has_one_card_for_every_seed_that_with_the_most_tasks_and_says_what_it_leaves_out():
    few, many, other_seed = (
        found("pixel_nn", 0.2),
        found("pixel_nn", 0.3, seed=0),
        found("pixel_nn", 0.5, seed=1),
    )
    few, many = few._replace(path="a.json"), many._replace(path="b.json")
    few = changed(few, {"tasks.count": 40})
    made = [few, many, other_seed]
    (board,) = (board for board in boards(made) if board.suite == "table1")
    assert board.rows == {"pixel_nn": {"B3": [many, other_seed]}} and board.repeats == [few]
    (ranked,) = (board for board in leaderboards(boards(made), {}) if board.suite == "table1")
    for form in ("text", "markdown", "latex"):
        assert "40.00" in FORMS[form]([ranked], None) and "1 card is left out" in FORMS[form](
            [ranked], None
        )
    assert "1 card is left out" in page(material(["x"], made))
    assert "left out" not in FORMS["text"](leaderboards(boards([many]), {}), None)


def test_trainings_of_the_same_seed_are_rows_of_their_own_and_no_training_seeds():
    precision = "checkpoint.identity.training.schedule.precision"
    usual, fast = found("protonet", 0.9), changed(found("protonet", 0.5), {precision: "bfloat16"})
    (board,) = (board for board in boards([usual, fast]) if board.suite == "table1")
    assert {label: [one.card for one in row["B3"]] for label, row in board.rows.items()} == {
        "protonet": [usual.card],
        "protonet (schedule.precision=bfloat16)": [fast.card],
    }


def test_splits_of_one_name_and_other_classes_are_boards_of_their_own():
    usual = found("protonet", 0.9)
    mine = changed(found("protonet", 0.5), {"tasks.splits_hash": "f" * 64})
    ranked = [board for board in boards([usual, mine]) if board.suite == "table1"]
    assert len({board.splits for board in ranked}) == 2 and all(
        b.splits.startswith("reference ") for b in ranked
    )
    assert sorted(len(board.rows["protonet"]["B3"]) for board in ranked) == [1, 1]


def test_a_number_that_several_epochs_have_together_says_so_wherever_it_is_shown():
    alone, together = found("protonet", 0.9), found("maml_low", 0.5)
    metrics = {**together.card.metrics.content(), "accuracy": summary(0.75)}
    macs = together.card.macs.content()
    together = changed(together, {"ensemble": {"members": 5, "metrics": metrics, "macs": macs}})
    ranked = [
        board for board in leaderboards(boards([alone, together]), {}) if board.suite == "table1"
    ]
    for form in ("text", "markdown", "latex"):
        shown = FORMS[form](ranked, None)
        assert shown.count("(5)") == 1 and "n epochs of a run answer together" in shown
        line = next(line for line in shown.splitlines() if "75.00" in line)
        assert "(5)" in line and "50.00" not in line
    lines = list(csv.DictReader(io.StringIO(FORMS["csv"](ranked, None))))
    assert {line["learner"]: line["members"] for line in lines} == {
        "protonet": "1",
        "maml_low": "5",
    }
    assert "5 epochs of a run together" in page(material(["x"], [alone, together]))


def test_weights_from_another_data_set_are_no_training_seed():
    here, elsewhere = found("protonet", 0.9), found("protonet", 0.5)
    fingerprint = here.card.tasks.data_fingerprint
    here = changed(here, {"checkpoint.identity.data": {"fingerprint": fingerprint}})
    elsewhere = changed(elsewhere, {"checkpoint.identity.data": {"fingerprint": "f" * 64}})
    (board,) = (board for board in boards([here, elsewhere]) if board.suite == "table1")
    assert {
        label: [one.card for cell in row.values() for one in cell]
        for label, row in board.rows.items()
    } == {
        "protonet": [here.card],
        "protonet (trained on other data)": [elsewhere.card],
    }


def test_what_is_on_no_board_is_listed():
    text = page(material(["x"], [found("protonet", 0.9, TaskSpec.type_b(7))]))
    assert "Other cards" in text and "7 support sets of 5 classes" in text


def test_the_report_starts_without_torch():
    modules = "cfsl.report.write, cfsl.report.figures, cfsl.cli.reporting"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The commands.


@pytest.fixture(scope="module")
def bench(tmp_path_factory, data_root) -> Path:
    """Return a folder of real cards with answers and manifests."""
    from cfsl.cards.card import write_card
    from cfsl.data.catalog import load
    from cfsl.data.manifest import Manifest
    from cfsl.data.tasks import Tasks
    from cfsl.harness.evaluate import Conditions
    from cfsl.runs.evaluation import evaluation_of

    folder = tmp_path_factory.mktemp("bench")
    (folder / "manifests").mkdir()
    for spec in (B3, TaskSpec.type_a(3)):
        tasks = Tasks(load("glyphs-400x20"), spec, numbers=range(8))
        manifest = Manifest.of(tasks)
        manifest.write(folder / "manifests" / f"{manifest.fingerprint}.json.gz")
        for name in ("chance", "pixel_nn"):
            made = evaluation_of(
                name, LEARNERS[name].build(), tasks, {}, Conditions(progressive=True)
            )
            path = folder / "cards" / f"{name}-{spec.task_type}.json"
            write_card(path, made.card.replace(profile="quick"), {"": made.answers})
    return folder


def test_the_command_writes_a_page_with_tests_forgetting_tasks_and_answers(run, bench, tmp_path):
    result = run("report", str(bench), "--out", "page.html", "--json")
    assert result.code == 0 and json.loads(result.out)["cards"] == 4
    text = (tmp_path / "page.html").read_text()
    assert "below the best (p = " in text and "Forgetting" in text
    assert (
        "Verification: 4 ok." in text
        and "Right and wrong" in text
        and text.count("data:image/webp") == 2
    )
    again = run("report", str(bench), "--out", "page.html", "--no-verify", "--no-pictures")
    assert again.code == 0 and "4 not checked" in (tmp_path / "page.html").read_text()


def test_a_report_reads_every_answer_once_and_makes_boards_once(run, bench, monkeypatch):
    read, made = [], []
    unpacked, boards_of = verify.unpacked_answers, report_material.boards

    def unpacked_and_noted(content, path, manifest):
        read.append(path.name)
        return unpacked(content, path, manifest)

    def boards_and_noted(cards):
        made.append(len(cards))
        return boards_of(cards)

    monkeypatch.setattr(verify, "unpacked_answers", unpacked_and_noted)
    monkeypatch.setattr(report_material, "boards", boards_and_noted)
    assert run("report", str(bench), "--out", "page.html").code == 0
    files = sorted(path.name for path in (bench / "cards").glob("*.answers.npz"))
    assert sorted(read) == files and len(files) == 4 and made == [4]


def test_a_copy_of_a_card_is_no_second_seed(run, tmp_path):
    for folder in ("cards", "copies"):
        written(tmp_path / folder, found("protonet", 0.9))
    assert json.loads(run("report", "cards", "copies", "--no-pictures", "--json").out)["cards"] == 1


def test_a_page_of_somebody_else_is_not_replaced(run, bench, tmp_path):
    (tmp_path / "mine.html").write_text("<h1>my thesis</h1>")
    result = run("report", str(bench), "--out", "mine.html")
    assert result.code == 2 and "no report of cfsl" in result.err
    assert (tmp_path / "mine.html").read_text() == "<h1>my thesis</h1>"


def test_damaged_cards_are_named_on_stderr_and_on_the_page_which_is_written(run, tmp_path):
    written(tmp_path / "cards", found("protonet", 0.9))
    (tmp_path / "cards" / "torn.json").write_text('{"format": 2, "learner"')
    (tmp_path / "cards" / "choice.json").write_text('{"format": 2, "kind": "choice"}')
    result = run("report", "cards", "--no-pictures")
    assert (
        result.code == 1
        and "torn.json is damaged" in result.err
        and "1 file of other kinds skipped" in result.out
    )
    text = (tmp_path / "report.html").read_text()
    assert (
        "Damaged cards" in text
        and "torn.json is damaged" in text
        and "1 file of other kinds" in text
    )


def test_a_card_that_lies_is_marked_and_does_not_win(run, bench, tmp_path):
    for path in (bench / "cards").glob("*B*"):
        content = path.read_bytes()
        (tmp_path / "cards").mkdir(exist_ok=True)
        (tmp_path / "cards" / path.name).write_bytes(content)
    liar = tmp_path / "cards" / "chance-B.json"
    content = json.loads(liar.read_text())
    content["metrics"]["accuracy"]["mean"] = 0.99
    liar.write_text(json.dumps(content))
    assert run("report", "cards", "--manifests", str(bench), "--no-pictures").code == 0
    text = (tmp_path / "report.html").read_text()
    assert "cfsl verify refuses it" in text and "1 refused" in text and "1 ok" in text


def test_pictures_are_left_out_with_a_word_where_the_data_set_is_not_here(run, tmp_path):
    written(tmp_path / "cards", found("protonet", 0.9, data="glyphs-7x7"))
    assert run("report", "cards").code == 0
    assert (
        "No pictures of tasks of glyphs-7x7: it is not installed here."
        in (tmp_path / "report.html").read_text()
    )


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv"])
def test_a_table_is_printed_in_every_form(run, bench, form):
    result = run(
        "table",
        "table1",
        str(bench),
        "--data",
        "glyphs-400x20",
        "--profile",
        "quick",
        "--format",
        form,
    )
    assert result.code == 0 and "pixel" in result.out and "B3" in result.out


def test_a_forged_card_is_neither_ranked_nor_bold(run, bench, tmp_path):
    cards = shutil.copytree(bench, tmp_path / "forged")
    on_glyphs = ("forged", "--data", "glyphs-400x20", "--profile", "quick")
    for path in cards.rglob("*.json"):
        card = json.loads(path.read_text())
        if "metrics" in card and card["learner"]["name"] == "chance":
            card["metrics"]["accuracy"]["mean"] = 0.9999
            path.write_text(json.dumps(card))
    table = run("table", "table1", *on_glyphs, "--format", "markdown").out
    assert "99.99" in table and "**99.99**" not in table
    done = run("figure", "ranking", *on_glyphs, "--columns", "B3", "--out", "r.svg")
    assert done.code == 2 and "nobody to compare" in done.err, "of two learners, one is refused"


def test_figures_are_written_as_pdf_svg_and_png(run, bench, tmp_path):
    for one in cards_of("figure4", ["protonet", "maml_low"], data="glyphs-3200x2"):
        written(tmp_path / "costs", one)
    assert run("figure", "figure4", "costs", "--out", "f.pdf").code == 0
    assert run("figure", "learning", "costs", "--out", "f.png").code == 0
    assert run("figure", "forgetting", str(bench), "--columns", "B3", "--out", "f.svg").code == 0
    on_glyphs = (str(bench), "--data", "glyphs-400x20", "--profile", "quick")
    assert run("figure", "ranking", *on_glyphs, "--columns", "B3", "--out", "r.svg").code == 0
    assert run("figure", "paired", *on_glyphs, "--against", "chance", "--out", "p.svg").code == 0
    assert ">pixel_nn<" in (tmp_path / "r.svg").read_text().replace("<!-- ", ">").replace(
        " -->", "<"
    )
    assert "B3" in (tmp_path / "p.svg").read_text()
    heads = [(tmp_path / name).read_bytes()[:5] for name in ("f.pdf", "f.png", "f.svg")]
    assert heads == [b"%PDF-", b"\x89PNG\r", b"<?xml"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table", "tabel1", "cards"], "did you mean 'table1'"),
        (["table", "scaling", "cards"], "no card here belongs to scaling"),
        (["table", "table1", "cards", "--format", "docx"], "docx"),
        (["figure", "figure3", "cards"], "there are no cards for figure3"),
        (
            ["figure", "figure3", "cards", "--columns", "B3"],
            "--columns says nothing to the figure figure3",
        ),
        (["figure", "paired", "cards"], "--against LEARNER"),
        (["figure", "paired", "cards", "--against", "sca"], "no card here is of the learner 'sca'"),
        (["figure", "paired", "cards", "--against", "protonet"], "there is nobody to compare"),
        (["figure", "ranking", "cards"], "there is nobody to compare"),
        (["figure", "ranking", "cards", "--suite", "scaling"], "those there are: table1"),
        (["figure", "ranking", "cards", "--suite", "figure4"], "nobody is trained in figure4"),
        (["figure", "ranking", "cards", "--suite", "tabel1"], "did you mean 'table1'"),
        (["figure", "figure3", "cards", "--out", "f.gif"], "none of .pdf, .svg and .png"),
        (
            ["figure", "learning", "cards", "--splits", "offical"],
            "no card here fits --splits offical",
        ),
        (
            ["figure", "learning", "cards", "--data", "omnigolt"],
            "no card here fits --data omnigolt",
        ),
        (["report", "nowhere"], "nowhere does not exist"),
        (["report"], "name the folders of cards"),
    ],
)
def test_what_cannot_be_made_is_one_line(run, tmp_path, words, message):
    written(tmp_path / "cards", found("protonet", 0.9))
    result = run(*words)
    assert (
        result.code == 2 and message.lower() in result.err.lower() and result.err.count("\n") == 1
    )


# Served.


@pytest.fixture
def served():
    """Serve a page that can be changed."""
    state = {"stamp": "1", "built": 0}

    def build() -> str:
        state["built"] += 1
        return f"page {state['stamp']}"

    running = server(Built(build, lambda: str(state["stamp"])), 0)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield state, f"http://{LOOPBACK}:{running.server_address[1]}", running
    running.shutdown()
    thread.join()
    running.server_close()


def _get(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=10
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_served_page_is_built_again_when_cards_change_and_only_then(served):
    state, address, running = served
    assert running.server_address[0] == "127.0.0.1"
    assert [_get(f"{address}/")[1] for _ in range(3)] == ["page 1"] * 3 and state["built"] == 1
    state["stamp"] = "2"
    assert (
        _get(f"{address}/version") == (200, "2")
        and _get(f"{address}/")[1] == "page 2"
        and state["built"] == 2
    )


def test_a_served_page_is_for_this_machine_only(served):
    _, address, _ = served
    assert (
        _get(f"{address}/", Host="evil.example:80")[0] == 403
        and _get(f"{address}/etc/passwd")[0] == 404
    )


def test_a_served_page_asks_for_news_and_a_written_one_does_not():
    shown = material(["x"], [found("protonet", 0.9)])
    assert "/version" in page(replace(shown, live=True)) and "/version" not in page(shown)


def test_the_stamp_changes_with_a_card_and_with_nothing_else(tmp_path):
    from cfsl.report.serve import stamp_of

    path = written(tmp_path, found("protonet", 0.9))
    before = stamp_of([tmp_path])
    (tmp_path / "notes.txt").write_text("x")
    assert stamp_of([tmp_path]) == before
    path.write_text(path.read_text() + " ")
    assert stamp_of([tmp_path]) != before
