"""SCA, self-critique and adapt: MAML++ High-End with one more step, on the targets.

Antoniou and Storkey, "Learning to Learn via Self-Critique" (NeurIPS 2019); Antoniou, Patacchiola,
Ochal and Storkey, "Defining Benchmarks for Continual Few-Shot Learning" (2020), appendix A. The
loss of that step is learned: the critic of `critic.py`.

    theta' = theta_n - rate_n * grad_theta sum over targets of critic([z, |z|, z^2, sign z]),
    z      = f(theta_n; target)

The answers are f(theta'; targets). The critic is learned by the outer loss,
w0 CE(before) + w1 CE(after) with w1 = (1 + (epoch + 1) / epochs) / 2 and w0 = 1 - w1. The step is
taken in `predict`: nothing of it is carried on.

All targets together make the step, so that an answer depends on the other targets: `transductive`
says so. With joint_targets=False each target adapts a copy of its own, which tells how much of the
gain is the critic's.

Where it departs from the published code, beyond what `maml_high.py` says:

- The answers before the critic are those that the critic sees. That code computes them once more in
  another row of batch norm, to log them.
- critic="dilated" is the critic of the first paper, with five dilated convolutions in front,
  without its embedding of the task.
- With joint_targets=False and norm="running", the step is taken by running statistics in training,
  too, since one target has no batch. The statistics come from the answers before the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn import functional

from cfsl.data.tasks import TaskBatch
from cfsl.learners.base import Meta, Moment, State
from cfsl.learners.maml.critic import Kind, critic_weights, predicted_loss
from cfsl.learners.maml.episodes import Episode, Images, embedded, embedded_episodes
from cfsl.learners.maml.inner_loop import InnerLoop, Order, Scalar, gradient_step, logits_of_task
from cfsl.learners.maml.maml_high import high_end_weights
from cfsl.learners.maml.step_tables import add_prefix, linear_head, rows_of, strip_prefix
from cfsl.nets import DenseNet, ImageShape, SqueezeConv
from cfsl.nets.layers import Norm, Params, Stats
from cfsl.spec import TaskSpec


class Sca(InnerLoop):
    """Adapts a small net on the maps of a fixed embedding, and once more to its own answers."""

    kind: Literal["sca"] = "sca"
    embedding: DenseNet = DenseNet()
    net: SqueezeConv = SqueezeConv()
    critic: Kind = "mlp"
    joint_targets: bool = True

    rows_after: ClassVar[int] = 1

    @property
    def transductive(self) -> bool:
        """Whether targets are looked at together."""
        return self.joint_targets or self.norm == "batch"

    def init_for(self, image_shape: ImageShape, task: TaskSpec, generator: torch.Generator) -> Meta:
        """Draw first weights for tasks of this shape."""
        meta = high_end_weights(self, self.embedding, self.net, image_shape, task, generator)
        critic = critic_weights(self.critic, task.labels, generator)
        return {**meta, "params": meta["params"] | add_prefix("critic.", critic)}

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n features"]:
        """Return the flattened maps of each image on its own."""
        return embedded(self.embedding, meta, images)

    def initial_state(
        self, params: Mapping[str, Tensor], stats: Mapping[str, Tensor], labels: int
    ) -> State:
        """Return the state before the first support set, with the weights of the critic."""
        state = super().initial_state(params, stats, labels)
        return {**state, "critic": strip_prefix(params, "critic.")}

    def classify(
        self, weights: Mapping[str, Tensor], norm: Norm, images: Images
    ) -> Float[Tensor, "n labels"]:
        """Return the head's logits on the features of the small net."""
        maps = images.view(len(images), *self.embedding.map_shape())
        return linear_head(weights, self.net.forward(weights, norm, maps))

    def predict(self, state: State, images: Images) -> Float[Tensor, "n labels"]:
        """Take the critic's step and answer."""
        with torch.no_grad():
            logits, _ = self._logits_after_critic(state, images, "none", training=False)
            return logits_of_task(state, logits)

    def episodes(
        self, params: Params, stats: Stats, batch: TaskBatch
    ) -> tuple[list[Episode], Stats]:
        """Embed all images of the tasks at once."""
        return embedded_episodes(self.embedding, params, stats, batch)

    def final_loss(self, state: State, episode: Episode, moment: Moment) -> tuple[Scalar, Stats]:
        """Return the loss before and after the critic's step, the first less and less."""
        before, stats_before = self.target_loss(state, episode)
        logits, stats_after = self._logits_after_critic(
            state, episode.targets, self.order_at(moment), training=self.joint_targets
        )
        after = functional.cross_entropy(logits, episode.labels)

        done = (moment.epoch + 1) / moment.epochs
        loss = (0.5 - 0.5 * done) * before + (0.5 + 0.5 * done) * after
        return loss, stats_before | stats_after

    def _logits_after_critic(
        self, state: State, images: Images, order: Order, *, training: bool
    ) -> tuple[Float[Tensor, "n labels"], Stats]:
        """Return the answers after the critic's step, and the statistics of the last targets."""
        batches = [images] if self.joint_targets else torch.split(images, 1)
        logits, measured = zip(
            *(self._critic_step(state, batch, order, training=training) for batch in batches),
            strict=True,
        )
        return torch.cat(logits), measured[-1]

    def _critic_step(
        self, state: State, images: Images, order: Order, *, training: bool
    ) -> tuple[Float[Tensor, "n labels"], Stats]:
        """Adapt to these targets together, and answer for them."""
        row = self.trained_steps(state["rates"])

        def loss(weights: Params) -> Scalar:
            logits, _ = self.target_logits(
                {**state, "weights": weights}, images, training=training, row=row
            )
            return predicted_loss(self.critic, state["critic"], logits)

        weights = gradient_step(loss, state["weights"], rows_of(state["rates"], row), order)
        adapted = {**state, "weights": weights}
        return self.target_logits(adapted, images, training=training, row=row + 1)
