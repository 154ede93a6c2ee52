"""The rules of docs/SPEC.md that speak of what is drawn, over the whole space of specs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfsl.errors import InfeasibleSpecError, SpecError
from cfsl.sampling import SAMPLERS, draw_tasks, is_feasible, nearest_feasible, require_feasible
from cfsl.sampling.plan import TaskPlan
from cfsl.spec import Noise, TaskSpec
from strategies import class_specs, drawable, instance_specs, roomy_sizes, specs

GOLDEN = Path(__file__).parent.parent / "golden" / "sampler.json"
numbers = st.integers(0, 2**40)
seeds = st.integers(0, 2**63)


def class_of(images: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(sizes), images, side="right")


def one_task(spec: TaskSpec, sizes: np.ndarray, number: int = 0, seed: int = 0) -> TaskPlan:
    return draw_tasks(sizes, spec, range(number, number + 1), seed=seed).task(0)


@given(drawable(), numbers, seeds)
def test_rules_1_2_3_a_task_has_exactly_nss_sets_of_n_way_k_shot_in_ceil_groups(
    spec_and_sizes, number, seed
):
    spec, sizes = spec_and_sizes
    plan = one_task(spec, sizes, number, seed)
    assert plan.support_images.shape == (spec.nss, spec.n_way * spec.k_shot)
    for support in plan.support_images:
        _, counts = np.unique(class_of(support, sizes), return_counts=True)
        assert counts.tolist() == [spec.k_shot] * spec.n_way
    distinct = [tuple(sorted(set(class_of(support, sizes)))) for support in plan.support_images]
    assert len(set(distinct)) == -(-spec.nss // min(spec.cci, spec.nss))


@given(drawable(), numbers)
def test_rule_4_a_cci_above_nss_draws_the_same_tasks_as_cci_equal_nss(spec_and_sizes, number):
    spec, sizes = spec_and_sizes
    short = spec.replace(cci=spec.nss)
    long = spec.replace(cci=spec.nss + 3)
    if not is_feasible(sizes, short):
        return
    a, b = one_task(short, sizes, number), one_task(long, sizes, number)
    assert all(
        np.array_equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


@given(drawable(), numbers)
def test_rule_5_classes_stay_within_a_group_and_never_come_back(spec_and_sizes, number):
    spec, sizes = spec_and_sizes
    plan = one_task(spec, sizes, number)
    seen: set[int] = set()
    for first in range(0, spec.nss, spec.interval):
        group = [
            set(class_of(s, sizes)) for s in plan.support_images[first : first + spec.interval]
        ]
        assert all(classes == group[0] for classes in group)
        assert not group[0] & seen
        seen |= group[0]


@given(class_specs.flatmap(lambda spec: st.tuples(st.just(spec), roomy_sizes(spec))), numbers)
def test_rule_6_every_image_of_a_task_is_used_once(spec_and_sizes, number):
    spec, sizes = spec_and_sizes
    plan = one_task(spec, sizes, number)
    used = np.concatenate([plan.support_images.ravel(), plan.target_images])
    assert len(np.unique(used)) == len(used)
    assert used.min() >= 0 and used.max() < sizes.sum()


@given(class_specs.flatmap(lambda spec: st.tuples(st.just(spec), roomy_sizes(spec))), numbers)
def test_rules_7_9_labels_count_from_0_and_follow_the_groups(spec_and_sizes, number):
    spec, sizes = spec_and_sizes
    plan = one_task(spec, sizes, number)
    label_of: dict[tuple[int, int], int] = {}
    for s, (images, labels) in enumerate(
        zip(plan.support_images, plan.support_labels, strict=True)
    ):
        group = s // spec.interval
        first = 0 if spec.overwrite else group * spec.n_way
        assert sorted(set(labels.tolist())) == list(range(first, first + spec.n_way))
        for c, label in zip(class_of(images, sizes).tolist(), labels.tolist(), strict=True):
            assert label_of.setdefault((group, c), label) == label
    assert set(plan.support_labels.ravel().tolist()) == set(range(spec.labels))
    target_classes = class_of(plan.target_images, sizes).tolist()
    triples = zip(
        plan.target_groups.tolist(), target_classes, plan.target_labels.tolist(), strict=True
    )
    assert all(label_of[group, c] == label for group, c, label in triples)


def test_rule_8_which_class_gets_which_label_is_uniformly_random():
    spec, sizes = TaskSpec.few_shot(n_way=4), np.full(4, 20)
    block = draw_tasks(sizes, spec, range(6000))
    first_class = class_of(block.support_images[:, 0, 0], sizes)
    counts = np.bincount(first_class, minlength=4)
    assert np.all(np.abs(counts - 1500) < 5 * np.sqrt(6000 * 0.25 * 0.75)), counts


@given(drawable(), numbers)
def test_rule_10_with_one_group_overwrite_makes_no_difference(spec_and_sizes, number):
    spec, sizes = spec_and_sizes
    if spec.kind == "instance":
        return
    spec = spec.replace(cci=spec.nss)
    if not is_feasible(sizes, spec):
        return
    a = one_task(spec.replace(overwrite=True), sizes, number)
    b = one_task(spec.replace(overwrite=False), sizes, number)
    assert all(
        np.array_equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


@given(class_specs.flatmap(lambda spec: st.tuples(st.just(spec), roomy_sizes(spec))), numbers)
def test_rules_11_12_every_class_has_its_targets(spec_and_sizes, number):
    spec, sizes = spec_and_sizes
    plan = one_task(spec, sizes, number)
    assert len(plan.target_images) == spec.target_images
    _, counts = np.unique(class_of(plan.target_images, sizes), return_counts=True)
    if spec.target_rule == "per_class":
        assert counts.tolist() == [spec.k_target] * spec.classes
    else:
        last = spec.nss - (spec.groups - 1) * spec.interval
        expected = [spec.interval] * spec.n_way * (spec.groups - 1) + [last] * spec.n_way
        assert sorted(counts.tolist()) == sorted(spec.k_target * sets for sets in expected)


@given(drawable(), numbers)
def test_rule_13_only_classes_with_enough_images_are_drawn(spec_and_sizes, number):
    spec, sizes = spec_and_sizes
    plan = one_task(spec, sizes, number)
    assert sizes[class_of(plan.support_images.ravel(), sizes)].min() >= spec.images_per_class


@given(specs, st.lists(st.integers(0, 40), max_size=60))
def test_rule_14_a_spec_is_drawn_or_refused_with_a_spec_that_works(spec, sizes):
    sizes = np.array(sizes, np.int64)
    if is_feasible(sizes, spec):
        assert len(draw_tasks(sizes, spec, range(2))) == 2
        return
    with pytest.raises(InfeasibleSpecError) as refused:
        require_feasible(sizes, spec, "data/test")
    message = str(refused.value)
    assert "\n" not in message and str(spec.classes) in message and "data/test" in message
    near = nearest_feasible(sizes, spec)
    if near is not None:
        assert is_feasible(sizes, near)
        changed = {
            name for name in TaskSpec.model_fields if getattr(near, name) != getattr(spec, name)
        }
        assert len(changed - {"cci"}) == 1
        assert f"{getattr(near, next(iter(changed - {'cci'})))}" in message


def test_rule_14_the_message_has_the_numbers_and_the_nearest_spec():
    with pytest.raises(InfeasibleSpecError) as refused:
        require_feasible(np.full(212, 20), TaskSpec.type_b(nss=640), "omniglot/test")
    assert str(refused.value) == (
        "omniglot/test has 212 classes; this task needs 3200 (640 groups of 5). Lower nss to 42, "
        "or use data='glyphs-25600x20', which is drawn to fit."
    )


def test_rule_14_the_nearest_spec_is_the_largest_that_works():
    sizes = np.full(212, 20)
    near = nearest_feasible(sizes, TaskSpec.type_b(nss=640))
    assert near is not None and near.nss == 42
    assert not is_feasible(sizes, near.replace(nss=43))
    per_set = nearest_feasible(sizes, TaskSpec.type_a(nss=10, target_rule="per_support_set"))
    assert per_set is not None and per_set.target_rule == "per_class"


def test_rule_16_a_targets_position_says_nothing_about_its_label():
    block = draw_tasks(np.full(50, 20), TaskSpec.type_b(nss=3), range(4000))
    for position in (0, 37, 74):
        counts = np.bincount(block.target_labels[:, position], minlength=15)
        assert np.all(np.abs(counts - 4000 / 15) < 5 * np.sqrt(4000 / 15)), counts


@given(class_specs.flatmap(lambda spec: st.tuples(st.just(spec), roomy_sizes(spec))), numbers)
def test_rule_17_overwrite_and_corruption_do_not_change_the_images(spec_and_sizes, number):
    spec, sizes = spec_and_sizes
    plain = one_task(spec.replace(overwrite=False, corruption=None), sizes, number)
    other = one_task(spec.replace(overwrite=True, corruption=Noise(fraction=0.3)), sizes, number)
    assert np.array_equal(plain.support_images, other.support_images)
    assert np.array_equal(plain.target_images, other.target_images)


@pytest.mark.parametrize("change", ["seed", "split", "number", "k_target"])
def test_rule_17_everything_else_changes_the_draw(change):
    sizes, spec = np.full(200, 20), TaskSpec.type_b(nss=3)
    base = draw_tasks(sizes, spec, range(5, 6), seed=1, split="test")
    other = {
        "seed": lambda: draw_tasks(sizes, spec, range(5, 6), seed=2, split="test"),
        "split": lambda: draw_tasks(sizes, spec, range(5, 6), seed=1, split="val"),
        "number": lambda: draw_tasks(sizes, spec, range(6, 7), seed=1, split="test"),
        "k_target": lambda: draw_tasks(
            sizes, spec.replace(k_target=4), range(5, 6), seed=1, split="test"
        ),
    }[change]()
    assert not np.array_equal(base.support_images, other.support_images)


@given(drawable(), st.integers(0, 500), st.integers(1, 12), st.integers(1, 4), st.data())
def test_rule_18_a_task_alone_is_the_task_inside_a_block(spec_and_sizes, first, count, step, data):
    spec, sizes = spec_and_sizes
    block = draw_tasks(sizes, spec, range(first, first + count * step, step))
    position = data.draw(st.integers(0, count - 1))
    alone = one_task(spec, sizes, first + position * step)
    inside = block.task(position)
    assert all(
        np.array_equal(x, y)
        for x, y in zip(vars(alone).values(), vars(inside).values(), strict=True)
    )


def test_rule_18_blocks_larger_than_the_cache_are_cut_without_a_seam():
    sizes, spec = np.full(212, 20), TaskSpec.type_b(nss=10)
    block = draw_tasks(sizes, spec, range(1500))
    for number in (0, 726, 727, 728, 1499):
        assert np.array_equal(
            block.task(number).target_images, one_task(spec, sizes, number).target_images
        )


def test_rule_18_a_task_of_thousands_of_classes_uses_every_image_once():
    """3,200 classes of 10,000: so many are shuffled in another way than a few."""
    sizes, spec = np.full(10_000, 6), TaskSpec.type_b(nss=640)
    plan = one_task(spec, sizes)
    used = np.concatenate([plan.support_images.ravel(), plan.target_images])
    assert len(np.unique(used)) == 3200 * 6


DRAW_ELSEWHERE = """
import hashlib

