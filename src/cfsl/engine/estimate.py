"""How long steps take: the measured seconds of an image times the number of images.

The times that come with the package were measured on one core of two shared ones with the networks
of paper 1 (benchmarks/step_times.py). A larger network is taken to be slower in proportion to its
multiply-accumulates. Steps that were run in the same folder correct the estimate.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cfsl.cards.card import read_card
from cfsl.engine.bench_folder import BenchFolder
from cfsl.engine.steps import PartialResultStep, Step, TrainStep
from cfsl.errors import CfslError
from cfsl.learners.description import described
from cfsl.learners.registry import find_learner
from cfsl.nets.convnet import ConvNet
from cfsl.runs.run_spec import LearnerSpec, RunSpec, TrainSpec
from cfsl.spec import TaskSpec
from cfsl.training.checkpoint import read_notes
from cfsl.training.run_folder import LAST
from cfsl.training.training_spec import Training

PLACE = Path(__file__).with_name("step_times.json")
_CARD = 5.0
"""Seconds to write a card: one task for the multiply-accumulates, one for the memory."""
_CHARACTERS, _PHOTOS = "28x28x1", "64x64x3"
_SHAPES = {_CHARACTERS: (1, 28), _PHOTOS: (3, 64)}
_MEASURED_ON = TaskSpec.type_b(3)
_TUNED = ("init_tune", "pretrain_tune", "ewc_init", "ewc_pretrain", "pretrain_tune_replay")
_USUAL_NETS = {
    "protonet": (64, 64, 64, 64),
    "pretrain_tune": (48, 48, 48, 48),
    "pretrain_tune_replay": (48,) * 4,
}


def image_kind(data: str) -> str:
    """Return which kind of measured images a data set is most like."""
    return _PHOTOS if data.startswith("slim") else _CHARACTERS


def eval_images(task: TaskSpec) -> int:
    """Return the images of a task."""
    return task.support_images + task.target_images


def train_images(training: Training) -> int:
    """Return the images of an update."""
    return training.schedule.batch * (1 if training.iid else eval_images(training.episodes))


@dataclass(frozen=True)
class Times:
    """Estimates the seconds of steps."""

    source: str
    factors: Mapping[tuple[str, str], float]
    """How much longer this folder's steps took than expected, by learner and activity."""

    @classmethod
    def of(cls, bench_folder: BenchFolder) -> Times:
        """Take the package's times, corrected by the steps that were run in a folder."""
        found: dict[tuple[str, str], list[float]] = {}
        for key, ratio in [*_trained(bench_folder), *_evaluated(bench_folder)]:
            found.setdefault(key, []).append(ratio)

        factors = {key: statistics.median(ratios) for key, ratios in found.items()}
        own = ", corrected by what was run here" if factors else ""
        return cls(f"from times measured on one core of two shared ones{own}", factors)

    def seconds(self, step: Step) -> float:
        """Return how long a step takes on one core."""
        match step:
            case TrainStep(spec=train):
                return self._factor(train.learner, "train") * expected_training(train)

            case PartialResultStep(spec=run):
                tasks = run.members * len(step.numbers)
                factor = self._factor(run.learner, "eval")
                return factor * tasks * expected_task(run, len(step.singles))

            case _:
                return _CARD

    def _factor(self, learner: LearnerSpec, what: str) -> float:
        return self.factors.get((learner.name, what), 1.0)


def expected_training(train: TrainSpec) -> float:
    """Return the seconds of a training run with its validation, from the package's times."""
    training, schedule = train.training, train.training.schedule
    learner, data = train.learner, train.data.name

    an_image = _measured(learner, data, _training_activity(training))
    updates = an_image * schedule.total * train_images(training)

    a_task = eval_images(training.validation) * _measured(learner, data, "eval")
    return updates + schedule.epochs * training.validation_tasks * a_task


def _training_activity(training: Training) -> str:
    """Return which measured time applies: training on images, or on a table of their embeddings."""
    return "table" if training.embedding == "frozen" else "train"


def expected_task(run: RunSpec, target_sets: int = 1) -> float:
    """Return the seconds of a task with so many target sets, from the package's times."""
    own, usual = None, None
    if run.learner.name in _TUNED:
        own, usual = run.learner.settings, _usual_settings(run.learner.name)

    share = _passes(own, run.task, target_sets) / _passes(usual, _MEASURED_ON, 1)
    measured_task = _measured(run.learner, run.data.name, "eval") * eval_images(_MEASURED_ON)
    return measured_task * share


