"""How much memory tensors take at once, watched while code runs.

Every tensor that an operation of torch makes is counted from its birth to its death, whatever keeps it alive: the
state, a graph of gradients, a forgotten list. Not seen are scratch memory inside an operation, and memory that is not
torch's.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Watches while it is entered: `with PeakMemory() as memory: ...; memory.peak` is in bytes."""

    def __init__(self) -> None:
        """Start with nothing alive."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._now = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, kinds: Any, given: Any = (), options: Any = None
    ) -> Any:
        for thing in tree_leaves((given, options)):
            if isinstance(thing, Tensor):
                self._know(thing, counted=False)
        made = function(*given, **(options or {}))
        for thing in tree_leaves(made):
            if isinstance(thing, Tensor):
                self._know(thing, counted=True)
        return made

    def _know(self, tensor: Tensor, *, counted: bool) -> None:
        """Count a storage that was not known; what an operation was given was there before."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        self._alive.add(key)
        size = storage.nbytes() if counted else 0
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self._now -= size
