"""Rules 20-22 of docs/SPEC.md: what happens to target images."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfsl.corrupt import corrupt
from cfsl.data.tasks import Tasks
from cfsl.sampling.philox import Stream
from cfsl.spec import Noise, Occlusion, TaskSpec
from strategies import corruptions

STREAM = Stream.named("test")
GOLDEN = {"noise": "e4a5af82a0ca2f0b", "disc": "0276e92698ecd368", "square": "666ad6bf3176c35f"}


def blank(n: int = 40, channels: int = 1, side: int = 28, value: float = 0.5) -> np.ndarray:
    return np.full((n, channels, side, side), value, np.float32)


@given(corruptions, st.integers(0, 2**40), st.sampled_from([(1, 28), (3, 16)]))
def test_rule_20_the_covered_fraction_is_what_was_truly_replaced(corruption, task, shape):
    images = np.full((3, shape[0], shape[1], shape[1]), -1, np.float32)
    corrupted, covered = corrupt(images, corruption, stream=STREAM, task=task)
    changed = (corrupted != -1).reshape(3, -1).mean(axis=1)
    assert covered == pytest.approx(changed, abs=1e-6)
    replaced = corrupted[corrupted != -1]
    assert ((replaced >= 0) & (replaced <= 1)).all()


@given(corruptions)
def test_rule_20_corruption_leaves_its_input_alone_and_repeats_itself(corruption):
    images = blank(4)
    once, _ = corrupt(images, corruption, stream=STREAM, task=3)
    twice, _ = corrupt(images, corruption, stream=STREAM, task=3)
    assert np.array_equal(once, twice) and (images == 0.5).all()


def test_rule_20_targets_and_tasks_differ_in_where_they_are_hit():
    images = blank(20)
    a, _ = corrupt(images, Noise(fraction=0.2), stream=STREAM, task=1)
    b, _ = corrupt(images, Noise(fraction=0.2), stream=STREAM, task=2)
    assert not np.array_equal(a, b) and not np.array_equal(a[0], a[1])
    few, _ = corrupt(images[:5], Noise(fraction=0.2), stream=STREAM, task=1)
    assert np.array_equal(few, a[:5])


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.2, 0.4, 1.0])
def test_rule_21_noise_replaces_exactly_floor_of_all_values(fraction):
    corrupted, _ = corrupt(blank(10, 3, 16, -1.0), Noise(fraction=fraction), stream=STREAM, task=0)
    assert ((corrupted >= 0).reshape(10, -1).sum(axis=1) == int(fraction * 3 * 16 * 16)).all()


def test_rule_21_noise_is_uniform_and_channels_have_their_own():
    corrupted, _ = corrupt(blank(40, 3, 16, -1.0), Noise(fraction=0.4), stream=STREAM, task=0)
    hit = corrupted >= 0
    assert abs(float(corrupted[hit].mean()) - 0.5) < 0.01
    assert not np.array_equal(hit[:, 0], hit[:, 1])
    places = hit.mean(axis=(0, 1))
    assert places.min() > 0.2 and places.max() < 0.6


def test_rule_20_more_noise_covers_what_less_noise_covers():
    little, _ = corrupt(blank(5, 1, 28, -1.0), Noise(fraction=0.1), stream=STREAM, task=0)
    much, _ = corrupt(blank(5, 1, 28, -1.0), Noise(fraction=0.4), stream=STREAM, task=0)
    assert np.array_equal(much[little >= 0], little[little >= 0])


@pytest.mark.parametrize(
    ("fraction", "percent"), [(0.05, 0.6), (0.1, 1.7), (0.2, 10.3), (0.3, 25.1)]
)
def test_rule_22_discs_cover_what_was_measured_on_28_x_28(fraction, percent):
    _, covered = corrupt(blank(), Occlusion(fraction=fraction), stream=STREAM, task=0)
    assert covered == pytest.approx(percent / 100, abs=0.001)


def test_rule_22_a_disc_by_hand():
    corrupted, _ = corrupt(blank(1, 1, 10), Occlusion(fraction=0.2), stream=STREAM, task=0)
    rows, columns = np.nonzero(corrupted[0, 0] == 0)
    centre = (rows.min() + 2, columns.min() + 2)
    distances = np.hypot(*(np.indices((10, 10)) - np.array(centre)[:, None, None]))
    assert np.array_equal(corrupted[0, 0] == 0, distances <= 2)


def test_rule_22_a_square_of_another_value():
    corrupted, covered = corrupt(
        blank(20, 3, 20), Occlusion(fraction=0.2, shape="square", value=1.0), stream=STREAM, task=0
    )
    assert covered == pytest.approx(81 / 400)
    assert (corrupted == 1).any(axis=1).sum() == 20 * 81
    assert np.array_equal(corrupted[:, 0], corrupted[:, 2])


def test_rule_22_discs_land_everywhere_that_keeps_them_inside():
    corrupted, _ = corrupt(blank(3000, 1, 12), Occlusion(fraction=0.2), stream=STREAM, task=0)
    centres = {
        (int(y.min()) + 2, int(x.min()) + 2)
        for y, x in (np.nonzero(image[0] == 0) for image in corrupted)
    }
    assert centres == {(y, x) for y in range(2, 10) for x in range(2, 10)}


@pytest.mark.parametrize("fraction", [0.5, 0.6, 0.9, 1.0])
def test_rule_22_a_disc_larger_than_the_image_stays_on_it(fraction):
    _, covered = corrupt(blank(200, 3, 64), Occlusion(fraction=fraction), stream=STREAM, task=0)
    assert covered.min() > 0.3 and covered.max() <= 1


def test_rule_20_supports_stay_clean_and_targets_are_the_supports_corrupted(glyphs):
    clean = Tasks(glyphs, TaskSpec.instance(nss=4, k_shot=5))[3]
    noisy = Tasks(glyphs, TaskSpec.instance(nss=4, k_shot=5, corruption=Noise(fraction=0.3)))[3]
    for a, b in zip(clean.support_sets, noisy.support_sets, strict=True):
        assert a.images.equal(b.images) and a.labels.equal(b.labels)
    assert noisy.target.labels.equal(clean.target.labels)
    changed = (noisy.target.images != clean.target.images).float().mean(dim=(1, 2, 3))
    assert (changed <= noisy.target.covered + 1e-6).all() and (changed > 0.25).all()
    assert clean.target.covered.eq(0).all()


def test_rules_20_21_22_golden_pixels_never_change():
    ramp = np.linspace(0, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)
    digests = {
        name: hashlib.sha256(corrupt(ramp, c, stream=STREAM, task=5)[0].tobytes()).hexdigest()[:16]
        for name, c in {
            "noise": Noise(fraction=0.3),
            "disc": Occlusion(fraction=0.3),
            "square": Occlusion(fraction=0.2, shape="square", value=0.5),
        }.items()
    }
    assert digests == GOLDEN


def test_rule_21_fractions_are_taken_as_they_are_written():
    corrupted, _ = corrupt(blank(1, 1, 10, -1.0), Noise(fraction=0.29), stream=STREAM, task=0)
    assert int((corrupted >= 0).sum()) == 29
