"""Whether a learner that is sure is right as often as it says.

Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks" (ICML 2017), equation 3.
"""

from __future__ import annotations

import numpy as np

from cfsl.metrics.answers import Scorable, answers_of


def expected_calibration_error(run: Scorable, *, bins: int = 15) -> float:
    """Return the mean over all targets of all tasks of |accuracy - confidence| of the bin that a target is in.

    Confidence is the largest softmax probability; bin m of M equal ones holds confidences in ((m - 1) / M, m / M]. A
    target without an answer is wrong with confidence 1.
    """
    answers = answers_of(run)
    right, confidence = (
        (answers.predicted == answers.labels).ravel().astype(np.float64),
        answers.confidence.ravel(),
    )
    bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    return float(np.abs(np.bincount(bin_of, weights=right - confidence)).sum() / len(right))
