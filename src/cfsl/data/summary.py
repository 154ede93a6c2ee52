"""What a data set holds, in figures: Table 2 of paper 1, and the longest tasks that it can give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Integer

from cfsl.data.splits import PARTS
from cfsl.data.store import Dataset
from cfsl.sampling import is_feasible
from cfsl.spec import TaskSpec

_LONGEST = 1_000_000


def summarise(data: Dataset) -> dict[str, Any]:
    """Return the figures of a data set, ready for JSON."""
    info, recipe = data.info, data.info.recipe
    smallest, largest = int(data.class_sizes.min()), int(data.class_sizes.max())
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
        "split_files": ", ".join(
            sorted(path.stem for path in (data.folder / "splits").glob("*.json"))
        ),
        "splits": data.splits_name,
        "parts": {part: len(data.splits.get(part, ())) for part in PARTS},
        "longest": {part: longest_tasks(data.class_sizes[data.classes_of(part)]) for part in PARTS},
    }


def longest_tasks(class_sizes: Integer[np.ndarray, " classes"]) -> dict[str, int]:
    """Return the largest NSS of each task type (5-way 1-shot, 5 targets a class); 0 if there is none."""
    families: dict[str, Callable[[int], TaskSpec]] = {
        "A": lambda nss: TaskSpec.type_a(nss=nss),
        "B, C": lambda nss: TaskSpec.type_b(nss=nss),
        "D (CCI 2)": lambda nss: TaskSpec.type_d(nss=nss, cci=2),
        "instance": lambda nss: TaskSpec.instance(nss=nss, k_shot=1),
    }
    longest = {}
    for name, spec_of in families.items():
        low, high = 0, _LONGEST
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (middle, high) if is_feasible(class_sizes, spec_of(middle)) else (low, middle)
            )
        longest[name] = low
    return longest


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
