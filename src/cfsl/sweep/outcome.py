"""What a sweep has found: its trials, each compared with the best on the same tasks, and the best to be used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfsl.cards.compare import SIGNIFICANT, compare_cards
from cfsl.cards.manifests import Manifests
from cfsl.files import written_whole
from cfsl.sweep.space import Point
from cfsl.sweep.study import STUDY, Tried
from cfsl.sweep.trials import SPLIT, Sweep, knobs_of
from cfsl.sweep.work import BENCH

BEST = "best.json"


@dataclass(frozen=True)
class Row:
    """A trial in the table."""

    trial: int
    values: Point
    state: str
    """done, failed, or to do."""
    accuracy: float | None = None
    ci95: float | None = None
    difference: float | None = None
    """Of the accuracy to that of the best trial, on the same tasks."""
    difference_ci95: float | None = None
    p: float | None = None
    """Of the paired t test against the best trial."""
    atm: float | None = None
    macs: dict[str, int] | None = None
    best: bool = False
    error: str | None = None

    @property
    def mark(self) -> str:
        """Tell the best, and what is not significantly worse."""
        if self.best:
            return "*"
        return "~" if self.p is not None and self.p >= SIGNIFICANT else " "


def rows_of(tried: Sequence[Tried], folder: Path) -> list[Row]:
    """Compare every trial with the best, which is the one of the highest mean, and the first of equals."""
    done = [one for one in tried if one.accuracy is not None]
    best = max(done, key=lambda one: one.accuracy or 0.0, default=None)
    manifests = Manifests(folder / BENCH)
    return [_row(one, best, folder, manifests) for one in tried]


def _row(one: Tried, best: Tried | None, folder: Path, manifests: Manifests) -> Row:
    if one.accuracy is None or best is None:
        return Row(one.point, one.values, "failed" if one.error else "to do", error=one.error)
    measured = one.measured
    paired = compare_cards(
        folder / measured["card"], folder / best.measured["card"], manifests
    ).paired
    return Row(
        one.point,
        one.values,
        "done",
        accuracy=one.accuracy,
        ci95=measured["ci95"],
        difference=paired.difference,
        difference_ci95=paired.ci95,
        p=paired.p,
        atm=measured["atm"],
        macs={part: measured[f"macs_{part}"] for part in ("adaptation", "prediction")},
        best=one is best,
    )


def idle(rows: Sequence[Row]) -> list[str]:
    """Return the names whose values made no difference at all wherever nothing else differed."""
    done = [row for row in rows if row.state == "done"]
    names = list(done[0].values) if done else []
    return [name for name in names if _is_idle(name, done)]


def _is_idle(name: str, done: Sequence[Row]) -> bool:
    """Tell whether trials with several values of a hyper-parameter came out the same, whatever the others were."""
    outcomes: dict[str, set[str]] = {}
    seen: dict[str, set[str]] = {}
    for row in done:
        others = json.dumps(
            {other: value for other, value in row.values.items() if other != name}, sort_keys=True
        )
        outcomes.setdefault(others, set()).add(
            json.dumps([row.accuracy, row.ci95, row.atm, row.macs])
        )
        seen.setdefault(others, set()).add(json.dumps(row.values[name]))
    varied = [others for others, values in seen.items() if len(values) > 1]
    return bool(varied) and all(len(outcomes[others]) == 1 for others in varied)


def best_of(sweep: Sweep, rows: Sequence[Row], folder: Path) -> dict[str, Any] | None:
    """Return the best trial as 'cfsl bench --settings' takes it; None if none is done."""
    best = next((row for row in rows if row.best), None)
    if best is None:
        return None
    changes, training = knobs_of(sweep).settings(best.values)
    return {
        "learner": sweep.learner,
        "changes": changes,
        "training": None if training is None else training.model_dump(mode="json"),
        "values": best.values,
        "accuracy": best.accuracy,
        "ci95": best.ci95,
        "tasks": {
            "data": sweep.data.name,
            "split": SPLIT,
            "spec": sweep.task.model_dump(mode="json"),
            "seed": sweep.task_seed,
            "count": sweep.tasks,
        },
        "study": str(folder / STUDY),
        "trials": sum(row.state == "done" for row in rows),
    }


def write_best(best: dict[str, Any], folder: Path) -> Path:
    """Write the best trial, whole or not at all."""
    path = folder / BEST
    with written_whole(path) as part:
        part.write_text(json.dumps(best, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path
