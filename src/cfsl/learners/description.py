"""A learner's class and hyper-parameters, as they are written on cards."""

from __future__ import annotations

from typing import Any


def described(learner: Any) -> dict[str, Any]:
    """Return a learner's class and hyper-parameters, ready for JSON."""
    if hasattr(learner, "description"):
        return dict(learner.description)

    describe = getattr(learner, "model_dump", None)
    settings = describe(mode="json") if describe else _shown(learner)
    return {"class": type(learner).__name__, "settings": settings}


def _shown(learner: Any) -> str:
    """Return what a learner shows of itself.

    Where that is its address, which differs every time, return its name.
    """
    kind = type(learner)
    has_own = any("__repr__" in vars(parent) for parent in kind.__mro__[:-1])
    return repr(learner) if has_own else f"{kind.__module__}.{kind.__qualname__}"
