"""A card as text, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cfsl.cards.card_rows import percent
from cfsl.report.draw_task import describe_spec
from cfsl.spec import TaskSpec

if TYPE_CHECKING:
    from cfsl.cards.card import Card

_PLOT_ROWS = 6
_PLOT_COLUMNS = 60


def card_lines(card: Card) -> Iterator[str]:
    """Yield all that stands on a card, in lines."""
    tasks = card["tasks"]
    marks = [mark for mark in ("transductive", "breaks_law") if card[mark]]
    marked = f"{card['learner']['name']}{' (' + ', '.join(marks) + ')' if marks else ''}"
    yield f"{marked} on {tasks['data']}/{tasks['split']}, {tasks['count']} tasks"
    yield f"  {describe_spec(TaskSpec(**tasks['spec']))}"
    yield from _metric_lines(card["metrics"])
    yield from _cost_lines(card)
    if card.get("ensemble"):
        together = card["ensemble"]
        yield f"ensemble of {together['members']}, mean of {together.get('average', 'logits')}"
        yield from _metric_lines(together["metrics"])
    yield from _training_lines(card)
    yield from _origin_lines(card)


def _metric_lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    accuracy, entropy, memory = metrics["accuracy"], metrics["cross_entropy"], metrics["atm"]
    yield f"  accuracy       {percent(accuracy['mean'], accuracy['ci95'])} % (95 % over tasks)"
    yield f"  cross-entropy  {entropy['mean']:.4f}" + (
        f" +- {entropy['ci95']:.4f}" if entropy["ci95"] else ""
    )
    yield f"  calibration    {metrics['calibration_error']:.4f} expected error"
    if metrics["diverged"]:
        yield f"  diverged       {100 * metrics['diverged']:.2f} % of targets without an answer"
    for name, title in (("forgetting", "forgetting"), ("backward_transfer", "back transfer")):
        if metrics.get(name):
            yield f"  {title:<13}  {percent(metrics[name]['mean'], metrics[name]['ci95'])} %"
    yield f"  by group       {_percents(metrics['group_accuracy'])}"
    if metrics.get("progressive_accuracy"):
        yield f"  on the way     {_percents(metrics['progressive_accuracy'])} on what was shown so far"
    yield f"  ATM            {memory['total']:.4f} ({memory['representation']:.4f} representation)"


def _cost_lines(card: Card) -> Iterator[str]:
    macs = card["macs"]
    yield f"  MACs           {macs['adaptation']:,} to learn, {macs['prediction']:,} to answer"
    if macs.get("training_step"):
        yield f"                 {macs['training_step']:,} in a training step"
    if card.get("peak_memory") is not None:
        yield f"  peak memory    {card['peak_memory'] / 1e6:.1f} MB beside weights and images"


def _training_lines(card: Card) -> Iterator[str]:
    checkpoint = card.get("checkpoint")
    history = card.get("history") or (checkpoint or {}).get("history") or []
    training = ((checkpoint or {}).get("identity") or {}).get("training")
    if training:
        schedule = training["schedule"]
        size = f"{schedule['epochs']} epochs x {schedule['updates']} updates x {schedule['batch']}"
        precision = schedule.get("precision", "float32")
        yield f"training: {size}, {schedule['optimizer']} {schedule['rate']}, {precision}, seed {training['seed']}"
    accuracies = [
        epoch["accuracy"] for epoch in history if isinstance(epoch.get("accuracy"), int | float)
    ]
    if len(accuracies) > 1:
        yield "  validation accuracy in %, by epoch"
        yield from (f"  {line}" for line in text_plot([100 * value for value in accuracies]))


def _origin_lines(card: Card) -> Iterator[str]:
    tasks, around = card["tasks"], card["circumstances"]
    environment = around.get("environment", {})
    yield f"settings: {json.dumps(card['learner']['settings'])}"
    yield f"spec: {json.dumps(tasks['spec'])}"
    yield f"tasks: seed {tasks['seed']}, sampler {tasks['sampler']}, split file {tasks['splits']}"
    yield f"  manifest  {tasks['manifest_fingerprint']}"
    yield f"  data      {tasks['data_fingerprint']}"
    yield f"  splits    {tasks['splits_hash']}"
    for key in ("profile", "run_hash", "command"):
        if card.get(key):
            yield f"{key}: {card[key]}"
    answers = card["answers"]
    yield (
        f"answers: {answers['file']} ({answers['bytes']:,} bytes)"
        if answers
        else "answers: none, cannot be checked"
    )
    versions = ", ".join(
        f"{name} {environment[name]}" for name in ("cfsl", "torch", "python") if name in environment
    )
    hardware = (
        f"{environment.get('processor', 'unknown hardware')} ({environment.get('device', '?')})"
    )
    yield f"{around.get('seconds') or 0:.1f} s on {hardware}; {versions}"


def _percents(values: Sequence[float]) -> str:
    return " ".join(f"{100 * value:.1f}" for value in values)


def text_plot(values: Sequence[float]) -> Iterator[str]:
    """Draw values from left to right as lines of text, with the highest and the lowest at their rows."""
    low, high = min(values), max(values)
    step = max(1, -(-len(values) // _PLOT_COLUMNS))
    shown = [max(values[start : start + step]) for start in range(0, len(values), step)]
    scale = (_PLOT_ROWS - 1) / ((high - low) or 1)
    rows = [round((value - low) * scale) for value in shown]
    for row in reversed(range(_PLOT_ROWS)):
        edge = {_PLOT_ROWS - 1: f"{high:.1f}", 0: f"{low:.1f}"}.get(row, "")
        yield f"{edge:>6} |{''.join('*' if at == row else ' ' for at in rows)}".rstrip()
    yield f"{'':>6} +{'-' * len(rows)} {len(values)}"
