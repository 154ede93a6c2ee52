"""The champion: what it keeps, how it answers, and that it knows a copy when it sees one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import cfsl
from cfsl.data.catalog import AddRequest, add_dataset
from cfsl.errors import CfslError, CheckpointError, SpecError
from cfsl.harness.evaluate import evaluate
from cfsl.harness.state import flatten
from cfsl.learners.base import Moment
from cfsl.learners.champion import closeness as closeness_module
from cfsl.learners.champion.champion import Champion
from cfsl.learners.champion.pixel_memory import (
    copy_log_odds,
    copy_loss,
    init_matcher,
    packed,
    pixel_count,
    pixel_values,
    spoiled,
    unpacked,
)
from cfsl.learners.champion.spread import class_evidence
from cfsl.learners.episode_losses import grouped_by_class, left_out_loss, one_shot_loss
from cfsl.learners.multiproto import MultiProto
from cfsl.learners.protonet import ProtoNet
from cfsl.learners.views import orders_of_orientations, oriented_views
from cfsl.metrics.accuracy import summarise, task_accuracies
from cfsl.nets.small_resnet import SmallResNet
from cfsl.presets.cells import Request, cells_of
from cfsl.runs.run_spec import RunSpec
from cfsl.runs.weights import require_fit
from cfsl.spec import Noise, Occlusion, TaskSpec
from cfsl.training.augment import augment, blended
from cfsl.training.calibration import calibrated
from cfsl.training.checkpoint import read_checkpoint, write_checkpoint
from cfsl.training.loop import train
from cfsl.training.objective import objective_of
from cfsl.training.randomness import generator_of_update
from cfsl.training.recipes import fitted_to, recipe_for
from cfsl.training.run_folder import LAST, best_weights, read_weights
from cfsl.training.training_spec import Augmentation, Schedule, Training

TINY = SmallResNet(widths=(4, 8), embedding=8)
TINY_PHOTOS = SmallResNet(widths=(4, 8), stem_kernel=5, stem_stride=2, embedding=None)


@pytest.fixture(scope="module")
def glyphs(data_root):
    return cfsl.load("glyphs-60x12")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """16 x 16 noise around a colour of its class: 30 classes of 8."""
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    base = generator.integers(0, 200, (30, 1, 1, 1, 3))
    images = np.clip(base + generator.integers(0, 55, (30, 8, 16, 16, 3)), 0, 255).astype(np.uint8)
    np.savez(
        folder / "photos.npz", images=images.reshape(240, 16, 16, 3), labels=np.arange(240) // 8
    )
    return add_dataset(AddRequest(name="photos", source=folder / "photos.npz", root=folder))


def accuracy(learner, tasks, meta):
    return summarise(task_accuracies(evaluate(learner, tasks, meta))).mean


def kept_bytes(trace):
    """Return what the first task kept at its end, without counts and labels."""
    return int((trace.state_bytes - trace.bookkeeping_bytes)[0, -1])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def matcher(glyphs):
    """What tells copies, after half a minute's worth of small steps on training classes."""
    images = torch.from_numpy(
        cfsl.Tasks(glyphs, TaskSpec.type_b(3), split="train").images.normalised(
            np.arange(120, dtype=np.int32)
        )
    )

    params = {name: tensor.requires_grad_() for name, tensor in init_matcher(generator()).items()}
    optimizer = torch.optim.AdamW(params.values(), lr=5e-3)
    for update in range(250):
        optimizer.zero_grad()
        chosen = torch.randperm(len(images), generator=generator(update))[:48]
        copy_loss(params, images[chosen], generator(update)).backward()
        optimizer.step()

    return {name: tensor.detach() for name, tensor in params.items()}


