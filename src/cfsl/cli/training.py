"""cfsl train: how learners come to their weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.cli.console import print_event, say, stepping
from cfsl.cli.evaluation import ACCELERATIONS, Changes, Name, built_learner
from cfsl.cli.option_values import known_precision, slow_precision
from cfsl.cli.task_options import TaskOptions, takes_task_options
from cfsl.errors import CfslError, SpecError, lookup

if TYPE_CHECKING:
    from cfsl.data.store import Dataset
    from cfsl.spec import TaskSpec
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
            help="'short' (minutes on one core), 'strong' (in stages, an hour) or 'paper' (the published one)."
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
    """Train a learner, or go on with a run that was stopped; validated on tasks of the given type."""
    from cfsl.harness.devices import require_device
    from cfsl.learners.maml.accelerated import why_not
    from cfsl.learners.maml.maml_low import MamlLow
    from cfsl.training.recipes import fitted_to
    from cfsl.training.run_folder import stages_before
    from cfsl.training.tensorboard import require_tensorboard

    _require_defaults(options)
    require_device(device)
    logged, fast = lookup(_LOGS, log, "log"), lookup(ACCELERATIONS, accelerate, "acceleration")
    if logged:
        require_tensorboard()
    built = built_learner(learner, changes)
    slow = why_not(built, device) if fast and isinstance(built, MamlLow) else None
    if slow and not json:
        say(f"not accelerated: {slow}")
    data = options.open()
    characters = data.info.recipe.channels == 1
    known = None if precision is None else known_precision(precision)
    own = {"epochs": epochs, "updates": updates, "precision": known}
    asked = _training(learner, recipe, options.spec(), own, training_seed, characters=characters)
    training = fitted_to(data, asked)
    if not json:
        say_what_was_fitted(asked, training, data)
        slower = slow_precision(training.schedule.precision, device)
        if slower:
            say(slower)
    folder = out or Path("runs") / f"{learner.replace(':', '-')}-{options.data}-{recipe}"

    how = _How(device, threads, accelerates=fast, logs=logged, json=json)
    stages = [
        (stage.learner, stage.built(), stage.training, place)
        for stage, place in stages_before(training, folder)
    ]
    stages.append((learner, built, training, folder))
    for number, (name, trained, its_training, place) in enumerate(stages, start=1):
        if len(stages) > 1 and not json:
            say(f"stage {number} of {len(stages)}: {_short_name(name)}, in {place}")
        history = _run_stage(name, trained, its_training, data, place, how)

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
        f"best epoch {best.epoch + 1} with {100 * best.accuracy:.2f} % on validation tasks; weights are in {folder}"
    )


@dataclass(frozen=True)
class _How:
    """How training is done and shown: no part of the identity of a run."""

    device: str
    threads: int
    accelerates: bool
    logs: bool
    json: bool


def _run_stage(
    name: str, learner: Any, training: Training, data: Dataset, folder: Path, how: _How
) -> list[Epoch]:
    """Train one stage, with a bar and a log of its own, and return its history."""
    from cfsl.runs.evaluation import described
    from cfsl.training.loop import train as run_training
    from cfsl.training.tensorboard import tensorboard_log

    run = {
        "learner": {"name": name, **described(learner)},
        "training": training.model_dump(mode="json"),
        "data": data.fingerprint,
        "device": how.device,
        "folder": str(folder),
    }
    with contextlib.ExitStack() as stack:
        show = stack.enter_context(stepping(_short_name(name), training.schedule.total, "updates"))
        watchers = [_bar(show, training), _events(run, training) if how.json else _lines(training)]
        if how.logs:
            watchers.append(stack.enter_context(tensorboard_log(folder, training)))

        def watch(event: Event) -> None:
            for told in watchers:
                told(event)

        return run_training(
            learner,
            training,
            data,
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
    """Refuse options that choose tasks to evaluate on: training has its own split, seed and sampler."""
    usual = TaskOptions()
    for name, instead in (
        ("seed", "--training-seed"),
        ("split", "leave it out"),
        ("sampler", "leave it out"),
    ):
        if getattr(options, name) != getattr(usual, name):
            raise SpecError(f"--{name} is for evaluation; training takes its own tasks ({instead})")


def _training(
    learner: str, recipe: str, task: TaskSpec, own: dict[str, Any], seed: int, *, characters: bool
) -> Training:
    """Return the training that the options describe."""
    from cfsl.learners.registry import LEARNERS
    from cfsl.training.recipes import recipe_for

    kind = LEARNERS[learner].training if learner in LEARNERS else "tasks"
    if kind in ("none", "random"):
        raise CfslError(f"{learner} is not trained; evaluate it with 'cfsl eval {learner}'")
    training = recipe_for(recipe, kind, task, learner=learner, characters=characters)
    wanted = {name: value for name, value in own.items() if value is not None}
    return training.with_seed(seed).replace(schedule=training.schedule.replace(**wanted))


def say_what_was_fitted(asked: Training, training: Training, data: Dataset) -> None:
    """Say where the recipe had to give way to the number of classes, or of their images."""
    if training.episodes != asked.episodes:
        sizes, episodes = data.class_sizes[data.classes_of("train")], training.episodes
        say(
            f"episodes of {episodes.n_way} classes x {episodes.k_shot + episodes.k_target} images: "
            f"{data.name} has {len(sizes)} training classes of {sizes.min()} images or more"
        )
    if training.validation != asked.validation:
        classes = len(data.classes_of("val"))
        say(
            f"validated with nss {training.validation.nss}: {data.name} has {classes} validation classes"
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
        if isinstance(event, Update):
            show(
                event.update,
                f"loss {event.loss:.3g}, {accuracy}{event.per_second:,.1f} {_unit(training)}/s",
            )

    return watch


def _lines(training: Training) -> Watcher:
    """Print a line for every epoch."""
    from cfsl.training.events import Saved

    def watch(event: Event) -> None:
        if isinstance(event, Saved):
            epoch = event.epoch
            say(
                f"epoch {epoch.epoch + 1}/{training.schedule.epochs}: loss {epoch.loss:.3f}, validation accuracy "
                f"{100 * epoch.accuracy:.2f} %, {epoch.seconds:.0f} s"
            )

    return watch


def _events(run: dict[str, Any], training: Training) -> Watcher:
    """Print a line of JSON for the start, for every so many updates, and for every epoch that is on disk."""
    from cfsl.training.events import Reports, Saved, Started, Update

    reports = Reports(training.schedule)

    def watch(event: Event) -> None:
        if isinstance(event, Started):
            print_event({"event": "start", **run, "resumed_at": event.update})
        elif isinstance(event, Saved):
            print_event({"event": "epoch", **vars(event.epoch), "update": event.update})
        elif isinstance(event, Update):
            report = reports.add(event)
            if report is not None:
                line = {
                    "event": "update",
                    "update": report.update,
                    "loss": report.loss,
                    "rate": report.rate,
                }
                print_event(line | {f"{_unit(training)}_per_second": report.per_second})

    return watch
