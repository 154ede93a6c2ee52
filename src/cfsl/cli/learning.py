"""cfsl learners, train and eval: what learners there are, how they learn, how well they do."""

from __future__ import annotations

import json as json_module
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.cli.console import counting, print_json, say
from cfsl.cli.setting import Setting, takes_setting
from cfsl.errors import CfslError, SpecError

if TYPE_CHECKING:
    from cfsl.data.tasks import Tasks
    from cfsl.training.loop import Epoch

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Name = Annotated[str, typer.Argument(help="A learner of 'cfsl learners', or your own as package.module:Class.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="A hyper-parameter of the learner, such as metric=cosine.")
]


def learners(json: Json = False) -> None:
    """List the learners."""
    from cfsl.learners.registry import LEARNERS

    if json:
        print_json({name: {"what": e.what, "training": e.training, "cite": e.cite} for name, e in LEARNERS.items()})
        return
    needs = {"none": "nothing to train", "random": "random weights", "tasks": "cfsl train", "pretraining": "cfsl train"}
    for name, entry in LEARNERS.items():
        say(f"{name:<22}{needs[entry.training]:<18}{entry.what}")


@takes_setting
def train(
    setting: Setting,
    learner: Name,
    recipe: Annotated[
        str, typer.Option(help="'short' (minutes on one core) or 'paper' (the published one).")
    ] = "short",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/LEARNER-DATA-RECIPE.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs, instead of the recipe's.", min=1)] = None,
    updates: Annotated[int | None, typer.Option(help="Updates in an epoch, instead of the recipe's.", min=1)] = None,
    training_seed: Annotated[int, typer.Option(help="Seed of first weights and training data.", min=0)] = 0,
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Train a learner, or go on with a run that was stopped; validated on tasks of the given type."""
    from cfsl.learners.registry import LEARNERS
    from cfsl.training.loop import train as run_training
    from cfsl.training.recipes import recipe_for

    built = _learner(learner, changes)
    kind = LEARNERS[learner].training if learner in LEARNERS else "tasks"
    if kind not in ("tasks", "pretraining"):
        raise CfslError(f"{learner} is not trained; evaluate it with 'cfsl eval {learner}'")
    training = recipe_for(recipe, kind, setting.spec()).replace(seed=training_seed)
    wanted = {"epochs": epochs, "updates": updates}
    schedule = training.schedule.replace(**{name: value for name, value in wanted.items() if value is not None})
    folder = out or Path("runs") / f"{learner.replace(':', '-')}-{setting.data}-{recipe}"
    data = setting.open()
    with counting(f"training {learner}", schedule.total, "updates") as progress:
        done = 0

        def watch(update: int, loss: float, epoch: Epoch | None) -> None:
            nonlocal done
            progress(update - done)
            done = update
            if epoch is not None and not json:
                say(
                    f"epoch {epoch.epoch + 1}/{schedule.epochs}: loss {epoch.loss:.3f}, validation accuracy "
                    f"{100 * epoch.accuracy:.2f} %, {epoch.seconds:.0f} s"
                )

        history = run_training(built, training.replace(schedule=schedule), data, folder, watch)
    best = max(history, key=lambda epoch: epoch.accuracy)
    if json:
        print_json({"folder": str(folder), "history": [vars(epoch) for epoch in history]})
    else:
        say(
            f"best epoch {best.epoch + 1} with {100 * best.accuracy:.2f} % on validation tasks; weights are in {folder}"
        )


@takes_setting
def evaluate(
    setting: Setting,
    learner: Name,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder of a training run, or a weights file.")] = None,
    tasks: Annotated[int, typer.Option(help="How many tasks.", min=1)] = 600,
    progressive: Annotated[
        bool, typer.Option("--progressive", help="Also ask after every support set: forgetting, backward transfer.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Where to write the result card (.json).")] = None,
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Evaluate a learner on tasks, under the data-flow law."""
    from cfsl.harness.cost import measure_macs
    from cfsl.harness.evaluate import evaluate as run_evaluation
    from cfsl.results.card import environment, measurements, write_card

    built, chosen = _learner(learner, changes), setting.tasks(range(tasks))
    meta = _weights(learner, built, checkpoint, chosen)
    start = time.perf_counter()
    with counting(f"evaluating {learner}", tasks, "tasks") as progress:
        trace = run_evaluation(built, chosen, meta, progressive=progressive, progress=progress)
    measured = measurements(trace)
    card = {
        "learner": {"name": learner, **_described(built)},
        "transductive": bool(getattr(built, "transductive", False)),
        "breaks_law": bool(getattr(built, "breaks_law", False)),
        "checkpoint": None if checkpoint is None else _checkpoint_notes(checkpoint),
        "tasks": _tasks_described(chosen),
        "metrics": measured,
        "macs": vars(measure_macs(built, chosen, meta)),
        "seconds": time.perf_counter() - start,
        "environment": environment(),
    }
    if out is not None:
        write_card(out, card)
    if json:
        print_json(card)
        return
    _say_result(learner, chosen, card)
    if out is not None:
        say(f"wrote {out}")


def _say_result(learner: str, tasks: Tasks, card: dict[str, Any]) -> None:
    from cfsl.report.draw_task import describe_spec

    metrics, macs = card["metrics"], card["macs"]
    accuracy, entropy, memory = metrics["accuracy"], metrics["cross_entropy"], metrics["atm"]
    marks = [name for name in ("transductive", "breaks_law") if card[name]]
    marked = f"{learner} ({', '.join(marks)})" if marks else learner
    say(f"{marked} on {tasks.data.name}/{tasks.split}, {len(tasks)} tasks")
    say(f"  {describe_spec(tasks.spec)}")
    interval = f" +- {100 * accuracy['ci95']:.2f} (95 % over tasks)" if accuracy["ci95"] is not None else ""
    say(f"  accuracy       {100 * accuracy['mean']:.2f} %{interval}")
    say(f"  cross-entropy  {entropy['mean']:.3f}")
    say(f"  ATM            {memory['total']:.4f} ({memory['representation']:.4f} representation)")
    say(f"  MACs           {macs['adaptation']:,} to learn, {macs['prediction']:,} to answer")
    if metrics["diverged"]:
        say(f"  diverged       {100 * metrics['diverged']:.2f} % of targets have no finite answer, and count as wrong")
    if "forgetting" in metrics:
        say(f"  forgetting     {100 * metrics['forgetting']['mean']:.2f} %")
    say(f"  {card['seconds']:.1f} s")


def _learner(name: str, changes: list[str] | None) -> Any:
    """Build a learner and change what --set says; modules are also looked for in the current folder."""
    from cfsl.learners.registry import find_learner

    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    learner = find_learner(name)
    fields = dict(_parsed(change) for change in changes or [])
    if fields and not hasattr(learner, "replace"):
        raise SpecError(f"{name} has no hyper-parameters that --set could change")
    return learner.replace(**fields) if fields else learner


def _parsed(change: str) -> tuple[str, Any]:
    name, sign, value = change.partition("=")
    if not sign:
        raise SpecError(f"--set {change} is not of the form name=value")
    try:
        return name, json_module.loads(value)
    except ValueError:
        return name, value


def _weights(name: str, learner: Any, checkpoint: Path | None, tasks: Tasks) -> Any:
    """Return the learned weights, or random ones for a learner that has no other."""
    import torch

    from cfsl.learners.registry import LEARNERS
    from cfsl.training.loop import read_weights

    if checkpoint is not None:
        if not checkpoint.exists():
            raise CfslError(
                f"{checkpoint} does not exist; --checkpoint takes a folder of 'cfsl train' or a weights file"
            )
        return read_weights(checkpoint)
    kind = LEARNERS[name].training if name in LEARNERS else "none"
    if kind in ("tasks", "pretraining"):
        raise CfslError(f"{name} needs weights: run 'cfsl train {name} ...' first and give its folder as --checkpoint")
    if not hasattr(learner, "init"):
        return {}
    recipe = tasks.data.info.recipe
    return learner.init((recipe.channels, recipe.height, recipe.width), torch.Generator().manual_seed(0))


def _described(learner: Any) -> dict[str, Any]:
    describe = getattr(learner, "model_dump", None)
    return {"class": type(learner).__name__, "settings": describe(mode="json") if describe else repr(learner)}


def _checkpoint_notes(path: Path) -> dict[str, Any]:
    from cfsl.training.checkpoint import read_checkpoint
    from cfsl.training.loop import LAST

    _, notes = read_checkpoint(path / LAST if path.is_dir() else path)
    return notes


def _tasks_described(tasks: Tasks) -> dict[str, Any]:
    from cfsl.data.manifest import Manifest

    manifest = Manifest.of(tasks)
    return {
        "data": manifest.data,
        "data_fingerprint": manifest.data_fingerprint,
        "splits": manifest.splits,
        "splits_hash": manifest.splits_hash,
        "split": manifest.split,
        "spec": tasks.spec.model_dump(mode="json"),
        "spec_hash": tasks.spec.hash,
        "task_type": tasks.spec.task_type,
        "seed": manifest.seed,
        "sampler": manifest.sampler,
        "count": len(tasks),
        "manifest_fingerprint": manifest.fingerprint,
    }
