"""What MAML++ High-End and SCA start from: their embedding and small net, trained as one network.

A gradient step on a layer adds the layer's inputs to its weights (Jacot, Gabriel and Hongler,
"Neural Tangent Kernel", NeurIPS 2018). So after a task, the answer of an inner loop to a target x
is about a sum over all examples that it saw,

    s_c(x) = sum over examples i with label c of <h(x), h(x_i)>

where h are the inputs that the layer learns from. An inner loop can therefore be prepared before
there is one: by training h so that these sums are right. This learner trains two such h:

- The features of the small net, which its head learns from: as ProtoNets by cosine. In a task this
  learner answers with them.
- The inputs of the filters of the small net's convolution (see `features_and_filter_inputs`): by
  the sums above, with cosines, where a label stands for one class or for several (`groups`, as in
  task type C). The mean of an episode is subtracted first, as batch norm does in an inner step.

Where a label stands for several classes, the cosines of unlike classes add up, so they have to be
near zero. In few dimensions they cannot be: n classes in d dimensions have a root mean square
cosine of sqrt((n - d) / (d (n - 1))) at least (Welch, "Lower Bounds on the Maximum Cross
Correlation of Signals", 1974). For 1,200 classes that is .14 in the 48 dimensions of the features;
the filters' inputs have 15,360 dimensions.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float, Float32
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from cfsl.data.tasks import TaskBatch
from cfsl.errors import LearnerError
from cfsl.learners.base import Meta, Moment, State, Support, TaskInfo
from cfsl.learners.episode_losses import Grouped, grouped_by_class, one_shot_loss
from cfsl.learners.protonet import ProtoNet
from cfsl.nets import HighEndNet, ImageShape
from cfsl.nets.layers import Params, Stats
from cfsl.spec import Count, FrozenSpec

Groups = Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
_FIRST_SCALE = 12.0


class MetricStart(FrozenSpec):
    """ProtoNets on the small net's features; its filters' inputs are trained by sums of cosines."""

    kind: Literal["metric_start"] = "metric_start"
    net: HighEndNet = HighEndNet()
    groups: Groups = (1, 3, 8)
    """Classes to a label in the sums of cosines: one loss for each number."""

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> Meta:
        """Draw first weights; every loss has a learned scale."""
        meta = self._protonet().init(image_shape, generator)
        scales = {f"scale.{group}": torch.tensor(_FIRST_SCALE) for group in self.groups}
        return {"params": meta["params"] | scales, "stats": meta["stats"]}

    def _protonet(self) -> ProtoNet:
        return ProtoNet(net=self.net, metric="cosine")

    # --- a task: ProtoNets on the features of the small net

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n features"]:
        """Return the features of the small net."""
        return self._protonet().embed(meta, images)

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Start without any class."""
        return self._protonet().begin(meta, info)

    def observe(self, state: State, support: Support) -> State:
        """Add the features to the sums of their classes."""
        return self._protonet().observe(state, support)

    def predict(
        self, state: State, images: Float[Tensor, "n features"]
    ) -> Float[Tensor, "n labels"]:
        """Answer with the nearest mean."""
        return self._protonet().predict(state, images)

    # --- training

    def episode_loss(
        self, params: Params, stats: Stats, batch: TaskBatch, *, turns: bool, moment: Moment
    ) -> tuple[Tensor, Stats]:
        """Return the sum of all losses, and the running statistics after them."""
        if not turns:
            raise LearnerError(
                "metric_start learns from one-shot episodes whose images take turns (turns=True)"
            )
        with_inputs = ProtoNet(net=self.net.replace(appends_filter_inputs=True))
        outputs, labels, moved = with_inputs.embedded_tasks(params, stats, batch)

        losses = []
        for of_task, labels_of_task in zip(outputs, labels, strict=True):
            grouped = grouped_by_class(of_task, labels_of_task)
            features = grouped[..., : self.net.net.filters]
            inputs = grouped[..., self.net.net.filters :]

            losses.append(one_shot_loss(params["scale"], features, "cosine"))
            unit = functional.normalize(inputs - inputs.mean(dim=(0, 1)), dim=2)
            losses += [loss_of_sums(params[f"scale.{group}"], unit, group) for group in self.groups]
        return torch.stack(losses).sum() / len(batch), moved


def loss_of_sums(scale: Tensor, unit: Grouped, group: int) -> Float[Tensor, ""]:
    """Return the cross-entropy where each label stands for `group` classes.

    It is averaged over which image of a class was shown. Neighbouring classes have a label
    together. Look-alikes are half an episode apart (see `with_companions`), so that they have to
    be told apart.
    """
    classes, images, features = unit.shape
    labels = classes // group
    unit = unit[: labels * group]
    answers = torch.arange(labels, device=unit.device).repeat_interleave(group * (images - 1))

    losses = []
    for shown in range(images):
        others = [image for image in range(images) if image != shown]
        sums = unit[:, shown].view(labels, group, features).sum(dim=1)
        targets = unit[:, others].reshape(-1, features)
        losses.append(functional.cross_entropy(scale * targets @ sums.T, answers))
    return torch.stack(losses).mean()
