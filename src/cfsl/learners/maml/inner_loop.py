"""Learning by gradient steps whose start and rates are themselves learned: what the MAML family shares.

Finn, Abbeel and Levine, "Model-Agnostic Meta-Learning" (ICML 2017); Antoniou, Edwards and Storkey, "How to train your
MAML" (ICLR 2019), "MAML++"; for continual few-shot learning Antoniou et al. 2020, section 5 and appendix A.

    theta_{i+1} = theta_i - rate_i * grad CE(f(theta_i, scale_i; support images), support labels)

Steps i are counted over the whole task: each support set takes `steps` of them, and theta goes from set to set. Each
adapted tensor has a learned rate for every i (LSLR), and batch norm a learned scale and shift for every i, its "row".
After n steps, targets are answered with theta_n and row n. The outer loss is the cross-entropy of the targets, and its
gradient goes back through all steps (order="second") or takes the inner gradients for constants (order="first").

The weights of such a learner are named by what becomes of them:

    params  "block1.conv.weight"          adapted: theta_0
            "rates.block1.conv.weight"    (steps of all sets): its rates
            "scales.block1.norm.weight"   (steps of all sets + 1, channels): the rows
            "embedding...", "critic..."   learned, and the same throughout a task
    stats   "targets.block1.norm.mean"    running statistics of the maps of targets, after the last step
            "embedding..."                those of the embedding

Batch norm normalises an inner step by the statistics of the support set at hand. For targets there is a choice:

- norm="support", the default: the mean over the support sets of each set's statistics, taken after its last step, in
  training as in evaluation. They are part of the state, and cost a further look at each set.
- norm="running": statistics gathered over training from the targets' maps, which training normalises by their own.
- norm="batch": the targets' own, as published; an answer depends on the other targets, and `transductive` says so.

The choice was made on 50 validation tasks of Omniglot (B, NSS=3; Conv-4 of 16 filters, 3 steps, one seed): after 120,
240 and 360 updates of two tasks "support" was right in 32.4, 43.4 and 45.1 %, "running" in 21.1, 29.2 and 29.9 %,
and "batch" in 39.3, 45.5 and 48.9 %.

A batch norm that gets a single value a channel has no variance; there and then it uses the statistics in the state.

A head with more units than a task has labels adapts as it does before the later labels of a task have come; its further
units are not asked for.
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
    of_drawn_length,
    part,
    rows_of,
    taken_over,
)
from cfsl.nets.layers import Norm, Params, Stats, moved_stats
from cfsl.spec import Count, FrozenSpec

Order = Literal["second", "first", "none"]
"""What the outer gradient sees of a step: all of it, the step but not how its gradient came about, or nothing."""
Scalar: TypeAlias = Float[Tensor, ""]
Epochs = Annotated[int, Field(ge=0)]
LearningRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_MOMENTUM = 0.1
_PREDICTED_AT_ONCE = 64
"""Targets are many and maps are large."""
_CRITIC_ANSWER = "critic.linear2.weight"
"""The last layer of a critic (see `critic.py`)."""
_LEAST_SHARE = 0.001
"""Of a step in the multi-step loss, as published."""


def descend(
    loss: Callable[[Params], Scalar],
    weights: Mapping[str, Tensor],
    rates: Mapping[str, Tensor],
    order: Order,
) -> Params:
    """Take one gradient step, each tensor with its own rate: the inner loop is this function, again and again.

    It is pure. With order="none" the result has no history, whatever the arguments have.
    """
    if order == "none":
        weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    with torch.enable_grad():
        # By other names, so that a weight which was made of another one (a prototype) is a variable of its own here.
        variables = {name: weight.view_as(weight) for name, weight in weights.items()}
        gradients = torch.autograd.grad(
            loss(variables), list(variables.values()), create_graph=order == "second"
        )
    with torch.set_grad_enabled(order != "none"):
        return {
            name: weight - rates[name] * gradient
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }


def asked_for(state: State, logits: Float[Tensor, "n units"]) -> Float[Tensor, "n labels"]:
    """Return the logits of the labels that a task has: all, unless the head has more units."""
    return logits[:, : state.get("labels")]


def multi_step_shares(steps: int, epoch: int, epochs: int) -> list[float]:
    """Return the share of the target loss after each step in the outer loss.

    All are equal at first; those before the last shrink evenly over `epochs`, and the last gets what they lose.
    """
    if epoch >= epochs:
        return [0.0] * (steps - 1) + [1.0]
    early = max((1 - epoch / epochs) / steps, _LEAST_SHARE)
    return [early] * (steps - 1) + [1 - early * (steps - 1)]


class InnerLoop(FrozenSpec):
    """The fields and the course of a learner that takes learned gradient steps; a learner says what it classifies."""

    steps: Count = 5
    """On every support set."""
    rate: LearningRate = 0.01
    """Where all inner rates start; they are learned, and may become what they like."""
    norm: Literal["running", "support", "batch"] = "support"
    order: Literal["second", "first"] = "second"
    first_order_epochs: Epochs = 0
    """Train by first order for so many epochs, whatever `order` says (derivative-order annealing)."""
    multi_step_epochs: Epochs = 0
    """Let the target loss after every step count for so many epochs, less and less (see `multi_step_shares`)."""
    extend: Literal["refuse", "last_set"] = "refuse"
    """What to do with more support sets than trained for; "last_set" uses the rows of the last set again."""

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
        """Start with the learned weights, which are shared with `meta` and cost nothing until they are adapted."""
        params, stats = meta.get("params", {}), meta.get("stats", {})
        self._require_fit(part(params, "rates."), params, info)
        fewer = {"labels": info.labels} if info.labels < _units(params, info) else {}
        return self.begun(params, stats, info.labels) | fewer

    def observe(self, state: State, support: Support) -> State:
        """Adapt to one support set."""
        return self.observed(state, support, "none")[0]

    def predict(self, state: State, images: Images) -> Float[Tensor, "n labels"]:
        """Return logits with the weights as they are now."""
        parts = [images] if self.transductive else torch.split(images, _PREDICTED_AT_ONCE)
        with torch.no_grad():
            return asked_for(
                state, torch.cat([self.logits(state, some, {}, training=False) for some in parts])
            )

    # --- its parts: pure, and differentiable for training

    def begun(
        self, params: Mapping[str, Tensor], stats: Mapping[str, Tensor], labels: int
    ) -> State:
        """Return the state before the first support set."""
        rates = part(params, "rates.")
        state = {
            "weights": {name: params[name] for name in rates if name in params},
            "rates": rates,
            "scales": part(params, "scales."),
            "stats": part(stats, "targets."),
            "step": 0,
        }
        return state | ({"sets": 0} if self.norm == "support" else {})

    def arrived(self, state: State, support: Support) -> State:
        """Return the state at the sight of a support set, before the first step on it."""
        return state

    def step(self, state: State, support: Support, order: Order) -> State:
        """Take the next step on a support set."""
        row = self.row(state)
        norm = norm_by_batch(rows_of(state["scales"], row), state["stats"], {})

        def loss(weights: Params) -> Scalar:
            logits = self.seen_only(state, self.classify(weights, norm, support.images))
            return functional.cross_entropy(logits, support.labels)

        weights = descend(loss, state["weights"], rows_of(state["rates"], row), order)
        return {**state, "weights": weights, "step": state["step"] + 1}

    def consolidated(self, state: State, support: Support) -> State:
        """With norm="support", count the statistics of this set among those of the task."""
        if self.norm != "support":
            return state
        seen: Stats = {}
        scales = rows_of(state["scales"], self._target_row(state))
        self.classify(
            state["weights"],
            norm_by_batch(scales, state["stats"], seen, differentiable=True),
            support.images,
        )
        sets, stats = state["sets"] + 1, state["stats"]
        return {**state, "sets": sets, "stats": moved_stats(stats, {**stats, **seen}, 1 / sets)}

    def observed(
        self,
        state: State,
        support: Support,
        order: Order,
        judge: Callable[[State], Scalar] | None = None,
    ) -> tuple[State, list[Scalar]]:
        """Take all steps on a support set; also return what `judge` says of the state after each."""
        judged: list[Scalar] = []
        with torch.set_grad_enabled(order != "none"):
            state = self.arrived(state, support)
            for _ in range(self.steps):
                state = self.step(state, support, order)
                if judge is not None:
                    judged.append(judge(self.consolidated(state, support)))
            return self.consolidated(state, support), judged

    def logits(
        self, state: State, images: Images, seen: Stats, *, training: bool, row: int | None = None
    ) -> Float[Tensor, "n labels"]:
        """Classify targets; where they are normalised by their own statistics, write these into `seen`."""
        scales = rows_of(state["scales"], self._target_row(state) if row is None else row)
        by_batch = self.norm == "batch" or (self.norm == "running" and training)
        norm = (
            norm_by_batch(scales, state["stats"], seen)
            if by_batch
            else norm_by(scales, state["stats"])
        )
        return self.seen_only(state, self.classify(state["weights"], norm, images))

    def seen_only(
        self, state: State, logits: Float[Tensor, "n labels"]
    ) -> Float[Tensor, "n labels"]:
        """Rule out the labels that are impossible; a learner with a unit for every label rules out none."""
        return logits

    # --- training

    def started_from(self, first: Meta, start: Meta) -> Meta:
        """Return first weights with those taken over that an earlier training run has learned (see `taken_over`).

        It may have been of the embedding alone, of fewer support sets, or of a learner without a critic: a new critic
        then says nothing at first, so that the answers are those of the learner that it is added to.
        """
        new, old = first["params"], start["params"]
        wanted = Steps(self.steps, self.trained_steps(part(new, "rates.")))
        old_rates = part(old, "rates.")
        had = wanted
        if old_rates:
            rows_of_critic = 1 if _CRITIC_ANSWER in old else 0
            had = Steps(self.steps, len(next(iter(old_rates.values()))) - rows_of_critic)

        params, stats = (
            taken_over(first[kind], start[kind], had, wanted) for kind in ("params", "stats")
        )
        if not old_rates:
            of_drawn_length(new, params, stats)
        if _CRITIC_ANSWER in params and _CRITIC_ANSWER not in old:
            params[_CRITIC_ANSWER] = torch.zeros_like(params[_CRITIC_ANSWER])
        return {"params": params, "stats": stats}

    def episode_loss(
        self, params: Params, stats: Stats, batch: TaskBatch, *, turns: bool, moment: Moment
    ) -> tuple[Scalar, Stats]:
        """Return the mean outer loss of some tasks, and the running statistics after them."""
        if turns:
            raise LearnerError(
                f"{type(self).__name__} learns from whole tasks; images cannot take turns (turns=False)"
            )
        episodes, stats = self.episodes(params, stats, batch)
        return self.mean_loss(params, stats, episodes, moment)

    def mean_loss(
        self, params: Params, stats: Stats, episodes: Sequence[Episode], moment: Moment
    ) -> tuple[Scalar, Stats]:
        """Return the mean outer loss of tasks that are as the inner loop sees them, and the statistics after them."""
        losses, seen = zip(
            *(self.task_loss(params, stats, episode, moment) for episode in episodes), strict=True
        )
        measured = {
            f"targets.{name}": torch.stack([one[name] for one in seen]).mean(dim=0)
            for name in seen[0]
        }
        return torch.stack(losses).mean(), moved_stats(stats, {**stats, **measured}, _MOMENTUM)

    def episodes(
        self, params: Params, stats: Stats, batch: TaskBatch
    ) -> tuple[list[Episode], Stats]:
        """Return the tasks as the inner loop sees them, and the statistics of an embedding after seeing them."""
        if batch.target_images.dtype is torch.bfloat16:
            name = str(getattr(self, "kind", type(self).__name__))
            raise LearnerError(
                f"the inner steps of {name} need float32: train it with --precision float32"
            )
        return episodes_of(batch, batch.support_images, batch.target_images), stats

    def task_loss(
        self,
        params: Mapping[str, Tensor],
        stats: Mapping[str, Tensor],
        episode: Episode,
        moment: Moment,
    ) -> tuple[Scalar, Stats]:
        """Return the outer loss of one task, and the statistics of its targets."""
        state = self.begun(params, stats, int(episode.labels.max()) + 1)
        order = self.order_at(moment)
        judge = (
            partial(self.target_loss, episode=episode)
            if moment.epoch < self.multi_step_epochs
            else None
        )
        losses: list[Scalar] = []
        for support in episode.supports:
            state, judged = self.observed(state, support, order, judge)
            losses += judged
        seen: Stats = {}
        losses = [*losses[:-1], self.final_loss(state, episode, moment, seen)]
        shares = multi_step_shares(len(losses), moment.epoch, self.multi_step_epochs)
        return torch.stack(
            [share * loss for share, loss in zip(shares, losses, strict=True)]
        ).sum(), seen

    def order_at(self, moment: Moment) -> Order:
        """Return the order of derivatives at a time in training."""
        return "first" if moment.epoch < self.first_order_epochs else self.order

    def target_loss(self, state: State, episode: Episode, seen: Stats | None = None) -> Scalar:
        """Return the cross-entropy of the targets, and write their statistics into `seen`."""
        logits = self.logits(state, episode.targets, {} if seen is None else seen, training=True)
        return functional.cross_entropy(logits, episode.labels)

    def final_loss(self, state: State, episode: Episode, moment: Moment, seen: Stats) -> Scalar:
        """Return the outer loss after the last support set."""
        return self.target_loss(state, episode, seen)

    # --- rows

    def trained_steps(self, rates: Mapping[str, Tensor]) -> int:
        """Return how many steps on support sets the tables have rows for."""
        return len(next(iter(rates.values()))) - self.rows_after

    def row(self, state: State) -> int:
        """Return the row of the next step on a support set: past the end, those of the last set again."""
        step: int = state["step"]
        trained = self.trained_steps(state["rates"])
        return step if step < trained else trained - self.steps + step % self.steps

    def _target_row(self, state: State) -> int:
        """Return the row in which batch norm sees targets."""
        step: int = state["step"]
        return min(step, self.trained_steps(state["rates"]))

    def _require_fit(
        self, rates: Mapping[str, Tensor], params: Mapping[str, Tensor], info: TaskInfo
    ) -> None:
        """Refuse a task of another shape than the weights were made for, naming both."""
        name = str(getattr(self, "kind", type(self).__name__))
        if not rates:
            raise LearnerError(
                f"{name} needs meta['params'] with learned rates; make them with init_for(), or train it"
            )
        trained = self.trained_steps(rates)
        labels = _units(params, info)
        sets, rest = divmod(trained, self.steps)
        too_long = info.nss > sets and self.extend == "refuse"
        if labels < info.labels or too_long or rest:
            hint = (
                ', or use extend="last_set" (--set extend=last_set)'
                if labels >= info.labels and not rest
                else ""
            )
            raise LearnerError(
                f"these weights of {name} are for {labels} labels and {trained} inner steps; this task has "
                f"{info.labels} labels and {info.nss * self.steps} steps ({info.nss} support sets of {self.steps}). "
                f"Train it on tasks of this shape{hint}."
            )


def _units(params: Mapping[str, Tensor], info: TaskInfo) -> int:
    """Return how many labels the head has units for; a head that is made in the task has those of the task."""
    return len(params["head.bias"]) if "head.bias" in params else info.labels
