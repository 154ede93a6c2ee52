"""A card as the page shows it, in plain texts that are ready for JSON.

It says what was run, what came out, and how to make the card again.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeAlias

from cfsl.cards.collect import CardFile
from cfsl.cards.evidence import Evidence
from cfsl.cards.schema import Card
from cfsl.report.bibliography import ENTRIES, keys_of
from cfsl.report.draw_task import describe_spec
from cfsl.report.remake import remake
from cfsl.report.tables import plus_minus

View: TypeAlias = dict[str, Any]
NamedTexts: TypeAlias = list[tuple[str, str]]
_STATUS = {
    "ok": "verified: every number was worked out again from the answers",
    "in part": "verified in part",
    "unchecked": "not verified: its tasks are not known here",
    "refused": "REFUSED: something on it is not true",
    "not checked": "not verified: nobody asked; 'cfsl verify' does",
}


def card_id(path: str) -> str:
    """Return a short name for a card, which is the same as long as the card stays where it is."""
    return "card-" + hashlib.sha256(path.encode()).hexdigest()[:10]


def card_view(found: CardFile, evidence: Evidence) -> View:
    """Return all that the page says of a card, in sections of rows and of texts to copy."""
    card = found.card
    again = remake(card)
    to_copy = [("command", again.command)] if again.command else []
    to_copy += [("settings.json", again.settings)] if again.settings else []

    return {
        "title": f"{card.learner.name} on {card.tasks.data}",
        "what": describe_spec(card.tasks.task_spec),
        "path": found.path,
        "seed": card.training_seed,
        "status": evidence.status,
        "sections": [
            {"heading": "Result", "rows": _result(card)},
            {"heading": "Verification", "rows": _verification(card, evidence)},
            {"heading": "Make it again", "rows": [("note", again.note)], "texts": to_copy},
            {"heading": "Training", "rows": _training(card)},
            {
                "heading": "Tasks",
                "rows": _tasks(card),
                "texts": [("spec", _compact(card.tasks.spec))],
            },
            {
                "heading": "Learner",
                "rows": _learner(card),
                "texts": [("settings", _compact(card.learner.settings))],
            },
            {"heading": "Circumstances", "rows": _circumstances(card)},
        ],
        "cite": [key for key in keys_of(card) if key in ENTRIES],
    }


def _result(card: Card) -> NamedTexts:
    metrics, memory, macs = card.metrics, card.metrics.atm, card.macs
    accuracy = metrics.accuracy
    rows = [("accuracy", f"{plus_minus(accuracy)} (95 % over {accuracy.count} tasks)")]
    if card.ensemble is not None:
        together = plus_minus(card.ensemble.metrics.accuracy)
        rows.append(("ensemble", f"{together}, {card.ensemble.members} epochs"))
    if metrics.forgetting is not None:
        rows.append(("forgetting", plus_minus(metrics.forgetting)))
    if metrics.backward_transfer is not None:
        rows.append(("backward transfer", plus_minus(metrics.backward_transfer)))

    rows += [
        ("cross-entropy", f"{metrics.cross_entropy.mean:.4f}"),
        ("calibration error", f"{metrics.calibration_error:.4f}"),
        ("diverged", f"{100 * metrics.diverged:.2f} % of targets"),
        ("ATM", f"{memory.total:.4f} ({memory.representation:.4f} representation)"),
        ("MACs", f"{macs.adaptation:,} to learn, {macs.prediction:,} to answer"),
    ]
    if card.peak_memory is not None:
        megabytes = f"{card.peak_memory / 1e6:.1f} MB"
        rows.append(("peak memory", f"{megabytes} beside weights and images"))
    return rows


def _verification(card: Card, evidence: Evidence) -> NamedTexts:
    rows = [("status", _STATUS[evidence.status])]
    rows += [("because", reason) for reason in evidence.reasons]
    answers = card.answers
    told = f"{answers.file}, {answers.bytes:,} bytes" if answers else "none beside the card"
    return [*rows, ("answers", told)]


def _training(card: Card) -> NamedTexts:
    if card.checkpoint is None:
        return [("schedule", "nothing was trained")]
    training = card.training
    if training is None:
        return [("schedule", "not on the card")]

    schedule = training.schedule
    unit = "images" if training.iid else "tasks"
    size = f"{schedule.epochs} epochs x {schedule.updates} updates of {schedule.batch} {unit}"
    steps = f"{schedule.optimizer}, rate {schedule.rate}, decay {schedule.decay}"
    rows = [
        ("schedule", size),
        ("optimizer", steps),
        ("precision", schedule.precision),
        ("training seed", str(training.seed)),
        ("validation", f"{training.validation_tasks} tasks"),
    ]
    if card.checkpoint.step_macs:
        rows.append(("MACs of a step", f"{card.checkpoint.step_macs:,}"))
    return rows


def _tasks(card: Card) -> NamedTexts:
    tasks = card.tasks
    return [
        ("data", f"{tasks.data}, {tasks.splits}/{tasks.split}"),
        ("tasks", f"{tasks.count}, seed {tasks.seed}, sampler {tasks.sampler}"),
        ("manifest", tasks.manifest_fingerprint),
        ("data fingerprint", tasks.data_fingerprint),
        ("splits hash", tasks.splits_hash),
    ]


def _learner(card: Card) -> NamedTexts:
    rows = [("class", card.learner.class_), ("profile", card.profile_name)]
    if card.transductive:
        rows.append(("mark", "transductive: looks at all targets together"))
    if card.breaks_law:
        rows.append(("mark", "breaks the data-flow law"))
    if card.run_hash:
        rows.append(("run hash", card.run_hash))
    return rows


def _circumstances(card: Card) -> NamedTexts:
    circumstances, environment = card.circumstances, card.circumstances.environment
    hardware = f"{environment.processor or 'unknown'} ({environment.device or '?'})"
    rows = [("hardware", hardware), ("versions", environment.versions or "unknown")]
    if circumstances.seconds is not None:
        rows.append(("evaluation", f"{circumstances.seconds:.1f} s"))

    known = [seconds for seconds in circumstances.training_seconds or [] if seconds is not None]
    if known:
        rows.append(("training", f"{sum(known):,.0f} s"))
    return rows


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
