"""Full disks, killed imports and damaged files: a data set is whole, or said to be damaged."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from archives import add, class_files, content_of, write_folder, write_npz, write_zip
from cfsl.data import build
from cfsl.data.store import hash_pixels, installed, open_dataset
from cfsl.errors import DataError, UnknownNameError

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
        root = roots / str(number)
        options = {"root": root, "size": 64, "progress": progress, "replace": True}
        add_dataset(AddRequest(name="mine", source=source, **options))
        os._exit(0)
    if number >= 9:
        time.sleep(random.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
MOMENTS = 21


def assert_nothing_left_over(home: Path) -> None:
    current = (home / "current").read_text().strip()
    assert {path.name for path in home.iterdir()} == {"current", current}


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
