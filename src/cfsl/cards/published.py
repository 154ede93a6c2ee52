"""The accuracies that the two papers printed, cell by cell, each with how far it can be trusted.

The code behind them had defects, which `reason` names in a few words. So every cell has a status:

sound         a target: a correct run should reach it
superseded    a defect changed what was measured, and a correct run gives another number
trend         order and direction may be compared, the number itself may not

published.json has the numbers as printed, in percent, and the verdicts beside them, each stated
once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import product
from typing import Any, Literal

from cfsl.errors import lookup

Status = Literal["sound", "superseded", "trend"]
_Place = tuple[str, str, str, str]
"""Source, data set, learner and column: where a number stands."""


@dataclass(frozen=True)
class PublishedCell:
    """One number of one table of a paper."""

    paper: str
    """antoniou2020 or kowadlo2022."""
    table: str
    """As the paper counts them, such as "Table 1"."""
    source: str
    """table1: paper 1, its eleven columns; ensembles of five models.
    replication: paper 2, five of those columns again; ensembles of five models.
    replication_single: the same runs without ensembles; by the paper's words one model, by its code
    the mean of five.
    scaling: paper 2, up to 200 classes, without ensembles.
    instance: paper 2, the instance test on clean images, without ensembles."""
    data: str
    """omniglot or slimagenet64."""
    learner: str
    """Its name in cfsl's registry."""
    column: str
    """Task type and NSS ("D4"), or the name of the experiment, such as "wide2" or "instance4"."""
    accuracy: float
    """Between 0 and 1."""
    spread: float | None
    """The number behind the paper's plus-minus, on the scale of `accuracy`; None if there is none.

    By the paper's words it is the standard deviation over seeds, not over tasks: three seeds in
    table1 and the replication, five elsewhere."""
    status: Status
    reason: str
    """Why the number cannot be taken as printed; for a sound cell, what to bear in mind."""


@cache
def published() -> tuple[PublishedCell, ...]:
    """Return all cells, table by table and row by row, as the papers have them."""
    text = (resources.files("cfsl.cards") / "published.json").read_text(encoding="utf-8")
    content = json.loads(text)
    verdicts = _verdicts(content)
    return tuple(cell for table in content["tables"] for cell in _cells(table, verdicts))


def published_cell(source: str, data: str, learner: str, column: str) -> PublishedCell | None:
    """Return what a paper says of a learner, or None if it says nothing.

    `source` is as in `PublishedCell`.
    """
    return lookup(_by_source(), source, "published source").get((data, learner, column))


@cache
def _by_source() -> Mapping[str, Mapping[tuple[str, str, str], PublishedCell]]:
    found = dict[str, dict[tuple[str, str, str], PublishedCell]]()
    for cell in published():
        found.setdefault(cell.source, {})[cell.data, cell.learner, cell.column] = cell
    return found


def _verdicts(content: Mapping[str, Any]) -> dict[_Place, tuple[Status, str]]:
    """Return status and reason of every place that a verdict names."""
    return {
        place: (verdict["status"], "; ".join(content["reasons"][key] for key in verdict["reasons"]))
        for verdict in content["verdicts"]
        for place in product(
            verdict["sources"], verdict["data"], verdict["learners"], verdict["columns"]
        )
    }


def _cells(
    table: Mapping[str, Any], verdicts: Mapping[_Place, tuple[Status, str]]
) -> Iterator[PublishedCell]:
    """Yield the cells of one table."""
    source, data = table["source"], table["data"]
    for learner, row in table["rows"].items():
        for column, printed in zip(table["columns"], row, strict=True):
            accuracy, _, spread = printed.partition("±")
            status, reason = verdicts[source, data, learner, column]
            yield PublishedCell(
                paper=table["paper"],
                table=table["table"],
                source=source,
                data=data,
                learner=learner,
                column=column,
                accuracy=_fraction(accuracy),
                spread=_fraction(spread) if spread else None,
                status=status,
                reason=reason,
            )


def _fraction(percent: str) -> float:
    """Return the float closest to the hundredth of a percentage; a division would round twice."""
    return float(f"{percent}e-2")
