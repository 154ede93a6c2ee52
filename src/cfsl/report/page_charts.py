"""The figures of a page, each with a title, a caption, its numbers, and a text in its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cfsl.cards.collect import CardFile
from cfsl.cards.evidence import Evidence
from cfsl.report.board import Board
from cfsl.report.curves import Lines, learning_curves, lines_of
from cfsl.report.forgetting_and_costs import Matrices, Pareto, matrices_of, paretos_of
from cfsl.report.leaderboard import Leaderboard


@dataclass(frozen=True)
class Chart:
    """One figure of the page."""

    id: str
    title: str
    where: str
    caption: str
    alt: str
    spec: dict[str, Any]
    numbers: dict[str, Any]
    """The fields and rows of the table behind it."""
    panels: int = 1
    small: bool = False
    own_axes: bool = False
    choices: list[str] = field(default_factory=list)
    """Columns that the reader may choose from."""


def charts_of(
    every: Sequence[Board],
    ranked: Sequence[Leaderboard],
    cards: Sequence[CardFile],
    evidence: Mapping[str, Evidence],
) -> list[Chart]:
    """Return every figure that there are cards for."""
    made = [
        *(_lines(lines) for lines in lines_of(every)),
        *(_matrices(matrices) for matrices in matrices_of(ranked, evidence)),
        *(_pareto(pareto) for pareto in paretos_of(ranked)),
        *(_lines(lines) for lines in learning_curves(cards)),
    ]
    return list(_numbered(made))


def _numbered(charts: Sequence[Chart]) -> Iterator[Chart]:
    """Give every figure a name of its own."""
    for number, chart in enumerate(charts, start=1):
        yield Chart(**{**vars(chart), "id": f"figure-{number}-{chart.id}"})


def _lines(lines: Lines) -> Chart:
    from cfsl.report.altair_charts import lines_chart

    names = ", ".join(lines.series[:20])
    series = "learner" if lines.by_learner else "tasks"
    return Chart(
        id=lines.figure,
        title=lines.title,
        where=lines.where,
        caption=lines.caption,
        alt=f"{lines.title}, {lines.where}: "
        f"{lines.y_title or 'costs'} over {lines.x_title} for {names}",
        spec=lines_chart(lines),
        numbers=_numbers(
            lines.rows, {"series": series, "panel": "panel", "x": lines.x_title, "text": "value"}
        ),
        panels=len(lines.panels),
        own_axes=not lines.shares_y,
    )


def _matrices(matrices: Matrices) -> Chart:
    from cfsl.report.altair_charts import matrices_chart

    return Chart(
        id="forgetting",
        title="Forgetting",
        where=matrices.where,
        caption="Accuracy on each class group after each support set, from the answers. "
        "A column that grows darker downwards is a group being forgotten.",
        alt="Heat maps of the accuracy on each class group after each support set, one a learner",
        spec=matrices_chart(matrices),
        numbers=_numbers(
            [row | {"value": f"{row['value']:.2f}"} for row in matrices.rows],
            {
                "column": "column",
                "series": "learner",
                "y": "after set",
                "x": "group",
                "value": "accuracy, %",
            },
        ),
        panels=len({row["series"] for row in matrices.rows}),
        small=True,
        choices=matrices.columns,
    )


def _pareto(pareto: Pareto) -> Chart:
    from cfsl.report.altair_charts import pareto_chart

    return Chart(
        id="pareto",
        title="Accuracy, memory and operations",
        where=pareto.where,
        caption="Filled marks are on the Pareto front: "
        "nobody is at least as good in accuracy, ATM and MACs and better in one. "
        "The area grows with the MACs. Bars: 95 % over tasks. Upper bounds are left out.",
        alt="Accuracy over Across-Task Memory, with multiply-accumulates as the size of the marks",
        spec=pareto_chart(pareto),
        numbers=_numbers(
            [row | {"x": f"{row['x']:.4f}", "macs": f"{row['macs']:,.0f}"} for row in pareto.rows],
            {
                "column": "column",
                "series": "learner",
                "text": "accuracy",
                "x": "ATM",
                "macs": "MACs",
                "front": "front",
            },
        ),
        choices=pareto.columns,
    )


def _numbers(rows: Sequence[Mapping[str, Any]], fields: Mapping[str, str]) -> dict[str, Any]:
    return {
        "fields": list(fields.values()),
        "rows": [[row.get(name, "") for name in fields] for row in rows],
    }
