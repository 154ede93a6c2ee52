"""ProtoNets with replay: support images are kept embedded, and a classifier is fitted to them.

Kowadlo et al., "Expanding continual few-shot learning benchmarks to include recognition of specific
instances" (2022), section 5.5: "inventing Protonet+Replay would be a promising direction". The
paper has no such method; this one is ours.

With a fixed embedding, the means of ProtoNets already hold all that means can hold. So embedded
images are stored, and replayed to a kernel ridge regression from embeddings M to labels Y, which
has no steps and no order of images:

    k(a, b) = exp(-w s |a - b|^2)                         s is the learned scale of ProtoNets
    answer(x) = k(x, M) (k(M, M) + r / n)^-1 Y / max_m k(x, m)
    logits(x) = (1 - share) * ProtoNets(x) + share * gain * answer(x)

The rows of M are the images of the last `sets` support sets (n = 1) and, for each label, the mean
of its n older ones. For the cosine, |a| = 1. To divide by the kernel of the nearest row does not
change which label is answered, and gives an answer to targets that are far from everything. With
share=0 this is ProtoNets exactly. Weights are those of ProtoNets: a checkpoint of one fits the
other.

Replay gains little over ProtoNets where no label is used again, and 16 points on type C. There it
is the stored images that count, and `multiproto`, which stores no more, is better still.
docs/design/learners.md has the measurements, and what else was tried.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float, Float32
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from cfsl.data.tasks import TaskBatch
from cfsl.learners.base import Meta, Moment, State, Support, TaskInfo
from cfsl.learners.metric import Metric, closeness
from cfsl.learners.protonet import ProtoNet
from cfsl.nets.base import ImageShape
from cfsl.nets.convnet import conv4
from cfsl.nets.layers import Params, Stats
from cfsl.nets.registry import Net
from cfsl.spec import FrozenSpec

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Several = Annotated[int, Field(ge=0, le=1_000_000)]


class ProtoNetReplay(FrozenSpec):
    """Answers by kernel ridge regression on recent embedded images and means of older ones."""

    kind: Literal["protonet_replay"] = "protonet_replay"
    net: Net = conv4(64, "conv-act-norm")
    metric: Metric = "euclidean"
    norm: Literal["running", "batch"] = "running"
    sets: _Several | None = None
    """How many support sets are kept image by image (b of paper 2); None: all."""
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share of replay in the logits; the rest is ProtoNets."""
    width: _Positive = 0.15
    """w of the kernel."""
    ridge: _Positive = 0.1
    """r of the regression."""
    gain: _Positive = 9.0
    """Logits per unit of the regression."""

    @property
    def transductive(self) -> bool:
        """Whether targets are normalised by their own statistics."""
        return self.norm == "batch"

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> Meta:
        """Draw first weights: those of ProtoNets."""
        return self._protonet().init(image_shape, generator)

    def embed(
        self, meta: Meta, images: Float32[Tensor, "n channels height width"]
    ) -> Float[Tensor, "n features"]:
        """Embed as ProtoNets do."""
        return self._protonet().embed(meta, images)

    def episode_loss(
        self, params: Params, stats: Stats, batch: TaskBatch, *, turns: bool, moment: Moment
    ) -> tuple[Tensor, Stats]:
        """Train as ProtoNets do."""
        return self._protonet().episode_loss(params, stats, batch, turns=turns, moment=moment)

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Start without stored images."""
        none = torch.zeros(0, dtype=torch.int64, device=info.device)
        return {
            "info": info,
            "scale": meta["params"]["scale"],
            "sums": torch.zeros(0, self.net.feature_count(info.image_shape), device=info.device),
            "counts": none,
            "labels": none,
        }

    def observe(self, state: State, support: Support) -> State:
        """Store the images of the support set, and add up those that are too old by label."""
        rows = {
            "sums": torch.cat([state["sums"], support.images]),
            "counts": torch.cat([state["counts"], torch.ones_like(support.labels)]),
            "labels": torch.cat([state["labels"], support.labels]),
        }
        if self.sets is None:
            return state | rows

        old = max(0, len(rows["labels"]) - self.sets * len(support.labels))
        merged = _merged({name: column[:old] for name, column in rows.items()})
        recent = {name: column[old:] for name, column in rows.items()}
        return state | {name: torch.cat([merged[name], recent[name]]) for name in rows}

    def predict(
        self, state: State, images: Float[Tensor, "n features"]
    ) -> Float[Tensor, "n labels"]:
        """Mix the logits of the regression with those of ProtoNets.

        A label that was never shown is impossible.
        """
        labels = state["info"].labels
        by_means = self._protonet().predict(_as_protonet(state, labels), images)
        if self.share == 0:
            return by_means

        by_replay = self.gain * self._regressed(state, images, labels)
        return torch.lerp(by_means, by_replay, self.share).where(by_means.isfinite(), by_means)

    def _regressed(
        self, state: State, images: Float[Tensor, "n features"], labels: int
    ) -> Float[Tensor, "n labels"]:
        """Return k(x, M) (k(M, M) + r / n)^-1 Y, over the kernel of x and the nearest of M."""
        rows, scale = state["sums"] / state["counts"][:, None], state["scale"]
        ridge = torch.diag(self.ridge / state["counts"])
        kernel = self._exponents(rows, rows, scale).exp() + ridge
        targets = functional.one_hot(state["labels"], labels).to(kernel.dtype)
        weights = torch.linalg.solve(kernel, targets)

        exponents = self._exponents(images, rows, scale)
        relative = (exponents - exponents.max(dim=1, keepdim=True).values).exp()
        answers: Tensor = relative @ weights
        return answers

    def _exponents(
        self, images: Float[Tensor, "n features"], rows: Float[Tensor, "m features"], scale: Tensor
    ) -> Float[Tensor, "n m"]:
        """Return -w s |a - b|^2, the logarithm of the kernel.

        For the cosine, vectors are brought to length 1.
        """
        if self.metric == "cosine":
            images, rows = functional.normalize(images, dim=1), functional.normalize(rows, dim=1)
        return self.width * scale * closeness(images, rows, "euclidean")

    def _protonet(self) -> ProtoNet:
        return ProtoNet(net=self.net, metric=self.metric, norm=self.norm)


def _merged(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add up the rows of each label."""
    labels, place = torch.unique(rows["labels"], return_inverse=True)
    sums, counts = rows["sums"], rows["counts"]
    return {
        "sums": sums.new_zeros(len(labels), sums.shape[1]).index_add(0, place, sums),
        "counts": counts.new_zeros(len(labels)).index_add(0, place, counts),
        "labels": labels,
    }


def _as_protonet(state: State, labels: int) -> State:
    """Return the state of ProtoNets after the same support sets."""
    sums, counts = state["sums"], state["counts"]
    return {
        "scale": state["scale"],
        "sums": sums.new_zeros(labels, sums.shape[1]).index_add(0, state["labels"], sums),
        "counts": counts.new_zeros(labels).index_add(0, state["labels"], counts),
    }
