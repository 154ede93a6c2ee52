"""Task manifests: tasks in a file, so that everybody can use the same ones.

A manifest is one gzipped JSON file. It states the origin of the tasks (spec, seed, sampler, and the
fingerprints of data set and split), a table of their images (class name and image name), and for
each task the images and labels of its support sets and target set. Its fingerprint is a sha256 over
this content, whatever the file's name or compression.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from cfsl.data.images import SplitImages
from cfsl.data.splits import splits_hash
from cfsl.data.store import ALL, Dataset
from cfsl.data.tasks import Tasks
from cfsl.errors import ManifestError
from cfsl.files import written_whole
from cfsl.sampling import SAMPLER, SAMPLERS, PlanBlock
from cfsl.spec import TaskSpec

FORMAT = 1
_MOST_BYTES = 2**30
_ARRAYS = tuple(PlanBlock.__dataclass_fields__)


@dataclass(frozen=True)
class Manifest:
    """Tasks, whose images are known by their names."""

    data: str
    data_fingerprint: str
    splits: str
    splits_hash: str
    split: str
    spec: TaskSpec
    seed: int
    sampler: str
    numbers: range
    images: tuple[tuple[str, str], ...]
    """The (class name, image name) of every image in the tasks."""
    plan: PlanBlock
    """The tasks; their image numbers are positions in `images`."""

    @classmethod
    def of(cls, tasks: Tasks) -> Manifest:
        """Return the manifest of tasks."""
        plan, data = tasks.plan(), tasks.data
        used, numbers = np.unique(
            np.concatenate([plan.support_images.ravel(), plan.target_images.ravel()]),
            return_inverse=True,
        )
        numbers = numbers.astype(np.int32)
        supports = plan.support_images.size

        rows = tasks.images.rows[used]
        classes = np.searchsorted(data.class_starts, rows, side="right") - 1
        names = tuple(
            (data.info.class_names[c], data.image_names[row])
            for c, row in zip(classes, rows, strict=True)
        )

        return cls(
            data=data.name,
            data_fingerprint=data.fingerprint,
            splits=data.splits_name,
            splits_hash=splits_hash(data.splits),
            split=tasks.split,
            spec=tasks.spec,
            seed=tasks.seed,
            sampler=tasks.sampler,
            numbers=tasks.numbers,
            images=names,
            plan=dataclasses.replace(
                plan,
                support_images=numbers[:supports].reshape(plan.support_images.shape),
                target_images=numbers[supports:].reshape(plan.target_images.shape),
            ),
        )

    @property
    def fingerprint(self) -> str:
        """The sha256 of the tasks: images, support sets, labels and their order."""
        digest = hashlib.sha256(self.spec.canonical_json().encode())

        # The noise of corrupted targets is not in the plan, but follows from these values.
        if self.spec.corruption is not None:
            source = [self.split, self.seed, self.sampler, *_start_stop_step(self.numbers)]
            digest.update(json.dumps(source).encode())

        names = json.dumps(self.images, ensure_ascii=False, separators=(",", ":"))
        digest.update(names.encode())
        for name in _ARRAYS:
            array = np.ascontiguousarray(getattr(self.plan, name), "<i4")
            digest.update(f"{name}{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def write(self, path: Path | str) -> None:
        """Write the file whole or not at all; the same tasks give the same bytes."""
        path = Path(path)
        content = self._header() | {
            "fingerprint": self.fingerprint,
            "images": self.images,
            "tasks": {name: getattr(self.plan, name).tolist() for name in _ARRAYS},
        }
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))

        try:
            with (
                written_whole(path) as part,
                part.open("wb") as out,
                gzip.GzipFile("", "wb", fileobj=out, mtime=0) as packed,
            ):
                packed.write(text.encode())
        except (OSError, ValueError) as error:
            raise ManifestError(
                f"{path} cannot be written: {error}; name a file in a folder that exists"
            ) from error

    def _header(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "data": self.data,
            "data_fingerprint": self.data_fingerprint,
            "splits": self.splits,
            "splits_hash": self.splits_hash,
            "split": self.split,
            "spec": json.loads(self.spec.canonical_json()),
            "seed": self.seed,
            "sampler": self.sampler,
            "numbers": _start_stop_step(self.numbers),
        }

    @classmethod
    def read(cls, path: Path | str) -> Manifest:
        """Read a manifest and check it against its own fingerprint."""
        path = Path(path)
        content = _read_json(path)
        _require_header(content, path)

        try:
            manifest = cls._from_content(content, path)
            stated = content["fingerprint"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ManifestError(f"{path} is not a complete task manifest: {error!r}") from error

        if manifest.fingerprint != stated:
            raise ManifestError(
                f"{path} was changed: its content has fingerprint {manifest.fingerprint[:12]}, it "
                f"states {str(stated)[:12]}"
            )
        return manifest

    @classmethod
    def _from_content(cls, content: Mapping[str, Any], path: Path) -> Manifest:
        """Make a manifest of the values in a file."""
        arrays = {name: np.array(content["tasks"][name], np.int32) for name in _ARRAYS}
        images = tuple((str(c), str(i)) for c, i in content["images"])
        numbers = range(*content["numbers"])
        spec = TaskSpec(**content["spec"])
        supports = (len(numbers), spec.nss, spec.n_way * spec.k_shot)
        _require_consistent(arrays, len(images), supports, path)

        return cls(
            data=content["data"],
            data_fingerprint=content["data_fingerprint"],
            splits=content["splits"],
            splits_hash=content["splits_hash"],
            split=content["split"],
            spec=spec,
            seed=content["seed"],
            sampler=content["sampler"],
            numbers=numbers,
            images=images,
            plan=PlanBlock(**arrays),
        )

    def tasks(self, data: Dataset) -> ManifestTasks:
        """Return these tasks on a data set that has their images, under the same names."""
        rows = _rows_by_name(data)
        missing = [image for image in self.images if image not in rows]
        if missing:
            first = "/".join(missing[0])
            raise ManifestError(
                f"{data.name} lacks {len(missing)} of the {len(self.images)} images of this "
                f"manifest (first: {first}); it was made from {self.data}"
            )

        image_rows = np.array([rows[image] for image in self.images], np.int32)
        return ManifestTasks(
            data=data,
            spec=self.spec,
            split=self.split,
            seed=self.seed,
            numbers=self.numbers,
            sampler=self.sampler,
            manifest=self,
            image_rows=image_rows,
        )

    def recomputed(self, data: Dataset) -> Manifest:
        """Draw the same tasks again from a data set."""
        tasks = Tasks(
            data,
            self.spec,
            split=self.split,
            seed=self.seed,
            numbers=self.numbers,
            sampler=self.sampler,
        )
        return Manifest.of(tasks)


@dataclass(frozen=True)
class ManifestTasks(Tasks):
    """Tasks that were read from a manifest instead of drawn."""

    manifest: Manifest = dataclasses.field(kw_only=True)
    image_rows: Int32[np.ndarray, " images"] = dataclasses.field(kw_only=True)
    """The row of every image of the manifest in the data set."""

    def __post_init__(self) -> None:
        """Check nothing: tasks that are not drawn need not be feasible."""

    @property
    def images(self) -> SplitImages:
        """All images of the data set, whose split need not be that of the manifest."""
        return self.data.shared(
            (SplitImages, ALL), lambda: SplitImages.of(self.data, self.data.classes_of(ALL))
        )

    def plan(self, numbers: range | None = None) -> PlanBlock:
        """Return tasks of the manifest, with image numbers counted over the data set."""
        wanted = self.numbers if numbers is None else numbers
        positions = [self.manifest.numbers.index(number) for number in wanted]

        arrays = {name: getattr(self.manifest.plan, name)[positions] for name in _ARRAYS}
        for name in ("support_images", "target_images"):
            arrays[name] = self.image_rows[arrays[name]]
        return PlanBlock(**arrays)


def _require_header(content: Mapping[str, Any], path: Path) -> None:
    """Refuse values of a wrong type, which the constructor does not check."""
    texts = ("data", "data_fingerprint", "splits", "splits_hash", "split", "fingerprint")
    wrong = [name for name in texts if not isinstance(content.get(name), str)]
    if type(content.get("seed")) is not int:
        wrong.append("seed")

    match content.get("numbers"):
        case [int(start), int(), int(step)] if start >= 0 and step > 0:
            pass
        case _:
            wrong.append("numbers")

    if wrong:
        raise ManifestError(
            f"{path} is not a complete task manifest: {', '.join(wrong)} missing or of the wrong "
            f"kind"
        )


def _require_consistent(
    arrays: Mapping[str, np.ndarray], images: int, supports: tuple[int, int, int], path: Path
) -> None:
    """Refuse unknown image numbers, negative labels, and lists of other lengths than the spec's."""
    shapes = {name: array.shape for name, array in arrays.items()}
    fits = (
        shapes["support_images"] == shapes["support_labels"]
        and shapes["target_images"] == shapes["target_labels"] == shapes["target_groups"]
        and shapes["support_images"] == supports
        and len(shapes["target_images"]) == 2
        and shapes["target_images"][0] == supports[0]
        and all(array.size and array.min() >= 0 for array in arrays.values())
    )

    used = np.concatenate([arrays["support_images"].ravel(), arrays["target_images"].ravel()])
    if not fits or used.max() >= images:
        raise ManifestError(
            f"{path} is damaged: its lists of images, labels and tasks do not fit each other"
        )


