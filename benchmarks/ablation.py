"""Measure what each part of the champion is worth, on validation tasks.

    python benchmarks/ablation.py --out ablation.json    (Omniglot; up to an hour of one core)
    python benchmarks/ablation.py --answers              (only the second table; some minutes)

Both tables are of validation classes and seed 0; test classes are never touched.

- In the first, every row is trained for 500 updates of one core (a minute or two; the full recipe
  has 4,000; in bfloat16 where the processor has instructions for it), and answers from one view.
- In the second, the champion's ready weights answer in other ways, on more tasks, since differences
  on type A are small.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cfsl
from cfsl.harness.devices import has_bfloat16
from cfsl.harness.evaluate import evaluate
from cfsl.learners.base import Meta
from cfsl.learners.champion.champion import Champion
from cfsl.learners.multiproto import MultiProto
from cfsl.metrics.ensemble import ensemble
from cfsl.nets.convnet import conv4
from cfsl.nets.small_resnet import SmallResNet
from cfsl.spec import Noise, Occlusion, TaskSpec
from cfsl.training.loop import train
from cfsl.training.ready import ready_for
from cfsl.training.recipes import MILD, champion
from cfsl.training.run_folder import best_weights, read_weights
from cfsl.training.training_spec import Training

EPOCHS, UPDATES = 5, 100
CLASS_TASKS, MANY_CLASS_TASKS, INSTANCE_TASKS = 400, 2000, 100
_INSTANCE = TaskSpec.instance(nss=4, k_shot=5)
COLUMNS: Mapping[str, TaskSpec] = {
    "B3": TaskSpec.type_b(3),
    "B10": TaskSpec.type_b(10),
    "C5": TaskSpec.type_c(5),
    "A3": TaskSpec.type_a(3),
    "D4": TaskSpec.type_d(4, 2),
    "noise .4": _INSTANCE.replace(corruption=Noise(fraction=0.4)),
    "disc .3": _INSTANCE.replace(corruption=Occlusion(fraction=0.3)),
}
ONE_VIEW = Champion(views="one")
FEW_AXES = 128
ANSWER_COLUMNS = {**COLUMNS, "A10": TaskSpec.type_a(10)}


class Row(NamedTuple):
    """A learner, and how it is trained."""

    what: str
    learner: Any
    training: Training


def base(seed: int = 0) -> Training:
    """Return the champion's recipe, shortened."""
    recipe = champion(COLUMNS["B3"])
    precision = "bfloat16" if has_bfloat16("cpu") else "float32"
    schedule = recipe.schedule.replace(
        epochs=EPOCHS, updates=UPDATES, average=0.99, precision=precision
    )
    return recipe.replace(schedule=schedule, validation_tasks=1, seed=seed)


def trained_rows() -> list[Row]:
    """Return the rows that have to be trained."""
    usual = base()
    schedule = usual.schedule
    turned = usual.augmentation.replace(degrees=0, log_scale=0, shear=0, shift=0, elastic=0)
    strong = usual.augmentation.replace(degrees=16, log_scale=0.2, shear=0.2, shift=3, elastic=0.08)
    few = TaskSpec.few_shot

    return [
        Row("the champion, one view", ONE_VIEW, usual),
        Row(
            "AdamW in the place of Muon",
            ONE_VIEW,
            usual.replace(schedule=schedule.replace(optimizer="adamw", rate=2e-3)),
        ),
        Row(
            "three episodes of 20 classes",
            ONE_VIEW,
            usual.replace(episodes=few(n_way=20, k_target=2), schedule=schedule.replace(batch=3)),
        ),
        Row("no look-alikes among the classes", ONE_VIEW, usual.replace(companions=0)),
        Row("look-alikes out of 10 classes, not of 3", ONE_VIEW, usual.replace(companions=10)),
        Row(
            "64 classes of 3 drawings", ONE_VIEW, usual.replace(episodes=few(n_way=64, k_target=2))
        ),
        Row(
            "24 classes of 8 drawings", ONE_VIEW, usual.replace(episodes=few(n_way=24, k_target=7))
        ),
        Row(
            "only given one other drawing, not the mean of all others",
            ONE_VIEW.replace(learns_means=False),
            usual,
        ),
        Row(
            "only given one other drawing, 64 classes of 3",
            ONE_VIEW.replace(learns_means=False),
            usual.replace(episodes=few(n_way=64, k_target=2)),
        ),
        Row("no turned or mirrored classes", ONE_VIEW, usual.replace(augmentation=MILD)),
        Row("no warps", ONE_VIEW, usual.replace(augmentation=turned)),
        Row("warps twice as strong", ONE_VIEW, usual.replace(augmentation=strong)),
        Row(
            "Conv-4-64 in the place of the residual net",
            ONE_VIEW.replace(net=conv4(64, "conv-act-norm")),
            usual,
        ),
        Row(
            "multiproto: squared distance", MultiProto(net=SmallResNet(), metric="euclidean"), usual
        ),
        Row(
            "no average of the weights",
            ONE_VIEW,
            usual.replace(schedule=schedule.replace(average=0.0)),
        ),
    ]


