"""The options of every command that works on tasks."""

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
    from cfsl.runs.run_spec import LearnerSpec, RunSpec
    from cfsl.runs.weights import Weights
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


def _option(panel: str, text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel)


_data = functools.partial(_option, "Data")
_tasks = functools.partial(_option, "Tasks")
_corruption = functools.partial(_option, "Corruption of the targets")


@dataclass(frozen=True)
class TaskOptions:
    """The options that say which tasks a command works on: data set, split, and kind of task."""

    data: Annotated[str, _data("Data set; 'cfsl data list' shows which there are.")] = "glyphs"
    splits: Annotated[
        str | None, _data("Split file: a name from 'cfsl data info', or the path of your own.")
    ] = None
    split: Annotated[
        str, _data("Part of the split that classes come from: train, val, test or all.")
    ] = "test"
    type: Annotated[
        str, _tasks("A, B, C, D, few-shot, wide, deep or instance; the options below change it.")
    ] = "B"
    nss: Annotated[int | None, _tasks("Number of support sets.")] = None
    cci: Annotated[
        int | None, _tasks("Class change interval: new classes come every so many support sets.")
    ] = None
    n_way: Annotated[int | None, _tasks("Classes in a support set.")] = None
    k_shot: Annotated[int | None, _tasks("Images of a class in a support set.")] = None
    k_target: Annotated[int | None, _tasks("Targets of a class.")] = None
    overwrite: Annotated[bool | None, _tasks("New classes take over the labels of old ones.")] = (
        None
    )
    per_support_set: Annotated[
        bool,
        _tasks(
            "Draw k-target targets of a class for every support set it is in.", "--per-support-set"
        ),
    ] = False
    seed: Annotated[int, _tasks("Seed of the tasks.")] = 0
    sampler: Annotated[
        str,
        _tasks(
            "cfsl-1; as_released_2020_04 and as_released_2020_08 draw what the published code "
            "draws."
        ),
    ] = "cfsl-1"
    noise: Annotated[
        float | None, _corruption("Fraction of each target's values to replace, up to 1.")
    ] = None
    occlusion: Annotated[
        float | None, _corruption("Radius of the occluder, over the image's height, up to 1.")
    ] = None
    occluder: Annotated[
        str | None, _corruption("Shape of the occluder: disc (the default) or square.")
    ] = None

    def spec(self) -> TaskSpec:
        """Return the task spec that the options describe."""
        from cfsl.spec import TaskSpec

        constructor = lookup(_CONSTRUCTORS, _spelled(self.type), "task type")
        sizes = self._given("nss", "n_way", "k_shot", "k_target")
        changes = self._given("cci", "overwrite")
        if constructor == "few_shot" and "nss" in sizes:
            changes["nss"] = sizes.pop("nss")  # it makes one support set, and takes no number
        if self.per_support_set:
            changes["target_rule"] = "per_support_set"

        spec: TaskSpec = getattr(TaskSpec, constructor)(**sizes, corruption=self.corruption())
        return spec.replace(**changes)

    def _given(self, *names: str) -> dict[str, Any]:
        """Return those of the named options that the user gave."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def corruption(self) -> Any:
        """Return the corruption that the options describe, or None."""
        from cfsl.spec import Noise, Occlusion

        if self.occluder is not None and self.occlusion is None:
            raise SpecError(
                "--occluder is the shape of an occlusion; give its size with --occlusion"
            )
        if self.noise is not None and self.occlusion is not None:
            raise SpecError("--noise and --occlusion do not go together; give one")

        if self.noise is not None:
            return Noise(fraction=self.noise)
        if self.occlusion is not None:
            fields = {"fraction": self.occlusion, "shape": self.occluder or "disc"}
            return Occlusion.from_json(dumps(fields))
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
        return Tasks(
            self.open(),
            spec,
            split=self.split,
            seed=self.seed,
            numbers=numbers,
            sampler=self.sampler,
        )

    def run(self, learner: LearnerSpec, tasks: Tasks, weights: Weights, **fields: Any) -> RunSpec:
        """Return the run of a learner with these weights on these tasks."""
        from cfsl.cards.schema import OWN
        from cfsl.runs.data import data_spec
        from cfsl.runs.run_spec import RunSpec
        from cfsl.runs.weights import origin_of

        data = data_spec(tasks.data, self.splits)
        origin = origin_of(weights, learner, data, tasks.data.splits_name)

        return RunSpec(
            profile=OWN,
            learner=learner,
            data=data,
            task=tasks.spec,
            split=tasks.split,
            tasks=len(tasks),
            task_seed=tasks.seed,
            sampler=tasks.sampler,
            **origin,
            **fields,
        )


def _spelled(task_type: str) -> str:
    """Take 'b' for 'B' and 'Deep' for 'deep'."""
    return task_type.upper() if len(task_type) == 1 else task_type.lower()


def takes_task_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of `TaskOptions` as options; it receives them as one value."""
    fields = dataclasses.fields(TaskOptions)
    hints = typing.get_type_hints(TaskOptions, include_extras=True)

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        options = TaskOptions(**{field.name: values.pop(field.name) for field in fields})
        command(options, **values)

    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    kept = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields
    ]
    with_options.__signature__ = inspect.Signature(added + kept)  # type: ignore[attr-defined]
    return with_options
