"""A learner that this process knows by name only: a sandbox imports and makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from cfsl.errors import LearnerError
from cfsl.learners.base import Meta, State, Support, TaskInfo


@dataclass(frozen=True)
class SandboxedLearner:
    """Stands for a user's own learner, of which no line runs in this process."""

    place: str
    """package.module:Class"""
    changes: Mapping[str, Any]
    """The hyper-parameters that are not as usual."""
    description: Mapping[str, Any]
    """Its class and settings, as it told them in the sandbox."""
    transductive: bool = False
    breaks_law: bool = False

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Refuse."""
        self._refuse()

    def observe(self, state: State, support: Support) -> State:
        """Refuse."""
        self._refuse()

    def predict(self, state: State, images: Any) -> Any:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise LearnerError(f"{self.place} runs in a sandbox only; evaluate it with isolate=True")


@dataclass(frozen=True)
class SandboxedEmbedder(SandboxedLearner):
    """Stands for a learner with an embedding that stays as it is."""

    def embed(self, meta: Meta, images: Any) -> Any:
        """Refuse."""
        self._refuse()
