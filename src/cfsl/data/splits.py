"""Splits of classes into train, val and test, which never depend on a run's seed (rule 15)."""

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
"""The names of the classes of each part, in the order in which tasks number them."""

OMNIGLOT_CLASSES = 1623
_OMNIGLOT_VAL, _OMNIGLOT_TEST = 211, 212
_EXAMPLE = '{"train": ["class", ...], ...}'


def cut_like_omniglot(names: Sequence[str]) -> Splits:
    """Cut a list of classes in the proportions of Omniglot, 1200 / 211 / 212 of 1623.

    With 3 or more classes no part is empty.
    """
    n = len(names)
    val = n * _OMNIGLOT_VAL // OMNIGLOT_CLASSES
    test = n * _OMNIGLOT_TEST // OMNIGLOT_CLASSES
    if n >= len(PARTS):
        val, test = max(val, 1), max(test, 1)

    train = n - val - test
    return {
        "train": list(names[:train]),
        "val": list(names[train : train + val]),
        "test": list(names[train + val :]),
    }


def shuffled_split(names: Sequence[str]) -> Splits:
    """Shuffle and cut classes in a way that depends on their names alone."""
    ordered = sorted(names)
    zero = np.zeros(1, np.uint64)
    words = Stream.named("split", *ordered).words(zero, zero, len(ordered))
    order = full_shuffle(words.T)[0]
    return cut_like_omniglot([ordered[i] for i in order])


def check_splits(splits: Splits, class_names: Sequence[str], where: str) -> None:
    """Refuse a split that names a class twice, or a class that the data set does not have."""
    known, part_of = set(class_names), dict[str, str]()

    for part, names in splits.items():
        if part not in PARTS:
            raise DataError(f"{where} has a part '{part}'; rename it to one of {', '.join(PARTS)}")

        for name in names:
            if name not in known:
                close = did_you_mean(name, known)
                raise DataError(
                    f"{where} puts '{name}' into {part}, but the data set has no such class{close}"
                )

            if name in part_of:
                raise DataError(
                    f"{where} has class '{name}' in {part_of[name]} and again in {part}; remove one"
                )
            part_of[name] = part


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
            f"{path} cannot be read as a split file: {error}. It should look like {_EXAMPLE}."
        ) from error

    if not isinstance(content, dict) or not all(map(_is_list_of_texts, content.values())):
        raise DataError(f"{path} is not a split file; it should look like {_EXAMPLE}")
    return dict(content)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
