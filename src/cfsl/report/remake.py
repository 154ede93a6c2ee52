"""The command that makes a card again, as far as the card states it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from cfsl.cards.schema import OWN, Card, CardRun, CardTasks
from cfsl.presets.profiles import PROFILES
from cfsl.presets.suites import SUITES, Place
from cfsl.report.board import places_of
from cfsl.spec import TaskSpec

_USUAL_PRECISION = "float32"
_USUAL_SAMPLER = "cfsl-1"
_SPLITS_THAT_COME_WITH_DATA = (
    "reference",
    "sorted",
    "official",
    "folders",
    "shuffled",
    "given",
    "like_omniglot",
)


@dataclass(frozen=True)
class Remake:
    """How to have the card again."""

    command: str
    """Empty if the card does not tell."""
    note: str
    """What the command leaves open, or why there is none."""
    settings: str = ""
    """What has to be in the file settings.json that the command names."""


def remake(card: Card) -> Remake:
    """Return the command that makes this card again."""
    if card.command:
        return Remake(card.command, "as the card has it")
    if card.run is not None and card.run.profile != OWN:
        return _bench(card, card.run)
    return _eval(card)


def _bench(card: Card, run: CardRun) -> Remake:
    """Return the command of `cfsl bench` that makes the card of a cell."""
    found = [
        (suite, column)
        for suite, column in places_of(card.tasks)
        if run.split == SUITES[suite].fixed.get("split", "test") and run.task_seed == 0
    ]
    if not found or run.profile not in PROFILES:
        return Remake("", "it is no cell of a suite; its full spec is under 'run' on the card")

    suite, column = min(found, key=lambda place: run.data.name not in SUITES[place[0]].data)
    options = ["--profile", run.profile, "--data", run.data.name]
    options += ["--learners", run.learner.name, "--columns", column]
    options += ["--splits", run.data.splits] if run.data.splits else []
    options += ["--seeds", str(run.seed + 1)] if run.seed else []
    usual = SUITES[suite].fixed.get("tasks", PROFILES[run.profile].tasks)
    options += ["--tasks", str(run.tasks)] if run.tasks != usual else []
    options += _precision(run)

    settings = ""
    if run.learner.changes != _usual_changes(suite, column, run):
        settings = json.dumps({"learner": run.learner.name, "changes": run.learner.changes})
        options += ["--settings", "settings.json"]

    note = f"the same run if the new card has run hash {str(card.run_hash)[:12]}"
    version = card.circumstances.environment.cfsl
    note += f"; it was made by cfsl {version}" if version else ""
    return Remake(shlex.join(["cfsl", "bench", suite, *options]), note, settings)


def _precision(run: CardRun) -> list[str]:
    """Return the option that a training in another precision than the usual one needs."""
    precision = _USUAL_PRECISION if run.train is None else run.train.training.schedule.precision
    return [] if precision == _USUAL_PRECISION else ["--precision", precision]


def _usual_changes(suite: str, column: str, run: CardRun) -> dict[str, Any]:
    """Return the hyper-parameters that the suite gives the learner unasked."""
    if run.profile == "paper":
        # Those of paper 2 hold networks, for which torch would be needed.
        return {}
    learner, data = run.learner.name, run.data.name
    place = Place(learner, data, column, SUITES[suite].columns(data)[column])
    return dict(PROFILES[run.profile].changes.get(learner, {})) | SUITES[suite].changes(place)


def _eval(card: Card) -> Remake:
    """Return the command of `cfsl eval` that makes a card."""
    tasks, ensemble = card.tasks, card.ensemble
    if tasks.task_numbers != range(tasks.count):
        return Remake("", "its tasks are numbered in a way that 'cfsl eval' has no option for")

    options = _task_options(tasks)
    options += ["--progressive"] if card.metrics.progressive_accuracy is not None else []
    # Cards of earlier versions say "process": a weaker form that is gone.
    options += ["--isolate", "sandbox"] if card.isolation in ("process", "sandbox") else []
    options += ["--checkpoint", "RUN"] if card.checkpoint is not None else []
    if ensemble is not None:
        options += ["--ensemble", str(ensemble.members), "--average", ensemble.average]

    notes = ["settings as below, by --set, where they are not the learner's usual ones"]
    if tasks.splits not in _SPLITS_THAT_COME_WITH_DATA:
        notes.append("--splits takes the path of the split file, which the card has the name of")
    if card.checkpoint is not None:
        notes.append("RUN is the folder of the training run below, which the card does not name")
    version = card.circumstances.environment.cfsl
    notes += [f"it was made by cfsl {version}"] if version else []
    command = shlex.join(["cfsl", "eval", card.learner.name, *options])
    return Remake(command, "; ".join(notes))


def _task_options(tasks: CardTasks) -> list[str]:
    """Return the options of `cfsl eval` that give these tasks."""
    options = ["--data", tasks.data, "--splits", tasks.splits, "--split", tasks.split]
    options += _spec_options(tasks.task_spec)
    options += ["--seed", str(tasks.seed)] if tasks.seed else []
    options += ["--sampler", tasks.sampler] if tasks.sampler != _USUAL_SAMPLER else []
    return [*options, "--tasks", str(tasks.count)]


def _spec_options(spec: TaskSpec) -> list[str]:
    """Return the options that give this spec, with nothing left to defaults."""
    options: list[object] = ["--type", spec.task_type.removesuffix("-overwrite")]
    options += ["--nss", spec.nss, "--n-way", spec.n_way, "--k-shot", spec.k_shot]
    if spec.kind != "instance":
        options += ["--cci", spec.cci, "--k-target", spec.k_target]
        options += ["--overwrite" if spec.overwrite else "--no-overwrite"]
    if spec.target_rule == "per_support_set":
        options.append("--per-support-set")

    if spec.corruption is not None and spec.corruption.kind == "noise":
        options += ["--noise", spec.corruption.fraction]
    elif spec.corruption is not None:
        options += ["--occlusion", spec.corruption.fraction, "--occluder", spec.corruption.shape]
    return [str(option) for option in options]
