"""Every bad input is refused in one line that names it, and leaves what was there before as it was."""

from __future__ import annotations

import errno
import functools
import gc
import hashlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from archives import (
    add,
    class_files,
    content_of,
    encoded,
    huge_png,
    image,
    link_member,
    part_files,
    png,
    write_any,
    write_folder,
    write_tar,
    write_zip,
)
from cfsl.data import archive, build, catalog, omniglot, slimagenet64
from cfsl.data.store import hash_pixels, installed, open_dataset
from cfsl.errors import (
    ArchiveError,
    CfslError,
    DataError,
    FetchError,
    ImageError,
    SpecError,
    UnknownNameError,
)

PAGE = b"<!DOCTYPE html>\n<html><body>404: Not Found</body></html>\n" * 30
KINDS_OF_TAR = [".tar", ".tar.gz", ".tar.bz2", ".tar.xz"]


@pytest.fixture
def refused(tmp_path: Path):
    """Return a check: the source is refused, into an empty root and into one that holds the name already."""
    good = write_folder(tmp_path / "good", class_files({"old": 2, "older": 2, "oldest": 2}))

    def check(
        source: Path, *says: str, kind: type[CfslError] = DataError, name: str = "mine", **options
    ) -> str:
        earlier = tmp_path / "root_with_earlier"
        add(good, earlier, save_as=name)
        before = content_of(earlier)
        for root in (tmp_path / "empty_root", earlier):
            with pytest.raises(kind) as caught:
                add(source, root, name=name, **options)
            message = str(caught.value)
            assert "\n" not in message
            for text in says or (source.name,):
                assert text in message
        assert content_of(tmp_path / "empty_root") == {}
        assert content_of(earlier) == before
        return message

    return check


# Archives


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_zip_is_refused(tmp_path, refused, kept):
    source = write_zip(tmp_path / "cut.zip", class_files())
    os.truncate(source, int(source.stat().st_size * kept))
    refused(source, "cut.zip", "Download it again", kind=ArchiveError)


def test_a_zip_with_a_bad_checksum_is_refused(tmp_path, refused):
    source = write_zip(tmp_path / "crc.zip", class_files())
    content, start = source.read_bytes(), png(3)
    at = content.index(start) + len(start) - 1
    source.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    refused(source, "crc.zip", "CRC", "Download it again", kind=ArchiveError)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_with_damaged_compressed_data_is_refused(tmp_path, refused, compression):
    source = write_zip(
        tmp_path / "damaged.zip", {"ant/0.png": bytes(range(256)) * 40}, compression=compression
    )
    content = bytearray(source.read_bytes())
    content[48:70] = b"\xff" * 22
    source.write_bytes(content)
    refused(source, "damaged.zip", "Download it again", kind=ArchiveError)


def test_a_zip_with_a_password_is_refused(tmp_path, refused):
    source = write_zip(tmp_path / "locked.zip", class_files())
    content = bytearray(source.read_bytes())
    with zipfile.ZipFile(source) as opened:
        content[opened.start_dir + 8] |= 1
    content[6] |= 1
    source.write_bytes(content)
    refused(source, "locked.zip", "password", kind=ArchiveError)


def test_a_tar_cut_between_two_members_is_refused(tmp_path, refused):
    source = write_tar(tmp_path / "cut.tar", class_files())
    with tarfile.open(source) as opened:
        boundary = opened.getmembers()[5].offset
    os.truncate(source, boundary)
    refused(source, "cut.tar", "its end is missing", "Download it again", kind=ArchiveError)


@pytest.mark.parametrize("where", ["header", "content"])
def test_a_tar_cut_inside_a_member_is_refused(tmp_path, refused, where):
    source = write_tar(tmp_path / "cut.tar", class_files())
    with tarfile.open(source) as opened:
        member = opened.getmembers()[5]
    os.truncate(source, (member.offset if where == "header" else member.offset_data) + 100)
    refused(source, "cut.tar", "Download it again", kind=ArchiveError)


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.bz2", ".tar.xz"])
@pytest.mark.parametrize("kept", [0.3, 0.95])
def test_a_truncated_compressed_tar_is_refused(tmp_path, refused, ending, kept):
    source = write_tar(tmp_path / f"cut{ending}", class_files())
    os.truncate(source, int(source.stat().st_size * kept))
    refused(source, f"cut{ending}", "Download it again", kind=ArchiveError)


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.bz2", ".tar.xz"])
def test_a_compressed_tar_with_damage_in_the_middle_is_refused(tmp_path, refused, ending):
    source = write_tar(tmp_path / f"damaged{ending}", class_files())
    content = bytearray(source.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20] = b"\0" * 20
    source.write_bytes(content)
    refused(source, f"damaged{ending}", kind=DataError)


