"""Whether a spec can be drawn from classes of given sizes, and the nearest spec that can."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Integer

from cfsl.errors import InfeasibleSpecError
from cfsl.spec import TaskSpec

# The data set "glyphs" is drawn in any size up to this one, and by default like Omniglot.
_MOST_GLYPHS_CLASSES, _MOST_GLYPHS_SAMPLES = 250_000, 1_000
_GLYPHS_CLASSES, _GLYPHS_SAMPLES = 1623, 20
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
    """Return the feasible spec that differs least, in one field; None if there is none."""
    candidates = list(_one_field_less(class_sizes, spec))
    if not candidates:
        return None
    return min(candidates, key=lambda candidate: candidate[0])[1]


def _one_field_less(
    class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec
) -> Iterator[tuple[float, TaskSpec]]:
    """Yield the share of one field that is given up, and the feasible spec that this makes."""
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
    """Return the feasible spec with the largest value of a field below the present one, or None."""
    low, high = 0, getattr(spec, field)  # low is feasible, if it is not 0; high need not be
    while high - low > 1:
        middle = (low + high) // 2
        if is_feasible(class_sizes, _with(spec, field, middle)):
            low = middle
        else:
            high = middle

    return _with(spec, field, low) if low else None


def _with(spec: TaskSpec, field: str, value: int) -> TaskSpec:
    """Change one field; where CCI was NSS, it follows NSS, so that one group stays one group."""
    changes = {field: value}
    if field == "nss" and spec.cci >= spec.nss:
        changes["cci"] = value
    return spec.replace(**changes)


def require_feasible(
    class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec, where: str
) -> None:
    """Refuse an infeasible spec; the error has the numbers and the nearest feasible spec."""
    if is_feasible(class_sizes, spec):
        return

    have = len(class_sizes)
    if have < spec.classes:
        groups = f" ({spec.groups} groups of {spec.n_way})" if spec.groups > 1 else ""
        problem = f"{where} has {have} classes; this task needs {spec.classes}{groups}"
    else:
        large = int(eligible(class_sizes, spec).sum())
        problem = (
            f"{where} has {large} classes with at least {spec.images_per_class} images (its "
            f"largest has {int(class_sizes.max())}); this task needs {spec.classes} such classes "
            f"({_image_sum(spec)})"
        )

    raise InfeasibleSpecError(f"{problem}. {_advice(class_sizes, spec)}")


def _image_sum(spec: TaskSpec) -> str:
    """Say how the number of images per class is made up."""
    shown = f"{spec.interval} x {spec.k_shot} shown"
    if spec.target_rule == "same_images":
        return shown
    if spec.target_rule == "per_class":
        return f"{shown} + {spec.k_target} as targets"
    return f"{shown} + {spec.interval} x {spec.k_target} as targets"


def _advice(class_sizes: Integer[np.ndarray, " classes"], spec: TaskSpec) -> str:
    """Name the smallest change that makes the spec feasible."""
    near = nearest_feasible(class_sizes, spec)
    if near is None:
        advice = "Take the classes of all parts with split='all'"
    elif near.target_rule != spec.target_rule:
        advice = f"Set target_rule='{near.target_rule}'"
    else:
        field = next(name for name in _REDUCIBLE if getattr(near, name) != getattr(spec, name))
        advice = f"Lower {field} to {getattr(near, field)}"

    # The test split of glyphs has an eighth of its classes, and a little more.
    classes = max(_GLYPHS_CLASSES, 8 * spec.classes)
    samples = max(_GLYPHS_SAMPLES, spec.images_per_class)
    if classes <= _MOST_GLYPHS_CLASSES and samples <= _MOST_GLYPHS_SAMPLES:
        advice += f", or use data='glyphs-{classes}x{samples}', which is drawn to fit"
    return f"{advice}."
