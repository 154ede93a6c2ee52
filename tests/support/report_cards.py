"""Cards that nobody ran, for tests of the report, with numbers that follow from their place."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cfsl.cards.card import read_card
from cfsl.cards.collect import CardFile
from cfsl.cards.evidence import Evidence
from cfsl.cards.schema import Card
from cfsl.presets.suites import SUITES
from cfsl.report.board import boards
from cfsl.report.leaderboard import leaderboards, without_repeats
from cfsl.report.material import Material
from cfsl.spec import TaskSpec

GOLDEN = Path(__file__).parent.parent / "golden"


def summary(mean: float, ci95: float | None = 0.01) -> dict[str, Any]:
    """Return a summary over 600 tasks."""
    return {"mean": mean, "std": None if ci95 is None else ci95 * 12.5, "ci95": ci95, "count": 600}


def card(
    learner: str,
    spec: TaskSpec,
    accuracy: float,
    *,
    data: str = "omniglot",
    profile: str | None = "quick",
    seed: int = 0,
    split: str = "test",
    **changes: Any,
) -> Card:
    """Return a card as `read_card` would, without answers."""
    sha = hashlib.sha256(f"{data}{split}{spec.hash}".encode()).hexdigest()
    curve = [0.1 * spec.nss] * (spec.nss + 1)
    made: dict[str, Any] = {
        "format": 2,
        "learner": {"name": learner, "class": "Any", "settings": {"kind": learner}},
        "transductive": learner == "sca",
        "breaks_law": learner == "joint",
        "isolation": "none",
        "accelerated": False,
        "answers": None,
        "checkpoint": {
            "identity": {
                "learner": {"class": "Any", "kind": learner},
                "training": {
                    "schedule": {
                        **{
                            "epochs": 3,
                            "updates": 9,
                            "batch": 1,
                            "optimizer": "adamw",
                            "rate": 0.002,
                        },
                        "decay": "cosine",
                    },
                    "iid": False,
                    "seed": seed,
                    "validation_tasks": 50,
                    "validation": TaskSpec.type_b(3).model_dump(mode="json"),
                },
            },
            "history": [
                {"epoch": n, "loss": 2.0 - n, "accuracy": accuracy * (n + 1) / 3} for n in range(3)
            ],
            "update": 27,
            "step_macs": 10**9,
        },
        "tasks": {
            "data": data,
            "data_fingerprint": "d" * 64,
            "splits": "reference",
            "splits_hash": "e" * 64,
            "split": split,
            "spec": spec.model_dump(mode="json"),
            "spec_hash": spec.hash,
            "task_type": spec.task_type,
            "seed": 0,
            "sampler": "cfsl-1",
            "numbers": [0, 600, 1],
            "count": 600,
            "manifest_fingerprint": sha,
        },
        "metrics": {
            "accuracy": summary(accuracy),
            "cross_entropy": summary(1.0),
            "calibration_error": 0.1,
            "diverged": 0.0,
            "atm": {
                "total": 0.1 * spec.nss,
                "representation": 0.1 * spec.nss,
                "bookkeeping": 0.0,
                "curve": curve,
            },
            "group_accuracy": [accuracy] * (spec.nss if spec.kind == "instance" else spec.groups),
        },
        "macs": {
            "adaptation": 10**7 * spec.nss,
            "prediction": 10**8 * spec.nss,
            "training_step": None,
        },
        "peak_memory": 10**6,
        "run": None,
        "circumstances": {
            "seconds": 1.5,
            "environment": {
                "processor": "a processor",
                "device": "cpu",
                "cfsl": "0.1",
                "torch": "2",
                "python": "3.11",
            },
        },
    }
    made |= {"profile": profile} if profile else {}
    return Card.of(made | changes)


def changed(found: CardFile, places: Mapping[str, Any]) -> CardFile:
    """Return a card with other values at some places, such as tasks.count."""
    content = copy.deepcopy(found.card.content())
    for place, value in places.items():
        *way, last = place.split(".")
        part = content
        for key in way:
            part = part[key]
        part[last] = value
    return CardFile(found.path, Card.of(content))


def cards_of(
    suite: str, learners: list[str], data: str = "omniglot", **fields: Any
) -> Iterator[CardFile]:
    """Yield a card for every learner and column of a suite.

    Later learners are better, later columns harder.
    """
    for rank, learner in enumerate(learners):
        for place, (column, spec) in enumerate(SUITES[suite].columns(data).items()):
            split = str(SUITES[suite].fixed.get("split", "test"))
            accuracy = min(1.0, 0.5 + 0.1 * rank - 0.01 * place)
            made = card(learner, spec, accuracy, data=data, split=split, **fields)
            yield CardFile(f"cards/{data}-{suite}-{column}-{learner}-27.json", made)


def material(
    folders: Sequence[str],
    cards: Sequence[CardFile],
    evidence: Mapping[str, Evidence] | None = None,
    **others: Any,
) -> Material:
    """Return what goes on a page of these cards."""
    on_boards, known = boards(cards), evidence or {}
    shown = leaderboards(without_repeats(on_boards), known)
    return Material(folders, cards, on_boards, shown, known, **others)


def written(folder: Path, found: CardFile) -> Path:
    """Write a card as it is, and return where."""
    path = folder / Path(found.path).name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found.card.content()))
    read_card(path)
    return path
