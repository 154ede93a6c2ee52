"""Packed states as frames: what passes between an isolated worker and us, and is never unpickled.

A frame is two little-endian 64-bit lengths, a JSON header, and the bytes of all tensors in the
order in which the header names them. A tree is read from it by a closed list of kinds (`read`).
"""

from __future__ import annotations

import io
import json
import math
import socket
import struct
from collections.abc import Mapping
from typing import Any

import torch

from cfsl.harness.state import INFO, PackedTensor, WeightReference

_LENGTHS = struct.Struct("<QQ")
_READ_AT_ONCE = 1 << 20


def written(node: Any, parts: list[bytearray]) -> Any:
    """Write a packed tree as JSON; the bytes of its tensors go to `parts`."""
    if node is None or type(node) in (bool, int, float):
        return node
    if isinstance(node, PackedTensor):
        parts.append(node.content)
        return {"tensor": [str(node.dtype).removeprefix("torch."), list(node.shape)]}
    if isinstance(node, WeightReference):
        return {"weights": node.path}
    if node is INFO:
        return {"info": None}
    if isinstance(node, dict):
        return {"dict": [[key, written(value, parts)] for key, value in node.items()]}
    return {
        "tuple" if isinstance(node, tuple) else "list": [written(value, parts) for value in node]
    }


def read(node: Any, body: io.BytesIO) -> Any:
    """Read a packed tree. It may come from a worker: whatever is not on this list is refused."""
    if (
        node is None
        or type(node) in (bool, float)
        or (type(node) is int and -(2**63) <= node < 2**63)
    ):
        return node

    ((kind, content),) = node.items()
    if kind == "tensor":
        return _read_tensor(content, body)
    if kind == "weights":
        return WeightReference(str(content))
    if kind == "info":
        return INFO
    if kind == "dict":
        return {_key(key): read(value, body) for key, value in content}
    if kind in ("list", "tuple"):
        values = [read(value, body) for value in content]
        return tuple(values) if kind == "tuple" else values
    raise ValueError(f"there is no kind '{kind}'")


def _read_tensor(content: Any, body: io.BytesIO) -> PackedTensor:
    name, shape = content
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype) or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"there is no tensor of {name} {shape}")
    size = math.prod(shape) * dtype.itemsize
    found = bytearray(body.read(size))
    if len(found) != size:
        raise ValueError(f"a tensor has {len(found)} bytes of {size}")
    return PackedTensor(found, dtype, tuple(shape))


def _key(key: Any) -> str | int:
    if type(key) is str or (type(key) is int and -(2**63) <= key < 2**63):
        return key
    raise ValueError(f"'{key}' is no key")


def send(connection: socket.socket, head: Mapping[str, Any], tree: Any) -> None:
    """Send a header and a packed tree."""
    parts: list[bytearray] = []
    header = json.dumps({**head, "tree": written(tree, parts)}).encode()
    body = b"".join(parts)
    connection.sendall(_LENGTHS.pack(len(header), len(body)) + header)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return the header (JSON) and the bytes of the tensors."""
    header, body = _LENGTHS.unpack(exactly(connection, _LENGTHS.size))
    return exactly(connection, header), exactly(connection, body)


def exactly(connection: socket.socket, size: int) -> bytes:
    """Read so many bytes; memory is taken as they come, and not as they are promised."""
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), _READ_AT_ONCE))
        if not part:
            raise EOFError
        found += part
    return bytes(found)
