"""Glyphs: the same pixels for ever, whatever else is drawn, and about as hard as Omniglot."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from cfsl.data.catalog import glyphs_counts, is_glyphs, load
from cfsl.data.glyphs import SIZE, class_name, draw_glyphs
from cfsl.data.splits import cut_like_omniglot
from cfsl.data.tasks import Tasks
from cfsl.errors import DataError
from cfsl.spec import TaskSpec

_GOLDEN = "94824d50bdea7b1de0094d861d87c9845fc4858ca5fc85f243e84a312778b159"
_MOST_CLASSES = 250_000


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """150 classes x 12: more than one block of images."""
    return draw_glyphs(range(150), 12).reshape(150, 12, SIZE, SIZE)


def test_pixels_never_change():
    assert hashlib.sha256(draw_glyphs(range(10), 20).tobytes()).hexdigest() == _GOLDEN


@pytest.mark.parametrize(
    ("classes", "samples"),
    [
        (range(150), 1),
        (range(150), 5),
        (range(140), 12),  # the blocks end elsewhere
        (range(133, 150), 12),
        (range(3, 150, 7), 12),
        (range(149, 100, -3), 4),
        (range(137, 138), 12),
        (range(148, 149), 3),
    ],
)
def test_an_image_does_not_depend_on_what_else_is_drawn(drawn, classes, samples):
    images = draw_glyphs(classes, samples).reshape(len(classes), samples, SIZE, SIZE)
    assert np.array_equal(images, drawn[list(classes), :samples])


def test_nothing_asked_nothing_drawn():
    assert draw_glyphs(range(0), 20).shape == (0, SIZE, SIZE)
    assert draw_glyphs(range(5), 0).shape == (0, SIZE, SIZE)


def test_the_last_class_can_be_drawn():
    assert draw_glyphs(range(_MOST_CLASSES - 1, _MOST_CLASSES), 2).min() == 0


def test_every_image_has_ink_and_a_margin(drawn):
    images = drawn.reshape(-1, SIZE, SIZE)
    assert np.all(images.min(axis=(1, 2)) == 0), "some pixel is fully inked"
    inside = np.zeros((SIZE, SIZE), bool)
    inside[1:-1, 1:-1] = True
    assert np.all(images[:, ~inside] == 255), "the outermost ring is paper"
    assert images[:, inside].min() == 0
    inked = np.count_nonzero(images < 128, axis=(1, 2)) / SIZE**2
    assert inked.min() > 0.01 and inked.max() < 0.4


def test_all_images_differ(drawn):
    assert len({image.tobytes() for image in drawn.reshape(-1, SIZE, SIZE)}) == 150 * 12


def test_class_names_are_unique_and_sort_as_numbers_do():
    names = [class_name(number) for number in [*range(20_000), _MOST_CLASSES - 1]]
    assert all(a < b for a, b in itertools.pairwise(names))


def test_counts_of_an_alphabet():
    alphabets = [class_name(number).split("/")[0] for number in range(2_000)]
    sizes = [len(list(run)) for _, run in itertools.groupby(alphabets)][:-1]
    assert set(sizes) == {22, 24, 26, 28, 30, 34, 41, 45}


def test_default_size_is_omniglots_and_so_is_its_split():
    assert glyphs_counts("glyphs") == (1623, 20)
    names = [class_name(number) for number in range(1623)]
    split = cut_like_omniglot(names)
    assert {part: len(classes) for part, classes in split.items()} == {
        "train": 1200,
        "val": 211,
        "test": 212,
    }
    assert [*split["train"], *split["val"], *split["test"]] == names


def test_stored_images_are_the_drawn_ones(glyphs):
    assert glyphs.info.class_names == tuple(class_name(number) for number in range(400))
    assert glyphs.class_sizes.tolist() == [20] * 400
    wanted = draw_glyphs(range(60, 70), 20)
    assert np.array_equal(glyphs.pixels[1200:1400, 0], wanted)
    assert glyphs.image_names[1200:1220] == tuple(f"{sample:03d}" for sample in range(20))


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("glyphs-10000x20", (10_000, 20)),
        ("glyphs-1x1", (1, 1)),
        ("glyphs-250000x1000", (250_000, 1_000)),
    ],
)
def test_names_give_counts(name, counts):
    assert is_glyphs(name)
    assert glyphs_counts(name) == counts


@pytest.mark.parametrize(
    "name", ["glyphs-0x20", "glyphs-20x0", "glyphs-250001x20", "glyphs-20x1001", "glyphs-9999999x9"]
)
def test_absurd_counts_are_refused(name):
    with pytest.raises(
        DataError, match=r"from 1 to 250,000 classes of 1 to 1,000 samples, not [\d,]+ of [\d,]+"
    ):
        load(name)


@pytest.mark.parametrize(
    "name", ["glyphs-", "glyphs-20", "glyphs-20x", "glyphs-x20", "glyphs--5x20", "glyphs-5x20x3"]
)
def test_names_that_only_look_like_glyphs_are_not_drawn(name):
    assert not is_glyphs(name)
    with pytest.raises(DataError, match=f"data set '{name}' is not here"):
        load(name)


def test_about_as_hard_as_handwriting(glyphs):
    assert 0.50 < _nearest_mean_accuracy(glyphs) < 0.65


def test_as_hard_as_omniglot(omniglot):
    real, drawn = _nearest_mean_accuracy(omniglot), _nearest_mean_accuracy(load("glyphs"))
    assert 0.50 < real < 0.65 and 0.50 < drawn < 0.65
    assert abs(real - drawn) < 0.05


def _nearest_mean_accuracy(data, tasks: int = 600) -> float:
    """Score nearest class mean on blurred pixels, 5-way 1-shot, 5 targets a class."""
    right = []
    for batch in Tasks(data, TaskSpec.few_shot(), split="all", numbers=range(tasks)).batches(100):
        shown = _blurred(batch.support_images[:, 0].numpy())
        asked = _blurred(batch.target_images.numpy())
        distance = np.linalg.norm(asked[:, :, None] - shown[:, None], axis=-1)
        answer = np.take_along_axis(
            batch.support_labels[:, 0].numpy(), distance.argmin(axis=2), axis=1
        )
        right.append(answer == batch.target_labels.numpy())
    return float(np.concatenate(right).mean())


def _blurred(images: np.ndarray, sigma: float = 1.05) -> np.ndarray:
    """Blur by a Gaussian, as a matrix over rows and one over columns; return flat images."""
    place = np.arange(images.shape[-1])
    kernel = np.exp(-((place[:, None] - place) ** 2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum(axis=1).max()).astype(np.float32)
    blurred = kernel @ (1 - images) @ kernel.T  # paper is 0, so there is no edge to mind
    return blurred.reshape(*images.shape[:2], -1)
