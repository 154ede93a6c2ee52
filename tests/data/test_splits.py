"""Rule 15 of docs/SPEC.md: which classes are train, val and test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfsl.data.splits import PARTS, check_splits, cut_like_omniglot, shuffled_split, splits_hash
from cfsl.errors import DataError

names = st.lists(
    st.text("abcdefgh/_0123456789", min_size=1, max_size=12), min_size=1, max_size=200, unique=True
)
GOLDEN = {
    "train": [
        "class8",
        "class4",
        "class0",
        "class9",
        "class3",
        "class10",
        "class5",
        "class1",
        "class7",
        "class2",
    ],
    "val": ["class6"],
    "test": ["class11"],
}
GOLDEN_HASH = "05de10c7567615e3c560b5a2bed12c9f90981f6cc86f3136629482bc10f9050e"


@given(names, st.randoms())
def test_rule_15_a_shuffled_split_depends_on_the_names_alone(classes, random):
    split = shuffled_split(classes)
    assert sorted(name for part in PARTS for name in split[part]) == sorted(classes)
    random.shuffle(classes)
    assert shuffled_split(classes) == split
    check_splits(split, classes, "split")
    if len(classes) >= 3:
        assert all(split[part] for part in PARTS)


def test_rule_15_omniglot_is_cut_1200_211_212():
    split = cut_like_omniglot([f"c{i:04d}" for i in range(1623)])
    assert [len(split[part]) for part in PARTS] == [1200, 211, 212]


def test_rule_15_a_golden_shuffle_never_changes():
    split = shuffled_split([f"class{i}" for i in range(12)])
    assert split == GOLDEN
    assert splits_hash(split) == GOLDEN_HASH


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ({"train": ["a", "b"], "test": ["b"]}, "'b' in train and again in test"),
        ({"train": ["a", "a"]}, "'a' in train and again in train"),
        ({"test": ["z"]}, "no such class"),
        ({"dev": ["a"]}, "one of train, val, test"),
    ],
)
def test_rule_15_no_class_is_in_two_parts_and_none_is_unknown(split, says):
    with pytest.raises(DataError, match=says):
        check_splits(split, ["a", "b"], "my split")


def test_rule_15_the_split_does_not_depend_on_the_seed_of_tasks(glyphs):
    import cfsl

    spec = cfsl.TaskSpec.type_b(nss=3)
    a, b = (cfsl.Tasks(glyphs, spec, seed=seed).classes.tolist() for seed in (0, 99))
    assert a == b
