"""How a learner looks in every figure: its colour and its marker, the same everywhere.

Colours are those of Okabe and Ito, darkened or lightened until they stand out (3 : 1) from a white
or a dark page.
Markers differ as well, so that nothing hangs on colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

LIGHT = ("#0072b2", "#b97400", "#00855f", "#b0518a", "#cf5800", "#2b8cc9", "#857a00", "#3c3c44")
DARK = ("#5aaee8", "#e69f00", "#23c49a", "#dd95c0", "#ff8136", "#93d2f6", "#f0e442", "#e4e4ea")
_SHAPES = {
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "cross": "P",
    "triangle-down": "v",
}
"""As Vega and as matplotlib call them."""


class Style(NamedTuple):
    """Of one learner."""

    colour: int
    """A place in LIGHT and DARK."""
    shape: str
    """As Vega calls it."""

    @property
    def marker(self) -> str:
        """As matplotlib calls it."""
        return _SHAPES[self.shape]


_OWN: Mapping[str, Style] = {
    "protonet": Style(0, "circle"),
    "pretrain_tune": Style(1, "square"),
    "pretrain_tune_replay": Style(2, "triangle-up"),
    "sca": Style(2, "diamond"),
    "ewc_init": Style(3, "cross"),
    "maml_low": Style(4, "triangle-down"),
    "maml_high": Style(5, "triangle-up"),
    "ewc_pretrain": Style(6, "diamond"),
    "init_tune": Style(7, "square"),
    "multiproto": Style(4, "cross"),
    "protonet_replay": Style(3, "triangle-up"),
    "joint": Style(7, "diamond"),
    "chance": Style(6, "triangle-down"),
    "pixel_nn": Style(5, "square"),
    "random_embedding": Style(1, "circle"),
    "anil": Style(0, "diamond"),
    "proto_maml": Style(2, "square"),
    "champion": Style(7, "circle"),
}
"""The methods of paper 1 have a colour each; frequent neighbours differ in colour and marker."""


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return the style of every name; a learner of cfsl has the same one in every figure."""
    shapes = list(_SHAPES)
    every = [
        Style(n % len(LIGHT), shapes[(n + n // 24) % len(shapes)])
        for n in range(len(LIGHT) * len(shapes))
    ]

    found: dict[str, Style] = {}
    for name in names:
        own = _OWN.get(name.split(" ")[0])
        free = (
            style for style in every if style not in found.values() and style not in _OWN.values()
        )
        found[name] = (
            own if own and own not in found.values() else next(free, every[len(found) % len(every)])
        )

    return found
