"""The byte form of a state: the only thing that passes between a child and cfsl.

    4 bytes     the length of the structure, little-endian
    structure   JSON: which dicts, lists, tensors and numbers there are, in which order
    values      the bytes of all tensors and numbers, in that order

A state has one byte form only, so that nothing can be hidden in the choice between several. What a
child sends is hostile until `decoded` has checked it: whatever is not on the list below is refused.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cfsl.errors import LearnerError

DTYPES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""The tensors that a state may hold, and the bytes of one element."""
NUMBER_BYTES = 8
LONGEST_NAME = 64
LONGEST_STRUCTURE = 2**22
LARGEST_STATE = 2**30
_DEEPEST = 32
_MOST_PARTS = 100_000
_LENGTH = struct.Struct("<I")

Tree: TypeAlias = Any
"""Nested dicts, lists and tuples of `TensorBytes`, `WeightReference`, `TaskInfoReference`, int,
float, bool and None."""


class WireError(LearnerError):
    """Bytes that are not the byte form of a state."""


@dataclass(frozen=True)
class TensorBytes:
    """A dense tensor, as bytes."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes | bytearray | memoryview


@dataclass(frozen=True)
class WeightReference:
    """A tensor of the learned weights, by its path."""

    path: str


@dataclass(frozen=True)
class TaskInfoReference:
    """What the learner was told about the task."""


def encoded(tree: Tree) -> bytes:
    """Return the byte form of a tree."""
    values: list[bytes | bytearray | memoryview] = []
    structure = _dumped(_written(tree, values))
    return b"".join([_LENGTH.pack(len(structure)), structure, *values])


def structure_of(data: bytes) -> bytes:
    """Return the part of a byte form that says what there is, without the values."""
    if len(data) < _LENGTH.size:
        raise WireError(f"{len(data)} bytes are too few for a state")
    (length,) = _LENGTH.unpack_from(data)
    if length > LONGEST_STRUCTURE or _LENGTH.size + length > len(data):
        raise WireError(f"a structure of {length} bytes is too long")
    return data[_LENGTH.size : _LENGTH.size + length]


def values_of(data: bytes) -> memoryview:
    """Return the part of a byte form that holds the values."""
    return memoryview(data)[_LENGTH.size + len(structure_of(data)) :]


def decoded(data: bytes, weights: Container[str] = ()) -> Tree:
    """Read a byte form; `weights` are the paths that it may refer to."""
    if len(data) > LARGEST_STATE:
        raise WireError(f"a state of {len(data)} bytes is too large (at most {LARGEST_STATE})")
    structure = structure_of(data)

    try:
        parsed = json.loads(structure.decode("ascii"))
        written_again = _dumped(parsed)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the structure is no JSON: {type(error).__name__}") from None
    if written_again != structure:
        raise WireError("the structure is not written in the one canonical way")

    reader = _Reader(values_of(data), weights)
    tree = reader.read(parsed)
    reader.require_end()
    return tree


def _dumped(structure: Any) -> bytes:
    return json.dumps(structure, separators=(",", ":")).encode("ascii")


def _written(node: Tree, values: list[bytes | bytearray | memoryview]) -> Any:
    """Return the structure of a tree; its values are appended to `values`."""
    if node is None:
        return ["none"]
    if type(node) is bool:
        values.append(int(node).to_bytes(NUMBER_BYTES, "little"))
        return ["bool"]
    if type(node) is int:
        values.append(node.to_bytes(NUMBER_BYTES, "little", signed=True))
        return ["int"]
    if type(node) is float:
        values.append(struct.pack("<d", node))
        return ["float"]
    if type(node) is TensorBytes:
        values.append(node.content)
        return ["tensor", node.dtype, list(node.shape)]
    if type(node) is WeightReference:
        return ["weights", node.path]
    if type(node) is TaskInfoReference:
        return ["info"]
    if type(node) is dict:
        return ["dict", [[name, _written(value, values)] for name, value in node.items()]]
    if type(node) in (list, tuple):
        return [type(node).__name__, [_written(value, values) for value in node]]
    raise WireError(f"a {type(node).__name__} has no byte form")


class _Reader:
    """Reads a structure of JSON, taking the values from the bytes behind it."""

    def __init__(self, values: memoryview, weights: Container[str]) -> None:
        self._values, self._weights = values, weights
        self._at, self._parts = 0, 0

    def read(self, node: Any, depth: int = 0) -> Tree:
        self._parts += 1
        if depth > _DEEPEST or self._parts > _MOST_PARTS:
            raise WireError(f"a state has at most {_MOST_PARTS} parts, {_DEEPEST} deep")
        if type(node) is not list or not node or type(node[0]) is not str:
            raise WireError("a part of the structure has no kind")

        kind, *rest = node
        if not rest:
            return self._read_plain(kind)
        if len(rest) == 1 and kind in ("dict", "list", "tuple"):
            return self._read_parts(kind, rest[0], depth)
        if len(rest) == 1 and kind == "weights":
            return self._read_reference(rest[0])
        if len(rest) == 2 and kind == "tensor":
            return self._read_tensor(*rest)
        raise WireError(f"there is no kind {kind[:20]!r} with {len(rest)} arguments")

    def require_end(self) -> None:
        if self._at != len(self._values):
            raise WireError(f"{len(self._values) - self._at} bytes belong to nothing")

    def _read_plain(self, kind: str) -> Tree:
        if kind == "none":
            return None
        if kind == "info":
            return TaskInfoReference()
        if kind == "int":
            return int.from_bytes(self._take(NUMBER_BYTES), "little", signed=True)
        if kind == "float":
            return struct.unpack("<d", self._take(NUMBER_BYTES))[0]
        if kind == "bool":
            number = int.from_bytes(self._take(NUMBER_BYTES), "little")
            if number > 1:
                raise WireError("a bool is neither 0 nor 1")
            return bool(number)
        raise WireError(f"there is no kind {kind[:20]!r}")

    def _read_parts(self, kind: str, parts: Any, depth: int) -> Tree:
        if type(parts) is not list:
            raise WireError(f"the parts of a {kind} are no list")
        if kind == "dict":
            return self._read_dict(parts, depth)
        values = [self.read(part, depth + 1) for part in parts]
        return tuple(values) if kind == "tuple" else values

    def _read_dict(self, entries: list[Any], depth: int) -> dict[str, Tree]:
        found: dict[str, Tree] = {}
        for entry in entries:
            if type(entry) is not list or len(entry) != 2:
                raise WireError("an entry of a dict is no name with a value")
            name, value = entry
            if type(name) is not str or len(name) > LONGEST_NAME or name in found:
                raise WireError(f"{str(name)[:20]!r} is no name, too long a name, or there twice")
            found[name] = self.read(value, depth + 1)
        return found

    def _read_reference(self, path: Any) -> WeightReference:
        if type(path) is not str or path not in self._weights:
            raise WireError(f"there are no learned weights {str(path)[:40]!r}")
        return WeightReference(path)

    def _read_tensor(self, dtype: Any, shape: Any) -> TensorBytes:
        if type(dtype) is not str or dtype not in DTYPES:
            raise WireError(f"tensors of {str(dtype)[:20]!r} may not cross")
        lengths_are_sound = type(shape) is list and all(
            type(length) is int and 0 <= length <= LARGEST_STATE for length in shape
        )
        if not lengths_are_sound or len(shape) > _DEEPEST:
            raise WireError("a tensor has no sound shape")

        content = self._take(math.prod(shape) * DTYPES[dtype])
        if dtype == "bool" and content.nbytes and np.frombuffer(content, np.uint8).max() > 1:
            raise WireError("a tensor of bool holds neither 0 nor 1")
        return TensorBytes(dtype, tuple(shape), content)

    def _take(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._values):
            raise WireError(f"{size} bytes are promised, {len(self._values) - self._at} are there")
        taken = self._values[self._at : end]
        self._at = end
        return taken
