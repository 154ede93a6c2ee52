"""The source files of a learner are read, and never run, by the process that children come from."""

from __future__ import annotations

import sys

import pytest

from cfsl.errors import LearnerError
from cfsl.harness.sandbox.sources import SourceImporter, Sources, trusted_folders


def sources_of(folder, module: str = "own") -> Sources:
    return Sources.of(module, [str(folder)], None)


def test_a_module_is_read_with_what_its_import_statements_name(tmp_path):
    (tmp_path / "own.py").write_text("import beside, json\nfrom package.inner import x\n1 / 0")
    (tmp_path / "beside.py").write_text("def late():\n    import further")
    (tmp_path / "further.py").write_text("")
    (tmp_path / "unnamed.py").write_text("")
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for name in ("__init__.py", "other.py", "inner/__init__.py", "inner/deep.py"):
        (tmp_path / "package" / name).write_text("import colorsys")

    found = sources_of(tmp_path)
    inner = {"package", "package.other", "package.inner", "package.inner.deep"}
    assert found.modules.keys() == {"own", "beside", "further", *inner}
    assert {"json", "colorsys"} <= found.libraries
    assert "own" not in sys.modules


def test_a_module_that_takes_the_name_of_a_library_is_not_read(tmp_path):
    (tmp_path / "own.py").write_text("import torch")
    (tmp_path / "torch.py").write_text("")
    assert sources_of(tmp_path).modules.keys() == {"own"}


def test_links_and_files_that_are_no_python_are_not_read(tmp_path):
    (tmp_path / "own.py").write_text("import linked, native, data")
    (tmp_path / "secret").write_text("")
    (tmp_path / "linked.py").symlink_to(tmp_path / "secret")
    (tmp_path / "native.so").write_text("")
    (tmp_path / "data.csv").write_text("")
    assert sources_of(tmp_path).modules.keys() == {"own"}


@pytest.mark.parametrize(
    "text", [b"(" * 10_000, b"\0", b"\xff\xfe", b"import", b"x = " + b"-" * 99_999]
)
def test_text_that_is_no_python_is_read_and_left_to_the_child(tmp_path, text):
    (tmp_path / "own.py").write_bytes(text)
    assert sources_of(tmp_path).modules["own"].text == text


def test_sources_without_end_are_refused(tmp_path):
    (tmp_path / "own.py").write_bytes(b"#" * 2**25)
    with pytest.raises(LearnerError, match="more than 16 MB"):
        sources_of(tmp_path)


def test_only_folders_of_python_and_of_cfsl_are_trusted(tmp_path):
    trusted = trusted_folders(["", str(tmp_path), *sys.path])
    assert str(tmp_path) not in trusted and "" not in trusted
    assert any("site-packages" in folder for folder in trusted)


def test_modules_are_imported_from_memory(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("import beside\nvalue = beside.value")
    (tmp_path / "beside.py").write_text("value = 7")
    found = sources_of(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()

    monkeypatch.setattr(sys, "meta_path", [])
    SourceImporter(found.modules).install()
    try:
        import own

        assert own.value == 7 and own.__file__ == str(tmp_path / "own.py")
        with pytest.raises(ModuleNotFoundError, match="no module elsewhere in the sandbox"):
            import elsewhere  # noqa: F401
    finally:
        sys.modules.pop("own", None)
        sys.modules.pop("beside", None)
