"""A learner with some hyper-parameters changed, those of inner values by their dotted names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cfsl.errors import SpecError, did_you_mean


def changed(learner: Any, changes: Mapping[str, Any], where: str = "") -> Any:
    """Return the learner with some hyper-parameters changed.

    Those of inner values are given by their dotted names; `where` is the path to this one.
    """
    if not changes:
        return learner
    if isinstance(learner, str) or not hasattr(learner, "replace"):
        raise SpecError(f"{where or type(learner).__name__} has no hyper-parameters to change")

    own, inner = _by_field(changes)
    for name, inner_changes in inner.items():
        path = f"{where}.{name}" if where else name
        if name in own:
            raise SpecError(
                f"{path} and {path}.{next(iter(inner_changes))} are both given; give one of them"
            )
        own[name] = changed(_field(learner, name), inner_changes, path)

    return learner.replace(**own)


def place_of(learner: Any, field: str) -> str | None:
    """Return the dotted name of a field of a learner, or of the learner that it wraps."""
    fields = getattr(type(learner), "model_fields", {})
    if field in fields:
        return field
    inner = place_of(learner.inner, field) if "inner" in fields else None
    return None if inner is None else f"inner.{inner}"


def value_at(learner: Any, path: str) -> Any:
    """Return the value at a dotted name."""
    for field in path.split("."):
        learner = getattr(learner, field)
    return learner


def field_of(learner: Any, field: str) -> Any:
    """Return a field of a learner, or of the learner that it wraps; None if neither has it."""
    place = place_of(learner, field)
    return None if place is None else value_at(learner, place)


def _by_field(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Tell a learner's own fields from those of inner values."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        name, dot, rest = path.partition(".")
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            own[name] = value

    return own, inner


def _field(learner: Any, name: str) -> Any:
    """Return a field, or say which there are."""
    known = list(getattr(type(learner), "model_fields", ()))
    if not hasattr(learner, name):
        hint = did_you_mean(name, known)
        raise SpecError(
            f"{type(learner).__name__} has no field '{name}'{hint} Fields: {', '.join(known)}."
        )
    return getattr(learner, name)
