"""Bad archives, folders and images are refused in one line, and change no data set."""

from __future__ import annotations

import errno
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from archives import (
    WEB_PAGE,
    class_files,
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
from cfsl.data import archive
from cfsl.errors import ArchiveError, DataError, ImageError

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
    source.write_bytes(start + WEB_PAGE)
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
