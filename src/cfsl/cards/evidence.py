"""What the answers beside a card say, in plain values, so that a report reads no answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Integer

Status = Literal["ok", "in part", "unchecked", "refused", "not checked"]


@dataclass(frozen=True)
class FirstAnswers:
    """The answers to the first tasks of a card: examples are chosen from them."""

    predicted: Integer[np.ndarray, "tasks targets"]
    labels: Integer[np.ndarray, "tasks targets"]


@dataclass(frozen=True)
class Evidence:
    """What the answers of one card say."""

    status: Status = "not checked"
    """As `cfsl verify` has it; "not checked" if nobody asked."""
    reasons: tuple[str, ...] = ()
    accuracies: Float64[np.ndarray, " tasks"] | None = None
    """Of every task, by the answers that the card is quoted by; None where there are none."""
    matrix: Float64[np.ndarray, "sets groups"] | None = None
    """Accuracy on each class group after each support set; NaN before the group was shown. None
    where the learner was not asked after every support set."""
    first_answers: FirstAnswers | None = None
    """By which the card is quoted; None where there are none."""


NOTHING = Evidence()
