"""A card and its parts: what stands where, and between which bounds.

A card is read through attributes, such as `card.metrics.accuracy.mean`. Cards may have more keys
than are listed here, which are kept as they are; metrics may not. docs/results.md explains every
key.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from cfsl.errors import CardError, SpecError
from cfsl.spec import TaskSpec

OWN = "own"
"""The profile of a card that no suite has made."""


class SchemaError(CardError):
    """Says what is missing on a card, is of the wrong kind, or is a number that cannot be."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        """Take every problem, each in one line that begins with its place."""
        super().__init__(problems[0])
        self.problems = problems


def _number(value: float) -> float:
    if math.isnan(value):
        raise ValueError("this is not a number")
    return value


def _task_spec(fields: dict[str, Any]) -> dict[str, Any]:
    try:
        TaskSpec(**fields)
    except (SpecError, TypeError) as error:
        raise ValueError(f"this is no spec of tasks; {error}") from error
    return fields


Fraction = Annotated[float, Field(ge=0, le=1), AfterValidator(_number)]
Difference = Annotated[float, Field(ge=-1, le=1), AfterValidator(_number)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AmountOrInfinity = Annotated[float, Field(ge=0), AfterValidator(_number)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Spec = Annotated[dict[str, Any], AfterValidator(_task_spec)]
FileName = Annotated[str, Field(pattern=r"^[^/\\\x00]+\.npz$")]

_T = TypeVar("_T")
if TYPE_CHECKING:
    MayBeLeftOut: TypeAlias = _T | None
else:

    class MayBeLeftOut:
        """A key that a card may lack, read as None, but that is not null where the card has it."""

        def __class_getitem__(cls, kind: Any) -> Any:
            """Let the schema see the kind alone: the default None is not held against it."""
            return kind


class _Part(BaseModel):
    """A part of a card; keys that are not listed are kept."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    def content(self) -> dict[str, Any]:
        """Return the keys and values that stand on the card, as plain values."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class _ExactPart(_Part):
    """A part of a card that has no other keys."""

    model_config = ConfigDict(extra="forbid")


class CardSummary(_ExactPart):
    """The mean of one metric over tasks, and how far it can be trusted."""

    mean: float
    std: Amount | None
    ci95: Amount | None
    count: Count


class _FractionSummary(CardSummary):
    mean: Fraction


class _DifferenceSummary(CardSummary):
    mean: Difference


class _AmountSummary(CardSummary):
    mean: AmountOrInfinity


class CardAtm(_ExactPart):
    """The Across-Task Memory of a learner."""

    total: Amount
    representation: Amount
    bookkeeping: Amount
    curve: list[Amount]


class CardMetrics(_ExactPart):
    """Everything that was measured from the answers."""

    accuracy: _FractionSummary
    cross_entropy: _AmountSummary
    calibration_error: Fraction
    diverged: Fraction
    atm: CardAtm
    group_accuracy: list[Fraction]
    progressive_accuracy: list[Fraction] | None = None
    forgetting: _DifferenceSummary | None = None
    backward_transfer: _DifferenceSummary | None = None


class CardLearner(_Part):
    """Which learner was evaluated, with which settings."""

    name: str
    class_: str = Field(alias="class")
    settings: dict[str, Any] | str


class CardTasks(_Part):
    """Which tasks the learner was evaluated on."""

    data: str
    data_fingerprint: Sha256
    splits: str
    splits_hash: Sha256
    split: str
    spec: Spec
    spec_hash: Sha256
    task_type: str
    seed: int
    sampler: str
    count: Count
    numbers: tuple[Whole, Whole, Count] | None = Field(None, strict=False)
    manifest_fingerprint: Sha256

    @cached_property
    def task_spec(self) -> TaskSpec:
        """The spec with the fields that it leaves to their defaults."""
        return TaskSpec(**self.spec)

    @property
    def task_numbers(self) -> range:
        """The numbers of the tasks; a card of format 1 has the first ones."""
        return range(*(self.numbers or (0, self.count, 1)))


class CardMacs(_Part):
    """Multiply-accumulates."""

    adaptation: Whole
    prediction: Whole
    training_step: Whole | None = None


class CardEnsemble(_Part):
    """What several epochs of a training run answer together."""

    members: Count
    average: str = "logits"
    epochs: MayBeLeftOut[list[Whole]] = None
    """Which epochs they are, best first."""
    metrics: CardMetrics
    macs: CardMacs


class CardAnswers(_ExactPart):
    """The file of answers beside a card."""

    file: FileName
    sha256: Sha256
    bytes: Whole


class CardEpoch(_Part):
    """One epoch of a training run."""

    accuracy: Fraction | None = None


class CardSchedule(_Part):
    """How long a training run was, and how it took its steps."""

    epochs: Whole
    updates: Whole
    batch: Whole
    optimizer: str
    rate: Amount
    decay: str
    precision: str = "float32"


class CardTraining(_Part):
    """How weights were trained."""

    schedule: CardSchedule
    seed: Whole
    iid: bool = False
    validation: Spec | None = None
    validation_tasks: Whole | None = None


class CardTrainedLearner(_Part):
    """The learner that a training run trained."""

    kind: str | None = None


class CardTrainedOn(_Part):
    """The data set that a training run trained on."""

    fingerprint: Sha256


class CardIdentity(_Part):
    """What decides a training run."""

    learner: MayBeLeftOut[CardTrainedLearner] = None
    training: MayBeLeftOut[CardTraining] = None
    data: MayBeLeftOut[CardTrainedOn] = None


class CardCheckpoint(_Part):
    """What a training run wrote about itself."""

    identity: MayBeLeftOut[CardIdentity] = None
    history: MayBeLeftOut[list[CardEpoch]] = None
    step_macs: Whole | None = None


class CardRunLearner(_Part):
    """The learner of a run, and the settings that the run changes."""

    name: str
    changes: dict[str, Any]


class CardRunData(_Part):
    """The data set of a run."""

    name: str
    splits: str | None
    fingerprint: Sha256
    splits_hash: Sha256


class CardRunTrain(_Part):
    """The training run whose weights a run evaluates."""

    learner: CardRunLearner
    data: CardRunData
    training: CardTraining


class CardRunWeights(_Part):
    """The file of weights that a run evaluates and has not trained."""

    sha256: Sha256


class CardRun(_Part):
    """The run spec that a card was made from."""

    profile: str
    learner: CardRunLearner
    data: CardRunData
    split: str
    tasks: Count
    task_seed: Whole
    seed: Whole
    train: CardRunTrain | None = None
    weights: MayBeLeftOut[CardRunWeights] = None
    members: MayBeLeftOut[Count] = None
    progressive: MayBeLeftOut[bool] = None


class CardEnvironment(_Part):
    """The versions and the hardware that made a card."""

    cfsl: MayBeLeftOut[str] = None
    torch: MayBeLeftOut[str] = None
    python: MayBeLeftOut[str] = None
    processor: MayBeLeftOut[str] = None
    device: MayBeLeftOut[str] = None

    @property
    def versions(self) -> str:
        """The versions in words; an empty text where the card has none."""
        named = {"cfsl": self.cfsl, "torch": self.torch, "python": self.python}
        return ", ".join(f"{name} {version}" for name, version in named.items() if version)


class CardCircumstances(_Part):
    """What differs each time that a run is done."""

    seconds: Amount | None = None
    ensemble_seconds: Amount | None = None
    training_seconds: MayBeLeftOut[list[Amount | None]] = None
    environment: CardEnvironment = CardEnvironment()


class Card(_Part):
    """A result card: what was run, on which tasks, and what came out."""

    format: Literal[2] = 2
    learner: CardLearner
    transductive: bool
    breaks_law: bool
    isolation: Literal["none", "process", "sandbox"]
    checkpoint: CardCheckpoint | None
    tasks: CardTasks
    metrics: CardMetrics
    macs: CardMacs
    peak_memory: Whole | None = None
    ensemble: MayBeLeftOut[CardEnsemble] = None
    circumstances: CardCircumstances
    answers: CardAnswers | None = None
    run: CardRun | None = None
    run_hash: Sha256 | None = None
    history: list[CardEpoch] | None = None
    profile: str | None = None
    column: str | None = None
    """The name that somebody gave the tasks."""
    command: str | None = None
    """The command that makes the card again, if somebody noted it."""
    upgraded_from: int | None = None
    """The format of the file, if that is an older one."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Return the card of this content; raise SchemaError where it is not that of a card."""
        try:
            return cls.model_validate(dict(content))
        except ValidationError as error:
            problems = (
                _sentence(problem["loc"], problem["msg"], problem["input"])
                for problem in error.errors()
            )
            raise SchemaError(tuple(problems)) from error

    def replace(self, **changes: Any) -> Self:
        """Return the card with other plain values under some keys, checked again."""
        return type(self).of(self.content() | changes)

    @property
    def headline(self) -> CardMetrics:
        """The metrics that the card is quoted by: those of its ensemble, if it has one."""
        return self.metrics if self.ensemble is None else self.ensemble.metrics

    @property
    def training(self) -> CardTraining | None:
        """How the weights were trained; None if nothing was, or if the card does not say."""
        identity = None if self.checkpoint is None else self.checkpoint.identity
        return None if identity is None else identity.training

    @property
    def training_seed(self) -> int:
        """The seed of the training run, or 0."""
        if self.run is not None:
            return self.run.seed
        return 0 if self.training is None else self.training.seed

    @property
    def profile_name(self) -> str:
        """The profile that the card was made in."""
        return self.profile or OWN

    @property
    def marks(self) -> list[str]:
        """The marks that the card bears."""
        return [name for name in ("transductive", "breaks_law") if getattr(self, name)]


def _sentence(place: tuple[int | str, ...], message: str, value: Any) -> str:
    """Return one line on what is wrong, and where."""
    where = ".".join(str(part) for part in place)
    if message == "Field required":
        return f"{where} is missing"

    plain = message.removeprefix("Value error, ").removeprefix("Input ")
    told = plain.partition(" or instance of ")[0]
    return f"{where} is {reprlib.repr(value)}: {told[0].lower()}{told[1:]}"
