"""The folder of a bench: finished and failed steps, and the locks of steps that are being done.

cards/<run>.json, .answers.npz      results; a card is written last, whole or not at all
manifests/<fingerprint>.json.gz     the tasks, by image names: what cards are checked against
training/<train>/                   training runs, which go on where they were stopped
pieces/<run>/<first task>.npz       partial results: finished tasks of a cell without a card yet
failed/<step>.json                  the error and the traceback of a step that failed
aside/                              damaged files, kept for you to look at
locks/                              empty lock files, which may be deleted when no bench runs
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cfsl.cards.card import read_card
from cfsl.cards.consistency import run_hash
from cfsl.cards.schema import Card
from cfsl.engine.partial_results import read_partial_result
from cfsl.engine.steps import CardStep, PartialResultStep, Step, TrainStep
from cfsl.errors import CardError, CheckpointError, SpecError
from cfsl.files import remove_abandoned_parts, written_whole
from cfsl.runs.run_spec import RunSpec, TrainSpec, built
from cfsl.training.run_folder import is_whole_and_finished


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _hash_of_today(card: Card) -> str | None:
    """Return the run hash a card would have today: fields added since then take their defaults."""
    if card.run is None:
        return None
    run = card.run.content()
    if run_hash(run) != card.run_hash:
        return None
    try:
        return RunSpec(**run).hash
    except SpecError:
        return None


class BenchFolder:
    """A folder of results that several benches may fill at once."""

    def __init__(self, folder: Path) -> None:
        """Take a folder, which need not be there yet."""
        self.path = folder

    def remove_abandoned_parts(self) -> None:
        """Remove the part files of processes that were killed while they wrote to this folder."""
        folders = [self.path / name for name in ("cards", "manifests", "failed")]
        for folder in [*folders, *self.path.glob("pieces/*")]:
            remove_abandoned_parts(folder)

    def card(self, run: RunSpec) -> Path:
        """Return where the card of a run is, or will be.

        A card of an earlier version, whose run has fewer fields, has another name.
        """
        path = self.path / "cards" / f"{run.name}.json"
        return path if path.exists() else self._earlier_card(run) or path

    def _earlier_card(self, run: RunSpec) -> Path | None:
        for path in sorted((self.path / "cards").glob(f"{run.unhashed_name}-*.json")):
            with contextlib.suppress(CardError):
                if _hash_of_today(read_card(path)) == run.hash:
                    return path
        return None

    def training(self, train: TrainSpec) -> Path:
        """Return the folder of a training run."""
        return self.path / "training" / train.name

    def partial_result(self, step: PartialResultStep) -> Path:
        """Return where the partial result of a step's own cell is, or will be."""
        return self.partial_results(step.spec) / f"{step.start:06d}.npz"

    def partial_results(self, run: RunSpec) -> Path:
        """Return the folder of the partial results of a run."""
        return self.path / "pieces" / run.name

    def manifest(self, fingerprint: str) -> Path:
        """Return where a task manifest is, or will be."""
        return self.path / "manifests" / f"{fingerprint}.json.gz"

    def is_done(self, step: Step) -> bool:
        """Tell whether a step is done; raise if its files are damaged."""
        match step:
            case TrainStep(spec=train):
                folder, learner = self.training(train), built(train.learner)
                return is_whole_and_finished(
                    folder, train.training, learner, train.data.fingerprint
                )

            case CardStep(spec=run):
                return self._has_card(run)

            case PartialResultStep(spec=run):
                return self._has_card(run) or self._has_partial_result(step)

    def _has_card(self, run: RunSpec) -> bool:
        path = self.card(run)
        if not path.exists():
            return False

        card = read_card(path)
        if _hash_of_today(card) != run.hash:
            raise CardError(f"{path} is the card of another run ({str(card.run_hash)[:12]})")

        answers = card.answers
        if answers is None or _sha256(path.with_name(answers.file)) != answers.sha256:
            raise CardError(f"{path} has lost its answers, or they are those of another")
        return True

    def _has_partial_result(self, step: PartialResultStep) -> bool:
        path = self.partial_result(step)
        if not path.exists():
            return False
        read_partial_result(path)
        return True

    def checked(self, step: Step, *, look_only: bool = False) -> tuple[bool, str | None]:
        """Tell whether a step is done, and describe its damaged file, if there is one.

        A damaged file is set aside, so that the step is done again; unless you `look_only`.
        """
        try:
            return self.is_done(step), None
        except (CardError, CheckpointError) as error:
            if look_only:
                return False, f"{error}; it will be set aside and done again"

            where = self._set_aside(self._result_of(step))
            return False, f"{error}; it was moved to {where} and is done again"

    def _result_of(self, step: Step) -> Path:
        match step:
            case TrainStep(spec=train):
                return self.training(train)
            case CardStep(spec=run):
                return self.card(run)
            case PartialResultStep(spec=run):
                partial_result = self.partial_result(step)
                return partial_result if partial_result.exists() else self.card(run)

    def _set_aside(self, path: Path) -> Path:
        place = self.path / "aside" / f"{time.time_ns()}-{path.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(path, place))

    @contextlib.contextmanager
    def locked(self, step: Step) -> Iterator[bool]:
        """Give True to one process at a time; a process that dies gives its lock back."""
        path = self.path / "locks" / f"{step.name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)

        try:
            lock.acquire(blocking=False)
        except Timeout:
            yield False
            return

        try:
            yield True
        finally:
            lock.release()

    def failure(self, step: Step) -> dict[str, Any] | None:
        """Return what was written about a step that failed."""
        unknown = {"error": "it is not known any more why it failed"}
        try:
            failure: dict[str, Any] = json.loads(self._failure(step).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return unknown

        return failure if isinstance(failure, dict) else unknown

    def write_failure(self, step: Step, error: str, trace: str) -> Path:
        """Write down what went wrong, if the disk lets us."""
        path = self._failure(step)
        content = {"step": step.name, "error": error, "trace": trace}

        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as part:
                part.write_text(json.dumps(content, indent=1) + "\n")

        return path

    def forget_failure(self, step: Step) -> None:
        """Let a step be tried again."""
        self._failure(step).unlink(missing_ok=True)

    def _failure(self, step: Step) -> Path:
        return self.path / "failed" / f"{step.name}.json"
