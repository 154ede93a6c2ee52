"""Pictures of tasks: every image is there, in order, in a frame of its label's colour."""

from __future__ import annotations

import contextlib
import io
import itertools
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfsl.data.catalog import AddRequest, add_dataset, load
from cfsl.data.tasks import Tasks
from cfsl.report.draw_task import describe_spec, draw_task
from cfsl.report.palette import label_colours, text_colour_on, wrapped
from cfsl.spec import Noise, Occlusion, TaskSpec
from report_cards import cards_of, written

_SPECS = {
    "A": TaskSpec.type_a(nss=3),
    "A10": TaskSpec.type_a(nss=10),
    "B": TaskSpec.type_b(nss=3),
    "B10": TaskSpec.type_b(nss=10),
    "C": TaskSpec.type_c(nss=3),
    "D": TaskSpec.type_d(nss=4, cci=2),
    "D with a short last group": TaskSpec.type_d(nss=5, cci=2, n_way=3),
    "D-overwrite": TaskSpec.type_d(nss=4, cci=2, overwrite=True),
    "few-shot": TaskSpec.few_shot(),
    "several shots": TaskSpec.type_b(nss=2, k_shot=3, k_target=2),
    "per support set": TaskSpec.type_a(nss=2, k_target=2, target_rule="per_support_set"),
    "one of everything": TaskSpec.few_shot(n_way=1, k_target=1),
    "wide": TaskSpec.wide(),
    "deep": TaskSpec.deep(),
    "instance": TaskSpec.instance(),
    "instance, noise": TaskSpec.instance(corruption=Noise(fraction=0.4)),
    "instance, disc": TaskSpec.instance(corruption=Occlusion(fraction=0.3)),
    "instance, copies": TaskSpec.instance(nss=2, k_target=3, corruption=Noise(fraction=0.2)),
}


@pytest.mark.parametrize("spec", _SPECS.values(), ids=_SPECS)
def test_every_image_is_framed_in_its_label_colour_and_in_order(glyphs, spec):
    task = Tasks(glyphs, spec, numbers=range(7, 8))[0]
    some = (0, 7, 8, 25, 49) if spec.labels > 20 else None
    _check_frames(
        task, draw_task(task), [_bytes_of(image) for image in _all_images(task)], labels=some
    )


@pytest.mark.parametrize(
    "spec", [TaskSpec.deep(nss=80, n_way=5), TaskSpec.wide(n_way=100)], ids=["Deep 2", "Wide 2"]
)
def test_the_largest_tasks_of_paper_2_fit_and_can_be_read(glyphs, spec):
    task = Tasks(glyphs, spec, split="all")[0]
    picture = draw_task(task)
    assert max(picture.size) < 4000
    assert spec.labels == 200
    _check_frames(
        task,
        picture,
        [_bytes_of(image) for image in _all_images(task)],
        labels=(0, 7, 99, 100, 142, 199),
    )
    pixels = np.asarray(picture)
    for label in (100, 142, 199):
        _check_number_fits(pixels, label_colours(spec.labels)[label])


def _check_number_fits(pixels: np.ndarray, colour: tuple[int, int, int]) -> None:
    """Look at the strips above a label's two support images for a number, clear of the edges."""
    (_, size), places = _framed(pixels, colour, _zooms(28, 28))
    for y, x in places[:2]:
        strip = pixels[y - 13 : y - 3, x - 1 : x + size + 1]
        is_blank = (strip == colour).all(axis=-1)
        is_ink = (strip == text_colour_on(colour)).all(axis=-1)
        assert is_ink.sum() > 10
        assert is_blank[:, :2].all() and is_blank[:, -2:].all()


def test_a_huge_task_shows_the_first_targets_and_says_so(glyphs):
    task = Tasks(glyphs, TaskSpec.few_shot(n_way=400, k_target=15), split="all")[0]
    picture = draw_task(task)
    assert max(picture.size) < 4000
    _, places = _framed(np.asarray(picture), label_colours(1)[0], _zooms(28, 28))
    # 400 labels and 256 colours: label 256 looks like label 0 but for its number.
    assert 2 * 2 <= len(places) < 2 * (1 + 15)


@pytest.fixture(scope="module")
def colourful(tmp_path_factory):
    """Twenty classes of ten random RGB images, wider than high, normalised as SlimageNet64 is."""
    path = tmp_path_factory.mktemp("colourful") / "colourful.npz"
    images = np.random.default_rng(3).integers(0, 256, (200, 30, 40, 3), np.uint8)
    np.savez(path, images=images, labels=np.repeat(np.arange(20), 10))
    return add_dataset(AddRequest(name="colourful", source=path))


