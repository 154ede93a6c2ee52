"""Student's t distribution, as far as confidence intervals and paired tests need it.

Both tails together hold I_x(dof / 2, 1 / 2) with x = dof / (dof + t^2), where I is the regularised
incomplete beta function (Abramowitz and Stegun, 26.7.1 and 26.5.27).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

_TINY = 1e-300
_MOST_TERMS = 100_000


def two_sided_p(t: float, dof: int) -> float:
    """Return the probability that Student's t is at least |t| from 0."""
    square = t * t
    x = dof / (dof + square)
    one_minus_x = square / (dof + square)  # as a difference it would lose its digits for small t
    return _incomplete_beta(dof / 2, 0.5, x=x, one_minus_x=one_minus_x)


def critical_t95(dof: int) -> float:
    """Return the t that 95 % of Student's distribution lie within, to nine digits.

    It is 12.706 for dof = 1, and falls to 1.96.
    """
    low, high = 1.9, 13.0
    for _ in range(50):
        middle = (low + high) / 2
        if two_sided_p(middle, dof) > 0.05:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, *, x: float, one_minus_x: float) -> float:
    """Return I_x(a, b), from the side on which the continued fraction converges fast."""
    if x == 0 or one_minus_x == 0:
        return float(one_minus_x == 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, x=one_minus_x, one_minus_x=x)

    # The logarithm of the number near 1 comes from the small one.
    if x < 0.5:
        log_x, log_rest = math.log(x), math.log1p(-x)
    else:
        log_x, log_rest = math.log1p(-one_minus_x), math.log(one_minus_x)

    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * log_x + b * log_rest - log_beta)
    return front / (a * _continued_fraction(_beta_terms(a, b, x)))


def _beta_terms(a: float, b: float, x: float) -> Iterator[float]:
    """Yield d_1, d_2, ... of 1 + d_1 / (1 + d_2 / (1 + ...)) (Abramowitz and Stegun, 26.5.8)."""
    for m in range(_MOST_TERMS):
        yield -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        yield (m + 1) * (b - m - 1) * x / ((a + 2 * m + 1) * (a + 2 * m + 2))


def _continued_fraction(terms: Iterator[float]) -> float:
    """Return 1 + d_1 / (1 + d_2 / (1 + ...)), by Lentz's method, until a term changes nothing."""
    value, above, below = 1.0, 1.0, 0.0
    for term in terms:
        below = 1 / ((1 + term * below) or _TINY)
        above = (1 + term / above) or _TINY
        value *= above * below
        if abs(above * below - 1) < 1e-15:
            break
    return value
