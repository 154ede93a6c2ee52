"""Pictures of a sweep: accuracy over each hyper-parameter, and over the trials of a search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from cfsl.report.palette import INK, label_colours

Trial: TypeAlias = Mapping[str, Any]
"""As 'cfsl sweep --json' prints it: "values", "accuracy", "ci95" (fractions), "best", "trial"."""

_BLUE, _, _, _, _VERMILION = (tuple(part / 255 for part in colour) for colour in label_colours(5))
_INK = tuple(part / 255 for part in INK)
_PALE = 0.35
_IN_A_LINE = 4
_MOST_TICKS = 8
_LEAST, _MOST = -2, 102
"""Percent: bars of few tasks may go further than accuracies can."""


def sweep_chart(
    rows: Sequence[Trial],
    method: str,
    title: str,
    centre: Mapping[str, Any],
    log: Sequence[str] = (),
) -> Figure:
    """Return a panel for every hyper-parameter; a search has one before them, of trials in order.

    A univariate sweep has a curve in every panel: the trials that differ from `centre` in nothing
    else. The panels of other methods have all trials as dots, and those of a grid also a curve
    through the best at each value. The axis of a hyper-parameter is logarithmic if its values are
    geometric, or if `log` names it.
    """
    done = [row for row in rows if row["accuracy"] is not None]
    names = list(centre)
    searched = method in ("tpe", "random")
    figure, panels = _panels(len(names) + searched)
    if searched:
        _draw_trials(panels.pop(0), done)
    for panel, name in zip(panels, names, strict=True):
        shown = _alone(done, name, centre) if method == "univariate" else done
        _draw_panel(panel, name, shown, method, is_log=name in log)
        if method == "univariate":
            _mark_centre(panel, name, shown, centre[name])
    dotted = "; dotted: where it is while others are varied" if method == "univariate" else ""
    low, high = figure.axes[0].get_ylim()
    figure.axes[0].set_ylim(max(low, _LEAST), min(high, _MOST))  # all panels share it
    figure.suptitle(f"{title}\nbars: 95 % over tasks; star: best{dotted}", fontsize=9)
    figure.supylabel("validation accuracy, %", fontsize=9)
    return figure


def _panels(count: int) -> tuple[Figure, list[Any]]:
    down = math.ceil(count / _IN_A_LINE)
    across = math.ceil(count / down)
    figure = Figure(figsize=(max(1.2 + 2.5 * across, 6.2), 0.9 + 2.5 * down), layout="constrained")
    grid = list(figure.subplots(down, across, sharey=True, squeeze=False).flat)
    for spare in grid[count:]:
        spare.set_visible(False)
    return figure, grid[:count]


def _alone(rows: Sequence[Trial], name: str, centre: Mapping[str, Any]) -> list[Trial]:
    """Return the trials that differ from the centre in this hyper-parameter alone."""
    rest = {other: value for other, value in centre.items() if other != name}
    return [
        row for row in rows if all(row["values"][other] == value for other, value in rest.items())
    ]


def _draw_panel(panel: Any, name: str, rows: Sequence[Trial], method: str, *, is_log: bool) -> None:
    values = _ordered([row["values"][name] for row in rows])
    numeric = _are_numbers(values)
    places = [_place(value, values) for value in values]
    where = [_place(row["values"][name], values) for row in rows]
    curve = [
        max((row for row in rows if row["values"][name] == value), key=_accuracy)
        for value in values
    ]

    if method in ("grid", "univariate"):
        _draw_curve(panel, places, curve, joined=numeric)
    if method != "univariate":
        _draw_dots(panel, where, rows)
    _draw_star(panel, where, rows)

    if numeric and (is_log or _is_geometric(values)):
        panel.set_xscale("log")
    if not numeric or len(values) <= _MOST_TICKS:
        panel.set_xticks(places, [_text(value) for value in values], fontsize=8)
        panel.minorticks_off()

    panel.margins(x=0.12 if numeric else 0.3)
    panel.set_xlabel(name, fontsize=9)
    _finish(panel)


def _draw_trials(panel: Any, rows: Sequence[Trial]) -> None:
    numbers = [row["trial"] for row in rows]
    panel.errorbar(
        numbers, _percents(rows), _widths(rows), fmt="none", ecolor=_BLUE, alpha=_PALE, elinewidth=1
    )
    _draw_dots(panel, numbers, rows)
    _draw_star(panel, numbers, rows)

    so_far = list(itertools.accumulate(_percents(rows), max))
    panel.step(numbers, so_far, where="post", color=_INK, linewidth=1, label="best so far")

    panel.legend(loc="lower right", fontsize=7, frameon=False)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_xlabel("trial", fontsize=9)
    _finish(panel)


def _draw_curve(panel: Any, places: Sequence[Any], rows: Sequence[Trial], *, joined: bool) -> None:
    style = {
        "fmt": "o-" if joined else "o",
        "color": _BLUE,
        "markersize": 4,
        "linewidth": 1,
        "capsize": 2,
    }
    panel.errorbar(places, _percents(rows), _widths(rows), **style)


def _draw_dots(panel: Any, places: Sequence[Any], rows: Sequence[Trial]) -> None:
    panel.plot(
        places, _percents(rows), "o", color=_BLUE, alpha=2 * _PALE, markersize=4, markeredgewidth=0
    )


def _draw_star(panel: Any, places: Sequence[Any], rows: Sequence[Trial]) -> None:
    for place, row in zip(places, rows, strict=True):
        if row["best"]:
            panel.plot([place], _percents([row]), "*", color=_VERMILION, markersize=12, zorder=5)


def _accuracy(row: Trial) -> float:
    return float(row["accuracy"])


def _percents(rows: Sequence[Trial]) -> list[float]:
    return [100 * _accuracy(row) for row in rows]


def _widths(rows: Sequence[Trial]) -> list[float]:
    return [100 * (row["ci95"] or 0.0) for row in rows]


def _mark_centre(panel: Any, name: str, rows: Sequence[Trial], centre: Any) -> None:
    values = _ordered([row["values"][name] for row in rows])
    if centre in values:
        panel.axvline(_place(centre, values), linestyle=":", color="grey", linewidth=1, zorder=0)


def _finish(panel: Any) -> None:
    panel.grid(axis="y", alpha=0.3)
    panel.tick_params(labelsize=8)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _ordered(values: Sequence[Any]) -> list[Any]:
    """Return every value once, numbers in their order."""
    once: list[Any] = []
    for value in values:
        if value not in once:
            once.append(value)
    return sorted(once) if _are_numbers(once) else once


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _place(value: Any, values: Sequence[Any]) -> Any:
    """Return where on the axis a value is: a number where it is, anything else by its rank."""
    return value if _are_numbers(values) else values.index(value)


def _is_geometric(values: Sequence[int | float]) -> bool:
    """Tell whether sorted numbers are spaced more evenly by ratios than by differences."""
    if len(values) < 3 or values[0] <= 0:
        return False
    numbers = np.array(values, dtype=np.float64)
    return _unevenness(np.log(numbers)) < _unevenness(numbers)


def _unevenness(numbers: np.ndarray) -> float:
    gaps = np.diff(numbers)
    return float(gaps.std() / gaps.mean())


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
