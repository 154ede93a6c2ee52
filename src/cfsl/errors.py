"""Everything that can go wrong, as one tree.

CfslError                      the command line prints it as one line and exits with 2
+-- SpecError                  a specification contradicts itself, or has an unknown field
|   +-- InfeasibleSpecError    a sound specification that this data set is too small for
+-- UnknownNameError           no data set, split, sampler ... of that name
+-- DataError                  a data set is missing, damaged or not what it says it is
|   +-- ArchiveError           an archive that is truncated, unsafe or not an archive
|   +-- ImageError             an image that cannot be decoded
|   +-- FetchError             a download that failed
+-- ManifestError              a task manifest that is damaged or does not match
+-- CardError                  a result card or its answers that are damaged, or not what they say they are
|   +-- UnknownTasksError      the tasks of a card cannot be had here
+-- CheckpointError            a checkpoint that is damaged, or of another run
+-- LearnerError               a learner that does not do what learners do (wrong shape of logits ...)
    +-- DataFlowError          a learner that carries data past a support set by other means than its state
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class CfslError(Exception):
    """Base of all errors a user can cause and mend."""


class SpecError(CfslError):
    """A specification that contradicts itself."""


class InfeasibleSpecError(SpecError):
    """A sound specification that the data set is too small for."""


class UnknownNameError(CfslError):
    """A name that is in no table."""


class DataError(CfslError):
    """A data set that is missing, damaged or not what it says it is."""


class ArchiveError(DataError):
    """An archive that is truncated, unsafe or not an archive at all."""


class ImageError(DataError):
    """An image that cannot be decoded."""


class FetchError(DataError):
    """A download that failed."""


class ManifestError(CfslError):
    """A task manifest that is damaged or does not match."""


class CardError(CfslError):
    """A result card or its answers that are damaged, or not what they say they are."""


class UnknownTasksError(CardError):
    """The tasks of a card cannot be had here: neither a manifest nor the data set is there."""


class CheckpointError(CfslError):
    """A checkpoint that is damaged, or of another run."""


class LearnerError(CfslError):
    """A learner that does not do what learners do."""


class DataFlowError(LearnerError):
    """A learner that carries data past a support set by other means than its state."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End a sentence with the known name closest to `name`, in whatever case: ``; did you mean 'x'?``."""
    by_letters = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), by_letters, n=1, cutoff=0.5)
    return f"; did you mean '{by_letters[close[0]]}'?" if close else "."


def lookup(table: Mapping[str, T], name: str, what: str) -> T:
    """Return ``table[name]``, or say which `what` names there are and which one was probably meant."""
    try:
        return table[name]
    except KeyError:
        known = ", ".join(table)
        raise UnknownNameError(
            f"there is no {what} '{name}'{did_you_mean(name, table)} Known: {known}."
        ) from None
