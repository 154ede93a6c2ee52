"""SCA, self-critique and adapt: MAML++ High-End that takes one more step, on the targets, by a learned loss.

Antoniou and Storkey, "Learning to Learn via Self-Critique" (NeurIPS 2019); Antoniou, Patacchiola, Ochal and Storkey,
"Defining Benchmarks for Continual Few-Shot Learning" (2020), appendix A.

    theta' = theta_n - rate_n * grad_theta sum over targets of critic([z, |z|, z^2, sign z]),    z = f(theta_n; target)

The answers are f(theta'; targets). The critic is learned by the outer loss, w0 CE(before) + w1 CE(after) with
w1 = (1 + (epoch + 1) / epochs) / 2 and w0 = 1 - w1. The step is taken in `predict`: nothing of it is carried on.

All targets together make the step, so that an answer depends on the other targets: `transductive` says so.
joint_targets=False lets each target adapt a copy of its own, and tells how much of the gain is the critic's.

Where it departs from the published code, beyond what `maml_high.py` says: the answers before the critic are those the
critic sees (that code computes them once more in another row of batch norm, to log them). critic="dilated" is the
critic of the first paper, with five dilated convolutions in front, without its embedding of the task. With
joint_targets=False and norm="running", the step is taken by running statistics in training, too: one target has no
batch; the statistics come from the answers before it.
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
from cfsl.learners.maml.inner_loop import InnerLoop, Order, Scalar, asked_for, descend
from cfsl.learners.maml.maml_high import high_end_weights
from cfsl.learners.maml.step_tables import linear_head, part, rows_of, under
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
        return {**meta, "params": meta["params"] | under("critic.", critic)}

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n features"]:
        """Return the flattened maps of each image on its own."""
        return embedded(self.embedding, meta, images)

    def begun(
        self, params: Mapping[str, Tensor], stats: Mapping[str, Tensor], labels: int
    ) -> State:
        """Return the state before the first support set, with the critic at hand."""
        return {**super().begun(params, stats, labels), "critic": part(params, "critic.")}

    def classify(
        self, weights: Mapping[str, Tensor], norm: Norm, images: Images
    ) -> Float[Tensor, "n labels"]:
        """Return the head's logits on the features of the small net."""
        maps = images.view(len(images), *self.embedding.map_shape())
        return linear_head(weights, self.net.forward(weights, norm, maps))

    def predict(self, state: State, images: Images) -> Float[Tensor, "n labels"]:
        """Take the critic's step and answer."""
        with torch.no_grad():
            return asked_for(state, self._criticised(state, images, "none", {}, training=False))

    def episodes(
        self, params: Params, stats: Stats, batch: TaskBatch
    ) -> tuple[list[Episode], Stats]:
        """Embed all images of the tasks at once."""
        return embedded_episodes(self.embedding, params, stats, batch)

    def final_loss(self, state: State, episode: Episode, moment: Moment, seen: Stats) -> Scalar:
        """Return the loss before and after the critic's step, the first less and less."""
        before = self.target_loss(state, episode, seen)
        logits = self._criticised(
            state, episode.targets, self.order_at(moment), seen, training=self.joint_targets
        )
        after = functional.cross_entropy(logits, episode.labels)
        done = (moment.epoch + 1) / moment.epochs
        return (0.5 - 0.5 * done) * before + (0.5 + 0.5 * done) * after

    def _criticised(
        self, state: State, images: Images, order: Order, seen: Stats, *, training: bool
    ) -> Float[Tensor, "n labels"]:
        """Return the answers after the critic's step."""
        parts = [images] if self.joint_targets else torch.split(images, 1)
        return torch.cat(
            [
                self._criticised_jointly(state, some, order, seen, training=training)
                for some in parts
            ]
        )

    def _criticised_jointly(
        self, state: State, images: Images, order: Order, seen: Stats, *, training: bool
    ) -> Float[Tensor, "n labels"]:
        row = self.trained_steps(state["rates"])

        def loss(weights: Params) -> Scalar:
            logits = self.logits(
                {**state, "weights": weights}, images, {}, training=training, row=row
            )
            return predicted_loss(self.critic, state["critic"], logits)

        weights = descend(loss, state["weights"], rows_of(state["rates"], row), order)
        return self.logits(
            {**state, "weights": weights}, images, seen, training=training, row=row + 1
        )
