"""Init+Tune and Pretrain+Tune: gradient descent on every support set, one after the other.

Antoniou, Patacchiola, Ochal and Storkey, "Defining Benchmarks for Continual Few-Shot Learning"
(2020), section 5 and appendix A; Kowadlo et al., "Expanding continual few-shot learning benchmarks
to include recognition of specific instances" (2022), section 3.4.1. The two learners differ in
`meta` only: a backbone at its first weights, drawn once and the same for all tasks, or one trained
on i.i.d. batches of the training classes.

    theta <- theta - lr * grad_theta CE(f_theta(images), labels)     `steps` times, on the whole set

theta are the weights and biases of convolutions and linear layers, and of a linear head with one
output a label.

Where it departs from the papers:

- The head is drawn anew for every task, from the task's own generator, as paper 2 says; its code
  kept one head for all tasks.
- The weights really are carried over. The code of paper 1 put them back before every support set.
- Scale and shift of batch norm stay as they are, as in the code ("adapt the full network's weights"
  in the text), and there is one of each. The code had one for every step, of which pretraining
  trained the first alone.
- Batch norm does not look at the targets, unless norm="batch" asks for it as published: then the
  statistics are those of the batch at hand, and `transductive` says so.
- norm="running" has the statistics in `meta`. In a net that never saw an image they mean nothing,
  so `init_tune` has norm="support": a support set is tuned by its own statistics. Targets are
  normalised by the mean over the support sets so far of the statistics of each set, measured after
  it was tuned on ("MetaBN" of Bronskill et al., "TaskNorm", 2020, for one set). They are part of
  the state.
- A batch norm that gets a single value a channel (one image, no map) has no variance to divide by:
  there and then it uses the statistics in the state. The code divided by zero.
- No step keeps the graph of the one before: memory does not grow with `steps`, as it did in the
  code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from pydantic import BeforeValidator, Field
from torch import Tensor, nn
from torch.nn import functional

from cfsl.errors import LearnerError, lookup
from cfsl.learners.base import Meta, State, Support, TaskInfo
from cfsl.nets import ImageShape, Net, Params, Stats, conv4, in_channels_last
from cfsl.nets.layers import BatchNorm, Norm, moved_stats, norm_where_possible, running_norm
from cfsl.spec import Count, FrozenSpec

Penalty: TypeAlias = Callable[[Mapping[str, Tensor]], Float[Tensor, ""]]
"""A function of the tuned weights, to be added to the loss."""
_LearningRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_PREDICTED_AT_ONCE = 64
"""Targets are many and maps are large; each target is predicted on its own anyway."""


@runtime_checkable
class Tunable(Protocol):
    """A learner that is tuned step by step, so that another can wrap it and change every step."""

    @property
    def steps(self) -> int:
        """How many steps are taken on a support set."""

    @property
    def lr(self) -> float:
        """The learning rate of a step."""

    @property
    def transductive(self) -> bool:
        """Whether an answer depends on the other images of the batch."""

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> Meta:
        """Draw first weights for images of this shape."""

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Return the state before the first support set."""

    def observe(self, state: State, support: Support) -> State:
        """Return the state after a support set: `steps` times `step`, then `consolidate`."""

    def predict(
        self, state: State, images: Shaped[Tensor, "targets *shape"]
    ) -> Float[Tensor, "targets labels"]:
        """Return a logit for every label of the task."""

    def step(self, state: State, support: Support, penalty: Penalty | None = None) -> State:
        """Return the state after one gradient step on a batch."""

    def consolidate(self, state: State, support: Support) -> State:
        """Return the state after the last step on a support set, given that set alone."""

    def weights(self, state: State) -> Params:
        """Return the tuned weights, by name."""

    def logits(
        self, state: State, weights: Mapping[str, Tensor], images: Shaped[Tensor, "n *shape"]
    ) -> Float[Tensor, "n labels"]:
        """Predict with other weights than the state's; gradients flow to them."""


def tuned(learner: Tunable, state: State, support: Support) -> State:
    """Take all the steps on one support set: what `observe` of every tunable learner does."""
    for _ in range(learner.steps):
        state = learner.step(state, support)
    return learner.consolidate(state, support)


def read_by_kind(*learners: type[FrozenSpec]) -> BeforeValidator:
    """Let a field be read from JSON that is one of these learners, told apart by `kind`."""
    by_kind = {str(learner.model_fields["kind"].default): learner for learner in learners}

    def read(value: object) -> object:
        if not isinstance(value, dict):
            return value
        return lookup(by_kind, str(value.get("kind")), "kind of inner learner")(**value)

    return BeforeValidator(read)


