"""The answers beside a card: an .npz file from which, with its tasks, its numbers are worked out.

It holds these arrays for the learner and, under names that begin with "ensemble.", for the ensemble
if there is one:

predicted           the label of every target, -1 without an answer
                    integers, tasks x targets
log_likelihood      the log of the probability of the right label
                    float16, tasks x targets
confidence          the largest probability, of the targets whose answer is not right
                    float16, one after the other
state_bytes         bytes kept before the first support set, then after each
                    integers, tasks (or 1) x nss + 1
bookkeeping_bytes   how many of these bytes are counts, labels and the like
                    integers, tasks (or 1) x nss + 1
support_bytes       bytes of all support images of a task
                    one integer
progressive         the label after every support set, if the learner was asked for it
                    integers, tasks x nss x targets

Right labels and groups are not in it: they come from the manifest of the tasks.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cfsl.errors import CardError
from cfsl.files import written_whole
from cfsl.metrics.answers import NO_ANSWER, Answers, rounded
from cfsl.sampling.plan import groups_seen

if TYPE_CHECKING:
    from cfsl.data.manifest import Manifest

MOST_BYTES = 4 * 2**30
_DATE = (1980, 1, 1, 0, 0, 0)
_INTEGERS = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<i8")
_NEEDED = {
    "predicted",
    "log_likelihood",
    "confidence",
    "state_bytes",
    "bookkeeping_bytes",
    "support_bytes",
}
_OPTIONAL = {"progressive"}
_ROUNDING = 0.01
"""More than float16 can change a probability of at least one in some thousand labels."""


def write_answers(path: Path, answers: Mapping[str, Answers]) -> None:
    """Write the answers of the learner ("") and of the ensemble ("ensemble"), whole or not at all.

    They are rounded. The same answers give the same bytes, as long as zlib is the same.
    """
    arrays = {
        f"{part}.{name}" if part else name: array
        for part, given in answers.items()
        for name, array in _packed(given).items()
    }

    with written_whole(path) as out, zipfile.ZipFile(out, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", _DATE)
            entry.create_system = 3  # the same on every system
            archive.writestr(entry, content.getvalue(), zipfile.ZIP_DEFLATED, 9)


def _packed(answers: Answers) -> dict[str, np.ndarray]:
    """Return the arrays of one run, as small as they can be without losing a bit."""
    answers = rounded(answers)
    wrong = answers.predicted != answers.labels

    packed = {
        "predicted": _smallest(answers.predicted),
        "log_likelihood": answers.log_likelihood.astype("<f2"),
        "confidence": answers.confidence[wrong].astype("<f2"),
        "state_bytes": _smallest(_one_row(answers.state_bytes)),
        "bookkeeping_bytes": _smallest(_one_row(answers.bookkeeping_bytes)),
        "support_bytes": np.array(answers.support_bytes, "<i8"),
    }

    if answers.progressive is not None:
        packed["progressive"] = _smallest(answers.progressive)
    return packed


def _smallest(array: np.ndarray) -> np.ndarray:
    """Return the same integers in the smallest type that has room for them."""
    low, high = array.min(), array.max()
    fits = (kind for kind in _INTEGERS if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return np.ascontiguousarray(array, next(fits))


def _one_row(array: np.ndarray) -> np.ndarray:
    """Return the first row if all are like it."""
    return array[:1] if (array == array[0]).all() else array


def read_answers(path: Path, manifest: Manifest) -> dict[str, Answers]:
    """Read the answers to the tasks of a manifest; refuse what no learner can have answered."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CardError(f"{path} cannot be read: {error.strerror or error}") from error
    return unpacked_answers(content, path, manifest)


def unpacked_answers(content: bytes, path: Path, manifest: Manifest) -> dict[str, Answers]:
    """Return the answers in the content of a file, as `read_answers` does."""
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, array in _arrays(content, path).items():
        part, _, field = name.rpartition(".")
        parts.setdefault(part, {})[field] = array
    try:
        return {part: _unpacked(arrays, manifest) for part, arrays in parts.items()}
    except CardError as error:
        raise CardError(f"{path}: {error}") from None


