"""Forgetting and transfer: the accuracy on a class group while other groups are shown.

What the literature calls tasks that follow each other are the class groups (in the instance test:
the support sets) within one task here, and a task here is a whole run there. a[s, g] is the
accuracy on the targets of group g after support set s.

Chaudhry, Dokania, Ajanthan and Torr, "Riemannian Walk for Incremental Learning" (ECCV 2018).
Lopez-Paz and Ranzato, "Gradient Episodic Memory for Continual Learning" (NeurIPS 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from cfsl.errors import SpecError
from cfsl.metrics.accuracy import PerTask
from cfsl.metrics.answers import Scorable, predictions

_PerSet = Float64[np.ndarray, " sets"]
_PerGroup = Float64[np.ndarray, " groups"]


@dataclass(frozen=True)
class ProgressiveAccuracy:
    """Accuracy on the targets of all groups shown so far, after each support set."""

    mean: _PerSet
    """Over tasks."""
    per_task: Float64[np.ndarray, "tasks sets"]


def progressive_accuracy(run: Scorable) -> ProgressiveAccuracy:
    """Return the accuracy on the targets of all groups shown so far; every target counts alike."""
    history = _history(run)
    right = (history.right * history.shown).sum(axis=2)
    per_task = right / (history.targets[:, None] * history.shown).sum(axis=2)
    return ProgressiveAccuracy(per_task.mean(axis=0), per_task)


def group_accuracies(run: Scorable) -> _PerGroup:
    """Return the final accuracy on the targets of each group, as the mean over tasks."""
    hits = (predictions(run) == run.labels)[:, None]
    return np.asarray(_accuracies(*_count(hits, run.groups))[:, 0].mean(axis=0))


def group_matrix(run: Scorable) -> Float64[np.ndarray, "sets groups"]:
    """Return a[s, g], as the mean over tasks; NaN for groups not yet shown."""
    return np.asarray(_history(run).accuracies.mean(axis=0))


def forgetting(run: Scorable) -> PerTask | None:
    """Return how much of earlier groups is lost at the end, in each task; None with a single group.

    Chaudhry et al. 2018: max over s before the last of a[s, g], minus a[last, g]; averaged over all
    groups g but the one still being shown at the end. Only support sets from the group's first one
    on are looked at. The maximum is taken in each task, so that with few targets a learner whose
    answers only waver has forgetting above 0, too.
    """
    history = _history(run)
    if not history.over.any():
        return None

    over = history.accuracies[:, :, history.over]
    return np.asarray((np.nanmax(over[:, :-1], axis=1) - over[:, -1]).mean(axis=1))


def backward_transfer(run: Scorable) -> PerTask | None:
    """Return how later groups changed the accuracy on earlier ones, in each task.

    Lopez-Paz and Ranzato 2017: a[last, g] - a[s(g), g], where s(g) is the last support set that
    showed group g; averaged over all groups g but the one still being shown at the end. Negative
    values are forgetting. None with a single group.
    """
    history = _history(run)
    if not history.over.any():
        return None

    groups = np.flatnonzero(history.over)
    then = history.accuracies[:, history.last_shown[groups], groups]
    return np.asarray((history.accuracies[:, -1, groups] - then).mean(axis=1))


class _History(NamedTuple):
    """How many targets of every group were right after every support set."""

    right: Float64[np.ndarray, "tasks sets groups"]
    """The number of targets of the group that got their label."""
    targets: Int64[np.ndarray, "tasks groups"]
    shown: Bool[np.ndarray, "sets groups"]
    """Whether the group has been shown."""
    last_shown: Int64[np.ndarray, " groups"]
    """The last support set that showed the group."""

    @property
    def accuracies(self) -> Float64[np.ndarray, "tasks sets groups"]:
        """a[s, g]; NaN before the group is shown."""
        return np.where(self.shown, _accuracies(self.right, self.targets), np.nan)

    @property
    def over(self) -> Bool[np.ndarray, " groups"]:
        """Whether other groups came after the group."""
        return np.asarray(self.last_shown < len(self.shown) - 1)


def _history(run: Scorable) -> _History:
    """Count the right answers, or say what the trace lacks."""
    if run.progressive is None or run.seen is None:
        raise SpecError(
            "this trace holds final answers only; "
            "run it again with predictions after every support set"
        )

    right, targets = _count(run.progressive == run.labels[:, None], run.groups)
    groups = np.arange(targets.shape[1])
    if run.seen[-1] < len(groups):
        raise SpecError(
            f"the targets are of {len(groups)} groups, but only {run.seen[-1]} were ever shown"
        )

    # Groups are numbered as they appear, and a group lasts until the next appears.
    first_shown = np.searchsorted(run.seen, groups, side="right")
    last_shown = np.searchsorted(run.seen, run.seen[first_shown], side="right") - 1
    return _History(right, targets, groups < run.seen[:, None], last_shown)


def _count(
    hits: Bool[np.ndarray, "tasks sets targets"], groups: Int64[np.ndarray, "tasks targets"]
) -> tuple[Float64[np.ndarray, "tasks sets groups"], Int64[np.ndarray, "tasks groups"]]:
    """Return how many targets of each group were right, and how many the group has."""
    count = int(groups.max()) + 1
    targets = np.stack([np.bincount(task, minlength=count) for task in groups])
    if not targets.all():
        task, group = np.argwhere(targets == 0)[0]
        raise SpecError(
            f"task {task} has no target of group {group}, so that nothing is known of that group"
        )

    rows = [
        [np.bincount(of, weights=hit, minlength=count) for hit in task]
        for task, of in zip(hits, groups, strict=True)
    ]
    return np.array(rows, np.float64), targets


def _accuracies(
    right: Float64[np.ndarray, "tasks sets groups"], targets: Int64[np.ndarray, "tasks groups"]
) -> Float64[np.ndarray, "tasks sets groups"]:
    """Return the part of each group's targets that was right."""
    return np.asarray(right / targets[:, None])
