"""What must hold between the numbers of a card, whatever was run: contradictions are found without the answers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from cfsl.errors import CfslError, SpecError
from cfsl.learners.registry import LEARNERS
from cfsl.metrics.student import critical_t95
from cfsl.spec import FrozenSpec, TaskSpec

_ROUNDING = 1e-6
_MARKS = ("transductive", "breaks_law")


def contradictions(card: Mapping[str, Any]) -> Iterator[str]:
    """Say what on a card (one without `schema_problems`) cannot be true of one run."""
    tasks = card["tasks"]
    try:
        spec = TaskSpec(**tasks["spec"])
    except SpecError as error:
        yield f"tasks.spec: {error}"
        return
    if spec.hash != tasks["spec_hash"]:
        yield f"tasks.spec_hash is {tasks['spec_hash'][:12]}, that of tasks.spec is {spec.hash[:12]}"
    if spec.task_type != tasks["task_type"]:
        yield f"tasks.task_type is {tasks['task_type']}, that of tasks.spec is {spec.task_type}"
    numbers = tasks.get("numbers")
    if numbers is not None and len(range(*numbers)) != tasks["count"]:
        yield f"tasks.count is {tasks['count']}, tasks.numbers are {len(range(*numbers))}"
    yield from _of_metrics(card["metrics"], "metrics", tasks["count"], spec)
    if card.get("ensemble") is not None:
        yield from _of_metrics(card["ensemble"]["metrics"], "ensemble.metrics", tasks["count"], spec)
    yield from _of_run(card)


def _of_metrics(metrics: Mapping[str, Any], where: str, tasks: int, spec: TaskSpec) -> Iterator[str]:
    for name, summary in metrics.items():
        if isinstance(summary, dict) and "count" in summary:
            yield from _of_summary(summary, f"{where}.{name}", tasks)
    memory = metrics["atm"]
    parts = memory["representation"], memory["bookkeeping"]
    if not max(parts) * (1 - _ROUNDING) <= memory["total"] <= sum(parts) * (1 + _ROUNDING):
        yield f"{where}.atm.total is {memory['total']:.6g}, its parts are {parts[0]:.6g} and {parts[1]:.6g}"
    groups = spec.nss if spec.kind == "instance" else spec.groups
    lengths = {"atm.curve": spec.nss + 1, "group_accuracy": groups, "progressive_accuracy": spec.nss}
    for name, wanted in lengths.items():
        values = memory["curve"] if name == "atm.curve" else metrics.get(name)
        if values is not None and len(values) != wanted:
            yield f"{where}.{name} has {len(values)} values, tasks.spec asks for {wanted}"


def _of_summary(summary: Mapping[str, Any], where: str, tasks: int) -> Iterator[str]:
    count, std, ci95 = summary["count"], summary["std"], summary["ci95"]
    if count != tasks:
        yield f"{where}.count is {count}, tasks.count is {tasks}"
    if (std is None) != (ci95 is None) or (std is None) != (count == 1 or math.isinf(summary["mean"])):
        yield f"{where}.std and {where}.ci95 are there or not there against the rules"
    elif std is not None and not math.isclose(
        ci95, critical_t95(count - 1) * std / count**0.5, rel_tol=_ROUNDING, abs_tol=1e-12
    ):
        yield f"{where}.ci95 is {ci95:.6g}, which is not that of std {std:.6g} over {count} tasks"


def _of_run(card: Mapping[str, Any]) -> Iterator[str]:
    """Hold the spec of the run against the rest, as far as it says the same things."""
    run, tasks = card.get("run"), card["tasks"]
    if run is None:
        if card.get("run_hash") is not None:
            yield "run_hash is there without a run"
        return
    if run_hash(run) != card.get("run_hash"):
        yield f"run_hash is {str(card.get('run_hash'))[:12]}, that of run is {run_hash(run)[:12]}"
    learner, data = run.get("learner"), run.get("data")
    identity, train = (card.get("checkpoint") or {}).get("identity", {}), run.get("train") or {}
    said_twice = {
        "run.train.training": (train.get("training"), identity.get("training")),
        "run.task": (run.get("task"), tasks["spec"]),
        "run.tasks": (run.get("tasks"), tasks["count"]),
        "run.task_seed": (run.get("task_seed"), tasks["seed"]),
        "run.split": (run.get("split"), tasks["split"]),
        "run.profile": (run.get("profile"), card.get("profile", run.get("profile"))),
        "run.learner.name": (learner.get("name") if isinstance(learner, dict) else None, card["learner"]["name"]),
        "run.data.name": (data.get("name") if isinstance(data, dict) else None, tasks["data"]),
    }
    for name, (in_run, on_card) in said_twice.items():
        if in_run is not None and in_run != on_card:
            yield f"{name} is {in_run!r}, the card says {on_card!r}"


def run_hash(run: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of a run's spec."""
    return hashlib.sha256(json.dumps(run, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


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
        real = bool(getattr(built, mark, False)) or (mark == "breaks_law" and bool(getattr(plain, mark, False)))
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
