"""Whether a learner that is sure is right as often as it says.

Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks" (ICML 2017), equation 3.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64

from cfsl.harness.trace import Trace
from cfsl.metrics.answers import log_probabilities, predicted_labels


def expected_calibration_error(trace: Trace, *, bins: int = 15) -> float:
    """Return the mean over all targets of all tasks of |accuracy - confidence| of the bin that a target is in.

    Confidence is the largest softmax probability; bin m of M equal ones holds confidences in ((m - 1) / M, m / M]. A
    target without an answer is wrong with confidence 1.
    """
    right = (predicted_labels(trace.logits) == trace.labels).ravel().astype(np.float64)
    confidence = np.concatenate([_confidences(task) for task in trace.logits])
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    return float(np.abs(np.bincount(bin_of, weights=right - confidence)).sum() / len(right))


def _confidences(logits: Float32[np.ndarray, "targets labels"]) -> Float64[np.ndarray, " targets"]:
    """Return the largest probability of every target of one task."""
    largest = np.exp(log_probabilities(logits).max(axis=1))
    return np.where(np.isnan(largest), 1.0, largest)