import numpy as np

from cfsl.sampling import draw_tasks
from cfsl.spec import TaskSpec

block = draw_tasks(np.full(212, 20), TaskSpec.type_d(nss=5, cci=2), range(3, 9))
content = block.support_images.tobytes() + block.target_images.tobytes()
print(hashlib.sha256(content).hexdigest())
"""


def test_rule_18_another_process_draws_the_same_task():
    block = draw_tasks(np.full(212, 20), TaskSpec.type_d(nss=5, cci=2), range(3, 9))
    content = block.support_images.tobytes() + block.target_images.tobytes()

    environment = os.environ | {"PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", DRAW_ELSEWHERE]
    there = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert there.stdout.strip() == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text()), ids=lambda case: case["name"])
def test_rule_18_golden_tasks_never_change(case):
    spec = TaskSpec(**case["spec"])
    block = draw_tasks(
        np.array(case["sizes"]),
        spec,
        range(*case["numbers"]),
        seed=case["seed"],
        split=case["split"],
    )
    for name in (
        "support_images",
        "support_labels",
        "target_images",
        "target_labels",
        "target_groups",
    ):
        assert getattr(block, name).tolist() == case[name], name


@given(instance_specs().flatmap(lambda spec: st.tuples(st.just(spec), roomy_sizes(spec))), numbers)
def test_rule_19_every_instance_is_a_label_and_comes_back_as_a_target(spec_and_sizes, number):
    spec, sizes = spec_and_sizes
    plan = one_task(spec, sizes, number)
    shown = plan.support_images.ravel()
    assert len(set(shown.tolist())) == spec.nss * spec.n_way * spec.k_shot == spec.labels
    assert plan.support_labels.ravel().tolist() == list(range(spec.labels))
    assert len(set(class_of(shown, sizes).tolist())) == spec.n_way
    assert sorted(plan.target_images.tolist()) == sorted(shown.tolist() * spec.k_target)
    label_of = dict(zip(shown.tolist(), range(spec.labels), strict=True))
    assert [label_of[image] for image in plan.target_images.tolist()] == plan.target_labels.tolist()
    per_set = spec.n_way * spec.k_shot
    assert (plan.target_labels // per_set).tolist() == plan.target_groups.tolist()


def test_images_are_drawn_uniformly():
    sizes = np.full(10, 20)
    block = draw_tasks(sizes, TaskSpec.few_shot(n_way=2), range(5000))
    counts = np.bincount(block.support_images.ravel(), minlength=200)
    assert np.all(np.abs(counts - 50) < 5 * np.sqrt(50)), (counts.min(), counts.max())


def leak_rate(sampler: str, spec: TaskSpec, images: int) -> float:
    """Return how many targets of a task are support images, on average over 300 tasks."""
    block = SAMPLERS[sampler](np.full(212, images), spec, range(300), seed=100, split="test")
    return float(
        np.mean(
            [np.isin(block.target_images[t], block.support_images[t]).sum() for t in range(300)]
        )
    )


@pytest.mark.parametrize(
    ("nss", "cci", "images", "leaked"),
    [
        (4, 2, 20, 4.99),
        (8, 2, 20, 9.77),
        (3, 3, 20, 7.06),
        (10, 10, 20, 92.6),
        (4, 2, 200, 0.49),
        (10, 10, 200, 10.8),
    ],
)
def test_the_published_sampler_leaks_as_measured_and_ours_does_not(nss, cci, images, leaked):
    """5 of 100 targets at (4, 2), 37 % of 250 at (10, 10): as measured with the published code."""
    spec = TaskSpec(nss=nss, cci=cci, overwrite=nss == cci)
    assert leak_rate("as_released_2020_08", spec, images) == pytest.approx(
        leaked, rel=0.02, abs=0.02
    )
    assert leak_rate("cfsl-1", spec, images) == 0


def test_the_first_release_shows_a_group_the_same_images_under_new_labels():
    spec = TaskSpec.type_d(nss=4, cci=2)
    plan = SAMPLERS["as_released_2020_04"](
        np.full(212, 20), spec, range(1), seed=100, split="test"
    ).task(0)
    assert np.array_equal(plan.support_images[0], plan.support_images[1])
    assert not np.isin(plan.support_images[2], plan.support_images[0]).any()
    assert plan.support_labels[1].tolist() == [5, 6, 7, 8, 9]
    assert plan.target_labels.max() == 19


def test_the_published_samplers_refuse_what_the_published_code_cannot_draw():
    with pytest.raises(SpecError, match="multiple of cci"):
        SAMPLERS["as_released_2020_08"](
            np.full(9, 20), TaskSpec.type_d(nss=5, cci=2), range(1), seed=100, split="test"
        )


@pytest.mark.parametrize("sampler", ["as_released_2020_04", "as_released_2020_08"])
def test_the_published_samplers_draw_as_numpys_old_generator_does(sampler):
    """Classes are from RandomState(number), shuffled; images from RandomState(seed + number)."""
    spec = TaskSpec.type_d(nss=2, cci=1, n_way=3, k_target=2)
    for seed, number in ((100, 0), (7, 41)):
        plan = SAMPLERS[sampler](
            np.full(50, 20), spec, range(number, number + 1), seed=seed, split="test"
        ).task(0)
        classes, images = np.random.RandomState(number), np.random.RandomState(seed + number)
        pool = list(range(50))
        for s in range(2):
            chosen = classes.choice(pool, 3, replace=False)
            pool = [c for c in pool if c not in chosen]
            classes.shuffle(chosen)
            drawn = [20 * c + images.choice(20, 3, replace=False) for c in chosen]
            assert plan.support_images[s].tolist() == [int(d[0]) for d in drawn]
            assert plan.target_images[6 * s : 6 * s + 6].tolist() == [
                int(i) for d in drawn for i in d[1:]
            ]


@pytest.mark.parametrize(
    ("seed", "numbers"), [(-3, range(1)), (0, range(5 * 10**9, 5 * 10**9 + 1))]
)
def test_the_published_samplers_refuse_seeds_that_numpy_would_not_take(seed, numbers):
    with pytest.raises(SpecError, match="seeds from 0"):
        SAMPLERS["as_released_2020_08"](
            np.full(50, 20), TaskSpec.few_shot(), numbers, seed=seed, split="test"
        )


def test_advice_that_cannot_be_followed_is_not_given():
    with pytest.raises(InfeasibleSpecError) as refused:
        require_feasible(np.full(212, 20), TaskSpec.type_b(nss=900_000), "omniglot/test")
    assert "glyphs" not in str(refused.value) and "Lower nss to 42." in str(refused.value)
    with pytest.raises(InfeasibleSpecError, match="split='all'"):
        require_feasible(np.zeros(0, np.int64), TaskSpec.few_shot(), "mine/test")
