"""Which class an image is of, by how much images of a class differ, and by how much classes do.

Ioffe, "Probabilistic Linear Discriminant Analysis", ECCV 2006. Images of a class are Gaussian with a covariance W that
all classes share, and the centres of classes are Gaussian with a covariance B. Then there are axes along which images
have variance 1 and everything is independent: on each of them, only the share r of the variance that lies between
classes matters. Given n images of a class, of mean m, a further one of it is on each axis

    x ~ N(n r m / (1 + (n - 1) r), 1 - n r^2 / (1 + (n - 1) r)),                                           (1)

while an image of whatever class is N(0, 1). What speaks for a class is the log of the ratio of the two, over all axes.

Where it departs from the paper: W and B are measured on embeddings of training images and drawn towards what is simpler
(see `measured_spread`); only the axes with the largest shares are kept; and embeddings are no Gaussians, so that
evidence is scaled down until one image of a class tells, on average, no more than a few nats of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

Features = Float32[Tensor, "n features"]
OnAxes = Float[Tensor, "n axes"]
Square = Float[Tensor, "features features"]

_BELIEVED = 4.0
"""Nats; chosen on validation tasks, by cross-entropy."""
_LEAST, _MOST = 1e-6, 1 - 1e-4
"""Of a share: measured ones may be below 0, or 1 where the images of a class do not differ."""
_TINY = 1e-9


class Spread(NamedTuple):
    """The axes that embeddings are looked at along."""

    centre: Float32[Tensor, " features"]
    axes: Float32[Tensor, "features axes"]
    shares: Float32[Tensor, " axes"]
    """Of the variance on an axis, between classes; largest first."""


def plain_spread(features: int, axes: int) -> Spread:
    """Return what is taken as long as nothing is measured: the first features of vectors of length 1, as they are."""
    kept = min(axes, features)
    return Spread(
        torch.zeros(features),
        torch.eye(features)[:, :kept] * features**0.5,
        torch.full((kept,), 0.5),
    )


def measured_spread(
    features: Features,
    classes: Int64[Tensor, " n"],
    axes: int,
    orders: Sequence[Sequence[int]] = ((0,),),
) -> Spread:
    """Measure W and B, and return the axes along which classes differ most.

    An embedding is made of as many views as an order has entries; taken in another order, it is that of a turned image.
    With d numbers and c classes, the covariances are drawn towards those of images turned in every way, by d / (d + c),
    as B needs more classes than numbers; and W then towards a multiple of the identity, by d / (d + c x orders).
    """
    double = features.double()
    count, numbers = int(classes.max()) + 1, features.shape[1]
    sizes = torch.bincount(classes, minlength=count).double()
    means = double.new_zeros(count, numbers).index_add(0, classes, double) / sizes[:, None]
    towards_turned = numbers / (numbers + count)
    centre = double.mean(dim=0)
    centre = torch.lerp(centre, _over_orders(centre, orders), towards_turned)
    inner, outer = double - means[classes], means - centre
    within = inner.T @ inner / max(1, len(features) - count)
    between = outer.T @ outer / max(1, count - 1) - within / (1 / sizes).mean() ** -1
    within, between = (
        torch.lerp(m, _over_both_orders(m, orders), towards_turned) for m in (within, between)
    )
    level = within.trace() / numbers
    identity = torch.eye(numbers, dtype=torch.float64, device=features.device)
    within = torch.lerp(within, level * identity, numbers / (numbers + count * len(orders)))
    return _spread(centre, within + (_TINY + _TINY * level) * identity, between, axes)


def _spread(centre: Tensor, within: Square, between: Square, axes: int) -> Spread:
    """Return the axes on which W is 1 and B is diagonal, and then images have variance 1."""
    whitening = torch.linalg.inv(torch.linalg.cholesky(within))
    ratios, directions = torch.linalg.eigh(whitening @ between @ whitening.T)
    ratios, directions = ratios.flip(0)[:axes].clamp_min(0), directions.flip(1)[:, :axes]
    shares = (ratios / (1 + ratios)).clamp(_LEAST, _MOST)
    kept = whitening.T @ directions * (1 - shares).sqrt()
    return Spread(centre.float(), kept.float().contiguous(), shares.float())


def _over_orders(
    vector: Float[Tensor, " features"], orders: Sequence[Sequence[int]]
) -> Float[Tensor, " features"]:
    views = vector.view(len(orders[0]), -1)
    return torch.stack([views[list(order)] for order in orders]).mean(dim=0).flatten()


def _over_both_orders(matrix: Square, orders: Sequence[Sequence[int]]) -> Square:
    views = len(orders[0])
    blocks = matrix.view(views, -1, views, len(matrix) // views)
    turned = [blocks[list(order)][:, :, list(order)] for order in orders]
    return (sum(turned, torch.zeros_like(blocks)) / len(orders)).reshape(matrix.shape)


def along(spread: Spread, features: Features) -> OnAxes:
    """Return embeddings on the axes."""
    return (features - spread.centre) @ spread.axes


def class_evidence(
    images: OnAxes,
    means: Float[Tensor, "m axes"],
    counts: Int[Tensor, " m"],
    shares: Float32[Tensor, " axes"],
) -> Float[Tensor, "n m"]:
    """Return how much each image speaks for each class, of which so many images had this mean: equation 1, in nats."""
    n = counts[:, None]
    slope = n * shares / (1 + (n - 1) * shares)
    expected, variance = slope * means, 1 - slope * shares
    squares = (images**2) @ (1 / variance).T - 2 * images @ (expected / variance).T
    distance = squares + (expected**2 / variance).sum(dim=1)
    log_odds = ((images**2).sum(dim=1)[:, None] - distance - variance.log().sum(dim=1)) / 2
    information = -(1 - shares**2).log().sum() / 2
    return log_odds * (_BELIEVED / information.clamp_min(_BELIEVED))
