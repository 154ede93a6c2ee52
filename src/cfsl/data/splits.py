"""Which classes are for training, validation and test: a file of its own, never tied to a run's seed (rule 15)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cfsl.errors import DataError, did_you_mean
from cfsl.sampling.philox import Stream, full_shuffle

PARTS = ("train", "val", "test")
Splits = Mapping[str, Sequence[str]]
"""Part of the split -> names of its classes, in the order that tasks number them."""

OMNIGLOT_CLASSES, OMNIGLOT_TRAIN, OMNIGLOT_VAL = 1623, 1200, 211


def cut_like_omniglot(names: Sequence[str]) -> Splits:
    """Cut a sequence of classes as 1200 / 211 / 212 of 1623 are cut; with 3 or more classes no part is empty."""
    n = len(names)
    val = n * OMNIGLOT_VAL // OMNIGLOT_CLASSES
    test = n * (OMNIGLOT_CLASSES - OMNIGLOT_TRAIN - OMNIGLOT_VAL) // OMNIGLOT_CLASSES
    if n >= len(PARTS):
        val, test = max(val, 1), max(test, 1)
    train = n - val - test
    return {
        "train": list(names[:train]),
        "val": list(names[train : train + val]),
        "test": list(names[train + val :]),
    }


def shuffled_split(names: Sequence[str]) -> Splits:
    """Shuffle classes by a generator of their own, then cut: the same for everybody who has these classes."""
    ordered = sorted(names)
    zero = np.zeros(1, np.uint64)
    order = full_shuffle(Stream.named("split", *ordered).words(zero, zero, len(ordered)).T)[0]
    return cut_like_omniglot([ordered[i] for i in order])


def check_splits(splits: Splits, class_names: Sequence[str], where: str) -> None:
    """Refuse a split that names a class twice, or classes that are not there."""
    known, seen = set(class_names), dict[str, str]()
    for part, names in splits.items():
        if part not in PARTS:
            raise DataError(f"{where} has a part '{part}'; rename it to one of {', '.join(PARTS)}")
        for name in names:
            if name not in known:
                close = did_you_mean(name, known)
                raise DataError(
                    f"{where} puts '{name}' into {part}, but the data set has no such class{close}"
                )
            if name in seen:
                raise DataError(
                    f"{where} has class '{name}' in {seen[name]} and again in {part}; remove one"
                )
            seen[name] = part


def splits_hash(splits: Splits) -> str:
    """Return the sha256 of a split: parts, class names and their order."""
    plain = {part: list(splits.get(part, [])) for part in PARTS}
    return hashlib.sha256(json.dumps(plain, separators=(",", ":")).encode()).hexdigest()


def read_splits(path: Path) -> dict[str, list[str]]:
    """Read a split file: a JSON object with lists of class names under train, val and test."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f'{path} cannot be read as a split file: {error}. It should look like {{"train": ["class", ...], ...}}.'
        ) from error
    lists = isinstance(content, dict) and all(isinstance(names, list) for names in content.values())
    if not lists or not all(isinstance(name, str) for names in content.values() for name in names):
        raise DataError(
            f'{path} is not a split file; it should look like {{"train": ["class", ...], ...}}'
        )
    return dict(content)
