"""Pictures for the report: a real task of every column, and what learners answered to some of its targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cfsl.cards.collect import CardFile
from cfsl.errors import CfslError
from cfsl.presets.board import Board
from cfsl.report.images import Answered, Asked, TaskPicture
from cfsl.spec import TaskSpec

if TYPE_CHECKING:
    from cfsl.cards.schema import CardTasks
    from cfsl.cli.gathering import Gatherer
    from cfsl.data.store import Dataset
    from cfsl.data.tasks import Task
    from cfsl.metrics.answers import Answers

_MOST_PICTURES = 12
"""A data set: more would make the page heavy and show nothing new."""
_MOST_TARGETS = 12
_MOST_TASKS = 100
"""That the one to show is chosen from."""
_MOST_SUPPORTS = 3
"""Of a label."""


@dataclass(frozen=True)
class Shown:
    """What can be shown, and why the rest cannot."""

    pictures: list[TaskPicture]
    answered: list[Answered]
    notes: list[str]


def shown(boards: Sequence[Board], gatherer: Gatherer) -> Shown:
    """Draw the tasks of all columns whose data set is installed, each once."""
    made = Shown([], [], [])
    for data, places in _by_data(boards).items():
        sample = next(iter(places.values()))[1]
        dataset, why_not = _installed(sample.card.tasks)
        if dataset is None:
            made.notes.append(f"No pictures of tasks of {data}: {why_not}.")
            continue
        chosen = list(places.items())[:_MOST_PICTURES]
        if len(chosen) < len(places):
            made.notes.append(
                f"Of {data}, {len(chosen)} of {len(places)} kinds of tasks are drawn."
            )
        for (column, spec), (board, found) in chosen:
            made.pictures.append(_picture(_task(dataset, spec, found, 0), data, column))
            answers = _answered(dataset, spec, board, column, gatherer)
            made.answered.extend([answers] if answers else [])
    return made


def _by_data(boards: Iterable[Board]) -> dict[str, dict[tuple[str, TaskSpec], tuple[Board, CardFile]]]:
    """Return a card for every kind of tasks; of kinds that differ in the level of corruption, the highest."""
    kinds: dict[str, dict[str, tuple[str, TaskSpec, Board, CardFile]]] = {}
    for board in boards:
        for column in board.columns:
            found = next(cells[column][0] for cells in board.rows.values() if column in cells)
            spec = found.card.tasks.task_spec
            kind = spec.corruption.kind if spec.corruption else ""
            key = f"{board.profile} {spec.replace(corruption=None).hash} {kind}"
            kinds.setdefault(board.data, {})
            if key not in kinds[board.data] or _level(spec) > _level(kinds[board.data][key][1]):
                kinds[board.data][key] = column, spec, board, found
    return {
        data: {(column, spec): (board, found) for column, spec, board, found in of.values()}
        for data, of in kinds.items()
    }


def _level(spec: TaskSpec) -> float:
    return spec.corruption.fraction if spec.corruption else 0.0


def _installed(tasks: CardTasks) -> tuple[Dataset | None, str]:
    """Return the data set of a card if it is here, the very same; nothing is fetched or drawn for a picture."""
    from cfsl.data.catalog import load
    from cfsl.data.store import current_folder

    name = tasks.data
    try:
        if current_folder(name) is None:
            return None, "it is not installed here"
        if tasks.splits.lower().endswith(".json"):
            return None, "its split file is not known here"
        data = load(name, splits=tasks.splits)
    except CfslError as error:
        return None, str(error)
    if data.fingerprint != tasks.data_fingerprint:
        return None, "what is installed here is another version of it"
    return data, ""


def _task(data: Dataset, spec: TaskSpec, found: CardFile, place: int) -> Task:
    """Return one of the tasks of a card."""
    from cfsl.cards.manifests import tasks_of

    return tasks_of(found.card.tasks, data)[place]


def _picture(task: Task, data: str, column: str) -> TaskPicture:
    from cfsl.report.draw_task import describe_spec, draw_task
    from cfsl.report.images import picture_uri

    uri, width, height = picture_uri(draw_task(task, title=data))
    return TaskPicture(data, column, describe_spec(task.spec), uri, width, height)


def _answered(
    data: Dataset, spec: TaskSpec, board: Board, column: str, gatherer: Gatherer
) -> Answered | None:
    """Return what every learner of the column said to a few targets of the task that the best one found hardest."""
    from cfsl.report.draw_task import describe_spec

    known = list(_known(board, column, gatherer))
    if not known:
        return None
    right = [
        (answers.predicted == answers.labels)[:_MOST_TASKS].mean(axis=1) for _, _, answers in known
    ]
    place = int(right[int(np.argmax([each.mean() for each in right]))].argmin())
    task = _task(data, spec, known[0][1], place)
    labels, groups = task.target.labels.numpy(), task.target.groups.numpy()
    said = {
        name: answers.predicted[place]
        for name, _, answers in known
        if (answers.labels[place] == labels).all()
    }
    if not said:
        return None
    asked = _spread(labels, said)
    said = {name: answers[asked] for name, answers in said.items()}
    order = sorted(said, key=lambda name: -int((said[name] == labels[asked]).sum()))
    targets = _uris(task.target.images.numpy()[asked], task)
    return Answered(
        data=board.data,
        profile=board.profile,
        column=column,
        what=describe_spec(task.spec),
        task=task.number,
        targets=[
            Asked(uri, int(labels[n]), int(groups[n]))
            for uri, n in zip(targets, asked, strict=True)
        ],
        supports=_supports(
            task, {int(label) for each in (labels[asked], *said.values()) for label in each}
        ),
        said={name: said[name].tolist() for name in order},
    )


def _known(board: Board, column: str, gatherer: Gatherer) -> Iterator[tuple[str, CardFile, Answers]]:
    """Yield the answers of every learner, those of its first seed, as far as they are of the same tasks."""
    tasks = None
    for learner, cells in board.rows.items():
        for found in cells.get(column, ())[:1]:
            part = "" if found.card.ensemble is None else "ensemble"
            answers = gatherer.answers(Path(found.path), found.card).get(part)
            fingerprint = found.card.tasks.manifest_fingerprint
            if answers is not None and tasks in (None, fingerprint):
                tasks = fingerprint
                yield learner, found, answers


def _supports(task: Task, wanted: set[int]) -> dict[int, list[str]]:
    """Return the first support images of some labels."""
    chosen: dict[int, list[str]] = {}
    for support in task.support_sets:
        for uri, label in zip(
            _uris(support.images.numpy(), task), support.labels.tolist(), strict=True
        ):
            if label in wanted and len(chosen.setdefault(label, [])) < _MOST_SUPPORTS:
                chosen[label].append(uri)
    return chosen


def _uris(images: np.ndarray, task: Task) -> list[str]:
    from cfsl.report.draw_task import shown_bytes
    from cfsl.report.images import pixels_uri

    return [pixels_uri(pixels) for pixels in shown_bytes(images, task.recipe)]


def _spread(labels: np.ndarray, said: dict[str, np.ndarray]) -> list[int]:
    """Choose targets of different labels, those first that some get right and others wrong."""
    right = np.mean([answers == labels for answers in said.values()], axis=0)
    order = sorted(range(len(labels)), key=lambda place: abs(right[place] - 0.5))
    once: dict[int, int] = {}
    for place in order:
        once.setdefault(int(labels[place]), place)
    rest = [place for place in order if place not in once.values()]
    return sorted([*once.values(), *rest][:_MOST_TARGETS])
