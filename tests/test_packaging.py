"""What goes into a wheel and a source archive: the whole package, and no result cards."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import cfsl

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MEGABYTE = 1e6


def test_git_and_the_wheel_ignore_no_folder_of_the_package():
    """Hatchling leaves out what git ignores: 'runs/' alone would match src/cfsl/runs."""
    lines = (ROOT / ".gitignore").read_text("utf-8").split("\n")
    anywhere = {line.strip("/") for line in lines if line and "/" not in line.rstrip("/")}
    folders = {path.name for path in (ROOT / "src" / "cfsl").rglob("*") if path.is_dir()}
    assert folders & anywhere == {"__pycache__"} & folders


def test_the_source_archive_is_small():
    included = SETTINGS["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    assert "src/cfsl" in included and "results" not in included
    files = [
        file
        for name in included
        for file in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]
    assert sum(file.stat().st_size for file in files) < 20 * MEGABYTE


def test_a_working_torch_is_not_replaced():
    (torch,) = [one for one in SETTINGS["project"]["dependencies"] if one.startswith("torch")]
    assert re.fullmatch(r"torch>=\d+\.\d+", torch)


def test_what_only_some_need_is_an_extra_and_the_tests_have_it():
    extras = SETTINGS["project"]["optional-dependencies"]
    required = " ".join(SETTINGS["project"]["dependencies"])
    for extra in ("fast", "ray", "report", "sweep", "tensorboard"):
        assert set(extras[extra]) <= set(extras["dev"])
        assert not any(one.split(">")[0] in required.split() for one in extras[extra])


def test_one_version_stands_everywhere():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {cfsl.__version__}\n" in citation
    assert f"\n## Unreleased ({cfsl.__version__})\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")