def test_a_tar_with_a_damaged_header_in_the_middle_is_refused(tmp_path, refused):
    source = write_tar(tmp_path / "damaged.tar", class_files())
    with tarfile.open(source) as opened:
        at = opened.getmembers()[5].offset
    content = bytearray(source.read_bytes())
    content[at : at + 512] = b"x" * 512
    source.write_bytes(content)
    refused(source, "damaged.tar", "Download it again", kind=ArchiveError)


@pytest.mark.parametrize("name", ["notes.zip", "notes.tar", "notes.tar.bz2", "notes"])
def test_a_file_that_is_no_archive_is_refused(tmp_path, refused, name):
    source = tmp_path / name
    source.write_bytes(b"Dear diary, " * 500)
    refused(source, name, "not a zip or tar", "Download it again", kind=ArchiveError)


@pytest.mark.parametrize("name", ["page.zip", "page.tar.bz2"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n  ", b"<!-- error -->"])
def test_a_web_page_saved_as_an_archive_is_told_apart(tmp_path, refused, name, start):
    source = tmp_path / name
    source.write_bytes(start + PAGE)
    refused(source, name, "web page", "download again", kind=ArchiveError)


def test_an_empty_file_is_refused(tmp_path, refused):
    source = tmp_path / "empty.zip"
    source.touch()
    refused(source, "empty.zip is empty", "download it again", kind=ArchiveError)


@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_an_archive_without_images_is_refused(tmp_path, refused, ending):
    refused(
        write_any(tmp_path / f"none{ending}", {"ant/notes.txt": b"x"}),
        f"none{ending}",
        "no images were found",
    )


def test_a_file_of_zeros_is_refused(tmp_path, refused):
    source = tmp_path / "zeros.tar"
    source.write_bytes(bytes(10240))
    refused(source, "zeros.tar", "no images were found")


def test_a_source_that_does_not_exist_is_refused(tmp_path, refused):
    refused(tmp_path / "nowhere.zip", "nowhere.zip does not exist", "--from takes")


def test_a_device_is_refused(refused):
    refused(Path("/dev/zero"), "/dev/zero is neither a file nor a folder")


# Names and links in archives

ESCAPES = [
    "../x.png",
    "ant/../../x.png",
    "/etc/x.png",
    "C:\\ant\\x.png",
    "C:x.png",
    "..\\x.png",
    "\\\\host\\s\\x.png",
]


@pytest.mark.parametrize("ending", [".zip", ".tar"])
@pytest.mark.parametrize("name", ESCAPES)
def test_a_path_that_leads_out_of_the_archive_is_refused(tmp_path, refused, ending, name):
    source = write_any(tmp_path / f"slip{ending}", {**class_files(), name: png()})
    refused(source, f"slip{ending}", name, "leads out of the archive", kind=ArchiveError)
    assert not list(tmp_path.rglob("x.png"))


def test_a_symbolic_link_in_a_zip_is_refused(tmp_path, refused):
    source = write_zip(tmp_path / "link.zip", class_files())
    with zipfile.ZipFile(source, "a") as opened:
        info = zipfile.ZipInfo("ant/link.png")
        info.create_system, info.external_attr = 3, 0o120777 << 16
        opened.writestr(info, "/etc/passwd")
    refused(
        source, "link.zip", "'ant/link.png', a link", "Pack the files themselves", kind=ArchiveError
    )


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE], ids=["symbolic", "hard"])
def test_a_link_in_a_tar_is_refused(tmp_path, refused, kind):
    source = write_tar(
        tmp_path / "link.tar", class_files(), extra=[link_member("ant/link.png", kind)]
    )
    refused(
        source, "link.tar", "'ant/link.png', a link", "Pack the files themselves", kind=ArchiveError
    )


@pytest.mark.parametrize("target", ["0.png", "/etc", "nowhere"])
def test_a_link_in_a_folder_is_refused(tmp_path, refused, target):
    source = write_folder(tmp_path / "linked", class_files())
    (source / "ant" / "link.png").symlink_to(target)
    refused(source, "linked/ant/link.png is a link", "remove it")