@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(2, 40)),
        elements=st.floats(-3, 3, width=32),
    )
)
def test_what_is_kept_is_which_pixels_are_lighter_than_the_mean(values):
    shown = torch.from_numpy(values)
    codes = packed(shown)
    assert codes.dtype == torch.uint8
    assert codes.shape == (len(values), -(-values.shape[1] // 8))
    expected = (shown > shown.mean(dim=1, keepdim=True)).float()
    assert torch.equal(unpacked(codes, values.shape[1]), expected)


def test_grey_values_of_large_images_are_means_over_a_grid():
    images = torch.rand(2, 3, 64, 64, generator=generator())
    values = pixel_values(images)
    assert values.shape == (2, 1024)
    assert pixel_count((3, 64, 64)) == 1024
    torch.testing.assert_close(values[0, 1], images[0, :, 0:2, 2:4].mean())
    small = torch.rand(2, 1, 5, 7, generator=generator())
    assert torch.equal(pixel_values(small), small.flatten(1))
    assert pixel_count((1, 5, 7)) == 35


def test_copies_are_left_noisy_or_hidden_and_never_leave_the_range():
    images = torch.rand(400, 1, 28, 28, generator=generator(1)).round()
    copies = spoiled(images, generator())
    changed = (copies != images).flatten(1).float().mean(dim=1)
    assert 0.15 < (changed == 0).float().mean() < 0.4
    assert 0.2 < changed.max() < 0.6
    assert copies.min() >= 0
    assert copies.max() <= 1
    between = ((copies > 0) & (copies < 1)).flatten(1).any(dim=1)
    assert 0.25 < between.float().mean() < 0.5
    assert torch.equal(copies, spoiled(images, generator()))


def test_an_image_of_one_value_can_be_kept_and_asked_for(matcher):
    flat = torch.full((2, 1, 28, 28), 0.5)
    odds = copy_log_odds(matcher, pixel_values(flat), unpacked(packed(pixel_values(flat)), 784))
    assert torch.isfinite(odds).all()


@pytest.mark.parametrize("corruption", [None, Noise(fraction=0.4), Occlusion(fraction=0.2)])
def test_it_knows_copies_where_its_class_embedding_is_lost(glyphs, matcher, corruption):
    tasks = cfsl.Tasks(
        glyphs, TaskSpec.instance(nss=4, k_shot=3).replace(corruption=corruption), numbers=range(40)
    )
    learner = Champion(net=TINY, views="one", closeness="cosine")
    meta = learner.init(
        (1, 28, 28), generator()
    )  # to an untrained net all images are close: let that count for little
    meta = {
        "params": meta["params"] | matcher | {"scale": torch.tensor(1.0)},
        "stats": meta["stats"],
    }

    with_copies = accuracy(learner, tasks, meta)
    assert with_copies > 0.95
    if corruption is not None:
        assert accuracy(learner.replace(knows_copies=False), tasks, meta) < with_copies - 0.3


@pytest.mark.parametrize(("name", "familiar", "crowd"), [("glyphs", 0.7, 1), ("photos", 0.35, 0)])
@pytest.mark.parametrize(
    "spec",
    [TaskSpec.instance(nss=3, k_shot=1), TaskSpec.type_a(nss=3, n_way=2)],
    ids=["one image", "three images"],
)
def test_class_and_copy_are_weighed_as_written(request, matcher, name, familiar, crowd, spec):
    """log [exp(e) + exp(k s) / n^h sum_i odds], e = s cos / |p|^(1/2), n images to a label.

    For photographs log [exp(e) (1 + exp(k s) / n^h sum_i odds)].
    """
    tasks = cfsl.Tasks(request.getfixturevalue(name), spec, numbers=range(1))
    task = tasks[0]

    learner = Champion(
        net=TINY, photo_net=TINY_PHOTOS, views="one", numbers="float32", closeness="cosine"
    )
    meta = learner.init(tuple(task.target.images.shape[1:]), generator())
    meta = {
        "params": meta["params"] | matcher | {"scale": torch.tensor(3.0)},
        "stats": meta["stats"],
    }

    shown = torch.cat([support.images for support in task.support_sets])
    labels = torch.cat([support.labels for support in task.support_sets])
    by_label = labels.argsort(stable=True).view(spec.labels, -1)
    alone = learner.replace(knows_copies=False)

    means = alone.embed(meta, shown)[by_label].mean(dim=1)
    by_class = (
        3
        * alone.embed(meta, task.target.images)
        @ (means / means.norm(dim=1, keepdim=True) ** 1.5).T
    )
    kept = pixel_values(shown)
    odds = copy_log_odds(
        matcher, pixel_values(task.target.images), unpacked(packed(kept), kept.shape[1])
    )

    by_copy = odds[:, by_label].logsumexp(dim=2) + 3 * familiar - crowd * np.log(by_label.shape[1])

    logits = torch.from_numpy(evaluate(learner, tasks, meta).logits[0])
    together = (
        by_class + torch.log1p(by_copy.exp())
        if name == "photos"
        else torch.logaddexp(by_class, by_copy)
    )
    torch.testing.assert_close(logits, together, atol=1e-4, rtol=1e-4)


def test_a_copy_of_a_photograph_counts_by_the_prototype_that_it_is_part_of(photos, matcher):
    """log sum over the groups u of a label of exp(e(x, u)) (1 + exp(k s) odds).

    Every prototype has one image.
    """
    tasks = cfsl.Tasks(photos, TaskSpec.type_c(nss=3, n_way=2), split="train", numbers=range(1))
    task = tasks[0]

    learner = Champion(net=TINY, photo_net=TINY_PHOTOS, views="one", numbers="float32")
    meta = learner.init(tuple(task.target.images.shape[1:]), generator())
    meta = {
        "params": meta["params"] | matcher | {"scale": torch.tensor(3.0)},
        "stats": meta["stats"],
    }

    shown = torch.cat([support.images for support in task.support_sets])
    labels = torch.cat([support.labels for support in task.support_sets])
    alone = learner.replace(knows_copies=False)

    by_class = 3 * alone.embed(meta, task.target.images) @ alone.embed(meta, shown).T
    kept = pixel_values(shown)
    odds = copy_log_odds(
        matcher, pixel_values(task.target.images), unpacked(packed(kept), kept.shape[1])
    )
    by_image = by_class + torch.log1p((odds + 3 * 0.35).exp())

    logits = torch.from_numpy(evaluate(learner, tasks, meta).logits[0])
    expected = torch.stack(
        [by_image[:, labels == label].logsumexp(dim=1) for label in range(2)], dim=1
    )
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "spec",
    [TaskSpec.type_c(nss=3, n_way=2), TaskSpec.type_a(nss=3, n_way=2)],
    ids=["one image", "three images"],
)
def test_evidence_of_class_and_copy_are_weighed_as_written(glyphs, matcher, spec, monkeypatch):
    """log sum over the groups u of [exp(e(x, u))] + exp(2) / n^3 sum_i odds.

    e comes from the measured spread of classes. It is raised until the largest is -2; here until it
    is 1.5, so that some images need it and others do not.
    """
    monkeypatch.setattr(closeness_module, "LEAST_EVIDENCE", 1.5)
    tasks = cfsl.Tasks(glyphs, spec, numbers=range(1))
    task, groups = tasks[0], spec.nss // spec.interval

    learner = Champion(net=TINY, numbers="float32", axes=20)
    meta = calibrated(learner, learner.init((1, 28, 28), generator()), glyphs, "cpu")
    meta = {"params": meta["params"] | matcher, "stats": meta["stats"]}

    bare = learner.replace(knows_copies=False)
    shown = torch.cat([support.images for support in task.support_sets])
    labels = torch.cat([support.labels for support in task.support_sets])
    by_label = labels.argsort(stable=True).view(2, groups, -1)
    means = bare.embed(meta, shown)[by_label].mean(dim=2)
    counts = torch.full((2 * groups,), by_label.shape[2])

    evidence = class_evidence(
        bare.embed(meta, task.target.images),
        means.flatten(0, 1),
        counts,
        meta["stats"]["spread.shares"],
    )
    best = evidence.max(dim=1, keepdim=True).values
    assert 0 < (best < 1.5).sum() < len(best)
    evidence = torch.where(best < 1.5, evidence - best + 1.5, evidence)

    by_class = evidence.view(-1, 2, groups).logsumexp(dim=2)
    kept = pixel_values(shown)
    odds = copy_log_odds(
        matcher, pixel_values(task.target.images), unpacked(packed(kept), kept.shape[1])
    )
    by_copy = odds[:, by_label.flatten(1)].logsumexp(dim=2) + 2 - 3 * np.log(3)

    logits = torch.from_numpy(evaluate(learner, tasks, meta).logits[0])
    torch.testing.assert_close(logits, torch.logaddexp(by_class, by_copy), atol=1e-3, rtol=1e-4)


def test_what_is_kept_of_a_character_are_the_axes_that_tell_most(glyphs):
    learner = Champion(net=TINY, knows_copies=False, axes=20)
    meta = calibrated(learner, learner.init((1, 28, 28), generator()), glyphs, "cpu")
    shares = meta["stats"]["spread.shares"]
    assert shares.shape == (20,)
    assert torch.equal(shares, shares.sort(descending=True).values)

    every = learner.replace(axes=64)
    whole = calibrated(every, every.init((1, 28, 28), generator()), glyphs, "cpu")["stats"][
        "spread.shares"
    ]
    torch.testing.assert_close(shares, whole[:20])

    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=2, n_way=2), numbers=range(2))
    assert kept_bytes(evaluate(learner, tasks, meta)) == 4 * 20


