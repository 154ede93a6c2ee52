"""The tasks of a card: read from a manifest beside it, or drawn again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from cfsl.cards.schema import Card, CardTasks
from cfsl.data.catalog import load
from cfsl.data.manifest import Manifest
from cfsl.data.store import Dataset, current_folder
from cfsl.data.tasks import Tasks
from cfsl.errors import (
    CardError,
    CfslError,
    DataError,
    SpecError,
    UnknownNameError,
    UnknownTasksError,
)

_MOST_IMAGES = 500_000_000
_NAMES = {"data": "data_fingerprint", "splits": "splits_hash", "sampler": "sampler"}
"""Names that the same tasks may have, and what each stands for.

A manifest has the names of the card that it was made for.
"""


class Manifests:
    """Finds the manifest of a card, and remembers it for the next card of the same tasks.

    The manifest is looked for as <fingerprint>.json.gz in the folder that is given, and in a folder
    `manifests` beside the card or one up. If there is none, the tasks are drawn again, if the data
    set is installed here. What is found for a card depends on the card and on these files alone,
    not on which cards were asked for before.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Look in this folder first."""
        self._folder = folder
        self._known: dict[str, Manifest] = {}
        """By file, or by the description that the tasks were drawn from."""

    def of(self, card: Card, path: Path) -> Manifest:
        """Return the manifest of a card at this path.

        Raise UnknownTasksError if it cannot be had here, CardError if the card is not of the tasks
        that it states. The manifest may have other names than the card where nobody can tell here
        which are right: see `names_on_trust`.
        """
        tasks = card.tasks
        fingerprint = tasks.manifest_fingerprint
        file = next((place for place in self._places(path, fingerprint) if place.is_file()), None)
        manifest = self._drawn(tasks) if file is None else self._read(file)

        if manifest.fingerprint != fingerprint:
            whose = "this data, split, spec, seed and count give" if file is None else f"{file} has"
            raise CardError(
                f"tasks.manifest_fingerprint is {fingerprint[:12]}, "
                f"{whose} {manifest.fingerprint[:12]}"
            )
        return self._reconciled(tasks, manifest) if _differences(tasks, manifest) else manifest

    def is_there(self, card: Card, path: Path) -> bool:
        """Tell whether the manifest of a card is a file, so that no tasks have to be drawn."""
        places = self._places(path, card.tasks.manifest_fingerprint)
        return any(place.is_file() for place in places)

    def _read(self, path: Path) -> Manifest:
        if str(path) not in self._known:
            self._known[str(path)] = Manifest.read(path)
        return self._known[str(path)]

    def _drawn(self, tasks: CardTasks) -> Manifest:
        description = json.dumps(tasks.content(), sort_keys=True)
        if description not in self._known:
            self._known[description] = _drawn_again(tasks)
        return self._known[description]

    def _reconciled(self, tasks: CardTasks, manifest: Manifest) -> Manifest:
        """Return the tasks of a card whose manifest names them otherwise, if both can be right."""
        different = _differences(tasks, manifest)
        try:
            drawn = self._drawn(tasks)
            is_right = drawn.fingerprint == manifest.fingerprint and not _differences(tasks, drawn)
        except UnknownTasksError:
            drawn, is_right = manifest, different.keys() <= _open_to_doubt(different)
        except CardError:
            is_right = False

        if not is_right:
            raise CardError("; ".join(different.values()))
        return drawn

    def _places(self, path: Path, fingerprint: str) -> Iterator[Path]:
        name, beside = f"{fingerprint}.json.gz", path.absolute().parent
        if self._folder is not None:
            yield self._folder / name
            yield self._folder / "manifests" / name
        yield beside / "manifests" / name
        yield beside.parent / "manifests" / name


def _drawn_again(tasks: CardTasks) -> Manifest:
    """Draw the tasks of a card, if its data set is installed here; nothing is fetched or made."""
    elsewhere = (
        f"put manifests/{tasks.manifest_fingerprint}.json.gz beside it "
        "('cfsl tasks export' writes such files)"
    )
    data = _same_data(tasks, elsewhere)

    try:
        images = tasks.task_spec.support_images + tasks.task_spec.target_images
        if len(tasks.task_numbers) * images > _MOST_IMAGES:
            raise UnknownTasksError(f"its tasks are too large to be drawn again; {elsewhere}")
        manifest = Manifest.of(tasks_of(tasks, data))
    except (SpecError, UnknownNameError) as error:
        raise CardError(f"its tasks cannot be drawn: {error}") from error

    is_same = manifest.fingerprint == tasks.manifest_fingerprint
    if not is_same and manifest.splits_hash != tasks.splits_hash:
        raise UnknownTasksError(
            f"its tasks are of another split '{tasks.splits}' than the one here; {elsewhere}"
        )
    return manifest


def tasks_of(stated: CardTasks, data: Dataset) -> Tasks:
    """Return the tasks of a card, drawn from its data set."""
    return Tasks(
        data,
        stated.task_spec,
        split=stated.split,
        seed=stated.seed,
        numbers=stated.task_numbers,
        sampler=stated.sampler,
    )


def installed_data(tasks: CardTasks) -> tuple[Dataset | None, str]:
    """Return the data set of a card if it is installed here, or why there is none.

    Nothing is fetched or made.
    """
    try:
        if current_folder(tasks.data) is None:
            return None, "it is not installed here"
        if tasks.splits.lower().endswith(".json"):
            return None, "its split file is not known here"
        data = load(tasks.data, splits=tasks.splits)
    except CfslError as error:
        return None, str(error)

    if data.fingerprint != tasks.data_fingerprint:
        return None, "what is installed here is another version of it"
    return data, ""


def _same_data(tasks: CardTasks, elsewhere: str) -> Dataset:
    """Return the data set of a card."""
    name = tasks.data
    try:
        if current_folder(name) is None:
            raise UnknownTasksError(f"its tasks are not known here; {elsewhere}, or install {name}")
        if tasks.splits.lower().endswith(".json"):
            raise UnknownTasksError(f"its tasks are of a split file; {elsewhere}")
        data = load(name, splits=tasks.splits)
    except (DataError, UnknownNameError) as error:
        raise UnknownTasksError(f"its data cannot be opened ({error}); {elsewhere}") from error

    if data.fingerprint != tasks.data_fingerprint:
        raise UnknownTasksError(
            f"its tasks are of another version of {name} than the one here; {elsewhere}"
        )
    return data


def names_on_trust(tasks: CardTasks, manifest: Manifest) -> Iterator[str]:
    """Say which names of a card are not those of the manifest that `Manifests.of` found for it."""
    for different in _differences(tasks, manifest).values():
        yield f"{different}: the tasks are the same, so this is taken on trust"


def _differences(tasks: CardTasks, manifest: Manifest) -> dict[str, str]:
    """Say, by name, where a card does not state the tasks of the manifest with its fingerprint."""
    names = ("data", "data_fingerprint", "splits", "splits_hash", "split", "seed", "sampler")
    pairs = {name: (getattr(tasks, name), getattr(manifest, name)) for name in names}
    pairs["spec_hash"] = tasks.spec_hash, manifest.spec.hash
    pairs["count"] = tasks.count, len(manifest.numbers)
    if tasks.numbers is not None:
        pairs["numbers"] = tasks.task_numbers, manifest.numbers

    return {
        name: f"tasks.{name} is {stated!r}, that of the manifest is {found!r}"
        for name, (stated, found) in pairs.items()
        if stated != found
    }


def _open_to_doubt(different: Mapping[str, str]) -> set[str]:
    """Return the fields in which a manifest of the same tasks may differ from the card."""
    return {fact for name in _NAMES.keys() & different.keys() for fact in (name, _NAMES[name])}