@functools.cache
def _usual_settings(name: str) -> dict[str, Any]:
    """Return the default hyper-parameters of a learner, with which it was measured."""
    settings: dict[str, Any] = described(find_learner(name))["settings"]
    return settings


def _passes(tuned: Mapping[str, Any] | None, task: TaskSpec, target_sets: int) -> int:
    """Return how many images go through a network in a task.

    Every image goes through it once; a learner that is tuned sees the support images three times
    for every step (forward, and twice as much work backward).
    """
    learned, targets = task.support_images, target_sets * task.target_images
    if tuned is None:
        return learned + targets

    innermost = tuned
    while "inner" in innermost:
        innermost = innermost["inner"]

    replayed = (task.nss - 1) * int(tuned.get("samples", 0))
    return 3 * int(innermost["steps"]) * (learned + replayed) + targets


def _measured(learner: LearnerSpec, data: str, what: str) -> float:
    """Return seconds an image. A learner that was never measured is as slow as the slowest.

    One that was measured on characters only takes as much longer on photographs as ProtoNets do.
    """
    times: dict[str, dict[str, dict[str, float]]] = json.loads(PLACE.read_text(encoding="utf-8"))
    kind, name = image_kind(data), learner.name
    own = times[kind].get(name, {}).get(what)

    if own is None:
        characters = times[_CHARACTERS]
        slowest = max(one.get(what, 0.0) for one in characters.values())
        known = characters.get(name, {}).get(what, slowest)
        own = known * times[kind]["protonet"]["train"] / characters["protonet"]["train"]

    return own * _times_larger(learner, kind)


def _times_larger(learner: LearnerSpec, kind: str) -> float:
    """Return how much more a learner's network computes than the one that was measured."""
    net = learner.changes.get("net") or learner.changes.get("inner.net")
    if not isinstance(net, dict) or learner.name not in _USUAL_NETS or net.get("kind") != "convnet":
        return 1.0

    usual = _macs(_USUAL_NETS[learner.name], kind)
    return _macs(tuple(ConvNet(**net).widths), kind) / usual


def _macs(widths: tuple[int, ...], kind: str) -> int:
    """Return the multiply-accumulates of 3 x 3 convolutions, each followed by pooling."""
    channels, size = _SHAPES[kind]
    total = 0
    for width in widths:
        total += size * size * 9 * channels * width
        channels, size = width, size // 2
    return total


Ratio = tuple[tuple[str, str], float]


def _trained(bench_folder: BenchFolder) -> list[Ratio]:
    """Return, for every training run in a folder, its seconds over the expected seconds."""
    ratios = []
    for path in sorted((bench_folder.path / "training").glob(f"*/{LAST}")):
        try:
            ratios.append(_ratio_of_training(read_notes(path), path.parent.name))
        except (CfslError, KeyError, ValueError, ZeroDivisionError):
            continue  # a damaged run is reported by the step that needs it
    return ratios


def _ratio_of_training(notes: Mapping[str, Any], name: str) -> Ratio:
    identity = notes["identity"]
    training = Training(**identity["training"])
    learner, data = name.split("-")[0], "slim" if "-slim" in name else name
    seconds = statistics.median(epoch["seconds"] for epoch in notes["history"])

    plain = LearnerSpec(
        name=learner, changes={"net": identity["learner"].get("net")}, settings=None
    )
    an_image = _measured(plain, data, _training_activity(training))
    expected = an_image * training.schedule.updates * train_images(training)
    return (learner, "train"), seconds / expected


def _evaluated(bench_folder: BenchFolder) -> list[Ratio]:
    """Return, for every card in a folder, the seconds of its tasks over the expected seconds."""
    ratios = []
    for path in sorted((bench_folder.path / "cards").glob("*.json")):
        try:
            card = read_card(path)
            if card.run is None or card.circumstances.seconds is None:
                continue

            run = RunSpec(**card.run.content())
            if run.task.corruption is not None:
                continue  # learning was shared with cells that are not known here

            seconds = card.circumstances.seconds / (run.tasks * run.members)
            ratios.append(((run.learner.name, "eval"), seconds / expected_task(run)))
        except (CfslError, KeyError, TypeError, ZeroDivisionError):
            continue
    return ratios
