"""A data set in figures: Table 2 of paper 1, and the longest tasks that can be drawn from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Integer

from cfsl.data.splits import PARTS
from cfsl.data.store import Dataset
from cfsl.sampling import most_feasible
from cfsl.spec import TaskSpec

_MOST_SUPPORT_SETS = 1_000_000


def summarise(data: Dataset) -> dict[str, Any]:
    """Return the figures of a data set, ready for JSON."""
    info, recipe = data.info, data.info.recipe
    smallest, largest = int(data.class_sizes.min()), int(data.class_sizes.max())
    split_files = sorted(path.stem for path in (data.folder / "splits").glob("*.json"))

    return {
        "name": data.name,
        "title": info.title,
        "source": info.source,
        "licence": info.licence,
        "citation": info.citation,
        "classes": len(info.class_names),
        "images": len(data.pixels),
        "images_per_class": f"{smallest}" if smallest == largest else f"{smallest} to {largest}",
        "resolution": f"{recipe.height} x {recipe.width}",
        "format": "greyscale" if recipe.channels == 1 else "RGB",
        "size_on_disk": _size(data.pixels.nbytes),
        "size_as_float32": _size(4 * data.pixels.nbytes),
        "recipe": recipe.model_dump(mode="json"),
        "fingerprint": data.fingerprint,
        "folder": str(data.folder),
        "split_files": ", ".join(split_files),
        "splits": data.splits_name,
        "parts": {part: len(data.splits.get(part, ())) for part in PARTS},
        "longest": {
            part: _longest_tasks(data.class_sizes[data.classes_of(part)]) for part in PARTS
        },
    }


def _longest_tasks(class_sizes: Integer[np.ndarray, " classes"]) -> dict[str, int]:
    """Return the largest NSS of each task type, or 0 if no task of the type can be drawn.

    Tasks have 5 ways, 1 shot and 5 targets a class; in the instance test 1 image a support set.
    """
    specs = {
        "A": TaskSpec.type_a(nss=_MOST_SUPPORT_SETS),
        "B, C": TaskSpec.type_b(nss=_MOST_SUPPORT_SETS),
        "D (CCI 2)": TaskSpec.type_d(nss=_MOST_SUPPORT_SETS, cci=2),
        "instance": TaskSpec.instance(nss=_MOST_SUPPORT_SETS, k_shot=1),
    }
    longest = {name: most_feasible(class_sizes, spec, "nss") for name, spec in specs.items()}
    return {name: 0 if spec is None else spec.nss for name, spec in longest.items()}


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
