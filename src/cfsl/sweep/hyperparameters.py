"""The hyper-parameters of a learner and of its training that a sweep can vary, by name.

A name is one of these:

- a name of --set: lr, inner.lr, net.widths ...
- a field of the training schedule: training.rate, training.epochs ...
- a word of paper 2 (Kowadlo et al. 2022, section 3.4 and appendix 7.4), if the learner has what
  the word stands for:

    filters, blocks   the shape of the VGG variant, which replaces the learner's own network
    rate              the rate of fine-tuning; the rate of training is a tenth of it, as in the
                      published configurations
    b, p              the number of support sets in the buffer of replay, and the number of samples
                      that a step takes from the buffer
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
_FINE_TUNING_RATE_PER_TRAINING_RATE = 10
_FIELD_OF_WORD = {"b": "sets", "p": "samples"}
_SHAPE = ("filters", "blocks")
_RATE = "rate"


class Settings(NamedTuple):
    """The settings of a learner and of its training that follow from values by any names."""

    changes: dict[str, Any]
    """Changes of the learner, as --set and `cfsl bench --settings` take them."""
    training: Training | None


class Hyperparameters:
    """All hyper-parameters of a learner and its training, and the values that they start from."""

    def __init__(self, learner: str, base: Mapping[str, Any], training: Training | None) -> None:
        """Take the name of a learner, and how the learner is trained, if it is.

        `base` has the values of hyper-parameters that are not varied.
        """
        self._name, self._base, self._training = learner, dict(base), training
        self._learner = find_learner(learner)
        for name in base:
            self.require(name)

    def names(self) -> list[str]:
        """Return all names, those of inner values dotted."""
        own = list(_leaves(self._learner))

        words = [word for word, field in _FIELD_OF_WORD.items() if place_of(self._learner, field)]
        if place_of(self._learner, "net"):
            words += _SHAPE
        if self._training is not None or place_of(self._learner, "lr"):
            words.append(_RATE)

        schedule = (
            [f"{TRAINING}{field}" for field in Schedule.model_fields] if self._training else []
        )
        return [*own, *(word for word in words if word not in own), *schedule]

    def require(self, name: str) -> None:
        """Refuse a name that neither the learner nor its training has."""
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
            net = value_at(learner, str(place_of(learner, "net")))
            return _shape(net, self._name)[_SHAPE.index(name)]

        if name == _RATE:
            if place := place_of(learner, "lr"):
                return value_at(learner, place)
            return _FINE_TUNING_RATE_PER_TRAINING_RATE * _required(training).schedule.rate

        if name.startswith(TRAINING):
            return getattr(_required(training).schedule, name.removeprefix(TRAINING))

        field = _FIELD_OF_WORD.get(name)
        return _as_json(value_at(learner, str(place_of(learner, field)) if field else name))

    def settings(self, values: Mapping[str, Any]) -> Settings:
        """Return the settings that the base and these values give together.

        Two values for the same setting are refused.
        """
        changes: dict[str, Any] = {}
        schedule: dict[str, Any] = {}
        name_by_place: dict[str, str] = {}
        shape: dict[str, int] = {}

        for name, value in (self._base | dict(values)).items():
            if name in _SHAPE and not _has(self._learner, name):
                shape[name] = _number(name, value, int)
                continue

            for place, placed in self._placed(name, value):
                if place in name_by_place:
                    raise SpecError(
                        f"{name_by_place[place]} and {name} both say what {place} is; "
                        "give one of them"
                    )
                name_by_place[place] = name

                if place.startswith(TRAINING):
                    schedule[place.removeprefix(TRAINING)] = placed
                else:
                    changes[place] = placed

        # The network comes last: the parts of its shape that are not given are read from a learner
        # that has all other changes.
        if shape:
            changes |= self._net(changes, shape)

        training = self._training
        if training is not None and schedule:
            training = training.replace(schedule=training.schedule.replace(**schedule))
        return Settings(changes, training)

    def _placed(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield the settings that a value stands for, each with its place."""
        if name in _FIELD_OF_WORD and not _has(self._learner, name):
            yield str(place_of(self._learner, _FIELD_OF_WORD[name])), value
        elif name == _RATE and not _has(self._learner, name):
            if place := place_of(self._learner, "lr"):
                yield place, value
            if self._training is not None:
                rate = _number(name, value, (int, float))
                yield f"{TRAINING}rate", rate / _FINE_TUNING_RATE_PER_TRAINING_RATE
        else:
            yield name, value

    def _net(self, changes: Mapping[str, Any], shape: Mapping[str, int]) -> dict[str, Any]:
        """Return the change that gives the learner a VGG variant.

        The variant takes the parts of its shape that are not given from the network it replaces.
        """
        place = str(place_of(self._learner, "net"))
        net = value_at(changed(self._learner, changes), place)

        own = dict(shape)
        if len(own) < len(_SHAPE):
            own = dict(zip(_SHAPE, _shape(net, self._name), strict=True)) | own

        order: Order = net.order if isinstance(net, ConvNet) else "conv-norm-act"
        return {place: vgg(own["filters"], own["blocks"], order).model_dump(mode="json")}


def _leaves(value: Any, before: str = "") -> Iterator[str]:
    """Yield the dotted names of all fields that are not specs themselves."""
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


def _as_json(value: Any) -> Any:
    if isinstance(value, FrozenSpec):
        return value.model_dump(mode="json")
    return list(value) if isinstance(value, tuple) else value


def _shape(net: Any, learner: str) -> tuple[int, int]:
    """Return the number of filters in the first block of a network, and the number of blocks."""
    widths = getattr(net, "widths", None)
    if not widths:
        raise SpecError(
            f"the network of {learner} has no filters and blocks to begin with; give both, by --set"
        )
    return widths[0], len(widths)


def _number(name: str, value: Any, kind: type | tuple[type, ...]) -> Any:
    if isinstance(value, bool) or not isinstance(value, kind):
        wanted = "whole number" if kind is int else "number"
        raise SpecError(f"{name}={json.dumps(value)} is refused: it must be a {wanted}")
    return value


def _required(training: Training | None) -> Training:
    assert training is not None, "Hyperparameters.require refuses names of a training that is none"
    return training