def test_other_images_of_the_classes_are_no_copies(glyphs, matcher):
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3, n_way=2), numbers=range(60))
    learner = Champion(net=TINY, views="one")
    meta = learner.init((1, 28, 28), generator())
    meta = {"params": meta["params"] | matcher, "stats": meta["stats"]}
    answers = [
        task_accuracies(evaluate(which, tasks, meta))
        for which in (learner, learner.replace(knows_copies=False))
    ]
    assert np.mean(answers[0]) > np.mean(answers[1]) - 0.01


@pytest.mark.parametrize("spec", [TaskSpec.type_b(nss=3, n_way=2), TaskSpec.type_c(nss=3, n_way=2)])
def test_without_its_extras_it_is_multiproto(glyphs, spec):
    tasks = cfsl.Tasks(glyphs, spec, numbers=range(10))
    bare = Champion(
        net=TINY, views="one", numbers="float32", knows_copies=False, closeness="cosine"
    )
    meta = bare.init((1, 28, 28), generator())
    ours = torch.from_numpy(evaluate(bare, tasks, meta).logits)
    theirs = torch.from_numpy(evaluate(MultiProto(net=TINY, metric="cosine"), tasks, meta).logits)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_one_group_for_all_averages_what_a_label_stood_for(glyphs):
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_c(nss=3, n_way=2), numbers=range(1))
    bare = Champion(net=TINY, views="one", numbers="float32", knows_copies=False, groups=False)
    meta = bare.init((1, 28, 28), generator())
    trace = evaluate(bare, tasks, meta)
    assert kept_bytes(trace) == 2 * 8 * 4
    kept = evaluate(bare.replace(groups=True), tasks, meta)
    assert kept_bytes(kept) == 3 * 2 * 8 * 4


