"""The search space of a sweep: choices or a range for each hyper-parameter, and its points."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from cfsl.errors import SpecError
from cfsl.spec import AcceptsList, FrozenSpec

Method: TypeAlias = Literal["grid", "univariate", "tpe", "random"]
METHODS: Mapping[str, str] = {
    "grid": "every combination",
    "univariate": "one hyper-parameter at a time",
    "tpe": "tree-structured Parzen estimator",
    "random": "at random",
}
LISTED: tuple[Method, ...] = ("grid", "univariate")
"""Methods whose trials are known before the first is done."""
MOST_POINTS = 1000
Number = int | Annotated[float, Field(allow_inf_nan=False)]
Point: TypeAlias = dict[str, Any]
"""A value for every hyper-parameter that is searched."""


class Range(FrozenSpec):
    """All numbers from `low` to `high`, both included; whole numbers if `low` and `high` are."""

    low: Number
    high: Number
    log: bool = False
    """Search orders of magnitude evenly."""
    step: Number | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}; swap them")
        if self.log and self.low <= 0:
            raise ValueError(f"a log range cannot begin at low={self.low}; begin above 0")
        if self.step is not None and (self.log or self.step <= 0):
            raise ValueError(f"step={self.step} must be above 0, and a log range has none")
        return self

    @property
    def whole(self) -> bool:
        """Whether the range has whole numbers only."""
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 0))

    def values(self) -> list[Any]:
        """Return every value, where there are few enough to list."""
        if self.log or not (self.whole or self.step):
            raise SpecError(
                "a range without steps cannot be listed; "
                "give choices, or take --method tpe or random"
            )

        step = self.step or 1
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        if count > MOST_POINTS:
            raise SpecError(
                f"{count} values are too many to list; give choices, or take --method tpe or random"
            )

        return [self.low + number * step for number in range(count)]

    def ends(self) -> list[Any]:
        """Return the values that are most likely to be refused."""
        return [self.low, self.high]


class Choices(FrozenSpec):
    """Some values, of any kind."""

    choices: Annotated[tuple[Any, ...], AcceptsList]

    @model_validator(mode="after")
    def _are_choices(self) -> Self:
        if not self.choices:
            raise ValueError("there is nothing to choose from; give at least one value")
        for number, value in enumerate(self.choices):
            if value in self.choices[:number]:
                raise ValueError(f"{json.dumps(value)} is there twice")
        return self

    def values(self) -> list[Any]:
        """Return the choices."""
        return list(self.choices)

    def ends(self) -> list[Any]:
        """Return the choices: any may be refused."""
        return list(self.choices)


Domain: TypeAlias = Range | Choices
Space: TypeAlias = dict[str, Domain]


def read_space(content: Any) -> Space:
    """Read a space from JSON.

    An example: {"lr": {"low": 1e-3, "high": 0.1, "log": true}, "metric": {"choices": [...]}}.
    """
    if not isinstance(content, dict) or not content:
        raise SpecError(
            "a space names at least one hyper-parameter, "
            'such as {"lr": {"low": 0.001, "high": 0.1}}'
        )
    return {str(name): _domain(name, value) for name, value in content.items()}


def _domain(name: str, content: Any) -> Domain:
    if isinstance(content, list):
        content = {"choices": content}
    if not isinstance(content, dict):
        raise SpecError(
            f"{name}: {json.dumps(content)} is neither "
            '{"low": ..., "high": ...} nor {"choices": [...]}'
        )

    try:
        return Choices(**content) if "choices" in content else Range(**content)
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None


def listed_points(method: Method, space: Space, centre: Point) -> list[Point]:
    """Return all points of the method 'grid' or 'univariate'.

    The first point of 'univariate' is the centre.
    """
    values = {name: _values(name, domain) for name, domain in space.items()}

    if method == "univariate":
        alone = [
            centre | {name: value}
            for name, several in values.items()
            for value in several
            if value != centre[name]
        ]
        points = [centre, *alone]
    else:
        # The count is checked before the list is made, which may not fit into memory.
        _require_few(math.prod(len(several) for several in values.values()))
        points = [
            dict(zip(values, combined, strict=True))
            for combined in itertools.product(*values.values())
        ]

    _require_few(len(points))
    return points


def _values(name: str, domain: Domain) -> list[Any]:
    try:
        return domain.values()
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None


def _require_few(count: int) -> None:
    if count > MOST_POINTS:
        raise SpecError(
            f"{count:,} trials are too many; "
            "give fewer values, or take --method tpe or random --trials N"
        )


def corner_points(space: Space, centre: Point) -> Sequence[Point]:
    """Return the points that check a space: each choice and each end of a range, one at a time."""
    return [
        centre,
        *(centre | {name: value} for name, domain in space.items() for value in domain.ends()),
    ]
