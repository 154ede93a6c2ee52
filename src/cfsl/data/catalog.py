"""The data sets that cfsl knows by name, and all ways to bring in a data set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cfsl.data import glyphs, omniglot, slimagenet64
from cfsl.data.arrays import read_array_file
from cfsl.data.build import Description, LabelledImage, Progress, build_dataset
from cfsl.data.fetch import BytesProgress, download, files_of_doi
from cfsl.data.folder import ClassFolders
from cfsl.data.recipe import Recipe
from cfsl.data.splits import Splits, cut_like_omniglot, read_splits
from cfsl.data.store import Dataset, current_folder, data_root, open_dataset
from cfsl.errors import DataError, FetchError, lookup

_GLYPHS_NAME = re.compile(r"glyphs-(\d{1,9})x(\d{1,9})")
_GLYPHS_CLASSES, _GLYPHS_SAMPLES = 1623, 20
_GLYPHS_AT_ONCE = 64
_GLYPHS_RECIPE = Recipe(height=glyphs.SIZE, width=glyphs.SIZE, channels=1, resize="nearest")


@dataclass(frozen=True, kw_only=True)
class AddRequest:
    """Images that the user has, and how they are to be stored as a data set."""

    name: str
    source: Path
    save_as: str | None = None
    recipe: str | None = None
    size: int | None = None
    channels: int | None = None
    fit: str = "crop"
    splits: Path | None = None
    licence: str = "unknown"
    citation: str = ""
    root: Path | None = None
    replace: bool = False
    progress: Progress | None = None

    def named_recipe(self, recipes: Mapping[str, Recipe]) -> Recipe:
        """Return the recipe asked for (the first is the default), at the size asked for."""
        if self.channels:
            raise DataError(
                f"--channels is for images of your own; '{self.name}' has recipes: "
                f"{', '.join(recipes)}"
            )

        if self.recipe:
            recipe = lookup(recipes, self.recipe, f"{self.name} recipe")
        else:
            recipe = next(iter(recipes.values()))
        return recipe.replace(height=self.size, width=self.size) if self.size else recipe

    def stored_name(self, recipes: Mapping[str, Recipe]) -> str:
        """Return the name to store under; the name of a variant has its recipe and size."""
        if self.save_as:
            return self.save_as
        variant = self.recipe if self.recipe and self.recipe != next(iter(recipes)) else ""
        return "-".join(part for part in (self.name, variant, str(self.size or "")) if part)


@dataclass(frozen=True)
class CatalogEntry:
    """A data set that cfsl knows by name."""

    title: str
    how: str
    """How a user gets the data set."""
    recipes: Mapping[str, Recipe]
    add: Callable[[AddRequest], Dataset] | None = None
    urls: Callable[[str], Mapping[str, str | None]] | None = None
    """Returns the checksums of the archives by address; takes the advice for users offline."""
    terms: str = ""


def _add_omniglot(request: AddRequest) -> Dataset:
    recipe = request.named_recipe(omniglot.RECIPES)
    description = omniglot.describe(request.stored_name(omniglot.RECIPES), recipe, request.source)
    return _build(request, description, omniglot.images(request.source, recipe))


def _add_slimagenet64(request: AddRequest, title: str = "SlimageNet64") -> Dataset:
    recipe = request.named_recipe(_SLIM_RECIPES)
    folders = ClassFolders(slimagenet64.find_archive(request.source), recipe)
    name = request.stored_name(_SLIM_RECIPES)
    description = slimagenet64.describe(name, title, recipe, folders)
    return _build(request, description, folders.images())


def _add_slim_tiny(request: AddRequest) -> Dataset:
    return _add_slimagenet64(request, "slim-tiny")


def _slimagenet64_urls(by_hand: str) -> dict[str, str | None]:
    files = files_of_doi(slimagenet64.ZENODO_DOI, by_hand=by_hand)
    return {url: checksum for url, checksum in files.items() if ".tar" in url}


_SLIM_RECIPES = {"as_published": slimagenet64.RECIPE}

CATALOG: Mapping[str, CatalogEntry] = {
    "glyphs": CatalogEntry(
        "procedural handwriting, 1,623 characters x 20; glyphs-CLASSESxSAMPLES for other sizes",
        "made on this machine in seconds, nothing to download",
        {"as_drawn": _GLYPHS_RECIPE},
        terms="MIT",
    ),
    "omniglot": CatalogEntry(
        "Omniglot, 1,623 characters x 20",
        "cfsl data fetch omniglot (15 MB)",
        omniglot.RECIPES,
        _add_omniglot,
        lambda by_hand: omniglot.DOWNLOADS,
        terms="MIT",
    ),
    "slimagenet64": CatalogEntry(
        "SlimageNet64, 1,000 ImageNet classes x 200",
        "cfsl data fetch slimagenet64 (from Zenodo)",
        _SLIM_RECIPES,
        _add_slimagenet64,
        _slimagenet64_urls,
        terms=slimagenet64.LICENCE,
    ),
    "slim-tiny": CatalogEntry(
        "200 classes of Tiny-ImageNet in SlimageNet64's layout (not SlimageNet64)",
        "cfsl data add slim-tiny --from slim-tiny.tar",
        _SLIM_RECIPES,
        _add_slim_tiny,
        terms=slimagenet64.LICENCE,
    ),
}


REFERENCE_FINGERPRINTS: Mapping[str, str] = {
    "omniglot": "bdb0ba7be33af130091caf2e49ca0f41754ec552076ebbacee3a62f42c23a75e",
}
"""The fingerprints of the data sets that the published tasks were drawn from."""


def add_dataset(request: AddRequest) -> Dataset:
    """Store images that the user has: a known data set, a folder, an archive, or an .npz file."""
    if not request.source.exists():
        raise DataError(
            f"{request.source} does not exist; --from takes a folder, an archive or an .npz file"
        )

    entry = CATALOG.get(request.name)
    if entry is not None and entry.add is not None:
        return entry.add(request)
    if entry is not None or _GLYPHS_NAME.fullmatch(request.name):
        raise DataError(
            f"'{request.name}' is made by cfsl itself; choose another name for your images"
        )

    if request.source.suffix == ".npz":
        return _add_arrays(request)
    folders = ClassFolders(request.source, _own_recipe(request, 64, 3))
    description = _own_description(request, folders.recipe, folders.splits)
    return _build(request, description, folders.images())


def _add_arrays(request: AddRequest) -> Dataset:
    arrays = read_array_file(request.source)
    height, width, channels = arrays.images.shape[1:]
    recipe = _own_recipe(request, height, channels)
    if request.size is None:
        recipe = recipe.replace(width=width)

    description = _own_description(request, recipe, arrays.splits)
    return _build(request, description, arrays.labelled(recipe))


def _own_recipe(request: AddRequest, size: int, channels: int) -> Recipe:
    """Return the recipe of a user's own images: antialiased, at the size asked for."""
    if request.recipe:
        raise DataError(
            f"'{request.recipe}' is no recipe of '{request.name}'; give --size, --channels and "
            f"--fit instead"
        )

    # The recipe checks these values, which may be any that the user wrote.
    fields: dict[str, Any] = {
        "height": request.size or size,
        "width": request.size or size,
        "channels": request.channels or channels,
        "fit": request.fit,
    }
    return Recipe(**fields)


