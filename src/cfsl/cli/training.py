"""cfsl train: train a learner by a recipe, or go on with a training run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.cli.console import print_event, say, stepping
from cfsl.cli.evaluation import ACCELERATIONS, Changes, Name
from cfsl.cli.option_values import (
    known_precision,
    look_in_current_folder,
    parsed_changes,
    slow_precision,
)
from cfsl.cli.task_options import TaskOptions, takes_task_options
from cfsl.errors import CfslError, SpecError, lookup

if TYPE_CHECKING:
    from cfsl.data.store import Dataset
    from cfsl.runs.run_spec import TrainSpec
    from cfsl.training.events import Epoch, Event, Watcher
    from cfsl.training.training_spec import Training

_LOGS = {"none": False, "tensorboard": True}


@takes_task_options
def train(
    options: TaskOptions,
    learner: Name,
    recipe: Annotated[
        str,
        typer.Option(
            help="'short' (minutes on one core), 'strong' (in stages, an hour) or 'paper' "
            "(the published one)."
        ),
    ] = "short",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: runs/LEARNER-DATA-RECIPE.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs, instead of the recipe's.", min=1)
    ] = None,
    updates: Annotated[
        int | None, typer.Option(help="Updates in an epoch, instead of the recipe's.", min=1)
    ] = None,
    training_seed: Annotated[
        int, typer.Option(help="Seed of first weights and training data.", min=0)
    ] = 0,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda or mps.")] = "cpu",
    threads: Annotated[
        int, typer.Option(help="Threads; with one, the same processor gives the same bits.", min=1)
    ] = 1,
    precision: Annotated[
        str | None,
        typer.Option(help="What maps are computed in: float32 or bfloat16; default: the recipe's."),
    ] = None,
    accelerate: Annotated[
        str,
        typer.Option(
            help="'auto' takes exact fast kernels where there are some (maml_low); or 'off'."
        ),
    ] = "auto",
    log: Annotated[
        str, typer.Option(help="'tensorboard' writes a log to FOLDER/tensorboard, too.")
    ] = "none",
    changes: Changes = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON for programs: an event a line, as it happens."),
    ] = (False),
) -> None:
    """Train a learner, or go on with a run that was stopped.

    Training is validated on tasks of the given type.
    """
    from cfsl.harness.devices import require_device
    from cfsl.learners.maml.accelerated import why_slower
    from cfsl.runs.data import data_spec
    from cfsl.runs.run_spec import TrainSpec, built, learner_spec
    from cfsl.training.recipes import fitted_to, training_asked_for
    from cfsl.training.tensorboard import require_tensorboard

    _require_defaults(options)
    require_device(device)
    logged, fast = lookup(_LOGS, log, "log"), lookup(ACCELERATIONS, accelerate, "acceleration")
    if logged:
        require_tensorboard()

    look_in_current_folder()
    spec = learner_spec(learner, parsed_changes(changes or []))
    slow = why_slower(built(spec), device) if fast else None
    if slow and not json:
        say(f"not accelerated: {slow}")

    data = options.open()
    characters = data.info.recipe.channels == 1
    known = None if precision is None else known_precision(precision)
    own = {"epochs": epochs, "updates": updates, "precision": known}
    _require_trained(learner)

    asked = training_asked_for(
        learner, recipe, options.spec(), training_seed, own, characters=characters
    )
    training = fitted_to(data, asked)
    if not json:
        say_what_was_fitted(asked, training, data)
        slower = slow_precision(training.schedule.precision, device)
        if slower:
            say(slower)

    folder = out or Path("runs") / f"{learner.replace(':', '-')}-{options.data}-{recipe}"
    how = _How(device, threads, accelerates=fast, logs=logged, json=json)
    whole = TrainSpec(learner=spec, data=data_spec(data, options.splits), training=training)
    stages = _stages(whole, folder)
    for number, (stage, place) in enumerate(stages, start=1):
        if len(stages) > 1 and not json:
            name = _short_name(stage.learner.name)
            say(f"stage {number} of {len(stages)}: {name}, in {place}")
        history = _run_stage(stage, place, how)

    best = max(history, key=lambda epoch: epoch.accuracy)
    if json:
        print_event(
            {
                "event": "end",
                "best_epoch": best.epoch,
                "accuracy": best.accuracy,
                "folder": str(folder),
            }
        )
        return
    say(
        f"best epoch {best.epoch + 1} with {100 * best.accuracy:.2f} % on validation tasks; "
        f"weights are in {folder}"
    )


@dataclass(frozen=True)
class _How:
    """How training is done and shown, which is no part of the identity of a run."""

    device: str
    threads: int
    accelerates: bool
    logs: bool
    json: bool


def _stages(train: TrainSpec, folder: Path) -> list[tuple[TrainSpec, Path]]:
    """Return the training runs of all stages with their folders, the first to be done first."""
    from cfsl.training.run_folder import START

    if train.start is None:
        return [(train, folder)]
    return [*_stages(train.start, folder / START), (train, folder)]


def _run_stage(stage: TrainSpec, folder: Path, how: _How) -> list[Epoch]:
    """Train one stage, with a bar and a log of its own, and return its history."""
    from cfsl.learners.description import described
    from cfsl.runs.perform import perform_training
    from cfsl.runs.run_spec import built
    from cfsl.training.tensorboard import tensorboard_log

    name, training = stage.learner.name, stage.training
    about = {
        "learner": {"name": name, **described(built(stage.learner))},
        "training": training.model_dump(mode="json"),
        "data": stage.data.fingerprint,
        "device": how.device,
        "folder": str(folder),
    }

    with contextlib.ExitStack() as stack:
        show = stack.enter_context(stepping(_short_name(name), training.schedule.total, "updates"))
        watchers = [
            _bar(show, training),
            _events(about, training) if how.json else _lines(training),
        ]
        if how.logs:
            watchers.append(stack.enter_context(tensorboard_log(folder, training)))

        def watch(event: Event) -> None:
            for watcher in watchers:
                watcher(event)

        return perform_training(
            stage,
            folder,
            watch,
            device=how.device,
            threads=how.threads,
            accelerate=how.accelerates,
        )


def _short_name(learner: str) -> str:
    """Return the name of a learner without the module of its import path."""
    return learner.rpartition(":")[2]


def _require_defaults(options: TaskOptions) -> None:
    """Refuse options of evaluation tasks: training has its own split, seed and sampler."""
    usual = TaskOptions()
    for name, instead in (
        ("seed", "--training-seed"),
        ("split", "leave it out"),
        ("sampler", "leave it out"),
    ):
        if getattr(options, name) != getattr(usual, name):
            raise SpecError(f"--{name} is for evaluation; training takes its own tasks ({instead})")


def _require_trained(learner: str) -> None:
    """Refuse a learner whose weights are never trained."""
    from cfsl.learners.registry import entry_of

    if not entry_of(learner).weights.is_trained:
        raise CfslError(f"{learner} is not trained; evaluate it with 'cfsl eval {learner}'")


def say_what_was_fitted(asked: Training, training: Training, data: Dataset) -> None:
    """Say where the recipe was changed because the data set has few classes, or few images."""
    if training.episodes != asked.episodes:
        sizes, episodes = data.class_sizes[data.classes_of("train")], training.episodes
        say(
            f"episodes of {episodes.n_way} classes x {episodes.k_shot + episodes.k_target} images: "
            f"{data.name} has {len(sizes)} training classes of {sizes.min()} images or more"
        )

    if training.validation != asked.validation:
        classes = len(data.classes_of("val"))
        say(
            f"validated with nss {training.validation.nss}: "
            f"{data.name} has {classes} validation classes"
        )


def _unit(training: Training) -> str:
    return "images" if training.iid else "tasks"


def _bar(show: Callable[[int, str], None], training: Training) -> Watcher:
    """Keep a bar up to date, with the loss, the last validation accuracy and the speed."""
    from cfsl.training.events import Epoch, Started, Update

    accuracy = ""

    def watch(event: Event) -> None:
        nonlocal accuracy
        if isinstance(event, Started | Epoch) and event.accuracy is not None:
            accuracy = f"val {100 * event.accuracy:.1f} %, "

        if isinstance(event, Started):
            show(event.update, accuracy.removesuffix(", "))
        elif isinstance(event, Update):
            speed = f"{event.per_second:,.1f} {_unit(training)}/s"
            show(event.update, f"loss {event.loss:.3g}, {accuracy}{speed}")

    return watch


def _lines(training: Training) -> Watcher:
    """Print a line for every epoch."""
    from cfsl.training.events import Saved

    def watch(event: Event) -> None:
        if isinstance(event, Saved):
            epoch = event.epoch
            say(
                f"epoch {epoch.epoch + 1}/{training.schedule.epochs}: loss {epoch.loss:.3f}, "
                f"validation accuracy {100 * epoch.accuracy:.2f} %, {epoch.seconds:.0f} s"
            )

    return watch


def _events(run: dict[str, Any], training: Training) -> Watcher:
    """Print a line of JSON for the start, for some updates, and for every epoch on disk."""
    from cfsl.training.events import Reports, Saved, Started, Update

    reports = Reports(training.schedule)

    def watch(event: Event) -> None:
        if isinstance(event, Started):
            print_event({"event": "start", **run, "resumed_at": event.update})
        elif isinstance(event, Saved):
            print_event({"event": "epoch", **vars(event.epoch), "update": event.update})
        elif isinstance(event, Update):
            report = reports.add(event)
            if report is None:
                return

            values = {"update": report.update, "loss": report.loss, "rate": report.rate}
            speed = {f"{_unit(training)}_per_second": report.per_second}
            print_event({"event": "update", **values, **speed})

    return watch
