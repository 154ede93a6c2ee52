"""The options that say which tasks are meant: the same for every command that takes tasks."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cfsl.errors import SpecError, lookup

if TYPE_CHECKING:
    from cfsl.data.store import Dataset
    from cfsl.data.tasks import Tasks
    from cfsl.spec import TaskSpec

_CONSTRUCTORS = {
    "A": "type_a",
    "B": "type_b",
    "C": "type_c",
    "D": "type_d",
    "few-shot": "few_shot",
    "wide": "wide",
    "deep": "deep",
    "instance": "instance",
}


@dataclass(frozen=True)
class Setting:
    """A data set, a split of it, and the kind of tasks to draw."""

    data: Annotated[str, typer.Option(help="Data set; see 'cfsl data list'.")] = "glyphs"
    splits: Annotated[str | None, typer.Option(help="Split file: a name from 'cfsl data info', or a path.")] = None
    split: Annotated[str, typer.Option(help="train, val, test or all.")] = "test"
    type: Annotated[str, typer.Option(help="A, B, C, D, few-shot, wide, deep or instance.")] = "B"
    nss: Annotated[int | None, typer.Option(help="Number of support sets.")] = None
    cci: Annotated[int | None, typer.Option(help="Class change interval, in support sets.")] = None
    n_way: Annotated[int | None, typer.Option(help="Classes in a support set.")] = None
    k_shot: Annotated[int | None, typer.Option(help="Images of a class in a support set.")] = None
    k_target: Annotated[int | None, typer.Option(help="Targets of a class.")] = None
    overwrite: Annotated[bool | None, typer.Option(help="New classes take the labels of old ones.")] = None
    per_support_set: Annotated[
        bool, typer.Option("--per-support-set", help="Draw k-target targets per class and support set.")
    ] = False
    noise: Annotated[float | None, typer.Option(help="Fraction of each target's values to replace.")] = None
    occlusion: Annotated[float | None, typer.Option(help="Radius of the occluder over the image's height.")] = None
    occluder: Annotated[str, typer.Option(help="disc or square.")] = "disc"
    seed: Annotated[int, typer.Option(help="Seed of the tasks.")] = 0
    sampler: Annotated[
        str, typer.Option(help="cfsl-1, or as_released_2020_04 / _08 for what the published code draws.")
    ] = "cfsl-1"

    def spec(self) -> TaskSpec:
        """Return the task spec that the options describe."""
        from cfsl.spec import TaskSpec

        constructor = getattr(TaskSpec, lookup(_CONSTRUCTORS, self.type, "task type"))
        names = ("nss", "cci", "n_way", "k_shot", "k_target", "overwrite")
        fields = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.per_support_set:
            fields["target_rule"] = "per_support_set"
        corruption = self._corruption()
        spec: TaskSpec = constructor(**fields | ({"corruption": corruption} if corruption else {}))
        return spec

    def _corruption(self) -> Any:
        from cfsl.spec import Noise, Occlusion

        if self.noise is not None and self.occlusion is not None:
            raise SpecError("--noise and --occlusion do not go together; give one")
        if self.noise is not None:
            return Noise(fraction=self.noise)
        if self.occlusion is not None:
            return Occlusion.from_json(dumps({"fraction": self.occlusion, "shape": self.occluder}))
        return None

    def open(self) -> Dataset:
        """Open the data set, drawing glyphs first if they are not there yet."""
        from cfsl.cli.console import counting
        from cfsl.data.catalog import glyphs_counts, is_glyphs, load
        from cfsl.data.store import current_folder

        splits = Path(self.splits) if self.splits and self.splits.endswith(".json") else self.splits
        if is_glyphs(self.data) and current_folder(self.data) is None:
            classes, samples = glyphs_counts(self.data)
            with counting(f"drawing {self.data}", classes * samples) as progress:
                return load(self.data, splits=splits, progress=progress)
        return load(self.data, splits=splits)

    def tasks(self, numbers: range) -> Tasks:
        """Return the tasks with these numbers."""
        from cfsl.data.tasks import Tasks

        spec = self.spec()
        return Tasks(self.open(), spec, split=self.split, seed=self.seed, numbers=numbers, sampler=self.sampler)


def takes_setting(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Setting`; it receives them as its first argument."""
    hints = typing.get_type_hints(Setting, include_extras=True)
    names = [field.name for field in dataclasses.fields(Setting)]

    @functools.wraps(command)
    def with_options(**options: Any) -> None:
        setting = Setting(**{name: options.pop(name) for name in names})
        command(setting, **options)

    own = inspect.signature(command, eval_str=True).parameters.values()
    added = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(Setting)
    ]
    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in list(own)[1:]]
    with_options.__signature__ = inspect.Signature(added + kept)  # type: ignore[attr-defined]
    return with_options
