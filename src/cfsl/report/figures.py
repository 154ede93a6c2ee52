"""The figures of the papers for print: PDF, SVG or PNG, with error bars.

Markers differ as well as colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure

from cfsl.report.curves import Lines, Point
from cfsl.report.forgetting_and_costs import Matrices, Pareto
from cfsl.report.leaderboard import SIGNIFICANT
from cfsl.report.rankings import Differences, Ranking
from cfsl.report.styles import LIGHT, Style, styles

_ACROSS = 4
_LEGEND_ROWS = 26
_LEGEND_WIDTH = 32
_TITLE_WIDTH = 80
_SMALL = 8


def lines_figure(lines: Lines) -> Figure:
    """Draw curves, a panel each, with bars where there are intervals."""
    panels = lines.panels
    figure, axes = _grid(len(panels), shares_y=lines.shares_y)
    looks = styles(lines.series)

    for axis, panel in zip(axes, panels, strict=True):
        for name in lines.series:
            rows = [row for row in lines.rows if row["panel"] == panel and row["series"] == name]
            for run in dict.fromkeys(row.get("run") for row in rows):
                _draw_curve(
                    axis, lines, [row for row in rows if row.get("run") == run], name, looks[name]
                )
        _finish(axis, lines, panel)

    _legend(figure, axes, lines.title, lines.where)
    figure.supxlabel(lines.x_title, fontsize=9)
    return figure


def _draw_curve(axis: Any, lines: Lines, rows: Sequence[Point], name: str, look: Style) -> None:
    if not rows:
        return

    ordinal = lines.x_scale == "ordinal"
    rows = sorted(rows, key=lambda row: lines.x_order.index(row["x"]) if ordinal else row["x"])
    xs = [lines.x_order.index(row["x"]) if ordinal else row["x"] for row in rows]
    bars = [row["high"] - row["y"] for row in rows] if "high" in rows[0] else None

    axis.errorbar(
        xs,
        [row["y"] for row in rows],
        bars,
        label=name,
        color=LIGHT[look.colour],
        marker=look.marker,
        markersize=4,
        linewidth=1,
        capsize=2,
    )


def _finish(axis: Any, lines: Lines, panel: str) -> None:
    axis.set_title(panel, fontsize=9)
    if lines.shares_y:
        axis.set_ylabel(lines.y_title, fontsize=_SMALL)
        axis.label_outer()
        axis.tick_params(labelbottom=True)

    if lines.x_scale == "ordinal":
        axis.set_xticks(range(len(lines.x_order)), lines.x_order, rotation=20, ha="right")
    elif lines.x_scale == "log":
        axis.set_xscale("log")
        values = sorted({row["x"] for row in lines.rows})
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.minorticks_off()

    axis.set_yscale(lines.y_scale)
    axis.grid(alpha=0.3)
    axis.tick_params(labelsize=_SMALL)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def pareto_figure(pareto: Pareto) -> Figure:
    """Draw accuracy over ATM, a panel for each column.

    The area of a dot grows with its MACs; filled dots are on the Pareto front.
    """
    figure, axes = _grid(len(pareto.columns), shares_y=True)
    looks = styles(pareto.series)
    most = max(math.log10(row["macs"] + 10) for row in pareto.rows)

    for axis, column in zip(axes, pareto.columns, strict=True):
        for row in (row for row in pareto.rows if row["column"] == column):
            look = looks[row["series"]]
            colour = LIGHT[look.colour]

            size = 3 + 6 * (math.log10(row["macs"] + 10) / most) ** 2
            face = colour if row["front"] else "none"
            axis.errorbar(
                row["x"], row["y"], row["high"] - row["y"], color=colour, linewidth=1, capsize=0
            )
            style = {
                "marker": look.marker,
                "markersize": size,
                "markerfacecolor": face,
                "markeredgecolor": colour,
            }
            axis.plot([row["x"]], [row["y"]], linestyle="none", label=row["series"], **style)

        axis.set_xscale("symlog", linthresh=0.01)
        axis.set_title(column, fontsize=9)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=_SMALL)

    _legend(
        figure,
        axes,
        "Accuracy, memory and operations",
        f"{pareto.where}; filled: on the front; size: MACs",
    )
    figure.supxlabel("ATM (logarithmic from 0.01)", fontsize=9)
    figure.supylabel("accuracy, %", fontsize=9)
    return figure


def matrices_figure(matrices: Matrices, column: str) -> Figure:
    """Draw the forgetting matrices of one column, a panel a learner."""
    rows = [row for row in matrices.rows if row["column"] == column]
    learners = list(dict.fromkeys(row["series"] for row in rows))
    sets, groups = max(row["y"] for row in rows), max(row["x"] for row in rows)

    figure, axes = _grid(len(learners), shares_y=True, size=(1.6, 1.7))
    image: Any = None

    for axis, learner in zip(axes, learners, strict=True):
        grid = [[math.nan] * groups for _ in range(sets)]
        for row in (row for row in rows if row["series"] == learner):
            grid[row["y"] - 1][row["x"] - 1] = row["value"]
        extent = (0.5, groups + 0.5, sets + 0.5, 0.5)
        image = axis.imshow(grid, vmin=0, vmax=100, cmap="viridis", aspect="auto", extent=extent)
        if sets * groups <= 40:
            _write_values(axis, grid)
        axis.set_title(learner, fontsize=_SMALL)
        axis.tick_params(labelsize=7)
        axis.locator_params(integer=True)

    figure.colorbar(image, ax=axes, label="accuracy, %", shrink=0.8)
    figure.suptitle(
        f"Accuracy on each class group after each support set: {column}, {matrices.where}",
        fontsize=9,
    )
    figure.supxlabel("class group", fontsize=9)
    figure.supylabel("after support set", fontsize=9)
    return figure


def _write_values(axis: Any, grid: Sequence[Sequence[float]]) -> None:
    for after, values in enumerate(grid):
        for group, value in enumerate(values):
            if not math.isnan(value):
                colour = "black" if value > 60 else "white"
                axis.text(
                    group + 1,
                    after + 1,
                    f"{value:.0f}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color=colour,
                )


def ranking_figure(ranking: Ranking) -> Figure:
    """Draw every column's learners from the best down, on an axis that is wide close to 100 %."""
    panels = list(dict.fromkeys(row["panel"] for row in ranking.rows))
    labels = {row["label"]: fill(row["label"], _LEGEND_WIDTH) for row in ranking.rows}

    heights = {
        panel: sum(
            1 + labels[row["label"]].count("\n") for row in ranking.rows if row["panel"] == panel
        )
        for panel in panels
    }

    longest = max(len(line) for label in labels.values() for line in label.split("\n"))
    size = (1.8 + 0.07 * longest, 0.7 + 0.16 * max(heights.values()))
    figure, axes = _grid(len(panels), shares_y=False, size=size)
    looks = styles(dict.fromkeys(row["series"] for row in ranking.rows))

    for axis, panel in zip(axes, panels, strict=True):
        rows = [row for row in ranking.rows if row["panel"] == panel]
        for place, row in enumerate(rows):
            _draw_ranked(axis, place, row, looks[row["series"]])
        axis.set_yticks(range(len(rows)), [labels[row["label"]] for row in rows])
        axis.invert_yaxis()
        axis.set_xscale("logit")

        ends = [row["x"] + side * (row["width"] or 0.0) for row in rows for side in (-1, 1)]
        shown = _ticks_around(
            [*ends, *(row["published"] for row in rows if row["published"] is not None)]
        )
        axis.set_xlim(_share(shown[0]), _share(shown[-1]))
        axis.set_xticks([_share(tick) for tick in shown], [f"{tick:g}" for tick in shown])

        axis.minorticks_off()
        _finish_rows(axis, panel)

    figure.suptitle(fill(f"Who is better: {ranking.where}", _TITLE_WIDTH), fontsize=10)
    words = "accuracy, %, with 95 % over tasks; grey: published, x if superseded or trend only"
    figure.supxlabel(fill(words, _TITLE_WIDTH), fontsize=9)
    return figure


