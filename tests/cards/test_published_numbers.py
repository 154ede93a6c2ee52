"""The papers' numbers as cfsl has them: complete, as printed, and targets where they are sound."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib import resources
from itertools import product

import pytest

from cfsl.cards.published import PublishedCell, published, published_cell
from cfsl.data.published import TABLE_1
from cfsl.errors import UnknownNameError
from cfsl.learners.registry import LEARNERS

PAPER_1 = {
    "init_tune",
    "pretrain_tune",
    "ewc_init",
    "ewc_pretrain",
    "protonet",
    "maml_low",
    "maml_high",
    "sca",
}
REPLICATED = {"pretrain_tune", "protonet"}
PAPER_2 = {"pretrain_tune", "pretrain_tune_replay", "protonet"}
BOTH = ("omniglot", "slimagenet64")
B, C, D = {"B3", "B5", "B10"}, {"C3", "C5", "C10"}, {"D4", "D8"}
SCALING = {"baseline1", "baseline2", "wide1", "wide2", "deep1", "deep2"}
INSTANCE = {"instance1", "instance2", "instance3", "instance4"}

Place = tuple[str, str, str, str]


def place(cell: PublishedCell) -> Place:
    return cell.source, cell.data, cell.learner, cell.column


def test_every_cell_of_every_table_is_there_once():
    expected = [
        *product(["table1"], BOTH, PAPER_1, TABLE_1),
        *product(["replication", "replication_single"], ["omniglot"], REPLICATED, B | D),
        *product(["scaling"], BOTH, PAPER_2, SCALING),
        *product(["instance"], BOTH, PAPER_2, INSTANCE),
    ]
    assert Counter(map(place, published())) == Counter(expected)


def test_counts_per_table():
    assert Counter((cell.paper, cell.table, cell.data) for cell in published()) == {
        ("antoniou2020", "Table 1", "omniglot"): 88,
        ("antoniou2020", "Table 1", "slimagenet64"): 88,
        ("kowadlo2022", "Table 2", "omniglot"): 20,
        ("kowadlo2022", "Table 3", "omniglot"): 12,
        ("kowadlo2022", "Table 4", "slimagenet64"): 12,
        ("kowadlo2022", "Table 7", "omniglot"): 18,
        ("kowadlo2022", "Table 8", "slimagenet64"): 18,
    }


@pytest.mark.parametrize(
    ("where", "accuracy", "spread"),
    [
        ("table1 omniglot init_tune B3", 0.1087, 0.0001),
        ("table1 omniglot pretrain_tune A5", 0.3189, 0.0110),
        ("table1 omniglot ewc_pretrain B10", 0.0323, 0.0002),
        ("table1 omniglot protonet B10", 0.8372, 0.0019),
        ("table1 omniglot protonet D4", 0.4898, 0.0003),
        ("table1 omniglot maml_low A10", 0.9944, 0.0001),
        ("table1 omniglot sca C5", 0.9408, 0.0045),
        ("table1 slimagenet64 init_tune D8", 0.030, 0.0001),
        ("table1 slimagenet64 ewc_init C10", 0.2039, 0.0),
        ("table1 slimagenet64 protonet B3", 0.241, 0.0005),
        ("table1 slimagenet64 maml_high C5", 0.304, 0.0051),
        ("table1 slimagenet64 sca A10", 0.774, 0.0006),
        ("replication omniglot pretrain_tune D4", 0.3781, 0.0077),
        ("replication omniglot protonet B10", 0.9243, 0.0027),
        ("replication_single omniglot pretrain_tune D4", 0.367, 0.0080),
        ("replication_single omniglot protonet B5", 0.9436, 0.0005),
        ("scaling omniglot protonet wide2", 0.6561, 0.0931),
        ("scaling omniglot pretrain_tune_replay baseline2", 0.735, 0.0043),
        ("scaling slimagenet64 pretrain_tune deep2", 0.0266, 0.0002),
        ("scaling slimagenet64 protonet deep1", 0.1929, 0.0016),
        ("instance omniglot pretrain_tune_replay instance1", 0.9639, 0.0136),
        ("instance omniglot protonet instance4", 0.9179, 0.0116),
        ("instance slimagenet64 pretrain_tune instance4", 0.0673, 0.0007),
        ("instance slimagenet64 pretrain_tune_replay instance3", 0.7129, 0.0044),
    ],
)
def test_numbers_are_those_of_the_papers(where, accuracy, spread):
    cell = published_cell(*where.split())
    assert cell is not None and (cell.accuracy, cell.spread) == (accuracy, spread)


def test_sound_cells_are_those_that_no_known_defect_touches():
    sound = {place(cell) for cell in published() if cell.status == "sound"}
    assert sound == {
        *product(["table1"], BOTH, ["protonet", "maml_high", "sca"], B),
        *product(["table1"], BOTH, ["maml_high", "sca"], C),
    }


def test_paper_1_is_sound_or_superseded_and_paper_2_shows_trends():
    assert Counter((cell.paper, cell.status) for cell in published()) == {
        ("antoniou2020", "sound"): 30,
        ("antoniou2020", "superseded"): 146,
        ("kowadlo2022", "trend"): 80,
    }


def test_every_status_has_its_reason():
    assert all(cell.reason for cell in published())


def test_verdicts_do_not_overlap_and_none_is_idle():
    content = json.loads(
        (resources.files("cfsl.cards") / "published.json").read_text(encoding="utf-8")
    )
    judged = [
        where
        for verdict in content["verdicts"]
        for where in product(
            verdict["sources"], verdict["data"], verdict["learners"], verdict["columns"]
        )
    ]
    assert Counter(judged) == Counter(map(place, published()))
    assert {key for verdict in content["verdicts"] for key in verdict["reasons"]} == set(
        content["reasons"]
    )


def test_learners_are_in_the_registry():
    assert {cell.learner for cell in published()} <= set(LEARNERS)


def test_accuracies_and_spreads_are_fractions():
    for cell in published():
        assert 0 < cell.accuracy < 1
        assert cell.spread is not None and 0 <= cell.spread < 0.1


def test_a_cell_that_no_paper_has_is_none():
    assert published_cell("replication", "slimagenet64", "protonet", "B3") is None
    assert published_cell("table1", "omniglot", "chance", "B3") is None


def test_an_unknown_source_is_an_error():
    with pytest.raises(UnknownNameError, match="did you mean 'table1'"):
        published_cell("table2", "omniglot", "protonet", "B3")


def test_reading_the_numbers_does_not_need_torch():
    code = "import sys, cfsl.cards.published as p; p.published(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
