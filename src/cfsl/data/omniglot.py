"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings each.

Lake, Salakhutdinov and Tenenbaum, "Human-level concept learning through probabilistic program
induction", Science 350, 2015. Pixels of the default recipe are those of the published CFSL code:
105 x 105 one-bit drawings brought to 28 x 28 by nearest neighbour, background 1, stroke 0, no
normalisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from cfsl.data.archive import files_of
from cfsl.data.build import Description, LabelledImage
from cfsl.data.recipe import Recipe
from cfsl.data.splits import OMNIGLOT_CLASSES, PARTS, Splits, cut_like_omniglot, read_splits
from cfsl.errors import DataError

_DRAWINGS = 20
ARCHIVES = ("images_background", "images_evaluation")
BASE_URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
DOWNLOADS = {
    f"{BASE_URL}images_background.zip": "md5:68d2efa1b9178cc56df9314c21c6e718",
    f"{BASE_URL}images_evaluation.zip": "md5:6b91aef0f799c5bb55b94e3f2daec811",
}
RECIPES = {
    "as_published": Recipe(height=28, width=28, channels=1, resize="nearest"),
    "antialiased": Recipe(height=28, width=28, channels=1, resize="antialias"),
    "inverted": Recipe(height=28, width=28, channels=1, resize="nearest", polarity="inverted"),
    "antialiased_inverted": Recipe(
        height=28, width=28, channels=1, resize="antialias", polarity="inverted"
    ),
}
_CITATION = """@article{lake2015human,
  title = {Human-level concept learning through probabilistic program induction},
  author = {Lake, Brenden M. and Salakhutdinov, Ruslan and Tenenbaum, Joshua B.},
  journal = {Science}, volume = {350}, number = {6266}, pages = {1332--1338}, year = {2015}
}"""

EVALUATION_ALPHABETS = frozenset(
    {
        "Angelic",
        "Atemayar_Qelisayer",
        "Atlantean",
        "Aurek-Besh",
        "Avesta",
        "Ge_ez",
        "Glagolitic",
        "Gurmukhi",
        "Kannada",
        "Keble",
        "Malayalam",
        "Manipuri",
        "Mongolian",
        "Old_Church_Slavonic_(Cyrillic)",
        "Oriya",
        "Sylheti",
        "Syriac_(Serto)",
        "Tengwar",
        "Tibetan",
        "ULOG",
    }
)


def describe(name: str, recipe: Recipe, source: Path) -> Description:
    """Describe Omniglot, as far as it is not in the images."""
    return Description(
        name=name,
        title="Omniglot",
        source=f"brendenlake/omniglot, from {source.name}",
        licence="MIT",
        citation=_CITATION,
        recipe=recipe,
        make_splits=_make_splits,
        check=lambda sizes, splits: _require_omniglot(sizes, source),
    )


def images(source: Path, recipe: Recipe) -> Iterator[LabelledImage]:
    """Yield all drawings; the class is 'Alphabet/characterNN'."""
    for place in _parts_of(source):
        for file in files_of(place):
            if file.content is None:
                continue

            *_, alphabet, character, drawing = ("", "", *file.path.parts)
            if not alphabet:
                raise DataError(f"{file.path} in {place} is not Alphabet/characterNN/drawing.png")

            pixels = recipe.decode(file.content, f"{place}: {file.path}")
            yield LabelledImage(f"{alphabet}/{character}", drawing, pixels)


def _parts_of(source: Path) -> list[Path]:
    """Find the two archives, the two unpacked folders, or one folder of all alphabets."""
    if not source.is_dir():
        raise DataError(
            f"{source} is not a folder; give the folder that holds images_background.zip and "
            f"images_evaluation.zip (or both unpacked)"
        )

    found = {name: _zip_or_folder(source, name) for name in ARCHIVES}
    parts = [part for part in found.values() if part is not None]
    if len(parts) == 1:
        missing = next(name for name, part in found.items() if part is None)
        raise DataError(
            f"{source} has {parts[0].name} but not {missing}{parts[0].suffix}; Omniglot is both. "
            f"Add the other one."
        )
    return parts or [source]


def _zip_or_folder(source: Path, name: str) -> Path | None:
    candidates = (source / f"{name}.zip", source / name)
    return next((path for path in candidates if path.exists()), None)


def _make_splits(class_names: Sequence[str]) -> Mapping[str, Splits]:
    """Return the splits in use.

    reference    the shuffle of the published CFSL code, 1200 / 211 / 212; the default
    sorted       the first 1200 classes by name, then 211, then 212: the text of the paper
    official     by alphabet: test is the evaluation set, validation every sixth of the 30
                 background alphabets
    """
    reference = resources.files("cfsl.data") / "split_files" / "omniglot_reference.json"
    with resources.as_file(reference) as path:
        splits: dict[str, Splits] = {"reference": read_splits(path)}

    splits["sorted"] = cut_like_omniglot(sorted(class_names))
    splits["official"] = _by_alphabet(sorted(class_names))
    return splits


def _by_alphabet(class_names: Sequence[str]) -> Splits:
    """Keep every alphabet in one part."""
    background = sorted({name.split("/")[0] for name in class_names} - EVALUATION_ALPHABETS)
    part_of = dict.fromkeys(background, "train") | dict.fromkeys(background[5::6], "val")
    part_of |= dict.fromkeys(EVALUATION_ALPHABETS, "test")

    return {
        part: [name for name in class_names if part_of[name.split("/")[0]] == part]
        for part in PARTS
    }


def _require_omniglot(sizes: Mapping[str, int], source: Path) -> None:
    """Refuse a partial Omniglot."""
    odd = next((name for name, size in sizes.items() if size != _DRAWINGS), None)
    if odd is not None or len(sizes) != OMNIGLOT_CLASSES:
        detail = f"; {odd} has {sizes[odd]} drawings instead of {_DRAWINGS}" if odd else ""
        raise DataError(
            f"{source} is not the whole of Omniglot: {len(sizes)} characters instead of "
            f"{OMNIGLOT_CLASSES}{detail}. Nothing was changed; download it again."
        )