@pytest.mark.parametrize("closeness", ["cosine", "evidence"])
def test_bytes_are_as_good_as_floats_and_cost_a_quarter(glyphs, closeness):
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_a(nss=4, n_way=3, k_target=2), numbers=range(10))
    floats = Champion(
        net=SmallResNet(widths=(4, 8), embedding=64),
        views="one",
        numbers="float32",
        knows_copies=False,
        closeness=closeness,
    )

    meta = calibrated(floats, floats.init((1, 28, 28), generator()), glyphs, "cpu")
    full, bytewise = (
        evaluate(which, tasks, meta) for which in (floats, floats.replace(numbers="int8"))
    )

    assert np.abs(full.logits - bytewise.logits).max() < {"cosine": 0.1, "evidence": 0.3}[closeness]
    assert kept_bytes(full) == 3 * 64 * 4
    assert kept_bytes(bytewise) == 3 * 64


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_a_prototype_is_the_mean_of_all_its_images_whatever_set_they_came_in(glyphs, power):
    """Three sets of one class of images: the mean of all, not of means that forget their counts."""
    task = cfsl.Tasks(glyphs, TaskSpec.type_a(nss=3, n_way=2, k_target=2), numbers=range(1))[0]
    learner = Champion(
        net=TINY,
        views="one",
        numbers="float32",
        knows_copies=False,
        closeness="cosine",
        length_power=power,
    )
    meta = learner.init((1, 28, 28), generator())
    tasks = cfsl.Tasks(glyphs, task.spec, numbers=range(1))

    shown = [learner.embed(meta, support.images) for support in task.support_sets]
    labels = [support.labels for support in task.support_sets]
    means = torch.stack([torch.cat(shown)[torch.cat(labels) == k].mean(dim=0) for k in range(2)])
    cosines = (
        learner.embed(meta, task.target.images) @ torch.nn.functional.normalize(means, dim=1).T
    )

    trace = evaluate(learner, tasks, meta)
    expected = 12 * cosines / means.norm(dim=1) ** power
    torch.testing.assert_close(torch.from_numpy(trace.logits[0]), expected, atol=1e-4, rtol=1e-4)


def telling_measure(number):
    """Return weights of a matcher whose log-odds are one of the nine measures, of either sign."""
    both_signs = torch.zeros(2, 9)
    both_signs[0, number], both_signs[1, number] = 1, -1
    layers = {1: both_signs, 2: torch.eye(2), 3: torch.tensor([[1.0, -1.0]])}
    weights = {f"matcher.{layer}.weight": weight for layer, weight in layers.items()}
    return weights | {
        f"matcher.{layer}.bias": torch.zeros(len(weight)) for layer, weight in layers.items()
    }


def test_measures_of_a_copy_and_of_a_negative_by_hand():
    """Kept is 1 1 0 0. The correlation of the copy is 1, of its negative -1, of a flat image 0."""
    light = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    values = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0], [0.5, 0.5, 0.5, 0.5]])

    tiny = np.log(1e-3) / 4
    expected = [
        [1, 0, tiny, tiny, 1, tiny, 0.5, 0.25, 0.5],
        [0, 1, tiny, tiny, -1, np.log(2.001) / 4, 0.5, 0.25, 0.5],
        [0.5, 0.5, tiny, tiny, 0, np.log(1.001) / 4, 0.5, 0, 0.5],
    ]

    found = [copy_log_odds(telling_measure(number), values, light) for number in range(9)]
    torch.testing.assert_close(
        torch.cat(found, dim=1), torch.tensor(expected).float(), atol=1e-3, rtol=1e-3
    )


def test_memory_by_hand(glyphs):
    """Type A, 2 x 3 images: 3 prototypes of 8 x 8 bytes, 6 codes of 98 bytes."""
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_a(nss=2, n_way=3, k_target=2), numbers=range(2))
    learner = Champion(net=TINY)
    trace = evaluate(learner, tasks, learner.init((1, 28, 28), generator()))
    assert kept_bytes(trace) == 3 * 8 * 8 + 6 * 98
    assert trace.support_bytes == 6 * 3136


def test_views_of_a_character_are_its_neighbours_by_one_pixel(glyphs):
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3, n_way=2), numbers=range(1))
    learner = Champion(net=TINY, knows_copies=False, views="shifts", closeness="cosine")
    meta = learner.init((1, 28, 28), generator())

    image = tasks[0].target.images[:1]
    inside = torch.nn.functional.pad(
        image[:, :, 2:-2, 2:-2], (2, 2, 2, 2), value=float(image.max())
    )

    single = learner.replace(views="one")
    moved = [
        inside,
        *(
            torch.roll(inside, (down, right), (2, 3))
            for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0))
        ),
    ]

    mean = sum(torch.nn.functional.normalize(single.embed(meta, view), dim=1) for view in moved)
    torch.testing.assert_close(
        learner.embed(meta, inside), torch.nn.functional.normalize(mean, dim=1)
    )


def test_a_character_is_looked_at_in_eight_ways():
    """The views of a rotated or mirrored character are the same views in another order."""
    learner = Champion(net=TINY, knows_copies=False, closeness="cosine")
    meta = learner.init((1, 28, 28), generator())

    image = torch.rand(1, 1, 28, 28, generator=generator())
    views = {tuple(view.tolist()) for view in learner.embed(meta, image).view(8, 8)}
    assert len(views) == 8

    for other in (torch.rot90(image, 1, (2, 3)), image.flip(3), image.flip(2)):
        turned = learner.embed(meta, other).view(8, 8)
        assert all(
            any(np.allclose(view, known, atol=1e-5) for known in views) for view in turned.tolist()
        )
    torch.testing.assert_close(learner.embed(meta, image).norm(), torch.tensor(1.0))


def test_photographs_whose_smallest_view_would_vanish_are_refused_by_their_own_size():
    with pytest.raises(SpecError, match=r"photographs of 16x16 are too small for champion.*12x12"):
        Champion().init((3, 16, 16), torch.Generator().manual_seed(0))
    Champion(views="one").init((3, 16, 16), torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("height", "side"), [(16, 12), (64, 48)])