def _arrays(content: bytes, path: Path) -> dict[str, np.ndarray]:
    """Return the arrays in a file, but no code, and not more than answers can need."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_BYTES:
            raise CardError(
                f"{path} unpacks to {size:,} bytes; more than {MOST_BYTES:,} are refused"
            )
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: np.asarray(file[name]) for name in file.files}
    except CardError:
        raise
    except Exception as error:
        # zipfile, zlib and numpy's reader of headers raise a dozen kinds for damaged files.
        raise CardError(f"{path} cannot be read as the answers of a card: {error}") from error


def _unpacked(arrays: Mapping[str, np.ndarray], manifest: Manifest) -> Answers:
    """Put the answers of one run together with the labels of its targets."""
    if missing := _NEEDED - arrays.keys():
        raise CardError(f"there is no {' and no '.join(sorted(missing))}")
    if unknown := arrays.keys() - _NEEDED - _OPTIONAL:
        raise CardError(f"there is an unknown array '{min(unknown)}'")
    labels = manifest.plan.target_labels.astype(np.int64)
    (tasks, targets), spec = labels.shape, manifest.spec

    predicted = _integers(arrays, "predicted", (tasks, targets), spec.labels - 1, NO_ANSWER)
    log_likelihood = _halves(arrays, "log_likelihood", (tasks, targets))
    wrong = predicted != labels
    confidence = np.exp(log_likelihood)
    confidence[wrong] = _halves(arrays, "confidence", (int(wrong.sum()),))
    _require_likely(predicted, log_likelihood, confidence, wrong, spec.labels)

    state, bookkeeping = (
        _integers(arrays, name, (_rows(arrays[name], tasks), spec.nss + 1))
        for name in ("state_bytes", "bookkeeping_bytes")
    )
    if (bookkeeping > state).any():
        raise CardError("bookkeeping_bytes is above state_bytes")

    progressive = None
    if "progressive" in arrays:
        shape = (tasks, spec.nss, targets)
        progressive = _integers(arrays, "progressive", shape, spec.labels - 1, NO_ANSWER)

    return Answers(
        predicted=predicted,
        log_likelihood=log_likelihood,
        confidence=confidence,
        labels=labels,
        groups=manifest.plan.target_groups.astype(np.int64),
        state_bytes=np.broadcast_to(state, (tasks, spec.nss + 1)),
        bookkeeping_bytes=np.broadcast_to(bookkeeping, (tasks, spec.nss + 1)),
        support_bytes=_support_bytes(arrays, spec.support_images),
        progressive=None if progressive is None else progressive.astype(np.int32),
        seen=None if progressive is None else groups_seen(spec),
    )


def _support_bytes(arrays: Mapping[str, np.ndarray], images: int) -> int:
    """Return the bytes of all support images of a task."""
    support_bytes = int(_integers(arrays, "support_bytes", ()))
    if support_bytes == 0 or support_bytes % (4 * images):
        raise CardError(f"support_bytes is {support_bytes}, which is not that of {images} images")
    return support_bytes


def _rows(array: np.ndarray, tasks: int) -> int:
    """Return 1 for an array that has one row for all tasks."""
    return 1 if array.shape[:1] == (1,) else tasks


def _integers(
    arrays: Mapping[str, np.ndarray],
    name: str,
    shape: tuple[int, ...],
    highest: int = 2**62,
    lowest: int = 0,
) -> np.ndarray:
    array = arrays[name]
    if array.dtype.kind not in "iu" or array.shape != shape:
        raise CardError(
            f"{name} is {array.dtype} {array.shape}; integers {shape} are needed for these tasks"
        )

    if array.size and (array.min() < lowest or array.max() > highest):
        raise CardError(
            f"{name} goes from {array.min()} to {array.max()}; {lowest} to {highest} is possible"
        )
    return array.astype(np.int64)


def _halves(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    array = arrays[name]
    if array.dtype != np.float16 or array.shape != shape:
        raise CardError(
            f"{name} is {array.dtype} {array.shape}; float16 {shape} is needed for these tasks"
        )
    if np.isnan(array).any():
        raise CardError(f"{name} holds NaN")
    return array.astype(np.float64)


def _require_likely(
    predicted: np.ndarray,
    log_likelihood: np.ndarray,
    confidence: np.ndarray,
    wrong: np.ndarray,
    labels: int,
) -> None:
    """Refuse probabilities that no softmax gives, as far as rounding lets one tell."""
    unanswered, right = predicted == NO_ANSWER, np.exp(log_likelihood)
    least, most = (1 - _ROUNDING) / labels, 1 + _ROUNDING

    impossible = {
        "log_likelihood is above 0": log_likelihood > 0,
        "confidence is above 1": confidence > 1,
        "confidence is below what the surest of all labels must have": confidence < least,
        "log_likelihood is above that of the predicted label": right > confidence * most,
        "log_likelihood and confidence leave more than 1 for all labels": wrong
        & ~unanswered
        & (right + confidence > most),
        "a target without an answer has a likelihood": unanswered & (log_likelihood > -math.inf),
        "a target without an answer is not counted as sure": unanswered & (confidence != 1),
    }

    for what, where in impossible.items():
        if where.any():
            raise CardError(f"{what}, in {where.sum()} targets")
