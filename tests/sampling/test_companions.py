"""Companions: episodes in which half of the classes are look-alikes of the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cfsl
from cfsl.errors import SpecError
from cfsl.learners.protonet import ProtoNet
from cfsl.nets.convnet import conv4
from cfsl.sampling import draw_tasks, partner_of, with_companions
from cfsl.spec import TaskSpec
from cfsl.training import objective as objective_module
from cfsl.training.calibration import training_images
from cfsl.training.checkpoint import read_checkpoint
from cfsl.training.look_alikes import nearest_classes
from cfsl.training.loop import train
from cfsl.training.objective import objective_of
from cfsl.training.run_folder import LAST
from cfsl.training.training_spec import Augmentation, Schedule, Training

SMALL = ProtoNet(net=conv4(8, "conv-act-norm"), metric="cosine")
TRAINING = Training(
    episodes=TaskSpec.few_shot(n_way=9, k_target=2),
    turns=True,
    companions=3,
    validation=TaskSpec.few_shot(n_way=5, k_target=2),
    validation_tasks=10,
    augmentation=Augmentation(quarter_turns=True, reflections=True),
    schedule=Schedule(epochs=3, updates=4, optimizer="adamw", rate=3e-3, average=0.9, keep=2),
)


@pytest.fixture(scope="module")
def data(data_root):
    return cfsl.load("glyphs-60x12")


def classes_of(plan, starts):
    """Return the class of every label, for each task."""
    found = np.searchsorted(starts, plan.support_images.reshape(len(plan), -1), side="right") - 1
    labels = plan.support_labels.reshape(len(plan), -1)
    return np.stack(
        [of_task[order] for of_task, order in zip(found, labels.argsort(axis=1), strict=True)]
    )


@settings(max_examples=40, deadline=None)
@given(
    ways=st.integers(2, 12),
    nearest=st.integers(1, 4),
    seed=st.integers(0, 100),
    uneven=st.booleans(),
)
def test_half_of_the_classes_are_look_alikes_of_the_others_and_no_image_is_there_twice(
    ways, nearest, seed, uneven
):
    random = np.random.default_rng(seed)
    sizes = random.integers(5, 9, 30) if uneven else np.full(30, 6)
    starts = np.cumsum(sizes) - sizes
    spec = TaskSpec.few_shot(n_way=ways, k_target=3)
    plan = draw_tasks(sizes, spec, range(5), seed=seed, split="train")
    look_alikes = np.stack(
        [random.permutation(np.delete(np.arange(30), c))[:nearest] for c in range(30)]
    )
    words = random.integers(0, 2**32, (5, ways)).astype(np.uint64)
    joined = with_companions(plan, sizes, look_alikes, words)
    before, after = classes_of(plan, starts), classes_of(joined, starts)
    alone = ways - ways // 2
    np.testing.assert_array_equal(before[:, :alone], after[:, :alone])
    for task in range(5):
        assert len(set(after[task].tolist())) == ways
        images = np.concatenate(
            [joined.support_images[task].reshape(-1), joined.target_images[task]]
        )
        assert len(set(images.tolist())) == len(images)
        of_targets = np.searchsorted(starts, joined.target_images[task], side="right") - 1
        np.testing.assert_array_equal(of_targets, after[task][joined.target_labels[task]])
        for label in range(alone, ways):
            candidates = set(look_alikes[after[task, label - alone]].tolist())
            taken = set(before[task].tolist()) | set(after[task, alone:label].tolist())
            fitting = {c for c in candidates - taken if sizes[c] >= sizes[before[task, label]]}
            assert after[task, label] in (fitting or {before[task, label]})
    np.testing.assert_array_equal(plan.support_labels, joined.support_labels)


def test_all_look_alikes_are_drawn():
    sizes = np.full(40, 6)
    plan = draw_tasks(
        sizes, TaskSpec.few_shot(n_way=2, k_target=2), range(300), seed=0, split="train"
    )
    look_alikes = (np.arange(40)[:, None] + np.arange(1, 4)) % 40
    words = np.random.default_rng(0).integers(0, 2**32, (300, 2)).astype(np.uint64)
    after = classes_of(with_companions(plan, sizes, look_alikes, words), np.arange(40) * 6)
    steps = np.bincount((after[:, 1] - after[:, 0]) % 40, minlength=40)
    assert all(70 < steps[step] < 130 for step in (1, 2, 3))


def test_partners_by_hand():
    assert partner_of(6).tolist() == [0, 1, 2, 0, 1, 2]
    assert partner_of(7).tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert partner_of(1).tolist() == [0]


def test_look_alikes_are_the_classes_with_the_closest_mean_embeddings(data):
    meta = objective_of(SMALL, TRAINING, data).init(torch.Generator().manual_seed(0))
    found = nearest_classes(SMALL.net, meta, data, 3)
    count = len(data.classes_of("train"))
    assert found.shape == (count, 3)
    images, labels = (
        torch.cat(part) for part in zip(*training_images(data, 8 * count, 8, "cpu"), strict=True)
    )
    unit = torch.nn.functional.normalize(SMALL.embed(meta, images), dim=1)
    means = torch.stack([unit[labels == c].mean(dim=0) for c in range(count)])
    cosines = torch.nn.functional.cosine_similarity(means[:, None], means[None], dim=2)
    for c in range(count):
        others = cosines[c].clone()
        others[c] = -2
        torch.testing.assert_close(
            others[found[c]], others.sort(descending=True).values[:3], atol=1e-5, rtol=0
        )
        assert c not in found[c]


def test_as_few_classes_as_there_are_look_alike(data):
    meta = objective_of(SMALL, TRAINING, data).init(torch.Generator().manual_seed(0))
    count = len(data.classes_of("train"))
    assert nearest_classes(SMALL.net, meta, data, 1000).shape == (count, count - 1)


def test_images_to_measure_are_spread_over_classes_and_their_images(data):
    count = len(data.classes_of("train"))
    shown = list(training_images(data, 10**6, 5, "cpu"))
    labels = torch.cat([of_batch for _, of_batch in shown])
    assert torch.bincount(labels).tolist() == [5] * count
    fewer = torch.cat([of_batch for _, of_batch in training_images(data, 20, 5, "cpu")])
    assert torch.bincount(fewer).tolist() == [5] * 4
    first = next(iter(training_images(data, 10**6, 12, "cpu")))[0]
    tasks = cfsl.Tasks(data, TaskSpec.few_shot(n_way=2), split="train")
    np.testing.assert_array_equal(
        first[:12], tasks.images.normalised(np.arange(12, dtype=np.int32))
    )


def test_there_are_companions_from_the_second_epoch_on_turned_as_their_partners_are(
    data, monkeypatch
):
    objective = objective_of(SMALL, TRAINING, data)
    meta = objective.init(torch.Generator().manual_seed(0))
    seen = []

    def watched(images, classes, augmentation, generator):
        seen.append(classes)
        return images

    monkeypatch.setattr(objective_module, "augment", watched)
    first = objective._batch(5)
    objective.loss(meta["params"], meta["stats"], 5)
    objective.start_epoch(meta)
    joined = objective._batch(5)
    objective.loss(meta["params"], meta["stats"], 5)
    look_alikes = nearest_classes(SMALL.net, meta, data, 3)
    tasks = objective._tasks[5:6]
    starts = np.cumsum(tasks.class_sizes) - tasks.class_sizes
    before = classes_of(tasks.plan(), starts)[0]
    pixels = {
        cls: tasks.images.normalised((np.arange(12) + starts[cls]).astype(np.int32))
        for cls in range(len(starts))
    }

    def class_of(image):
        return next(
            cls
            for cls, known in pixels.items()
            if (known == image.numpy()).all(axis=(1, 2, 3)).any()
        )

    support = [
        class_of(image)
        for image in joined.support_images[0, 0][joined.support_labels[0, 0].argsort()]
    ]
    assert support[:5] == before[:5].tolist()
    assert sum(support[5 + i] in look_alikes[support[i]] for i in range(4)) >= 3
    assert not torch.equal(first.support_images, joined.support_images)
    assert seen[0].unique().tolist() == list(range(9))
    assert seen[1].unique().tolist() == list(range(5))


def test_a_run_with_companions_stopped_after_every_epoch_ends_with_the_same_bits(data, tmp_path):
    whole = train(SMALL, TRAINING, data, tmp_path / "whole")

    def stop(event):
        if type(event).__name__ == "Saved":
            raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            train(SMALL, TRAINING, data, tmp_path / "parts", stop)
    parts = train(SMALL, TRAINING, data, tmp_path / "parts")
    assert [epoch.loss for epoch in parts] == [epoch.loss for epoch in whole]
    left, right = (read_checkpoint(tmp_path / name / LAST)[0] for name in ("whole", "parts"))
    assert all(left[name].equal(right[name]) for name in left)
    plain = train(SMALL, TRAINING.replace(companions=0), data, tmp_path / "plain")
    assert plain[0].loss == whole[0].loss
    assert plain[1].loss != whole[1].loss


def test_companions_are_for_episodes_in_turns_and_stated_only_if_there_are_some():
    with pytest.raises(SpecError, match=r"companions=3 is for one-shot episodes"):
        TRAINING.replace(turns=False)
    assert "companions" not in TRAINING.replace(companions=0).model_dump(mode="json")
    assert TRAINING.model_dump(mode="json")["companions"] == 3