def test_crops_of_photographs_are_three_quarters_as_high(tmp_path, height, side):
    images = np.zeros((60, height, height, 3), np.uint8)
    np.savez(tmp_path / "some.npz", images=images, labels=np.arange(60) // 2)
    data = add_dataset(AddRequest(name=f"of-{height}", source=tmp_path / "some.npz", root=tmp_path))
    training = recipe_for("short", "champion", TaskSpec.type_b(1), characters=False)
    assert fitted_to(data, training).augmentation.side == side


def test_a_photograph_is_seen_in_three_sizes_about_the_centre_of_each():
    unit = partial(torch.nn.functional.normalize, dim=1)
    learner = Champion(photo_net=TINY_PHOTOS, knows_copies=False)
    meta = learner.init((3, 16, 16), generator())
    centres = torch.rand(3, 8, generator=generator()) / 4
    meta["stats"]["centres"] = centres

    images = torch.rand(3, 3, 16, 16, generator=generator())
    seen = [
        torch.nn.functional.interpolate(images, (side, side), mode="bilinear")
        for side in (12, 16, 20)
    ]

    plain = [
        unit(TINY_PHOTOS.features(meta["params"], meta["stats"], view, norm="running"))
        + unit(TINY_PHOTOS.features(meta["params"], meta["stats"], view.flip(3), norm="running"))
        for view in seen
    ]

    expected = unit(
        torch.cat(
            [unit(unit(both) - centre) for both, centre in zip(plain, centres, strict=True)], dim=1
        )
    )
    torch.testing.assert_close(learner.embed(meta, images), expected)


@pytest.mark.parametrize("views", ["turns", "one"])
def test_centres_are_the_mean_embeddings_of_training_photographs(photos, tmp_path, views):
    """As they are in the data set, whatever augmentation shows, at the end of every epoch."""
    learner = Champion(photo_net=TINY_PHOTOS, knows_copies=False, views=views)
    recipe = recipe_for("short", "champion", TaskSpec.type_b(nss=2, n_way=1), characters=False)
    training = recipe.replace(
        validation_tasks=20,
        augmentation=recipe.augmentation.replace(side=12),
        schedule=recipe.schedule.replace(
            epochs=2, updates=3, batch=8, warmup=1, average=0.5, keep=2
        ),
    )

    history = train(learner, training, photos, tmp_path)

    validation = cfsl.Tasks(photos, training.validation, split="val", numbers=range(20))
    tasks = cfsl.Tasks(photos, training.episodes, split="train")
    images = torch.from_numpy(
        tasks.images.normalised(np.arange(tasks.class_sizes.sum(), dtype=np.int32))
    )

    for epoch in history:
        meta = read_weights(tmp_path / f"epoch-{epoch.epoch:04d}.safetensors")
        assert epoch.accuracy == accuracy(learner, validation, meta)

        centreless = {**meta, "stats": {**meta["stats"], "centres": torch.zeros(1, 8)}}
        sizes = {"turns": (12, 16, 20), "one": (16,)}[views]
        for side, centre in zip(sizes, meta["stats"]["centres"], strict=True):
            view = torch.nn.functional.interpolate(images, (side, side), mode="bilinear")
            single = learner.replace(views="one")
            seen = [single.embed(centreless, view), single.embed(centreless, view.flip(3))]
            both = seen[0] if views == "one" else torch.nn.functional.normalize(sum(seen), dim=1)
            torch.testing.assert_close(centre, both.mean(dim=0), atol=1e-5, rtol=1e-4)
            assert centre.norm() > 0.1

    run, _ = read_checkpoint(tmp_path / LAST)
    assert not run["stats/centres"].any()  # training itself knows nothing of them


def test_a_run_from_before_there_were_centres_is_refused_in_one_line(photos, tmp_path):
    learner = Champion(photo_net=TINY_PHOTOS, knows_copies=False)
    recipe = recipe_for("short", "champion", TaskSpec.type_b(nss=2, n_way=1), characters=False)
    schedule = recipe.schedule.replace(epochs=1, updates=1, batch=8)
    training = recipe.replace(validation_tasks=1, schedule=schedule)

    train(learner, training, photos, tmp_path)

    tensors, notes = read_checkpoint(tmp_path / LAST)
    del tensors["stats/centres"]
    write_checkpoint(tmp_path / LAST, tensors, notes)

    with pytest.raises(
        CheckpointError, match=r"has no 'centres': it was written by an older version"
    ):
        train(learner, training, photos, tmp_path)


def test_characters_have_a_spread_and_photographs_centres():
    learner = Champion(net=TINY, photo_net=TINY_PHOTOS)
    characters, photographs = (
        learner.init(shape, generator())["stats"] for shape in ((1, 28, 28), (3, 16, 16))
    )

    assert "centres" not in characters
    assert "spread.shares" in characters
    assert "centres" in photographs
    assert "spread.shares" not in photographs

    assert not any(
        name.startswith("spread")
        for name in learner.replace(closeness="cosine").init((1, 28, 28), generator())["stats"]
    )


def test_weights_from_before_there_was_a_spread_are_refused_in_one_line(glyphs, tmp_path):
    learner = Champion(net=TINY)
    meta = learner.replace(closeness="cosine").init((1, 28, 28), generator())
    path = tmp_path / "old.safetensors"
    write_checkpoint(path, {f"meta/{name}": tensor for name, tensor in flatten(meta).items()}, {})
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=2, n_way=1), numbers=range(1))
    with pytest.raises(CfslError, match=r"old\.safetensors has no 'spread\."):
        require_fit("champion", learner, read_weights(path), tasks, path)
    cosine = learner.replace(closeness="cosine")
    require_fit("champion", cosine, read_weights(path), tasks, path)


