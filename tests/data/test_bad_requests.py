"""Bad splits, names, options and arrays are refused in one line, and change no data set."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from archives import (
    WEB_PAGE,
    add,
    class_files,
    content_of,
    encoded,
    image,
    part_files,
    png,
    write_folder,
    write_npz,
    write_tar,
    write_zip,
)
from cfsl.data import catalog, omniglot, slimagenet64
from cfsl.data.store import open_dataset
from cfsl.errors import DataError, SpecError, UnknownNameError

# Split files

BAD_SPLITS = {
    "unknown": (
        '{"train": ["ant", "bea"]}',
        ["'bea' into train", "no such class", "did you mean 'bee'?"],
    ),
    "twice": (
        '{"train": ["ant"], "val": ["ant"]}',
        ["'ant' in train and again in val", "remove one"],
    ),
    "again": ('{"train": ["ant", "ant"]}', ["'ant' in train and again in train"]),
    "no_json": ("train: ant\nval: bee\n", ["cannot be read as a split file", "should look like"]),
    "list": ('["ant", "bee"]', ["is not a split file", "should look like"]),
    "numbers": ('{"train": [1, 2]}', ["is not a split file", "should look like"]),
    "part": (
        '{"train": ["ant"], "validation": ["bee"]}',
        ["has a part 'validation'", "train, val, test"],
    ),
    "deep": ("[" * 100_000, ["cannot be read as a split file"]),
    "shuffled": ('{"train": ["ant"]}', ["has a split 'shuffled' of its own", "rename your file"]),
}


@pytest.mark.parametrize("stem", BAD_SPLITS)
def test_a_bad_split_file_is_refused(tmp_path, refused, stem):
    text, says = BAD_SPLITS[stem]
    (tmp_path / f"{stem}.json").write_text(text)
    source = write_folder(tmp_path / "fine", class_files())
    refused(source, stem, *says, splits=tmp_path / f"{stem}.json")


def test_a_split_file_that_is_not_text_is_refused(tmp_path, refused):
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    source = write_folder(tmp_path / "fine", class_files())
    refused(source, "bytes.json cannot be read", splits=tmp_path / "bytes.json")


def test_a_split_file_that_does_not_exist_is_refused(tmp_path, refused):
    source = write_folder(tmp_path / "fine", class_files())
    refused(source, "gone.json cannot be read", splits=tmp_path / "gone.json")


def test_a_bad_split_file_is_refused_at_opening_too(tmp_path):
    add(write_folder(tmp_path / "fine", class_files()), tmp_path / "root")
    (tmp_path / "wrong.json").write_text('{"train": ["ant", "bea"]}')
    with pytest.raises(
        DataError, match=r"'wrong' of mine puts 'bea' into train.*did you mean 'bee'"
    ):
        open_dataset("mine", tmp_path / "wrong.json", tmp_path / "root")
    with pytest.raises(
        UnknownNameError, match=r"no split file 'shufled'; did you mean 'shuffled'\?"
    ):
        open_dataset("mine", "shufled", tmp_path / "root")


# Requests


@pytest.mark.parametrize(
    "name", ["a/b", "..", "../up", ".hidden", "Capital", "", "x" * 65, "a b", "a\n"]
)
def test_a_name_that_is_no_name_is_refused(tmp_path, name):
    source = write_folder(tmp_path / "fine", class_files())
    with pytest.raises(
        DataError, match="cannot be the name of a data set: use up to 64 small letters"
    ):
        add(source, tmp_path / "below" / "root", name=name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fine"]


def test_opening_a_name_with_dots_and_slashes_finds_nothing(tmp_path):
    with pytest.raises(DataError, match=r"'\.\./nothing' is not here"):
        open_dataset("../nothing", root=tmp_path)


def test_an_unknown_recipe_gets_a_suggestion(tmp_path, refused):
    refused(
        tmp_path, "omniglot recipe 'antialised'", "did you mean 'antialiased'?", "as_published",
        kind=UnknownNameError, name="omniglot", recipe="antialised",
    )  # fmt: skip


def test_a_recipe_for_images_of_your_own_is_refused(tmp_path, refused):
    source = write_folder(tmp_path / "fine", class_files())
    refused(source, "'antialiased' is no recipe of 'mine'", "--size", recipe="antialiased")


def test_channels_for_a_known_data_set_are_refused(tmp_path, refused):
    refused(
        tmp_path, "--channels is for images of your own", "'omniglot'", name="omniglot", channels=3
    )


@pytest.mark.parametrize(
    "option", [{"size": 5000}, {"size": -1}, {"channels": 2}, {"fit": "squeeze"}]
)
def test_an_option_out_of_range_is_refused(tmp_path, refused, option):
    source = write_folder(tmp_path / "fine", class_files())
    refused(source, *(str(value) for value in option.values()), kind=SpecError, **option)


@pytest.mark.parametrize("name", ["glyphs", "glyphs-9x9"])
def test_the_name_of_the_embedded_data_set_is_refused(tmp_path, name):
    source = write_folder(tmp_path / "fine", class_files())
    with pytest.raises(DataError, match=f"'{name}' is made by cfsl itself; choose another name"):
        add(source, tmp_path / "root", name=name)


def test_other_content_under_the_same_name_is_refused(tmp_path):
    source = write_folder(tmp_path / "other", class_files())
    add(write_folder(tmp_path / "first", class_files({"a": 1, "b": 1})), tmp_path / "root")
    before = content_of(tmp_path / "root")
    with pytest.raises(
        DataError, match=r"'mine' is there already, with other content .*--replace.*--as"
    ):
        add(source, tmp_path / "root")
    assert content_of(tmp_path / "root") == before


def test_the_same_images_with_a_new_split_are_not_passed_over(tmp_path):
    source, root = write_folder(tmp_path / "fine", class_files()), tmp_path / "root"
    add(source, root)
    (tmp_path / "own.json").write_text('{"train": ["cat"], "test": ["ant"]}')
    before = content_of(root)
    with pytest.raises(DataError, match=r"the same images but without this split 'own'.*--replace"):
        add(source, root, splits=tmp_path / "own.json")
    assert content_of(root) == before
    assert add(source, root, splits=tmp_path / "own.json", replace=True).splits_name == "own"
    assert add(source, root).splits_name == "own"


# Arrays


BAD_ARRAYS = {
    "objects": (
        {"class_names": np.array(["ant", None, 3, ()], object)},
        ["plain arrays", "numpy.savez"],
    ),
    "no_images": ({"images": None}, ["has no images", "are needed"]),
    "no_labels": ({"labels": None}, ["has no labels", "are needed"]),
    "floats": ({"images": np.zeros((8, 6, 5, 3))}, ["images are float64 (8, 6, 5, 3)", "uint8"]),
    "flat": ({"images": np.zeros((8, 6), np.uint8)}, ["images are uint8 (8, 6)", "needed"]),
    "two_channels": (
        {"images": np.zeros((8, 6, 5, 2), np.uint8)},
        ["(8, 6, 5, 2)", "1 or 3 channels"],
    ),
    "none": ({"images": np.zeros((0, 6, 5, 3), np.uint8)}, ["(0, 6, 5, 3)"]),
    "few_labels": ({"labels": np.arange(7) % 4}, ["labels are int64 (7,)", "8 integers from 0 on"]),
    "float_labels": ({"labels": np.arange(8) % 4 / 1.0}, ["labels are float64 (8,)", "integers"]),
    "negative": ({"labels": np.arange(8) % 4 - 1}, ["integers from 0 on"]),
    "gap": (
        {"labels": np.array([0, 1, 3, 0, 1, 3, 0, 1])},
        ["class 2 of 4 has no images", "without gaps"],
    ),
    "wide_gap": (
        {"labels": np.array([0, 2**62, 0, 0, 0, 0, 0, 0])},
        ["class 1 of 4611686018427387905 has no images"],
    ),
    "few_names": (
        {"class_names": np.array(["ant", "bee"])},
        ["class_names is <U3 (2,)", "4 classes"],
    ),
    "one_name": ({"class_names": np.array("ant")}, ["class_names is <U3 ()", "4 classes"]),
    "same_names": ({"class_names": np.array(["ant"] * 4)}, ["1 different names for 4 classes"]),
    "line_break": (
        {"class_names": np.array(["ant", "b\nee", "cat", "dog"])},
        ["b\\nee", "rename it"],
    ),
    "bad_part": (
        {"splits": np.array(["train", "tarin", "val", "test"])},
        ["splits holds 'tarin'", "train, val, test"],
    ),
    "few_splits": ({"splits": np.array(["train"])}, ["splits is <U5 (1,)", "4 classes"]),
}


@pytest.mark.parametrize("stem", BAD_ARRAYS)
def test_bad_arrays_are_refused(tmp_path, refused, stem):
    changes, says = BAD_ARRAYS[stem]
    refused(write_npz(tmp_path / f"{stem}.npz", **changes), f"{stem}.npz", *says)


def test_pickled_code_in_an_npz_is_not_run(tmp_path, refused):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    refused(
        write_npz(tmp_path / "trap.npz", labels=np.array([Trap()], object)),
        "trap.npz",
        "plain arrays",
    )
    assert not (tmp_path / "sprung").exists()


def test_a_truncated_npz_is_refused(tmp_path, refused):
    source = write_npz(tmp_path / "cut.npz")
    os.truncate(source, source.stat().st_size // 2)
    refused(source, "cut.npz cannot be read", "Write it again")


def test_an_npz_with_damaged_compressed_data_is_refused(tmp_path, refused):
    source = tmp_path / "damaged.npz"
    np.savez_compressed(source, images=np.zeros((8, 64, 64), np.uint8), labels=np.arange(8))
    content = bytearray(source.read_bytes())
    content[60:90] = b"\xff" * 30
    source.write_bytes(content)
    refused(source, "damaged.npz cannot be read", "Write it again")


def test_an_npz_whose_header_claims_a_petabyte_is_refused(tmp_path, refused):
    header = (
        str({"descr": "|u1", "fortran_order": False, "shape": (10**15, 1, 1)}).encode().ljust(117)
        + b"\n"
    )
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    source = write_zip(tmp_path / "claims.npz", {"images.npy": member, "labels.npy": member})
    refused(source, "claims.npz cannot be read", "Write it again")


def test_an_npz_that_holds_something_else_is_refused(tmp_path, refused):
    source = write_zip(tmp_path / "other.npz", {"images": b"text", "labels": b"text"})
    refused(source, "other.npz holds 'images', which is no array", "numpy.savez")


def test_an_npz_that_is_a_web_page_is_refused(tmp_path, refused):
    (tmp_path / "page.npz").write_bytes(WEB_PAGE)
    refused(tmp_path / "page.npz", "page.npz cannot be read")


# Known data sets


def test_omniglot_with_one_archive_missing_is_refused(tmp_path, refused):
    write_zip(tmp_path / "images_background.zip", {"Greek/character01/1.png": png()})
    refused(
        tmp_path,
        tmp_path.name,
        "has images_background.zip but not images_evaluation.zip",
        name="omniglot",
    )


def test_omniglot_with_one_folder_missing_is_refused(tmp_path, refused):
    write_folder(tmp_path / "images_evaluation", {"Greek/character01/1.png": png()})
    refused(tmp_path, "has images_evaluation but not images_background;", name="omniglot")


def test_omniglot_from_a_single_file_is_refused(tmp_path, refused):
    source = write_zip(tmp_path / "images_background.zip", {"Greek/character01/1.png": png()})
    refused(source, "is not a folder", "give the folder that holds", name="omniglot")


def test_omniglot_with_a_drawing_outside_its_alphabet_is_refused(tmp_path, refused):
    source = write_folder(tmp_path / "flat", {"1.png": png()})
    refused(source, "1.png in", "is not Alphabet/characterNN/drawing.png", name="omniglot")


@pytest.fixture
def drawings(monkeypatch) -> dict[str, bytes]:
    """Return the files of an Omniglot of 60 characters in six alphabets, all with one drawing."""
    assert omniglot.OMNIGLOT_CLASSES == 1623
    monkeypatch.setattr(omniglot, "OMNIGLOT_CLASSES", 60)
    tiny = encoded(image(0, mode="L", size=(1, 1)))
    alphabets = ("Angelic", "Greek", "Hebrew", "Latin", "Tengwar", "ULOG")
    characters = [f"{alphabet}/character{c:02d}" for alphabet in alphabets for c in range(1, 11)]
    return {f"{character}/{n:02d}.png": tiny for character in characters for n in range(20)}


def write_omniglot(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    halves = [
        {n: c for n, c in files.items() if (n.split("/")[0] in omniglot.EVALUATION_ALPHABETS) == e}
        for e in (0, 1)
    ]
    for name, half in zip(omniglot.ARCHIVES, halves, strict=True):
        write_zip(
            folder / f"{name}.zip", {f"{name}/{path}": content for path, content in half.items()}
        )
    return folder


def test_omniglot_with_parts_missing_is_refused(tmp_path, drawings):
    gone = ("Greek/character05/", "Latin/character07/03.png")
    files = {name: content for name, content in drawings.items() if not name.startswith(gone)}
    says = "59 characters instead of 60; Latin/character07 has 19 drawings instead of 20"
    with pytest.raises(
        DataError, match=f"partial is not the whole of Omniglot: {says}. Nothing was changed"
    ) as caught:
        add(write_omniglot(tmp_path / "partial", files), tmp_path / "root", name="omniglot", size=1)
    assert "\n" not in str(caught.value)
    assert content_of(tmp_path / "root") == {}


@pytest.mark.parametrize("name", ["slimagenet64", "slim-tiny"])
def test_a_slimagenet64_archive_with_wrong_counts_is_told_how_they_differ(tmp_path, refused, name):
    wanted = catalog.CATALOG[name].title.split(",")[0].split()[0]
    counts = slimagenet64.COUNTS["SlimageNet64" if name == "slimagenet64" else name]
    message = refused(
        write_tar(tmp_path / "slim.tar", part_files("slim/")),
        f"train has 2 classes instead of {counts.train}",
        f"val has 1 classes instead of {counts.val}",
        f"test has 1 classes instead of {counts.test}",
        "4 classes have other than 200 images (first: ant, 2)",
        "slim.tar is not",
        name=name,
    )
    assert wanted.lower() in message.lower() or name in message


def test_a_slimagenet64_archive_without_split_folders_is_refused(tmp_path, refused):
    source = write_tar(tmp_path / "slim.tar", class_files())
    refused(source, "slim.tar is not", "train has 0 classes instead of 140", name="slim-tiny")
