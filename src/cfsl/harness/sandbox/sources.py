"""The source files of a learner, read by the fork server for children that can open no file.

A learner's own module, and the modules that its `import` statements name, are read as text and
never run here: every child runs them anew, from memory. Libraries that are trusted (`TRUSTED`: the
standard library, torch, numpy and a few more, from where Python is installed) are imported once
instead, and children find them ready.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import site
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from cfsl.errors import LearnerError

TRUSTED = frozenset(sys.stdlib_module_names) | {
    *("cfsl", "torch", "numpy", "jaxtyping", "pydantic", "typing_extensions", "safetensors"),
    *("scipy", "sklearn", "torchvision", "einops", "timm", "transformers", "PIL"),
}
"""Libraries that the fork server imports itself: they run before the lock."""
_NEVER = frozenset({"antigravity", "this", "test", "idlelib", "turtledemo"})
"""Modules of the standard library that do something when they are imported."""
_MOST_BYTES = 2**24
_MAIN = "__main__"


@dataclass(frozen=True)
class SourceFile:
    """A module as text."""

    path: str
    text: bytes
    is_package: bool


@dataclass
class Sources:
    """The modules that a learner is made of, by their names."""

    modules: dict[str, SourceFile] = field(default_factory=dict)
    libraries: set[str] = field(default_factory=set)
    """The trusted modules that they import."""

    @classmethod
    def of(cls, module: str, folders: Sequence[str], main_file: str | None) -> Sources:
        """Read a module and what it imports; `main_file` is the script that calls itself main."""
        sources = cls()
        if module == _MAIN and main_file is not None:
            sources._add(_MAIN, Path(main_file), is_package=False)
        waiting = {module, *sources._imported_by([_MAIN])}

        while waiting:
            name = waiting.pop()
            top = name.partition(".")[0]
            if top in TRUSTED:
                sources.libraries.add(name)
            elif top not in sources.modules:
                added = sources._add_from(top, folders)
                waiting |= set(sources._imported_by(added))
        return sources

    def _add_from(self, name: str, folders: Sequence[str]) -> list[str]:
        """Read a module, or a package with all in it, from the first folder that has it."""
        for folder in map(Path, folders):
            package, module = folder / name / "__init__.py", folder / f"{name}.py"
            if _is_plain_file(package):
                return list(self._add_package(name, package.parent))
            if _is_plain_file(module):
                self._add(name, module, is_package=False)
                return [name]
        return []

    def _add_package(self, name: str, folder: Path) -> Iterator[str]:
        for path in sorted(folder.iterdir()):
            inner = path / "__init__.py"
            if path.is_dir() and not path.is_symlink() and _is_plain_file(inner):
                yield from self._add_package(f"{name}.{path.name}", path)
            elif path.suffix == ".py" and _is_plain_file(path):
                is_package = path.stem == "__init__"
                module = name if is_package else f"{name}.{path.stem}"
                self._add(module, path, is_package=is_package)
                yield module

    def _add(self, name: str, path: Path, *, is_package: bool) -> None:
        so_far = sum(len(source.text) for source in self.modules.values())
        if so_far + path.stat().st_size > _MOST_BYTES:
            raise LearnerError(
                f"the sources of the learner have more than {_MOST_BYTES // 2**20} MB"
            )
        self.modules[name] = SourceFile(str(path), path.read_bytes(), is_package)

    def _imported_by(self, modules: Iterable[str]) -> Iterator[str]:
        """Yield the names after `import` and `from` in these modules."""
        for module in modules:
            source = self.modules.get(module)
            with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                yield from _imported_names(ast.parse(source.text)) if source else ()


def _imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def import_libraries(names: Iterable[str]) -> None:
    """Import trusted modules now; a child will say what is wrong, if it needs one that is not."""
    for name in sorted(names):
        parts = name.split(".")
        if parts[0] not in _NEVER and "__main__" not in parts:
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(name)


def trusted_folders(folders: Iterable[str]) -> list[str]:
    """Return those folders of a search path that Python or cfsl is installed in."""
    homes = {sys.prefix, sys.base_prefix, sys.exec_prefix, site.getusersitepackages()}
    ours = Path(__file__).resolve().parents[3]
    return [
        folder
        for folder in folders
        if folder
        and (
            Path(folder).resolve() == ours
            or any(Path(folder).resolve().is_relative_to(Path(home).resolve()) for home in homes)
        )
    ]


class SourceImporter(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the learner's modules in a child, from memory."""

    def __init__(self, modules: Mapping[str, SourceFile]) -> None:
        """Serve these modules."""
        self._modules = modules

    def install(self) -> None:
        """Be the only one who imports: there is no file to be found by others."""
        builtin = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)
        sys.meta_path[:] = [self, *builtin, _NotHere]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module by its name."""
        source = self._modules.get(fullname)
        if source is None:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=source.path, is_package=source.is_package
        )
        spec.has_location = True
        return spec

    def get_source(self, fullname: str) -> str:
        """Return the text of a module: for error messages, too."""
        return importlib.util.decode_source(self._modules[fullname].text)

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        """Compile a module."""
        source = self._modules[fullname]
        return compile(source.text, source.path, "exec", dont_inherit=True)

    def is_package(self, fullname: str) -> bool:
        """Tell a package from a module."""
        return self._modules[fullname].is_package


class _NotHere(importlib.abc.MetaPathFinder):
    """Says why a module cannot be imported."""

    @classmethod
    def find_spec(cls, fullname: str, path: object, target: object = None) -> None:
        raise ModuleNotFoundError(
            f"there is no module {fullname} in the sandbox: it has the learner's own Python files "
            f"and the libraries that these import by name (see docs/data-flow.md)",
            name=fullname,
        )