def test_normalised_rgb_comes_out_with_the_original_pixels(colourful):
    recipe = colourful.info.recipe.replace(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    normalised = type(colourful)(
        colourful.info.replace(recipe=recipe),
        colourful.pixels,
        colourful.splits,
        colourful.splits_name,
        colourful.folder,
    )
    tasks = Tasks(normalised, TaskSpec.type_a(nss=2, k_target=2), split="all")
    task, plan = tasks[0], tasks.plan().task(0)
    assert float(task.target.images.min()) < -1.5, "it was normalised"
    rows = np.concatenate([plan.support_images.ravel(), plan.target_images.ravel()])
    _check_frames(task, draw_task(task), [colourful.pixels[row] for row in rows])


def test_large_images_are_shrunk(tmp_path):
    images = np.full((12, 300, 300, 1), 255, np.uint8)
    np.savez(tmp_path / "large.npz", images=images, labels=np.repeat(np.arange(2), 6))
    data = add_dataset(AddRequest(name="large", source=tmp_path / "large.npz"))
    picture = draw_task(Tasks(data, TaskSpec.few_shot(n_way=2), split="all")[0])
    assert max(picture.size) < 2000
    shrunk = [(-(-300 // divisor),) * 2 for divisor in range(2, 13)]
    assert len(_framed(np.asarray(picture), label_colours(1)[0], shrunk)[1]) == 6


def test_the_same_task_gives_the_same_bytes(glyphs):
    def png(number: int) -> bytes:
        out = io.BytesIO()
        draw_task(Tasks(load("glyphs-400x20"), _SPECS["D"])[number], title="t").save(out, "PNG")
        return out.getvalue()

    assert png(5) == png(5)
    assert png(5) != png(6)


@pytest.mark.parametrize("ending", ["png", "pdf", "JPG"])
def test_a_task_that_does_not_fit_the_disk_leaves_the_old_picture_whole(run, glyphs, ending):
    _require_whole(run, f"t.{ending}", "tasks", "show", "--data", "glyphs-400x20")


@pytest.mark.parametrize("ending", ["svg", "PDF"])
def test_a_figure_that_does_not_fit_the_disk_leaves_the_old_one_whole(run, tmp_path, ending):
    for one in cards_of("figure4", ["protonet", "maml_low"], data="glyphs-3200x2"):
        written(tmp_path / "cards", one)
    _require_whole(run, f"f.{ending}", "figure", "figure4", "cards")


@contextlib.contextmanager
def _disk_of_a_kilobyte():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _require_whole(run, name, *words):
    """Write a picture, then again on a full disk: one line is said, the first picture stays."""
    assert run(*words, "--out", name).code == 0
    before, files = Path(name).read_bytes(), sorted(Path.cwd().iterdir())
    assert len(before) > 1000
    with _disk_of_a_kilobyte():
        done = run(*words, "--out", name)
    assert (
        done.code == 2
        and f"{name} cannot be written: File too large" in done.err
        and done.err.count("\n") == 1
    )
    assert Path(name).read_bytes() == before and sorted(Path.cwd().iterdir()) == files


def test_a_pdf_of_a_task_is_titled_by_its_own_name(run, glyphs):
    assert run("tasks", "show", "--data", "glyphs-400x20", "--out", "mine.pdf").code == 0
    assert "mine".encode("utf-16-be") in Path("mine.pdf").read_bytes()
    assert ".part".encode("utf-16-be") not in Path("mine.pdf").read_bytes()


def test_names_in_the_title_are_drawn_not_obeyed(glyphs):
    task = Tasks(glyphs, _SPECS["few-shot"])[0]
    plain, odd = (
        draw_task(task, title="x"),
        draw_task(task, title="[bold]\u00e9\n<script>\u2192 " + "long " * 60),
    )
    assert odd.width == plain.width and odd.height > plain.height, "a long heading is wrapped"


def test_colours_of_labels_stay_when_labels_are_added():
    table = label_colours(256)
    assert len(set(table)) == 256
    assert all(label_colours(labels) == table[:labels] for labels in (1, 5, 8, 9, 50, 200))
    assert label_colours(300)[256:] == table[:44], "then they repeat, and the number tells"
    assert (255, 255, 255) not in table


def test_wrapped_text_keeps_every_word():
    text = "one two three four five " * 8 + "averyveryverylongwordthatfitsnowhere"
    lines = wrapped(text, 20, 300)
    assert " ".join(lines).split() == text.split()
    assert len(lines) > 3


def test_descriptions_say_what_changes():
    assert describe_spec(_SPECS["C"]) == (
        "type C, 3 support sets of 5 classes x 1 image, new classes every set, labels overwritten"
    )
    assert describe_spec(_SPECS["instance"]) == (
        "instance, 4 support sets of 1 class x 5 images, same class throughout"
    )
    assert (
        describe_spec(_SPECS["one of everything"]) == "few-shot, 1 support set of 1 class x 1 image"
    )
    assert len({describe_spec(spec) for spec in _SPECS.values()}) > 10


def test_the_caption_says_what_is_shown_and_how_much_is_covered(glyphs, monkeypatch):
    captions = []

    def draw_panels(panels, *, caption, **_):
        captions.append(caption)
        return Image.new("RGB", (1, 1))

    monkeypatch.setattr("cfsl.report.draw_task.draw_panels", draw_panels)
    for name in ("D", "few-shot", "instance, noise", "instance, disc"):
        draw_task(Tasks(glyphs, _SPECS[name])[0])
    sets = "Support sets S1 to S4 in order, then the target set T: "
    again = "20 labels, 20 targets, the same images again, each to be told from all others. "
    assert captions == [
        f"{sets}10 labels, 50 targets.",
        "Support set S1, then the target set T: 5 labels, 25 targets.",
        f"{sets}{again}Noise replaces 39.9 % of each target's values.",
        f"{sets}{again}A disc covers 25.1 % of a target on average.",
    ]


def _all_images(task) -> Iterator[np.ndarray]:
    """Yield support images in order of time, then targets, in [0, 1]."""
    for support in task.support_sets:
        yield from support.images.numpy()
    yield from task.target.images.numpy()


def _bytes_of(image: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(image * 255), 0, 255).astype(np.uint8)


def _check_frames(
    task, picture: Image.Image, images: list[np.ndarray], labels: tuple[int, ...] | None = None
) -> None:
    """Find every image of each label in a frame of its colour: support sets, then targets."""
    pixels, colours = np.asarray(picture), label_colours(task.spec.labels)
    assert {rgb for _, rgb in picture.getcolors(1 << 24)} >= set(colours)
    supports = np.concatenate([support.labels.numpy() for support in task.support_sets])
    of_image = np.concatenate([supports, task.target.labels.numpy()])
    height, width = images[0].shape[1:]
    sizes = _zooms(height, width)
    for label in range(task.spec.labels) if labels is None else labels:
        size, places = _framed(pixels, colours[label], sizes)
        sizes, zoom = [size], size[1] // width
        found = [pixels[y : y + size[0] : zoom, x : x + size[1] : zoom] for y, x in places]
        wanted = [
            np.broadcast_to(np.moveaxis(images[i], 0, -1), (height, width, 3))
            for i in _where(of_image, label)
        ]
        assert len(found) == len(wanted), f"label {label}"
        shown = int((supports == label).sum())
        assert all(
            itertools.starmap(np.array_equal, zip(found[:shown], wanted[:shown], strict=True))
        )
        assert sorted(i.tobytes() for i in found[shown:]) == sorted(
            i.tobytes() for i in wanted[shown:]
        )


def _where(labels: np.ndarray, label: int) -> list[int]:
    return np.flatnonzero(labels == label).tolist()


def _zooms(height: int, width: int) -> list[tuple[int, int]]:
    return [(zoom * height, zoom * width) for zoom in (4, 3, 2, 1)]


def _framed(
    pixels: np.ndarray, colour: tuple[int, int, int], sizes: list[tuple[int, int]]
) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Return the size of shown images, and the corners of all in a frame of a colour, by rows."""
    is_colour = (
        (pixels[..., 0] == colour[0])
        & (pixels[..., 1] == colour[1])
        & (pixels[..., 2] == colour[2])
    )
    rows, columns = np.flatnonzero(is_colour.any(axis=1)), np.flatnonzero(is_colour.any(axis=0))
    top, left = rows[0], columns[0]
    part = is_colour[top : rows[-1] + 1, left : columns[-1] + 1]
    total = np.pad(part.cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32), ((1, 0), (1, 0)))
    for high, wide in sizes:
        outer = _sums(total, high + 2, wide + 2)
        inner = _sums(total, high, wide)[1:-1, 1:-1]
        corners = np.argwhere(outer - inner == 2 * (high + wide) + 4)
        if len(corners):
            return (high, wide), [(int(y + top) + 1, int(x + left) + 1) for y, x in corners]
    return sizes[0], []


def _sums(total: np.ndarray, high: int, wide: int) -> np.ndarray:
    """Return the sum over every window of this size."""
    return total[high:, wide:] - total[:-high, wide:] - total[high:, :-wide] + total[:-high, :-wide]