def answer_rows(ready: Meta) -> dict[str, tuple[Any, Meta]]:
    """Return learners that answer by the ready weights, or by a part of them."""
    whole = Champion()
    by_cosine = whole.replace(closeness="cosine")
    return {
        "the champion": (whole, ready),
        "no memory of pixels": (whole.replace(knows_copies=False), ready),
        "one mean a label, whatever it stood for": (whole.replace(groups=False), ready),
        "prototypes in float32": (whole.replace(numbers="float32"), ready),
        f"{FEW_AXES} axes": (whole.replace(axes=FEW_AXES), _on_few_axes(ready)),
        "cosines in the place of evidence": (by_cosine, ready),
        "cosines as they are, whatever the length of the prototype": (
            by_cosine.replace(length_power=0.0),
            ready,
        ),
        "cosines, five shifted views": (by_cosine.replace(views="shifts"), ready),
        "cosines, one view": (by_cosine.replace(views="one"), ready),
    }


def _on_few_axes(ready: Meta) -> Meta:
    stats = dict(ready["stats"])
    for name in ("spread.axes", "spread.shares"):
        stats[name] = stats[name][..., :FEW_AXES].contiguous()
    return {**ready, "stats": stats}


def measured(
    learner: Any,
    weights: list[Meta],
    data: cfsl.Dataset,
    columns: Mapping[str, TaskSpec],
    class_tasks: int,
) -> dict[str, tuple[float, float]]:
    """Return accuracy and half interval in every column; several weights answer as an ensemble."""
    found = {}
    for column, spec in columns.items():
        count = class_tasks if spec.kind == "class" else INSTANCE_TASKS
        tasks = cfsl.Tasks(data, spec, split="val", numbers=range(count))
        traces = [evaluate(learner, tasks, meta, law=False) for meta in weights]
        trace = ensemble(traces) if len(traces) > 1 else traces[0]
        summary = cfsl.summarise(cfsl.task_accuracies(trace))
        found[column] = (round(100 * summary.mean, 2), round(100 * (summary.ci95 or 0), 2))
    return found


def learned(learner: Any, training: Training, data: cfsl.Dataset) -> Meta:
    """Train in a folder that is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        train(learner, training, data, Path(folder))
        return best_weights(Path(folder))


def trained_table(data: cfsl.Dataset) -> Iterator[tuple[str, dict[str, tuple[float, float]]]]:
    """Yield a row for every training."""
    first: Meta = {}
    for row in trained_rows():
        weights = learned(row.learner, row.training, data)
        first = first or weights
        yield row.what, measured(row.learner, [weights], data, COLUMNS, CLASS_TASKS)

    both = [first, learned(ONE_VIEW, base(seed=1), data)]
    yield "two training seeds together", measured(ONE_VIEW, both, data, COLUMNS, CLASS_TASKS)

    plain = MultiProto(net=SmallResNet(), metric="cosine")
    yield (
        "multiproto: the cosine, the champion's weights",
        measured(plain, [first], data, COLUMNS, CLASS_TASKS),
    )
    batch = plain.replace(norm="batch")
    yield (
        "multiproto: and batch statistics (transductive)",
        measured(batch, [first], data, COLUMNS, CLASS_TASKS),
    )


def answer_table(
    data: cfsl.Dataset, ready: Meta
) -> Iterator[tuple[str, dict[str, tuple[float, float]]]]:
    """Yield a row for every learner that answers by the ready weights."""
    for what, (learner, weights) in answer_rows(ready).items():
        yield what, measured(learner, [weights], data, ANSWER_COLUMNS, MANY_CLASS_TASKS)


def main() -> None:
    """Print the rows of both tables, in Markdown."""
    parser = argparse.ArgumentParser(
        description="What each part of the champion is worth, on validation tasks."
    )
    parser.add_argument("--data", default="omniglot")
    parser.add_argument(
        "--answers", action="store_true", help="only the table of the ready weights"
    )
    parser.add_argument("--out", type=Path, help="also write the numbers, as JSON")
    asked = parser.parse_args()

    data = cfsl.load(asked.data)
    path = ready_for("champion", data)
    if path is None:
        parser.error(f"there are no ready weights for {data.name}; take omniglot or glyphs")

    tables = {"answers": (ANSWER_COLUMNS, answer_table(data, read_weights(path)))}
    if not asked.answers:
        tables = {"training": (COLUMNS, trained_table(data)), **tables}
    written: dict[str, dict[str, dict[str, tuple[float, float]]]] = {name: {} for name in tables}

    for name, (columns, rows) in tables.items():
        print(f"| | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}", flush=True)
        for what, found in rows:
            written[name][what] = found
            cells = " | ".join(f"{mean:.2f}" for mean, _ in found.values())
            print(f"| {what} | {cells} |", flush=True)
            if asked.out is not None:
                asked.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