def _own_description(
    request: AddRequest,
    recipe: Recipe,
    make_splits: Callable[[Sequence[str]], Mapping[str, Splits]],
) -> Description:
    return Description(
        name=request.save_as or request.name,
        title=request.name,
        source=f"from {request.source.name}",
        licence=request.licence,
        citation=request.citation,
        recipe=recipe,
        make_splits=make_splits,
    )


def _build(
    request: AddRequest, description: Description, images: Iterator[LabelledImage]
) -> Dataset:
    """Build a data set, with the user's own split as the default if there is one."""
    if (path := request.splits) is not None:
        own, make_others = read_splits(path), description.make_splits
        description = replace(
            description,
            make_splits=lambda names: _own_split_first(path, own, make_others(names)),
        )
    return build_dataset(
        description, images, root=request.root, replace=request.replace, progress=request.progress
    )


def _own_split_first(path: Path, own: Splits, others: Mapping[str, Splits]) -> dict[str, Splits]:
    """Put the user's split before the others; refuse one that has the name of another.

    The split 'reference', for instance, has to be the same for everybody.
    """
    if path.stem in others:
        raise DataError(
            f"{path}: the data set has a split '{path.stem}' of its own; rename your file"
        )
    return {path.stem: own, **others}


def fetch_dataset(
    name: str,
    *,
    recipe: str | None = None,
    root: Path | None = None,
    download_progress: BytesProgress | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Download a data set of the catalogue, or draw glyphs."""
    if is_glyphs(name):
        if recipe is not None:
            raise FetchError(f"{name} is drawn, and has no recipe '{recipe}'; leave --recipe out")
        return _make_glyphs(name, root=root, progress=progress)

    entry = lookup(CATALOG, name, "data set to fetch")
    if entry.urls is None or entry.add is None:
        raise FetchError(f"'{name}' has no public address; if you have it: {entry.how}")

    by_hand = (
        f"Without a network: bring the file(s) to this machine by other means and run "
        f"'cfsl data add {name} --from FOLDER'"
    )
    urls = entry.urls(f"{by_hand}.")
    by_hand += f". Needed: {' and '.join(urls)}"
    folder = (root or data_root()) / "downloads" / name
    paths = download(urls, folder, by_hand=by_hand, progress=download_progress)

    source = folder if len(paths) > 1 else paths[0]
    request = AddRequest(name=name, source=source, recipe=recipe, root=root, progress=progress)
    return entry.add(request)


def is_glyphs(name: str) -> bool:
    """Tell whether a name stands for glyphs, which can be drawn at any time."""
    return name == "glyphs" or _GLYPHS_NAME.fullmatch(name) is not None


def glyphs_counts(name: str) -> tuple[int, int]:
    """Return classes and samples of 'glyphs' or 'glyphs-CLASSESxSAMPLES'."""
    match = _GLYPHS_NAME.fullmatch(name)
    if match is None:
        return _GLYPHS_CLASSES, _GLYPHS_SAMPLES

    classes, samples = int(match[1]), int(match[2])
    if not (1 <= classes <= 250_000 and 1 <= samples <= 1_000):
        raise DataError(
            f"{name}: glyphs has from 1 to 250,000 classes of 1 to 1,000 samples, not "
            f"{classes:,} of {samples:,}"
        )
    return classes, samples


def _make_glyphs(
    name: str, *, root: Path | None = None, progress: Progress | None = None
) -> Dataset:
    """Open a data set of glyphs, drawing it first if it is not stored yet."""
    if current_folder(name, root) is not None:
        return open_dataset(name, root=root)

    classes, samples = glyphs_counts(name)
    description = Description(
        name=name,
        title="glyphs",
        source=f"drawn by cfsl, glyphs version {glyphs.VERSION}",
        licence="MIT",
        recipe=_GLYPHS_RECIPE,
        make_splits=lambda names: {"like_omniglot": cut_like_omniglot(names)},
    )
    images = _draw_in_parts(classes, samples)
    return build_dataset(description, images, root=root, progress=progress)


def _draw_in_parts(classes: int, samples: int) -> Iterator[LabelledImage]:
    """Yield all glyphs, some classes at a time, so that they need not be in memory together."""
    for first in range(0, classes, _GLYPHS_AT_ONCE):
        numbers = range(first, min(first + _GLYPHS_AT_ONCE, classes))
        images = glyphs.draw_glyphs(numbers, samples)

        for position, pixels in enumerate(images):
            class_name = glyphs.class_name(numbers[position // samples])
            yield LabelledImage(class_name, f"{position % samples:03d}", pixels[None])


def load(
    name: str,
    *,
    splits: str | Path | None = None,
    root: Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Open a data set by name; `glyphs` is drawn on first use.

    `splits` chooses one of its split files ('reference', 'sorted' or 'official' for Omniglot), or
    is the path of a split file.
    """
    if is_glyphs(name):
        _make_glyphs(name, root=root, progress=progress)
    return open_dataset(name, splits, root)
