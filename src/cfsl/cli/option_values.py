"""How the values of options are read: lists with commas, and hyper-parameters as name=value.

`inner.lr` is the `lr` of a learner's inner learner.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from cfsl.errors import SpecError, lookup

if TYPE_CHECKING:
    from cfsl.training.training_spec import Precision


def look_in_current_folder() -> None:
    """Let Python find the user's own learners in the folder where the command is run."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def listed(option: str, text: str | None) -> tuple[str, ...] | None:
    """Read a list of names, without repeats; a comma in brackets is part of a name."""
    if text is None:
        return None

    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter

    names = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not names:
        raise SpecError(f"--{option} '{text}' names nothing; name something, or leave it out")
    return names


def parsed_change(text: str) -> tuple[str, Any]:
    """Read name=value."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise SpecError(f"--set {text} is not of the form name=value")
    return name, parsed_value(value)


def parsed_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Read several name=value; refuse two values for one name."""
    given: dict[str, str] = {}
    changes = {}
    for text in texts:
        name, value = parsed_change(text)
        if name in given:
            raise SpecError(
                f"--set {given[name]} and --set {text} are both given; give one of them"
            )
        given[name], changes[name] = text, value

    return changes


def parsed_value(text: str) -> Any:
    """Read JSON, or a word as itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parsed_lists(option: str, texts: Sequence[str]) -> dict[str, list[Any]]:
    """Read several name=value,value; refuse two lists for one name."""
    values: dict[str, list[Any]] = {}
    for text in texts:
        name, sign, listed_values = text.partition("=")
        if not sign or not name:
            raise SpecError(f"{option} {text} is not of the form name=value,value")

        if name in values:
            raise SpecError(
                f"{option} {name} is given twice; give all its values at once, as "
                f"{name}=value,value"
            )
        values[name] = _parsed_list(option, name, listed_values)

    return values


def _parsed_list(option: str, name: str, text: str) -> list[Any]:
    """Read values between commas: JSON, whose lists have commas of their own, or words."""
    values = parsed_value(f"[{text}]")
    if not isinstance(values, list):
        values = [parsed_value(part.strip()) for part in text.split(",")]

    if not values or "" in values:
        raise SpecError(f"{option} {name}={text} has an empty value; write {name}=value,value")
    for position, value in enumerate(values):
        if value in values[:position]:
            raise SpecError(f"{option} {name}={text} has {json.dumps(value)} twice")
    return values


def set_options(values: Mapping[str, Any]) -> str:
    """Return what to put on the command line to set these values."""
    return " ".join(
        f"--set {shlex.quote(written_change(name, value))}" for name, value in values.items()
    )


def written_change(name: str, value: Any) -> str:
    """Write name=value so that `parsed_change` reads the same."""
    plain = isinstance(value, str) and parsed_value(value) == value
    return f"{name}={value if plain else json.dumps(value)}"


def known_precision(text: str) -> Precision:
    """Read the name of a precision to train in."""
    from cfsl.training.training_spec import Precision

    return lookup({name: name for name in get_args(Precision)}, text, "precision")


def slow_precision(precision: Precision | None, device: str) -> str | None:
    """Return what to say where a precision takes longer than the usual one."""
    from cfsl.harness.devices import has_bfloat16

    if precision != "bfloat16" or has_bfloat16(device):
        return None
    return (
        "this processor has no instructions for bfloat16: --precision float32 takes less time here"
    )
