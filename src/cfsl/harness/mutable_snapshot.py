"""A snapshot of what outlives a call: the learner object, its classes, and their modules.

Everything that can change in them is noted once, with what it holds. Looking for a change is then
mostly a comparison of identities, quick enough to be made after every call.
"""

from __future__ import annotations

import functools
import gc
import io
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch

_LIBRARIES = frozenset(
    {"builtins", "typing", "abc", "pydantic", "pydantic_core", "torch", "numpy", "collections"}
)
_OURS = frozenset({"cfsl.spec", "cfsl.learners.base"})  # base classes that hold nothing
_PLAIN = (bool, int, float, complex, str, bytes, range, type(None), type(...))


_READERS: dict[type, Callable[[Any], Any]] = {
    io.BytesIO: io.BytesIO.getvalue,
    io.StringIO: io.StringIO.getvalue,
    random.Random: random.Random.getstate,
    np.random.Generator: lambda generator: generator.bit_generator.state,
    np.random.RandomState: lambda generator: generator.get_state(legacy=False),
    torch.Generator: lambda generator: generator.get_state().numpy().tobytes(),
}
"""How to read the content of objects that Python does not show."""


class MutableSnapshot:
    """Everything that code of a learner could write to and find again."""

    def __init__(self, learner: Any) -> None:
        """Note what the learner, its classes and their modules hold, and the learners inside it."""
        self._notes: list[_Note] = []
        self._seen: dict[int, Any] = {}  # holds what it has seen, or ids would be used again

        owners: list[tuple[str, Any, str]] = []
        if hasattr(learner, "__dict__"):
            owners.append(("the learner", learner, type(learner).__module__))
        classes = _own_classes(learner)
        owners += [(f"class {kind.__qualname__}", kind, kind.__module__) for kind in classes]
        modules = {kind.__module__ for kind in classes} & sys.modules.keys()
        owners += [(f"module {name}", sys.modules[name], name) for name in sorted(modules)]

        self._seen |= {id(owner): owner for _, owner, _ in owners}
        for name, owner, module in owners:
            self._note_owner(name, owner, module)

    def first_change(self) -> str | None:
        """Return where something has changed since the beginning, or None."""
        for note in self._notes:
            place = note.change()
            if place is not None:
                return place
        return None

    def _note_owner(self, name: str, owner: Any, module: str) -> None:
        self._note_attributes(name, owner)
        for key, value in _attributes(owner).items():
            self._walk(value, _Place(f"{name}, {key}", module))

    def _note_attributes(self, name: str, owner: Any) -> None:
        values = vars(owner)
        self._notes.append(
            _Note(name, lambda: (*values, *values.values()), lambda: _attributes(owner))
        )

    def _walk(self, value: Any, at: _Place) -> None:
        """Note a value that can change, and what can change in it; stay within its module."""
        is_hint = (
            isinstance(value, types.GenericAlias | types.UnionType)
            or type(value).__module__ == "typing"
        )
        if isinstance(value, (*_PLAIN, types.ModuleType)) or is_hint or id(value) in self._seen:
            return
        self._seen[id(value)] = value

        if type(value) is tuple:
            self._walk_all(value, at)
            return

        content = _content_of(value)
        if content is not None:
            self._notes.append(_Note(at.name, content, lambda: {"": content()[0]}))
        elif isinstance(value, classmethod | staticmethod | property | types.FunctionType | type):
            self._walk_code(value, at)
        elif isinstance(value, dict):
            self._note_holdings(value, at, lambda: (*value, *value.values()))
        else:
            if hasattr(value, "__dict__"):
                self._note_attributes(at.name, value)
                self._walk_all(vars(value).values(), at)
            self._note_holdings(value, at, lambda: tuple(gc.get_referents(value)))

    def _walk_all(self, values: Any, at: _Place) -> None:
        for value in list(values):
            self._walk(value, at)

    def _walk_code(self, value: Any, at: _Place) -> None:
        """Walk functions and classes of the learner's own module."""
        if isinstance(value, classmethod | staticmethod):
            self._walk(value.__func__, at)
        elif isinstance(value, property):
            self._walk_all([value.fget, value.fset], at)
        elif value.__module__ != at.module:
            return
        elif isinstance(value, type):
            self._note_attributes(at.name, value)
            self._walk_all(_attributes(value).values(), at)
        else:
            self._note_holdings(value, at, functools.partial(_function_holdings, value))

    def _note_holdings(
        self, value: Any, at: _Place, holdings: Callable[[], tuple[Any, ...]]
    ) -> None:
        self._notes.append(_Note(at.name, holdings, lambda: dict(enumerate(holdings()))))
        self._walk_all(holdings(), at)


