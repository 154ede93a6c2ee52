"""The fingerprints of the published test tasks: equal fingerprints mean the same tasks.

`python -m cfsl.data.published omniglot > published_tasks.json` writes the table that is read here.
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

_TASKS = 600
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
    """The test tasks of one column of Table 1."""

    spec: TaskSpec
    split: str = "test"
    seed: int = 0
    tasks: int = _TASKS
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


def _publish(data: Dataset) -> dict[str, PublishedTasks]:
    """Draw the tasks of all columns, and return them with their fingerprints."""
    asked = {column: PublishedTasks(spec=s, fingerprint="") for column, s in TABLE_1.items()}
    return {
        column: entry.replace(fingerprint=drawn_fingerprint(data, entry))
        for column, entry in asked.items()
    }


if __name__ == "__main__":
    table = {
        name: {c: entry.model_dump(mode="json") for c, entry in _publish(load(name)).items()}
        for name in sys.argv[1:]
    }
    sys.stdout.write(json.dumps(table, indent=1) + "\n")
