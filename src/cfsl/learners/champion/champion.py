"""The champion: prototypes, and a memory of the images themselves. The learner to try first.

It comes from our own experiments, not from a paper. It has four parts, one module each:

1. `embedding.py`: f(x), an embedding of several views of an image. The network is trained as this
   module says: on characters by episodes, on photographs as a classifier of all training classes.
2. `prototypes.py`: a prototype for every class group and label, as in `multiproto`. It is the mean
   of embeddings, kept in one byte a number.
3. `closeness.py`: e(x, u), how close an image x is to a prototype u. On characters it is evidence,
   which `spread.py` measures, and on photographs a cosine.
4. `pixel_memory.py`: one bit a pixel of every support image, and the odds that x is a copy of it.

The answer puts class and copies together, over the prototypes u and the n images i of a class c:

    p(c | x) ~ sum_u exp(e(x, u)) + exp(k) / n^h sum_i odds(x is a copy of i)

An image that is less close than k to every prototype is not familiar by class. In tasks whose
targets are other images of the classes, the second term is far below the first. It decides in the
instance test, where embeddings of classes fail as soon as the target is noisy or hidden in part.

Of a photograph, a disc leaves enough to be embedded by, so that a copy also has to be close to the
prototype u_i that its original is part of: there the second term is

    exp(k) / n^h sum_i exp(e(x, u_i)) odds(x is a copy of i)

The ablations in docs/findings.md say what each part is worth.

Characters are learned from wide episodes (38 classes of 5 images), in which every image is to be
known by any other of its class, and by the mean of the other four (`episode_losses.py`). Half of
the classes are look-alikes of the others (`companions` of `Training`). A character in another
orientation is another class, so that there are eight times as many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from cfsl.data.tasks import TaskBatch
from cfsl.learners.base import Meta, Moment, State, Support, TaskInfo
from cfsl.learners.champion.closeness import Closeness, Cosine, Evidence
from cfsl.learners.champion.embedding import (
    CharacterEmbedding,
    CharacterOnAxes,
    Embedding,
    Images,
    LabelledImages,
    PhotoEmbedding,
    Views,
)
from cfsl.learners.champion.pixel_memory import (
    code_length,
    copy_log_odds,
    copy_loss,
    init_matcher,
    packed,
    pixel_values,
    unpacked,
)
from cfsl.learners.champion.prototypes import Numbers, Prototypes, as_read, as_stored
from cfsl.learners.champion.spread import Spread
from cfsl.learners.episode_losses import grouped_by_class, left_out_loss, one_shot_loss
from cfsl.learners.metric import closeness, sums_by_label
from cfsl.learners.protonet import ProtoNet
from cfsl.nets.base import ImageShape
from cfsl.nets.layers import Params, Stats
from cfsl.nets.registry import Net
from cfsl.nets.small_resnet import SmallResNet
from cfsl.spec import Count, FrozenSpec

_FIRST_SCALE = 12.0
_SMOOTHING = 0.1


class Champion(FrozenSpec):
    """Answers with the closest prototype, unless the image is a copy of one that was shown."""

    kind: Literal["champion"] = "champion"
    net: Net = SmallResNet()
    """The network for characters: images of one channel."""
    photo_net: Net = SmallResNet(
        widths=(48, 96, 192, 384), stem_kernel=5, stem_stride=2, embedding=None, pooled_norm=True
    )
    views: Views = "turns"
    """The views of a character: its eight orientations, five places that differ by a pixel (whose
    mean is taken), or the character as it is. With "one" a photograph is embedded as it is, too,
    and else in three sizes."""
    groups: bool = True
    """Whether every class group has its own prototypes; otherwise all classes that share a label
    are averaged."""
    closeness: Literal["evidence", "cosine"] = "evidence"
    """How close a character is to a prototype. For photographs it is always the cosine: how a
    classifier spreads its own classes says little about the spread of others."""
    axes: Count = 512
    """How many coordinates of a character are kept with evidence: those that tell most."""
    length_power: Annotated[float, Field(ge=0, le=2)] = 0.5
    """Cosines are divided by this power of a prototype's length; 0 leaves them as they are."""
    learns_means: bool = True
    """Whether training on episodes also asks about each image given the mean of all others of its
    class, not only given a single one."""
    numbers: Numbers = "int8"
    """What prototypes are kept in."""
    knows_copies: bool = True
    """Whether the images themselves are kept, one bit a pixel."""

    # --- parts

    def net_for(self, image_shape: ImageShape) -> Net:
        """Return the network for characters or for photographs."""
        return self.photo_net if _is_photograph(image_shape) else self.net

    def _embedding(self, *, photographs: bool) -> Embedding:
        """Return how images are embedded."""
        if photographs:
            return PhotoEmbedding(self.photo_net, self.views)

        character = CharacterEmbedding(self.net, self.views)
        return CharacterOnAxes(character, self.axes) if self.closeness == "evidence" else character

    def _closeness(self, state: State) -> Closeness:
        """Return the measure of closeness in a task."""
        if "shares" in state:
            return Evidence(state["shares"])

        photographs = _is_photograph(state["info"].image_shape)
        cosine = Cosine.of_photographs if photographs else Cosine.of_characters
        return cosine(state["params"]["scale"], self.length_power)

    # --- weights

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> Meta:
        """Draw first weights of the network, and of the matcher that tells copies."""
        embedding = self._embedding(photographs=_is_photograph(image_shape))
        if isinstance(embedding, PhotoEmbedding):
            embedding.require_views(image_shape)

        params, stats = self.net_for(image_shape).init(image_shape, generator)
        matcher = init_matcher(generator) if self.knows_copies else {}
        return {
            "params": params | {"scale": torch.tensor(_FIRST_SCALE)} | matcher,
            "stats": stats | embedding.first_stats(image_shape),
        }

    def calibration_images(self, image_shape: ImageShape) -> tuple[int, int]:
        """Return how many training images to measure at most, and how many of a class."""
        return (1_024, 8) if _is_photograph(image_shape) else (12_288, 10)

    def calibrated(self, meta: Meta, batches: Iterable[LabelledImages]) -> Meta:
        """Return the weights with the statistics of the embedding measured on training images."""
        embedding = self._embedding(photographs="centres" in meta["stats"])
        return {**meta, "stats": {**meta["stats"], **embedding.measured_stats(meta, batches)}}

    # --- training

    def episode_loss(
        self, params: Params, stats: Stats, batch: TaskBatch, *, turns: bool, moment: Moment
    ) -> tuple[Tensor, Stats]:
        """Return half the loss given one other image of the class, plus that given their mean.

        This is the loss of an episode whose images take turns as the one that is asked for
        (`turns`); of others it is the loss of ProtoNets.
        """
        net = self.net_for(_shape_of(batch))
        protonet = ProtoNet(net=net, metric="cosine")
        if not (turns and self.learns_means):
            return protonet.episode_loss(params, stats, batch, turns=turns, moment=moment)

        features, labels, stats = protonet.embedded_tasks(params, stats, batch)
        losses = []
        for of_task, labels_of_task in zip(features, labels, strict=True):
            grouped = grouped_by_class(of_task, labels_of_task)
            losses.append(one_shot_loss(params["scale"], grouped, "cosine") / 2)
            losses.append(left_out_loss(params["scale"], grouped, self.length_power))
        return torch.stack(losses).sum() / len(batch), stats

    def classifier_loss(
        self, params: Params, features: Float[Tensor, "n features"], labels: Int64[Tensor, " n"]
    ) -> Float[Tensor, ""]:
        """Return the loss of a cosine classifier over all training classes.

        Its weights are params["head.weight"].
        """
        logits = params["scale"] * closeness(features, params["head.weight"], "cosine")
        return functional.cross_entropy(logits, labels, label_smoothing=_SMOOTHING)

    def memory_loss(
        self, params: Params, images: Images, generator: torch.Generator
    ) -> Float[Tensor, ""]:
        """Return the loss of telling copies, on images as they are in the data set."""
        return copy_loss(params, images, generator) if self.knows_copies else images.new_zeros(())

    # --- a task

    def embed(self, meta: Meta, images: Images) -> Float[Tensor, "n numbers"]:
        """Return the embedding, and after it the grey values that copies are known by."""
        photographs = _is_photograph((images.shape[1], images.shape[2], images.shape[3]))
        features = self._embedding(photographs=photographs).embed(meta, images)
        return torch.cat([features, pixel_values(images)], dim=1) if self.knows_copies else features

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Start without prototypes and codes."""
        photographs = _is_photograph(info.image_shape)
        numbers = self._embedding(photographs=photographs).feature_count(info.image_shape)
        dtype = torch.int8 if self.numbers == "int8" else torch.float32
        none = torch.zeros(0, dtype=torch.int16, device=info.device)

        kept = [name for name in meta["params"] if name.startswith(("scale", "matcher"))]
        state = {
            "info": info,
            "params": {name: meta["params"][name] for name in kept},
            "means": torch.zeros(0, numbers, dtype=dtype, device=info.device),
            "counts": none,
            "labels": none,
            "first": 0,
            "seen": 0,
        }
        if self.closeness == "evidence" and not photographs:
            state["shares"] = Spread.of(meta["stats"]).shares
        if self.knows_copies:
            codes = torch.zeros(0, code_length(info.image_shape), dtype=torch.uint8)
            state |= {"codes": codes.to(info.device), "code_prototypes": none}
        return state

    def observe(self, state: State, support: Support) -> State:
        """Add the embeddings to the prototypes of this class group, and keep the pixels."""
        features, pixels = _split(state, support.images)
        is_new_group = self.groups and state["seen"] % state["info"].cci == 0
        prototypes, joined = self._prototypes(state).with_images(
            features, support.labels, is_new_group=is_new_group
        )

        step = self._closeness(state).byte_step
        new = state | {
            "means": as_stored(prototypes.means, self.numbers, step),
            "counts": prototypes.counts,
            "labels": prototypes.labels,
            "first": prototypes.first,
            "seen": state["seen"] + 1,
        }
        if self.knows_copies:
            new["codes"] = torch.cat([state["codes"], packed(pixels)])
            new["code_prototypes"] = torch.cat([state["code_prototypes"], joined.to(torch.int16)])
        return new

    def predict(
        self, state: State, images: Float[Tensor, "n numbers"]
    ) -> Float[Tensor, "n labels"]:
        """Return log p(c | x), but for a constant."""
        features, pixels = _split(state, images)
        prototypes = self._prototypes(state)
        close = self._closeness(state).to_prototypes(features, prototypes.means, prototypes.counts)

        by_class = sums_by_label(close, prototypes.labels, state["info"].labels)
        if not self.knows_copies:
            return by_class
        return torch.logaddexp(by_class, self._by_copy(state, close, pixels))

    def _by_copy(
        self, state: State, close: Float[Tensor, "n m"], pixels: Float[Tensor, "n pixels"]
    ) -> Float[Tensor, "n labels"]:
        """Return the logarithm of the second term of p(c | x)."""
        measure, labels = self._closeness(state), state["info"].labels
        joined = state["code_prototypes"].long()
        label_of_code = state["labels"][joined]

        light = unpacked(state["codes"], pixels.shape[1])
        log_odds = copy_log_odds(state["params"], pixels, light) + measure.familiar
        if measure.copies_join_prototypes:
            log_odds = log_odds + close[:, joined]

        images_of_label = torch.bincount(label_of_code.long(), minlength=labels).clamp_min(1)
        crowd = measure.crowding * images_of_label.log()
        return sums_by_label(log_odds, label_of_code, labels) - crowd

    def _prototypes(self, state: State) -> Prototypes:
        """Return the prototypes of a state, their means as numbers to compute with."""
        means = as_read(state["means"], self.numbers, self._closeness(state).byte_step)
        return Prototypes(means, state["counts"], state["labels"], state["first"])


def _is_photograph(image_shape: ImageShape) -> bool:
    return image_shape[0] > 1


def _shape_of(batch: TaskBatch) -> ImageShape:
    channels, height, width = batch.target_images.shape[-3:]
    return channels, height, width


def _split(state: State, images: Float[Tensor, "n numbers"]) -> tuple[Tensor, Tensor]:
    """Tell what `embed` made of images apart: embeddings, and grey values."""
    numbers = state["means"].shape[1]
    return images[:, :numbers], images[:, numbers:]
