"""The result of a sweep: its trials, each compared with the best trial on the same tasks."""

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
from cfsl.sweep.trials import SPLIT, Sweep, hyperparameters_of
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
    """Difference of the accuracy to that of the best trial, on the same tasks."""
    difference_ci95: float | None = None
    p: float | None = None
    """p value of the paired t test against the best trial."""
    atm: float | None = None
    macs: dict[str, int] | None = None
    best: bool = False
    error: str | None = None

    @property
    def mark(self) -> str:
        """Return `*` for the best, `~` for one that is not significantly worse, or a space."""
        if self.best:
            return "*"
        return "~" if self.p is not None and self.p >= SIGNIFICANT else " "


def rows_of(tried: Sequence[Tried], folder: Path) -> list[Row]:
    """Compare every trial with the best one: the first trial that has the highest mean."""
    done = [one for one in tried if one.accuracy is not None]
    best = max(done, key=lambda one: one.accuracy or 0.0, default=None)

    manifests = Manifests(folder / BENCH)
    return [_row(one, best, folder, manifests) for one in tried]


def _row(one: Tried, best: Tried | None, folder: Path, manifests: Manifests) -> Row:
    if one.accuracy is None or best is None:
        return Row(one.point, one.values, "failed" if one.error else "to do", error=one.error)

    measured = one.measured
    own_card, best_card = folder / measured["card"], folder / best.measured["card"]
    paired = compare_cards(own_card, best_card, manifests).paired

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
    """Return the hyper-parameters whose values never changed the result of a trial."""
    done = [row for row in rows if row.state == "done"]
    names = list(done[0].values) if done else []
    return [name for name in names if _is_idle(name, done)]


def _is_idle(name: str, done: Sequence[Row]) -> bool:
    """Tell whether trials that differ in this hyper-parameter alone always have the same result."""
    results: dict[str, set[str]] = {}
    values: dict[str, set[str]] = {}

    for row in done:
        others = {other: value for other, value in row.values.items() if other != name}
        group = json.dumps(others, sort_keys=True)
        result = json.dumps([row.accuracy, row.ci95, row.atm, row.macs])

        results.setdefault(group, set()).add(result)
        values.setdefault(group, set()).add(json.dumps(row.values[name]))

    varied = [group for group, several in values.items() if len(several) > 1]
    return bool(varied) and all(len(results[group]) == 1 for group in varied)


def best_of(sweep: Sweep, rows: Sequence[Row], folder: Path) -> dict[str, Any] | None:
    """Return the best trial in the format of 'cfsl bench --settings'; None if no trial is done."""
    best = next((row for row in rows if row.best), None)
    if best is None:
        return None

    changes, training = hyperparameters_of(sweep).settings(best.values)

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
    """Write the file of the best trial. A process that is killed leaves no half of a file."""
    path = folder / BEST
    with written_whole(path) as part:
        part.write_text(json.dumps(best, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path
