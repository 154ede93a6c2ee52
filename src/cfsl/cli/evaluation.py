"""cfsl learners and eval: what learners there are, and how well they do."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cfsl.cli.console import counting, print_json, say
from cfsl.cli.option_values import look_in_current_folder, parsed_changes
from cfsl.cli.task_options import TaskOptions, takes_task_options
from cfsl.errors import CfslError, SpecError, lookup
from cfsl.learners.overrides import changed

if TYPE_CHECKING:
    from cfsl.cards.schema import Card, CardMacs, CardMetrics
    from cfsl.data.tasks import Tasks
    from cfsl.harness.evaluate import Conditions
    from cfsl.harness.trace import Trace
    from cfsl.harness.workers import Workers
    from cfsl.metrics.answers import Answers

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Name = Annotated[
    str, typer.Argument(help="A learner of 'cfsl learners', or your own as package.module:Class.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="A hyper-parameter, such as metric=cosine or inner.lr=0.1."),
]


ACCELERATIONS = {"auto": True, "off": False}


class Isolation(StrEnum):
    """What stands between two support sets."""

    NONE = "none"
    PROCESS = "process"


def learners(json: Json = False) -> None:
    """List the learners."""
    from cfsl.learners.registry import LEARNERS

    if json:
        print_json(
            {
                name: {"what": e.what, "training": e.training, "cite": e.cite}
                for name, e in LEARNERS.items()
            }
        )
        return
    needs = {"none": "nothing to train", "random": "random weights"}
    for name, entry in LEARNERS.items():
        say(f"{name:<22}{needs.get(entry.training, 'cfsl train'):<18}{entry.what}")


@takes_task_options
def evaluate(
    options: TaskOptions,
    learner: Name,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a training run, a weights file, or ready:NAME; default: ready weights."
        ),
    ] = None,
    tasks: Annotated[int, typer.Option(help="How many tasks.", min=1)] = 600,
    progressive: Annotated[
        bool,
        typer.Option(
            "--progressive", help="Also ask after every support set: forgetting, backward transfer."
        ),
    ] = False,
    ensemble: Annotated[
        int | None,
        typer.Option(help="Also let so many of the run's best epochs answer together.", min=1),
    ] = None,
    average: Annotated[
        str | None,
        typer.Option(help="What an ensemble averages: logits (the default) or probabilities."),
    ] = None,
    isolate: Annotated[
        Isolation,
        typer.Option(
            help="'process' lets a new process see every support set; see docs/data-flow.md."
        ),
    ] = Isolation.NONE,
    workers: Annotated[
        int, typer.Option(help="Processes that share the tasks; the result is the same.", min=1)
    ] = 1,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda or mps.")] = "cpu",
    accelerate: Annotated[
        str,
        typer.Option(
            help="'auto' takes exact fast kernels where there are some (maml_low); or 'off'."
        ),
    ] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Where to write the result card (.json).")
    ] = None,
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Evaluate a learner on tasks, under the data-flow law."""
    from cfsl.cards.card import write_card
    from cfsl.harness.devices import require_device
    from cfsl.harness.evaluate import Conditions
    from cfsl.harness.workers import Workers
    from cfsl.runs.evaluation import evaluation_of

    require_device(device)
    members = _members(checkpoint, ensemble, average)
    built, chosen = built_learner(learner, changes), options.tasks(range(tasks))
    checkpoint = _with_ready(learner, checkpoint, chosen)
    meta = weights_for(learner, built, checkpoint, chosen)
    apart = isolate is Isolation.PROCESS
    fast = lookup(ACCELERATIONS, accelerate, "acceleration") and not apart
    conditions = Conditions(progressive=progressive, device=device, isolate=apart, accelerate=fast)
    notes = None if checkpoint is None else checkpoint_notes(checkpoint)
    with Workers(workers) as pool:
        with counting(f"evaluating {learner}", tasks, "tasks") as progress:
            shared = pool if workers > 1 else 1
            card, trace, answered = evaluation_of(
                learner,
                built,
                chosen,
                meta,
                conditions,
                checkpoint=notes,
                workers=shared,
                progress=progress,
            )
        answers = {"": answered}
        if members is not None:
            card, answers["ensemble"] = _add_ensemble(
                card, built, chosen, trace, members, conditions, shared
            )
    if out is not None:
        card = write_card(out, card, answers)
    if json:
        print_json(card.content())
        return
    for difference in _other_settings(notes, built):
        say(f"note: {difference}")
    _say_result(learner, chosen, card)
    if out is not None:
        say(f"wrote {out}")


