"""What was found out about a card from the answers beside it, in plain values: the page itself reads no answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64

Status = Literal["ok", "in part", "unchecked", "refused", "not checked"]


@dataclass(frozen=True)
class Evidence:
    """What the answers of one card say."""

    status: Status = "not checked"
    """As `cfsl verify` has it; "not checked" if nobody asked."""
    reasons: tuple[str, ...] = ()
    accuracies: Float64[np.ndarray, " tasks"] | None = None
    """Of every task, by the answers that the card is quoted by; None where there are none."""
    matrix: Float64[np.ndarray, "sets groups"] | None = None
    """Accuracy on each class group after each support set; NaN before it was shown. None where it was not asked."""


NOTHING = Evidence()
