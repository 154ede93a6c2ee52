"""The specification of a task, as a frozen and checked value; docs/SPEC.md has the numbered rules.

Antoniou, Patacchiola, Ochal and Storkey, "Defining Benchmarks for Continual Few-Shot Learning"
(2020, here paper 1), and "Specification of Continual Few-Shot Learning Tasks", version 1.0; for
the instance test and its corruptions Kowadlo et al., "Expanding continual few-shot learning
benchmarks to include recognition of specific instances" (2022, here paper 2).
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from typing import Annotated, Any, Literal, NamedTuple, Self, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cfsl.errors import SpecError, did_you_mean

Kind = Literal["class", "instance"]
TargetRule = Literal["per_class", "per_support_set", "same_images"]
TaskType = Literal["A", "B", "C", "D", "D-overwrite", "few-shot", "instance"]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
AcceptsList = Field(strict=False)
"""Marks a tuple that may be given as a list, since JSON has no tuples."""


class Taxonomy(NamedTuple):
    """The place of a task type in two taxonomies of continual learning (paper 1, Table 3)."""

    van_de_ven: Literal["Class-IL", "Domain-IL"] | None
    maltoni: Literal["SIT-NI", "SIT-NC", "SIT-NIC"] | None


_TAXONOMY = {
    "A": Taxonomy(None, "SIT-NI"),
    "B": Taxonomy("Class-IL", "SIT-NC"),
    "C": Taxonomy("Domain-IL", None),
    "D": Taxonomy(None, "SIT-NIC"),
}


class FrozenSpec(BaseModel):
    """A value whose fields are all known, checked when it is made, and never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **fields: Any) -> None:
        """Check the fields, which are given by name."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise SpecError(_first_problem(type(self), error)) from None

    def canonical_json(self) -> str:
        """Return the JSON that identifies this value: sorted keys, no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `canonical_json` wrote, as strictly as the constructor."""
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise SpecError(f"this is not JSON: {error}") from None

        if not isinstance(fields, dict):
            raise SpecError(f"{cls.__name__} needs a JSON object, not {reprlib.repr(fields)}")
        return cls(**fields)

    def replace(self, **changes: Any) -> Self:
        """Return this value with some fields changed, checked again."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**fields | changes)


class Noise(FrozenSpec):
    """Replaces a fraction of an image's values, in each channel others, by U[0, 1)."""

    kind: Literal["noise"] = "noise"
    fraction: Fraction


class Occlusion(FrozenSpec):
    """Covers a disc or square at a random place, of radius floor(fraction x height)."""

    kind: Literal["occlusion"] = "occlusion"
    shape: Literal["disc", "square"] = "disc"
    fraction: Fraction
    value: Annotated[float, Field(ge=0, le=1)] = 0.0


Corruption = Annotated[Noise | Occlusion, Field(discriminator="kind")]


class TargetFields(TypedDict, total=False):
    """The fields of a `TaskSpec` that concern its targets; most constructors take them by name."""

    k_target: int
    target_rule: TargetRule
    corruption: Noise | Occlusion | None