def differences(stated: Manifest, drawn: Manifest) -> Iterator[str]:
    """Yield sentences that say how a manifest differs from one that was drawn here."""
    for name in ("data_fingerprint", "splits_hash"):
        a, b = getattr(stated, name), getattr(drawn, name)
        if a != b:
            yield f"{name} is {a[:12]} in the manifest and {b[:12]} here"

    for position, number in enumerate(stated.numbers):
        if _named(stated, position) != _named(drawn, position):
            yield f"task {number} differs"
            return


def _named(manifest: Manifest, position: int) -> list[Any]:
    """Return one task, with image names instead of numbers."""
    plan = manifest.plan.task(position)
    named = [
        [manifest.images[i] for i in images.ravel()]
        for images in (plan.support_images, plan.target_images)
    ]
    return [
        *named,
        plan.support_labels.tolist(),
        plan.target_labels.tolist(),
        plan.target_groups.tolist(),
    ]


def _rows_by_name(data: Dataset) -> dict[tuple[str, str], int]:
    """Return the row of every image by its class name and image name."""
    classes = np.repeat(np.arange(len(data.class_sizes)), data.class_sizes)
    names = data.info.class_names
    return {
        (names[c], image): row
        for row, (c, image) in enumerate(zip(classes, data.image_names, strict=True))
    }


def _start_stop_step(numbers: range) -> list[int]:
    return [numbers.start, numbers.stop, numbers.step]


def _read_json(path: Path) -> dict[str, Any]:
    """Unpack a manifest; a file that unpacks to more than a manifest can need is refused."""
    try:
        with gzip.open(io.BytesIO(path.read_bytes())) as packed:
            text = packed.read(_MOST_BYTES + 1)
        content = json.loads(text) if len(text) <= _MOST_BYTES else None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ManifestError(f"{path} cannot be read as a task manifest: {error}") from error

    if not isinstance(content, dict) or content.get("format") != FORMAT:
        stated = content.get("format") if isinstance(content, dict) else None
        raise ManifestError(f"{path} is not a task manifest of format {FORMAT} (format: {stated})")

    if content.get("sampler") not in SAMPLERS:
        raise ManifestError(
            f"{path} was drawn by sampler {content.get('sampler')!r}; this version knows {SAMPLER}"
        )
    return content
