"""A learner's state as bytes: what crosses the boundary between two support sets, and its size.

Tensors that *are* learned weights (the same memory) cross as references and cost nothing;
everything else is copied and counted. So a state shares no storage with deleted images, and its
size is measured by the harness, not reported by the learner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cfsl.errors import DataFlowError
from cfsl.learners.base import Meta, State, TaskInfo

_NUMBER_BYTES = 8
_LONGEST_KEY = 64
INFO = object()
"""Stands for what the learner was told about the task."""
_BOOKKEEPING = frozenset({torch.bool, torch.int16, torch.int32, torch.int64})


@dataclass(frozen=True)
class WeightReference:
    """A tensor of the learned weights, by its path."""

    path: str


@dataclass(frozen=True)
class PackedTensor:
    """A tensor that belongs to the state alone."""

    content: bytearray
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PackedState:
    """A state that shares no memory with anything."""

    tree: Any
    total: int
    """Bytes that are not shared with the learned weights."""
    bookkeeping: int
    """How many of these bytes are counts and labels: bool and wide integer tensors, and plain
    numbers."""


class StateCodec:
    """Packs and unpacks states for one task."""

    def __init__(self, meta: Meta, info: TaskInfo) -> None:
        """Remember the addresses of the weights."""
        self._meta = flatten(meta)
        self._info = info
        self._path_of = {_address(tensor): path for path, tensor in self._meta.items()}

    def pack(self, state: State) -> PackedState:
        """Copy a state out of the learner's reach."""
        self._total, self._bookkeeping = 0, 0
        tree = self._packed(state, "state")
        return PackedState(tree, self._total, self._bookkeeping)

    def unpack(self, packed: PackedState) -> State:
        """Make a new copy of a state, which may be changed."""
        return self._unpacked(packed.tree)

    def _packed(self, node: Any, where: str) -> Any:
        """Pack a part of a state; `where` it is goes into errors."""
        # Types are compared, not asked by isinstance: a subclass may hold more than it shows.
        if type(node) in (Tensor, nn.Parameter):
            return self._packed_tensor(node)
        if type(node) is dict:
            return {
                self._packed_key(key, where): self._packed(value, f"{where}[{key!r}]")
                for key, value in node.items()
            }
        if type(node) in (list, tuple):
            return type(node)(
                [self._packed(value, f"{where}[{i}]") for i, value in enumerate(node)]
            )

        if type(node) in (bool, int, float):
            return self._packed_number(node, where)
        if type(node) is TaskInfo and node == self._info:
            return INFO
        if node is None:
            return node

        raise DataFlowError(
            f"{where} is a {type(node).__name__}; a state is a tree (dict, list, tuple) of tensors "
            f"and numbers. Keep tensors, or learned weights and the task's info as they were given."
        )

    def _packed_key(self, key: Any, where: str) -> Any:
        """Refuse a key that is no name, or long enough to hold data."""
        if type(key) not in (str, int) or len(str(key)) > _LONGEST_KEY:
            raise DataFlowError(
                f"{where} has the key {str(key)[:20]!r}; "
                f"keys are names of up to {_LONGEST_KEY} letters"
            )
        return key

    def _packed_number(self, number: Any, where: str) -> Any:
        """Count a number; refuse an int that is long enough to hold data."""
        if type(number) is int and not -(2**63) <= number < 2**63:
            raise DataFlowError(
                f"{where} is a number of {number.bit_length()} bits; a state holds numbers of 64"
            )
        self._count(_NUMBER_BYTES, bookkeeping=True)
        return number

    def _packed_tensor(self, tensor: Tensor) -> WeightReference | PackedTensor:
        path = self._path_of.get(_address(tensor))
        if path is not None:
            return WeightReference(path)

        plain, content = tensor.detach().cpu().contiguous(), bytearray()
        if plain.numel():
            content += plain.view(-1).view(torch.uint8).numpy().tobytes()
        self._count(len(content), bookkeeping=plain.dtype in _BOOKKEEPING)
        return PackedTensor(content, plain.dtype, tuple(plain.shape))

    def _count(self, size: int, *, bookkeeping: bool) -> None:
        self._total += size
        self._bookkeeping += size if bookkeeping else 0

    def _unpacked(self, node: Any) -> Any:
        if isinstance(node, WeightReference):
            return self._meta[node.path]
        if node is INFO:
            return self._info
        if isinstance(node, PackedTensor):
            return self._unpacked_tensor(node)
        if isinstance(node, dict):
            return {key: self._unpacked(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return type(node)([self._unpacked(value) for value in node])
        return node

    def _unpacked_tensor(self, packed: PackedTensor) -> Tensor:
        device = self._info.device
        if not packed.content:
            return torch.empty(packed.shape, dtype=packed.dtype, device=device)
        tensor = torch.frombuffer(bytearray(packed.content), dtype=packed.dtype)
        return tensor.view(packed.shape).to(device)


def flatten(tree: Any, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of nested dicts by their paths ('params/conv1.weight')."""
    if isinstance(tree, Tensor):
        return {prefix: tree}
    if not hasattr(tree, "items"):
        raise DataFlowError(
            f"learned weights are nested dicts of tensors; '{prefix}' is a {type(tree).__name__}"
        )

    leaves: dict[str, Tensor] = {}
    for key, value in tree.items():
        leaves |= flatten(value, f"{prefix}/{key}" if prefix else str(key))
    return leaves


def _address(tensor: Tensor) -> tuple[Any, ...]:
    """Return what tells a tensor from all others: the memory it looks at, and how."""
    return (
        tensor.data_ptr(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        str(tensor.device),
    )
