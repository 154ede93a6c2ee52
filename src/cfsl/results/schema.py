"""What stands on a result card, and between which bounds. Cards may have more keys; metrics may not."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError


def _number(value: float) -> float:
    if math.isnan(value):
        raise ValueError("this is not a number")
    return value


Fraction = Annotated[float, Field(ge=0, le=1), AfterValidator(_number)]
Difference = Annotated[float, Field(ge=-1, le=1), AfterValidator(_number)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AmountOrInfinity = Annotated[float, Field(ge=0), AfterValidator(_number)]
Whole = Annotated[int, Field(ge=0)]
Several = Annotated[int, Field(ge=1, le=1_000_000)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^[^/\\\x00]+\.npz$")]


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
    spec: dict[str, Any]
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


class _Card(_Part):
    format: Literal[2]
    learner: _Learner
    transductive: bool
    breaks_law: bool
    isolation: Literal["none", "process"]
    checkpoint: dict[str, Any] | None
    tasks: _Tasks
    metrics: _Metrics
    macs: _Macs
    peak_memory: Whole | None = None
    ensemble: _Ensemble | None = None
    circumstances: dict[str, Any]
    answers: _Answers | None
    run: dict[str, Any] | None
    run_hash: Sha256 | None = None


def schema_problems(card: Mapping[str, Any]) -> list[str]:
    """Say what is missing on a card, is of the wrong kind, or is a number that cannot be; each by its place."""
    try:
        _Card(**card)
    except ValidationError as error:
        return [_sentence(problem["loc"], problem["msg"], problem["input"]) for problem in error.errors()]
    return []


def _sentence(place: tuple[int | str, ...], message: str, value: Any) -> str:
    where = ".".join(str(part) for part in place)
    if message == "Field required":
        return f"{where} is missing"
    told = message.removeprefix("Value error, ").removeprefix("Input ")
    return f"{where} is {reprlib.repr(value)}: {told[0].lower()}{told[1:]}"
