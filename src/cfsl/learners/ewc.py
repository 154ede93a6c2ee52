"""Elastic Weight Consolidation over a tuned learner: weights that mattered before are held back.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks" (2017), equation 3; as
EWC-Init and EWC-Pretrain in Antoniou et al. (2020). From the second support set on, every gradient
step has the penalty

    strength / 2 * sum_i F_i (theta_i - anchor_i)^2

over all tuned weights, the head included. After a set has been tuned on, its empirical Fisher
information

    F_i = mean over its images of (d log p(label | image) / d theta_i)^2

(per image, at the true label, predicting as for targets) is added to that of the sets before.

Where it departs from the papers:

- Paper 1 gives no strength, no estimator and no rule for several sets, and its code has no EWC:
  these are our readings.
- Kirkpatrick et al. have one quadratic for every earlier task, each around the weights after that
  task. anchors="last" (the default) puts the sum of all Fishers around the weights after the last
  set: Huszar, "Note on the quadratic penalties in elastic weight consolidation" (2018), shows that
  this is what the derivation leads to.
- anchors="each" is the sum of the separate quadratics. It needs no more memory: up to a constant,
  they add up to one quadratic around the mean of the anchors weighted by their Fishers.
- online=True multiplies the older Fisher by `decay` when a new one is added (Schwarz et al.,
  "Progress & Compress", 2018), instead of adding them up for ever.
- Gradient descent on a quadratic of curvature c overshoots for lr c > 1 and diverges for lr c > 2.
  With the published lr of 0.01 that happens at a Fisher of 0.2 and a strength of 1000, which a new
  head exceeds at once. So the curvature strength * F_i is capped at 1 / lr (`capped`), where one
  step takes a weight all the way back to its anchor.

The state holds Fisher and anchors beside the weights, three times the memory of tuning. (With
anchors="last" the anchors are the weights themselves at the moment between two sets. They are kept
and counted all the same.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Shaped
from pydantic import Field, InstanceOf
from torch import Tensor
from torch.nn import functional

from cfsl.learners.base import Meta, State, Support, TaskInfo
from cfsl.learners.tune import (
    Penalty,
    Tunable,
    Tune,
    init_tune,
    pretrain_tune,
    read_by_kind,
    trainable,
    tuned,
)
from cfsl.nets import ImageShape, Params
from cfsl.spec import FrozenSpec


class Ewc(FrozenSpec):
    """Wraps a tunable learner, and pulls its weights towards those of earlier support sets."""

    kind: Literal["ewc"] = "ewc"
    inner: Annotated[InstanceOf[Tunable], read_by_kind(Tune)] = Tune()
    strength: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e3
    anchors: Literal["last", "each"] = "last"
    online: bool = False
    decay: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Of the older Fisher information, if `online`."""
    capped: bool = True

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
        """Begin without Fisher information and anchors."""
        return {"inner": self.inner.begin(meta, info), "fisher": {}, "anchors": {}}

    def observe(self, state: State, support: Support) -> State:
        """Tune on one support set without leaving what mattered before."""
        return tuned(self, state, support)

    def predict(
        self, state: State, images: Shaped[Tensor, "targets *shape"]
    ) -> Float[Tensor, "targets labels"]:
        """Predict as the inner learner does."""
        return self.inner.predict(state["inner"], images)

    def step(self, state: State, support: Support, penalty: Penalty | None = None) -> State:
        """Take one step of the inner learner, with the penalty from the second support set on."""

        def all_penalties(weights: Mapping[str, Tensor]) -> Tensor:
            own = self.penalty(state, weights)
            return own if penalty is None else own + penalty(weights)

        return {**state, "inner": self.inner.step(state["inner"], support, all_penalties)}

    def consolidate(self, state: State, support: Support) -> State:
        """Add the Fisher information of this support set, and move the anchors."""
        inner = self.inner.consolidate(state["inner"], support)
        new, weights = fisher_information(self.inner, inner, support), self.inner.weights(inner)
        if not state["fisher"]:
            return {"inner": inner, "fisher": new, "anchors": weights}

        kept = self.decay if self.online else 1.0
        old = {name: kept * fisher for name, fisher in state["fisher"].items()}
        total = {name: old[name] + new[name] for name in new}

        anchors = weights
        if self.anchors == "each":
            anchors = {
                name: _weighted_mean(state["anchors"][name], old[name], weights[name], new[name])
                for name in new
            }
        return {"inner": inner, "fisher": total, "anchors": anchors}

    def weights(self, state: State) -> Params:
        """Return the inner learner's weights."""
        return self.inner.weights(state["inner"])

    def logits(
        self, state: State, weights: Mapping[str, Tensor], images: Shaped[Tensor, "n *shape"]
    ) -> Float[Tensor, "n labels"]:
        """Predict as the inner learner does with these weights."""
        return self.inner.logits(state["inner"], weights, images)

    def penalty(self, state: State, weights: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """Return strength / 2 * sum F (weights - anchors)^2; it is 0 for the first support set."""
        most = 1 / self.inner.lr if self.capped else math.inf
        total = torch.zeros((), device=next(iter(weights.values())).device)
        for name, fisher in state["fisher"].items():
            curvature = (self.strength * fisher).clamp(max=most)
            way = weights[name] - state["anchors"][name]
            total = total + (curvature * way**2).sum() / 2
        return total


def ewc_init(**fields: Any) -> Ewc:
    """Return EWC-Init: EWC over Init+Tune."""
    return Ewc(**{"inner": init_tune()} | fields)


def ewc_pretrain(**fields: Any) -> Ewc:
    """Return EWC-Pretrain: EWC over Pretrain+Tune."""
    return Ewc(**{"inner": pretrain_tune()} | fields)


def fisher_information(learner: Tunable, state: State, support: Support) -> Params:
    """Return the diagonal of the empirical Fisher information of a support set.

    It is taken at the weights in the state.
    """
    weights = trainable(learner.weights(state))
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    # Images are taken one at a time, unless an answer depends on the others.
    batches = [support] if learner.transductive else list(_single_images(support))
    for batch in batches:
        with torch.enable_grad():
            logits = learner.logits(state, weights, batch.images)
            losses = list(functional.cross_entropy(logits, batch.labels, reduction="none"))

        for loss in losses:
            gradients = torch.autograd.grad(
                loss, list(weights.values()), retain_graph=len(losses) > 1
            )
            for name, gradient in zip(total, gradients, strict=True):
                total[name] += gradient**2 / len(support.labels)

    return total


def _single_images(support: Support) -> Iterator[Support]:
    for image, label in zip(support.images, support.labels, strict=True):
        yield Support(image[None], label[None])


def _weighted_mean(
    first: Tensor, first_weight: Tensor, second: Tensor, second_weight: Tensor
) -> Tensor:
    """Return the mean of two tensors by their weights, and the second where both weights are 0."""
    total = first_weight + second_weight
    return second + torch.where(total > 0, first_weight / total, 0) * (first - second)
