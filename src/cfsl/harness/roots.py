"""The places that outlive a call: the learner object, its classes, and the modules they were written in."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

_LIBRARIES = frozenset({"builtins", "typing", "abc", "pydantic", "pydantic_core", "torch", "numpy", "collections"})
_OURS = frozenset({"cfsl.spec", "cfsl.learners.base"})  # base classes that hold nothing
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, range, type(None), type(...))


class _Root(NamedTuple):
    """A thing whose attributes are watched."""

    name: str
    owner: Any
    module: str
    """Functions and classes of this module are looked into; those of others are not the learner's."""


class Roots:
    """Digests of everything that code of a learner could write to and find again."""

    def __init__(self, roots: list[_Root]) -> None:
        """Digest the roots as they are now."""
        self._roots = roots
        self._before = dict(self._digests())

    @classmethod
    def of(cls, learner: Any) -> Roots:
        """Find the classes and modules of a learner, and of the learners inside it."""
        roots = [_Root("the learner", learner, type(learner).__module__)] if hasattr(learner, "__dict__") else []
        classes = {c: None for part in _with_parts(learner) for c in type(part).__mro__}
        own = [c for c in classes if c.__module__ not in _OURS and c.__module__.split(".")[0] not in _LIBRARIES]
        roots += [_Root(f"class {c.__qualname__}", c, c.__module__) for c in own]
        modules = sorted({c.__module__ for c in own} & sys.modules.keys())
        return cls(roots + [_Root(f"module {name}", sys.modules[name], name) for name in modules])

    def first_change(self) -> str | None:
        """Return where something has changed since the beginning, or None."""
        now = dict(self._digests())
        changed = [place for place in now.keys() | self._before.keys() if now.get(place) != self._before.get(place)]
        return min(changed) if changed else None

    def _digests(self) -> Iterator[tuple[str, bytes]]:
        for root in self._roots:
            for key, value in list(vars(root.owner).items()):
                special = isinstance(root.owner, types.ModuleType) and key.startswith("__")
                if not special and not _is_machinery(key, value):
                    yield f"{root.name}, {key}", _Digester(root.module).digest(value)


def _with_parts(learner: Any) -> Iterator[Any]:
    """Yield a learner and the learners it wraps."""
    yield learner
    for value in vars(learner).values() if hasattr(learner, "__dict__") else ():
        if hasattr(value, "observe"):
            yield from _with_parts(value)


class _Digester:
    """Digests a value and what it holds, without leaving the module it belongs to."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._seen: dict[int, Any] = {}  # holds what it has seen, or ids would be used again
        self._hash = hashlib.blake2b(digest_size=16)

    def digest(self, value: Any) -> bytes:
        self._walk(value)
        return self._hash.digest()

    def _add(self, *parts: Any) -> None:
        self._hash.update("\x1f".join(map(str, parts)).encode(errors="replace"))

    def _walk(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._add(type(value).__name__, repr(value))
            return
        if isinstance(value, types.ModuleType) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._add("tensor", value.dtype, tuple(value.shape))
            self._hash.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, np.ndarray):
            self._add("array", value.dtype, value.shape)
            self._hash.update(value.tobytes())
        elif isinstance(value, functools._lru_cache_wrapper):
            self._add("cache", value.cache_info().currsize)
        else:
            self._walk_inside(value)

    def _walk_inside(self, value: Any) -> None:
        """Walk containers, functions, classes and objects."""
        if isinstance(value, dict):
            for key, item in list(value.items()):
                self._add(repr(key)[:200])
                self._walk(item)
        elif isinstance(value, list | tuple | set | frozenset):
            self._add(type(value).__name__, len(value))
            for item in list(value):
                self._walk(item)
        elif isinstance(value, types.FunctionType | type | classmethod | staticmethod | property):
            self._walk_code(value)
        elif hasattr(value, "__dict__"):
            self._add(type(value).__name__)
            self._walk(vars(value))

    def _walk_code(self, value: Any) -> None:
        """Walk functions and classes of the learner's own module."""
        if isinstance(value, classmethod | staticmethod):
            self._walk(value.__func__)
        elif isinstance(value, property):
            self._walk([value.fget, value.fset])
        elif value.__module__ != self._module:
            return
        elif isinstance(value, type):
            self._walk({key: item for key, item in vars(value).items() if not _is_machinery(key, item)})
        else:
            self._walk_function(value)

    def _walk_function(self, function: types.FunctionType) -> None:
        self._walk(function.__defaults__)
        self._walk(function.__kwdefaults__)
        self._walk(function.__dict__)
        for cell in function.__closure__ or ():
            try:
                self._walk(cell.cell_contents)
            except ValueError:  # a cell that is not filled yet
                self._add("empty cell")


def _is_machinery(name: str, value: Any) -> bool:
    """Tell attributes that Python and pydantic fill in by themselves."""
    if name == "__annotations__" and value == {}:  # appears when somebody asks for it
        return True
    return name.startswith(("__pydantic", "_abc_")) or name in ("__weakref__", "__dict__", "__doc__", "__module__")