def _draw_ranked(axis: Any, place: int, row: Point, look: Style) -> None:
    style = {
        "color": LIGHT[look.colour],
        "marker": look.marker,
        "markersize": 4,
        "linewidth": 1,
        "clip_on": False,
    }

    middle, width = _share(row["x"]), row["width"]
    bars = None
    if width is not None:
        bars = [[middle - _share(row["x"] - width)], [_share(row["x"] + width) - middle]]
    axis.errorbar(middle, place, xerr=bars, **style)

    if row["published"] is not None:
        mark = {
            "marker": "|" if row["status"] == "sound" else "x",
            "markersize": 5,
            "color": "grey",
        }
        axis.plot([_share(row["published"])], [place], linestyle="none", clip_on=False, **mark)


_TICKS = (0.01, 0.1, 1.0, 5.0, 20.0, 50.0, 80.0, 95.0, 99.0, 99.9, 99.99)


def _ticks_around(values: Sequence[float]) -> list[float]:
    """Return the ticks from the last below all values to the first above them."""
    first = max(place for place, tick in enumerate(_TICKS) if place == 0 or tick <= min(values))
    last = min(
        place
        for place, tick in enumerate(_TICKS)
        if place == len(_TICKS) - 1 or tick >= max(values)
    )
    last = max(last, 1)
    return list(_TICKS[min(first, last - 1) : last + 1])


