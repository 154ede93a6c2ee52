"""The learners by name. A learner is imported when it is asked for: listing all takes no time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cfsl.errors import LearnerError, lookup


@dataclass(frozen=True, eq=False)
class WeightSource:
    """Where the weights of a learner come from. Several learners may share one training run."""

    name: str
    """The word for it in `cfsl learners --json`."""
    what: str
    """The sentence about it in the documentation."""
    recipes: Mapping[str, str] = field(default_factory=dict)
    """The recipe in `cfsl.training.recipes` behind 'paper', 'short' and 'strong'; none for weights
    that are not trained."""
    trainer: str = ""
    """The learner that is trained for all learners of this source; empty: each is trained."""
    shared_fields: tuple[str, ...] = ()
    """The hyper-parameters that decide the weights. The trainer has those of the learner it serves;
    all others change the answers only."""

    @property
    def is_trained(self) -> bool:
        """Whether there is a training run behind the weights."""
        return bool(self.recipes)


NO_WEIGHTS = WeightSource("none", "nothing to train")
RANDOM_WEIGHTS = WeightSource("random", "random weights, never trained")
TRAINED_ON_TASKS = WeightSource(
    "tasks",
    "`cfsl train`, on one-shot tasks of any shape",
    recipes={"paper": "paper", "short": "short", "strong": "short"},
    trainer="protonet",
    shared_fields=("net", "metric", "norm"),
)
META_TRAINED = WeightSource(
    "meta",
    "`cfsl train`, on tasks of the very shape to be learned",
    recipes={"paper": "meta_paper", "short": "meta_short"},
)
PRETRAINED = WeightSource(
    "pretraining",
    "`cfsl train`, on shuffled images of the training classes",
    recipes={"paper": "pretrain_paper", "short": "pretrain_short", "strong": "pretrain_short"},
    trainer="pretrain_tune",
    shared_fields=("net", "norm"),
)
CHAMPION_TRAINING = WeightSource(
    "champion",
    "`cfsl train`, in a way of its own; those for characters come with the package",
    recipes={"paper": "champion", "short": "champion", "strong": "champion"},
    trainer="champion",
    shared_fields=(
        "net",
        "photo_net",
        "views",
        "closeness",
        "axes",
        "learns_means",
        "length_power",
    ),
)


@dataclass(frozen=True)
class LearnerEntry:
    """A learner that cfsl knows by name."""

    what: str
    place: str
    """module:function or module:class, called without arguments for the paper's settings."""
    weights: WeightSource
    cite: str
    own_recipes: Mapping[str, str] = field(default_factory=dict)
    """Recipes of its own, in the place of those of its weight source."""

    @property
    def recipes(self) -> Mapping[str, str]:
        """Its training recipes: 'paper', 'short', 'strong', as far as it has them."""
        return {**self.weights.recipes, **self.own_recipes}

    def build(self, **changes: Any) -> Any:
        """Return the learner, with some hyper-parameters changed."""
        learner = _imported(self.place)()
        return learner.replace(**changes) if changes else learner


