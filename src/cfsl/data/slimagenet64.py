"""SlimageNet64: 200 images of each of the 1,000 classes of ILSVRC-2012, at 64 x 64.

Antoniou, Patacchiola, Ochal and Storkey, "Defining Benchmarks for Continual Few-Shot Learning",
2020. Splits are exactly those of the folders in the archive (rule 4 of the specification). Pixels
are stored as published, and normalised by the mean and deviation of ImageNet when tasks are made.

slim-tiny has the same layout with fewer classes, and stands in where the archive cannot be had.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cfsl.data.build import Description
from cfsl.data.folder import FOLDERS, ClassFolders
from cfsl.data.recipe import Recipe
from cfsl.data.splits import PARTS, Splits
from cfsl.errors import DataError

ZENODO_DOI = "10.5281/zenodo.3672132"
RECIPE = Recipe(
    height=64, width=64, channels=3, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)
_CITATION = """@article{antoniou2020defining,
  title = {Defining Benchmarks for Continual Few-Shot Learning},
  author = {Antoniou, Antreas and Patacchiola, Massimiliano and Ochal, Mateusz and Storkey, Amos},
  journal = {arXiv preprint arXiv:2004.11967}, year = {2020}
}"""
LICENCE = "ImageNet terms of access: non-commercial research"


class Counts(NamedTuple):
    """The number of classes of each part, and of images of each class."""

    train: int
    val: int
    test: int
    images: int


COUNTS = {
    "SlimageNet64": Counts(train=700, val=100, test=200, images=200),
    "slim-tiny": Counts(train=140, val=20, test=40, images=200),
}
"""The counts of the data sets of this layout, by their titles."""


def describe(name: str, title: str, recipe: Recipe, folders: ClassFolders) -> Description:
    """Describe a data set of this layout, as far as it is not in the images."""

    def require_counts(sizes: Mapping[str, int], splits: Mapping[str, Splits]) -> None:
        problem = f"{folders.source} is not {title}"
        _require_counts(problem, sizes, splits.get(FOLDERS, {}), COUNTS[title])

    return Description(
        name=name,
        title=title,
        source=f"from {folders.source.name}",
        licence=LICENCE,
        citation=_CITATION,
        recipe=recipe,
        make_splits=folders.splits,
        check=require_counts,
    )


def _require_counts(problem: str, sizes: Mapping[str, int], splits: Splits, counts: Counts) -> None:
    """Refuse an archive whose counts differ, and say how."""
    differences = [
        f"{part} has {len(splits.get(part, ()))} classes instead of {getattr(counts, part)}"
        for part in PARTS
        if len(splits.get(part, ())) != getattr(counts, part)
    ]

    odd = [name for name, size in sizes.items() if size != counts.images]
    if odd:
        differences.append(
            f"{len(odd)} classes have other than {counts.images} images (first: {odd[0]}, "
            f"{sizes[odd[0]]})"
        )

    if differences:
        raise DataError(
            f"{problem}: {'; '.join(differences)}. Nothing was changed; check that it is the right "
            f"archive."
        )


def find_archive(source: Path) -> Path:
    """Return the archive in a folder that holds one, or else the source itself."""
    if not source.is_dir() or any((source / part).is_dir() for part in PARTS):
        return source

    archives = [
        path for path in source.iterdir() if ".tar" in path.suffixes and "slim" in path.name.lower()
    ]
    return archives[0] if len(archives) == 1 else source
