"""What stands on a result card, and between which bounds. Cards may have more keys; metrics may not."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from cfsl.errors import SpecError
from cfsl.spec import TaskSpec


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
Several = Annotated[int, Field(ge=1, le=1_000_000)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Spec = Annotated[dict[str, Any], AfterValidator(_task_spec)]
FileName = Annotated[str, Field(pattern=r"^[^/\\\x00]+\.npz$")]
NOT_THERE: Any = None
"""The default of a key that may be left out, but is not null where it is there."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Summary(_Exact):
    mean: Any
    std: Amount | None
    ci95: Amount | None
    count: Several


class _FractionSummary(_Summary):
    mean: Fraction


class _DifferenceSummary(_Summary):
    mean: Difference


class _AmountSummary(_Summary):
    mean: AmountOrInfinity


class _Atm(_Exact):
    total: Amount
    representation: Amount
    bookkeeping: Amount
    curve: list[Amount]


class _Metrics(_Exact):
    accuracy: _FractionSummary
    cross_entropy: _AmountSummary
    calibration_error: Fraction
    diverged: Fraction
    atm: _Atm
    group_accuracy: list[Fraction]
    progressive_accuracy: list[Fraction] | None = None
    forgetting: _DifferenceSummary | None = None
    backward_transfer: _DifferenceSummary | None = None


class _Learner(_Part):
    name: str
    class_: str = Field(alias="class")
    settings: dict[str, Any] | str


class _Tasks(_Part):
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
    count: Several
    numbers: tuple[Whole, Whole, Several] | None = Field(None, strict=False)
    manifest_fingerprint: Sha256


class _Macs(_Part):
    adaptation: Whole
    prediction: Whole
    training_step: Whole | None = None


class _Ensemble(_Part):
    members: Several
    metrics: _Metrics
    macs: _Macs


class _Answers(_Exact):
    file: FileName
    sha256: Sha256
    bytes: Whole


class _Epoch(_Part):
    accuracy: Fraction | None = None


class _Schedule(_Part):
    epochs: Whole
    updates: Whole
    batch: Whole
    optimizer: str
    rate: Amount
    decay: str


class _Training(_Part):
    schedule: _Schedule
    seed: Whole
    validation: Spec | None = None


class _TrainedLearner(_Part):
    kind: str | None = None


class _TrainedOn(_Part):
    fingerprint: Sha256


class _Identity(_Part):
    learner: _TrainedLearner = NOT_THERE
    training: _Training = NOT_THERE
    data: _TrainedOn = NOT_THERE


class _Checkpoint(_Part):
    identity: _Identity = NOT_THERE
    history: list[_Epoch] = NOT_THERE
    step_macs: Whole | None = None


class _RunLearner(_Part):
    name: str
    changes: dict[str, Any]


class _RunData(_Part):
    name: str
    splits: str | None
    fingerprint: Sha256
    splits_hash: Sha256


class _RunTrain(_Part):
    learner: _RunLearner
    data: _RunData
    training: _Training


class _Run(_Part):
    profile: str
    learner: _RunLearner
    data: _RunData
    split: str
    tasks: Several
    task_seed: Whole
    seed: Whole
    train: _RunTrain | None = None
    members: Several = NOT_THERE
    progressive: bool = NOT_THERE


class _Environment(_Part):
    cfsl: str = NOT_THERE
    torch: str = NOT_THERE
    python: str = NOT_THERE
    processor: str = NOT_THERE
    device: str = NOT_THERE


class _Circumstances(_Part):
    seconds: Amount | None = None
    ensemble_seconds: Amount | None = None
    training_seconds: list[Amount | None] = NOT_THERE
    environment: _Environment = NOT_THERE


class _Card(_Part):
    format: Literal[2]
    learner: _Learner
    transductive: bool
    breaks_law: bool
    isolation: Literal["none", "process"]
    checkpoint: _Checkpoint | None
    tasks: _Tasks
    metrics: _Metrics
    macs: _Macs
    peak_memory: Whole | None = None
    ensemble: _Ensemble = NOT_THERE
    circumstances: _Circumstances
    answers: _Answers | None
    run: _Run | None
    run_hash: Sha256 | None = None
    history: list[_Epoch] | None = None


def schema_problems(card: Mapping[str, Any]) -> list[str]:
    """Say what is missing on a card, is of the wrong kind, or is a number that cannot be; each by its place."""
    try:
        _Card(**card)
    except ValidationError as error:
        return [
            _sentence(problem["loc"], problem["msg"], problem["input"])
            for problem in error.errors()
        ]
    return []


def _sentence(place: tuple[int | str, ...], message: str, value: Any) -> str:
    where = ".".join(str(part) for part in place)
    if message == "Field required":
        return f"{where} is missing"
    told = (
        message.removeprefix("Value error, ")
        .removeprefix("Input ")
        .partition(" or instance of ")[0]
    )
    return f"{where} is {reprlib.repr(value)}: {told[0].lower()}{told[1:]}"
