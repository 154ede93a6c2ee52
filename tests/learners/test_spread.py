"""Evidence of class from the spread of classes: the formulas, and that the spread is measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal, Normal

from cfsl.learners.champion.spread import class_evidence, measured_spread, plain_spread
from cfsl.learners.views import orders_of_orientations

SHARES = st.lists(st.floats(0.01, 0.98), min_size=1, max_size=4)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def conditional_log_odds(image: torch.Tensor, shown: torch.Tensor, share: float) -> torch.Tensor:
    """Return log p(x | shown) / p(x) on one axis, from the joint Gaussian of images of a class."""

    def joint(values: torch.Tensor) -> torch.Tensor:
        covariance = share * torch.ones(len(values), len(values)) + (1 - share) * torch.eye(
            len(values)
        )
        return MultivariateNormal(torch.zeros(len(values)).double(), covariance.double()).log_prob(
            values.double()
        )

    alone = Normal(torch.zeros(()).double(), torch.ones(()).double()).log_prob(image.double())
    return joint(torch.cat([shown, image[None]])) - joint(shown) - alone


@settings(max_examples=40, deadline=None)
@given(shares=SHARES, images=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_evidence_is_the_ratio_of_what_a_joint_gaussian_says_with_and_without_the_class(
    shares, images, seed
):
    axes = torch.tensor(shares)
    shown = torch.randn(images, len(shares), generator=generator(seed))
    image = torch.randn(len(shares), generator=generator(seed + 1))

    expected = sum(
        conditional_log_odds(image[i], shown[:, i], share) for i, share in enumerate(shares)
    )

    information = -0.5 * torch.log1p(-(axes.double() ** 2)).sum()
    believed = min(1.0, float(4 / information))
    found = class_evidence(image[None], shown.mean(dim=0)[None], torch.tensor([images]), axes)
    torch.testing.assert_close(found[0, 0].double(), believed * expected, atol=1e-3, rtol=1e-3)


def test_an_image_of_a_class_tells_a_few_nats_of_another_at_most_on_average():
    shares = torch.full((300,), 0.6)
    centres = 0.6**0.5 * torch.randn(2000, 300, generator=generator())
    one, other = (
        centres + 0.4**0.5 * torch.randn(2000, 300, generator=generator(seed)) for seed in (1, 2)
    )
    evidence = class_evidence(one, other, torch.ones(2000, dtype=torch.int16), shares)
    assert evidence.diagonal().mean() == pytest.approx(4, abs=0.1)
    assert (evidence.argmax(dim=1) == torch.arange(2000)).all()


def drawn(classes=400, images=8, features=6, seed=0):
    """Draw features whose covariances within and between classes are known."""
    mix, stretch = (
        torch.randn(features, features, generator=generator(seed + i)).double() for i in (7, 8)
    )
    within, between = mix @ mix.T + torch.eye(features), stretch @ stretch.T

    centres = (
        torch.randn(classes, features, generator=generator(seed)).double()
        @ torch.linalg.cholesky(between).T
    )
    noise = torch.randn(classes, images, features, generator=generator(seed + 1)).double()
    shown = 3 + centres[:, None] + noise @ torch.linalg.cholesky(within).T

    return (
        shown.flatten(0, 1).float(),
        torch.arange(classes).repeat_interleave(images),
        within,
        between,
    )


def test_the_spread_of_classes_is_measured_and_on_its_axes_images_have_variance_one():
    features, classes, within, between = drawn(classes=6000)
    spread = measured_spread(features, classes, 6)

    ratios = (
        torch.linalg.eigvals(torch.linalg.solve(within, between)).real.sort(descending=True).values
    )
    torch.testing.assert_close(spread.shares, (ratios / (1 + ratios)).float(), atol=0.02, rtol=0.05)

    seen = spread.coordinates(features)
    covariance = torch.cov(seen.T)
    torch.testing.assert_close(covariance, torch.eye(6), atol=0.03, rtol=0)
    assert seen.mean(dim=0).abs().max() < 0.05

    means = seen.view(6000, 8, 6).mean(dim=1)
    inner = (seen.view(6000, 8, 6) - means[:, None]).flatten(0, 1)
    torch.testing.assert_close(inner.var(dim=0) * 8 / 7, 1 - spread.shares, atol=0.02, rtol=0.05)


def test_evidence_knows_classes_that_the_distance_does_not():
    """One feature tells classes apart and five say nothing, loudly."""
    centres = torch.randn(500, 1, generator=generator())
    images = centres[:, None] + 0.1 * torch.randn(500, 4, 1, generator=generator(1))
    features = torch.cat([images, 2 * torch.randn(500, 4, 5, generator=generator(2))], dim=2)

    spread = measured_spread(features.flatten(0, 1), torch.arange(500).repeat_interleave(4), 6)
    seen = spread.coordinates(features.flatten(0, 1)).view(500, 4, 6)

    asked, shown = seen[:40, 0], seen[:40, 1]
    by_evidence = class_evidence(
        asked, shown, torch.ones(40, dtype=torch.int64), spread.shares
    ).argmax(dim=1)

    by_distance = torch.cdist(features[:40, 0], features[:40, 1]).argmin(dim=1)
    right = torch.arange(40)
    assert (by_evidence == right).float().mean() > 2 * (by_distance == right).float().mean()


def test_with_few_classes_the_spread_is_that_of_images_turned_in_every_way():
    """Two classes of 8 views with 16 numbers hardly have a W; views in other orders add to it."""
    orders = orders_of_orientations(28, 28)
    features = torch.nn.functional.normalize(torch.randn(8, 16, generator=generator()), dim=1)
    few = measured_spread(features, torch.arange(8) // 4, 16, orders)

    pairs = torch.cat([features, features.view(8, 8, 2)[:, orders[3]].reshape(8, 16)])
    seen = few.coordinates(pairs)
    assert 2 / 18 < 0.2  # the share of what was measured itself

    turned_apart = (seen[:8].norm(dim=1) - seen[8:].norm(dim=1)).abs().mean()
    alone = measured_spread(features, torch.arange(8) // 4, 16).coordinates(pairs)
    assert turned_apart < (alone[:8].norm(dim=1) - alone[8:].norm(dim=1)).abs().mean()


def test_classes_may_have_images_in_any_number():
    features, classes, _, _ = drawn(classes=3000, images=8)
    kept = torch.ones(len(classes), dtype=torch.bool)
    kept[::3] = False
    some = measured_spread(features[kept], classes[kept], 6)
    every = measured_spread(features, classes, 6)
    torch.testing.assert_close(some.shares, every.shares, atol=0.05, rtol=0.1)


@pytest.mark.parametrize(
    "features", [torch.zeros(12, 5), torch.arange(3.0).repeat_interleave(4)[:, None].expand(12, 5)]
)
def test_images_that_are_all_alike_leave_everything_finite(features):
    spread = measured_spread(features, torch.arange(3).repeat_interleave(4), 5)
    evidence = class_evidence(
        spread.coordinates(features),
        spread.coordinates(features[::4]),
        torch.tensor([4, 4, 4]),
        spread.shares,
    )
    assert all(torch.isfinite(tensor).all() for tensor in (*spread, evidence))


def test_as_long_as_nothing_is_measured_distances_decide():
    spread = plain_spread(4, 3)
    assert spread.axes.shape == (4, 3)
    features = torch.nn.functional.normalize(torch.randn(5, 4, generator=generator()), dim=1)
    seen = spread.coordinates(features)
    evidence = class_evidence(seen, seen, torch.ones(5, dtype=torch.int64), spread.shares)
    np.testing.assert_array_equal(
        evidence.argsort(dim=1)[:, -1], torch.cdist(seen, seen / 2).argsort(dim=1)[:, 0]
    )