def _share(percent: float) -> float:
    """Return a share that a logit axis has a place for: 0 and 100 % are at its ends."""
    return min(max(percent, _TICKS[0]), _TICKS[-1]) / 100


def differences_figure(differences: Differences) -> Figure:
    """Draw paired differences, a row a column; linear up to a point, logarithmic beyond."""
    columns, names = (
        differences.columns,
        list(dict.fromkeys(row["series"] for row in differences.rows)),
    )

    figure = Figure(
        figsize=(7.2, 1.3 + (0.1 + 0.13 * len(names)) * len(columns)), layout="constrained"
    )
    axis = figure.subplots()

    looks = styles(names)
    for number, name in enumerate(names):
        colour = LIGHT[looks[name].colour]
        look: dict[str, Any] = {
            "color": colour,
            "marker": looks[name].marker,
            "markersize": 4,
            "linestyle": "none",
        }
        axis.plot([], [], label=name, **look)
        for row in (row for row in differences.rows if row["series"] == name):
            place = columns.index(row["column"]) + 0.7 * ((number + 0.5) / len(names) - 0.5)
            face = colour if row["p"] < SIGNIFICANT else "white"
            axis.errorbar(
                row["x"], place, xerr=row["width"], mfc=face, capsize=2, elinewidth=1, **look
            )

    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_xscale("symlog", linthresh=1)

    widths = [row["width"] or 0.0 for row in differences.rows]
    ends = [
        row["x"] + side * width
        for row, width in zip(differences.rows, widths, strict=True)
        for side in (-1, 1)
    ]

    shown = [tick for tick in _POINTS if min(ends) - 1 <= tick <= max(ends) + 1 or abs(tick) <= 1]
    axis.set_xticks(shown, [f"{tick:+g}" if tick else "0" for tick in shown])
    axis.minorticks_off()

    axis.set_yticks(range(len(columns)), columns)
    axis.invert_yaxis()
    _finish_rows(axis, "")
    _legend(
        figure, [axis], fill(f"Better than {differences.against}, task by task", _TITLE_WIDTH), ""
    )
    axis_words = "points, with 95 % over tasks (linear to 1, logarithmic beyond)"

    words = f"{axis_words}; hollow: p >= {SIGNIFICANT}"
    figure.supxlabel(f"{words}\n{differences.where}", fontsize=9)
    return figure


_POINTS = (-50, -20, -10, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 20, 50)


def _finish_rows(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=9)
    axis.grid(alpha=0.3, axis="x")
    axis.tick_params(labelsize=_SMALL)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _grid(
    count: int, *, shares_y: bool, size: tuple[float, float] = (2.9, 2.6)
) -> tuple[Figure, list[Any]]:
    down = math.ceil(count / _ACROSS)
    across = math.ceil(count / down)

    size = (max(4.2, size[0]), max(3.0, size[1])) if count == 1 else size
    figure = Figure(
        figsize=(max(5.5, size[0] * across + 1.8), size[1] * down + 0.9), layout="constrained"
    )

    axes = list(figure.subplots(down, across, sharey=shares_y, squeeze=False).flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes[:count]


def _legend(figure: Figure, axes: Sequence[Any], title: str, where: str) -> None:
    """Name every series once, beside the panels."""
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)

    look: dict[str, Any] = {
        "fontsize": 7,
        "frameon": False,
        "ncols": math.ceil(len(named) / _LEGEND_ROWS),
    }

    labels = [fill(label, _LEGEND_WIDTH) for label in named]
    figure.legend(list(named.values()), labels, loc="outside right center", **look)
    figure.suptitle(f"{title}: {where}" if where else title, fontsize=10)
