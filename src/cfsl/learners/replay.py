"""Replay over a tuned learner: images of recent support sets come back in every gradient step.

Kowadlo et al., "Expanding continual few-shot learning benchmarks to include recognition of specific
instances" (2022), section 3.4.3 (Pretrain+Tune+Replay); b is `sets`, p is `samples`. The short-term
memory is a queue of the last `sets` support sets, empty at the start of a task.

Every gradient step is on one batch, with one mean cross-entropy: the current support set and
`samples` images drawn anew for that step, uniformly and without replacement, from all that are
stored (or all of them if there are fewer).

Where it departs from the paper:

- The text stores a support set first and then trains on it; the code stores it afterwards. The
  default is the code's: the current set is in every batch anyway. store_first=True is the text's.
- The text draws p samples "for each fine-tuning support set", the code for each gradient step. We
  do as the code does.
- Draws come from the task's own generator, one for each step; in the code from a global one that
  nobody seeded.
- keep="uint8" stores an image in a quarter of the memory: each channel of an image as 256 equal
  levels from its least to its largest value, which are kept as floats. Images with two values a
  channel come back exactly, others with an error of at most half a level. The current support set
  is never rounded. keep="float32" stores what was given, as in the code.
- With sets=0 or samples=0 this is the inner learner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Shaped
from pydantic import Field, InstanceOf
from torch import Tensor

from cfsl.learners.base import Meta, State, Support, TaskInfo
from cfsl.learners.ewc import Ewc
from cfsl.learners.tune import Penalty, Tunable, Tune, pretrain_tune, read_by_kind, tuned
from cfsl.nets import ImageShape, Params
from cfsl.spec import FrozenSpec

Stored: TypeAlias = dict[str, Tensor]
"""A support set in memory: labels, and images exactly or as levels between "low" and "high"."""
_Several = Annotated[int, Field(ge=0, le=1_000_000)]
_LEVELS = 255
_FIRST_PURPOSE = 1000
"""The task's generators before this one are left to the inner learner."""


class Replay(FrozenSpec):
    """Wraps a tunable learner, and mixes stored images into its batches."""

    kind: Literal["replay"] = "replay"
    inner: Annotated[InstanceOf[Tunable], read_by_kind(Tune, Ewc)] = Tune()
    sets: _Several = 2
    samples: _Several = 10
    store_first: bool = False
    keep: Literal["uint8", "float32"] = "uint8"

    @property
    def steps(self) -> int:
        """The inner learner's."""
        return self.inner.steps

    @property
    def lr(self) -> float:
        """The inner learner's."""
        return self.inner.lr

    @property
    def transductive(self) -> bool:
        """The inner learner's."""
        return self.inner.transductive

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> Meta:
        """Draw the inner learner's first weights; there are no others."""
        return self.inner.init(image_shape, generator)

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Begin with an empty memory."""
        return {"inner": self.inner.begin(meta, info), "info": info, "stored": [], "steps_taken": 0}

    def observe(self, state: State, support: Support) -> State:
        """Tune on one support set and on what is stored."""
        return tuned(self, state, support)

    def predict(
        self, state: State, images: Shaped[Tensor, "targets *shape"]
    ) -> Float[Tensor, "targets labels"]:
        """Predict as the inner learner does."""
        return self.inner.predict(state["inner"], images)

    def step(self, state: State, support: Support, penalty: Penalty | None = None) -> State:
        """Take one step of the inner learner, on the support set and replayed images."""
        stored = self._with(state["stored"], support) if self.store_first else state["stored"]
        generator = state["info"].generator(_FIRST_PURPOSE + state["steps_taken"])
        batch = joined([support, *drawn(stored, self.samples, generator)])

        inner = self.inner.step(state["inner"], batch, penalty)
        return {**state, "inner": inner, "steps_taken": state["steps_taken"] + 1}

    def consolidate(self, state: State, support: Support) -> State:
        """Store the support set, and forget the oldest if there are too many."""
        inner = self.inner.consolidate(state["inner"], support)
        return {**state, "inner": inner, "stored": self._with(state["stored"], support)}

    def weights(self, state: State) -> Params:
        """Return the inner learner's weights."""
        return self.inner.weights(state["inner"])

    def logits(
        self, state: State, weights: Mapping[str, Tensor], images: Shaped[Tensor, "n *shape"]
    ) -> Float[Tensor, "n labels"]:
        """Predict as the inner learner does with these weights."""
        return self.inner.logits(state["inner"], weights, images)

    def _with(self, stored: list[Stored], support: Support) -> list[Stored]:
        """Return the last `sets` support sets, this one included."""
        new = in_levels(support) if self.keep == "uint8" else exactly(support)
        sets = [*stored, new]
        return sets[len(sets) - min(self.sets, len(sets)) :]


def pretrain_tune_replay(**fields: Any) -> Replay:
    """Return Pretrain+Tune+Replay."""
    return Replay(**{"inner": pretrain_tune()} | fields)


def drawn(stored: list[Stored], samples: int, generator: torch.Generator) -> list[Support]:
    """Draw so many of the stored images without replacement, or all; return a batch or none."""
    count = sum(len(support["labels"]) for support in stored)
    if not samples or not count:
        return []

    everything = joined([restored(support) for support in stored])
    chosen = torch.randperm(count, generator=generator)[:samples].to(everything.labels.device)
    return [Support(everything.images[chosen], everything.labels[chosen])]


def joined(supports: list[Support]) -> Support:
    """Return all images in one batch."""
    if len(supports) == 1:
        return supports[0]
    images = torch.cat([support.images for support in supports])
    return Support(images, torch.cat([support.labels for support in supports]))


def exactly(support: Support) -> Stored:
    """Store a support set as it is."""
    return {"images": support.images.clone(), "labels": support.labels.clone()}


def in_levels(support: Support) -> Stored:
    """Store a support set in a quarter of the memory, by the rule above."""
    low = support.images.amin(dim=(-2, -1), keepdim=True)
    high = support.images.amax(dim=(-2, -1), keepdim=True)
    width = torch.where(high > low, high - low, 1)
    levels = ((support.images - low) / width * _LEVELS).round().to(torch.uint8)
    return {"images": levels, "low": low, "high": high, "labels": support.labels.clone()}


def restored(stored: Stored) -> Support:
    """Return a support set from memory."""
    images = stored["images"]
    if images.dtype == torch.uint8:
        images = torch.lerp(stored["low"], stored["high"], images / _LEVELS)
    return Support(images, stored["labels"])