class _Members(NamedTuple):
    """Epochs of a training run that answer together."""

    folder: Path
    epochs: list[int]
    """Best first."""
    average: str


def _members(checkpoint: Path | None, count: int | None, average: str | None) -> _Members | None:
    """Return the members that the options ask for."""
    from cfsl.metrics.ensemble import AVERAGES
    from cfsl.training.run_folder import best_epochs

    if count is None:
        if average is not None:
            raise SpecError("--average says how an ensemble answers; give its size with --ensemble")
        return None
    if checkpoint is None or not checkpoint.is_dir():
        raise SpecError(
            "--ensemble takes the best epochs of a training run; give its folder as --checkpoint"
        )
    chosen = average or "logits"
    lookup(AVERAGES, chosen, "average")
    return _Members(checkpoint, best_epochs(checkpoint, count), chosen)


def _add_ensemble(
    card: Card,
    learner: Any,
    tasks: Tasks,
    best: Trace,
    members: _Members,
    conditions: Conditions,
    workers: int | Workers,
) -> tuple[Card, Answers]:
    """Evaluate the members after the best one; return the card with the ensemble, and its answers."""
    from cfsl.cards.card import measurements
    from cfsl.harness.evaluate import evaluate_under
    from cfsl.metrics.answers import answers_of, rounded
    from cfsl.metrics.ensemble import ensemble
    from cfsl.training.run_folder import best_weights

    start, ranks = time.perf_counter(), range(1, len(members.epochs))
    with counting("evaluating the other epochs", len(ranks) * len(tasks), "tasks") as progress:
        others = [
            evaluate_under(
                conditions, learner, tasks, best_weights(members.folder, rank), workers, progress
            )
            for rank in ranks
        ]
    answers = rounded(answers_of(ensemble([best, *others], members.average)))
    together = {
        "members": len(members.epochs),
        "average": members.average,
        "epochs": members.epochs,
        "metrics": measurements(answers),
        "macs": {
            part: len(members.epochs) * getattr(card.macs, part)
            for part in ("adaptation", "prediction")
        },
    }
    seconds = {"ensemble_seconds": time.perf_counter() - start}
    circumstances = card.circumstances.content() | seconds
    return card.replace(ensemble=together, circumstances=circumstances), answers


def _say_result(learner: str, tasks: Tasks, card: Card) -> None:
    from cfsl.report.draw_task import describe_spec

    marked = f"{learner} ({', '.join(card.marks)})" if card.marks else learner
    say(f"{marked} on {tasks.data.name}/{tasks.split}, {len(tasks)} tasks")
    say(f"  {describe_spec(tasks.spec)}")
    _say_metrics(card.metrics, card.macs)
    say(f"  peak memory    {(card.peak_memory or 0) / 1e6:.1f} MB beside weights and images")
    circumstances = card.circumstances
    say(f"  {circumstances.seconds or 0:.1f} s on {circumstances.environment.processor}")
    if card.ensemble is not None:
        together = card.ensemble
        epochs = ", ".join(str(epoch + 1) for epoch in together.epochs or [])
        say(f"ensemble of {together.members}: epochs {epochs}, mean of {together.average}")
        _say_metrics(together.metrics, together.macs)
        say(f"  {circumstances.ensemble_seconds or 0:.1f} s more")


def _say_metrics(metrics: CardMetrics, macs: CardMacs) -> None:
    from cfsl.cards.card_rows import percent

    accuracy, entropy, memory = metrics.accuracy, metrics.cross_entropy, metrics.atm
    interval = " (95 % over tasks)" if accuracy.ci95 is not None else ""
    say(f"  accuracy       {percent(accuracy.mean, accuracy.ci95)} %{interval}")
    say(f"  cross-entropy  {entropy.mean:.3f}")
    say(f"  ATM            {memory.total:.4f} ({memory.representation:.4f} representation)")
    say(f"  MACs           {macs.adaptation:,} to learn, {macs.prediction:,} to answer")
    if metrics.diverged:
        say(
            f"  diverged       {100 * metrics.diverged:.2f} % of targets have no finite answer, and count as wrong"
        )
    if metrics.forgetting is not None:
        say(f"  forgetting     {100 * metrics.forgetting.mean:.2f} %")
    if metrics.backward_transfer is not None:
        say(f"  back transfer  {100 * metrics.backward_transfer.mean:.2f} %")


