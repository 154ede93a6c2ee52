"""How close an image is to a prototype u, and how much a copy counts beside that: e(x, u), k, h.

    characters      evidence    e(x, u) = the evidence for the class of u (`spread.py`)
    or              cosine      e(x, u) = s cos(f(x), p_u) / |p_u|^(1/2)
    photographs     cosine      the same, with another k and h

Evidence takes account of what eight views of a character have in common, so that nothing is counted
eight times. The cosine is divided by a power of the length of the prototype: the mean of vectors of
length 1 is the shorter the more they differ, and a class of many faces is not to be at a
disadvantage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from jaxtyping import Float, Float32, Int
from torch import Tensor

from cfsl.learners.champion.spread import class_evidence
from cfsl.learners.metric import closeness

LEAST_EVIDENCE = -2.0
"""The least evidence for the closest prototype, in nats. It was chosen on validation tasks."""
_SHORTEST = 1 / 256
"""The least length that a cosine is divided by: images of a class may cancel each other out."""

Images = Float[Tensor, "n numbers"]
Means = Float[Tensor, "m numbers"]
Counts = Int[Tensor, " m"]


class Closeness(Protocol):
    """A measure of closeness, and the weights of copies that go with it."""

    @property
    def byte_step(self) -> float:
        """The step between the numbers of a prototype that is kept in bytes."""
        ...

    @property
    def familiar(self) -> Tensor | float:
        """k: an image that is less close than this to every prototype is unfamiliar by class."""
        ...

    @property
    def crowding(self) -> float:
        """h: copies of the n images of a label are summed and divided by n^h.

        With 0 they add up, with 1 they are averaged, and with more a label that is known well needs
        copies less.
        """
        ...

    @property
    def copies_join_prototypes(self) -> bool:
        """Whether a copy also has to be close to the prototype that its original is part of."""
        ...

    def to_prototypes(self, images: Images, means: Means, counts: Counts) -> Float[Tensor, "n m"]:
        """Return e(x, u) for all images and prototypes, given the mean and count of each."""
        ...


@dataclass(frozen=True)
class Evidence:
    """Closeness is the evidence for the class of the prototype."""

    shares: Float32[Tensor, " axes"]

    byte_step: ClassVar[float] = 1 / 20
    """Coordinates have variance 1. A byte covers -6.4 to 6.35, and rare larger numbers are cut."""
    familiar: ClassVar[float] = 2.0
    """In nats. Like all k and h, it was chosen on validation tasks."""
    crowding: ClassVar[float] = 3.0
    copies_join_prototypes: ClassVar[bool] = False

    def to_prototypes(self, images: Images, means: Means, counts: Counts) -> Float[Tensor, "n m"]:
        """Return the evidence for each prototype.

        An unusual drawing gives evidence against every class. Its evidence is raised for all
        prototypes alike, until that for the closest one is `LEAST_EVIDENCE`; or else the faintest
        similarity to a copy would decide.
        """
        evidence = class_evidence(images, means, counts, self.shares)
        if not len(means):
            return evidence
        return evidence + (LEAST_EVIDENCE - evidence.amax(dim=1, keepdim=True)).clamp_min(0)


@dataclass(frozen=True)
class Cosine:
    """Closeness is the scaled cosine, over a power of the length of the prototype."""

    scale: Tensor
    length_power: float
    familiar_cosine: float
    """k / s."""
    crowding: float
    copies_join_prototypes: bool

    byte_step: ClassVar[float] = 1 / 256
    """The numbers of a vector of length 1 lie between -1 and 1; as there are hundreds of them,
    nearly all lie between -1/2 and 1/2. A byte covers these, and larger numbers are cut."""

    @classmethod
    def of_characters(cls, scale: Tensor, length_power: float) -> Cosine:
        """Return the measure for characters."""
        return cls(scale, length_power, 0.7, crowding=1.0, copies_join_prototypes=False)

    @classmethod
    def of_photographs(cls, scale: Tensor, length_power: float) -> Cosine:
        """Return the measure for photographs."""
        return cls(scale, length_power, 0.35, crowding=0.0, copies_join_prototypes=True)

    @property
    def familiar(self) -> Tensor:
        """The closeness of an image that is just familiar by class."""
        return self.familiar_cosine * self.scale

    def to_prototypes(self, images: Images, means: Means, counts: Counts) -> Float[Tensor, "n m"]:
        """Return the cosine with each prototype, scaled and corrected for its length."""
        lengths = means.norm(dim=1).clamp_min(_SHORTEST) ** self.length_power
        close: Tensor = self.scale * closeness(images, means, "cosine") / lengths
        return close
