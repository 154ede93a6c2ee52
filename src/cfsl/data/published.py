"""The published test tasks, by fingerprint: who draws the same fingerprint has the same tasks.

The table in published_tasks.json is written by `python -m cfsl.data.published omniglot > published_tasks.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import resources

from cfsl.data.catalog import load
from cfsl.data.manifest import Manifest
from cfsl.data.store import Dataset
from cfsl.data.tasks import Tasks
from cfsl.errors import lookup
from cfsl.spec import FrozenSpec, TaskSpec

TASKS = 600
TABLE_1: Mapping[str, TaskSpec] = {
    "B3": TaskSpec.type_b(nss=3),
    "C3": TaskSpec.type_c(nss=3),
    "A3": TaskSpec.type_a(nss=3),
    "D4": TaskSpec.type_d(nss=4, cci=2),
    "B5": TaskSpec.type_b(nss=5),
    "C5": TaskSpec.type_c(nss=5),
    "A5": TaskSpec.type_a(nss=5),
    "D8": TaskSpec.type_d(nss=8, cci=2),
    "B10": TaskSpec.type_b(nss=10),
    "C10": TaskSpec.type_c(nss=10),
    "A10": TaskSpec.type_a(nss=10),
}
"""The eleven columns of paper 1's Table 1."""


class PublishedTasks(FrozenSpec):
    """600 test tasks of one column."""

    spec: TaskSpec
    split: str = "test"
    seed: int = 0
    tasks: int = TASKS
    fingerprint: str


def published_tasks(data: str) -> dict[str, PublishedTasks]:
    """Return the published tasks of a data set, column by column."""
    text = (resources.files("cfsl.data") / "published_tasks.json").read_text()
    columns = lookup(json.loads(text), data, "data set with published tasks")
    return {column: PublishedTasks(**entry) for column, entry in columns.items()}


def drawn_fingerprint(data: Dataset, entry: PublishedTasks) -> str:
    """Draw the tasks of an entry and return their fingerprint."""
    tasks = Tasks(data, entry.spec, split=entry.split, seed=entry.seed, numbers=range(entry.tasks))
    return Manifest.of(tasks).fingerprint


def publish(data: Dataset) -> dict[str, PublishedTasks]:
    """Compute the table for a data set."""
    return {
        column: PublishedTasks(
            spec=spec,
            fingerprint=drawn_fingerprint(data, PublishedTasks(spec=spec, fingerprint="")),
        )
        for column, spec in TABLE_1.items()
    }


if __name__ == "__main__":
    table = {
        name: {c: entry.model_dump(mode="json") for c, entry in publish(load(name)).items()}
        for name in sys.argv[1:]
    }
    sys.stdout.write(json.dumps(table, indent=1) + "\n")
