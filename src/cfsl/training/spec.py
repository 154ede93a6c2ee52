"""How a learner is trained, as frozen checked values."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from cfsl.spec import Count, FrozenSpec, TaskSpec

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Precision = Literal["float32", "bfloat16"]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Augmentation(FrozenSpec):
    """Small random changes of training images, each uniform up to the given size in both directions.

    `quarter_turns` gives every class of an episode a rotation of its own, and `reflections` lets it be mirrored, too:
    eight classes from one.
    """

    degrees: NotNegative = 0.0
    log_scale: NotNegative = 0.0
    shear: NotNegative = 0.0
    shift: NotNegative = 0.0
    """In pixels."""
    elastic: NotNegative = 0.0
    """Deviation of a smooth random field, as a fraction of half the image."""
    quarter_turns: bool = False
    reflections: bool = False
    crop: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """How much of the area is cut away at most; what is left may be a third wider or higher than it was."""
    mirror: bool = False
    """Whether every other image is seen in a mirror."""
    colour: NotNegative = 0.0
    """How much brightness, contrast and saturation change, as a fraction."""
    blends: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How many updates see each image blended with another, in a share drawn evenly; for pretraining only."""
    side: Count | None = None
    """The height and width that images are brought to; None leaves them as they are."""


class Schedule(FrozenSpec):
    """How long, and how fast. The defaults are the published protocol."""

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
    weight_decay: NotNegative = 1e-4
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of the weights, exponentially: this much of the old average stays at each update; 0 is off."""
    precision: Precision = "float32"
    """What a net computes its maps in while it is trained; weights, and all that is made of its features, are float32.
    Processors with instructions for bfloat16 take about half the time."""
    patience: Count | None = None
    """Epochs without a better validation accuracy before training stops."""
    keep: Count = 5
    """How many of the best epochs to keep."""

    @model_serializer(mode="wrap")
    def _without_the_usual_precision(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """State a precision only if it is another one: runs keep the hash that they had before there was a choice."""
        stated: dict[str, Any] = dump(self)
        if self.precision == "float32":
            del stated["precision"]
        return stated

    @property
    def total(self) -> int:
        """All updates."""
        return self.epochs * self.updates


class Training(FrozenSpec):
    """One training run: what is learned from, how it is judged, and for how long."""

    episodes: TaskSpec
    """The tasks to train on; for pretraining only its k_shot, n_way ... are unused: see `iid`."""
    iid: bool = False
    """Pretrain a classifier over all training classes on shuffled images instead of tasks."""
    turns: bool = False
    """Let every image of a class be the support image in turn (one-shot episodes)."""
    companions: Annotated[int, Field(ge=0)] = 0
    """After the first epoch, let half of the classes of an episode be look-alikes of the others: each one of so many
    classes that are closest to its partner by the weights of the last epoch. 0 draws all classes at random."""
    validation: TaskSpec
    validation_tasks: Count = 600
    augmentation: Augmentation = Augmentation()
    schedule: Schedule = Schedule()
    seed: Annotated[int, Field(ge=0)] = 0

    @model_serializer(mode="wrap")
    def _without_no_companions(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """State companions only if there are some: runs keep the hash that they had before there were."""
        stated: dict[str, Any] = dump(self)
        if not self.companions:
            del stated["companions"]
        return stated

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