class Tune(FrozenSpec):
    """Tunes a backbone and a new linear head by plain gradient descent."""

    kind: Literal["tune"] = "tune"
    net: Net = conv4(48, "conv-norm-act")
    steps: Count = 5
    lr: _LearningRate = 0.01
    norm: Literal["running", "support", "batch"] = "running"

    @property
    def transductive(self) -> bool:
        """Whether targets are normalised by their own statistics."""
        return self.norm == "batch"

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> Meta:
        """Draw a backbone."""
        params, stats = self.net.init(image_shape, generator)
        return {"params": params, "stats": stats}

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Share the backbone with `meta`, which costs no memory until it is tuned; draw a head."""
        backbone, scales = self._split(meta, info.image_shape)
        head = _drawn_head(self.net.feature_count(info.image_shape), info)

        state = {"weights": backbone | head, "scales": scales, "stats": dict(meta["stats"])}
        return state | ({"sets": 0} if self.norm == "support" else {})

    def observe(self, state: State, support: Support) -> State:
        """Tune on one support set."""
        return tuned(self, state, support)

    def predict(
        self, state: State, images: Shaped[Tensor, "targets *shape"]
    ) -> Float[Tensor, "targets labels"]:
        """Return logits with the weights as they are now."""
        batches = [images] if self.transductive else torch.split(images, _PREDICTED_AT_ONCE)
        with torch.no_grad():
            return torch.cat([self.logits(state, state["weights"], batch) for batch in batches])

    def step(self, state: State, support: Support, penalty: Penalty | None = None) -> State:
        """Take one step of gradient descent on a batch.

        The loss is the mean cross-entropy, plus a penalty on the weights.
        """
        weights = trainable(state["weights"])
        with torch.enable_grad():
            norm, _ = self._tuning_norm(state)
            logits = self._classify(state, weights, norm, support.images)
            loss = functional.cross_entropy(logits, support.labels)
            if penalty is not None:
                loss = loss + penalty(weights)
            gradients = torch.autograd.grad(loss, list(weights.values()))

        moved = {
            name: weight.detach() - self.lr * gradient
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
        return {**state, "weights": moved}

    def consolidate(self, state: State, support: Support) -> State:
        """With norm="support", average the statistics of this set with those of earlier sets."""
        if self.norm != "support":
            return state

        norm, measured = self._tuning_norm(state)
        with torch.no_grad():
            self._classify(state, state["weights"], norm, support.images)

        sets, stats = state["sets"] + 1, state["stats"]
        moved = moved_stats(stats, {**stats, **measured}, 1 / sets)
        return {**state, "sets": sets, "stats": moved}

    def weights(self, state: State) -> Params:
        """Return the weights of backbone and head that are tuned."""
        weights: Params = state["weights"]
        return weights

    def logits(
        self, state: State, weights: Mapping[str, Tensor], images: Shaped[Tensor, "n *shape"]
    ) -> Float[Tensor, "n labels"]:
        """Classify as `predict` does, with these weights."""
        if self.norm == "batch":
            norm, _ = self._tuning_norm(state)
        else:
            norm = running_norm(state["scales"], state["stats"])
        return self._classify(state, weights, norm, images)

    def _tuning_norm(self, state: State) -> tuple[Norm, Stats]:
        """Return the batch norm of a gradient step, and a dict that it adds its statistics to."""
        measured: Stats = {}
        if self.norm == "running":
            return running_norm(state["scales"], state["stats"]), measured
        return norm_where_possible(state["scales"], state["stats"], measured), measured

    def _classify(
        self,
        state: State,
        weights: Mapping[str, Tensor],
        norm: Norm,
        images: Shaped[Tensor, "n *shape"],
    ) -> Float[Tensor, "n labels"]:
        # A state returns tensors in the default layout, whatever their layout was.
        features = self.net.forward({**state["scales"], **in_channels_last(weights)}, norm, images)
        return functional.linear(features, weights["head.weight"], weights["head.bias"])

    def _split(self, meta: Meta, image_shape: ImageShape) -> tuple[Params, Params]:
        """Tell the weights that are tuned from the scales and shifts of batch norm.

        Tensors that are not of this net are left out.
        """
        layers = self.net.layers(image_shape)
        params = meta.get("params", {})
        missing = [name for name in layers if f"{name}.weight" not in params]
        if missing or "stats" not in meta:
            what = f"there are no weights of '{missing[0]}'" if missing else "there is no 'stats'"
            raise LearnerError(
                f"{type(self).__name__} needs meta['params'] and meta['stats'] of its net, "
                f"and {what}. Make them with init(), or pretrain this very net."
            )

        tuned_weights, scales = {}, {}
        for name, tensor in params.items():
            layer = layers.get(name.rpartition(".")[0])
            if isinstance(layer, BatchNorm):
                scales[name] = tensor
            elif layer is not None:
                tuned_weights[name] = tensor
        return tuned_weights, scales


def init_tune(**fields: Any) -> Tune:
    """Return Init+Tune, for a backbone at its first weights.

    Batch norm gathers its statistics from the task.
    """
    return Tune(**{"norm": "support"} | fields)


def pretrain_tune(**fields: Any) -> Tune:
    """Return Pretrain+Tune, for a pretrained backbone.

    Here, too, batch norm gathers its statistics from the task: tuned weights soon leave those of
    pretraining behind (docs/design/learners.md has the measurement).
    """
    return Tune(**{"norm": "support"} | fields)


def trainable(weights: Mapping[str, Tensor]) -> Params:
    """Return the same values, without their history, as leaves of a new graph."""
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


def _drawn_head(features: int, info: TaskInfo) -> Params:
    """Draw a head with Xavier uniform weights and no bias."""
    weight = nn.init.xavier_uniform_(torch.empty(info.labels, features), generator=info.generator())
    return {
        "head.weight": weight.to(info.device),
        "head.bias": torch.zeros(info.labels, device=info.device),
    }
