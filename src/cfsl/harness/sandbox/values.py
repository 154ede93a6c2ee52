"""States and images of torch as trees that have a byte form, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cfsl.errors import DataFlowError
from cfsl.harness.sandbox.wire import (
    DTYPES,
    LONGEST_NAME,
    TaskInfoReference,
    TensorBytes,
    Tree,
    WeightReference,
)
from cfsl.harness.state import flatten
from cfsl.learners.base import Meta, TaskInfo

_DEEPEST = 32
_TORCH_DTYPES = {name: getattr(torch, name) for name in DTYPES}
_NAMES = {dtype: name for name, dtype in _TORCH_DTYPES.items()}


class Converter:
    """Converts states of one task, whose weights and info cross as references."""

    def __init__(self, weights: Meta, info: TaskInfo | None = None) -> None:
        """Remember the addresses of the weights."""
        self._weights, self._info = flatten(weights), info
        self._path_of = {_address(tensor): path for path, tensor in self._weights.items()}

    def to_tree(self, node: Any, where: str = "state", depth: int = 0) -> Tree:
        """Return a part of a state as a tree; `where` it is goes into errors."""
        if depth > _DEEPEST:
            raise DataFlowError(f"{where[:80]}... is nested more than {_DEEPEST} deep")

        # Types are compared, not asked by isinstance: a subclass may hold more than it shows.
        if type(node) in (Tensor, nn.Parameter) and not node.is_nested:
            return self._tensor_to_tree(node, where)
        if type(node) is dict:
            return {
                _checked_name(name, where): self.to_tree(value, f"{where}[{name!r}]", depth + 1)
                for name, value in node.items()
            }
        if type(node) in (list, tuple):
            return type(node)(
                self.to_tree(value, f"{where}[{i}]", depth + 1) for i, value in enumerate(node)
            )
        if type(node) is int and not -(2**63) <= node < 2**63:
            raise DataFlowError(
                f"{where} is a number of {node.bit_length()} bits; a state holds numbers of 64"
            )
        if node is None or type(node) in (bool, int, float):
            return node
        if type(node) is TaskInfo and node == self._info:
            return TaskInfoReference()

        raise DataFlowError(
            f"{where} is a {type(node).__name__}; a state is a tree (dict, list, tuple) of tensors "
            f"and numbers. Keep tensors, or learned weights and the task's info as they were given."
        )

    def from_tree(self, node: Tree) -> Any:
        """Make a state anew; nothing of it shares memory with the tree."""
        if type(node) is TensorBytes:
            return tensor_from(node)
        if type(node) is WeightReference:
            return self._weights[node.path]
        if type(node) is TaskInfoReference:
            return self._info
        if type(node) is dict:
            return {name: self.from_tree(value) for name, value in node.items()}
        if type(node) in (list, tuple):
            return type(node)(self.from_tree(value) for value in node)
        return node

    def _tensor_to_tree(self, tensor: Tensor, where: str) -> TensorBytes | WeightReference:
        path = self._path_of.get(_address(tensor))
        return tensor_to_tree(tensor, where) if path is None else WeightReference(path)


def tensor_to_tree(tensor: Tensor, where: str) -> TensorBytes:
    """Return a plain dense tensor as bytes; refuse all others."""
    if tensor.dtype not in _NAMES or tensor.layout != torch.strided:
        kind = str(tensor.dtype if tensor.layout == torch.strided else tensor.layout)
        raise DataFlowError(
            f"{where} is a tensor of {kind.removeprefix('torch.')}; "
            f"a state holds dense tensors of {', '.join(DTYPES)}"
        )
    if tensor.device.type != "cpu":
        raise DataFlowError(f"{where} is a tensor on '{tensor.device}'; a state is on the CPU")

    plain = tensor.detach().resolve_neg().contiguous()
    content = plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return TensorBytes(_NAMES[tensor.dtype], tuple(tensor.shape), content)


def tensor_from(tree: TensorBytes) -> Tensor:
    """Make a tensor in memory of its own."""
    dtype = _TORCH_DTYPES[tree.dtype]
    if not len(tree.content):
        return torch.empty(tree.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tree.content), dtype=dtype).view(tree.shape)


def strides_of(tree: Any) -> dict[str, list[int]]:
    """Return how tensors lie in memory, for that can decide the last bit of a sum."""
    return {path: list(torch.empty_like(tensor).stride()) for path, tensor in flatten(tree).items()}


def laid_out(tree: Any, strides: Mapping[str, list[int]], path: str = "") -> Any:
    """Copy tensors to private memory, laid out as they were."""
    if isinstance(tree, Tensor):
        return torch.empty_strided(tree.shape, strides[path], dtype=tree.dtype).copy_(tree)
    return {
        name: laid_out(value, strides, f"{path}/{name}" if path else str(name))
        for name, value in tree.items()
    }


def as_dicts(tree: Any) -> Any:
    """Return nested mappings as plain dicts."""
    if isinstance(tree, Tensor):
        return tree
    return {name: as_dicts(value) for name, value in tree.items()}


def _checked_name(name: Any, where: str) -> str:
    if type(name) is not str or len(name) > LONGEST_NAME:
        raise DataFlowError(
            f"{where} has the key {str(name)[:20]!r}; "
            f"keys are names of up to {LONGEST_NAME} letters"
        )
    return name


def _address(tensor: Tensor) -> tuple[Any, ...]:
    """Return what tells a tensor from all others: the memory it looks at, and how."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return (id(tensor),)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
