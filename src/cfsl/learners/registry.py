"""The learners by name. Nothing is imported before it is asked for, so that listing them is quick."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cfsl.errors import LearnerError, lookup


@dataclass(frozen=True)
class LearnerEntry:
    """A learner that cfsl knows by name."""

    what: str
    place: str
    """module:function or module:class, called without arguments for the paper's settings."""
    training: Literal["none", "random", "tasks", "meta", "pretraining", "champion"]
    """Where its weights come from: it has none, they stay random, or they are learned: on one-shot tasks of any shape,
    on tasks of the very shape to be learned ("meta"), on shuffled images, or in a way of its own."""
    cite: str

    def build(self, **changes: Any) -> Any:
        """Return the learner, with some hyper-parameters changed."""
        learner = _imported(self.place)()
        return learner.replace(**changes) if changes else learner


LEARNERS: Mapping[str, LearnerEntry] = {
    "chance": LearnerEntry("says nothing: the floor", "cfsl.learners.chance:Chance", "none", ""),
    "pixel_nn": LearnerEntry(
        "nearest support image, on raw pixels", "cfsl.learners.pixel_nn:PixelNN", "none", ""
    ),
    "random_embedding": LearnerEntry(
        "ProtoNets with weights that were never trained",
        "cfsl.learners.protonet:ProtoNet",
        "random",
        "snell2017",
    ),
    "protonet": LearnerEntry(
        "nearest class mean, embedded", "cfsl.learners.protonet:ProtoNet", "tasks", "snell2017"
    ),
    "multiproto": LearnerEntry(
        "ProtoNets that keep a mean per class group",
        "cfsl.learners.multiproto:MultiProto",
        "tasks",
        "snell2017",
    ),
    "protonet_replay": LearnerEntry(
        "ProtoNets that replay embedded images",
        "cfsl.learners.protonet_replay:ProtoNetReplay",
        "tasks",
        "kowadlo2022",
    ),
    "joint": LearnerEntry(
        "ProtoNets that see all support sets at once: an upper bound that breaks the law",
        "cfsl.learners.joint:joint_protonet",
        "tasks",
        "snell2017",
    ),
    "init_tune": LearnerEntry(
        "SGD from random weights", "cfsl.learners.tune:init_tune", "random", "antoniou2020"
    ),
    "pretrain_tune": LearnerEntry(
        "SGD from pretrained weights",
        "cfsl.learners.tune:pretrain_tune",
        "pretraining",
        "antoniou2020",
    ),
    "ewc_init": LearnerEntry(
        "init_tune with elastic weight consolidation",
        "cfsl.learners.ewc:ewc_init",
        "random",
        "kirkpatrick2017",
    ),
    "ewc_pretrain": LearnerEntry(
        "pretrain_tune with elastic weight consolidation",
        "cfsl.learners.ewc:ewc_pretrain",
        "pretraining",
        "kirkpatrick2017",
    ),
    "pretrain_tune_replay": LearnerEntry(
        "pretrain_tune that replays stored images",
        "cfsl.learners.replay:pretrain_tune_replay",
        "pretraining",
        "kowadlo2022",
    ),
    "maml_low": LearnerEntry(
        "MAML++ Low-End: a whole Conv-4 adapts by learned steps",
        "cfsl.learners.maml.maml_low:MamlLow",
        "meta",
        "antoniou2019",
    ),
    "maml_high": LearnerEntry(
        "MAML++ High-End: a small net adapts on a fixed deep embedding",
        "cfsl.learners.maml.maml_high:MamlHigh",
        "meta",
        "antoniou2019sca",
    ),
    "sca": LearnerEntry(
        "MAML++ High-End and a step on the targets by a learned loss",
        "cfsl.learners.maml.sca:Sca",
        "meta",
        "antoniou2019sca",
    ),
    "anil": LearnerEntry(
        "a linear head adapts on a fixed embedding by learned steps",
        "cfsl.learners.maml.anil:Anil",
        "meta",
        "raghu2020",
    ),
    "proto_maml": LearnerEntry(
        "MAML++ whose head starts at prototypes",
        "cfsl.learners.maml.proto_maml:ProtoMaml",
        "meta",
        "triantafillou2020",
    ),
    "champion": LearnerEntry(
        "prototypes of a well trained net, and a memory of pixels: try it first",
        "cfsl.learners.champion.champion:Champion",
        "champion",
        "snell2017",
    ),
}

STARTS: Mapping[str, str] = {"metric_start": "cfsl.learners.maml.metric_start:MetricStart"}
"""What other learners start their training from; no row of a table."""


def find_learner(name: str) -> Any:
    """Return a learner by its name, or by the import path of your own: 'package.module:Class'."""
    if ":" in name:
        return _made(name)
    if name in STARTS:
        return _imported(STARTS[name])()
    return lookup(LEARNERS, name, "learner").build()


def _made(place: str) -> Any:
    """Make a learner of the user's own, whatever goes wrong in their code."""
    try:
        learner = _imported(place)()
    except LearnerError:
        raise
    except Exception as error:
        raise LearnerError(
            f"'{place}' cannot be made: {type(error).__name__}: {error}. It is called without arguments"
        ) from error
    missing = [
        name
        for name in ("begin", "observe", "predict")
        if not callable(getattr(learner, name, None))
    ]
    if missing:
        raise LearnerError(
            f"'{place}' is no learner: it has no {', no '.join(missing)}; see docs/adding-a-learner.md"
        )
    return learner


def _imported(place: str) -> Callable[[], Any]:
    module_name, _, attribute = place.partition(":")
    try:
        made: Callable[[], Any] = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # an own module may fail in any way
        raise LearnerError(
            f"'{place}' cannot be imported: {error}. Write it as package.module:Class"
        ) from error
    return made
