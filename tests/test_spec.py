"""The rules of docs/SPEC.md that speak of specs alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from cfsl.errors import CfslError, SpecError
from cfsl.spec import Noise, Occlusion, TaskSpec
from strategies import specs


@pytest.mark.parametrize(
    ("spec", "task_type", "van_de_ven", "maltoni"),
    [
        (TaskSpec.type_a(nss=3), "A", None, "SIT-NI"),
        (TaskSpec(nss=3, cci=9), "A", None, "SIT-NI"),
        (TaskSpec.type_b(nss=3), "B", "Class-IL", "SIT-NC"),
        (TaskSpec.type_c(nss=3), "C", "Domain-IL", None),
        (TaskSpec.type_d(nss=4, cci=2), "D", None, "SIT-NIC"),
        (TaskSpec.wide(n_way=100), "D", None, "SIT-NIC"),
        (TaskSpec.deep(nss=80, n_way=5), "D", None, "SIT-NIC"),
        (TaskSpec.type_d(nss=4, cci=2, overwrite=True), "D-overwrite", None, None),
        (TaskSpec.few_shot(), "few-shot", None, None),
        (TaskSpec.type_c(nss=1), "few-shot", None, None),
        (TaskSpec.instance(nss=4, k_shot=5), "instance", None, None),
    ],
)
def test_task_types_are_named_as_in_table_3_of_paper_1(spec, task_type, van_de_ven, maltoni):
    assert spec.task_type == task_type
    assert spec.taxonomy == (van_de_ven, maltoni)


@pytest.mark.parametrize(
    ("spec", "classes", "labels", "targets", "per_class"),
    [
        (TaskSpec.type_b(nss=3), 15, 15, 75, 6),
        (TaskSpec.type_c(nss=3), 15, 5, 75, 6),
        (TaskSpec.type_a(nss=10), 5, 5, 25, 15),
        (TaskSpec.type_a(nss=10, target_rule="per_support_set"), 5, 5, 250, 60),
        (TaskSpec.type_d(nss=4, cci=2), 10, 10, 50, 7),
        (TaskSpec.type_d(nss=5, cci=2), 15, 15, 75, 7),
        (TaskSpec.wide(n_way=100), 200, 200, 1000, 7),
        (TaskSpec.deep(nss=80, n_way=5), 200, 200, 1000, 7),
        (TaskSpec.instance(nss=4, k_shot=5), 1, 20, 20, 20),
        (TaskSpec.instance(nss=2, k_shot=3, n_way=2), 2, 12, 12, 6),
        (TaskSpec(nss=3, cci=50), 5, 5, 25, 8),
    ],
)
def test_rules_9_11_12_13_sizes_by_hand(spec, classes, labels, targets, per_class):
    assert (spec.classes, spec.labels, spec.target_images, spec.images_per_class) == (
        classes,
        labels,
        targets,
        per_class,
    )


@given(specs)
def test_rule_24_canonical_json_reads_back_as_the_same_spec(spec):
    text = spec.canonical_json()
    assert TaskSpec.from_json(text) == spec
    assert TaskSpec.from_json(text).hash == spec.hash
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_rule_24_hashes_never_change():
    assert (
        TaskSpec.type_b(nss=3).hash
        == "1d74833c9cc94d383f479998beb9a3eee560a018a238e9678bc928156bfa16a0"
    )
    corrupted = TaskSpec.instance(nss=4, k_shot=5, corruption=Occlusion(fraction=0.3))
    assert corrupted.hash == "c37eec8228fa80ef251b8fe9857c5ba6de3b8fa2d1bfecd74f675ee1ae84a355"


def test_rule_24_other_specs_have_other_hashes():
    some = [
        TaskSpec.type_b(nss=3),
        TaskSpec.type_c(nss=3),
        TaskSpec.type_b(nss=3, corruption=Noise(fraction=0.1)),
    ]
    assert len({spec.hash for spec in some}) == 3


def test_a_spec_is_frozen():
    with pytest.raises(Exception, match="frozen"):
        TaskSpec.type_b(nss=3).nss = 4


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TaskSpec(nss=0), "nss=0 .* greater than or equal to 1"),
        (lambda: TaskSpec(nss=-1), "nss=-1"),
        (lambda: TaskSpec(nss="3"), "nss='3' .* valid integer"),
        (lambda: TaskSpec(nss=3.0), "nss=3.0"),
        (lambda: TaskSpec(nss=True), "nss=True"),
        (lambda: TaskSpec(), "needs 'nss'"),
        (lambda: TaskSpec(nss=3, nway=5), "no field 'nway'; did you mean 'n_way'"),
        (lambda: TaskSpec(nss=3, kind="pixel"), "kind='pixel'"),
        (lambda: TaskSpec(nss=3, overwrite=1), "overwrite=1"),
        (lambda: TaskSpec(nss=3, kind="instance"), "TaskSpec.instance"),
        (lambda: TaskSpec(nss=3, target_rule="same_images"), "TaskSpec.instance"),
        (lambda: TaskSpec.instance(nss=4).replace(cci=2), "cci >= nss"),
        (lambda: TaskSpec.instance(nss=4).replace(overwrite=True), "overwrite=True"),
        (lambda: TaskSpec.instance(nss=4, k_target=3), "k_target=1 or give a corruption"),
        (lambda: Noise(fraction=0.0), "fraction=0.0"),
        (lambda: Noise(fraction=1.5), "fraction=1.5"),
        (lambda: Noise(fraction=float("nan")), "fraction=nan"),
        (lambda: Occlusion(fraction=0.3, shape="star"), "shape='star'"),
        (lambda: Occlusion(fraction=0.3, value=2.0), "value=2.0"),
        (lambda: TaskSpec(nss=3, corruption={"kind": "blur", "fraction": 0.1}), "blur"),
        (lambda: TaskSpec.from_json("{"), "not JSON"),
        (lambda: TaskSpec.from_json("[3]"), "JSON object"),
        (lambda: TaskSpec.type_b(nss=3).replace(nss=0), "nss=0"),
    ],
)
def test_a_bad_spec_is_refused_in_one_line_that_names_the_value(make, says):
    with pytest.raises(SpecError, match=says) as refused:
        make()
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
    assert isinstance(refused.value, CfslError)
