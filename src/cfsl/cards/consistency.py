"""What must hold between the numbers of a card, whatever was run: contradictions are found without the answers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from cfsl.errors import CfslError
from cfsl.learners.registry import LEARNERS
from cfsl.metrics.student import critical_t95
from cfsl.spec import FrozenSpec, TaskSpec

_ROUNDING = 1e-6
_MARKS = ("transductive", "breaks_law")
_SAID_TWICE = {
    "run.profile": "profile",
    "run.learner.name": "learner.name",
    "run.learner.settings": "learner.settings",
    "run.data.name": "tasks.data",
    "run.data.fingerprint": "tasks.data_fingerprint",
    "run.data.splits_hash": "tasks.splits_hash",
    "run.split": "tasks.split",
    "run.task": "tasks.spec",
    "run.tasks": "tasks.count",
    "run.task_seed": "tasks.seed",
    "run.average": "ensemble.average",
    "run.seed": "checkpoint.identity.training.seed",
    "run.train.data.fingerprint": "checkpoint.identity.data.fingerprint",
    "run.train.training": "checkpoint.identity.training",
}
_MISSING = object()


def contradictions(card: Mapping[str, Any]) -> Iterator[str]:
    """Say what on a card (one without `schema_problems`) cannot be true of one run."""
    tasks = card["tasks"]
    spec = TaskSpec(**tasks["spec"])
    if spec.hash != tasks["spec_hash"]:
        yield f"tasks.spec_hash is {tasks['spec_hash'][:12]}, that of tasks.spec is {spec.hash[:12]}"
    if spec.task_type != tasks["task_type"]:
        yield f"tasks.task_type is {tasks['task_type']}, that of tasks.spec is {spec.task_type}"
    numbers = tasks.get("numbers")
    if numbers is not None and len(range(*numbers)) != tasks["count"]:
        yield f"tasks.count is {tasks['count']}, tasks.numbers are {len(range(*numbers))}"
    yield from _of_metrics(card["metrics"], "metrics", tasks["count"], spec)
    if card.get("ensemble") is not None:
        yield from _of_metrics(
            card["ensemble"]["metrics"], "ensemble.metrics", tasks["count"], spec
        )
    yield from _of_run(card)


def _of_metrics(
    metrics: Mapping[str, Any], where: str, tasks: int, spec: TaskSpec
) -> Iterator[str]:
    for name, summary in metrics.items():
        if isinstance(summary, dict) and "count" in summary:
            yield from _of_summary(summary, f"{where}.{name}", tasks)
    memory = metrics["atm"]
    parts = memory["representation"], memory["bookkeeping"]
    if not max(parts) * (1 - _ROUNDING) <= memory["total"] <= sum(parts) * (1 + _ROUNDING):
        yield f"{where}.atm.total is {memory['total']:.6g}, its parts are {parts[0]:.6g} and {parts[1]:.6g}"
    groups = spec.nss if spec.kind == "instance" else spec.groups
    lengths = {
        "atm.curve": spec.nss + 1,
        "group_accuracy": groups,
        "progressive_accuracy": spec.nss,
    }
    for name, wanted in lengths.items():
        values = memory["curve"] if name == "atm.curve" else metrics.get(name)
        if values is not None and len(values) != wanted:
            yield f"{where}.{name} has {len(values)} values, tasks.spec asks for {wanted}"


def _of_summary(summary: Mapping[str, Any], where: str, tasks: int) -> Iterator[str]:
    count, std, ci95 = summary["count"], summary["std"], summary["ci95"]
    if count != tasks:
        yield f"{where}.count is {count}, tasks.count is {tasks}"
    if (std is None) != (ci95 is None) or (std is None) != (
        count == 1 or math.isinf(summary["mean"])
    ):
        yield f"{where}.std and {where}.ci95 are there or not there against the rules"
    elif std is not None and not math.isclose(
        ci95, critical_t95(count - 1) * std / count**0.5, rel_tol=_ROUNDING, abs_tol=1e-12
    ):
        yield f"{where}.ci95 is {ci95:.6g}, which is not that of std {std:.6g} over {count} tasks"


def _of_run(card: Mapping[str, Any]) -> Iterator[str]:
    """Hold the spec of the run against the rest, as far as it says the same things."""
    run = card.get("run")
    if run is None:
        if card.get("run_hash") is not None:
            yield "run_hash is there without a run"
        return
    if run_hash(run) != card.get("run_hash"):
        yield f"run_hash is {str(card.get('run_hash'))[:12]}, that of run is {run_hash(run)[:12]}"
    for in_run, on_card in _SAID_TWICE.items():
        yield from _clashes(in_run, _at(card, in_run), on_card, _at(card, on_card))
    trained, identity = (
        _at(card, "run.train.learner.settings"),
        _at(card, "checkpoint.identity.learner"),
    )
    if isinstance(
        trained, dict
    ):  # a learner without fields is described by one text there and by another here
        yield from _clashes(
            "run.train.learner.settings", trained, "checkpoint.identity.learner", identity
        )
    is_trained = run.get("train") is not None or run.get("weights") is not None
    ensemble = card.get("ensemble")
    if is_trained != (card["checkpoint"] is not None):
        yield f"run.train is {'there' if is_trained else 'null'}, checkpoint is {'null' if is_trained else 'there'}"
    members = 1 if ensemble is None else ensemble["members"]
    if run.get("members", members) != members:
        yield f"run.members is {run['members']}, ensemble.members is {members if ensemble else 'not there'}"
    is_progressive = card["metrics"].get("progressive_accuracy") is not None
    if run.get("progressive", is_progressive) != is_progressive:
        there = "there" if is_progressive else "not there"
        yield f"run.progressive is {str(run['progressive']).lower()}, metrics.progressive_accuracy is {there}"


def _at(card: Mapping[str, Any], place: str) -> Any:
    """Return what stands at a place such as tasks.count."""
    found: Any = card
    for key in place.split("."):
        found = found.get(key, _MISSING) if isinstance(found, dict) else _MISSING
    return found


def _clashes(in_run: str, a: Any, on_card: str, b: Any) -> Iterator[str]:
    """Compare two values, key by key; an older version may not have had a key."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() & b.keys()):
            yield from _clashes(f"{in_run}.{key}", a[key], f"{on_card}.{key}", b[key])
    elif a != b and _MISSING not in (a, b):
        yield f"{in_run} is {a!r}, {on_card} is {b!r}"


