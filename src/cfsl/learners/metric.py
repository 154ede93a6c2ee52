"""How close two embeddings are."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

Metric = Literal["euclidean", "cosine", "dot"]


def closeness(
    images: Float[Tensor, "n features"], prototypes: Float[Tensor, "m features"], metric: Metric
) -> Float[Tensor, "n m"]:
    """Return larger numbers for closer pairs.

    They are minus the squared distance, the cosine or the dot product. All three are computed as
    one matrix product, so that their operations are counted.
    """
    if metric == "cosine":
        return functional.normalize(images, dim=1) @ functional.normalize(prototypes, dim=1).T

    products = images @ prototypes.T
    if metric == "dot":
        return products
    squares = (images * images).sum(dim=1)[:, None] + (prototypes * prototypes).sum(dim=1)
    return 2 * products - squares


def sums_by_label(
    close: Float[Tensor, "n m"], labels: Int[Tensor, " m"], count: int
) -> Float[Tensor, "n labels"]:
    """Return log sum exp of the columns of each label; it is -inf for a label without columns."""
    nothing = close.new_full((len(close), count), float("-inf"))
    where = labels.long().expand_as(close)

    # The largest of each label is taken off before the exponential, which might overflow.
    largest = nothing.scatter_reduce(1, where, close, "amax")
    known = torch.where(largest.isfinite(), largest, 0)
    sums = torch.zeros_like(known).scatter_add(1, where, (close - known.gather(1, where)).exp())
    logits: Tensor = sums.log() + known
    return logits