@pytest.mark.parametrize("shape", [(28, 28), (28, 20)], ids=["square", "oblong"])
def test_views_of_a_turned_image_are_those_of_the_image_in_another_order(shape):
    image = torch.rand(1, 1, *shape, generator=generator())
    views = [view.tolist() for view in oriented_views(image)]
    found = [
        [views.index(view.tolist()) for view in oriented_views(turned)]
        for turned in oriented_views(image)
    ]
    assert sorted(found) == sorted(orders_of_orientations(*shape))
    assert len(found) == len({tuple(order) for order in found})


def test_weights_without_centres_are_refused_in_one_line(photos, tmp_path):
    learner = Champion(photo_net=TINY_PHOTOS, knows_copies=False)
    meta = learner.init((3, 16, 16), generator())
    del meta["stats"]["centres"]

    path = tmp_path / "old.safetensors"
    write_checkpoint(path, {f"meta/{name}": tensor for name, tensor in flatten(meta).items()}, {})
    tasks = cfsl.Tasks(photos, TaskSpec.type_b(nss=2, n_way=1), split="test", numbers=range(1))

    with pytest.raises(
        CfslError,
        match=r"old\.safetensors has no 'centres', and champion needs it in shape \(3, 8\)",
    ):
        require_fit("champion", learner, read_weights(path), tasks, path)


def test_a_photograph_and_its_mirror_image_are_the_same(photos):
    learner = Champion(photo_net=TINY_PHOTOS, knows_copies=False)
    meta = learner.init((3, 16, 16), generator())
    images = torch.rand(3, 3, 16, 16, generator=generator())
    torch.testing.assert_close(learner.embed(meta, images), learner.embed(meta, images.flip(3)))


@pytest.mark.slow
def test_it_learns_characters_from_episodes(glyphs, tmp_path):
    learner = Champion(net=TINY)
    training = Training(
        episodes=TaskSpec.few_shot(n_way=12, k_target=2),
        turns=True,
        validation=TaskSpec.type_b(nss=2, n_way=1),
        validation_tasks=20,
        schedule=Schedule(epochs=1, updates=40, optimizer="adamw", rate=5e-3),
    )

    history = train(learner, training, glyphs, tmp_path)
    tasks = cfsl.Tasks(glyphs, TaskSpec.type_b(nss=3, n_way=2), split="val", numbers=range(60))

    first = learner.init((1, 28, 28), generator())
    learned = best_weights(tmp_path)
    assert len(history) == 1
    assert accuracy(learner, tasks, learned) > accuracy(learner, tasks, first) + 0.05

    moved = [
        name
        for name in first["params"]
        if not torch.equal(first["params"][name], learned["params"][name])
    ]
    assert any(name.startswith("matcher") for name in moved)


@pytest.mark.slow
def test_it_learns_photographs_from_a_classifier_at_another_size(photos, tmp_path):
    learner = Champion(photo_net=TINY_PHOTOS)
    recipe = recipe_for("short", "champion", TaskSpec.type_b(nss=2, n_way=1), characters=False)
    assert recipe.iid
    training = recipe.replace(
        validation_tasks=10,
        augmentation=recipe.augmentation.replace(side=12),
        schedule=recipe.schedule.replace(epochs=1, updates=30, batch=32, warmup=5, average=0.5),
    )

    train(learner, training, photos, tmp_path)

    learned = best_weights(tmp_path)
    assert learned["params"]["head.weight"].shape == (len(photos.classes_of("train")), 8)
    assert learned["params"]["stem.conv.weight"].shape == (4, 3, 5, 5)

    first = learner.init((3, 16, 16), generator())["params"]
    assert not torch.equal(
        first["scale"], learned["params"]["scale"]
    )  # the classifier is the champion's own
    assert not torch.equal(first["matcher.1.weight"], learned["params"]["matcher.1.weight"])

    tasks = cfsl.Tasks(photos, TaskSpec.type_b(nss=2, n_way=1), split="test", numbers=range(40))
    assert accuracy(learner, tasks, learned) > 0.9


def test_a_bench_trains_it_once_for_all_columns_by_its_own_recipe():
    request = Request(
        "table1", "quick", ("glyphs-1000x20",), learners=("champion",), columns=("A3", "B3")
    )
    cells = [cell for cell in cells_of(request) if cell.run is not None]
    assert {cell.run.train.training for cell in cells} == {
        recipe_for("short", "champion", TaskSpec.type_b(3))
    }


