"""Prototypes: the mean of the embedded images of a class, one for every class group and label.

They are kept as float32, or in one byte a number.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int16, Int64
from torch import Tensor
from torch.nn import functional

Numbers = Literal["int8", "float32"]


class Prototypes(NamedTuple):
    """The prototypes of a task so far."""

    means: Float[Tensor, "m numbers"]
    counts: Int16[Tensor, " m"]
    """How many images a prototype is the mean of."""
    labels: Int16[Tensor, " m"]
    first: int
    """The first prototype of the current class group."""

    def with_images(
        self,
        features: Float[Tensor, "n numbers"],
        labels: Int64[Tensor, " n"],
        *,
        is_new_group: bool,
    ) -> tuple[Prototypes, Int64[Tensor, " n"]]:
        """Return the prototypes after some more images, and the prototype that each image joined.

        Only prototypes of the current class group are joined; labels that the group does not have
        yet get new prototypes.
        """
        first = len(self.labels) if is_new_group else self.first
        shown = torch.unique(labels).to(torch.int16)
        new = shown[~torch.isin(shown, self.labels[first:])]
        all_labels = torch.cat([self.labels, new])
        joined = first + (labels[:, None] == all_labels[first:]).int().argmax(dim=1)

        old_counts = functional.pad(self.counts, (0, len(new)))
        counts = old_counts.index_add(0, joined, torch.ones_like(joined, dtype=torch.int16))
        old_sums = functional.pad(self.means, (0, 0, 0, len(new))) * old_counts[:, None]
        means = old_sums.index_add(0, joined, features) / counts[:, None]
        return Prototypes(means, counts, all_labels, first), joined


def as_stored(means: Float[Tensor, "m numbers"], numbers: Numbers, step: float) -> Tensor:
    """Return means as they are kept: in bytes, as multiples of a step, or as they are."""
    if numbers == "float32":
        return means
    return (means / step).round().clamp(-128, 127).to(torch.int8)


def as_read(stored: Tensor, numbers: Numbers, step: float) -> Float[Tensor, "m numbers"]:
    """Return means from what is kept of them."""
    return stored if numbers == "float32" else stored.float() * step
