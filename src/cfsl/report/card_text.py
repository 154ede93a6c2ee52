"""A card as text, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cfsl.cards.card_rows import percent
from cfsl.report.draw_task import describe_spec

if TYPE_CHECKING:
    from cfsl.cards.schema import Card, CardMetrics

_PLOT_ROWS = 6
_PLOT_COLUMNS = 60


def card_lines(card: Card) -> Iterator[str]:
    """Yield all that a card says, in lines."""
    tasks = card.tasks
    marked = f"{card.learner.name} ({', '.join(card.marks)})" if card.marks else card.learner.name
    yield f"{marked} on {tasks.data}/{tasks.split}, {tasks.count} tasks"
    yield f"  {describe_spec(tasks.task_spec)}"
    yield from _metric_lines(card.metrics)
    yield from _cost_lines(card)

    if card.ensemble is not None:
        yield f"ensemble of {card.ensemble.members}, mean of {card.ensemble.average}"
        yield from _metric_lines(card.ensemble.metrics)

    yield from _training_lines(card)
    yield from _origin_lines(card)


def _metric_lines(metrics: CardMetrics) -> Iterator[str]:
    accuracy, entropy, memory = metrics.accuracy, metrics.cross_entropy, metrics.atm
    interval = f" +- {entropy.ci95:.4f}" if entropy.ci95 else ""
    yield f"  accuracy       {percent(accuracy.mean, accuracy.ci95)} % (95 % over tasks)"
    yield f"  cross-entropy  {entropy.mean:.4f}{interval}"
    yield f"  calibration    {metrics.calibration_error:.4f} expected error"
    if metrics.diverged:
        yield f"  diverged       {100 * metrics.diverged:.2f} % of targets without an answer"

    forgetting, transfer = metrics.forgetting, metrics.backward_transfer
    if forgetting is not None:
        yield f"  forgetting     {percent(forgetting.mean, forgetting.ci95)} %"
    if transfer is not None:
        yield f"  back transfer  {percent(transfer.mean, transfer.ci95)} %"

    yield f"  by group       {_percents(metrics.group_accuracy)}"
    if metrics.progressive_accuracy:
        yield f"  on the way     {_percents(metrics.progressive_accuracy)} on what was shown so far"
    yield f"  ATM            {memory.total:.4f} ({memory.representation:.4f} representation)"


def _cost_lines(card: Card) -> Iterator[str]:
    macs = card.macs
    yield f"  MACs           {macs.adaptation:,} to learn, {macs.prediction:,} to answer"
    if macs.training_step:
        yield f"                 {macs.training_step:,} in a training step"
    if card.peak_memory is not None:
        yield f"  peak memory    {card.peak_memory / 1e6:.1f} MB beside weights and images"


def _training_lines(card: Card) -> Iterator[str]:
    training = card.training
    if training is not None:
        schedule = training.schedule
        size = f"{schedule.epochs} epochs x {schedule.updates} updates x {schedule.batch}"
        steps = f"{schedule.optimizer} {schedule.rate}, {schedule.precision}"
        yield f"training: {size}, {steps}, seed {training.seed}"

    of_checkpoint = None if card.checkpoint is None else card.checkpoint.history
    history = card.history or of_checkpoint or []
    accuracies = [epoch.accuracy for epoch in history if epoch.accuracy is not None]
    if len(accuracies) > 1:
        yield "  validation accuracy in %, by epoch"
        yield from (f"  {line}" for line in text_plot([100 * value for value in accuracies]))


def _origin_lines(card: Card) -> Iterator[str]:
    """Yield what was run, and where."""
    tasks, circumstances, answers = card.tasks, card.circumstances, card.answers
    yield f"settings: {json.dumps(card.learner.settings)}"
    yield f"spec: {json.dumps(tasks.spec)}"
    yield f"tasks: seed {tasks.seed}, sampler {tasks.sampler}, split file {tasks.splits}"
    yield f"  manifest  {tasks.manifest_fingerprint}"
    yield f"  data      {tasks.data_fingerprint}"
    yield f"  splits    {tasks.splits_hash}"

    named = {"profile": card.profile, "run_hash": card.run_hash, "command": card.command}
    yield from (f"{name}: {value}" for name, value in named.items() if value)
    if answers is None:
        yield "answers: none, cannot be checked"
    else:
        yield f"answers: {answers.file} ({answers.bytes:,} bytes)"

    environment = circumstances.environment
    processor = environment.processor or "unknown hardware"
    hardware = f"{processor} ({environment.device or '?'})"
    yield f"{circumstances.seconds or 0:.1f} s on {hardware}; {environment.versions}"


def _percents(values: Sequence[float]) -> str:
    return " ".join(f"{100 * value:.1f}" for value in values)


def text_plot(values: Sequence[float]) -> Iterator[str]:
    """Draw values from left to right as lines of text, with the highest and lowest written out."""
    low, high = min(values), max(values)
    step = max(1, -(-len(values) // _PLOT_COLUMNS))
    shown = [max(values[start : start + step]) for start in range(0, len(values), step)]
    scale = (_PLOT_ROWS - 1) / ((high - low) or 1)
    rows = [round((value - low) * scale) for value in shown]

    for row in reversed(range(_PLOT_ROWS)):
        edge = {_PLOT_ROWS - 1: f"{high:.1f}", 0: f"{low:.1f}"}.get(row, "")
        yield f"{edge:>6} |{''.join('*' if at == row else ' ' for at in rows)}".rstrip()
    yield f"{'':>6} +{'-' * len(rows)} {len(values)}"