@pytest.mark.parametrize("name", ["line\nbreak", "return\r", "paragraph\u2029"])
@pytest.mark.parametrize("ending", ["", ".zip", ".tar"])
def test_a_name_with_a_line_break_is_refused(tmp_path, refused, name, ending):
    refused(
        write_any(tmp_path / f"odd{ending}", {f"ant/{name}.png": png()}),
        f"odd{ending}",
        "line break",
        "rename",
    )


@pytest.mark.parametrize("ending", ["", ".tar"])
def test_a_name_that_is_not_utf8_is_refused(tmp_path, refused, ending):
    name = os.fsdecode(b"caf\xe9/0.png")
    message = refused(
        write_any(tmp_path / f"latin{ending}", {name: png()}), f"latin{ending}", "UTF-8", "rename"
    )
    assert message.encode()


# Bombs and broken images


def test_an_image_that_claims_too_many_pixels_is_refused(tmp_path, refused):
    source = write_folder(tmp_path / "bomb", {**class_files(), "ant/bomb.png": huge_png()})
    refused(source, "bomb: ant/bomb.png", "9000 x 9000", "decompression bomb", kind=ImageError)


def test_an_image_that_claims_more_pixels_than_pillow_takes_is_refused(tmp_path, refused):
    source = write_folder(
        tmp_path / "bomb", {**class_files(), "ant/bomb.png": huge_png(100_000, 100_000)}
    )
    refused(source, "bomb: ant/bomb.png", "decompression bomb", kind=ImageError)


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_a_member_that_unpacks_to_more_than_an_image_needs_is_refused(tmp_path, refused, ending):
    zeros = {"ant/zeros.png": bytes(archive.LARGEST_FILE + 1)}
    source = tmp_path / f"bomb{ending}"
    if ending == ".zip":
        write_zip(source, zeros, compression=zipfile.ZIP_DEFLATED)
    else:
        write_tar(source, zeros)
    assert source.stat().st_size < 2**18
    refused(source, f"'ant/zeros.png' in {source}", "decompression bomb", kind=ArchiveError)


def test_a_file_larger_than_an_image_needs_is_refused(tmp_path, refused):
    source = write_folder(tmp_path / "large", class_files())
    (source / "ant" / "zeros.png").touch()
    os.truncate(source / "ant" / "zeros.png", archive.LARGEST_FILE + 1)
    refused(source, "'ant/zeros.png' in", "decompression bomb", kind=ArchiveError)


