"""What a state costs: the values always, the structure where it depends on what was seen.

The structure of a state is the names in it, their order, the kinds and shapes of its parts, and
which weights it refers to. It costs nothing as long as it is the same after the same support set in
every task of a setting, for then it says nothing about a task. The first task of the setting
(number 0) is the one to compare with: so the size of a state does not depend on which tasks run
together. Where the structure differs from that, it could hold data, and all its bytes count.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cfsl.harness.sandbox.wire import DTYPES, NUMBER_BYTES, structure_of, values_of

_BOOKKEEPING = frozenset({"bool", "int16", "int32", "int64"})


@dataclass(frozen=True)
class StateSize:
    """The size of a state, in bytes."""

    total: int
    bookkeeping: int
    """How many of these bytes are counts and labels: bool and wide integer tensors, and plain
    numbers."""


def sizes(states: Sequence[bytes], usual: Sequence[bytes]) -> list[StateSize]:
    """Return the sizes of the states at all boundaries of a task, given their (sound) byte forms.

    `usual` are the byte forms at the same boundaries of the first task of the setting.
    """
    found = []
    for boundary, state in enumerate(states):
        structure = structure_of(state)
        is_usual = boundary < len(usual) and structure == structure_of(usual[boundary])

        total = len(values_of(state)) + (0 if is_usual else len(structure))
        found.append(StateSize(total, _bookkeeping_bytes(json.loads(structure))))
    return found


def _bookkeeping_bytes(node: list[Any]) -> int:
    """Return how many bytes of values below a part of the structure are bookkeeping."""
    kind, *rest = node
    if kind in ("bool", "int", "float"):
        return NUMBER_BYTES
    if kind == "tensor":
        dtype, shape = rest
        return math.prod(shape) * DTYPES[dtype] if dtype in _BOOKKEEPING else 0
    if kind == "dict":
        return sum(_bookkeeping_bytes(value) for _, value in rest[0])
    if kind in ("list", "tuple"):
        return sum(map(_bookkeeping_bytes, rest[0]))
    return 0
