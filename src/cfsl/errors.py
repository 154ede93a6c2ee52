"""All errors that a user can cause and mend, as one tree.

CfslError                      the command line prints it as one line and exits with 2
+-- SpecError                  a specification contradicts itself, or has an unknown field
|   +-- InfeasibleSpecError    a valid specification needs more classes or images than there are
+-- UnknownNameError           no data set, split, sampler ... has that name
+-- DataError                  a data set is missing or damaged, or its content is not as stated
|   +-- ArchiveError           an archive is truncated or unsafe, or not an archive
|   +-- ImageError             an image cannot be decoded
|   +-- FetchError             a download failed
+-- ManifestError              a task manifest is damaged or does not match its data set
+-- CardError                  a result card or its answers are damaged, or do not match
|   +-- UnknownTasksError      neither the manifest nor the data set of a card can be found
+-- CheckpointError            a checkpoint is damaged, or belongs to another training run
+-- LearnerError               a learner breaks its interface (wrong shape of logits ...)
    +-- DataFlowError          a learner carries data past a support set outside its state
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

_T = TypeVar("_T")


class CfslError(Exception):
    """The base of all errors that a user can cause and mend."""


class SpecError(CfslError):
    """A specification contradicts itself, or has an unknown field."""


class InfeasibleSpecError(SpecError):
    """A valid specification needs more classes or images than the data set has."""


class UnknownNameError(CfslError):
    """No data set, split, sampler, learner or the like has that name."""


class DataError(CfslError):
    """A data set is missing or damaged, or its content is not as stated."""


class ArchiveError(DataError):
    """An archive is truncated or unsafe, or the file is not an archive."""


class ImageError(DataError):
    """An image cannot be decoded."""


class FetchError(DataError):
    """A download failed."""


class ManifestError(CfslError):
    """A task manifest is damaged or does not match its data set."""


class CardError(CfslError):
    """A result card or its answers are damaged, or do not match each other."""


class UnknownTasksError(CardError):
    """The tasks of a card cannot be drawn: neither its manifest nor its data set was found."""


class CheckpointError(CfslError):
    """A checkpoint is damaged, or belongs to another training run."""


class LearnerError(CfslError):
    """A learner breaks the interface of learners, for instance by logits of a wrong shape."""


class DataFlowError(LearnerError):
    """A learner carries data past a support set by other means than its state."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: ``; did you mean 'x'?``, or a full stop.

    The suggestion is the known name closest to `name`; upper and lower case are the same.
    """
    spelled = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), spelled, n=1, cutoff=0.5)
    return f"; did you mean '{spelled[close[0]]}'?" if close else "."


def lookup(table: Mapping[str, _T], name: str, what: str) -> _T:
    """Return ``table[name]``, or raise an error that lists all names and suggests the closest.

    `what` is the kind of thing that the table holds, such as "sampler".
    """
    try:
        return table[name]
    except KeyError:
        known = ", ".join(table)
        raise UnknownNameError(
            f"there is no {what} '{name}'{did_you_mean(name, table)} Known: {known}."
        ) from None
