"""The tasks of a card: read from a manifest beside it, or drawn again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cfsl.data.catalog import load
from cfsl.data.manifest import Manifest
from cfsl.data.store import Dataset, current_folder
from cfsl.data.tasks import Tasks
from cfsl.errors import CardError, DataError, SpecError, UnknownNameError, UnknownTasksError
from cfsl.spec import TaskSpec

_MOST_IMAGES = 500_000_000


class Manifests:
    """Finds the manifest of a card, and remembers it for the next card of the same tasks.

    It is looked for as <fingerprint>.json.gz in a folder `manifests` beside the card or one up, or in the folder that
    is given. If there is none, the tasks are drawn again, if the data set is installed here.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Look in this folder first."""
        self._folder = folder
        self._known: dict[str, Manifest] = {}

    def of(self, card: Mapping[str, Any], path: Path) -> Manifest:
        """Return the manifest of a card (without `schema_problems`) at this path.

        Raise UnknownTasksError if it cannot be had here, CardError if the card is not of the tasks that it says.
        """
        fingerprint = card["tasks"]["manifest_fingerprint"]
        if fingerprint not in self._known:
            found = next((place for place in self._places(path, fingerprint) if place.is_file()), None)
            manifest = _drawn_again(card["tasks"]) if found is None else Manifest.read(found)
            if manifest.fingerprint != fingerprint:
                whose = "this data, split, spec, seed and count give" if found is None else f"{found} has"
                raise CardError(
                    f"tasks.manifest_fingerprint is {fingerprint[:12]}, {whose} {manifest.fingerprint[:12]}"
                )
            self._known[fingerprint] = manifest
        manifest = self._known[fingerprint]
        if different := list(_differences(card["tasks"], manifest)):
            raise CardError("; ".join(different))
        return manifest

    def is_there(self, card: Mapping[str, Any], path: Path) -> bool:
        """Tell whether the manifest of a card lies where it is looked for, so that nothing has to be drawn."""
        return any(place.is_file() for place in self._places(path, card["tasks"]["manifest_fingerprint"]))

    def _places(self, path: Path, fingerprint: str) -> Iterator[Path]:
        name, beside = f"{fingerprint}.json.gz", path.absolute().parent
        if self._folder is not None:
            yield self._folder / name
            yield self._folder / "manifests" / name
        yield beside / "manifests" / name
        yield beside.parent / "manifests" / name


def _drawn_again(tasks: Mapping[str, Any]) -> Manifest:
    """Draw the tasks of a card, if the very data set is here. What a card names is never fetched or made."""
    elsewhere = (
        f"put manifests/{tasks['manifest_fingerprint']}.json.gz beside it ('cfsl tasks export' writes such files)"
    )
    data = _same_data(tasks, elsewhere)
    numbers = range(*(tasks.get("numbers") or (0, tasks["count"], 1)))
    try:
        spec = TaskSpec(**tasks["spec"])
        if len(numbers) * (spec.support_images + spec.target_images) > _MOST_IMAGES:
            raise UnknownTasksError(f"its tasks are too large to be drawn again; {elsewhere}")
        drawn = Tasks(data, spec, split=tasks["split"], seed=tasks["seed"], numbers=numbers, sampler=tasks["sampler"])
        manifest = Manifest.of(drawn)
    except (SpecError, UnknownNameError) as error:
        raise CardError(f"its tasks cannot be drawn: {error}") from error
    if manifest.fingerprint != tasks["manifest_fingerprint"] and manifest.splits_hash != tasks["splits_hash"]:
        raise UnknownTasksError(f"its tasks are of another split '{tasks['splits']}' than the one here; {elsewhere}")
    return manifest


def _same_data(tasks: Mapping[str, Any], elsewhere: str) -> Dataset:
    """Return the data set of a card."""
    name = tasks["data"]
    try:
        if current_folder(name) is None:
            raise UnknownTasksError(f"its tasks are not known here; {elsewhere}, or install {name}")
        if tasks["splits"].lower().endswith(".json"):
            raise UnknownTasksError(f"its tasks are of a split file; {elsewhere}")
        data = load(name, splits=tasks["splits"])
    except (DataError, UnknownNameError) as error:
        raise UnknownTasksError(f"its data cannot be opened ({error}); {elsewhere}") from error
    if data.fingerprint != tasks["data_fingerprint"]:
        raise UnknownTasksError(f"its tasks are of another version of {name} than the one here; {elsewhere}")
    return data


def _differences(tasks: Mapping[str, Any], manifest: Manifest) -> Iterator[str]:
    """Say where a card speaks of other tasks than those of the manifest with its fingerprint."""
    for name in ("data", "data_fingerprint", "splits", "splits_hash", "split", "seed", "sampler"):
        if tasks[name] != getattr(manifest, name):
            yield f"tasks.{name} is {tasks[name]!r}, that of the manifest is {getattr(manifest, name)!r}"
    if tasks["spec_hash"] != manifest.spec.hash:
        yield f"tasks.spec is {tasks['spec_hash'][:12]}, that of the manifest is {manifest.spec.hash[:12]}"
    if tasks["count"] != len(manifest.numbers):
        yield f"tasks.count is {tasks['count']}, the manifest has {len(manifest.numbers)} tasks"
    numbers = tasks.get("numbers")
    if numbers is not None and range(*numbers) != manifest.numbers:
        yield f"tasks.numbers are {numbers}, those of the manifest are {manifest.numbers}"
