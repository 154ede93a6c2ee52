"""cfsl learners and eval: list the learners, and evaluate one of them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.cli.console import counting, print_json, say
from cfsl.cli.option_values import look_in_current_folder, parsed_changes
from cfsl.cli.task_options import TaskOptions, takes_task_options
from cfsl.errors import SpecError, lookup

if TYPE_CHECKING:
    from cfsl.cards.schema import Card, CardMacs, CardMetrics
    from cfsl.data.tasks import Tasks

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
    """What keeps a learner from remembering a support set outside its state."""

    NONE = "none"
    SANDBOX = "sandbox"


def learners(json: Json = False) -> None:
    """List the learners."""
    from cfsl.learners.registry import LEARNERS, NO_WEIGHTS, RANDOM_WEIGHTS

    if json:
        print_json(
            {
                name: {"what": e.what, "training": e.weights.name, "cite": e.cite}
                for name, e in LEARNERS.items()
            }
        )
        return

    untrained = {NO_WEIGHTS: "nothing to train", RANDOM_WEIGHTS: "random weights"}
    for name, entry in LEARNERS.items():
        say(f"{name:<22}{untrained.get(entry.weights, 'cfsl train'):<18}{entry.what}")


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
            help="'sandbox' locks the learner up at every support set; see docs/data-flow.md."
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
    from cfsl.harness.sandbox.sandboxed_run import introduced
    from cfsl.harness.workers import Workers
    from cfsl.runs.perform import perform
    from cfsl.runs.run_spec import built, learner_spec
    from cfsl.runs.weights import checkpoint_or_ready, differences_from_training, weights_asked_for

    require_device(device)
    members = _members(checkpoint, ensemble, average)

    look_in_current_folder()
    sandboxed, settings = isolate is Isolation.SANDBOX, parsed_changes(changes or [])
    stand_in = introduced(learner, settings) if sandboxed and ":" in learner else None
    spec = learner_spec(learner, settings, stand_in)
    chosen = options.tasks(range(tasks))
    place = checkpoint_or_ready(learner, checkpoint, chosen.data, chosen.split)
    weights = weights_asked_for(learner, place)
    run = options.run(spec, chosen, weights, progressive=progressive, **members)

    fast = lookup(ACCELERATIONS, accelerate, "acceleration") and not sandboxed
    conditions = Conditions(
        progressive=progressive, device=device, isolate=sandboxed, accelerate=fast
    )
    with (
        Workers(workers) as pool,
        counting(f"evaluating {learner}", tasks * run.members, "tasks") as progress,
    ):
        card, answers = perform(
            run,
            weights,
            conditions,
            workers=pool if workers > 1 else 1,
            with_ensemble=ensemble is not None,
            progress=progress,
            sandboxed=stand_in,
        )

    if out is not None:
        card = write_card(out, card, answers)
    if json:
        print_json(card.content())
        return

    for difference in differences_from_training(weights.notes(), stand_in or built(spec)):
        say(f"note: {difference}")
    _say_result(learner, chosen, card)
    if out is not None:
        say(f"wrote {out}")


def _members(checkpoint: Path | None, count: int | None, average: str | None) -> dict[str, Any]:
    """Return the fields of a run spec that the options of an ensemble describe."""
    from cfsl.metrics.ensemble import AVERAGES
    from cfsl.training.run_folder import best_epochs

    if count is None:
        if average is not None:
            raise SpecError("--average says how an ensemble answers; give its size with --ensemble")
        return {}

    if checkpoint is None or not checkpoint.is_dir():
        raise SpecError(
            "--ensemble takes the best epochs of a training run; give its folder as --checkpoint"
        )

    chosen = average or "logits"
    lookup(AVERAGES, chosen, "average")
    return {"members": len(best_epochs(checkpoint, count)), "average": chosen}


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
        share = f"{100 * metrics.diverged:.2f} % of targets"
        say(f"  diverged       {share} have no finite answer, and count as wrong")
    if metrics.forgetting is not None:
        say(f"  forgetting     {100 * metrics.forgetting.mean:.2f} %")
    if metrics.backward_transfer is not None:
        say(f"  back transfer  {100 * metrics.backward_transfer.mean:.2f} %")
