"""From logits to answers: the predicted label of every target, its likelihood and its confidence.

An impossible label may have the logit -inf. A target whose largest logit is not finite (NaN, +inf,
or every label impossible) has no answer: a learner that diverged must not score by the label that
argmax happens to return.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64

from cfsl.harness.trace import Trace

NO_ANSWER = -1
"""The predicted label of a target without an answer; no target has this label."""
_LARGEST_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Answers:
    """Everything that metrics need: three numbers for each target instead of all logits."""

    predicted: Int64[np.ndarray, "tasks targets"]
    """The predicted label, or NO_ANSWER."""
    log_likelihood: Float64[np.ndarray, "tasks targets"]
    """The log of the probability of the right label; -inf if that was held to be impossible, or
    without an answer."""
    confidence: Float64[np.ndarray, "tasks targets"]
    """The largest probability; 1 without an answer."""
    labels: Int64[np.ndarray, "tasks targets"]
    groups: Int64[np.ndarray, "tasks targets"]
    state_bytes: Int64[np.ndarray, "tasks boundaries"]
    bookkeeping_bytes: Int64[np.ndarray, "tasks boundaries"]
    support_bytes: int
    progressive: Int32[np.ndarray, "tasks sets targets"] | None = None
    seen: Int64[np.ndarray, " sets"] | None = None


def first_tasks(answers: Answers, count: int) -> Answers:
    """Return the answers to the first tasks."""
    return replace(
        answers,
        predicted=answers.predicted[:count],
        log_likelihood=answers.log_likelihood[:count],
        confidence=answers.confidence[:count],
        labels=answers.labels[:count],
        groups=answers.groups[:count],
        state_bytes=answers.state_bytes[:count],
        bookkeeping_bytes=answers.bookkeeping_bytes[:count],
        progressive=None if answers.progressive is None else answers.progressive[:count],
    )


Scorable: TypeAlias = Trace | Answers
"""What can be scored: a run with all its logits, or the answers that were kept of it."""


def answers_of(run: Scorable) -> Answers:
    """Return what is enough to score a run; `Answers` are returned as they are."""
    if isinstance(run, Answers):
        return run

    # Task by task: a float64 copy of all logits of 600 long tasks would not fit in memory.
    tasks = [_likelihoods(*task) for task in zip(run.logits, run.labels, strict=True)]
    return Answers(
        predicted=predicted_labels(run.logits),
        log_likelihood=np.stack([own for own, _ in tasks]),
        confidence=np.stack([confidence for _, confidence in tasks]),
        labels=run.labels,
        groups=run.groups,
        state_bytes=run.state_bytes,
        bookkeeping_bytes=run.bookkeeping_bytes,
        support_bytes=run.support_bytes,
        progressive=run.progressive,
        seen=run.seen,
    )


def rounded(answers: Answers) -> Answers:
    """Return the answers in half precision: cards are measured from them, and they are stored.

    Log-likelihoods and confidences are rounded to float16, and finite ones stay finite. The
    confidence of a right answer is the exponential of its log-likelihood, so that it need not be
    stored. Rounding twice gives the same as rounding once.
    """
    exact = answers.log_likelihood
    finite = exact.clip(-_LARGEST_HALF, _LARGEST_HALF).astype(np.float16).astype(np.float64)
    log_likelihood = np.where(np.isfinite(exact), finite, -np.inf)

    confidence = answers.confidence.astype(np.float16).astype(np.float64)
    is_right = answers.predicted == answers.labels
    return replace(
        answers,
        log_likelihood=log_likelihood,
        confidence=np.where(is_right, np.exp(log_likelihood), confidence),
    )


def predictions(run: Scorable) -> Int64[np.ndarray, "tasks targets"]:
    """Return the predicted labels of a run."""
    return run.predicted if isinstance(run, Answers) else predicted_labels(run.logits)


def predicted_labels(
    logits: Float32[np.ndarray, "*targets labels"],
) -> Int64[np.ndarray, "*targets"]:
    """Return the label with the largest logit (of equals the first), or NO_ANSWER."""
    answered = np.isfinite(logits.max(axis=-1))
    return np.where(answered, logits.argmax(axis=-1), NO_ANSWER).astype(np.int64)


def log_probabilities(
    logits: Float32[np.ndarray, "targets labels"],
) -> Float64[np.ndarray, "targets labels"]:
    """Return the log softmax in float64; a target without an answer gets a row of NaN."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    # Subtracting NaN marks the whole row without a warning; inf - inf would warn.
    shifted = wide - np.where(np.isfinite(top), top, np.nan)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _likelihoods(
    logits: Float32[np.ndarray, "targets labels"], labels: Int64[np.ndarray, " targets"]
) -> tuple[Float64[np.ndarray, " targets"], Float64[np.ndarray, " targets"]]:
    """Return the log-likelihood of the right label and the largest probability of each target."""
    logs = log_probabilities(logits)
    own = np.take_along_axis(logs, labels[:, None], axis=1)[:, 0]
    largest = np.exp(logs.max(axis=1))
    return np.where(np.isnan(own), -np.inf, own), np.where(np.isnan(largest), 1.0, largest)
