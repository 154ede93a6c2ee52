"""Can this spec be drawn from classes of these sizes? If not, which spec near it can?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Integer

from cfsl.errors import InfeasibleSpecError
from cfsl.spec import TaskSpec

_MOST_GLYPHS = (250_000, 1_000)  # classes, samples
_REDUCIBLE = ("nss", "n_way", "k_target", "k_shot")


def eligible(
    class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec
) -> Bool[np.ndarray, " classes"]:
    """Tell which classes hold enough images for a task (rule 13)."""
    return np.asarray(class_sizes >= spec.images_per_class)


def is_feasible(class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec) -> bool:
    """Tell whether a task of this spec can be drawn."""
    return int(eligible(class_sizes, spec).sum()) >= spec.classes


def nearest_feasible(
    class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec
) -> TaskSpec | None:
    """Return the spec that can be drawn and differs least, in one field; None if there is none."""
    candidates = list(_one_field_less(class_sizes, spec))
    return min(candidates, key=lambda pair: pair[0])[1] if candidates else None


def _one_field_less(
    class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec
) -> Iterator[tuple[float, TaskSpec]]:
    """Yield feasible specs that differ in one field, with the share of that field that was given up."""
    if spec.target_rule == "per_support_set":
        per_class = spec.replace(target_rule="per_class")
        if is_feasible(class_sizes, per_class):
            yield 0.0, per_class
    for field in _REDUCIBLE:
        less = most_feasible(class_sizes, spec, field)
        if less is not None:
            yield 1 - getattr(less, field) / getattr(spec, field), less


def most_feasible(
    class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec, field: str
) -> TaskSpec | None:
    """Return the spec with the most of one field, but less than asked for, that can be drawn; None if there is none."""
    low, high = 0, getattr(spec, field)
    while high - low > 1:
        middle = (low + high) // 2
        if is_feasible(class_sizes, _with(spec, field, middle)):
            low = middle
        else:
            high = middle
    return _with(spec, field, low) if low else None


def _with(spec: TaskSpec, field: str, value: int) -> TaskSpec:
    """Change one field, keeping CCI at NSS where it was (one group stays one group)."""
    changes = {field: value}
    if field == "nss" and spec.cci >= spec.nss:
        changes["cci"] = value
    return spec.replace(**changes)


def require_feasible(
    class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec, where: str
) -> None:
    """Refuse a spec that cannot be drawn, with the numbers and the nearest one that can."""
    if is_feasible(class_sizes, spec):
        return
    have = len(class_sizes)
    if have < spec.classes:
        groups = f" ({spec.groups} groups of {spec.n_way})" if spec.groups > 1 else ""
        problem = f"{where} has {have} classes; this task needs {spec.classes}{groups}"
    else:
        large = int(eligible(class_sizes, spec).sum())
        problem = (
            f"{where} has {large} classes with at least {spec.images_per_class} images (its largest has "
            f"{int(class_sizes.max())}); this task needs {spec.classes} such classes ({_image_sum(spec)})"
        )
    raise InfeasibleSpecError(f"{problem}. {_advice(class_sizes, spec)}")


def _image_sum(spec: TaskSpec) -> str:
    """Say how the number of images a class comes about."""
    shown = f"{spec.interval} x {spec.k_shot} shown"
    if spec.target_rule == "same_images":
        return shown
    targets = (
        f"{spec.k_target}"
        if spec.target_rule == "per_class"
        else f"{spec.interval} x {spec.k_target}"
    )
    return f"{shown} + {targets} as targets"


def _advice(class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec) -> str:
    """Name the smallest change that makes the spec feasible."""
    # The test split of glyphs has an eighth of its classes, and a little more.
    classes, images = max(1623, 8 * spec.classes), max(20, spec.images_per_class)
    ways = []
    near = nearest_feasible(class_sizes, spec)
    if near is not None and near.target_rule != spec.target_rule:
        ways.append(f"set target_rule='{near.target_rule}'")
    elif near is not None:
        field = next(name for name in _REDUCIBLE if getattr(near, name) != getattr(spec, name))
        ways.append(f"lower {field} to {getattr(near, field)}")
    else:
        ways.append("take the classes of all parts with split='all'")
    if classes <= _MOST_GLYPHS[0] and images <= _MOST_GLYPHS[1]:
        ways.append(f"use data='glyphs-{classes}x{images}', which is drawn to fit")
    return f"{ways[0][0].upper()}{', or '.join(ways)[1:]}."
