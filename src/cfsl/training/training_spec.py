"""How a learner is trained, as frozen checked values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from cfsl.learners.overrides import changed
from cfsl.learners.registry import find_learner
from cfsl.spec import Count, FrozenSpec, TaskSpec

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Precision = Literal["float32", "bfloat16"]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


FirstRates = Annotated[
    tuple[Annotated[tuple[str, Positive], Field(strict=False)], ...], Field(strict=False)
]
"""Pairs of a layer's name and its rate."""


def _without_defaults(stated: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec without those of `defaults` that have their default."""
    return {
        name: value
        for name, value in stated.items()
        if name not in defaults or value != defaults[name]
    }


class Augmentation(FrozenSpec):
    """Random changes of training images, each uniform up to the given size in both directions.

    `quarter_turns` gives every class of an episode a rotation of its own, and `reflections` lets it
    be mirrored, too: eight classes from one.
    """

    degrees: _NotNegative = 0.0
    log_scale: _NotNegative = 0.0
    shear: _NotNegative = 0.0
    shift: _NotNegative = 0.0
    """In pixels."""
    elastic: _NotNegative = 0.0
    """Deviation of a smooth random field, as a fraction of half the image."""
    quarter_turns: bool = False
    reflections: bool = False
    crop: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The largest part of the area that is cut away; the rest may be stretched by a third."""
    mirror: bool = False
    """Whether every other image is mirrored."""
    colour: _NotNegative = 0.0
    """How much brightness, contrast and saturation change, as a fraction."""
    blends: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The part of updates that see each image blended with another one, in a share that is drawn
    uniformly; for pretraining only."""
    side: Count | None = None
    """The height and width that images are resized to; None keeps those they have."""


MILD = Augmentation(degrees=8.0, log_scale=0.1, shear=0.1, shift=1.5, elastic=0.04)
"""For characters of 28 x 28 pixels."""
PHOTOGRAPHIC = Augmentation(crop=0.5, mirror=True, colour=0.4)
"""For photographs, which are neither rotated nor bent."""


class Schedule(FrozenSpec):
    """The length of training, its optimizer and its rates; by default the published protocol."""

    epochs: Count = 250
    updates: Count = 500
    """In an epoch."""
    batch: Count = 1
    """Tasks (or images, in pretraining) in an update."""
    optimizer: Literal["adam", "adamw", "sgd", "muon"] = "adam"
    rate: Positive = 1e-3
    decay: Literal["constant", "cosine"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0
    """Updates over which the rate grows to its full value."""
    weight_decay: _NotNegative = 1e-4
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The part of the moving average of the weights that stays at each update; 0: no average."""
    precision: Precision = "float32"
    """The type of a network's maps while it is trained. Weights, features and everything that is
    computed from features are float32. Processors with instructions for bfloat16 take about half
    the time."""
    vector_rate: Positive | None = None
    """With Muon, the rate of all weights that are no matrix of a network; None: a fiftieth of
    `rate`."""
    inner_rate: Positive | None = None
    """The rate of the learned rates of an inner loop; None: that of the vectors."""
    patience: Count | None = None
    """Training stops after so many epochs without a better validation accuracy."""
    keep: Count = 5
    """The number of best epochs whose weights are kept."""

    @model_serializer(mode="wrap")
    def _without_later_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out later fields at their defaults, so that earlier runs keep their hash."""
        later = {"precision": "float32", "vector_rate": None, "inner_rate": None}
        return _without_defaults(dump(self), later)

    @property
    def total(self) -> int:
        """The number of all updates."""
        return self.epochs * self.updates


class Training(FrozenSpec):
    """One training run: its tasks, its validation, its schedule and its augmentation."""

    episodes: TaskSpec
    """The tasks to train on; pretraining (`iid`) does not use them."""
    iid: bool = False
    """Pretrain a classifier of all training classes on shuffled images, not on tasks."""
    turns: bool = False
    """Let every image of a class be the support image in turn (one-shot episodes)."""
    companions: Annotated[int, Field(ge=0)] = 0
    """After the first epoch, draw half of the classes of an episode as look-alikes of the others:
    each is one of so many classes that are nearest to its partner, by the weights of the last
    epoch. 0 draws all classes at random."""
    validation: TaskSpec
    validation_tasks: Count = 600
    augmentation: Augmentation = Augmentation()
    schedule: Schedule = Schedule()
    start: Start | None = None
    """The training run whose weights this one starts from; None: its first weights are drawn."""
    embedding: Literal["learned", "frozen"] = "learned"
    """Whether the embedding below an inner loop is learned, too. A frozen embedding embeds every
    training image once (once in every position, with quarter turns or reflections)."""
    first_inner_rates: FirstRates = ()
    """The first values of the learned rates of an inner loop, by layer, unless `start` has learned
    them. A name stands for all layers whose names begin with it; other layers start from the
    learner's own `rate`."""
    zero_head: bool = False
    """Whether the head starts at zero, so that the inner loop first gives every label the same
    logit, unless `start` has a head."""
    seed: Annotated[int, Field(ge=0)] = 0

    @model_serializer(mode="wrap")
    def _without_later_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out later fields at their defaults, so that earlier runs keep their hash."""
        stated: dict[str, Any] = dump(self)
        if not self.first_inner_rates:
            del stated["first_inner_rates"]
        later = {"companions": 0, "start": None, "embedding": "learned", "zero_head": False}
        return _without_defaults(stated, later)

    def with_seed(self, seed: int) -> Training:
        """Return this training, and those that it starts from, with another seed."""
        start = self.start and self.start.replace(training=self.start.training.with_seed(seed))
        return self.replace(seed=seed, start=start)

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        if self.iid and self.start is not None:
            raise ValueError("pretraining (iid=True) has no start: its weights are drawn")
        if self.embedding == "frozen":
            self._require_fit_for_frozen_embedding()
        return self

    def _require_fit_for_frozen_embedding(self) -> None:
        if self.start is None:
            raise ValueError(
                'embedding="frozen" needs a start: an embedding that was drawn at random is not '
                "worth it"
            )

        positions = {
            "quarter_turns": self.augmentation.quarter_turns,
            "reflections": self.augmentation.reflections,
        }
        if self.augmentation != Augmentation(**positions):
            raise ValueError(
                'embedding="frozen" embeds every image once in every position: augmentation can '
                "have quarter_turns and reflections alone"
            )

        if self.schedule.precision != "float32":
            raise ValueError(
                'embedding="frozen" trains the inner loop alone, which needs precision="float32"'
            )

    @model_validator(mode="after")
    def _companions_need_turns(self) -> Self:
        if self.companions and not self.turns:
            raise ValueError(f"companions={self.companions} is for one-shot episodes (turns=True)")
        return self

    @model_validator(mode="after")
    def _blends_need_classes(self) -> Self:
        if self.augmentation.blends and not self.iid:
            raise ValueError(
                f"augmentation.blends={self.augmentation.blends} is for pretraining (iid=True): "
                "a blend has no place in a support set"
            )
        return self


class Start(FrozenSpec):
    """A stage of training whose weights the next stage starts from: another learner, and how it is
    trained."""

    learner: str
    """Its name, as in `find_learner`."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Its settings that differ from those of this name, by dotted names."""
    training: Training

    def built(self) -> Any:
        """Return the learner of this stage."""
        return changed(find_learner(self.learner), self.changes)


Training.model_rebuild()
