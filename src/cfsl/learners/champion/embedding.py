"""How the champion embeds an image: several views of it, put together to one vector.

    characters               f(x) = (g(v_1 x), ..., g(v_8 x)) / |.|        eight orientations v_i
    characters, on axes      the coordinates of f(x) on the axes along which classes differ most
    photographs              f(x) = (h_1(x), h_2(x), h_3(x)) / |.|         three sizes
                             h_s(x) = unit(unit(g(x_s) + g(mirrored x_s)) - centre_s)

g is the network, its features brought to length 1. Both the axes (`spread.py`) and the centres, the
mean embedding of training photographs at each size, are measured after training and are kept among
the statistics of the learner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.nn import functional

from cfsl.errors import SpecError
from cfsl.learners.base import Meta
from cfsl.learners.champion.spread import Spread, measured_spread, plain_spread
from cfsl.learners.views import (
    orders_of_orientations,
    oriented_views,
    quarters_of,
    resized_view,
    shifted_views,
)
from cfsl.nets.base import ImageShape, NetSpec
from cfsl.nets.layers import Stats

Images = Float32[Tensor, "n channels height width"]
Features = Float[Tensor, "n features"]
Views = Literal["turns", "shifts", "one"]
LabelledImages: TypeAlias = tuple[Images, Int64[Tensor, " n"]]

_PHOTO_SIZES = (0.75, 1.0, 1.25)
"""Training shows crops at the first of these sizes."""


class Embedding(Protocol):
    """How images of one kind are embedded."""

    def feature_count(self, image_shape: ImageShape) -> int:
        """Return how many numbers an image is embedded in."""
        ...

    def first_stats(self, image_shape: ImageShape) -> Stats:
        """Return the statistics that the embedding needs, before they are measured."""
        ...

    def measured_stats(self, meta: Meta, batches: Iterable[LabelledImages]) -> Stats:
        """Measure these statistics on training images."""
        ...

    def embed(self, meta: Meta, images: Images) -> Features:
        """Return the embedding of each image."""
        ...


@dataclass(frozen=True)
class CharacterEmbedding:
    """The views of a character side by side; shifted views are added up instead."""

    net: NetSpec
    views: Views

    def feature_count(self, image_shape: ImageShape) -> int:
        """Return the features of all views; there is one if the views are added up."""
        views = 2 * len(quarters_of(*image_shape[1:])) if self.views == "turns" else 1
        return views * self.net.feature_count(image_shape)

    def first_stats(self, image_shape: ImageShape) -> Stats:
        """Return nothing: the views are compared as they are."""
        return {}

    def measured_stats(self, meta: Meta, batches: Iterable[LabelledImages]) -> Stats:
        """Return nothing."""
        return {}

    def embed(self, meta: Meta, images: Images) -> Features:
        """Return vectors of length 1."""
        views = torch.stack(
            [_unit_features(self.net, meta, view) for view in self._views_of(images)]
        )
        if self.views == "shifts":
            views = views.sum(dim=0, keepdim=True)
        return _side_by_side(views)

    def orders_of_views(self, images: Images) -> list[list[int]]:
        """Return the orders of the views when an image is shown in another orientation."""
        if self.views == "turns":
            return orders_of_orientations(images.shape[2], images.shape[3])
        return [[0]]

    def _views_of(self, images: Images) -> list[Images]:
        if self.views == "turns":
            return oriented_views(images)
        return shifted_views(images) if self.views == "shifts" else [images]


@dataclass(frozen=True)
class CharacterOnAxes:
    """The embedding of a character, as coordinates on the axes along which classes differ most."""

    character: CharacterEmbedding
    axes: int
    """The most axes that are kept."""

    def feature_count(self, image_shape: ImageShape) -> int:
        """Return the number of axes."""
        return min(self.character.feature_count(image_shape), self.axes)

    def first_stats(self, image_shape: ImageShape) -> Stats:
        """Return a spread in which the axes are the features themselves."""
        return plain_spread(self.character.feature_count(image_shape), self.axes).as_stats()

    def measured_stats(self, meta: Meta, batches: Iterable[LabelledImages]) -> Stats:
        """Return the spread of training characters and of their classes."""
        features, classes, orders = [], [], [[0]]
        for images, labels in batches:
            features.append(self.character.embed(meta, images))
            classes.append(labels)
            orders = self.character.orders_of_views(images)

        spread = measured_spread(torch.cat(features), torch.cat(classes), self.axes, orders)
        return spread.as_stats()

    def embed(self, meta: Meta, images: Images) -> Features:
        """Return the coordinates."""
        return Spread.of(meta["stats"]).coordinates(self.character.embed(meta, images))


@dataclass(frozen=True)
class PhotoEmbedding:
    """A photograph at three sizes, each about the mean embedding of training photographs there."""

    net: NetSpec
    views: Views

    @property
    def sizes(self) -> tuple[float, ...]:
        """The sizes at which a photograph is embedded."""
        return (1.0,) if self.views == "one" else _PHOTO_SIZES

    def require_views(self, image_shape: ImageShape) -> None:
        """Refuse photographs whose smallest view would vanish in the network."""
        channels, height, width = image_shape
        least = min(self.sizes)
        try:
            self.net.feature_count((channels, round(least * height), round(least * width)))
        except SpecError as error:
            raise SpecError(
                f"photographs of {height}x{width} are too small for champion, "
                f"which also looks at them {least:g} times as large: {error}"
            ) from error

    def feature_count(self, image_shape: ImageShape) -> int:
        """Return the features of all sizes."""
        return len(self.sizes) * self.net.feature_count(image_shape)

    def first_stats(self, image_shape: ImageShape) -> Stats:
        """Return centres of zero."""
        centre = torch.zeros(self.net.feature_count(image_shape))
        return {"centres": centre.repeat(len(self.sizes), 1)}

    def measured_stats(self, meta: Meta, batches: Iterable[LabelledImages]) -> Stats:
        """Return the mean embedding of training photographs at each size."""
        by_size = torch.cat([self._by_size(meta, images) for images, _ in batches], dim=1)
        return {"centres": by_size.mean(dim=1)}

    def embed(self, meta: Meta, images: Images) -> Features:
        """Return vectors of length 1.

        What all photographs have in common at a size tells nothing about their classes: it is taken
        off.
        """
        centred = self._by_size(meta, images) - meta["stats"]["centres"][:, None]
        return _side_by_side(functional.normalize(centred, dim=2))

    def _by_size(self, meta: Meta, images: Images) -> Float[Tensor, "sizes n features"]:
        """Return one embedding for each size, of a photograph and its mirror image together."""
        if self.views == "one":
            return _unit_features(self.net, meta, images)[None]

        resized = [resized_view(images, size) for size in self.sizes]
        with_mirrored = [
            _unit_features(self.net, meta, view) + _unit_features(self.net, meta, view.flip(3))
            for view in resized
        ]
        return functional.normalize(torch.stack(with_mirrored), dim=2)


def _unit_features(net: NetSpec, meta: Meta, images: Images) -> Features:
    features = net.features(meta["params"], meta["stats"], images, norm="running")
    return functional.normalize(features, dim=1)


def _side_by_side(views: Float[Tensor, "views n features"]) -> Features:
    return functional.normalize(views.transpose(0, 1).flatten(1), dim=1)
