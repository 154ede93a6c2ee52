"""What can be varied in a learner and its training, by name.

Names are those of --set (lr, inner.lr, net.widths ...), those of the schedule (training.rate, training.epochs ...), and
the words of paper 2 (Kowadlo et al. 2022, section 3.4 and appendix 7.4), wherever the learner has what they stand for:

    filters, blocks   of the VGG variant, which takes the place of the learner's own network
    rate              of fine-tuning; training has a tenth of it, as in the published configurations
    b, p              support sets in the buffer of replay, and samples taken from it in a step
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cfsl.errors import SpecError, did_you_mean
from cfsl.learners.overrides import changed, place_of, value_at
from cfsl.learners.registry import find_learner
from cfsl.nets.convnet import ConvNet, Order, vgg
from cfsl.spec import FrozenSpec
from cfsl.training.training_spec import Schedule, Training

TRAINING = "training."
_INNER_OVER_OUTER = 10
_PLAIN = {"b": "sets", "p": "samples"}
_SHAPE = ("filters", "blocks")
_RATE = "rate"


class Settings(NamedTuple):
    """What values by any names come to."""

    changes: dict[str, Any]
    """Of the learner, as --set and `cfsl bench --settings` take them."""
    training: Training | None


class Knobs:
    """All that can be varied in a learner, around what it is by itself or was set to."""

    def __init__(self, learner: str, base: Mapping[str, Any], training: Training | None) -> None:
        """Take a learner by its name, values that stay unless they are varied, and how it is trained, if it is."""
        self._name, self._base, self._training = learner, dict(base), training
        self._learner = find_learner(learner)
        for name in base:
            self.require(name)

    def names(self) -> list[str]:
        """Return all names, those of inner values dotted."""
        own = list(_leaves(self._learner))
        words = [word for word, field in _PLAIN.items() if place_of(self._learner, field)]
        if place_of(self._learner, "net"):
            words += _SHAPE
        if self._training is not None or place_of(self._learner, "lr"):
            words.append(_RATE)
        schedule = (
            [f"{TRAINING}{field}" for field in Schedule.model_fields] if self._training else []
        )
        return [*own, *(word for word in words if word not in own), *schedule]

    def require(self, name: str) -> None:
        """Refuse a name that nothing here has."""
        known = self.names()
        if name in known or (not name.startswith(TRAINING) and _has(self._learner, name)):
            return
        if name.startswith(TRAINING) and self._training is None:
            raise SpecError(f"{self._name} is not trained, so it has no '{name}'")
        if not known:
            raise SpecError(f"{self._name} has no hyper-parameters, so there is nothing to vary")
        hint = did_you_mean(name, known)
        raise SpecError(
            f"{self._name} has no hyper-parameter '{name}'{hint} It has: {', '.join(known)}."
        )

    def centre(self, name: str) -> Any:
        """Return the value that a hyper-parameter has if it is not varied, ready for JSON."""
        self.require(name)
        if name in self._base:
            return self._base[name]
        changes, training = self.settings({})
        learner = changed(self._learner, changes)
        if name in _SHAPE:
            return _shape(value_at(learner, str(place_of(learner, "net"))), self._name)[
                _SHAPE.index(name)
            ]
        if name == _RATE:
            place = place_of(learner, "lr")
            return (
                value_at(learner, place)
                if place
                else _INNER_OVER_OUTER * _of(training).schedule.rate
            )
        if name.startswith(TRAINING):
            return getattr(_of(training).schedule, name.removeprefix(TRAINING))
        field = _PLAIN.get(name)
        value = value_at(learner, str(place_of(learner, field)) if field else name)
        return _plain(value)

    def settings(self, values: Mapping[str, Any]) -> Settings:
        """Return what the base and these values come to; refuse what two of them claim."""
        changes: dict[str, Any] = {}
        schedule: dict[str, Any] = {}
        whose: dict[str, str] = {}
        shape: dict[str, int] = {}
        for name, value in (self._base | dict(values)).items():
            if name in _SHAPE and not _has(self._learner, name):
                shape[name] = _number(name, value, int)
                continue
            for place, placed in self._placed(name, value):
                if place in whose:
                    raise SpecError(
                        f"{whose[place]} and {name} both say what {place} is; give one of them"
                    )
                whose[place] = name
                target, key = (
                    (schedule, place[len(TRAINING) :])
                    if place.startswith(TRAINING)
                    else (changes, place)
                )
                target[key] = placed
        if shape:
            changes |= self._net(changes, shape)
        training = self._training
        if training is not None and schedule:
            training = training.replace(schedule=training.schedule.replace(**schedule))
        return Settings(changes, training)

    def _placed(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Say where a value goes."""
        if name in _PLAIN and not _has(self._learner, name):
            yield str(place_of(self._learner, _PLAIN[name])), value
        elif name == _RATE and not _has(self._learner, name):
            if place := place_of(self._learner, "lr"):
                yield place, value
            if self._training is not None:
                yield f"{TRAINING}rate", _number(name, value, (int, float)) / _INNER_OVER_OUTER
        else:
            yield name, value

    def _net(self, changes: Mapping[str, Any], shape: Mapping[str, int]) -> dict[str, Any]:
        """Return the VGG variant; what of its shape is not given is that of the network it takes the place of."""
        place = str(place_of(self._learner, "net"))
        net = value_at(changed(self._learner, changes), place)
        own = dict(shape)
        if len(own) < len(_SHAPE):
            own = dict(zip(_SHAPE, _shape(net, self._name), strict=True)) | own
        order: Order = net.order if isinstance(net, ConvNet) else "conv-norm-act"
        return {place: vgg(own["filters"], own["blocks"], order).model_dump(mode="json")}


def _leaves(value: Any, before: str = "") -> Iterator[str]:
    """Yield the dotted names of all that is no spec itself."""
    for field in getattr(type(value), "model_fields", {}):
        inner = getattr(value, field)
        if isinstance(inner, FrozenSpec):
            yield from _leaves(inner, f"{before}{field}.")
        elif field != "kind":
            yield before + field


def _has(learner: Any, path: str) -> bool:
    """Tell whether a dotted name is that of a field."""
    field, dot, rest = path.partition(".")
    if field not in getattr(type(learner), "model_fields", {}) or field == "kind":
        return False
    return not dot or _has(getattr(learner, field), rest)


def _plain(value: Any) -> Any:
    if isinstance(value, FrozenSpec):
        return value.model_dump(mode="json")
    return list(value) if isinstance(value, tuple) else value


def _shape(net: Any, learner: str) -> tuple[int, int]:
    """Return how many filters a network has in its first block, and how many blocks."""
    widths = getattr(net, "widths", None)
    if not widths:
        raise SpecError(
            f"the network of {learner} has no filters and blocks to begin with; give both, by --set"
        )
    return widths[0], len(widths)


def _number(name: str, value: Any, kind: type | tuple[type, ...]) -> Any:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise SpecError(
            f"{name}={json.dumps(value)} is refused: it must be a {'whole ' if kind is int else ''}number"
        )
    return value


def _of(training: Training | None) -> Training:
    assert training is not None, "required before"
    return training