LEARNERS: Mapping[str, LearnerEntry] = {
    "chance": LearnerEntry(
        "says nothing: the floor", "cfsl.learners.chance:Chance", NO_WEIGHTS, ""
    ),
    "pixel_nn": LearnerEntry(
        "nearest support image, on raw pixels", "cfsl.learners.pixel_nn:PixelNN", NO_WEIGHTS, ""
    ),
    "random_embedding": LearnerEntry(
        "ProtoNets with weights that were never trained",
        "cfsl.learners.protonet:ProtoNet",
        RANDOM_WEIGHTS,
        "snell2017",
    ),
    "protonet": LearnerEntry(
        "nearest class mean, embedded",
        "cfsl.learners.protonet:ProtoNet",
        TRAINED_ON_TASKS,
        "snell2017",
    ),
    "multiproto": LearnerEntry(
        "ProtoNets that keep a mean per class group",
        "cfsl.learners.multiproto:MultiProto",
        TRAINED_ON_TASKS,
        "snell2017",
    ),
    "protonet_replay": LearnerEntry(
        "ProtoNets that replay embedded images",
        "cfsl.learners.protonet_replay:ProtoNetReplay",
        TRAINED_ON_TASKS,
        "kowadlo2022",
    ),
    "joint": LearnerEntry(
        "ProtoNets that see all support sets at once: an upper bound that breaks the law",
        "cfsl.learners.joint:joint_protonet",
        TRAINED_ON_TASKS,
        "snell2017",
    ),
    "init_tune": LearnerEntry(
        "SGD from random weights", "cfsl.learners.tune:init_tune", RANDOM_WEIGHTS, "antoniou2020"
    ),
    "pretrain_tune": LearnerEntry(
        "SGD from pretrained weights",
        "cfsl.learners.tune:pretrain_tune",
        PRETRAINED,
        "antoniou2020",
    ),
    "ewc_init": LearnerEntry(
        "init_tune with elastic weight consolidation",
        "cfsl.learners.ewc:ewc_init",
        RANDOM_WEIGHTS,
        "kirkpatrick2017",
    ),
    "ewc_pretrain": LearnerEntry(
        "pretrain_tune with elastic weight consolidation",
        "cfsl.learners.ewc:ewc_pretrain",
        PRETRAINED,
        "kirkpatrick2017",
    ),
    "pretrain_tune_replay": LearnerEntry(
        "pretrain_tune that replays stored images",
        "cfsl.learners.replay:pretrain_tune_replay",
        PRETRAINED,
        "kowadlo2022",
    ),
    "maml_low": LearnerEntry(
        "MAML++ Low-End: a whole Conv-4 adapts by learned steps",
        "cfsl.learners.maml.maml_low:MamlLow",
        META_TRAINED,
        "antoniou2019",
        {"strong": "strong_maml_low"},
    ),
    "maml_high": LearnerEntry(
        "MAML++ High-End: a small net adapts on a fixed deep embedding",
        "cfsl.learners.maml.maml_high:MamlHigh",
        META_TRAINED,
        "antoniou2019sca",
        {"strong": "strong_maml_high"},
    ),
    "sca": LearnerEntry(
        "MAML++ High-End and a step on the targets by a learned loss",
        "cfsl.learners.maml.sca:Sca",
        META_TRAINED,
        "antoniou2019sca",
        {"strong": "strong_sca"},
    ),
    "anil": LearnerEntry(
        "a linear head adapts on a fixed embedding by learned steps",
        "cfsl.learners.maml.anil:Anil",
        META_TRAINED,
        "raghu2020",
    ),
    "proto_maml": LearnerEntry(
        "MAML++ whose head starts at prototypes",
        "cfsl.learners.maml.proto_maml:ProtoMaml",
        META_TRAINED,
        "triantafillou2020",
    ),
    "champion": LearnerEntry(
        "prototypes of a well trained net, and a memory of pixels: try it first",
        "cfsl.learners.champion.champion:Champion",
        CHAMPION_TRAINING,
        "snell2017",
    ),
}

STARTS: Mapping[str, str] = {"metric_start": "cfsl.learners.maml.metric_start:MetricStart"}
"""What other learners start their training from; no row of a table."""


def entry_of(name: str) -> LearnerEntry:
    """Return the entry of a learner. One of the user's own is trained on tasks if it can be."""
    if name in LEARNERS:
        return LEARNERS[name]

    # By name, like everything here: listing learners must not wait for torch.
    trained_on_tasks: Any = _imported("cfsl.learners.base:TrainedOnTasks")
    weights = TRAINED_ON_TASKS if isinstance(find_learner(name), trained_on_tasks) else NO_WEIGHTS
    return LearnerEntry("a learner of your own", STARTS.get(name, name), weights, "")


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
            f"'{place}' cannot be made: {type(error).__name__}: {error}. "
            f"It is called without arguments"
        ) from error
    missing = [
        name
        for name in ("begin", "observe", "predict")
        if not callable(getattr(learner, name, None))
    ]
    if missing:
        raise LearnerError(
            f"'{place}' is no learner: it has no {', no '.join(missing)}; "
            f"see docs/adding-a-learner.md"
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
