"""What must hold between the values of a card, whatever was run; no answers are needed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from cfsl.cards.card import Content
from cfsl.cards.schema import Card, CardMetrics, CardSummary
from cfsl.errors import CfslError
from cfsl.learners.registry import LEARNERS
from cfsl.metrics.student import critical_t95
from cfsl.spec import FrozenSpec

_ROUNDING = 1e-6
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
"""Places in the run, and the places of the card that say the same."""
_MISSING = object()


def contradictions(card: Card) -> Iterator[str]:
    """Say what on a card cannot be true of one run."""
    tasks, spec = card.tasks, card.tasks.task_spec
    if spec.hash != tasks.spec_hash:
        yield f"tasks.spec_hash is {tasks.spec_hash[:12]}, that of tasks.spec is {spec.hash[:12]}"
    if spec.task_type != tasks.task_type:
        yield f"tasks.task_type is {tasks.task_type}, that of tasks.spec is {spec.task_type}"
    numbers = len(tasks.task_numbers)
    if numbers != tasks.count:
        yield f"tasks.count is {tasks.count}, tasks.numbers are {numbers}"

    yield from _of_metrics(card.metrics, "metrics", card)
    if card.ensemble is not None:
        yield from _of_metrics(card.ensemble.metrics, "ensemble.metrics", card)
    yield from _of_run(card)


def _of_metrics(metrics: CardMetrics, where: str, card: Card) -> Iterator[str]:
    """Hold metrics against each other and against the tasks."""
    for name, summary in metrics:
        if isinstance(summary, CardSummary):
            yield from _of_summary(summary, f"{where}.{name}", card.tasks.count)

    memory, parts = metrics.atm, (metrics.atm.representation, metrics.atm.bookkeeping)
    if not max(parts) * (1 - _ROUNDING) <= memory.total <= sum(parts) * (1 + _ROUNDING):
        yield (
            f"{where}.atm.total is {memory.total:.6g}, "
            f"its parts are {parts[0]:.6g} and {parts[1]:.6g}"
        )

    spec = card.tasks.task_spec
    groups = spec.nss if spec.kind == "instance" else spec.groups
    lengths = {
        "atm.curve": (memory.curve, spec.nss + 1),
        "group_accuracy": (metrics.group_accuracy, groups),
        "progressive_accuracy": (metrics.progressive_accuracy, spec.nss),
    }
    for name, (values, wanted) in lengths.items():
        if values is not None and len(values) != wanted:
            yield f"{where}.{name} has {len(values)} values, tasks.spec asks for {wanted}"


def _of_summary(summary: CardSummary, where: str, tasks: int) -> Iterator[str]:
    """Hold the parts of a summary against each other."""
    count, std, ci95 = summary.count, summary.std, summary.ci95
    if count != tasks:
        yield f"{where}.count is {count}, tasks.count is {tasks}"

    has_no_spread = count == 1 or math.isinf(summary.mean)
    if (std is None) != (ci95 is None) or (std is None) != has_no_spread:
        yield f"{where}.std and {where}.ci95 are there or not there against the rules"
    elif std is not None and ci95 is not None:
        wanted = critical_t95(count - 1) * std / count**0.5
        if not math.isclose(ci95, wanted, rel_tol=_ROUNDING, abs_tol=1e-12):
            yield (
                f"{where}.ci95 is {ci95:.6g}, which is not that of std {std:.6g} over {count} tasks"
            )


def _of_run(card: Card) -> Iterator[str]:
    """Hold the spec of the run against the rest, as far as it says the same things."""
    run, content = card.run, card.content()
    if run is None:
        if card.run_hash is not None:
            yield "run_hash is there without a run"
        return

    wanted = run_hash(run.content())
    if wanted != card.run_hash:
        yield f"run_hash is {str(card.run_hash)[:12]}, that of run is {wanted[:12]}"
    for in_run, on_card in _SAID_TWICE.items():
        yield from _clashes(in_run, _at(content, in_run), on_card, _at(content, on_card))
    yield from _of_trained_learner(content)

    is_trained = run.train is not None or run.weights is not None
    ensemble = card.ensemble
    if is_trained != (card.checkpoint is not None):
        train, checkpoint = ("there", "null") if is_trained else ("null", "there")
        yield f"run.train is {train}, checkpoint is {checkpoint}"
    members = 1 if ensemble is None else ensemble.members
    if run.members not in (None, members):
        stated = members if ensemble else "not there"
        yield f"run.members is {run.members}, ensemble.members is {stated}"
    is_progressive = card.metrics.progressive_accuracy is not None
    if run.progressive not in (None, is_progressive):
        there = "there" if is_progressive else "not there"
        asked = str(run.progressive).lower()
        yield f"run.progressive is {asked}, metrics.progressive_accuracy is {there}"


def _of_trained_learner(content: Content) -> Iterator[str]:
    """Hold the learner that the run trained against the one that the checkpoint states."""
    in_run, on_card = "run.train.learner.settings", "checkpoint.identity.learner"
    settings = _at(content, in_run)
    # A learner without fields is described by one text in the run and by another in the checkpoint.
    if isinstance(settings, dict):
        yield from _clashes(in_run, settings, on_card, _at(content, on_card))


def _at(content: Content, place: str) -> Any:
    """Return the value at a place such as tasks.count."""
    found: Any = content
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
    canonical = json.dumps(run, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def false_marks(card: Card) -> Iterator[str]:
    """Say which marks are not those of the learner, which must be one of cfsl's."""
    name, settings = card.learner.name, card.learner.settings
    plain = LEARNERS[name].build()
    if type(plain).__name__ != card.learner.class_:
        yield f"learner.class is {card.learner.class_}, {name} is a {type(plain).__name__}"
        return
    try:
        built = _rebuilt(plain, settings) if isinstance(settings, dict) else plain
    except (CfslError, TypeError) as error:
        yield f"learner.settings are not those of {name}: {error}"
        return

    is_transductive = bool(getattr(built, "transductive", False))
    # Nobody can switch off by a setting that a learner breaks the law by nature.
    breaks_law = any(getattr(learner, "breaks_law", False) for learner in (built, plain))
    pairs = {
        "transductive": (card.transductive, is_transductive),
        "breaks_law": (card.breaks_law, breaks_law),
    }
    for mark, (stated, real) in pairs.items():
        if stated != real:
            told, wanted = str(stated).lower(), str(real).lower()
            yield f"{mark} is {told}, that of {name} with these settings is {wanted}"


def _rebuilt(learner: Any, settings: Mapping[str, Any]) -> Any:
    """Return a learner of the same class with all its settings, those of inner values too."""
    fields = {}
    for name, value in settings.items():
        inner = getattr(learner, name, None)
        is_inner = isinstance(inner, FrozenSpec) and isinstance(value, dict)
        is_same_kind = is_inner and value.get("kind") == getattr(inner, "kind", None)
        fields[name] = _rebuilt(inner, value) if is_same_kind else value
    return type(learner)(**fields)