class TaskSpec(FrozenSpec):
    """How the tasks of an experiment are drawn and labelled.

    Example: ``TaskSpec.type_d(nss=4, cci=2)`` or ``TaskSpec(nss=3, cci=1, overwrite=False)``.
    """

    kind: Kind = "class"
    nss: Count
    n_way: Count = 5
    k_shot: Count = 1
    k_target: Count = 5
    cci: Count = 1
    overwrite: bool = False
    target_rule: TargetRule = "per_class"
    corruption: Corruption | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        """Refuse combinations of fields that have no meaning."""
        same_images = self.target_rule == "same_images"
        if (self.kind == "instance") != same_images:
            raise ValueError(
                f"kind='{self.kind}' does not go with target_rule='{self.target_rule}'; the "
                f"instance test has target_rule='same_images' and no other kind has it: use "
                f"TaskSpec.instance(...)"
            )

        if self.kind == "instance" and (self.overwrite or self.cci < self.nss):
            raise ValueError(
                f"the instance test keeps its classes and gives every image a label of its own: it "
                f"needs cci >= nss and overwrite=False, not cci={self.cci}, nss={self.nss}, "
                f"overwrite={self.overwrite}"
            )

        if self.kind == "instance" and self.k_target > 1 and self.corruption is None:
            raise ValueError(
                f"k_target={self.k_target} clean copies of an image are {self.k_target} times the "
                f"same target; set k_target=1 or give a corruption"
            )
        return self

    @classmethod
    def type_a(
        cls, nss: int = 3, *, n_way: int = 5, k_shot: int = 1, **targets: Unpack[TargetFields]
    ) -> Self:
        """Task type A, new samples: the same classes in every support set."""
        return cls(nss=nss, cci=nss, overwrite=True, n_way=n_way, k_shot=k_shot, **targets)

    @classmethod
    def type_b(
        cls, nss: int = 3, *, n_way: int = 5, k_shot: int = 1, **targets: Unpack[TargetFields]
    ) -> Self:
        """Task type B, new classes: every support set has its own classes and labels."""
        return cls(nss=nss, cci=1, overwrite=False, n_way=n_way, k_shot=k_shot, **targets)

    @classmethod
    def type_c(
        cls, nss: int = 3, *, n_way: int = 5, k_shot: int = 1, **targets: Unpack[TargetFields]
    ) -> Self:
        """Task type C, new classes with overwrite: new classes, the same N labels every time."""
        return cls(nss=nss, cci=1, overwrite=True, n_way=n_way, k_shot=k_shot, **targets)

    @classmethod
    def type_d(
        cls,
        nss: int = 4,
        cci: int = 2,
        *,
        n_way: int = 5,
        k_shot: int = 1,
        overwrite: bool = False,
        **targets: Unpack[TargetFields],
    ) -> Self:
        """Task type D, new classes with new samples: classes change every cci support sets."""
        return cls(nss=nss, cci=cci, overwrite=overwrite, n_way=n_way, k_shot=k_shot, **targets)

    @classmethod
    def few_shot(cls, *, n_way: int = 5, k_shot: int = 1, **targets: Unpack[TargetFields]) -> Self:
        """Ordinary few-shot learning: one support set."""
        return cls(nss=1, cci=1, overwrite=False, n_way=n_way, k_shot=k_shot, **targets)

    @classmethod
    def wide(
        cls, n_way: int = 10, nss: int = 4, *, k_shot: int = 1, **targets: Unpack[TargetFields]
    ) -> Self:
        """Few, large support sets (paper 2: Wide 1 has n_way=10, Wide 2 n_way=100)."""
        return cls(nss=nss, cci=2, n_way=n_way, k_shot=k_shot, **targets)

    @classmethod
    def deep(
        cls, nss: int = 20, n_way: int = 2, *, k_shot: int = 1, **targets: Unpack[TargetFields]
    ) -> Self:
        """Many, small support sets (paper 2: Deep 1 has nss=20, n_way=2, Deep 2 has 80 and 5)."""
        return cls(nss=nss, cci=2, n_way=n_way, k_shot=k_shot, **targets)

    @classmethod
    def instance(
        cls,
        nss: int = 4,
        k_shot: int = 5,
        *,
        n_way: int = 1,
        k_target: int = 1,
        corruption: Noise | Occlusion | None = None,
    ) -> Self:
        """The instance test: every image has a label of its own and comes back as a target."""
        return cls(
            kind="instance",
            nss=nss,
            cci=nss,
            n_way=n_way,
            k_shot=k_shot,
            k_target=k_target,
            target_rule="same_images",
            corruption=corruption,
        )

    @property
    def interval(self) -> int:
        """The class change interval in force: a CCI above NSS acts as CCI = NSS (rule 4)."""
        return min(self.cci, self.nss)

    @property
    def groups(self) -> int:
        """The number of groups of support sets that share their classes: ceil(nss / cci)."""
        return -(-self.nss // self.interval)

    @property
    def classes(self) -> int:
        """The number of different classes in a task."""
        return self.n_way * self.groups

    @property
    def labels(self) -> int:
        """The number of different labels in a task, which is the number of output units."""
        if self.kind == "instance":
            return self.nss * self.n_way * self.k_shot
        return self.n_way if self.overwrite else self.classes

    @property
    def images_per_class(self) -> int:
        """The number of different images that a class of the first group gives to a task."""
        supports = self.interval * self.k_shot

        if self.target_rule == "per_class":
            return supports + self.k_target
        if self.target_rule == "per_support_set":
            return supports + self.interval * self.k_target
        return supports

    @property
    def support_images(self) -> int:
        """The number of images in all support sets of a task."""
        return self.nss * self.n_way * self.k_shot

    @property
    def target_images(self) -> int:
        """The number of targets in a task."""
        if self.target_rule == "per_class":
            return self.classes * self.k_target
        if self.target_rule == "per_support_set":
            return self.nss * self.n_way * self.k_target
        return self.labels * self.k_target

    @property
    def task_type(self) -> TaskType:
        """The letter of paper 1, or the name of a task type without a letter."""
        if self.kind == "instance":
            return "instance"
        if self.nss == 1:
            return "few-shot"
        if self.groups == 1:
            return "A"
        if self.cci == 1:
            return "C" if self.overwrite else "B"
        return "D-overwrite" if self.overwrite else "D"

    @property
    def taxonomy(self) -> Taxonomy:
        """The names of this task type in the literature on continual learning, where it has one."""
        return _TAXONOMY.get(self.task_type, Taxonomy(None, None))

    @property
    def hash(self) -> str:
        """The sha256 of the canonical JSON: the name of this spec in files and cards."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    def draw_json(self) -> str:
        """Return the JSON of those fields that decide which images are drawn (rule 17).

        Overwriting changes labels and corruption changes pixels, but neither changes the draw, so
        that such tasks can be compared pairwise; a CCI above NSS is the CCI in force.
        """
        fields = self.model_dump(mode="json", exclude={"overwrite", "corruption"})
        fields["cci"] = self.interval
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _first_problem(cls: type[FrozenSpec], error: ValidationError) -> str:
    """Say the first thing that is wrong with a spec, in a sentence."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])

    if first["type"] == "extra_forbidden":
        known = list(cls.model_fields)
        hint = did_you_mean(str(first["loc"][-1]), known)
        return f"{cls.__name__} has no field '{field}'{hint} Fields: {', '.join(known)}."
    if first["type"] == "missing":
        return f"{cls.__name__} needs '{field}'; give {field}=..."

    message = first["msg"].removeprefix("Value error, ")
    if not field:
        return message
    value = reprlib.repr(first["input"])
    return f"{cls.__name__}.{field}={value} is refused: {message[0].lower()}{message[1:]}"
