"""The figures of the page, as Vega-Lite specs.

Colours are CSS variables, so that they follow light, dark and print.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import altair as alt

from cfsl.report.curves import Lines, Point
from cfsl.report.forgetting_and_costs import Matrices, Pareto
from cfsl.report.styles import styles

Spec: TypeAlias = dict[str, Any]
_FULL = 100
_MOST_TICKS = 12
_READABLE = 6
"""Cells beside each other that leave room for numbers in them."""
_SHORT = "datum.value >= 1e4 ? format(datum.value, '~s') : format(datum.value, '~g')"
"""1G for a thousand million, but 0.05 and not 50m."""


def lines_chart(lines: Lines) -> Spec:
    """Return curves with bars and hover numbers, a panel each."""
    base = alt.Chart().encode(x=_x(lines), color=_colour(lines.series))

    scale = (
        alt.Scale(type="log", nice=False, padding=8)
        if lines.y_scale == "log"
        else alt.Scale(zero=True)
    )
    axis = alt.Axis(labelExpr=_SHORT, tickCount=5, labelOverlap=True, grid=lines.y_scale != "log")
    y = alt.Y("y:Q", title=lines.y_title or None, scale=scale, axis=axis)

    tooltip = [
        alt.Tooltip("series:N", title="learner" if lines.by_learner else "tasks"),
        alt.Tooltip("panel:N", title="panel"),
        alt.Tooltip("x:N", title=lines.x_title),
        alt.Tooltip("text:N", title=lines.y_title or "value"),
    ]
    detail = alt.Detail("run:N") if not lines.by_learner else alt.Detail("series:N")

    curve = base.mark_line(strokeWidth=1.6).encode(y=y, detail=detail)
    dots = base.mark_point(size=46, filled=True, opacity=1).encode(
        y=y, shape=_shape(lines.series), tooltip=tooltip
    )

    layers: list[Any] = [curve, dots]
    if any("low" in row for row in lines.rows):
        low = alt.Y("low:Q", title=lines.y_title or None)
        layers.insert(1, base.mark_rule(strokeWidth=1.2).encode(y=low, y2="high:Q"))

    return _faceted(
        alt.layer(*layers), lines.rows, "panel:N", lines.panels, shares_y=lines.shares_y
    )


def pareto_chart(pareto: Pareto) -> Spec:
    """Return accuracy over ATM with MACs as size, of the column that `column` names in the spec."""
    chosen = alt.param("column", value=pareto.columns[0])

    x_scale = alt.Scale(type="symlog", constant=0.01)
    x = alt.X(
        "x:Q", title="ATM: memory kept, over all support images", scale=x_scale, axis=_ATM_AXIS
    )
    base = (
        alt.Chart(_data(pareto.rows))
        .transform_filter("datum.column == column")
        .encode(x=x, color=_colour(pareto.series))
    )

    tooltip = [
        alt.Tooltip("series:N", title="learner"),
        alt.Tooltip("text:N", title="accuracy"),
        alt.Tooltip("x:Q", title="ATM", format=".4f"),
        alt.Tooltip("macs:Q", title="MACs to learn and answer", format=".3s"),
        alt.Tooltip("front:N", title="on the front"),
    ]

    y = alt.Y("y:Q", title="accuracy, %", scale=alt.Scale(zero=False))
    size = alt.Size(
        "macs:Q",
        title="MACs",
        scale=alt.Scale(type="symlog", constant=1e6, range=[40, 420]),
        legend=alt.Legend(labelExpr=_SHORT, values=[1e7, 1e8, 1e9, 1e10]),
    )

    dots = base.mark_point(strokeWidth=1.8).encode(
        y=y,
        size=size,
        shape=_shape(pareto.series),
        fill=alt.condition("datum.front", _colour(pareto.series), alt.value("transparent")),
        tooltip=tooltip,
    )
    bars = base.mark_rule(strokeWidth=1).encode(y=alt.Y("low:Q", title="accuracy, %"), y2="high:Q")

    return _plain(
        alt.layer(bars, dots).add_params(chosen).properties(width="container", height=360)
    )


_ATM_AXIS = alt.Axis(values=[0, 0.01, 0.1, 1, 10, 100], labelExpr=_SHORT)


def matrices_chart(matrices: Matrices) -> Spec:
    """Return a heat map a learner, for the column that the parameter `column` names."""
    chosen = alt.param("column", value=matrices.columns[0])

    base = (
        alt.Chart()
        .transform_filter("datum.column == column")
        .encode(
            x=alt.X("x:O", title="class group", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("y:O", title="after set", axis=alt.Axis(labelOverlap=True)),
        )
    )

    tooltip = [
        alt.Tooltip("series:N", title="learner"),
        alt.Tooltip("y:O", title="after support set"),
        alt.Tooltip("x:O", title="class group"),
        alt.Tooltip("value:Q", title="accuracy, %", format=".2f"),
    ]

    heat = alt.Color(
        "value:Q", title="accuracy, %", scale=alt.Scale(domain=[0, _FULL], scheme="viridis")
    )

    cells = base.mark_rect().encode(color=heat, tooltip=tooltip).add_params(chosen)
    numbers = (
        base.mark_text(fontSize=10)
        .transform_filter(f"datum.across <= {_READABLE}")
        .encode(
            text=alt.Text("value:Q", format=".0f"),
            color=alt.condition("datum.value > 60", alt.value("black"), alt.value("white")),
            tooltip=tooltip,
        )
    )

    learners = list(dict.fromkeys(row["series"] for row in matrices.rows))
    return _faceted(alt.layer(cells, numbers), matrices.rows, "series:N", learners, shares_y=True)


def _x(lines: Lines) -> alt.X:
    if lines.x_scale == "ordinal":
        return alt.X("x:O", title=lines.x_title, sort=lines.x_order, axis=alt.Axis(labelAngle=-30))

    values = sorted({row["x"] for row in lines.rows})
    whole = all(value == int(value) for value in values)

    if lines.x_scale == "log":
        axis = alt.Axis(grid=False, values=values, labelOverlap=True)
        return alt.X(
            "x:Q",
            title=lines.x_title,
            scale=alt.Scale(type="log", nice=False, padding=12),
            axis=axis,
        )

    axis = alt.Axis(grid=False, tickMinStep=1 if whole else 0.05, tickCount=6)
    if whole and len(values) <= _MOST_TICKS:
        axis = alt.Axis(grid=False, values=values, format="d", labelOverlap=True)
    return alt.X(
        "x:Q", title=lines.x_title, scale=alt.Scale(zero=False, nice=False, padding=12), axis=axis
    )


def _colour(names: list[str]) -> alt.Color:
    looks = styles(names)
    colours = [f"var(--series-{looks[name].colour})" for name in names]
    return alt.Color("series:N", title=None, scale=alt.Scale(domain=names, range=colours))


def _shape(names: list[str]) -> alt.Shape:
    looks = styles(names)
    return alt.Shape(
        "series:N",
        title=None,
        scale=alt.Scale(domain=names, range=[looks[name].shape for name in names]),
    )


def _faceted(
    chart: Any, rows: list[Point], field: str, order: list[str], *, shares_y: bool
) -> Spec:
    """Lay panels out; the page decides how many stand beside each other."""
    header = alt.Header(title=None, labelFontWeight="bold", labelLimit=260)
    facet = alt.Facet(field, sort=order, header=header)
    sized = chart.properties(width=260, height=220)
    made = sized.facet(facet=facet, columns=2, data=_data(rows))
    if not shares_y:
        made = made.resolve_scale(y="independent")
    return _plain(made.resolve_axis(x="independent"))


def _data(rows: list[Point]) -> Any:
    return alt.InlineData(values=rows)


def _plain(chart: Any) -> Spec:
    spec: Spec = chart.to_dict()
    spec.pop("config", None)  # the page has its own, which follows light and dark
    return spec
