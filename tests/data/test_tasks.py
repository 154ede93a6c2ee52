"""Tasks as tensors: random access, slices, iteration, batches, and the pixels they hold."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import cfsl
from cfsl.data.catalog import AddRequest, add_dataset
from cfsl.data.images import SplitImages
from cfsl.data.tasks import whole_number
from cfsl.errors import CfslError, SpecError, UnknownNameError
from cfsl.spec import Noise, Occlusion, TaskSpec


def same(a: cfsl.Task, b: cfsl.Task) -> bool:
    pairs = [(x.images, y.images) for x, y in zip(a.support_sets, b.support_sets, strict=True)]
    pairs += [(x.labels, y.labels) for x, y in zip(a.support_sets, b.support_sets, strict=True)]
    pairs += [
        (getattr(a.target, n), getattr(b.target, n))
        for n in ("images", "labels", "groups", "covered")
    ]
    return a.number == b.number and all(x.equal(y) for x, y in pairs)


@pytest.fixture(scope="module")
def tasks(glyphs) -> cfsl.Tasks:
    return cfsl.Tasks(glyphs, TaskSpec.type_d(nss=5, cci=2, n_way=3, k_shot=2))


def test_a_task_has_its_support_sets_and_its_target_set_as_tensors(tasks):
    task = tasks[17]
    assert [s.images.shape for s in task.support_sets] == [(6, 1, 28, 28)] * 5
    assert [s.labels.tolist() for s in task.support_sets[:3]] == [[0, 0, 1, 1, 2, 2]] * 2 + [
        [3, 3, 4, 4, 5, 5]
    ]
    assert task.target.images.shape == (45, 1, 28, 28) and task.target.images.dtype == torch.float32
    assert task.target.labels.dtype == torch.int64 and sorted(
        set(task.target.labels.tolist())
    ) == list(range(9))
    assert task.target.groups.equal(task.target.labels // 3)


def test_access_iteration_slices_and_batches_give_the_same_tasks(tasks):
    some = tasks[10:20]
    assert isinstance(some, cfsl.Tasks) and len(some) == 10 and len(tasks) == 600
    listed = list(some)
    assert [task.number for task in listed] == list(range(10, 20))
    assert same(listed[7], tasks[17]) and same(some[7], tasks[17]) and same(some[-3], tasks[17])
    batches = list(some.batches(4))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert batches[1].target_images[3].equal(tasks[17].target.images)
    assert batches[1].support_images[3, 2].equal(tasks[17].support_sets[2].images)
    assert same(tasks[600 - 1], tasks[-1]) and same(tasks[::100][2], tasks[200])


def test_indices_beyond_the_end_are_refused(tasks):
    with pytest.raises(IndexError):
        tasks[600]
    assert len(tasks[590:700]) == 10


@pytest.mark.parametrize("corruption", [None, Noise(fraction=0.2)])
def test_pixels_are_those_of_the_data_set(glyphs, corruption):
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3, corruption=corruption), split="train")
    plan, task = tasks.plan(range(5, 6)).task(0), tasks[5]
    expected = glyphs.pixels[tasks.images.rows[plan.support_images[1]]] / np.float32(255)
    assert np.array_equal(task.support_sets[1].images.numpy(), expected.astype(np.float32))


def test_large_splits_give_the_same_bits_as_small_ones(glyphs, monkeypatch):
    numbers = np.array([[3, 1], [40, 7]], np.int32)
    small = SplitImages.of(glyphs, glyphs.classes_of("test"))
    kept = small.normalised(numbers)
    monkeypatch.setattr("cfsl.data.images._LARGEST_TABLE", 0)
    large = SplitImages.of(glyphs, glyphs.classes_of("test"))
    assert small._table is not None and large._table is None
    assert np.array_equal(kept, large.normalised(numbers))


def test_normalisation_is_the_recipes(tmp_path, monkeypatch):
    from cfsl.data import slimagenet64

    pixels = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "rgb.npz", images=pixels, labels=np.arange(30) // 10)
    data = add_dataset(AddRequest(name="rgb", source=tmp_path / "rgb.npz", root=tmp_path))
    recipe = data.info.recipe.replace(mean=slimagenet64.RECIPE.mean, std=slimagenet64.RECIPE.std)
    images = SplitImages(data.pixels, np.arange(30, dtype=np.int32), recipe)
    for limit in (2**30, 0):
        monkeypatch.setattr("cfsl.data.images._LARGEST_TABLE", limit)
        fresh = SplitImages(images.pixels, images.rows, recipe)
        got = fresh.normalised(np.array([4, 29], np.int32))
        by_hand = (
            pixels[[4, 29]].transpose(0, 3, 1, 2) / 255.0 - np.array(recipe.mean)[:, None, None]
        ) / np.array(recipe.std)[:, None, None]
        assert got == pytest.approx(by_hand, abs=1e-6)


def test_the_same_split_is_kept_once_for_all_tasks_of_a_data_set(glyphs):
    a = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3))
    b = cfsl.Tasks(glyphs, TaskSpec.type_a(nss=5))[3:7]
    assert a.images is b.images


def test_an_infeasible_spec_is_refused_before_any_image_is_read(glyphs):
    with pytest.raises(
        CfslError, match=r"glyphs-400x20/test has 52 classes; this task needs 55 \(11 groups of 5\)"
    ):
        cfsl.Tasks(glyphs, TaskSpec.type_b(nss=11))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "tset"}, "did you mean 'test'"),
        ({"sampler": "cfsl-2"}, "did you mean 'cfsl-1'"),
        ({"numbers": range(-3, 4)}, "from 0 on"),
    ],
)
def test_bad_options_are_refused_with_what_to_do(glyphs, options, says):
    with pytest.raises((SpecError, UnknownNameError), match=says):
        cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3), **options)


def test_a_batch_of_no_tasks_is_refused(tasks):
    with pytest.raises(SpecError, match="at least one"):
        next(tasks.batches(0))


def test_all_is_a_split_with_every_class(glyphs):
    assert len(cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3), split="all").class_sizes) == 400


def test_a_class_too_small_for_a_task_is_never_drawn(tmp_path):
    labels = np.repeat(np.arange(12), [3, 20, 20, 20, 20, 20, 20, 2, 20, 20, 20, 20])
    images = np.zeros((len(labels), 4, 4), np.uint8)
    np.savez(tmp_path / "uneven.npz", images=images, labels=labels)
    data = add_dataset(AddRequest(name="uneven", source=tmp_path / "uneven.npz", root=tmp_path))
    tasks = cfsl.Tasks(data, TaskSpec.few_shot(n_way=10), split="all", numbers=range(50))
    shown = tasks.plan().support_images.ravel()
    drawn = set(np.searchsorted(np.cumsum(data.class_sizes), shown, side="right").tolist())
    assert drawn == set(range(12)) - {0, 7}


def test_published_omniglot_tasks_are_drawn_here_too(omniglot):
    from cfsl.data.published import TABLE_1, drawn_fingerprint, published_tasks

    published = published_tasks("omniglot")
    assert list(published) == list(TABLE_1) and len(published) == 11
    for column in ("B3", "C3", "D8", "A10"):
        assert published[column].spec == TABLE_1[column]
        assert drawn_fingerprint(omniglot, published[column]) == published[column].fingerprint


def test_rule_23_a_task_is_known_by_a_key_that_tells_all_it_depends_on(glyphs):
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3))
    key = tasks.key(17)
    assert (
        key == tasks[10:20].key(7)
        and key.number == 17
        and key.data_fingerprint == glyphs.fingerprint
    )
    others = [
        tasks.key(18),
        cfsl.Tasks(glyphs, TaskSpec.type_c(nss=3)).key(17),
        cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3), seed=1).key(17),
        cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3), split="val").key(17),
        cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3), sampler="as_released_2020_08").key(17),
    ]
    assert len({key, *others}) == 6


@pytest.mark.parametrize("corruption", [Noise(fraction=0.2), Occlusion(fraction=0.3)])
def test_rules_18_20_a_corrupted_task_is_the_same_alone_in_a_slice_and_in_a_batch(
    glyphs, corruption
):
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=2, corruption=corruption))
    alone, sliced = tasks[17], list(tasks[10:20])[7]
    batched = next(tasks[0:32].batches(32)).target_images[17]
    assert same(alone, sliced) and alone.target.images.equal(batched)


def test_classes_are_numbered_in_the_order_of_the_split_file(tmp_path):
    names = [f"c{i}" for i in range(6)]
    np.savez(
        tmp_path / "a.npz",
        images=np.zeros((36, 4, 4), np.uint8),
        labels=np.arange(36) // 6,
        class_names=names,
    )
    (tmp_path / "own.json").write_text('{"train": ["c4", "c1", "c5"], "test": ["c3", "c0"]}')
    add_dataset(AddRequest(name="ordered", source=tmp_path / "a.npz", root=tmp_path))
    data = cfsl.load("ordered", splits=tmp_path / "own.json", root=tmp_path)
    assert data.classes_of("train").tolist() == [4, 1, 5] and data.classes_of("test").tolist() == [
        3,
        0,
    ]


def test_tasks_travel_to_another_process_without_their_pixels(glyphs):
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3))
    task = tasks[3]
    packed = pickle.dumps(tasks)
    assert len(packed) < 100_000
    assert same(pickle.loads(packed)[3], task)
    loader = torch.utils.data.DataLoader(
        tasks[:4], batch_size=None, num_workers=1, multiprocessing_context="spawn"
    )
    assert same(list(loader)[3], task)


@pytest.mark.parametrize("seed", [0.0, 1.5, None, "0", False, [0]])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(SpecError, match="a seed is a whole number"):
        whole_number(seed)


def test_a_numpy_seed_is_the_same_seed():
    assert whole_number(np.int64(3)) == 3 and type(whole_number(np.int64(3))) is int


def test_tasks_compare_by_identity_and_print_in_one_line(glyphs):
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3))
    assert (
        tasks == tasks and tasks != cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3)) and len({tasks}) == 1
    )
    assert len(repr(tasks)) < 800 and len(repr(glyphs)) < 200
