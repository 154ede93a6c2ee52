"""Any folder (or archive) of images as a data set: class/*.png, or {train,val,test}/class/*.jpg."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from cfsl.data.archive import File, files_of
from cfsl.data.build import LabelledImage
from cfsl.data.recipe import Recipe
from cfsl.data.splits import PARTS, Splits, shuffled_split
from cfsl.errors import DataError

FOLDERS = "folders"
"""The name of the split that split folders make."""


class ClassFolders:
    """Reads images that lie in one folder a class, and remembers which part of the split each class came from."""

    def __init__(self, source: Path, recipe: Recipe) -> None:
        """Read `source` by `recipe`; nothing happens until images are asked for."""
        self.source = source
        self.recipe = recipe
        self.part_of_class: dict[str, str | None] = {}

    def images(self) -> Iterator[LabelledImage]:
        """Yield every image under its class, and refuse classes without images."""
        empty: set[PurePosixPath] = set()
        for file in files_of(self.source):
            if file.content is None:
                empty.add(file.path)
                continue
            empty.difference_update(file.path.parents)
            yield self._labelled(file, file.content)
        if empty:
            raise DataError(
                f"{self.source} has {len(empty)} folder(s) without images: {_some(empty)}. Remove them, or add images."
            )

    def _labelled(self, file: File, content: bytes) -> LabelledImage:
        """Tell part, class and name from the path of an image."""
        part, class_parts = _split_path(file.path)
        if not class_parts:
            raise DataError(
                f"{file.path} in {self.source} lies in no class folder; sort images into folders, one a class"
                + (
                    f" (a folder named '{part}' is a part of the split: rename it if it is a class)"
                    if part
                    else ""
                )
            )
        class_name = "/".join(class_parts)
        before = self.part_of_class.setdefault(class_name, part)
        if before != part:
            raise DataError(
                f"{self.source}: class '{class_name}' is in {before or 'no split folder'} and in "
                f"{part or 'no split folder'}; a class belongs to one part of the split. Rename or move one folder."
            )
        pixels = self.recipe.decode(content, f"{self.source}: {file.path}")
        return LabelledImage(class_name, file.path.name, pixels)

    def splits(self, class_names: Sequence[str]) -> Mapping[str, Splits]:
        """Return the split of the folders, or a shuffled one if they have none."""
        parts = set(self.part_of_class.values())
        if parts == {None}:
            return {"shuffled": shuffled_split(class_names)}
        if None in parts:
            outside = [name for name, part in self.part_of_class.items() if part is None]
            raise DataError(
                f"{self.source} has train, val or test folders, and {len(outside)} classes beside them: "
                f"{_some(outside)}. Move them into a split folder."
            )
        return {
            FOLDERS: {
                wanted: [name for name in class_names if self.part_of_class[name] == wanted]
                for wanted in PARTS
            }
        }


def _split_path(path: PurePosixPath) -> tuple[str | None, tuple[str, ...]]:
    """Cut a path into the part of the split, if there is one, and the folders that name the class.

    What stands before the part's folder is the archive's own top folder.
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
