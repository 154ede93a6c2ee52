"""The figures of the papers on paper: PDF, SVG or PNG, with error bars. Markers differ as well as colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure

from cfsl.report.clouds import Matrices, Pareto
from cfsl.report.contests import Differences, Ranking
from cfsl.report.series import Lines, Point
from cfsl.report.styles import LIGHT, Style, styles

_ACROSS = 4
_LEGEND_ROWS = 26
_LEGEND_WIDTH = 32
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
                _draw_curve(axis, lines, [row for row in rows if row.get("run") == run], name, looks[name])
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
    """Draw accuracy over ATM, a panel a column; the area of a dot grows with its MACs, filled dots are on the front."""
    figure, axes = _grid(len(pareto.columns), shares_y=True)
    looks = styles(pareto.series)
    most = max(math.log10(row["macs"] + 10) for row in pareto.rows)
    for axis, column in zip(axes, pareto.columns, strict=True):
        for row in (row for row in pareto.rows if row["column"] == column):
            look = looks[row["series"]]
            colour = LIGHT[look.colour]
            size = 3 + 6 * (math.log10(row["macs"] + 10) / most) ** 2
            face = colour if row["front"] else "none"
            axis.errorbar(row["x"], row["y"], row["high"] - row["y"], color=colour, linewidth=1, capsize=0)
            style = {"marker": look.marker, "markersize": size, "markerfacecolor": face, "markeredgecolor": colour}
            axis.plot([row["x"]], [row["y"]], linestyle="none", label=row["series"], **style)
        axis.set_xscale("symlog", linthresh=0.01)
        axis.set_title(column, fontsize=9)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=_SMALL)
    _legend(figure, axes, "Accuracy, memory and operations", f"{pareto.where}; filled: on the front; size: MACs")
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
    figure.suptitle(f"Accuracy on each class group after each support set: {column}, {matrices.where}", fontsize=9)
    figure.supxlabel("class group", fontsize=9)
    figure.supylabel("after support set", fontsize=9)
    return figure


def _write_values(axis: Any, grid: Sequence[Sequence[float]]) -> None:
    for after, values in enumerate(grid):
        for group, value in enumerate(values):
            if not math.isnan(value):
                colour = "black" if value > 60 else "white"
                axis.text(group + 1, after + 1, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)


def ranking_figure(ranking: Ranking) -> Figure:
    """Draw every column's learners from the best down, on an axis that spreads what is close to 100 %."""
    panels = list(dict.fromkeys(row["panel"] for row in ranking.rows))
    longest = max(sum(row["panel"] == panel for row in ranking.rows) for panel in panels)
    figure, axes = _grid(len(panels), shares_y=False, size=(2.9, 0.7 + 0.16 * longest))
    looks = styles(dict.fromkeys(row["series"] for row in ranking.rows))
    for axis, panel in zip(axes, panels, strict=True):
        rows = [row for row in ranking.rows if row["panel"] == panel]
        for place, row in enumerate(rows):
            look = looks[row["series"]]
            bars = [[_share(row["x"]) - _share(row["low"])], [_share(row["high"]) - _share(row["x"])]]
            style = {"color": LIGHT[look.colour], "marker": look.marker, "markersize": 4, "linewidth": 1}
            axis.errorbar(_share(row["x"]), place, xerr=bars, **style)
            if row["published"] is not None:
                mark = {"marker": "|" if row["status"] == "sound" else "x", "markersize": 5, "color": "grey"}
                axis.plot([_share(row["published"])], [place], linestyle="none", **mark)
        axis.set_yticks(range(len(rows)), [row["series"] for row in rows])
        axis.invert_yaxis()
        axis.set_xscale("logit")
        low = min(row["low"] for row in rows)
        shown = [tick for tick in _TICKS if tick > low / 2]
        axis.set_xticks([tick / 100 for tick in shown], [f"{tick:g}" for tick in shown])
        axis.minorticks_off()
        _finish_rows(axis, panel)
    figure.suptitle(f"Who is better: {ranking.where}", fontsize=10)
    figure.supxlabel("accuracy, %, with 95 % over tasks; grey: published, x if superseded or trend only", fontsize=9)
    return figure


_TICKS = (2, 5, 20, 50, 80, 95, 99, 99.9, 99.99)


def _share(percent: float) -> float:
    """Return a share that a logit axis has a place for."""
    return min(max(percent / 100, 1e-4), 1 - 1e-4)


def differences_figure(differences: Differences) -> Figure:
    """Draw paired differences, a row a column; linear up to a point, logarithmic beyond."""
    columns = differences.columns
    names = list(dict.fromkeys(row["series"] for row in differences.rows))
    figure = Figure(figsize=(7.2, 1.1 + (0.1 + 0.13 * len(names)) * len(columns)), layout="constrained")
    axis = figure.subplots()
    looks = styles(names)
    for number, name in enumerate(names):
        rows = [row for row in differences.rows if row["series"] == name]
        places = [columns.index(row["column"]) + 0.7 * ((number + 0.5) / len(names) - 0.5) for row in rows]
        bars = [[row["x"] - row["low"] for row in rows], [row["high"] - row["x"] for row in rows]]
        look: dict[str, Any] = {"color": LIGHT[looks[name].colour], "marker": looks[name].marker, "label": name}
        axis.errorbar(
            [row["x"] for row in rows],
            places,
            xerr=bars,
            linestyle="none",
            markersize=4,
            capsize=2,
            linewidth=1,
            **look,
        )
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_xscale("symlog", linthresh=1)
    ends = min(row["low"] for row in differences.rows), max(row["high"] for row in differences.rows)
    shown = [tick for tick in _POINTS if ends[0] - 1 <= tick <= ends[1] + 1 or abs(tick) <= 1]
    axis.set_xticks(shown, [f"{tick:+g}" if tick else "0" for tick in shown])
    axis.minorticks_off()
    axis.set_yticks(range(len(columns)), columns)
    axis.invert_yaxis()
    _finish_rows(axis, "")
    _legend(figure, [axis], f"Better than {differences.against}, task by task", differences.where)
    figure.supxlabel("points of accuracy, with 95 % over tasks (linear to 1, logarithmic beyond)", fontsize=9)
    return figure


_POINTS = (-50, -20, -10, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 20, 50)


def _finish_rows(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=9)
    axis.grid(alpha=0.3, axis="x")
    axis.tick_params(labelsize=_SMALL)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _grid(count: int, *, shares_y: bool, size: tuple[float, float] = (2.9, 2.6)) -> tuple[Figure, list[Any]]:
    down = math.ceil(count / _ACROSS)
    across = math.ceil(count / down)
    size = (4.2, 3.0) if count == 1 else size
    figure = Figure(figsize=(max(5.5, size[0] * across + 1.8), size[1] * down + 0.9), layout="constrained")
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
    look: dict[str, Any] = {"fontsize": 7, "frameon": False, "ncols": math.ceil(len(named) / _LEGEND_ROWS)}
    labels = [fill(label, _LEGEND_WIDTH) for label in named]
    figure.legend(list(named.values()), labels, loc="outside right center", **look)
    figure.suptitle(f"{title}: {where}" if where else title, fontsize=10)
