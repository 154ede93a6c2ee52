"""Evidence for a class, from how much images of a class differ and how much classes do.

Ioffe, "Probabilistic Linear Discriminant Analysis", ECCV 2006. Images of a class are Gaussian with
a covariance W that all classes share, and the centres of classes are Gaussian with a covariance B.
Then there are axes along which images have variance 1 and everything is independent: on each of
them, only the share r of the variance that lies between classes matters. Given n images of a class,
of mean m, a further image of the class is on each axis

    x ~ N(n r m / (1 + (n - 1) r), 1 - n r^2 / (1 + (n - 1) r)),                                (1)

while an image of an unknown class is N(0, 1). The evidence for a class is the log of the ratio of
the two densities, summed over all axes.

Where it departs from the paper:

- W and B are measured on embeddings of training images, and drawn towards simpler covariances (see
  `measured_spread`).
- Only the axes with the largest shares are kept.
- Embeddings are not Gaussian, so evidence is scaled down until one image of a class gives, on
  average, no more than a few nats of evidence for another image of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

from cfsl.nets.layers import Stats

Features = Float32[Tensor, "n features"]
OnAxes = Float[Tensor, "n axes"]
_Square = Float[Tensor, "features features"]
_Order = Sequence[int]

_MOST_NATS = 4.0
"""The most evidence that one image of a class gives for another, on average. It was chosen on
validation tasks, by cross-entropy."""
_LEAST_SHARE, _MOST_SHARE = 1e-6, 1 - 1e-4
"""Bounds of a share. A measured one may be below 0, or 1 where the images of a class are equal."""
_TINY = 1e-9
_NAME = "spread."


class Spread(NamedTuple):
    """The axes along which classes differ most, where images have variance 1."""

    centre: Float32[Tensor, " features"]
    axes: Float32[Tensor, "features axes"]
    shares: Float32[Tensor, " axes"]
    """The share of the variance on each axis that lies between classes; the largest comes first."""

    @classmethod
    def of(cls, stats: Mapping[str, Tensor]) -> Spread:
        """Read a spread from the statistics of a learner."""
        return cls(*(stats[_NAME + field] for field in cls._fields))

    def as_stats(self) -> Stats:
        """Return the spread as statistics of a learner."""
        return {_NAME + field: tensor for field, tensor in self._asdict().items()}

    def coordinates(self, features: Features) -> OnAxes:
        """Return where embeddings lie on the axes."""
        return (features - self.centre) @ self.axes


def plain_spread(features: int, axes: int) -> Spread:
    """Return the spread before any is measured: the axes are the first features themselves."""
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
    orders: Sequence[_Order] = ((0,),),
) -> Spread:
    """Measure W and B, and return the axes along which classes differ most.

    An embedding consists of as many views as an order has entries; its views in another order are
    the embedding of the image in another orientation. With d features and c classes:

    - Centre, W and B are drawn by d / (d + c) towards their means over all orders, since B needs
      more classes than features.
    - W is then drawn by d / (d + c * orders) towards a multiple of the identity.
    """
    double = features.double()
    class_count, feature_count = int(classes.max()) + 1, features.shape[1]
    sizes = torch.bincount(classes, minlength=class_count).double()
    sums = double.new_zeros(class_count, feature_count).index_add(0, classes, double)
    means = sums / sizes[:, None]
    towards_all_orders = feature_count / (feature_count + class_count)

    centre = double.mean(dim=0)
    centre = torch.lerp(centre, _mean_over_orders(centre, orders), towards_all_orders)

    from_mean, from_centre = double - means[classes], means - centre
    within = from_mean.T @ from_mean / max(1, len(features) - class_count)
    # A measured mean differs from the centre of its class, too, by W over the size of the class.
    noise_of_means = within / (1 / sizes).mean() ** -1
    between = from_centre.T @ from_centre / max(1, class_count - 1) - noise_of_means
    within, between = (
        torch.lerp(matrix, _matrix_mean_over_orders(matrix, orders), towards_all_orders)
        for matrix in (within, between)
    )

    level = within.trace() / feature_count
    identity = torch.eye(feature_count, dtype=torch.float64, device=features.device)
    towards_identity = feature_count / (feature_count + class_count * len(orders))
    within = torch.lerp(within, level * identity, towards_identity)
    return _leading_axes(centre, within + (_TINY + _TINY * level) * identity, between, axes)


def _leading_axes(centre: Tensor, within: _Square, between: _Square, axes: int) -> Spread:
    """Return the axes on which W and B are diagonal and images have variance 1."""
    whitening = torch.linalg.inv(torch.linalg.cholesky(within))
    ratios, directions = torch.linalg.eigh(whitening @ between @ whitening.T)
    ratios, directions = ratios.flip(0)[:axes].clamp_min(0), directions.flip(1)[:, :axes]

    shares = (ratios / (1 + ratios)).clamp(_LEAST_SHARE, _MOST_SHARE)
    kept = whitening.T @ directions * (1 - shares).sqrt()
    return Spread(centre.float(), kept.float().contiguous(), shares.float())


def _mean_over_orders(
    vector: Float[Tensor, " features"], orders: Sequence[_Order]
) -> Float[Tensor, " features"]:
    views = vector.view(len(orders[0]), -1)
    return torch.stack([views[list(order)] for order in orders]).mean(dim=0).flatten()


def _matrix_mean_over_orders(matrix: _Square, orders: Sequence[_Order]) -> _Square:
    """Return the mean of a covariance over the orders of views, its rows and columns alike."""
    views = len(orders[0])
    blocks = matrix.view(views, -1, views, len(matrix) // views)
    reordered = [blocks[list(order)][:, :, list(order)] for order in orders]
    return (sum(reordered, torch.zeros_like(blocks)) / len(orders)).reshape(matrix.shape)


def class_evidence(
    images: OnAxes,
    means: Float[Tensor, "m axes"],
    counts: Int[Tensor, " m"],
    shares: Float32[Tensor, " axes"],
) -> Float[Tensor, "n m"]:
    """Return the evidence of each image for each class, in nats, by equation 1.

    `counts` says how many images of a class had the mean that is given.
    """
    n = counts[:, None]
    slope = n * shares / (1 + (n - 1) * shares)
    expected, variance = slope * means, 1 - slope * shares

    # The squared distance, multiplied out: large terms are matrix products.
    squares = (images**2) @ (1 / variance).T - 2 * images @ (expected / variance).T
    distance = squares + (expected**2 / variance).sum(dim=1)
    log_odds = ((images**2).sum(dim=1)[:, None] - distance - variance.log().sum(dim=1)) / 2

    information = -(1 - shares**2).log().sum() / 2
    return log_odds * (_MOST_NATS / information.clamp_min(_MOST_NATS))
