"""Examples for the page: a real task of every column, and what learners answered to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cfsl.cards.collect import CardFile
from cfsl.cards.evidence import NOTHING, Evidence, FirstAnswers
from cfsl.report.board import Board
from cfsl.report.draw_task import describe_spec, draw_task, shown_bytes
from cfsl.report.images import AnsweredTask, TargetImage, TaskPicture, picture_uri, pixels_uri
from cfsl.spec import TaskSpec

if TYPE_CHECKING:
    from cfsl.data.store import Dataset
    from cfsl.data.tasks import Task

_MOST_PICTURES = 12
"""Of a data set: more would make the page heavy and show nothing new."""
_MOST_TARGETS = 12
_MOST_SUPPORTS = 3
"""Of a label."""


@dataclass(frozen=True)
class TaskExamples:
    """Pictures of tasks, and why others are missing."""

    pictures: list[TaskPicture]
    answered: list[AnsweredTask]
    notes: list[str]


class _Column(NamedTuple):
    """A column of a board, and one of its cards."""

    board: Board
    name: str
    card_file: CardFile

    @property
    def spec(self) -> TaskSpec:
        return self.card_file.card.tasks.task_spec

    @property
    def corruption_level(self) -> float:
        return self.spec.corruption.fraction if self.spec.corruption else 0.0


class _KnownAnswers(NamedTuple):
    """The answers of one learner."""

    learner: str
    card_file: CardFile
    answers: FirstAnswers


def task_examples(boards: Sequence[Board], evidence: Mapping[str, Evidence]) -> TaskExamples:
    """Draw the tasks of all columns whose data set is installed here, each once."""
    # Inside a function, since it needs torch: the rest of the report starts without it.
    from cfsl.cards.manifests import installed_data

    made = TaskExamples([], [], [])
    for data, columns in _columns_by_data(boards).items():
        dataset, why_not = installed_data(columns[0].card_file.card.tasks)
        if dataset is None:
            made.notes.append(f"No pictures of tasks of {data}: {why_not}.")
            continue

        chosen = columns[:_MOST_PICTURES]
        if len(chosen) < len(columns):
            made.notes.append(
                f"Of {data}, {len(chosen)} of {len(columns)} kinds of tasks are drawn."
            )
        for column in chosen:
            made.pictures.append(_picture(_task(dataset, column.card_file, 0), data, column.name))
            answered = _answered(dataset, column, evidence)
            made.answered.extend([answered] if answered else [])
    return made


def _columns_by_data(boards: Iterable[Board]) -> dict[str, list[_Column]]:
    """Return a column for every kind of tasks.

    Of tasks that differ in the level of corruption alone, it is the column with the highest.
    """
    kinds: dict[str, dict[str, _Column]] = {}
    for board in boards:
        of_data = kinds.setdefault(board.data, {})
        for name in board.columns:
            first = next(cells[name][0] for cells in board.rows.values() if name in cells)
            column = _Column(board, name, first)
            corruption = column.spec.corruption.kind if column.spec.corruption else ""
            clean = column.spec.replace(corruption=None)
            kind = f"{board.profile} {clean.hash} {corruption}"
            if kind not in of_data or column.corruption_level > of_data[kind].corruption_level:
                of_data[kind] = column

    # The same tasks in several profiles are drawn once, from the last of them.
    once = {
        data: {(column.name, column.spec): column for column in of_data.values()}
        for data, of_data in kinds.items()
    }
    return {data: list(columns.values()) for data, columns in once.items()}


def _task(data: Dataset, found: CardFile, place: int) -> Task:
    """Return one of the tasks of a card."""
    from cfsl.cards.manifests import tasks_of

    return tasks_of(found.card.tasks, data)[place]


def _picture(task: Task, data: str, column: str) -> TaskPicture:
    uri, width, height = picture_uri(draw_task(task, title=data))
    return TaskPicture(data, column, describe_spec(task.spec), uri, width, height)


def _answered(
    data: Dataset, column: _Column, evidence: Mapping[str, Evidence]
) -> AnsweredTask | None:
    """Return what every learner of a column answered to a few targets of one task.

    It is the task that the best learner found hardest.
    """
    known = list(_known_answers(column, evidence))
    if not known:
        return None
    place = _hardest_task(known)
    task = _task(data, known[0].card_file, place)
    labels, groups = task.target.labels.numpy(), task.target.groups.numpy()
    predicted = {
        one.learner: one.answers.predicted[place]
        for one in known
        if (one.answers.labels[place] == labels).all()
    }
    if not predicted:
        return None

    targets = _instructive_targets(labels, predicted)
    predicted = {learner: answers[targets] for learner, answers in predicted.items()}
    right = {name: int((answers == labels[targets]).sum()) for name, answers in predicted.items()}
    best_first = sorted(predicted, key=lambda name: -right[name])
    images = _uris(task.target.images.numpy()[targets], task)
    mentioned = {int(label) for each in (labels[targets], *predicted.values()) for label in each}

    return AnsweredTask(
        data=column.board.data,
        profile=column.board.profile,
        column=column.name,
        what=describe_spec(task.spec),
        task=task.number,
        targets=[
            TargetImage(image, int(labels[target]), int(groups[target]))
            for image, target in zip(images, targets, strict=True)
        ],
        supports=_supports(task, mentioned),
        said={name: predicted[name].tolist() for name in best_first},
    )


def _known_answers(column: _Column, evidence: Mapping[str, Evidence]) -> Iterator[_KnownAnswers]:
    """Yield the answers of every learner, of its first seed, if they are to the same tasks."""
    tasks = None
    for learner, cells in column.board.rows.items():
        for found in cells.get(column.name, ())[:1]:
            answers = evidence.get(found.path, NOTHING).first_answers
            fingerprint = found.card.tasks.manifest_fingerprint
            if answers is not None and tasks in (None, fingerprint):
                tasks = fingerprint
                yield _KnownAnswers(learner, found, answers)


def _hardest_task(known: Sequence[_KnownAnswers]) -> int:
    """Return the place of the task in which the best learner is right least often."""
    right = [(one.answers.predicted == one.answers.labels).mean(axis=1) for one in known]
    best = max(right, key=lambda of_tasks: float(of_tasks.mean()))
    return int(best.argmin())


def _supports(task: Task, labels: set[int]) -> dict[int, list[str]]:
    """Return the first support images of some labels."""
    chosen: dict[int, list[str]] = {}
    for support in task.support_sets:
        images = _uris(support.images.numpy(), task)
        for uri, label in zip(images, support.labels.tolist(), strict=True):
            if label in labels and len(chosen.setdefault(label, [])) < _MOST_SUPPORTS:
                chosen[label].append(uri)
    return chosen


def _uris(images: np.ndarray, task: Task) -> list[str]:
    return [pixels_uri(pixels) for pixels in shown_bytes(images, task.recipe)]


def _instructive_targets(labels: np.ndarray, predicted: Mapping[str, np.ndarray]) -> list[int]:
    """Choose targets of different labels, those first that some get right and others wrong."""
    right = np.mean([answers == labels for answers in predicted.values()], axis=0)
    order = sorted(range(len(labels)), key=lambda place: abs(right[place] - 0.5))
    by_label: dict[int, int] = {}
    for place in order:
        by_label.setdefault(int(labels[place]), place)

    rest = [place for place in order if place not in by_label.values()]
    return sorted([*by_label.values(), *rest][:_MOST_TARGETS])