class _Place(NamedTuple):
    """Where the walk is."""

    name: str
    module: str
    """Only functions and classes of this module are the learner's, and looked into."""


class _Note:
    """Something that can change, and what it held when it was noted."""

    def __init__(
        self,
        place: str,
        holdings: Callable[[], tuple[Any, ...]],
        named: Callable[[], Mapping[Any, Any]],
    ) -> None:
        self._place, self._holdings, self._named = place, holdings, named
        self._held, self._held_by_name = holdings(), dict(named())

    def change(self) -> str | None:
        """Return the place of a change, or None. An equal number is no change."""
        now = self._holdings()
        if len(now) == len(self._held) and all(map(is_, now, self._held)):
            return None

        named, before = self._named(), self._held_by_name
        changed = [
            k
            for k in named.keys() | before.keys()
            if not _is_same(named.get(k, _GONE), before.get(k, _GONE))
        ]

        if changed:
            key = min(map(str, changed))
            return f"{self._place}, {key}" if isinstance(changed[0], str) and key else self._place
        self._held = now
        return None


_GONE = object()


def _is_same(a: Any, b: Any) -> bool:
    """Compare plain values by how they are written: -0.0 is not 0.0, and NaN is NaN."""
    if a is b or type(a) is not type(b) or not isinstance(a, _PLAIN):
        return a is b
    return bool(a == b) if isinstance(a, bytes) else repr(a) == repr(b)


def _attributes(owner: Any) -> dict[str, Any]:
    """Return what a module, class or object holds but for what Python itself puts into it."""
    is_module = isinstance(owner, types.ModuleType)
    return {
        key: value
        for key, value in vars(owner).items()
        if not (is_module and key.startswith("__")) and not _is_machinery(key, value)
    }


def _content_of(value: Any) -> Callable[[], tuple[Any]] | None:
    """Return a function that reads the content of a value, if values of its kind have one."""
    if isinstance(value, torch.Tensor):
        return lambda: (
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
        )

    for kind, read in _READERS.items():
        if isinstance(value, kind):
            return lambda: (repr(read(value)).encode(),)
    if isinstance(value, functools._lru_cache_wrapper):
        return lambda: (str(value.cache_info()[1:]),)

    try:
        memoryview(value)
    except (TypeError, ValueError):
        return None
    return lambda: (memoryview(value).tobytes(),)


def _function_holdings(function: types.FunctionType) -> tuple[Any, ...]:
    cells = tuple(map(_cell_content, function.__closure__ or ()))
    attributes = function.__dict__
    return (
        function.__defaults__,
        function.__kwdefaults__,
        *attributes,
        *attributes.values(),
        *cells,
    )


def _cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a cell that is not filled yet
        return _GONE


def _own_classes(learner: Any) -> list[type]:
    """Return the classes of a learner and of the learners inside it but for those of libraries."""
    classes = {kind: None for part in _with_parts(learner) for kind in type(part).__mro__}
    return [
        kind
        for kind in classes
        if kind.__module__ not in _OURS and kind.__module__.split(".")[0] not in _LIBRARIES
    ]


def _with_parts(learner: Any) -> Iterator[Any]:
    """Yield a learner and the learners it wraps."""
    yield learner
    for value in vars(learner).values() if hasattr(learner, "__dict__") else ():
        if hasattr(value, "observe"):
            yield from _with_parts(value)


def _is_machinery(name: str, value: Any) -> bool:
    """Tell attributes that Python and pydantic fill in by themselves."""
    if name == "__annotations__" and value == {}:  # appears when somebody asks for it
        return True
    return name.startswith(("__pydantic", "_abc_")) or name in (
        "__weakref__",
        "__dict__",
        "__doc__",
        "__module__",
    )
