"""Learning by gradient steps whose start and rates are themselves learned: the MAML family.

Finn, Abbeel and Levine, "Model-Agnostic Meta-Learning" (ICML 2017); Antoniou, Edwards and Storkey,
"How to train your MAML" (ICLR 2019), "MAML++"; for continual few-shot learning Antoniou et al.
2020, section 5 and appendix A.

    theta_{i+1} = theta_i - rate_i * grad CE(f(theta_i, scale_i; support images), support labels)

Steps i are counted over the whole task: each support set takes `steps` of them, and theta goes from
set to set. Each adapted tensor has a learned rate for every i (LSLR), and batch norm a learned
scale and shift for every i, its "row". After n steps, targets are answered with theta_n and row n.
The outer loss is the cross-entropy of the targets. Its gradient goes back through all steps
(order="second"), or takes the inner gradients for constants (order="first").

The weights of such a learner are named by what becomes of them:

    params  "block1.conv.weight"          adapted: theta_0
            "rates.block1.conv.weight"    (steps of all sets): its rates
            "scales.block1.norm.weight"   (steps of all sets + 1, channels): the rows
            "embedding...", "critic..."   learned, and the same throughout a task
    stats   "targets.block1.norm.mean"    running statistics of targets, after the last step
            "embedding..."                those of the embedding

Batch norm normalises an inner step by the statistics of the support set at hand. For targets there
is a choice (docs/design/learners.md has the measurements behind the default):

- norm="support", the default: the mean over the support sets of the statistics of each set, taken
  after its last step, in training as in evaluation. They are part of the state, and cost one more
  forward pass over each set.
- norm="running": statistics gathered over training from the maps of targets, which training
  normalises by their own statistics.
- norm="batch": the statistics of the targets themselves, as published; an answer then depends on
  the other targets, and `transductive` says so.

A batch norm that gets a single value a channel has no variance; there and then it uses the
statistics in the state.

A head may have more units than a task has labels. It then adapts as it does in a longer task whose
later labels have not come yet, and its further units are left out of the answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from cfsl.data.tasks import TaskBatch
from cfsl.errors import LearnerError
from cfsl.learners.base import Meta, Moment, State, Support, TaskInfo
from cfsl.learners.maml.episodes import Episode, Images, episodes_of
from cfsl.learners.maml.step_tables import (
    Steps,
    first_tables,
    norm_by,
    norm_by_batch,
    rows_of,
    strip_prefix,
    taken_over,
    with_drawn_lengths,
)
from cfsl.nets.layers import Norm, Params, Stats, moved_stats
from cfsl.spec import Count, FrozenSpec

Order = Literal["second", "first", "none"]
"""What the outer gradient sees of a step: all of it, the step but not how its gradient came about,
or nothing."""
Scalar: TypeAlias = Float[Tensor, ""]
_Epochs = Annotated[int, Field(ge=0)]
_LearningRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_MOMENTUM = 0.1
_PREDICTED_AT_ONCE = 64
"""Targets are many and maps are large."""
_CRITIC_OUTPUT = "critic.linear2.weight"
"""The last layer of a critic (see `critic.py`)."""
_LEAST_WEIGHT = 0.001
"""The least weight of a step in the multi-step loss, as published."""


def gradient_step(
    loss: Callable[[Params], Scalar],
    weights: Mapping[str, Tensor],
    rates: Mapping[str, Tensor],
    order: Order,
) -> Params:
    """Take one gradient step, each tensor with its own rate.

    The inner loop is this function, again and again. It is pure. With order="none" the result has
    no history, whatever the arguments have.
    """
    if order == "none":
        weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}

    with torch.enable_grad():
        # Views are variables of their own: a weight that was made of another one (a prototype) must
        # not pass its gradient on to that one here.
        variables = {name: weight.view_as(weight) for name, weight in weights.items()}
        gradients = torch.autograd.grad(
            loss(variables), list(variables.values()), create_graph=order == "second"
        )

    with torch.set_grad_enabled(order != "none"):
        return {
            name: weight - rates[name] * gradient
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }


def logits_of_task(state: State, logits: Float[Tensor, "n units"]) -> Float[Tensor, "n labels"]:
    """Return the logits of the labels that a task has: all, unless the head has more units."""
    return logits[:, : state.get("labels")]


def multi_step_weights(steps: int, epoch: int, epochs: int) -> list[float]:
    """Return the weight of the target loss after each step in the outer loss (MSL of MAML++).

    All are equal at first. Those before the last shrink evenly over `epochs`, and the last one
    grows by what they lose.
    """
    if epoch >= epochs:
        return [0.0] * (steps - 1) + [1.0]

    early = max((1 - epoch / epochs) / steps, _LEAST_WEIGHT)
    return [early] * (steps - 1) + [1 - early * (steps - 1)]


class InnerLoop(FrozenSpec):
    """The fields and the inner loop of a MAML learner; a subclass says what it classifies with."""

    steps: Count = 5
    """On every support set."""
    rate: _LearningRate = 0.01
    """Where all inner rates start; they are learned, and may become negative."""
    norm: Literal["running", "support", "batch"] = "support"
    order: Literal["second", "first"] = "second"
    first_order_epochs: _Epochs = 0
    """Train by first order for so many epochs at first (derivative-order annealing)."""
    multi_step_epochs: _Epochs = 0
    """Let the target loss after every step count for so many epochs (see `multi_step_weights`)."""
    extend: Literal["refuse", "last_set"] = "refuse"
    """What to do with more support sets than trained for; "last_set" uses the rows of the last set
    again."""

    rows_after: ClassVar[int] = 0
    """Steps that a learner takes after the last support set."""

    @property
    def transductive(self) -> bool:
        """Whether an answer depends on the other images of the batch."""
        return self.norm == "batch"

    @abstractmethod
    def classify(
        self, weights: Mapping[str, Tensor], norm: Norm, images: Images
    ) -> Float[Tensor, "n labels"]:
        """Return logits with these weights, and `norm` in the place of every batch norm."""

    def tables(self, weights: Params, scales: Params, nss: int) -> Params:
        """Return first rates and rows for what adapts."""
        return first_tables(nss * self.steps + self.rows_after, self.rate, weights, scales)

    # --- a task

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Start with the learned weights.

        They are shared with `meta`, and cost no memory until they are adapted.
        """
        params, stats = meta.get("params", {}), meta.get("stats", {})
        self._require_fit(strip_prefix(params, "rates."), params, info)

        has_more_units = info.labels < _units(params, info)
        labels = {"labels": info.labels} if has_more_units else {}
        return self.initial_state(params, stats, info.labels) | labels

    def observe(self, state: State, support: Support) -> State:
        """Adapt to one support set."""
        return self.adapt(state, support, "none")[0]

    def predict(self, state: State, images: Images) -> Float[Tensor, "n labels"]:
        """Return logits with the weights as they are now."""
        batches = [images] if self.transductive else torch.split(images, _PREDICTED_AT_ONCE)
        with torch.no_grad():
            logits = [self.target_logits(state, batch, training=False)[0] for batch in batches]
            return logits_of_task(state, torch.cat(logits))

    # --- the inner loop: pure, and differentiable for training

    def initial_state(
        self, params: Mapping[str, Tensor], stats: Mapping[str, Tensor], labels: int
    ) -> State:
        """Return the state before the first support set."""
        rates = strip_prefix(params, "rates.")
        state = {
            "weights": {name: params[name] for name in rates if name in params},
            "rates": rates,
            "scales": strip_prefix(params, "scales."),
            "stats": strip_prefix(stats, "targets."),
            "step": 0,
        }
        return state | ({"sets": 0} if self.norm == "support" else {})

    def adapt(
        self,
        state: State,
        support: Support,
        order: Order,
        target_loss: Callable[[State], Scalar] | None = None,
    ) -> tuple[State, list[Scalar]]:
        """Take all steps on a support set; also return the target loss after each, if asked for."""
        losses: list[Scalar] = []
        with torch.set_grad_enabled(order != "none"):
            state = self.start_set(state, support)
            for _ in range(self.steps):
                state = self.inner_step(state, support, order)
                if target_loss is not None:
                    losses.append(target_loss(self.finish_set(state, support)))
            return self.finish_set(state, support), losses

    def start_set(self, state: State, support: Support) -> State:
        """Return the state before the first step on a support set."""
        return state

    def inner_step(self, state: State, support: Support, order: Order) -> State:
        """Take the next step on a support set."""
        row = self.row(state)
        norm = norm_by_batch(rows_of(state["scales"], row), state["stats"], {})

        def loss(weights: Params) -> Scalar:
            logits = self.mask_unseen(state, self.classify(weights, norm, support.images))
            return functional.cross_entropy(logits, support.labels)

        weights = gradient_step(loss, state["weights"], rows_of(state["rates"], row), order)
        return {**state, "weights": weights, "step": state["step"] + 1}

    def finish_set(self, state: State, support: Support) -> State:
        """With norm="support", average the statistics of this set with those of earlier sets."""
        if self.norm != "support":
            return state

        measured: Stats = {}
        scales = rows_of(state["scales"], self._target_row(state))
        norm = norm_by_batch(scales, state["stats"], measured, differentiable=True)
        self.classify(state["weights"], norm, support.images)

        sets, stats = state["sets"] + 1, state["stats"]
        moved = moved_stats(stats, {**stats, **measured}, 1 / sets)
        return {**state, "sets": sets, "stats": moved}

    def target_logits(
        self, state: State, images: Images, *, training: bool, row: int | None = None
    ) -> tuple[Float[Tensor, "n labels"], Stats]:
        """Classify targets; also return their own statistics, if they are normalised by these."""
        scales = rows_of(state["scales"], self._target_row(state) if row is None else row)
        measured: Stats = {}
        if self.norm == "batch" or (self.norm == "running" and training):
            norm = norm_by_batch(scales, state["stats"], measured)
        else:
            norm = norm_by(scales, state["stats"])

        logits = self.mask_unseen(state, self.classify(state["weights"], norm, images))
        return logits, measured

    def mask_unseen(
        self, state: State, logits: Float[Tensor, "n labels"]
    ) -> Float[Tensor, "n labels"]:
        """Rule out labels that were not shown yet, unless every label has a learned unit."""
        return logits

    # --- training

    def started_from(self, first: Meta, start: Meta) -> Meta:
        """Return first weights with those of an earlier training run in their places.

        See `taken_over`. The earlier run may have been of the embedding alone, of fewer support
        sets, or of a learner without a critic: a new critic then says nothing at first, so that the
        answers are those of the learner that it is added to.
        """
        drawn, earlier = first["params"], start["params"]
        wanted = Steps(self.steps, self.trained_steps(strip_prefix(drawn, "rates.")))
        earlier_rates = strip_prefix(earlier, "rates.")
        had = wanted
        if earlier_rates:
            rows_of_critic = 1 if _CRITIC_OUTPUT in earlier else 0
            had = Steps(self.steps, len(next(iter(earlier_rates.values()))) - rows_of_critic)

        params, stats = (
            taken_over(first[kind], start[kind], had, wanted) for kind in ("params", "stats")
        )
        if not earlier_rates:
            params, stats = with_drawn_lengths(drawn, params, stats)
        if _CRITIC_OUTPUT in params and _CRITIC_OUTPUT not in earlier:
            params[_CRITIC_OUTPUT] = torch.zeros_like(params[_CRITIC_OUTPUT])
        return {"params": params, "stats": stats}

    def episode_loss(
        self, params: Params, stats: Stats, batch: TaskBatch, *, turns: bool, moment: Moment
    ) -> tuple[Scalar, Stats]:
        """Return the mean outer loss of some tasks, and the running statistics after them."""
        if turns:
            raise LearnerError(
                f"{type(self).__name__} learns from whole tasks; "
                f"images cannot take turns (turns=False)"
            )
        episodes, stats = self.episodes(params, stats, batch)
        return self.mean_loss(params, stats, episodes, moment)

    def episodes(
        self, params: Params, stats: Stats, batch: TaskBatch
    ) -> tuple[list[Episode], Stats]:
        """Return tasks with the images that the inner loop sees.

        Also return the statistics of an embedding, if there is one, after it saw the tasks.
        """
        if batch.target_images.dtype is torch.bfloat16:
            raise LearnerError(
                f"the inner steps of {self._name} need float32: train it with --precision float32"
            )
        return episodes_of(batch, batch.support_images, batch.target_images), stats

    def mean_loss(
        self, params: Params, stats: Stats, episodes: Sequence[Episode], moment: Moment
    ) -> tuple[Scalar, Stats]:
        """Return the mean outer loss of episodes, and the running statistics after them."""
        losses, measured = zip(
            *(self.task_loss(params, stats, episode, moment) for episode in episodes), strict=True
        )
        means = {
            f"targets.{name}": torch.stack([of_task[name] for of_task in measured]).mean(dim=0)
            for name in measured[0]
        }
        return torch.stack(losses).mean(), moved_stats(stats, {**stats, **means}, _MOMENTUM)

    def task_loss(
        self,
        params: Mapping[str, Tensor],
        stats: Mapping[str, Tensor],
        episode: Episode,
        moment: Moment,
    ) -> tuple[Scalar, Stats]:
        """Return the outer loss of one task, and the statistics of its targets."""
        state = self.initial_state(params, stats, int(episode.labels.max()) + 1)
        is_multi_step = moment.epoch < self.multi_step_epochs
        target_loss = partial(self._target_loss_alone, episode=episode) if is_multi_step else None

        losses: list[Scalar] = []
        for support in episode.supports:
            state, of_steps = self.adapt(state, support, self.order_at(moment), target_loss)
            losses += of_steps

        # The loss after the last step is computed anew: a learner may do more after that step.
        last, measured = self.final_loss(state, episode, moment)
        losses = [*losses[:-1], last]
        weights = multi_step_weights(len(losses), moment.epoch, self.multi_step_epochs)
        weighted = [weight * loss for weight, loss in zip(weights, losses, strict=True)]
        return torch.stack(weighted).sum(), measured

    def order_at(self, moment: Moment) -> Order:
        """Return the order of derivatives at a time in training."""
        return "first" if moment.epoch < self.first_order_epochs else self.order

    def target_loss(self, state: State, episode: Episode) -> tuple[Scalar, Stats]:
        """Return the cross-entropy of the targets, and their statistics."""
        logits, measured = self.target_logits(state, episode.targets, training=True)
        return functional.cross_entropy(logits, episode.labels), measured

    def _target_loss_alone(self, state: State, episode: Episode) -> Scalar:
        return self.target_loss(state, episode)[0]

    def final_loss(self, state: State, episode: Episode, moment: Moment) -> tuple[Scalar, Stats]:
        """Return the outer loss after the last support set, and the statistics of the targets."""
        return self.target_loss(state, episode)

    # --- rows

    def trained_steps(self, rates: Mapping[str, Tensor]) -> int:
        """Return how many steps on support sets the tables have rows for."""
        return len(next(iter(rates.values()))) - self.rows_after

    def row(self, state: State) -> int:
        """Return the row of the next step on a support set.

        Past the end of the tables, the rows of the last set come again.
        """
        step: int = state["step"]
        trained = self.trained_steps(state["rates"])
        return step if step < trained else trained - self.steps + step % self.steps

    def _target_row(self, state: State) -> int:
        """Return the row by which batch norm scales targets."""
        step: int = state["step"]
        return min(step, self.trained_steps(state["rates"]))

    @property
    def _name(self) -> str:
        return str(getattr(self, "kind", type(self).__name__))

    def _require_fit(
        self, rates: Mapping[str, Tensor], params: Mapping[str, Tensor], info: TaskInfo
    ) -> None:
        """Refuse a task of another shape than the weights were made for, naming both."""
        if not rates:
            raise LearnerError(
                f"{self._name} needs meta['params'] with learned rates; "
                f"make them with init_for(), or train it"
            )

        trained = self.trained_steps(rates)
        labels = _units(params, info)
        sets, rest = divmod(trained, self.steps)
        too_long = info.nss > sets and self.extend == "refuse"
        if labels < info.labels or too_long or rest:
            could_extend = labels >= info.labels and not rest
            hint = ', or use extend="last_set" (--set extend=last_set)' if could_extend else ""
            raise LearnerError(
                f"these weights of {self._name} are for {labels} labels and {trained} inner steps; "
                f"this task has {info.labels} labels and {info.nss * self.steps} steps "
                f"({info.nss} support sets of {self.steps}). Train it on tasks of this shape{hint}."
            )


def _units(params: Mapping[str, Tensor], info: TaskInfo) -> int:
    """Return how many labels the head has units for.

    A head that is made in the task has as many units as the task has labels.
    """
    return len(params["head.bias"]) if "head.bias" in params else info.labels
