"""What the figures show, as plain rows: the same for the page and for paper.

A row is a point: "series" (which curve), "panel" (where), "x", "y", and for accuracies "low" and
"high", the ends of the 95 % interval over tasks. Accuracies are in percent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from cfsl.cards.collect import CardFile
from cfsl.cards.schema import Card
from cfsl.metrics.accuracy import over_seeds
from cfsl.presets.columns import INSTANCE
from cfsl.presets.suites import SUITES
from cfsl.report.board import Board, columns_with
from cfsl.report.tables import entry_of
from cfsl.spec import TaskSpec

Point: TypeAlias = dict[str, Any]
Scale = Literal["linear", "log", "ordinal"]


@dataclass(frozen=True)
class Lines:
    """Curves, in one panel or several."""

    figure: str
    where: str
    """Data set and profile."""
    title: str
    caption: str
    x_title: str
    y_title: str
    rows: list[Point]
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    x_order: list[str] = field(default_factory=list)
    """Of an ordinal axis."""
    shares_y: bool = True
    by_learner: bool = True
    """Whether the series are learners, which have the same look everywhere."""

    @property
    def series(self) -> list[str]:
        """Who is shown, in order."""
        return list(dict.fromkeys(row["series"] for row in self.rows))

    @property
    def panels(self) -> list[str]:
        """The panels, in order."""
        return list(dict.fromkeys(row["panel"] for row in self.rows))


def lines_of(boards: Sequence[Board]) -> list[Lines]:
    """Return every figure of curves that the boards have cards for."""
    makers: Mapping[str, Callable[[Board], Iterator[Lines]]] = {
        "figure3": _figure_3,
        "figure4": _figure_4,
        "scaling": _scaling,
        "instance": _instance,
    }

    found = [
        lines for board in boards if board.suite in makers for lines in makers[board.suite](board)
    ]
    return [*found, *_corruption(boards)]


def _place(board: Board) -> str:
    return f"{board.data}, profile {board.profile}"


def _accuracy(series: str, panel: str, x: Any, cards: Sequence[CardFile]) -> Point:
    """Return the point of a cell."""
    entry = entry_of([found.card for found in cards], None)
    mean, width = 100 * (entry.mean or 0.0), 100 * (entry.ci95 or 0.0)
    text = f"{mean:.2f}" + (f" ± {width:.2f} %" if entry.ci95 is not None else " %")

    point = {
        "series": series,
        "panel": panel,
        "x": x,
        "y": mean,
        "low": mean - width,
        "high": mean + width,
    }
    return point | {"text": text, "seeds": entry.seeds}


def _nss(board: Board, column: str) -> int:
    return SUITES[board.suite].columns(board.data)[column].nss


def _figure_3(board: Board) -> Iterator[Lines]:
    """Accuracy over NSS: B, and C with overwrite; both begin at one support set."""
    panels = {"B": "B: new classes", "C": "C: new classes with overwrite"}

    rows = []
    for letter, panel in panels.items():
        for learner, cells in board.rows.items():
            own = [c for c in board.columns if c in cells and (c == "B1" or c.startswith(letter))]
            if own != ["B1"]:
                rows += [
                    _accuracy(learner, panel, _nss(board, column), cells[column]) for column in own
                ]

    if _has_curve(rows):
        yield Lines(
            "figure3",
            _place(board),
            "Accuracy over the number of support sets",
            "Paper 1, Figure 3. Bars: 95 % over tasks.",
            "support sets",
            "accuracy, %",
            rows,
        )

    if board.data not in SUITES["figure4"].data:
        yield from _costs(board, [column for column in board.columns if column[0] == "B"])


def _figure_4(board: Board) -> Iterator[Lines]:
    yield from _costs(board, board.columns)


def _costs(board: Board, columns: Sequence[str]) -> Iterator[Lines]:
    """ATM and MACs over NSS, as measured."""
    measures: Mapping[str, Callable[[Card], float]] = {
        "ATM": lambda card: card.metrics.atm.total,
        "MACs to learn": lambda card: card.macs.adaptation,
        "MACs to answer": lambda card: card.macs.prediction,
    }

    rows = []
    for panel, measure in measures.items():
        for learner, cells in board.rows.items():
            for column in columns:
                values = [float(measure(found.card)) for found in cells.get(column, ())]
                value = over_seeds(values).mean if values else 0.0
                if value > 0:  # a logarithmic axis has no zero
                    text = f"{value:.4f}" if panel == "ATM" else f"{value:,.0f}"
                    rows.append(
                        {
                            "series": learner,
                            "panel": panel,
                            "x": _nss(board, column),
                            "y": value,
                            "text": text,
                        }
                    )

    if _has_curve(rows):
        yield Lines(
            "figure4",
            _place(board),
            "Memory and operations over the number of support sets",
            "Paper 1, Figure 4, measured. ATM: what is kept, over all support images. "
            "Who keeps nothing is not shown.",
            "support sets",
            "",
            rows,
            x_scale="log",
            y_scale="log",
            shares_y=False,
        )


def _has_curve(rows: Iterable[Point]) -> bool:
    """Tell whether any series goes on in its panel."""
    places: dict[tuple[str, str], set[Any]] = {}
    for row in rows:
        places.setdefault((row["series"], row["panel"]), set()).add(row["x"])
    return any(len(xs) > 1 for xs in places.values())


def _scaling(board: Board) -> Iterator[Lines]:
    """Figure 6: as many classes, wide or deep."""
    specs = SUITES["scaling"].columns(board.data)
    names = {
        column: f"{column[:-1]} {column[-1]} ({specs[column].labels})" for column in board.columns
    }

    yield from _by_column(
        board,
        names,
        "Scaling: wide against deep tasks",
        "Paper 2, Figure 6; in brackets the number of classes. Bars: 95 % over tasks.",
        "experiment (classes)",
    )


def _instance(board: Board) -> Iterator[Lines]:
    """Figure 7: 20 images in few or many support sets."""
    names = {
        column: f"{INSTANCE[column].nss} x {INSTANCE[column].k_shot}" for column in board.columns
    }
    yield from _by_column(
        board,
        names,
        "Instance test: telling 20 images of one class apart",
        "Paper 2, Figure 7. Bars: 95 % over tasks.",
        "support sets x images in each",
    )


def _by_column(
    board: Board, names: Mapping[str, str], title: str, caption: str, x_title: str
) -> Iterator[Lines]:
    rows = [
        _accuracy(learner, "accuracy", names[column], cells[column])
        for learner, cells in board.rows.items()
        for column in board.columns
        if column in cells
    ]

    if _has_curve(rows):
        order = list(names.values())
        yield Lines(
            board.suite,
            _place(board),
            title,
            caption,
            x_title,
            "accuracy, %",
            rows,
            x_scale="ordinal",
            x_order=order,
        )


def _corruption(boards: Sequence[Board]) -> Iterator[Lines]:
    """Figures 8 and 9: the instance test under noise and occlusion; clean images are at 0."""
    clean = {(b.data, b.splits, b.profile): b for b in boards if b.suite == "instance"}

    for board in (board for board in boards if board.suite == "corruption"):
        specs = SUITES["corruption"].columns(board.data)

        base = clean.get((board.data, board.splits, board.profile))
        rows: list[Point] = []

        for kind, what in (("noise", "noise"), ("disc", "occlusion")):
            for name, spec in INSTANCE.items():
                panel = f"{what}, {spec.nss} x {spec.k_shot}"
                own = [column for column in board.columns if column.startswith(f"{name}-{kind}-")]
                for learner, cells in board.rows.items():
                    start = (base.rows.get(learner, {}) if base else {}).get(name)
                    rows += (
                        [_accuracy(learner, panel, 0.0, start)]
                        if start and any(c in cells for c in own)
                        else []
                    )
                    rows += [
                        _accuracy(learner, panel, _level(specs[column]), cells[column])
                        for column in own
                        if column in cells
                    ]

        if rows:
            yield Lines(
                "corruption",
                _place(board),
                "Instance test under noise and occlusion",
                "Paper 2, Figures 8 and 9; panels: support sets x images. "
                "Level: part of the values that are noise, or "
                "the radius of the disc over the height. Bars: 95 % over tasks.",
                "level of corruption",
                "accuracy, %",
                rows,
            )


def _level(spec: TaskSpec) -> float:
    return 0.0 if spec.corruption is None else float(spec.corruption.fraction)


def learning_curves(cards: Iterable[CardFile]) -> list[Lines]:
    """Return validation accuracy by epoch: a panel for every learner, a series for every task."""
    rows: list[Point] = []
    seen = set()
    for found in cards:
        checkpoint = found.card.checkpoint
        if checkpoint is None:
            continue
        stated = checkpoint.content()
        training_run = [stated.get("identity"), stated.get("update")]
        key = json.dumps(training_run, sort_keys=True, default=str)
        accuracies = [epoch.accuracy for epoch in checkpoint.history or []]
        known = [100 * accuracy for accuracy in accuracies if accuracy is not None]
        if key not in seen and len(known) > 1 and len(known) == len(accuracies):
            seen.add(key)
            rows += _curve(found, known)
    if not rows:
        return []

    order = {name: number for number, name in enumerate(sorted({row["series"] for row in rows}))}
    rows.sort(key=lambda row: (row["panel"], order[row["series"]], row["run"], row["x"]))
    return [
        Lines(
            figure="learning",
            where="",
            title="Learning curves",
            caption="Validation accuracy by epoch; "
            "each training run judges itself on its own tasks.",
            x_title="epoch",
            y_title="validation accuracy, %",
            rows=rows,
            by_learner=False,
        )
    ]


def _curve(found: CardFile, accuracies: Sequence[float]) -> Iterator[Point]:
    """Yield a point for every epoch of the training run of a card."""
    card = found.card
    validation = None if card.training is None else card.training.validation
    series = "?" if validation is None else _column(card.tasks.data, validation)

    for epoch, accuracy in enumerate(accuracies, start=1):
        yield {
            "series": series,
            "panel": f"{_trained_learner(card)}, {card.tasks.data}",
            "run": found.path,
            "x": epoch,
            "y": accuracy,
            "text": f"{accuracy:.2f} %",
            "seeds": card.training_seed,
        }


def _trained_learner(card: Card) -> str:
    """Return the name of the learner that was trained, as far as the card states it."""
    if card.run is not None and card.run.train is not None:
        return card.run.train.learner.name
    identity = None if card.checkpoint is None else card.checkpoint.identity
    trained = None if identity is None else identity.learner
    return (trained and trained.kind) or card.learner.name


def _column(data: str, spec: Mapping[str, Any]) -> str:
    """Return what the papers call these tasks, or else their type and number of support sets."""
    for _, column in columns_with(data, spec):
        return column
    task = TaskSpec(**spec)
    return f"{task.task_type}, {task.nss} sets"
