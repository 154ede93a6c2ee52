"""Prototypical networks: a class is the mean of its embedded images.

Snell, Swersky and Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017; as a baseline
of continual few-shot learning in Antoniou et al. 2020, appendix A.

Where it departs from the published CFSL code:

- Prototypes are means over all support sets. That code keeps the last image only.
- Support sets are embedded one at a time, with running statistics of batch norm.
- The default metric is the squared Euclidean distance of the paper. That code has the dot product,
  here metric="dot".

prototype="last" is the defect of that code: the prototype of a label is the last image that was
shown under it. (That code also divides it by the number of support images, which the learned scale
makes up for.) Where a label has one image, as in type B, nothing changes. In type C, a label
forgets all classes but the last.

norm="batch" is the batch norm of that code: each support set, and all targets together, are
normalised by statistics of their own, so an answer depends on the other targets (`transductive`). A
batch norm that gets a single value a channel has no variance to divide by: there and then it uses
the running statistics.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Float32, Int64
from pydantic import SerializerFunctionWrapHandler, model_serializer
from torch import Tensor
from torch.nn import functional

from cfsl.data.tasks import TaskBatch
from cfsl.learners.base import Meta, Moment, State, Support, TaskInfo
from cfsl.learners.episode_losses import grouped_by_class, one_shot_loss
from cfsl.learners.metric import Metric, closeness
from cfsl.nets.base import ImageShape
from cfsl.nets.convnet import conv4
from cfsl.nets.layers import Params, Stats, in_layout_of, norm_where_possible
from cfsl.nets.registry import Net
from cfsl.spec import FrozenSpec

_FIRST_SCALE = {"euclidean": 1.0, "cosine": 12.0, "dot": 1.0}


class ProtoNet(FrozenSpec):
    """Embeds images, averages them class by class, and answers with the nearest mean."""

    kind: Literal["protonet"] = "protonet"
    net: Net = conv4(64, "conv-act-norm")
    metric: Metric = "euclidean"
    norm: Literal["running", "batch"] = "running"
    prototype: Literal["mean", "last"] = "mean"
    """The mean of the images of a label, or the last one alone as in the published code."""

    @model_serializer(mode="wrap")
    def _without_later_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """State the prototype only if it is the defect: older runs keep their hash."""
        stated: dict[str, Any] = dump(self)
        return {
            name: value for name, value in stated.items() if (name, value) != ("prototype", "mean")
        }

    @property
    def transductive(self) -> bool:
        """Whether targets are normalised by their own statistics."""
        return self.norm == "batch"

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> Meta:
        """Draw first weights."""
        params, stats = self.net.init(image_shape, generator)
        return {
            "params": params | {"scale": torch.tensor(_FIRST_SCALE[self.metric])},
            "stats": stats,
        }

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n features"]:
        """f(x), equation 1: each image on its own, or with norm="batch" as one batch."""
        params, stats = meta["params"], meta["stats"]
        if self.norm == "running":
            return self.net.features(params, stats, images, norm="running")

        norm = norm_where_possible(params, stats, {})
        return self.net.forward(params, norm, in_layout_of(params, images))

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Start with sums of zero."""
        features = self.net.feature_count(info.image_shape)
        return {
            "scale": meta["params"]["scale"],
            "sums": torch.zeros(info.labels, features, device=info.device),
            "counts": torch.zeros(info.labels, dtype=torch.int64, device=info.device),
        }

    def observe(self, state: State, support: Support) -> State:
        """Add the embedded images to the sums of their classes."""
        if self.prototype == "last":
            return self._with_last_images(state, support)

        ones = torch.ones_like(support.labels)
        return state | {
            "sums": state["sums"].index_add(0, support.labels, support.images),
            "counts": state["counts"].index_add(0, support.labels, ones),
        }

    def _with_last_images(self, state: State, support: Support) -> State:
        """Put the last image of each label in the place of earlier ones."""
        sums, counts = state["sums"].clone(), state["counts"].clone()
        for image, label in zip(support.images, support.labels, strict=True):
            sums[label], counts[label] = image, 1
        return state | {"sums": sums, "counts": counts}

    def episode_loss(
        self, params: Params, stats: Stats, batch: TaskBatch, *, turns: bool, moment: Moment
    ) -> tuple[Tensor, Stats]:
        """Algorithm 1 for some tasks at once, all images embedded in one batch.

        With `turns`, every image of a class is the one-shot prototype in turn, and the others are
        queries.
        """
        features, labels, stats = self.embedded_tasks(params, stats, batch)

        supports = batch.support_labels[0].numel()
        losses = [
            self._task_loss(params["scale"], of_task, labels_of_task, supports, turns=turns)
            for of_task, labels_of_task in zip(features, labels, strict=True)
        ]
        return torch.stack(losses).mean(), stats

    def embedded_tasks(
        self, params: Params, stats: Stats, batch: TaskBatch
    ) -> tuple[Float[Tensor, "tasks n features"], Int64[Tensor, "tasks n"], Stats]:
        """Return the features of all images of each task, their labels, and new statistics.

        The support images of a task come first.
        """
        images = torch.cat([batch.support_images.flatten(0, 2), batch.target_images.flatten(0, 1)])
        in_channels_last = images.to(memory_format=torch.channels_last)
        features, stats = self.net.training_features(params, stats, in_channels_last)

        count = batch.support_labels.numel()
        supports, targets = (
            part.view(len(batch), -1, part.shape[1])
            for part in (features[:count], features[count:])
        )
        labels = torch.cat([batch.support_labels.flatten(1), batch.target_labels], dim=1)
        return torch.cat([supports, targets], dim=1), labels, stats

    def _task_loss(
        self, scale: Tensor, features: Tensor, labels: Tensor, supports: int, *, turns: bool
    ) -> Float[Tensor, ""]:
        """Return the cross-entropy of the targets, given the means of the supports."""
        if turns:
            return one_shot_loss(scale, grouped_by_class(features, labels), self.metric)

        classes = int(labels.max()) + 1
        support_labels, target_labels = labels[:supports], labels[supports:]
        counts = torch.bincount(support_labels, minlength=classes)
        sums = features.new_zeros(classes, features.shape[1])
        sums = sums.index_add(0, support_labels, features[:supports])

        logits = scale * closeness(features[supports:], sums / counts[:, None], self.metric)
        return functional.cross_entropy(logits, target_labels)

    def predict(
        self, state: State, images: Float[Tensor, "n features"]
    ) -> Float[Tensor, "n labels"]:
        """-d(f(x), c_k), equation 2; a class that was never shown is impossible."""
        counts = state["counts"]
        prototypes = state["sums"] / counts.clamp(min=1)[:, None]
        logits = state["scale"] * closeness(images, prototypes, self.metric)
        masked: Tensor = logits.masked_fill(counts == 0, float("-inf"))
        return masked
