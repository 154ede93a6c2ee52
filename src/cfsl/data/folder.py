"""A folder or archive of images as a data set: class/*.png, or {train,val,test}/class/*.jpg."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from cfsl.data.archive import File, files_of
from cfsl.data.build import LabelledImage
from cfsl.data.recipe import Recipe
from cfsl.data.splits import PARTS, Splits, shuffled_split
from cfsl.errors import DataError

FOLDERS = "folders"
"""The name of the split that train, val and test folders make."""


class ClassFolders:
    """Reads images from one folder per class, and notes which part of the split each came from."""

    def __init__(self, source: Path, recipe: Recipe) -> None:
        """Take a source and the recipe for its pixels; images are read when they are asked for."""
        self.source = source
        self.recipe = recipe
        self.part_of_class: dict[str, str | None] = {}

    def images(self) -> Iterator[LabelledImage]:
        """Yield every image under its class; refuse folders without images."""
        empty: set[PurePosixPath] = set()
        for file in files_of(self.source):
            if file.content is None:
                empty.add(file.path)
                continue

            empty.difference_update(file.path.parents)
            yield self._labelled(file, file.content)

        if empty:
            raise DataError(
                f"{self.source} has {len(empty)} folder(s) without images: {_some(empty)}. Remove "
                f"them, or add images."
            )

    def _labelled(self, file: File, content: bytes) -> LabelledImage:
        """Take part, class and name of an image from its path."""
        part, class_folders = _split_path(file.path)
        if not class_folders:
            hint = f" (a folder named '{part}' is a part of the split: rename it if it is a class)"
            raise DataError(
                f"{file.path} in {self.source} lies in no class folder; sort images into folders, "
                f"one a class{hint if part else ''}"
            )

        class_name = "/".join(class_folders)
        earlier = self.part_of_class.setdefault(class_name, part)
        if earlier != part:
            raise DataError(
                f"{self.source}: class '{class_name}' is in {earlier or 'no split folder'} and in "
                f"{part or 'no split folder'}; a class belongs to one part of the split. Rename or "
                f"move one folder."
            )

        pixels = self.recipe.decode(content, f"{self.source}: {file.path}")
        return LabelledImage(class_name, file.path.name, pixels)

    def splits(self, class_names: Sequence[str]) -> Mapping[str, Splits]:
        """Return the split of the folders, or a shuffled split if they make none."""
        parts = set(self.part_of_class.values())
        if parts == {None}:
            return {"shuffled": shuffled_split(class_names)}

        if None in parts:
            outside = [name for name, part in self.part_of_class.items() if part is None]
            raise DataError(
                f"{self.source} has train, val or test folders, and {len(outside)} classes beside "
                f"them: {_some(outside)}. Move them into a split folder."
            )

        def classes_of(part: str) -> list[str]:
            return [name for name in class_names if self.part_of_class[name] == part]

        return {FOLDERS: {part: classes_of(part) for part in PARTS}}


def _split_path(path: PurePosixPath) -> tuple[str | None, tuple[str, ...]]:
    """Return the part of the split, if the path has one, and the folders that name the class.

    A folder before that of the part is the top folder of the archive.
    """
    folders = path.parts[:-1]
    for depth, folder in enumerate(folders):
        if folder in PARTS and depth <= 1:
            return folder, folders[depth + 1 :]
    return None, folders


def _some(names: Sequence[str] | set[PurePosixPath]) -> str:
    """List the first three names."""
    listed = sorted(str(name) for name in names)
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
