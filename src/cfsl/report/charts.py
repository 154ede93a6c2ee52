"""Charts of result cards, with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from cfsl.cards.schema import Card
from cfsl.report.palette import label_colours

_ROW_INCHES = 0.28


def accuracy_chart(cards: Sequence[Card], title: str) -> Figure:
    """Return a panel for every column, with a dot and its 95 % interval for every learner.

    Every card must state its column. Learners stand in the order of the cards, the first on top.
    """
    learners = list(dict.fromkeys(card.learner.name for card in cards))
    columns = list(dict.fromkeys(str(card.column) for card in cards))

    height = 1.4 + _ROW_INCHES * len(learners)
    figure = Figure(figsize=(2.2 + 1.9 * len(columns), height), layout="constrained")
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for panel, column in zip(panels, columns, strict=True):
        _draw_panel(panel, column, [card for card in cards if card.column == column], learners)

    figure.suptitle(f"Accuracy on {title}; bars: 95 % over tasks; dotted: chance", fontsize=10)
    return figure


def _draw_panel(panel: Any, column: str, cards: Sequence[Card], learners: Sequence[str]) -> None:
    blue = tuple(part / 255 for part in label_colours(1)[0])
    for card in cards:
        accuracy = card.metrics.accuracy
        panel.errorbar(
            100 * accuracy.mean,
            learners.index(card.learner.name),
            xerr=100 * (accuracy.ci95 or 0),
            fmt="D" if card.breaks_law else "o",
            color="grey" if card.breaks_law else blue,
            markersize=4,
            capsize=2,
        )

    labels = cards[0].tasks.task_spec.labels
    panel.axvline(100 / labels, linestyle=":", color="grey", linewidth=1)
    panel.set(xlim=(0, 101), title=f"{column} ({labels} labels)", xlabel="%")
    panel.set_yticks(range(len(learners)), learners)
    panel.set_ylim(len(learners) - 0.5, -0.5)
    panel.grid(axis="x", alpha=0.3)
