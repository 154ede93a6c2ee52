"""The sweeps of paper 2: one hyper-parameter at a time, around the values that it found.

Kowadlo et al. 2022 describe them in section 3.4 ("univariate sweeps" over filters, blocks and
learning rate, and with replay over b and p) and appendix 7.4. The text does not say which values
the authors tried. The values here are those of the published configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cfsl.errors import SpecError, lookup
from cfsl.presets.columns import INSTANCE, SCALING
from cfsl.presets.hyper import paper_2_changes, paper_2_rate, photos_or_characters
from cfsl.presets.suites import PAPER_2
from cfsl.spec import TaskSpec
from cfsl.sweep.space import Choices, Space

_FILTERS: Mapping[str, tuple[int, ...]] = {
    "omniglot": (32, 64, 128, 256, 512),
    "slimagenet64": (64, 128, 256),
}
_BLOCKS: Mapping[str, tuple[int, ...]] = {"omniglot": (2, 3, 4), "slimagenet64": (2, 4, 6)}
_RATES = (1e-4, 1e-3, 1e-2, 1e-1)
_PROTONET_RATES = (1e-3, 1e-2)
_BUFFERS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "baseline1": ((1, 2), (5, 10)),
    "baseline2": ((2, 3, 4), (5, 10)),
    "wide1": ((2, 3, 4), (5, 10, 20)),
    "wide2": ((2, 3, 4), (5, 10, 20, 50)),
    "deep1": ((2, 3, 4, 5), (2, 5, 10)),
    "deep2": ((2, 3, 4, 5), (2, 5, 10)),
    "instance": ((1, 2, 5, 10), (1, 2, 5, 8, 10)),
}
"""The values of b, and those of p, for each experiment."""
_WORDS = {"sets": "b", "samples": "p"}


class PaperSweep(NamedTuple):
    """A search space, and the values of the hyper-parameters that are not varied."""

    base: dict[str, Any]
    space: Space


def paper_2_sweep(learner: str, data: str, task: TaskSpec) -> PaperSweep:
    """Return the sweeps of one experiment; refuse learners and tasks that paper 2 does not have."""
    lookup(dict.fromkeys(PAPER_2), learner, "learner of paper 2")
    column, kind = _column(task), photos_or_characters(data)

    # 'rate' takes the place of these two: it sets them and the rate of training.
    changes = paper_2_changes(learner, data, column, task)
    for name in ("lr", "inner.lr"):
        changes.pop(name, None)

    rate = paper_2_rate(learner, data, column, task)
    base = {_WORDS.get(name, name): value for name, value in changes.items()} | {"rate": 10 * rate}

    space: Space = {
        "filters": Choices(choices=_FILTERS[kind]),
        "blocks": Choices(choices=_BLOCKS[kind]),
        "rate": Choices(choices=_PROTONET_RATES if learner == "protonet" else _RATES),
    }
    if "b" in base:
        b, p = _BUFFERS["instance" if task.kind == "instance" else column]
        space |= {"b": Choices(choices=b), "p": Choices(choices=p)}

    return PaperSweep(base, space)


def _column(task: TaskSpec) -> str:
    clean = task.replace(corruption=None)
    for name, spec in {**SCALING, **INSTANCE}.items():
        if spec == clean:
            return name

    raise SpecError(
        "paper 2 has no such task; it has --type D --nss 4 or 8, wide --n-way 10 or 100, "
        "deep --nss 20 --n-way 2, deep --nss 80 --n-way 5, "
        "and instance --nss 2, 4, 10 or 20 with 20 images"
    )