def run_hash(run: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of a run's spec."""
    return hashlib.sha256(
        json.dumps(run, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def false_marks(card: Mapping[str, Any]) -> Iterator[str]:
    """Say which marks are not those of the learner; the learner must be in the table of learners."""
    name, settings = card["learner"]["name"], card["learner"]["settings"]
    plain = LEARNERS[name].build()
    if type(plain).__name__ != card["learner"]["class"]:
        yield f"learner.class is {card['learner']['class']}, {name} is a {type(plain).__name__}"
        return
    try:
        built = _rebuilt(plain, settings) if isinstance(settings, dict) else plain
    except (CfslError, TypeError) as error:
        yield f"learner.settings are not those of {name}: {error}"
        return
    for mark in _MARKS:
        # Nobody can switch a mark off by a setting that the learner has by nature.
        real = bool(getattr(built, mark, False)) or (
            mark == "breaks_law" and bool(getattr(plain, mark, False))
        )
        if card[mark] != real:
            yield f"{mark} is {str(card[mark]).lower()}, that of {name} with these settings is {str(real).lower()}"


def _rebuilt(learner: Any, settings: Mapping[str, Any]) -> Any:
    """Return a learner of the same class with all its settings, those of inner values too."""
    fields = {}
    for name, value in settings.items():
        inner = getattr(learner, name, None)
        same_kind = isinstance(inner, FrozenSpec) and isinstance(value, dict)
        same_kind = same_kind and value.get("kind") == getattr(inner, "kind", None)
        fields[name] = _rebuilt(inner, value) if same_kind else value
    return type(learner)(**fields)