def test_a_bench_trains_in_the_precision_asked_for_and_runs_in_the_usual_one_keep_their_names():
    def runs(precision: str | None) -> list[RunSpec]:
        learners = ("champion", "pretrain_tune", "maml_high", "init_tune")
        asked = Request(
            "table1", "quick", ("glyphs-1000x20",), None, learners, ("B3",), precision=precision
        )
        return [cell.run for cell in cells_of(asked) if cell.run is not None]

    usual, named, quick = runs(None), runs("float32"), runs("bfloat16")
    assert [run.hash for run in usual] == [run.hash for run in named]

    assert [run.train and run.train.training.schedule.precision for run in quick] == [
        "bfloat16"
    ] * 3 + [None]
    assert [one.hash != other.hash for one, other in zip(usual, quick, strict=True)] == [
        True
    ] * 3 + [False]


def test_characters_are_learned_from_wide_episodes():
    recipe = recipe_for("short", "champion", TaskSpec.type_b(nss=3))
    assert not recipe.iid
    assert (
        recipe.episodes.n_way,
        recipe.episodes.k_shot + recipe.episodes.k_target,
        recipe.turns,
    ) == (38, 5, True)


def test_the_loss_given_the_mean_of_the_others_by_hand():
    """Two classes of three images on a circle; the images of a number are left out together."""
    angles = torch.tensor([[0.0, 0.2, 0.4], [1.0, 1.3, 1.9]], requires_grad=True)
    points = torch.stack([angles.cos(), angles.sin()], dim=2)

    expected = []
    for turn, others in enumerate([(1, 2), (0, 2), (0, 1)]):
        means = [sum(points[group, i] for i in others) / 2 for group in (0, 1)]
        for group in (0, 1):
            close = [
                7 * (points[group, turn] @ mean) / mean.norm() / mean.norm().detach() ** 0.5
                for mean in means
            ]
            expected.append(torch.stack(close).logsumexp(dim=0) - close[group])

    loss = left_out_loss(torch.tensor(7.0), 5 * points, 0.5)  # features may have any length
    torch.testing.assert_close(loss, torch.stack(expected).mean())

    # A class gains nothing by being spread out: the length of its mean is a given to the gradient.
    pulls = (
        torch.autograd.grad(of, angles, retain_graph=True)[0]
        for of in (loss, torch.stack(expected).mean())
    )
    torch.testing.assert_close(*pulls)


def test_a_task_is_learned_from_single_images_and_from_means(glyphs):
    batch = next(
        cfsl.Tasks(
            glyphs, TaskSpec.few_shot(n_way=4, k_target=3), split="train", numbers=range(2)
        ).batches(2)
    )

    learner = Champion(net=TINY)
    meta = learner.init((1, 28, 28), generator())
    loss_of = partial(
        learner.episode_loss, meta["params"], meta["stats"], batch, moment=Moment(0, 1)
    )

    protonet = ProtoNet(net=TINY, metric="cosine")
    features, labels, _ = protonet.embedded_tasks(meta["params"], meta["stats"], batch)
    expected = [
        one_shot_loss(meta["params"]["scale"], grouped, "cosine") / 2
        + left_out_loss(meta["params"]["scale"], grouped, learner.length_power)
        for grouped in (grouped_by_class(*task) for task in zip(features, labels, strict=True))
    ]
    torch.testing.assert_close(loss_of(turns=True)[0], torch.stack(expected).mean())

    plain = learner.replace(learns_means=False)
    for turns in (True, False):
        by_protonet, _ = protonet.episode_loss(
            meta["params"], meta["stats"], batch, turns=turns, moment=Moment(0, 1)
        )
        found, _ = plain.episode_loss(
            meta["params"], meta["stats"], batch, turns=turns, moment=Moment(0, 1)
        )
        assert torch.equal(found, by_protonet)
    assert torch.equal(loss_of(turns=False)[0], by_protonet)


def test_a_mirrored_image_is_the_image_or_its_mirror_image():
    images = torch.rand(40, 3, 9, 9, generator=generator())
    seen = augment(
        images, torch.zeros(40, dtype=torch.int64), Augmentation(mirror=True), generator()
    )
    same = torch.isclose(seen, images, atol=1e-5).flatten(1).all(dim=1)
    mirrored = torch.isclose(seen, images.flip(3), atol=1e-5).flatten(1).all(dim=1)
    assert (same | mirrored).all()
    assert 5 < same.sum() < 35


def test_classes_are_reflected_as_a_whole():
    images, classes = torch.rand(60, 1, 5, 5, generator=generator()), torch.arange(60) // 3
    seen = augment(images, classes, Augmentation(reflections=True), generator())
    same = (seen == images).flatten(1).all(dim=1)
    assert ((seen == images.flip(3)).flatten(1).all(dim=1) | same).all()
    assert all(len(set(same[classes == c].tolist())) == 1 for c in range(20))
    assert 2 < sum(same[::3]) < 18


@settings(max_examples=20)
@given(crop=st.floats(0.1, 0.9), seed=st.integers(0, 1000))
def test_a_crop_shows_a_window_inside_the_image(crop, seed):
    """Of an image whose values are its coordinates, the corners of what is seen tell the window."""
    ramp = torch.linspace(-1 + 1 / 32, 1 - 1 / 32, 32)
    image = torch.stack([ramp.expand(32, 32), ramp[:, None].expand(32, 32)]).expand(64, 2, 32, 32)
    seen = augment(
        image, torch.zeros(64, dtype=torch.int64), Augmentation(crop=crop), generator(seed)
    )

    assert seen.shape == image.shape

    width = (seen[:, 0, 0, -1] - seen[:, 0, 0, 0]) / 1.9375
    height = (seen[:, 1, -1, 0] - seen[:, 1, 0, 0]) / 1.9375

    assert seen.abs().max() <= 1
    assert (width * height).min() > (1 - crop) * 0.7
    assert (width * height).mean() < 1
    assert (
        width / height
    ).max() < 1.4  # 4/3; windows at the border are seen up to half a pixel smaller


