"""A learner's state as bytes: what crosses the boundary between two support sets, and how much it is.

Tensors that *are* learned weights (the same memory) cross as references and cost nothing; everything else is copied
and counted. So no storage can be shared with what was deleted, and memory is measured, not reported.
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
    """A tensor of the state's own."""

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
    """How many of them are counts, labels and numbers: bool and wide integer tensors, and plain numbers."""


class StateCodec:
    """Packs and unpacks states for one task."""

    def __init__(self, meta: Meta, info: TaskInfo) -> None:
        """Know the weights by their addresses."""
        self._meta = flatten(meta)
        self._info = info
        self._path_of = {_address(tensor): path for path, tensor in self._meta.items()}

    def pack(self, state: State) -> PackedState:
        """Copy a state out of the learner's reach."""
        self._total, self._bookkeeping = 0, 0
        tree = self._packed(state, "state")
        return PackedState(tree, self._total, self._bookkeeping)

    def unpack(self, packed: PackedState) -> State:
        """Make a state anew; it may be changed without harm."""
        return self._unpacked(packed.tree)

    def _packed(self, node: Any, where: str) -> Any:
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
        if node is None:
            return node
        if type(node) is TaskInfo and node == self._info:
            return INFO
        if type(node) in (bool, int, float):
            if not -(2**63) <= node < 2**63 and type(node) is int:
                raise DataFlowError(
                    f"{where} is a number of {node.bit_length()} bits; a state holds numbers of 64"
                )
            self._count(_NUMBER_BYTES, bookkeeping=True)
            return node
        raise DataFlowError(
            f"{where} is a {type(node).__name__}; a state is a tree (dict, list, tuple) of tensors and numbers. "
            f"Keep tensors, or learned weights and the task's info as they were given."
        )

    def _packed_key(self, key: Any, where: str) -> Any:
        """Let names be names: a key that is none, or is as long as data, is refused."""
        if type(key) not in (str, int) or len(str(key)) > _LONGEST_KEY:
            raise DataFlowError(
                f"{where} has the key {str(key)[:20]!r}; keys are names of up to {_LONGEST_KEY} letters"
            )
        return key

    def _packed_tensor(self, tensor: Tensor) -> WeightReference | PackedTensor:
        path = self._path_of.get(_address(tensor))
        if path is not None:
            return WeightReference(path)
        plain = tensor.detach().cpu().contiguous()
        content = (
            bytearray(plain.view(-1).view(torch.uint8).numpy().tobytes())
            if plain.numel()
            else bytearray()
        )
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
            if not node.content:
                return torch.empty(node.shape, dtype=node.dtype, device=self._info.device)
            tensor = torch.frombuffer(bytearray(node.content), dtype=node.dtype).view(node.shape)
            return tensor.to(self._info.device)
        if isinstance(node, dict):
            return {key: self._unpacked(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return type(node)([self._unpacked(value) for value in node])
        return node


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
    """Tell a tensor by the memory it looks at."""
    return (
        tensor.data_ptr(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        str(tensor.device),
    )
