"""What the report needs from answers and images, gathered here and handed on as plain values.

This is where torch comes in: `cfsl.report` itself has none.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cfsl.cards.collect import CardFile
from cfsl.cli.console import counting
from cfsl.errors import CfslError
from cfsl.report.evidence import Evidence

if TYPE_CHECKING:
    from cfsl.cards.manifests import Manifests
    from cfsl.cards.schema import Card
    from cfsl.metrics.answers import Answers
    from cfsl.report.page import SweepPicture

Stamp = tuple[int, int, int, int]


class Gatherer:
    """Reads answers, and remembers what it found as long as the files stay as they are."""

    def __init__(
        self, manifests: Path | None = None, *, verify: bool = True, draws: bool = True
    ) -> None:
        """Look for task manifests in this folder first; `verify` works out every number again, too.

        Without `draws`, tasks come from manifests alone, so that what is found does not depend on which data sets are
        installed here.
        """
        self._folder, self._verify, self._draws = manifests, verify, draws
        self._tasks: Manifests | None = None
        self._known: dict[Path, tuple[Stamp, Evidence]] = {}

    @property
    def tasks(self) -> Manifests:
        """The manifests of the cards."""
        from cfsl.cards.manifests import Manifests

        if self._tasks is None:
            self._tasks = Manifests(self._folder)
        return self._tasks

    def evidence(self, cards: Iterable[CardFile]) -> Iterator[tuple[str, Evidence]]:
        """Yield what the answers of every card say."""
        for found in cards:
            path = Path(found.path)
            stamp = _stamp(path)
            if path not in self._known or self._known[path][0] != stamp:
                self._known[path] = stamp, self._found_out(path, found.card)
            yield found.path, self._known[path][1]

    def _found_out(self, path: Path, card: Card) -> Evidence:
        from cfsl.cards.verify import verify_card

        verdict = verify_card(path, self.tasks) if self._verify else None
        if verdict is not None and verdict.status == "refused":
            return Evidence(verdict.status, verdict.reasons)
        answers = self.answers(path, card)
        known = Evidence(accuracies=_accuracies(card, answers), matrix=_matrix(answers))
        return (
            known
            if verdict is None
            else replace(known, status=verdict.status, reasons=verdict.reasons)
        )

    def all_evidence(self, cards: Collection[CardFile]) -> dict[str, Evidence]:
        """Return what the answers of all cards say, with progress."""
        gathered = {}
        with counting("reading answers", len(cards), "cards") as progress:
            for path, known in self.evidence(cards):
                gathered[path] = known
                progress(1)
        return gathered

    def answers(self, path: Path, card: Card) -> Mapping[str, Answers]:
        """Return the answers beside a card; nothing where there are none, or their tasks are not known."""
        from cfsl.cards.verify import stated_answers

        if card.answers is None or not (self._draws or self.tasks.is_there(card, path)):
            return {}
        try:
            return stated_answers(card, path, self.tasks)
        except CfslError:
            return {}


def _stamp(path: Path) -> Stamp:
    """Return what changes when a card or its answers change."""
    stamps = []
    for file in (path, path.with_name(f"{path.stem}.answers.npz")):
        try:
            state = file.stat()
            stamps += [state.st_mtime_ns, state.st_size]
        except OSError:
            stamps += [0, 0]
    return stamps[0], stamps[1], stamps[2], stamps[3]


def _accuracies(card: Card, answers: Mapping[str, Answers]) -> np.ndarray | None:
    """Return the accuracy on every task, by what the card is quoted by."""
    from cfsl.metrics.accuracy import task_accuracies

    part = "" if card.ensemble is None else "ensemble"
    return task_accuracies(answers[part]) if part in answers else None


def _matrix(answers: Mapping[str, Answers]) -> np.ndarray | None:
    from cfsl.metrics.forgetting import group_matrix

    if "" not in answers or answers[""].progressive is None:
        return None
    return group_matrix(answers[""])


def sweeps_below(folders: Sequence[Path]) -> list[SweepPicture]:
    """Return the pictures of sweeps that lie below folders, beside what they found."""
    from cfsl.report.images import file_uri
    from cfsl.report.page import SweepPicture

    found = []
    for picture in sorted(
        path for folder in folders if folder.is_dir() for path in folder.rglob("sweep.png")
    ):
        try:
            best = json.loads((picture.parent / "best.json").read_text(encoding="utf-8"))
            learner, changes = str(best["learner"]), best["changes"]
            uri = file_uri(picture.read_bytes())
        except (OSError, ValueError, KeyError, TypeError):
            continue
        chosen = (
            ", ".join(f"{name} = {value}" for name, value in changes.items())
            or "the usual settings"
        )
        alt = f"Validation accuracy of the trials of a sweep of {learner}; the best has {chosen}"
        found.append(SweepPicture(f"Sweep of {learner}", alt, str(picture.parent), uri))
    return found
