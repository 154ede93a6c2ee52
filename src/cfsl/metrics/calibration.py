"""Whether a learner is right as often as its confidence says.

Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks" (ICML 2017), equation 3.
"""

from __future__ import annotations

import numpy as np

from cfsl.metrics.answers import Scorable, answers_of


def expected_calibration_error(run: Scorable, *, bins: int = 15) -> float:
    """Return |accuracy - confidence| of the bin of a target, as the mean over all targets.

    Confidence is the largest softmax probability; bin m of M equal ones holds confidences in
    ((m - 1) / M, m / M]. A target without an answer is wrong with confidence 1.
    """
    answers = answers_of(run)
    right = (answers.predicted == answers.labels).ravel().astype(np.float64)
    confidence = answers.confidence.ravel()

    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    return float(np.abs(np.bincount(bin_of, weights=right - confidence)).sum() / len(right))
