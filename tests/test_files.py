"""Files are written whole or not at all, and part files do not stay."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cfsl.files import written_whole
from killed_writer import kill_while_writing

WRITE_WHEN_TOLD = """
import sys
from pathlib import Path

from cfsl.files import written_whole

with written_whole(Path(sys.argv[1])) as part:
    part.write_text("slow")
    print("writing", flush=True)
    sys.stdin.readline()
"""


def test_a_file_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "card.json"
    path.write_text("old")
    with written_whole(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_no_part_file(tmp_path, error):
    path = tmp_path / "card.json"
    path.write_text("old")
    with pytest.raises(error), written_whole(path) as part:
        part.write_text("half of it")
        raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_the_part_file_of_a_killed_process_is_removed_by_the_next_writer_in_the_folder(tmp_path):
    path = tmp_path / "card.json"
    left = kill_while_writing(path)
    assert left.read_text() == "half of it" and not path.exists()

    with written_whole(tmp_path / "another.json") as part:
        assert not left.exists()
        part.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["another.json"]


def test_the_part_file_of_a_process_that_still_writes_stays(tmp_path):
    path = tmp_path / "card.json"
    command = [sys.executable, "-c", WRITE_WHEN_TOLD, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.readline() == "writing\n"
        with written_whole(path) as part:
            part.write_text("quick")
        assert path.read_text() == "quick"
        writer.communicate("go on\n")

    assert writer.returncode == 0
    assert path.read_text() == "slow" and list(tmp_path.iterdir()) == [path]


def test_part_files_of_other_machines_and_other_programs_stay(tmp_path):
    left = kill_while_writing(tmp_path / "card.json")
    process = left.suffixes[-2]
    others = {f".card.json.00000000{process}.part", f".card.json{process}.part", "card.part"}
    for name in others:
        (tmp_path / name).touch()

    with written_whole(tmp_path / "card.json") as part:
        part.write_text("whole")
    assert {path.name for path in tmp_path.iterdir()} == others | {"card.json"}
