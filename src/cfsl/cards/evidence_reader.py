"""Reads the answers of cards, each once, and says in plain values what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from cfsl.cards.collect import CardFile
from cfsl.cards.evidence import Evidence, FirstAnswers
from cfsl.cards.manifests import Manifests
from cfsl.cards.schema import Card
from cfsl.cards.verify import check_card, stated_answers
from cfsl.errors import CfslError
from cfsl.metrics.accuracy import task_accuracies
from cfsl.metrics.answers import Answers
from cfsl.metrics.forgetting import group_matrix

_FIRST_TASKS = 100
"""How many tasks examples are chosen from."""
_FileTimes = tuple[int, ...]


class EvidenceReader:
    """Reads answers, and remembers what they say as long as the files stay as they are."""

    def __init__(
        self, manifests: Path | None = None, *, verify: bool = True, draws: bool = True
    ) -> None:
        """Look for task manifests in this folder first; `verify` checks every number, too.

        Without `draws`, tasks come from manifests alone, so that the evidence does not depend on
        which data sets are installed here.
        """
        self._manifests = Manifests(manifests)
        self._verify, self._draws = verify, draws
        self._known: dict[Path, tuple[_FileTimes, Evidence]] = {}

    def read_all(
        self, cards: Iterable[CardFile], progress: Callable[[int], None] | None = None
    ) -> dict[str, Evidence]:
        """Return the evidence of every card, by its path; `progress` is told of every card."""
        evidence = {}
        for found in cards:
            evidence[found.path] = self.read(found)
            if progress is not None:
                progress(1)
        return evidence

    def read(self, found: CardFile) -> Evidence:
        """Return what the answers of a card say."""
        path = Path(found.path)
        times = _file_times(path)
        if path not in self._known or self._known[path][0] != times:
            self._known[path] = times, self._evidence(path, found.card)
        return self._known[path][1]

    def _evidence(self, path: Path, card: Card) -> Evidence:
        if not self._verify:
            return _evidence_of(card, self._answers(path, card))

        check = check_card(path, self._manifests)
        verdict, found = check.verdict, _evidence_of(card, check.answers)
        is_refused = verdict.status == "refused"
        return Evidence(
            status=verdict.status,
            reasons=verdict.reasons,
            accuracies=None if is_refused else found.accuracies,
            matrix=None if is_refused else found.matrix,
            first_answers=found.first_answers,
        )

    def _answers(self, path: Path, card: Card) -> Mapping[str, Answers]:
        """Return the answers beside a card; nothing where they are missing or cannot be read."""
        if not (self._draws or self._manifests.is_there(card, path)):
            return {}
        try:
            return stated_answers(card, path, self._manifests)
        except CfslError:
            return {}


def _file_times(path: Path) -> _FileTimes:
    """Return values that change when a card or its answers change."""
    times = []
    for file in (path, path.with_name(f"{path.stem}.answers.npz")):
        try:
            state = file.stat()
            times += [state.st_mtime_ns, state.st_size]
        except OSError:
            times += [0, 0]
    return tuple(times)


def _evidence_of(card: Card, answers: Mapping[str, Answers]) -> Evidence:
    """Return what answers say, unverified."""
    learner = answers.get("")
    quoted = learner if card.ensemble is None else answers.get("ensemble")
    matrix = None
    if learner is not None and learner.progressive is not None:
        matrix = group_matrix(learner)
    return Evidence(
        accuracies=None if quoted is None else task_accuracies(quoted),
        matrix=matrix,
        first_answers=None if quoted is None else _first_answers(quoted),
    )


def _first_answers(answers: Answers) -> FirstAnswers:
    """Return the answers to the first tasks, in little memory."""
    return FirstAnswers(
        predicted=answers.predicted[:_FIRST_TASKS].astype(np.int32),
        labels=answers.labels[:_FIRST_TASKS].astype(np.int32),
    )