def test_an_image_of_garbage_is_refused(tmp_path, refused):
    source = write_folder(
        tmp_path / "broken", {**class_files(), "bee/x.png": b"\x01\x02garbage" * 50}
    )
    message = refused(source, "broken: bee/x.png (450 bytes)", "Mend or remove it", kind=ImageError)
    assert "0x" not in message


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "WEBP", "PPM"])
def test_a_truncated_image_is_refused(tmp_path, refused, form):
    whole = encoded(image(1, size=(64, 64)), form)
    source = write_folder(
        tmp_path / "broken", {**class_files(), "bee/x.jpg": whole[: len(whole) // 2]}
    )
    refused(source, "broken: bee/x.jpg", "Mend or remove it", kind=ImageError)


def test_an_image_of_a_kind_that_needs_another_program_is_refused(tmp_path, refused):
    postscript = (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    )
    source = write_folder(tmp_path / "broken", {**class_files(), "bee/x.png": postscript})
    refused(source, "broken: bee/x.png", "none of PNG", kind=ImageError)


def test_an_empty_image_file_is_refused(tmp_path, refused):
    source = write_folder(tmp_path / "broken", {**class_files(), "bee/x.png": b""})
    refused(source, "broken: bee/x.png (0 bytes)", kind=ImageError)


def test_an_image_that_cannot_be_read_is_named(tmp_path, refused, monkeypatch):
    source, opened = write_folder(tmp_path / "unreadable", class_files()), Path.open

    def fail_for_one(path: Path, *arguments, **options):
        if path.name == "2.png" and "unreadable" in path.parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail_for_one)
    refused(source, "unreadable/bee/2.png cannot be read: Permission denied", "Make it readable")


# Layout


def test_an_empty_class_folder_is_refused(tmp_path, refused):
    source = write_folder(tmp_path / "hollow", class_files())
    (source / "eel").mkdir()
    refused(source, "hollow has 1 folder(s) without images: eel", "Remove them")


def test_an_empty_class_folder_in_a_tar_is_refused(tmp_path, refused):
    empty = tarfile.TarInfo("eel")
    empty.type = tarfile.DIRTYPE
    refused(
        write_tar(tmp_path / "hollow.tar", class_files(), extra=[empty]),
        "hollow.tar",
        "without images: eel",
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_same_member_twice_in_a_zip_is_refused(tmp_path, refused):
    source = write_zip(tmp_path / "twice.zip", class_files())
    with zipfile.ZipFile(source, "a") as opened:
        opened.writestr("bee/1.png", png(9))
    refused(
        source,
        "twice.zip",
        "class 'bee' has two images of the name '1.png'",
        "rename or remove one",
    )


def test_the_same_member_twice_in_a_tar_is_refused(tmp_path, refused):
    source = write_tar(tmp_path / "twice.tar", {**class_files(), "./bee/1.png": png(9)})
    refused(
        source,
        "twice.tar",
        "class 'bee' has two images of the name '1.png'",
        "rename or remove one",
    )


def test_a_class_in_two_split_folders_is_refused(tmp_path, refused):
    source = write_folder(tmp_path / "both", {**part_files(), "test/ant/9.png": png(9)})
    refused(source, "both: class 'ant' is in", "test", "train", "Rename or move one")


@pytest.mark.parametrize("name", ["stray.png", "train/stray.png"])
def test_an_image_outside_any_class_folder_is_refused(tmp_path, refused, name):
    source = write_folder(tmp_path / "loose", {**part_files(), name: png(9)})
    refused(source, f"{name} in {source} lies in no class folder", "sort images into folders")


def test_classes_beside_split_folders_are_refused(tmp_path, refused):
    source = write_folder(tmp_path / "beside", {**part_files(), "eel/1.png": png(9)})
    refused(
        source, "beside has train, val or test folders, and 1 classes beside them: eel", "Move them"
    )


def test_a_folder_without_images_is_refused(tmp_path, refused):
    (tmp_path / "nothing").mkdir()
    refused(tmp_path / "nothing", "from nothing", "no images were found", "class folders")


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


def write_npz(path: Path, **changes) -> Path:
    """Write a sound .npz of 4 classes with some arrays changed; None leaves one out."""
    arrays = {
        "images": np.random.default_rng(0).integers(0, 256, (8, 6, 5, 3), np.uint8),
        "labels": np.arange(8) % 4,
        "class_names": np.array(["ant", "bee", "cat", "dog"]),
        "splits": np.array(["train", "train", "val", "test"]),
    }
    np.savez(
        path, **{name: array for name, array in (arrays | changes).items() if array is not None}
    )
    return path


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
    (tmp_path / "page.npz").write_bytes(PAGE)
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
    """All paths of an Omniglot of 60 characters in six alphabets, with one tiny drawing behind all of them."""
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
    counts = slimagenet64.SLIMAGENET64 if name == "slimagenet64" else slimagenet64.SLIM_TINY
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


# Disks


def test_a_full_disk_is_told(tmp_path, refused, monkeypatch):
    write_pixels, calls = build._write_pixels, []

    def fail(spool, ordered, shape, path):
        if any(image.class_name == "ant" for image in ordered):
            path.write_bytes(b"partial")
            calls.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_pixels(spool, ordered, shape, path)

    monkeypatch.setattr(build, "_write_pixels", fail)
    refused(
        write_folder(tmp_path / "fine", class_files()),
        "mine is full",
        "bytes free",
        "CFSL_DATA to another disk",
    )
    assert len(calls) == 2


def test_a_disk_that_fills_up_at_the_very_last_file_is_told(tmp_path, refused, monkeypatch):
    write_text, armed = build._write_text, []

    def fail(path, text):
        if path.name == "own.json":
            armed.append(path)
        if armed and path.name == ".current.new":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_text(path, text)

    monkeypatch.setattr(build, "_write_text", fail)
    (tmp_path / "own.json").write_text('{"train": ["ant"]}')
    source = write_folder(tmp_path / "fine", class_files())
    refused(source, "is full", splits=tmp_path / "own.json", replace=True)
    assert len(armed) == 2


PYTHON_IMPORT = """
import resource, signal, sys
from pathlib import Path
from cfsl.data.catalog import AddRequest, add_dataset
from cfsl.errors import CfslError
source, root, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
print("ready", flush=True)
sys.stdin.readline()
try:
    print(add_dataset(AddRequest(name="mine", source=source, root=root, size=64)).fingerprint)
except CfslError as error:
    print(error)
    sys.exit(2)
"""


def start_import(source: Path, root: Path, limit: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PYTHON_IMPORT, str(source), str(root), str(limit)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("limit", [1_000, 100_000, 135_300])
def test_a_real_limit_on_the_size_of_files_is_told(tmp_path, limit):
    """11 images of 64 x 64 x 3 need 135,168 bytes, and 128 more for the header of the .npy file."""
    source, root = write_folder(tmp_path / "fine", class_files()), tmp_path / "root"
    process = start_import(source, root, limit)
    told, _ = process.communicate("go\n")
    message = told.removeprefix("ready\n").rstrip("\n")
    if limit < 135_296:
        assert process.returncode == 2
        assert message.startswith(f"the disk of {root / 'mine'} is full") and "\n" not in message
        assert content_of(root) == {}
    else:
        assert process.returncode == 0
    assert add(source, root, size=64).name == "mine"


def test_a_data_root_that_is_a_file_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("I am not a folder")
    source = write_folder(tmp_path / "fine", class_files())
    monkeypatch.setenv("CFSL_DATA", str(tmp_path / "file"))
    with pytest.raises(
        DataError, match=r"cannot write .*file.*; set CFSL_DATA to a folder you can write"
    ):
        add(source, None)
    with pytest.raises(DataError, match="'mine' is not here"):
        open_dataset("mine")
    assert installed() == []
    assert (tmp_path / "file").read_text() == "I am not a folder"


def test_a_lock_that_cannot_be_taken_is_told(tmp_path):
    (tmp_path / "root" / ".locks" / "mine.lock").mkdir(parents=True)
    with pytest.raises(DataError, match=r"cannot write .*mine.lock.*; set CFSL_DATA"):
        add(write_folder(tmp_path / "fine", class_files()), tmp_path / "root")
    assert content_of(tmp_path / "root") == {}


def test_a_file_in_the_place_of_the_data_set_is_told(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "mine").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write below .*mine.*File exists.*set CFSL_DATA"):
        add(write_folder(tmp_path / "fine", class_files()), tmp_path / "root")
    assert content_of(tmp_path / "root") == {"mine": b"in the way"}


# Processes

KILLED_IMPORTS = """
import os, random, signal, sys, time
from pathlib import Path
from cfsl.data import build
from cfsl.data.catalog import AddRequest, add_dataset
source, roots, moments = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
random.seed(moments)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_at(moment):
    sync, rename, replace, calls = build._sync, Path.rename, Path.replace, []
    def counted(out):
        sync(out)
        calls.append(out)
        if len(calls) == moment:
            die()
    def renamed(path, new):
        rename(path, new)
        if moment == 6:
            die()
    def replaced(path, new):
        if moment == 7:
            die()
        replace(path, new)
        if moment == 8:
            die()
    build._sync, Path.rename, Path.replace = counted, renamed, replaced
    return lambda finished: die() if moment == 0 else None

for number in range(moments):
    child = os.fork()
    if child == 0:
        progress = die_at(number) if number < 9 else None
        add_dataset(AddRequest(name="mine", source=source, root=roots / str(number), size=64, progress=progress,
                               replace=True))
        os._exit(0)
    if number >= 9:
        time.sleep(random.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
MOMENTS = 21


def assert_nothing_left_over(home: Path) -> None:
    in_force = (home / "current").read_text().strip()
    assert {path.name for path in home.iterdir()} == {"current", in_force}


@pytest.mark.parametrize("earlier", [False, True], ids=["first", "replacing"])
def test_an_import_killed_at_any_moment_leaves_the_old_or_the_new_data_set_whole(tmp_path, earlier):
    source, old = (
        write_folder(tmp_path / "fine", class_files()),
        write_folder(tmp_path / "old", class_files({"a": 3})),
    )
    new_print = add(source, tmp_path / "clean", size=64).fingerprint
    whole = {new_print}
    for number in range(MOMENTS if earlier else 0):
        whole.add(add(old, tmp_path / "roots" / str(number)).fingerprint)
    command = [
        sys.executable,
        "-c",
        KILLED_IMPORTS,
        str(source),
        str(tmp_path / "roots"),
        str(MOMENTS),
    ]
    codes = [
        int(line)
        for line in subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.split()
    ]
    assert codes[:9] == [-signal.SIGKILL] * 9 and set(codes) <= {0, -signal.SIGKILL}
    seen = set()
    for number in range(MOMENTS):
        root = tmp_path / "roots" / str(number)
        if earlier or "mine" in installed(root):
            data = open_dataset("mine", root=root)
            assert hash_pixels(data.folder) == data.info.pixels_sha256
            seen.add(data.fingerprint)
        if earlier and data.fingerprint != new_print:
            assert add(old, root).fingerprint == data.fingerprint
            assert_nothing_left_over(root / "mine")
        assert (
            add(source, root, size=64, replace=number % 2 == 0 or earlier).fingerprint == new_print
        )
        assert_nothing_left_over(root / "mine")
    assert seen == whole


def test_two_processes_that_add_the_same_data_set_both_succeed(tmp_path):
    source, root = (
        write_zip(tmp_path / "fine.zip", class_files(dict.fromkeys("abcdefgh", 30))),
        tmp_path / "root",
    )
    processes = [start_import(source, root) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate()[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert told == [open_dataset("mine", root=root).fingerprint] * 2
    assert sorted(path.name for path in (root / "mine").iterdir()) == ["1", "current"]


# Networks


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; what ends with .short is promised longer than it is."""

    def log_message(self, *arguments):
        pass

    def send_header(self, key, value):
        longer = key == "Content-Length" and "short" in self.path
        super().send_header(key, str(int(value) + 100) if longer else value)


@pytest.fixture
def no_open_sockets():
    """Close what the HTTP library leaves to the garbage collector, before that turns up in another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def server(tmp_path, monkeypatch, no_open_sockets):
    """Serve tmp_path/served on this machine, and return (folder, address)."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=folder)
    ) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def urls_of(monkeypatch, name: str, urls: dict[str, str | None]) -> None:
    entry = catalog.CATALOG[name]
    changed = {**vars(entry), "urls": lambda by_hand: urls}
    monkeypatch.setattr(
        catalog, "CATALOG", {**catalog.CATALOG, name: catalog.CatalogEntry(**changed)}
    )


def fetch_refused(
    root: Path, *says: str, name: str = "omniglot", kind: type[CfslError] = FetchError
) -> str:
    with pytest.raises(kind) as caught:
        catalog.fetch_dataset(name, root=root)
    message = str(caught.value)
    assert "\n" not in message
    for text in says:
        assert text in message
    assert content_of(root) == {}
    assert not [path for path in root.rglob("*") if path.is_file() and "downloads" in path.parts]
    return message


def test_without_a_network_the_message_says_where_the_files_are(
    tmp_path, monkeypatch, no_open_sockets
):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    closed = {
        url.replace(omniglot.BASE_URL, "http://127.0.0.1:9/"): sum_
        for url, sum_ in omniglot.DOWNLOADS.items()
    }
    monkeypatch.setattr(omniglot, "DOWNLOADS", closed)
    fetch_refused(tmp_path, *closed, "Connection refused", "cfsl data add omniglot --from FOLDER")


@pytest.mark.parametrize("name", ["omniglot", "slimagenet64"])
def test_behind_a_dead_proxy_the_message_says_how_to_add_the_files(
    tmp_path, monkeypatch, no_open_sockets, name
):
    for variable in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    where = slimagenet64.ZENODO_DOI if name == "slimagenet64" else omniglot.BASE_URL
    fetch_refused(tmp_path, where, f"cfsl data add {name} --from FOLDER", name=name)


def test_a_download_with_a_wrong_checksum_is_refused(tmp_path, monkeypatch, server):
    folder, address = server
    write_tar(folder / "slim.tar", part_files("slim/"))
    urls_of(monkeypatch, "slimagenet64", {f"{address}/slim.tar": "md5:" + "0" * 32})
    fetch_refused(
        tmp_path / "root",
        "slim.tar could not be fetched",
        "does not match the known hash",
        name="slimagenet64",
    )


def test_a_download_that_the_server_does_not_have_is_refused(tmp_path, monkeypatch, server):
    urls_of(monkeypatch, "slimagenet64", {f"{server[1]}/gone.tar": None})
    fetch_refused(tmp_path / "root", "gone.tar could not be fetched: 404", name="slimagenet64")


def test_a_download_that_stops_half_way_is_refused(tmp_path, monkeypatch, server):
    folder, address = server
    write_tar(folder / "short.tar", part_files("slim/"))
    urls_of(monkeypatch, "slimagenet64", {f"{address}/short.tar": None})
    fetch_refused(
        tmp_path / "root",
        "short.tar could not be fetched",
        "100 more expected",
        name="slimagenet64",
    )


def test_a_download_folder_that_cannot_be_made_is_told(tmp_path, monkeypatch, server):
    (tmp_path / "root").write_text("a file")
    urls_of(monkeypatch, "slimagenet64", {f"{server[1]}/slim.tar": None})
    with pytest.raises(FetchError, match=r"could not be fetched: .*root"):
        catalog.fetch_dataset("slimagenet64", root=tmp_path / "root")


def test_a_data_set_without_an_address_says_how_to_add_it(tmp_path):
    fetch_refused(
        tmp_path,
        "'slim-tiny' has no public address",
        "cfsl data add slim-tiny --from",
        name="slim-tiny",
    )


def test_an_unknown_data_set_gets_a_suggestion(tmp_path):
    fetch_refused(
        tmp_path, "'omniglott'; did you mean 'omniglot'?", name="omniglott", kind=UnknownNameError
    )


def test_an_archive_is_fetched_checked_and_packed(tmp_path, monkeypatch, server):
    folder, address = server
    files = {
        f"slim/{part}/{part}{c}/{n}.png": png(n)
        for part in ("train", "val", "test")
        for c in (0, 1)
        for n in (0, 1)
    }
    content = write_tar(folder / "slim.tar", files).read_bytes()
    checksum = f"md5:{hashlib.md5(content).hexdigest()}"
    urls_of(monkeypatch, "slimagenet64", {f"{address}/slim.tar": checksum})
    counts = slimagenet64.Counts(train=2, val=2, test=2, images=2)
    entry = {
        **vars(catalog.CATALOG["slimagenet64"]),
        "add": catalog._add_slim("SlimageNet64", counts),
    }
    monkeypatch.setattr(catalog, "CATALOG", {"slimagenet64": catalog.CatalogEntry(**entry)})
    received, packed = [], []
    data = catalog.fetch_dataset(
        "slimagenet64",
        root=tmp_path / "root",
        download_progress=lambda done, total: received.append((done, total)),
        progress=packed.append,
    )
    assert data.info.class_names == ("test0", "test1", "train0", "train1", "val0", "val1")
    assert received[-1] == (len(content), len(content)) and sum(packed) == 12
    (folder / "slim.tar").unlink()
    again = catalog.fetch_dataset("slimagenet64", root=tmp_path / "root")
    assert again.fingerprint == data.fingerprint, "what is there is not fetched again"


def test_two_archives_are_fetched_into_one_folder(tmp_path, monkeypatch, server):
    folder, address = server
    for name in omniglot.ARCHIVES:
        write_zip(folder / f"{name}.zip", class_files())
    urls_of(monkeypatch, "omniglot", {f"{address}/{name}.zip": None for name in omniglot.ARCHIVES})
    asked = []
    entry = {**vars(catalog.CATALOG["omniglot"]), "add": asked.append}
    monkeypatch.setattr(catalog, "CATALOG", {"omniglot": catalog.CatalogEntry(**entry)})
    catalog.fetch_dataset("omniglot", root=tmp_path / "root", recipe="inverted")
    request = asked[0]
    assert sorted(path.name for path in request.source.iterdir()) == [
        f"{name}.zip" for name in omniglot.ARCHIVES
    ]
    assert (request.name, request.recipe, request.root) == (
        "omniglot",
        "inverted",
        tmp_path / "root",
    )


# Damage on the disk


@pytest.fixture
def stored(tmp_path):
    """Return (source, root, folder) of a data set on disk."""
    source, root = write_folder(tmp_path / "fine", class_files()), tmp_path / "root"
    return source, root, add(source, root).folder


def change_json(folder: Path, **changes) -> None:
    path = folder / "dataset.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))


DAMAGE = {
    "dataset.json missing": lambda folder: (folder / "dataset.json").unlink(),
    "dataset.json empty": lambda folder: os.truncate(folder / "dataset.json", 0),
    "dataset.json cut": lambda folder: os.truncate(folder / "dataset.json", 200),
    "dataset.json not text": lambda folder: (folder / "dataset.json").write_bytes(b"\xff\x00" * 99),
    "dataset.json a list": lambda folder: (folder / "dataset.json").write_text("[1]"),
    "dataset.json field missing": lambda folder: change_json(folder, pixels_sha256=None),
    "dataset.json field too many": lambda folder: change_json(folder, colour="red"),
    "dataset.json sizes wrong": lambda folder: change_json(folder, class_sizes=[2, 3, 2, 5]),
    "dataset.json sizes missing": lambda folder: change_json(folder, class_sizes=[5, 2, 4]),
    "dataset.json size negative": lambda folder: change_json(folder, class_sizes=[2, -1, 6, 4]),
    "dataset.json of the future": lambda folder: change_json(folder, format=2),
    "pixels.npy missing": lambda folder: (folder / "pixels.npy").unlink(),
    "pixels.npy empty": lambda folder: os.truncate(folder / "pixels.npy", 0),
    "pixels.npy cut in the header": lambda folder: os.truncate(folder / "pixels.npy", 50),
    "pixels.npy cut": lambda folder: os.truncate(folder / "pixels.npy", 500),
    "pixels.npy garbage": lambda folder: (folder / "pixels.npy").write_bytes(b"garbage" * 500),
    "pixels.npy a zip": lambda folder: write_npz(folder / "x.npz").rename(folder / "pixels.npy"),
    "pixels.npy pickled": lambda folder: np.save(
        folder / "pixels.npy", np.array([None]), allow_pickle=True
    ),
    "splits missing": lambda folder: shutil.rmtree(folder / "splits"),
    "splits shuffled damaged": lambda folder: (folder / "splits" / "shuffled.json").write_text("{"),
    "folder missing": shutil.rmtree,
    "current empty": lambda folder: (folder.parent / "current").write_text(""),
    "current garbage": lambda folder: (folder.parent / "current").write_bytes(b"\xff\xfe\x00" * 9),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_told_at_opening_and_mended_by_adding_again(stored, what):
    source, root, folder = stored
    whole = open_dataset("mine", root=root).fingerprint
    DAMAGE[what](folder)
    with pytest.raises((DataError, UnknownNameError)) as caught:
        open_dataset("mine", root=root)
    message = str(caught.value)
    assert "\n" not in message
    expected = {"splits": "split", "folder": "dataset.json", "current": "dataset.json"}
    assert expected.get(what.split()[0], what.split()[0]) in message
    if what.startswith(("dataset", "pixels")):
        assert "add the data set again" in message
    data = add(source, root)
    assert data.fingerprint == whole and hash_pixels(data.folder) == data.info.pixels_sha256
    assert len(list((root / "mine").iterdir())) == 2


def test_a_data_set_of_a_future_format_says_so(stored):
    change_json(stored[2], format=7)
    with pytest.raises(DataError, match="has format 7, this version of cfsl reads 1"):
        open_dataset("mine", root=stored[1])


def test_one_flipped_byte_is_noticed_and_mended_by_adding_again(stored):
    source, root, folder = stored
    content = bytearray((folder / "pixels.npy").read_bytes())
    content[-77] ^= 1
    (folder / "pixels.npy").write_bytes(content)
    data = open_dataset("mine", root=root)
    assert hash_pixels(data.folder) != data.info.pixels_sha256
    mended = add(source, root)
    assert hash_pixels(mended.folder) == mended.info.pixels_sha256 == data.info.pixels_sha256
    assert mended.folder != folder and not folder.exists()


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damaged_image_names_are_noticed_and_mended_by_adding_again(stored, damage):
    source, root, folder = stored
    names = open_dataset("mine", root=root).image_names
    if damage == "missing":
        (folder / "images.txt").unlink()
        with pytest.raises(
            DataError, match=r"images.txt is missing or damaged .*; add the data set again"
        ):
            assert open_dataset("mine", root=root).image_names
    else:
        os.truncate(folder / "images.txt", 10)
    assert add(source, root).image_names == names


def test_verify_notices_a_flipped_byte(stored):
    _, root, folder = stored
    command = [sys.executable, "-m", "cfsl", "data", "verify", "mine"]
    environment = {**os.environ, "CFSL_DATA": str(root)}
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
    with (folder / "pixels.npy").open("r+b") as pixels:
        pixels.seek(-1, os.SEEK_END)
        last = pixels.read(1)[0]
        pixels.seek(-1, os.SEEK_END)
        pixels.write(bytes([last ^ 1]))
    told = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert told.returncode == 2
    assert "mine is damaged" in told.stderr and "add it again" in told.stderr.replace("\n", " ")
