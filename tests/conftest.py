"""Fixtures of all tests, and the check of array shapes in every test.

Jaxtyping and beartype check the annotations of all modules that hold arrays. Real data is found
through CFSL_TEST_DATA; tests that need it are skipped without it, and all others run on glyphs and
on small archives that the tests make.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jaxtyping
import pytest

_DATA_WITH_ARRAYS = (
    "arrays",
    "glyphs",
    "images",
    "manifest",
    "recipe",
    "splits",
    "store",
    "summary",
    "tasks",
)
_WITH_ARRAYS = [
    "cfsl.sampling",
    "cfsl.corrupt",
    "cfsl.report",
    "cfsl.metrics",
    "cfsl.harness.trace",
    "cfsl.harness.macs",
]
# Not nets.fused: beartype chooses items of lists by a generator that the data-flow law watches.
_WITH_ARRAYS += (
    f"cfsl.nets.{name}"
    for name in ("base", "convnet", "dense", "layers", "resnet12", "small_resnet")
)
_WITH_ARRAYS += (f"cfsl.data.{name}" for name in _DATA_WITH_ARRAYS)
jaxtyping.install_import_hook(_WITH_ARRAYS, "beartype.beartype")

from hypothesis import HealthCheck, settings  # noqa: E402 - the hook has to come first

settings.register_profile("cfsl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cfsl")


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs under test, also from tests that run in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_GROUP_OF_FILE = {
    "test_bench": "bench",
    "test_cli": "cli",
    "test_data": "omniglot",
    "test_examples": "omniglot",
    "test_glyphs": "omniglot",
    "test_sandbox": "sandbox",
    "test_sandbox_cheats": "sandbox",
    "test_perform": "perform",
    "test_ray": "ray",
    "test_ready": "omniglot",
    "test_report": "report",
    "test_sweep": "sweep",
    "test_tasks": "omniglot",
    "test_training": "training",
    "test_verify": "verify",
    "test_workers": "workers",
}
"""One process runs all files of a group, which share fixtures that take seconds to make."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object):
    """Give tests to processes one by one; groups stay together, and come first."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _GROUP_OF_FILE.get(Path(nodeid.split("::")[0]).stem, nodeid)

    return Scheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture(scope="session", autouse=True)
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep the tests away from the user's own data sets."""
    root = tmp_path_factory.mktemp("data")
    os.environ["CFSL_DATA"] = str(root)
    return root


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Let every test process use one core: more threads than cores make all of them slower."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder with the real archives, or skip."""
    folder = Path(os.environ.get("CFSL_TEST_DATA", "no-such-folder"))
    if not folder.is_dir():
        pytest.skip("CFSL_TEST_DATA is not set")
    return folder


@pytest.fixture(scope="session")
def glyphs(data_root: Path):
    """Return a small glyphs data set."""
    from cfsl.data.catalog import load

    return load("glyphs-400x20")


@pytest.fixture(scope="session")
def omniglot(real_data: Path, data_root: Path):
    """Return the real Omniglot, imported once."""
    from cfsl.data.catalog import AddRequest, add_dataset

    return add_dataset(AddRequest(name="omniglot", source=real_data))


class Result(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    data_root: Path,
) -> Callable[..., Result]:
    """Run the command in this process, in an empty folder."""
    import cfsl.cli

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["cfsl", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cfsl.cli.main()
        return Result(int(stop.value.code or 0), *capsys.readouterr())

    return run
