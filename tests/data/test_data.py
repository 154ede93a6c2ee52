"""What an import promises: the right pixels under the right classes, the same for everybody."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from archives import (
    add,
    class_files,
    content_of,
    encoded,
    image,
    part_files,
    png,
    write_any,
    write_folder,
    write_zip,
)
from cfsl.data import omniglot as omniglot_module
from cfsl.data import slimagenet64
from cfsl.data.catalog import REFERENCE_FINGERPRINTS, AddRequest, add_dataset, load
from cfsl.data.recipe import Recipe
from cfsl.data.splits import cut_like_omniglot, shuffled_split, splits_hash
from cfsl.data.store import DatasetInfo, hash_pixels, installed, open_dataset
from cfsl.data.summary import summarise
from cfsl.errors import DataError, ImageError

ENDINGS = ["", ".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz"]
EIGHT = Recipe(height=8, width=8, channels=3)


def as_stored(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("RGB")).transpose(2, 0, 1)


# Sources


def test_a_folder_with_classes_of_unequal_sizes_keeps_every_image_under_its_class(tmp_path):
    data = add(write_folder(tmp_path / "photos", class_files()), tmp_path / "root")
    assert data.info.class_names == ("ant", "bee", "cat", "dog")
    assert data.info.class_sizes == (2, 3, 2, 4)
    assert data.class_starts.tolist() == [0, 2, 5, 7]
    assert data.image_names == (
        "0.png",
        "1.png",
        "0.png",
        "1.png",
        "2.png",
        "0.png",
        "1.png",
        *(f"{n}.png" for n in range(4)),
    )
    assert all(np.array_equal(data.pixels[n], as_stored(image(n))) for n in range(11))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("top", ["", "photos/", "./", "./photos/"])
def test_split_folders_give_the_split_in_every_kind_of_archive_with_and_without_a_top_folder(
    tmp_path, ending, top
):
    data = add(write_any(tmp_path / f"source{ending}", part_files(top)), tmp_path / "root")
    assert data.splits_name == "folders"
    assert data.splits == {"train": ["ant", "dog"], "val": ["bee"], "test": ["cat"]}
    assert all(np.array_equal(data.pixels[n], as_stored(image(n))) for n in range(11))


def test_hidden_files_and_what_macos_adds_are_passed_over(tmp_path):
    clean = add(write_folder(tmp_path / "clean", class_files()), tmp_path / "root", name="clean")
    hidden = (".DS_Store", "ant/.DS_Store", "ant/.hidden.png", ".git/config/x.png")
    others = ("__MACOSX/ant/._0.png", "README.txt", "bee/notes.csv", "Thumbs.db")
    litter = dict.fromkeys(hidden + others, b"x")
    for ending in ("", ".zip", ".tar"):
        source = write_any(tmp_path / f"littered{ending}", {**litter, **class_files()})
        assert (
            add(source, tmp_path / "root", name=f"littered{ending}").fingerprint
            == clean.fingerprint
        )


def test_a_pipe_with_the_name_of_an_image_is_passed_over(tmp_path):
    source = write_folder(tmp_path / "photos", class_files())
    os.mkfifo(source / "ant" / "pipe.png")
    assert add(source, tmp_path / "root").info.class_sizes == (2, 3, 2, 4)


def test_the_order_of_files_and_the_kind_of_archive_do_not_change_the_fingerprint(tmp_path):
    files = class_files()
    backwards = dict(reversed(files.items()))
    sources = [
        write_folder(tmp_path / "a", files),
        write_folder(tmp_path / "b", backwards),
        write_zip(tmp_path / "a.zip", files),
        write_zip(tmp_path / "b.zip", backwards),
        write_any(tmp_path / "b.tar.bz2", backwards),
    ]
    added = [add(source, tmp_path / "root", name=f"set{n}") for n, source in enumerate(sources)]
    assert len({data.fingerprint for data in added}) == 1
    assert len({data.image_names for data in added}) == 1
    assert len({splits_hash(data.splits) for data in added}) == 1


@pytest.mark.parametrize("change", [{"size": 7}, {"channels": 1}, {"fit": "stretch"}])
def test_another_recipe_gives_another_fingerprint(tmp_path, change):
    source = write_folder(tmp_path / "photos", class_files())
    plain = add(source, tmp_path / "root")
    assert (
        add(source, tmp_path / "root", save_as="other", **change).fingerprint != plain.fingerprint
    )


@pytest.mark.parametrize("change", ["pixel", "class name", "one image less"])
def test_other_data_gives_another_fingerprint(tmp_path, change):
    files = class_files()
    plain = add(write_folder(tmp_path / "a", files), tmp_path / "root")
    if change == "pixel":
        files["ant/0.png"] = png(99)
    elif change == "class name":
        files = {name.replace("dog", "eel"): content for name, content in files.items()}
    else:
        del files["dog/3.png"]
    assert (
        add(write_folder(tmp_path / "b", files), tmp_path / "root", name="b").fingerprint
        != plain.fingerprint
    )


def test_adding_the_same_again_changes_nothing(tmp_path):
    source = write_folder(tmp_path / "photos", class_files())
    first = add(source, tmp_path / "root")
    before = content_of(tmp_path / "root")
    assert add(source, tmp_path / "root").folder == first.folder
    assert content_of(tmp_path / "root") == before


def test_replace_puts_the_new_data_set_in_the_place_of_the_old_one(tmp_path):
    root = tmp_path / "root"
    old = add(write_folder(tmp_path / "a", class_files()), root)
    new = add(write_folder(tmp_path / "b", class_files({"eel": 2, "fox": 2})), root, replace=True)
    assert open_dataset("mine", root=root).info.class_names == ("eel", "fox")
    assert new.fingerprint != old.fingerprint and not old.folder.exists()
    assert np.array_equal(old.pixels[0], as_stored(image(0))), "who has it open can go on reading"
    assert sorted(path.name for path in (root / "mine").iterdir()) == sorted(
        ["current", new.folder.name]
    )


def test_save_as_gives_another_name(tmp_path):
    data = add(
        write_folder(tmp_path / "photos", class_files()), tmp_path / "root", save_as="holiday-1.0_x"
    )
    assert data.name == "holiday-1.0_x" and installed(tmp_path / "root") == ["holiday-1.0_x"]


def test_the_root_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("CFSL_DATA", str(tmp_path / "deep" / "root"))
    add_dataset(AddRequest(name="mine", source=write_folder(tmp_path / "photos", class_files())))
    assert load("mine").pixels.shape == (11, 3, 64, 64)
    assert (tmp_path / "deep" / "root" / "mine" / "current").exists()


def test_the_progress_of_an_import_adds_up(tmp_path):
    counted = []
    add(
        write_folder(tmp_path / "photos", class_files()), tmp_path / "root", progress=counted.append
    )
    assert sum(counted) == 11


# Pixels


def test_grey_images_get_three_equal_channels():
    grey = image(1, mode="L")
    assert np.array_equal(EIGHT.decode(encoded(grey), "x"), np.stack([np.asarray(grey)] * 3))


def test_colour_becomes_grey_by_luminance():
    red = Image.new("RGB", (8, 8), (255, 0, 0))
    assert (EIGHT.replace(channels=1).decode(encoded(red), "x") == round(0.299 * 255)).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_parts_become_white(mode):
    black = Image.new(mode, (8, 8), (0, 0, 0, 255) if mode == "RGBA" else (0, 255))
    black.paste((9, 9, 9, 0) if mode == "RGBA" else (9, 0), (0, 0, 4, 8))
    pixels = EIGHT.decode(encoded(black), "x")
    assert (pixels[:, :, :4] == 255).all() and (pixels[:, :, 4:] == 0).all()


@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_palettes_are_looked_up_and_their_transparent_colour_is_white(form):
    picture = Image.new("P", (8, 8), 1)
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.paste(0, (0, 0, 4, 8))
    stream = io.BytesIO()
    picture.save(stream, form, transparency=0)
    pixels = EIGHT.decode(stream.getvalue(), "x")
    assert (pixels[:, 0, 0] == 255).all() and pixels[:, 0, 7].tolist() == [200, 100, 50]


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bit_images_keep_their_upper_byte(form):
    deep = np.random.default_rng(0).integers(0, 2**16, (8, 8), np.uint16)
    pixels = EIGHT.decode(encoded(Image.fromarray(deep), form), "x")
    assert np.array_equal(pixels[1], deep >> 8)


def test_a_cmyk_jpeg_has_the_right_colours():
    cyan_free = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    pixels = EIGHT.decode(encoded(cyan_free, "JPEG"), "x").astype(int)
    assert (pixels[0] > 245).all() and (pixels[1:] < 10).all()


@pytest.mark.parametrize("resize", ["nearest", "antialias"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 16])
def test_one_bit_images_are_black_and_white(resize, channels, side):
    bits = np.zeros((side, side), bool)
    bits[:, side // 2 :] = True
    recipe = Recipe(height=8, width=8, channels=channels, resize=resize)
    pixels = recipe.decode(encoded(Image.fromarray(bits)), "x")
    assert pixels.shape == (channels, 8, 8)
    assert (pixels[:, :, :2] <= 1).all() and (pixels[:, :, -2:] >= 254).all()


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG"])
def test_every_promised_format_is_read(form):
    pixels = EIGHT.decode(encoded(Image.new("RGB", (8, 8), (255, 0, 0)), form), "x").astype(int)
    assert (pixels[0] > 240).all() and (pixels[1:] < 15).all()


def test_a_photo_taken_sideways_is_turned():
    upright = Image.new("RGB", (8, 8), "white")
    upright.paste("black", (0, 0, 8, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees, clockwise
    stream = io.BytesIO()
    upright.transpose(Image.Transpose.ROTATE_90).save(stream, "PNG", exif=exif)
    assert np.array_equal(EIGHT.decode(stream.getvalue(), "x"), as_stored(upright))


def test_crop_keeps_the_middle_and_stretch_keeps_all():
    bands = Image.new("RGB", (24, 8))
    for position, colour in enumerate(["red", "lime", "blue"]):
        bands.paste(colour, (8 * position, 0, 8 * position + 8, 8))
    crop, stretch = (
        EIGHT.replace(fit=fit).decode(encoded(bands), "x") for fit in ("crop", "stretch")
    )
    assert (crop[1] == 255).all() and (crop[0] == 0).all() and (crop[2] == 0).all()
    assert (
        (stretch[0, :, 0] > 200).all()
        and (stretch[2, :, -1] > 200).all()
        and (stretch[1, :, 4] > 200).all()
    )


def test_inverted_polarity_turns_white_into_black():
    inverted = EIGHT.replace(polarity="inverted").decode(png(5), "x")
    assert np.array_equal(inverted, 255 - EIGHT.decode(png(5), "x"))


def test_an_image_of_exactly_the_most_pixels_is_not_refused_as_a_bomb():
    whole = encoded(Image.new("1", (8000, 8000)))
    assert EIGHT.decode(whole, "x").shape == (3, 8, 8)
    with pytest.raises(ImageError, match="8001 x 8000"):
        EIGHT.decode(encoded(Image.new("1", (8001, 8000))), "x")


def test_the_size_option_brings_images_to_that_size(tmp_path):
    source = write_folder(tmp_path / "photos", class_files())
    assert add(source, tmp_path / "root", size=5, channels=1).pixels.shape == (11, 1, 5, 5)


# Splits


def test_a_split_file_of_your_own_comes_first_and_the_others_stay(tmp_path):
    (tmp_path / "own.json").write_text('{"train": ["dog", "ant"], "test": ["bee"]}')
    data = add(
        write_folder(tmp_path / "photos", class_files()),
        tmp_path / "root",
        splits=tmp_path / "own.json",
    )
    assert data.splits_name == "own"
    assert data.classes_of("train").tolist() == [3, 0], "in the order of the file"
    assert data.classes_of("val").tolist() == [] and data.classes_of("all").tolist() == [0, 1, 2, 3]
    assert open_dataset("mine", "shuffled", tmp_path / "root").splits_name == "shuffled"
    assert open_dataset("mine", tmp_path / "own.json", tmp_path / "root").splits == data.splits


def test_a_split_file_of_your_own_does_not_make_a_slimagenet64_archive_wrong(tmp_path, monkeypatch):
    files = {
        f"slim/{part}/{part}_class/{n}.png": png(n)
        for part in ("train", "val", "test")
        for n in (0, 1)
    }
    (tmp_path / "own.json").write_text('{"train": ["test_class", "val_class"]}')
    monkeypatch.setitem(slimagenet64.COUNTS, "slim-tiny", slimagenet64.Counts(1, 1, 1, images=2))
    source = write_any(tmp_path / "slim.tar", files)
    own, root = tmp_path / "own.json", tmp_path / "root"
    data = add(source, root, name="slim-tiny", size=None, splits=own)
    assert data.splits == {"train": ["test_class", "val_class"]}
    assert open_dataset("slim-tiny", "folders", root).splits["train"] == ["train_class"]


def test_classes_without_split_folders_are_shuffled_the_same_for_everybody():
    names = [f"class{n:04d}" for n in range(1623)]
    split = shuffled_split(names)
    assert shuffled_split(list(reversed(names))) == split
    assert {part: len(chosen) for part, chosen in split.items()} == {
        "train": 1200,
        "val": 211,
        "test": 212,
    }
    assert sorted(chain(*split.values())) == names
    assert split["train"] != names[:1200]
    assert shuffled_split([*names, "zebra"])["train"][:50] != split["train"][:50]


@pytest.mark.parametrize("count", [*range(1, 40), 1622, 1624, 250_000])
def test_a_cut_like_omniglot_has_no_empty_part_from_three_classes_on(count):
    names = [str(n) for n in range(count)]
    parts = cut_like_omniglot(names)
    assert [name for part in parts.values() for name in part] == names
    assert count < 3 or all(parts.values())


def test_two_classes_are_all_for_training_and_can_be_described(tmp_path):
    data = add(
        write_folder(tmp_path / "photos", class_files({"ant": 3, "bee": 3})), tmp_path / "root"
    )
    summary = summarise(data)
    assert summary["parts"] == {"train": 2, "val": 0, "test": 0}
    assert set(summary["longest"]["val"].values()) == {0}
    assert summary["images_per_class"] == "3" and summary["split_files"] == "shuffled"


def test_a_summary_tells_unequal_class_sizes(tmp_path):
    summary = summarise(add(write_folder(tmp_path / "photos", class_files()), tmp_path / "root"))
    assert (summary["images_per_class"], summary["images"], summary["classes"]) == ("2 to 4", 11, 4)
    assert (summary["resolution"], summary["format"]) == ("8 x 8", "RGB")
    assert json.dumps(summary)


# Arrays


def some_images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_an_npz_without_names_and_splits_gets_numbers_and_a_shuffled_split(tmp_path):
    images, labels = some_images(8, 6, 5), np.array([3, 0, 1, 2, 0, 1, 2, 3], np.uint8)
    np.savez(tmp_path / "digits.npz", images=images, labels=labels)
    data = add(tmp_path / "digits.npz", tmp_path / "root", size=None)
    assert data.info.class_names == tuple(f"class{n:06d}" for n in range(4))
    assert data.splits_name == "shuffled" and data.pixels.shape == (8, 1, 6, 5)
    order = [1, 4, 2, 5, 3, 6, 0, 7]
    assert np.array_equal(data.pixels[:, 0], images[order])


@pytest.mark.parametrize("kind", [str, bytes])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_with_names_and_splits_keeps_them(tmp_path, kind, save):
    names, parts = ["dog", "cat", "bee"], ["test", "train", "val"]
    if kind is bytes:
        names, parts = [name.encode() for name in names], [part.encode() for part in parts]
    images = some_images(6, 4, 4, 3)
    save(
        tmp_path / "x.npz",
        images=images,
        labels=np.arange(6) // 2,
        class_names=np.array(names),
        splits=np.array(parts),
    )
    data = add(tmp_path / "x.npz", tmp_path / "root", size=None)
    assert data.info.class_names == ("bee", "cat", "dog")
    assert data.splits_name == "file"
    assert data.splits == {"train": ["cat"], "val": ["bee"], "test": ["dog"]}
    assert np.array_equal(data.pixels, images[[4, 5, 2, 3, 0, 1]].transpose(0, 3, 1, 2))


def test_an_npz_is_brought_to_the_size_and_channels_asked_for(tmp_path):
    np.savez(tmp_path / "x.npz", images=some_images(4, 6, 5, 1), labels=np.arange(4))
    assert add(tmp_path / "x.npz", tmp_path / "root", size=9, channels=3).pixels.shape == (
        4,
        3,
        9,
        9,
    )


# Size


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_opening_a_data_set_of_gigabytes_does_not_read_its_pixels(tmp_path):
    folder = tmp_path / "slim" / "1"
    (folder / "splits").mkdir(parents=True)
    names = tuple(f"n{n:08d}" for n in range(1000))
    info = DatasetInfo(
        format=1,
        name="slim",
        title="sparse",
        source="nowhere",
        licence="none",
        citation="",
        recipe=slimagenet64.RECIPE,
        class_names=names,
        class_sizes=(200,) * 1000,
        default_splits="all",
        pixels_sha256="0" * 64,
    )
    (folder / "dataset.json").write_text(info.model_dump_json())
    (folder / "splits" / "all.json").write_text(json.dumps({"train": names}))
    with (folder / "pixels.npy").open("wb") as pixels:
        shape = (200_000, 3, 64, 64)
        np.lib.format.write_array_header_1_0(
            pixels, {"descr": "|u1", "fortran_order": False, "shape": shape}
        )
        start = pixels.tell()
    os.truncate(folder / "pixels.npy", start + 200_000 * 3 * 64 * 64)
    (tmp_path / "slim" / "current").write_text("1\n")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before, began = resident(), time.perf_counter()
    data = open_dataset("slim", root=tmp_path)
    assert time.perf_counter() - began < 1
    assert data.pixels.nbytes > 2.4e9
    assert data.pixels[123_456].sum() == 0
    assert resident() - before < 50e6


# Omniglot


@pytest.fixture(scope="session")
def sorted_names(omniglot) -> list[str]:
    return sorted(omniglot.info.class_names)


def test_omniglot_is_the_one_that_the_published_tasks_were_drawn_from(omniglot):
    assert omniglot.fingerprint == REFERENCE_FINGERPRINTS["omniglot"]
    assert (
        omniglot.fingerprint == "bdb0ba7be33af130091caf2e49ca0f41754ec552076ebbacee3a62f42c23a75e"
    )
    assert hash_pixels(omniglot.folder) == omniglot.info.pixels_sha256
    assert omniglot.pixels.shape == (32460, 1, 28, 28) and set(omniglot.info.class_sizes) == {20}


def test_the_reference_split_of_omniglot_is_the_published_shuffle(omniglot, sorted_names):
    assert omniglot.splits_name == "reference"
    position = {name: n for n, name in enumerate(sorted_names)}
    places = {part: [position[name] for name in names] for part, names in omniglot.splits.items()}
    assert {part: len(found) for part, found in places.items()} == {
        "train": 1200,
        "val": 211,
        "test": 212,
    }
    assert places["train"][:4] == [275, 584, 204, 686]
    assert places["val"][:3] == [1071, 120, 1]
    assert places["test"][:3] == [113, 1485, 758]
    assert sorted(chain(*places.values())) == list(range(1623))


def test_the_sorted_split_of_omniglot_is_the_text_of_the_paper(omniglot, sorted_names):
    splits = load("omniglot", splits="sorted").splits
    assert splits == {
        "train": sorted_names[:1200],
        "val": sorted_names[1200:1411],
        "test": sorted_names[1411:],
    }


def test_the_official_split_of_omniglot_keeps_every_alphabet_in_one_part(omniglot, sorted_names):
    splits = load("omniglot", splits="official").splits
    alphabets = {part: {name.split("/")[0] for name in names} for part, names in splits.items()}
    assert {part: len(found) for part, found in alphabets.items()} == {
        "train": 25,
        "val": 5,
        "test": 20,
    }
    assert len(set.union(*alphabets.values())) == 50
    background = sorted(alphabets["train"] | alphabets["val"])
    assert [n for n, name in enumerate(background) if name in alphabets["val"]] == [
        5,
        11,
        17,
        23,
        29,
    ], "every sixth"
    assert len(splits["test"]) == 659 and len(splits["train"]) + len(splits["val"]) == 964
    assert sorted(chain(*splits.values())) == sorted_names


def test_the_recipes_of_omniglot_differ_as_their_names_say(real_data):
    made = {
        name: np.stack(
            [image.pixels for image in islice(omniglot_module.images(real_data, recipe), 40)]
        )
        for name, recipe in omniglot_module.RECIPES.items()
    }
    assert set(np.unique(made["as_published"])) == {0, 255}
    assert made["as_published"].mean() > 200, "dark strokes on white"
    assert np.array_equal(made["inverted"], 255 - made["as_published"])
    assert len(np.unique(made["antialiased"])) > 50
    assert np.array_equal(made["antialiased_inverted"], 255 - made["antialiased"])


def test_the_published_recipe_takes_the_nearest_pixel():
    bits = np.random.default_rng(0).integers(0, 2, (105, 105)).astype(bool)
    pixels = omniglot_module.RECIPES["as_published"].decode(encoded(Image.fromarray(bits)), "x")
    nearest = ((np.arange(28) + 0.5) * 105 / 28).astype(int)
    assert np.array_equal(pixels[0], np.where(bits[nearest][:, nearest], 255, 0))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "omniglot"),
        ({"recipe": "as_published"}, "omniglot"),
        ({"recipe": "inverted"}, "omniglot-inverted"),
        ({"size": 14}, "omniglot-14"),
        ({"recipe": "antialiased", "size": 14}, "omniglot-antialiased-14"),
        ({"recipe": "inverted", "save_as": "mine"}, "mine"),
    ],
)
def test_variants_of_a_known_data_set_say_so_in_their_names(options, name):
    request = AddRequest(name="omniglot", source=Path("x"), **options)
    assert request.stored_name(omniglot_module.RECIPES) == name


def test_one_zip_and_one_unpacked_folder_are_omniglot_too(tmp_path):
    write_zip(
        tmp_path / "images_background.zip", {"images_background/Greek/character01/1.png": png(1)}
    )
    write_folder(tmp_path / "images_evaluation", {"Tengwar/character01/1.png": png(2)})
    found = [
        image.class_name
        for image in omniglot_module.images(tmp_path, omniglot_module.RECIPES["inverted"])
    ]
    assert found == ["Greek/character01", "Tengwar/character01"]


# slim-tiny


@pytest.fixture(scope="session")
def slim_tiny(real_data, tmp_path_factory):
    """The real slim-tiny, found in its folder and imported once."""
    root = tmp_path_factory.mktemp("slim")
    return add_dataset(AddRequest(name="slim-tiny", source=real_data, root=root))


def test_an_archive_like_slimagenet64_has_the_split_of_its_folders_and_the_pixels_of_its_images(
    tmp_path, monkeypatch
):
    parts = {"ant": "train", "bee": "val", "cat": "test", "dog": "train"}
    pictures = {
        (name, n): image(10 * i + n, size=(64, 64))
        for i, name in enumerate(parts)
        for n in range(3)
    }
    jpegs = {place: encoded(picture, "JPEG") for place, picture in pictures.items()}
    (tmp_path / "here").mkdir()
    files = {
        f"slim-tiny/{parts[name]}/{name}/{n}.JPEG": content for (name, n), content in jpegs.items()
    }
    write_any(tmp_path / "here" / "slim-tiny.tar", files)
    counts = slimagenet64.Counts(train=2, val=1, test=1, images=3)
    monkeypatch.setitem(slimagenet64.COUNTS, "slim-tiny", counts)

    data = add(tmp_path / "here", tmp_path / "root", name="slim-tiny", size=None)
    assert data.splits == {"train": ["ant", "dog"], "val": ["bee"], "test": ["cat"]}
    assert data.pixels.shape == (12, 3, 64, 64) and data.info.recipe.mean == (0.485, 0.456, 0.406)
    assert hash_pixels(data.folder) == data.info.pixels_sha256
    for (name, n), content in jpegs.items():
        row = data.class_starts[data.info.class_names.index(name)] + n
        assert np.array_equal(data.pixels[row], as_stored(Image.open(io.BytesIO(content))))
        assert data.image_names[row] == f"{n}.JPEG"


@pytest.mark.long
def test_slim_tiny_has_the_classes_and_the_split_of_its_folders(slim_tiny):
    assert slim_tiny.pixels.shape == (40_000, 3, 64, 64) and set(slim_tiny.info.class_sizes) == {
        200
    }
    assert {part: len(names) for part, names in slim_tiny.splits.items()} == {
        "train": 140,
        "val": 20,
        "test": 40,
    }
    assert slim_tiny.info.recipe.mean == (0.485, 0.456, 0.406)
    assert hash_pixels(slim_tiny.folder) == slim_tiny.info.pixels_sha256
    assert summarise(slim_tiny)["size_on_disk"] == "491.5 MB"


@pytest.mark.long
def test_the_pixels_of_slim_tiny_are_those_of_its_images(slim_tiny, real_data):
    checked = 0
    with tarfile.open(real_data / "slim-tiny.tar", "r|") as archive:
        for number, member in enumerate(archive):
            if not member.name.endswith(".JPEG") or number % 1999:
                continue
            _, part, name, file = member.name.split("/")
            picture = Image.open(io.BytesIO(archive.extractfile(member).read()))
            row = slim_tiny.class_starts[slim_tiny.info.class_names.index(name)] + int(
                Path(file).stem
            )
            assert np.array_equal(slim_tiny.pixels[row], as_stored(picture))
            assert slim_tiny.image_names[row] == file and name in slim_tiny.splits[part]
            checked += 1
    assert checked >= 15


def test_a_data_set_that_is_not_there_gets_a_suggestion(tmp_path):
    add(write_folder(tmp_path / "photos", class_files()), tmp_path / "root", name="photos")
    with pytest.raises(
        DataError, match=r"'photo' is not here; did you mean 'photos'\? Here: photos"
    ):
        open_dataset("photo", root=tmp_path / "root")