def test_images_can_be_brought_to_another_size():
    images = torch.rand(4, 3, 16, 16, generator=generator())
    seen = augment(images, torch.zeros(4, dtype=torch.int64), Augmentation(side=8), generator())
    assert seen.shape == (4, 3, 8, 8)
    flat = augment(
        torch.full((2, 3, 16, 16), 0.3),
        torch.zeros(2, dtype=torch.int64),
        Augmentation(side=8),
        generator(),
    )
    torch.testing.assert_close(flat, torch.full((2, 3, 8, 8), 0.3))


def test_a_blend_is_two_images_in_the_share_that_it_says():
    images = torch.rand(16, 3, 4, 4, generator=generator())
    blends = [blended(images, Augmentation(blends=0.5), generator(seed)) for seed in range(200)]

    alone = [blend for blend in blends if blend[2] == 1]
    assert 70 < len(alone) < 130
    assert all(torch.equal(seen, images) for seen, _, _ in alone)

    shares = []
    for seen, others, share in blends:
        torch.testing.assert_close(seen, share * images + (1 - share) * images[others])
        assert sorted(others.tolist()) == list(range(16))
        shares.append(share)
    assert np.mean([share for share in shares if share < 1]) == pytest.approx(0.5, abs=0.1)


def test_without_blends_nothing_is_drawn():
    """Whoever does not ask for blends trains with the same bits as before there were any."""
    drawn = generator(3)
    before = drawn.get_state()
    seen, _, share = blended(torch.ones(4, 1, 2, 2), Augmentation(), drawn)
    assert share == 1
    assert torch.equal(seen, torch.ones(4, 1, 2, 2))
    assert torch.equal(before, drawn.get_state())


def test_the_loss_of_a_blend_is_shared_by_both_classes(photos):
    """The loss is linear in the targets: the share says where it lies between both losses."""
    learner = Champion(photo_net=TINY_PHOTOS, knows_copies=False)
    recipe = recipe_for("short", "champion", TaskSpec.type_b(nss=2, n_way=1), characters=False)
    training = recipe.replace(
        augmentation=Augmentation(blends=1.0),
        schedule=recipe.schedule.replace(batch=12, epochs=1, updates=1),
    )

    objective = objective_of(learner, training, photos)
    meta = objective.init(generator())
    loss, _ = objective.loss(meta["params"], meta["stats"], 0)

    drawn = generator_of_update(training, "batch", 0)
    tasks = cfsl.Tasks(photos, training.episodes, split="train", seed=training.seed)
    chosen = torch.randint(int(tasks.class_sizes.sum()), (12,), generator=drawn)
    labels = torch.from_numpy(np.repeat(np.arange(len(tasks.class_sizes)), tasks.class_sizes))[
        chosen
    ]
    images = torch.from_numpy(tasks.images.normalised(chosen.numpy().astype(np.int32)))

    seen, others, share = blended(images, training.augmentation, drawn)
    features, _ = TINY_PHOTOS.training_features(meta["params"], meta["stats"], seen)
    first, second = (
        learner.classifier_loss(meta["params"], features, of) for of in (labels, labels[others])
    )

    torch.testing.assert_close(loss, share * first + (1 - share) * second)
    assert abs(float(first - second)) > 1e-3


def test_blends_are_refused_outside_pretraining():
    episodes = recipe_for("short", "champion", TaskSpec.type_b(nss=3))
    with pytest.raises(SpecError, match=r"blends=0.5 is for pretraining"):
        episodes.replace(augmentation=Augmentation(blends=0.5))


def test_colour_changes_brightness_contrast_and_saturation_and_nothing_else():
    images = torch.rand(8, 3, 6, 6, generator=generator())
    seen = augment(images, torch.zeros(8, dtype=torch.int64), Augmentation(colour=0.4), generator())
    grey_before, grey_after = images.mean(dim=1), seen.mean(dim=1)
    order = grey_before.flatten(1).argsort(dim=1)
    assert torch.equal(order, grey_after.flatten(1).argsort(dim=1))
    ratio = (seen - seen.mean(dim=1, keepdim=True)) / (images - images.mean(dim=1, keepdim=True))
    assert (ratio.flatten(1).std(dim=1) < 1e-2).all()
    assert not torch.allclose(seen, images)


def test_characters_that_are_not_square_are_turned_by_halves():
    images = torch.rand(6, 1, 12, 20, generator=generator())
    learner = Champion(net=SmallResNet(widths=(4, 8), embedding=None), knows_copies=False)
    meta = learner.init((1, 12, 20), generator())
    assert learner.embed(meta, images).shape == (6, 4 * 8)
    turned = augment(images, torch.arange(6), Augmentation(quarter_turns=True), generator())
    assert turned.shape == images.shape
    assert all(
        torch.equal(a, b) or torch.equal(a, b.flip(1, 2))
        for a, b in zip(turned, images, strict=True)
    )
