"""What `make demo` runs: the benchmark in small, on the embedded data set.

It trains a ProtoNet and pretrains a network, evaluates every learner on task types A to D and on
the instance test under the data-flow law, prints a table, and leaves cards, pictures and a page
that shows them in the folder `demo`. The champion comes with weights that were trained on Omniglot:
it has never seen a character of the demo's kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import cfsl
from cfsl.cards.card import write_card
from cfsl.cards.evidence_reader import EvidenceReader
from cfsl.cards.schema import Card, CardSummary
from cfsl.data.catalog import glyphs_counts
from cfsl.data.store import current_folder
from cfsl.harness.workers import Workers
from cfsl.learners.base import first_weights
from cfsl.learners.registry import (
    CHAMPION_TRAINING,
    LEARNERS,
    META_TRAINED,
    PRETRAINED,
    TRAINED_ON_TASKS,
    WeightSource,
)
from cfsl.learners.tune import Tunable
from cfsl.report.charts import accuracy_chart
from cfsl.report.write import write_report
from cfsl.runs.evaluation import evaluation_of
from cfsl.spec import Noise, Occlusion, TaskSpec
from cfsl.training.events import Event, Started, Update
from cfsl.training.loop import train
from cfsl.training.ready import ready_named
from cfsl.training.recipes import recipe_for
from cfsl.training.run_folder import best_weights, notes_of_run, read_weights

FOLDER = Path("demo")
COLUMNS = {
    "A": TaskSpec.type_a(nss=3),
    "B": TaskSpec.type_b(nss=3),
    "C": TaskSpec.type_c(nss=3),
    "D": TaskSpec.type_d(nss=4, cci=2),
    "instance": TaskSpec.instance(nss=4, k_shot=5),
}
PICTURES = {
    **{f"type-{name.lower()}": COLUMNS[name] for name in "ABCD"},
    "instance-clean": COLUMNS["instance"],
    "instance-noise": TaskSpec.instance(nss=4, k_shot=5, corruption=Noise(fraction=0.2)),
    "instance-occluded": TaskSpec.instance(nss=4, k_shot=5, corruption=Occlusion(fraction=0.3)),
}
QUICKER = {"champion": {"views": "one", "closeness": "cosine"}}
"""One view of each image instead of eight, and cosines: evidence is known for eight views only."""
Bar = Callable[..., Callable[[int], None]]
"""Starts a progress bar with a text and a total, and returns what moves it on."""


@dataclass(frozen=True)
class Size:
    """How large the demo is; the default takes a few minutes on two cores."""

    data: str = "glyphs"
    learners: tuple[str, ...] = tuple(
        name for name, entry in LEARNERS.items() if entry.weights is not META_TRAINED
    )
    tuned_tasks: int = 30
    """Tasks for learners that are tuned, which takes time."""
    tasks: int = 100
    """Tasks for the others."""
    updates: int = 80
    """Updates in an epoch of training."""


FULL = Size()


def main(size: Size = FULL) -> None:
    """Draw the data, train, evaluate, and say where everything is."""
    console = Console()
    FOLDER.mkdir(exist_ok=True)
    columns = [TextColumn("{task.description}"), BarColumn()]
    columns += [MofNCompleteColumn(), TimeElapsedColumn()]

    with Progress(*columns, console=console) as progress:

        def bar(what: str, total: int) -> Callable[[int], None]:
            if not console.is_terminal:
                console.print(f"{what} ...")  # bars are drawn at the end, in a file
            task = progress.add_task(what, total=total)
            return lambda finished: progress.advance(task, finished)

        data = _drawn(size.data, bar)
        weights = {
            source: _trained(source.trainer, data, size, bar)
            for source in (TRAINED_ON_TASKS, PRETRAINED)
        }
        ready = ready_named("champion", "omniglot")
        weights[CHAMPION_TRAINING] = (read_weights(ready), notes_of_run(ready))
        cards = _evaluated(data, weights, size, bar)

    for table in _tables(cards, size.learners):
        console.print(table)
    accuracy_chart(cards, f"{data.name}, 5-way 1-shot").savefig(FOLDER / "accuracy.png", dpi=150)
    console.print("ATM: memory kept between support sets, as a multiple of all support images.")
    console.print(
        "MMACs: million multiply-accumulates. Trained for a minute or less: a first look."
    )
    console.print(
        "champion: ready weights, trained on Omniglot and on nothing that was drawn here; "
        "one view an image."
    )
    console.print(f"done: cards, pictures and a chart are in {FOLDER.resolve()}", soft_wrap=True)
    console.print(f"look at them in a browser: {_reported().resolve()}", soft_wrap=True)


def _drawn(name: str, bar: Bar) -> cfsl.Dataset:
    """Draw the data set, unless it is installed, and pictures of tasks of every type."""
    classes, samples = glyphs_counts(name)
    is_installed = current_folder(name) is not None
    data = cfsl.load(
        name, progress=None if is_installed else bar(f"drawing {name}", classes * samples)
    )

    advance = bar("drawing pictures of tasks", len(PICTURES))
    for picture, spec in PICTURES.items():
        drawn = cfsl.draw_task(cfsl.Tasks(data, spec)[17], title=f"{name}/test")
        drawn.save(FOLDER / f"{picture}.png")
        advance(1)
    return data


def _trained(name: str, data: cfsl.Dataset, size: Size, bar: Bar) -> tuple[Any, Any]:
    """Train ProtoNets on tasks, or pretrain the network of the tuned learners.

    Return the weights and the notes of the training run.
    """
    learner, training = LEARNERS[name].build(), recipe_for("short", name, COLUMNS["B"])
    schedule = training.schedule.replace(epochs=3, updates=size.updates)
    validation_tasks = size.tasks // 2 if name == "protonet" else 5
    training = training.replace(schedule=schedule, validation_tasks=validation_tasks)
    advance, folder = bar(f"training {name}", schedule.total), FOLDER / "runs" / name

    def watch(event: Event) -> None:
        if isinstance(event, Started):
            advance(event.update)
        elif isinstance(event, Update):
            advance(1)

    train(learner, training, data, folder, watch, threads=os.cpu_count() or 1)
    return best_weights(folder), notes_of_run(folder)


def _evaluated(
    data: cfsl.Dataset, weights: dict[WeightSource, Any], size: Size, bar: Bar
) -> list[Card]:
    """Evaluate every learner in every column."""
    cards = []
    with Workers(os.cpu_count() or 1) as workers:
        for name in size.learners:
            entry, learner = LEARNERS[name], LEARNERS[name].build(**QUICKER.get(name, {}))
            count = size.tuned_tasks if isinstance(learner, Tunable) else size.tasks
            advance = bar(f"evaluating {name}", count * len(COLUMNS))

            for column, spec in COLUMNS.items():
                tasks = cfsl.Tasks(data, spec, numbers=range(count))
                meta, notes = weights.get(entry.weights) or (_first_weights(learner, tasks), None)
                result = evaluation_of(
                    name, learner, tasks, meta, checkpoint=notes, workers=workers, progress=advance
                )
                path = FOLDER / "cards" / f"{name}-{column}.json"
                card = result.card.replace(column=column)
                cards.append(write_card(path, card, {"": result.answers}))
    return cards


def _reported() -> Path:
    """Write the page of all cards, as 'cfsl report demo/cards --out demo/report.html' does."""
    path = FOLDER / "report.html"
    write_report([FOLDER / "cards"], path, EvidenceReader())
    return path


def _first_weights(learner: Any, tasks: cfsl.Tasks) -> Any:
    """Draw weights for a learner that does not train them."""
    recipe = tasks.data.info.recipe
    shape = (recipe.channels, recipe.height, recipe.width)
    return first_weights(learner, shape, tasks.spec, torch.Generator().manual_seed(0))


def _tables(cards: list[Card], learners: tuple[str, ...]) -> Iterator[Table]:
    """Yield tables with a row for every learner: accuracy by task type, and costs on type B."""
    found = {(card.learner.name, card.column): card for card in cards}
    accuracy = _empty("accuracy in %, ±95 % over tasks, test split", tuple(COLUMNS))
    costs = _empty(
        "costs of a task of type B", ("ATM", "MMACs to learn", "to answer", "peak memory")
    )

    for name in learners:
        of_b = found[name, "B"]
        marked = f"{name} *" if of_b.breaks_law else name
        percents = [_percent(found[name, column].metrics.accuracy) for column in COLUMNS]
        accuracy.add_row(marked, *percents)

        atm = f"{of_b.metrics.atm.total:.3f}"
        macs = [of_b.macs.adaptation, of_b.macs.prediction]
        millions = [f"{each / 1e6:,.0f}" for each in macs]
        costs.add_row(marked, atm, *millions, f"{(of_b.peak_memory or 0) / 1e6:.1f} MB")

    costs.caption = "* breaks the data-flow law on purpose: an upper bound"
    yield accuracy
    yield costs


def _empty(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("learner", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _percent(accuracy: CardSummary) -> str:
    return f"{100 * accuracy.mean:.1f}±{100 * (accuracy.ci95 or 0):.1f}"


if __name__ == "__main__":
    main()