def built_learner(name: str, changes: list[str] | None) -> Any:
    """Build a learner and change what --set says; modules are also looked for in the current folder."""
    from cfsl.learners.registry import find_learner

    look_in_current_folder()
    return changed(find_learner(name), parsed_changes(changes or []))


def _with_ready(learner: str, checkpoint: Path | None, tasks: Tasks) -> Path | None:
    """Return where the weights are: as given, or those that come with the package and never saw these classes."""
    from cfsl.training.ready import PREFIX, ready_for, ready_named, require_unseen

    if checkpoint is None:
        path = ready_for(learner, tasks.data)
    elif str(checkpoint).startswith(PREFIX):
        path = ready_named(learner, str(checkpoint).removeprefix(PREFIX))
    else:
        return checkpoint
    if path is not None:
        require_unseen(path, tasks.data, tasks.split)
    return path


def weights_for(name: str, learner: Any, checkpoint: Path | None, tasks: Tasks) -> Any:
    """Return the learned weights, or random ones for a learner that has no other."""
    import torch

    from cfsl.learners.base import first_weights
    from cfsl.learners.registry import LEARNERS
    from cfsl.training.run_folder import read_weights

    recipe = tasks.data.info.recipe
    shape = recipe.channels, recipe.height, recipe.width
    if checkpoint is not None:
        if not checkpoint.exists():
            raise CfslError(
                f"{checkpoint} does not exist; --checkpoint takes a folder of 'cfsl train' or a weights file"
            )
        if name in LEARNERS and LEARNERS[name].training == "none":
            raise CfslError(f"{name} has no weights; leave --checkpoint out")
        weights = read_weights(checkpoint)
        _require_fit(
            name, weights, first_weights(learner, shape, tasks.spec, torch.Generator()), checkpoint
        )
        return weights
    kind = LEARNERS[name].training if name in LEARNERS else "none"
    if kind not in ("none", "random"):
        raise CfslError(
            f"{name} needs weights: run 'cfsl train {name} ...' first and give its folder as --checkpoint"
        )
    return first_weights(learner, shape, tasks.spec, torch.Generator().manual_seed(0))


def _unstated(learner: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the defaults of those hyper-parameters that a learner states only where they are not the default."""
    fields = type(learner).model_fields
    defaults = {name: fields[name].default for name in names if name in fields}
    return {
        name: default
        for name, default in defaults.items()
        if name not in learner.replace(**{name: default}).model_dump(mode="json")
    }


def _other_settings(notes: dict[str, Any] | None, learner: Any) -> list[str]:
    """Say which hyper-parameters are not those that the weights were trained with."""
    trained = notes["identity"]["learner"] if notes else {}
    if trained.get("class") != type(learner).__name__ or not hasattr(learner, "model_dump"):
        return []
    now = learner.model_dump(mode="json")
    trained = _unstated(learner, now.keys() - trained.keys()) | trained
    changed = [name for name in now if name in trained and trained[name] != now[name]]
    return [
        *(
            f"trained with {name}={trained[name]}, evaluated with {name}={now[name]}"
            for name in changed
        ),
        *(f"trained before there was {name}" for name in now if name not in trained),
    ]


def _require_fit(name: str, weights: Any, wanted: Any, checkpoint: Path) -> None:
    """Refuse weights of another learner or network. Tables and heads are the learner's to judge: they fit a task."""
    given = {**weights["params"], **weights["stats"]}
    for path, tensor in {**wanted.get("params", {}), **wanted.get("stats", {})}.items():
        found = given.get(path)
        fits_task = path.startswith(("rates.", "scales.", "head.", "critic.", "targets."))
        if found is None or (found.shape != tensor.shape and not fits_task):
            what = (
                f"has no '{path}'"
                if found is None
                else f"has '{path}' of shape {tuple(found.shape)}"
            )
            raise CfslError(
                f"{checkpoint} {what}, and {name} needs it in shape {tuple(tensor.shape)}: "
                f"it was trained as another learner or with other --set options; give the same here"
            )


def checkpoint_notes(path: Path) -> dict[str, Any]:
    """Return what a training run wrote about itself."""
    from cfsl.training.run_folder import notes_of_run

    return notes_of_run(path)
