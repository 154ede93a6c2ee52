"""How close two embeddings are."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Metric = Literal["euclidean", "cosine", "dot"]


def closeness(
    images: Float[Tensor, "n features"], prototypes: Float[Tensor, "m features"], metric: Metric
) -> Float[Tensor, "n m"]:
    """Return larger numbers for closer pairs: minus the squared distance, the cosine, or the dot product.

    All three are one matrix product, so that their operations are counted.
    """
    if metric == "cosine":
        return functional.normalize(images, dim=1) @ functional.normalize(prototypes, dim=1).T
    products = images @ prototypes.T
    if metric == "dot":
        return products
    squares = (images * images).sum(dim=1)[:, None] + (prototypes * prototypes).sum(dim=1)
    return 2 * products - squares
