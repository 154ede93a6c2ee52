"""A card as the page shows it: what was run, what came out, and how to have it again. Plain texts, ready for JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from cfsl.presets.board import Found, profile_of
from cfsl.presets.row_names import seed_of
from cfsl.report.bibliography import ENTRIES, keys_of
from cfsl.report.draw_task import describe_spec
from cfsl.report.evidence import Evidence
from cfsl.report.remake import remake
from cfsl.report.tables import plus_minus
from cfsl.spec import TaskSpec

View: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[tuple[str, str]]
_STATUS = {
    "ok": "verified: every number was worked out again from the answers",
    "in part": "verified in part",
    "unchecked": "not verified: its tasks are not known here",
    "refused": "REFUSED: something on it is not true",
    "not checked": "not verified: nobody asked; 'cfsl verify' does",
}


def card_id(path: str) -> str:
    """Return a short name for a card, the same as long as it stays where it is."""
    return "card-" + hashlib.sha256(path.encode()).hexdigest()[:10]


def card_view(found: Found, evidence: Evidence) -> View:
    """Return all that the page says of a card, in sections of rows and of texts to copy."""
    card = found.card
    again = remake(card)
    texts = [("command", again.command)] if again.command else []
    texts += [("settings.json", again.settings)] if again.settings else []
    return {
        "title": f"{card['learner']['name']} on {card['tasks']['data']}",
        "what": describe_spec(TaskSpec(**card["tasks"]["spec"])),
        "path": found.path,
        "seed": seed_of(card),
        "status": evidence.status,
        "sections": [
            {"heading": "Result", "rows": _result(card)},
            {"heading": "Verification", "rows": _verification(card, evidence)},
            {"heading": "Make it again", "rows": [("note", again.note)], "texts": texts},
            {"heading": "Training", "rows": _training(card)},
            {
                "heading": "Tasks",
                "rows": _tasks(card),
                "texts": [("spec", _compact(card["tasks"]["spec"]))],
            },
            {
                "heading": "Learner",
                "rows": _learner(card),
                "texts": [("settings", _compact(_settings(card)))],
            },
            {"heading": "Circumstances", "rows": _around(card)},
        ],
        "cite": [key for key in keys_of(card) if key in ENTRIES],
    }


def _result(card: Mapping[str, Any]) -> Rows:
    metrics = card["metrics"]
    accuracy, memory, macs = metrics["accuracy"], metrics["atm"], card["macs"]
    rows = [("accuracy", f"{plus_minus(accuracy)} (95 % over {accuracy['count']} tasks)")]
    if "ensemble" in card:
        together = card["ensemble"]["metrics"]["accuracy"]
        rows.append(("ensemble", f"{plus_minus(together)}, {card['ensemble']['members']} epochs"))
    for name, title in (("forgetting", "forgetting"), ("backward_transfer", "backward transfer")):
        if metrics.get(name):
            rows.append((title, plus_minus(metrics[name])))
    rows += [
        ("cross-entropy", f"{metrics['cross_entropy']['mean']:.4f}"),
        ("calibration error", f"{metrics['calibration_error']:.4f}"),
        ("diverged", f"{100 * metrics['diverged']:.2f} % of targets"),
        ("ATM", f"{memory['total']:.4f} ({memory['representation']:.4f} representation)"),
        ("MACs", f"{macs['adaptation']:,} to learn, {macs['prediction']:,} to answer"),
    ]
    if card.get("peak_memory") is not None:
        rows.append(
            ("peak memory", f"{card['peak_memory'] / 1e6:.1f} MB beside weights and images")
        )
    return rows


def _verification(card: Mapping[str, Any], evidence: Evidence) -> Rows:
    rows = [("status", _STATUS[evidence.status])]
    rows += [("because", reason) for reason in evidence.reasons]
    answers = card.get("answers")
    rows.append(
        (
            "answers",
            f"{answers['file']}, {answers['bytes']:,} bytes" if answers else "none beside the card",
        )
    )
    return rows


def _training(card: Mapping[str, Any]) -> Rows:
    notes = card.get("checkpoint")
    if not notes:
        return [("schedule", "nothing was trained")]
    training = (notes.get("identity") or {}).get("training")
    if not isinstance(training, Mapping):
        return [("schedule", "not on the card")]
    schedule = training["schedule"]
    unit = "images" if training.get("iid") else "tasks"
    size = (
        f"{schedule['epochs']} epochs x {schedule['updates']} updates of {schedule['batch']} {unit}"
    )
    rows = [
        ("schedule", size),
        (
            "optimizer",
            f"{schedule['optimizer']}, rate {schedule['rate']}, decay {schedule['decay']}",
        ),
        ("precision", schedule.get("precision", "float32")),
        ("training seed", str(training.get("seed"))),
        ("validation", f"{training.get('validation_tasks')} tasks"),
    ]
    if notes.get("step_macs"):
        rows.append(("MACs of a step", f"{notes['step_macs']:,}"))
    return rows


def _tasks(card: Mapping[str, Any]) -> Rows:
    tasks = card["tasks"]
    return [
        ("data", f"{tasks['data']}, {tasks['splits']}/{tasks['split']}"),
        ("tasks", f"{tasks['count']}, seed {tasks['seed']}, sampler {tasks['sampler']}"),
        ("manifest", tasks["manifest_fingerprint"]),
        ("data fingerprint", tasks["data_fingerprint"]),
        ("splits hash", tasks["splits_hash"]),
    ]


def _learner(card: Mapping[str, Any]) -> Rows:
    marks = {
        "transductive": "transductive: looks at all targets together",
        "breaks_law": "breaks the data-flow law",
    }
    rows = [("class", str(card["learner"].get("class", "?"))), ("profile", profile_of(dict(card)))]
    rows += [("mark", text) for mark, text in marks.items() if card[mark]]
    rows += [("run hash", str(card["run_hash"]))] if card.get("run_hash") else []
    return rows


def _settings(card: Mapping[str, Any]) -> Any:
    return card["learner"].get("settings")


def _around(card: Mapping[str, Any]) -> Rows:
    around = card.get("circumstances") or {}
    environment = around.get("environment") or {}
    versions = ", ".join(
        f"{name} {environment[name]}" for name in ("cfsl", "torch", "python") if name in environment
    )
    rows = [
        (
            "hardware",
            f"{environment.get('processor', 'unknown')} ({environment.get('device', '?')})",
        ),
        ("versions", versions or "unknown"),
    ]
    if around.get("seconds") is not None:
        rows.append(("evaluation", f"{around['seconds']:.1f} s"))
    seconds = [one for one in around.get("training_seconds") or [] if isinstance(one, int | float)]
    if seconds:
        rows.append(("training", f"{sum(seconds):,.0f} s"))
    return rows


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
