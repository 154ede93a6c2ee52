"""The command that makes a card again, as far as the card tells it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cfsl.presets.board import OWN, places_of
from cfsl.presets.profiles import PROFILES
from cfsl.presets.suites import SUITES, Place
from cfsl.spec import TaskSpec

_USUAL_PRECISION = "float32"
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


def remake(card: Mapping[str, Any]) -> Remake:
    """Return the command that makes this card again."""
    if card.get("command"):
        return Remake(str(card["command"]), "as the card has it")
    if isinstance(card.get("run"), Mapping) and card["run"].get("profile") != OWN:
        return _bench(card)
    return _eval(card)


def _bench(card: Mapping[str, Any]) -> Remake:
    run = card["run"]
    data, learner, profile = run["data"], run["learner"], run["profile"]
    found = [
        place
        for place in places_of(card["tasks"])
        if run["split"] == SUITES[place[0]].fixed.get("split", "test") and run["task_seed"] == 0
    ]
    if not found or profile not in PROFILES:
        return Remake("", "it is no cell of a suite; its full spec is under 'run' on the card")
    suite, column = min(found, key=lambda place: data["name"] not in SUITES[place[0]].data)
    options = [
        "--profile",
        profile,
        "--data",
        data["name"],
        "--learners",
        learner["name"],
        "--columns",
        column,
    ]
    options += ["--splits", data["splits"]] if data["splits"] else []
    options += ["--seeds", str(run["seed"] + 1)] if run["seed"] else []
    usual = SUITES[suite].fixed.get("tasks", PROFILES[profile].tasks)
    options += ["--tasks", str(run["tasks"])] if run["tasks"] != usual else []
    options += _precision(run)
    settings = ""
    if learner["changes"] != _usual_changes(suite, column, card):
        settings = json.dumps({"learner": learner["name"], "changes": learner["changes"]})
        options += ["--settings", "settings.json"]
    note = f"the same run if the new card has run hash {str(card.get('run_hash'))[:12]}"
    version = _version(card)
    note += f"; it was made by cfsl {version}" if version else ""
    return Remake(_line("cfsl", "bench", suite, *options), note, settings)


def _precision(run: Mapping[str, Any]) -> list[str]:
    """Return the option that a training in another precision than the usual one needs."""
    schedule = ((run.get("train") or {}).get("training") or {}).get("schedule") or {}
    precision = schedule.get("precision", _USUAL_PRECISION)
    return [] if precision == _USUAL_PRECISION else ["--precision", str(precision)]


def _usual_changes(suite: str, column: str, card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters that the suite gives the learner unasked."""
    run = card["run"]
    learner, data = run["learner"]["name"], run["data"]["name"]
    place = Place(learner, data, column, SUITES[suite].columns(data)[column])
    if run["profile"] == "paper":  # those of paper 2 hold networks, for which torch would be needed
        return {}
    return dict(PROFILES[run["profile"]].changes.get(learner, {})) | SUITES[suite].changes(place)


def _eval(card: Mapping[str, Any]) -> Remake:
    tasks, metrics = card["tasks"], card["metrics"]
    numbers = tasks.get("numbers") or (0, tasks["count"], 1)
    if list(numbers) != [0, tasks["count"], 1]:
        return Remake("", "its tasks are numbered in a way that 'cfsl eval' has no option for")
    words = ["--data", tasks["data"], "--splits", tasks["splits"], "--split", tasks["split"]]
    words += _spec_options(TaskSpec(**tasks["spec"]))
    words += ["--seed", str(tasks["seed"])] if tasks["seed"] else []
    words += ["--sampler", tasks["sampler"]] if tasks["sampler"] != "cfsl-1" else []
    words += ["--tasks", str(tasks["count"])]
    words += ["--progressive"] if "progressive_accuracy" in metrics else []
    words += ["--isolate", "process"] if card.get("isolation") == "process" else []
    notes = ["settings as below, by --set, where they are not the learner's usual ones"]
    if tasks["splits"] not in _SPLITS_THAT_COME_WITH_DATA:
        notes.append("--splits takes the path of the split file, which the card has the name of")
    if card.get("checkpoint"):
        words += ["--checkpoint", "RUN"]
        notes.append("RUN is the folder of the training run below, which the card does not name")
    if card.get("ensemble"):
        words += ["--ensemble", str(card["ensemble"]["members"])]
        words += ["--average", str(card["ensemble"].get("average", "logits"))]
    version = _version(card)
    notes += [f"it was made by cfsl {version}"] if version else []
    return Remake(_line("cfsl", "eval", card["learner"]["name"], *words), "; ".join(notes))


def _spec_options(spec: TaskSpec) -> list[str]:
    """Say in options what the spec is, nothing left to defaults."""
    kind = spec.task_type.removesuffix("-overwrite")
    options: list[object] = [
        "--type",
        kind,
        "--nss",
        spec.nss,
        "--n-way",
        spec.n_way,
        "--k-shot",
        spec.k_shot,
    ]
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


def _version(card: Mapping[str, Any]) -> str:
    return str(card.get("circumstances", {}).get("environment", {}).get("cfsl", ""))


def _line(*words: str) -> str:
    return shlex.join(words)
