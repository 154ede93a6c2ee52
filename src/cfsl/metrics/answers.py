"""What logits say: a label and its probabilities, or nothing.

A label that cannot be meant may have the logit -inf. A target whose largest logit is not finite (NaN, +inf, or every
label impossible) has no answer: a learner that diverged must not score by the label that argmax happens to fall on.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64, Int64

NO_ANSWER = -1
"""The predicted label of a target without an answer; no target bears it."""


def predicted_labels(logits: Float32[np.ndarray, "*targets labels"]) -> Int64[np.ndarray, "*targets"]:
    """Return the label with the largest logit (of equals the first), or NO_ANSWER."""
    answered = np.isfinite(logits.max(axis=-1))
    return np.where(answered, logits.argmax(axis=-1), NO_ANSWER).astype(np.int64)


def log_probabilities(logits: Float32[np.ndarray, "targets labels"]) -> Float64[np.ndarray, "targets labels"]:
    """Return the log softmax, worked out in float64; a target without an answer gets a row of NaN."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    # NaN goes through subtraction in silence and marks the whole row; inf - inf would warn.
    shifted = wide - np.where(np.isfinite(top), top, np.nan)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
