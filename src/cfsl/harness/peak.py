"""How much memory tensors take at once, watched while code runs.

Every tensor that an operation of torch makes counts for as long as it lives, whatever keeps it
alive: the state, a graph of gradients, a forgotten list. Scratch memory inside an operation and
memory that is not torch's are not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Watches while a block runs: `with PeakMemory() as memory`, then `memory.peak`, in bytes."""

    def __init__(self) -> None:
        """Start with nothing alive."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._now = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, kinds: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        # What an operation is given and was not made here was in memory before: it does not count.
        for leaf in tree_leaves((arguments, options)):
            if isinstance(leaf, Tensor):
                self._add(leaf, counted=False)

        results = function(*arguments, **(options or {}))

        for leaf in tree_leaves(results):
            if isinstance(leaf, Tensor):
                self._add(leaf, counted=True)
        return results

    def _add(self, tensor: Tensor, *, counted: bool) -> None:
        """Take note of a storage that is not known yet, until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return

        size = storage.nbytes() if counted else 0
        self._alive.add(key)
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self._now -= size
