"""The champion: what we would reach for first. Prototypes, and a memory for the images themselves.

It comes from our own experiments, not from a paper. Four ideas, each of which the ablations in docs/findings.md price:

1. An embedding from wide episodes (38 classes of 5 images) with the cosine: every image is to be known by any other of
   its class, and by the mean of the other four (`turns.py`). Half of the classes are the look-alikes of the others
   (`companions` of `Training`). A character turned or mirrored is another class, so that there are eight times as many.
   Each image is then looked at in all eight ways: f(x) = (f(v_1 x), ..., f(v_8 x)), each of length 1. On photographs,
   the embedding is that of a cosine classifier over all training classes, averaged over the image and its mirror image.
   The views are three sizes, and in each of them the mean embedding of training photographs is taken off: what all
   images of a size have in common tells nothing about their classes.
2. A prototype for every class group and label, as in `multiproto`, kept in one byte a number: the mean of embeddings.
3. Closeness e(x, u) to a prototype u. On characters it is the evidence for its class, given how much embeddings of one
   class differ and how much those of classes do (`spread.py`): what eight views say is not said eight times. On
   photographs it is s cos(f(x), p_u) / |p_u|^(1/2): the mean of embeddings of length 1 is the shorter the more they
   differ, and a class with many faces is not to be at a disadvantage.
4. One bit a pixel of every support image (`pixel_memory.py`). What looks like a copy of one of them is taken for it:
   p(c | x) ~ sum over the prototypes u of c of exp(e(x, u)) + exp(k) / n^h sum over the n images i of c of odds(x is a
   copy of i). An image that is less close than k to every prototype is not familiar by class. Evidence is that of an
   odd drawing at worst: it is raised, for all prototypes alike, until that for the closest one is -2 nats.
   Of a photograph, a disc leaves enough to be embedded by; so a copy is also to be close to the prototype that it is
   part of: p(c | x) ~ sum over the prototypes u of c of exp(e(x, u)) (1 + exp(k) sum over the images i of u of odds).

In tasks whose targets are other images of the classes, the last part is far below the others. It decides in the
instance test, where class embeddings fail as soon as the target is noisy or hidden in part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Float32, Int64
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from cfsl.data.tasks import TaskBatch
from cfsl.errors import SpecError
from cfsl.learners.base import Meta, Moment, State, Support, TaskInfo
from cfsl.learners.champion.pixel_memory import (
    copy_log_odds,
    copy_loss,
    init_matcher,
    packed,
    pixel_count,
    pixel_values,
    unpacked,
)
from cfsl.learners.champion.spread import (
    Spread,
    along,
    class_evidence,
    measured_spread,
    plain_spread,
)
from cfsl.learners.episode_losses import grouped_by_class, left_out_loss, one_shot_loss
from cfsl.learners.metric import closeness, sums_by_label
from cfsl.learners.protonet import ProtoNet
from cfsl.learners.views import (
    quarters_of,
    resized_view,
    shifted_views,
    turned_orders,
    turned_views,
)
from cfsl.nets.base import ImageShape
from cfsl.nets.layers import Params, Stats
from cfsl.nets.registry import Net
from cfsl.nets.small_resnet import SmallResNet
from cfsl.spec import Count, FrozenSpec

Images = Float32[Tensor, "n channels height width"]

_BYTE_STEP, _BYTE_STEP_ON_AXES = 1 / 256, 1 / 20
"""A number of a vector of length 1 lies between -1/2 and 1/2, one of variance 1 between -6.4 and 6.4; the rarest are
cut."""
_PHOTO_SIZES = (0.75, 1.0, 1.25)
"""Training shows crops at the first of them."""
_FAMILIAR_BY_EVIDENCE, _ODDEST = 2.0, -2.0
"""k, and the evidence for the closest prototype at least, in nats; chosen on validation tasks."""
_FAMILIAR, _FAMILIAR_PHOTO = 0.7, 0.35
"""k / s where closeness is a cosine, for characters and for photographs."""
_CROWD_BY_EVIDENCE, _CROWD, _CROWD_PHOTO = 3.0, 1.0, 0.0
"""h where closeness is evidence, and where it is a cosine, for characters and for photographs: 0 is the sum over the
images of a label, 1 their mean; with more, less is made of copies of what is known well. Chosen on validation tasks."""
_SMOOTHING = 0.1


class Champion(FrozenSpec):
    """Embeds views of an image, keeps prototypes by class group and label, and knows a copy when it sees one."""

    kind: Literal["champion"] = "champion"
    net: Net = SmallResNet()
    """For characters, or whatever has one channel."""
    photo_net: Net = SmallResNet(
        widths=(48, 96, 192, 384), stem_kernel=5, stem_stride=2, embedding=None, pooled_norm=True
    )
    views: Literal["turns", "shifts", "one"] = "turns"
    """How a character is looked at: in eight ways, moved by a pixel (the mean of five embeddings), or as it is. A
    photograph is looked at in three sizes, or as it is."""
    groups: bool = True
    """Whether every class group has prototypes of its own, or labels that are used again are averaged."""
    closeness: Literal["evidence", "cosine"] = "evidence"
    """How close a character is to a prototype: by the spread of classes in training, or by the cosine alone. It is the
    cosine for photographs: what a classifier makes of its own classes says little about the spread of others."""
    axes: Count = 512
    """How many numbers are kept of a character, those that tell most, where closeness is evidence."""
    length_power: Annotated[float, Field(ge=0, le=2)] = 0.5
    """Cosines are divided by this power of a prototype's length; with 0 they are left as they are."""
    learns_means: bool = True
    """Whether training also asks about each image given the mean of the others of its class, not only given one. On
    photographs, which are trained on as a classifier, it changes nothing."""
    numbers: Literal["int8", "float32"] = "int8"
    """What prototypes are kept in."""
    knows_copies: bool = True
    """Whether the images themselves are kept, one bit a pixel."""

    def net_for(self, image_shape: ImageShape) -> Net:
        """Return the net for characters or for photographs."""
        return self.net if image_shape[0] == 1 else self.photo_net

    def init(self, image_shape: ImageShape, generator: torch.Generator) -> Meta:
        """Draw first weights of the net, and of what tells copies."""
        self._require_views(image_shape)
        params, stats = self.net_for(image_shape).init(image_shape, generator)
        matcher = init_matcher(generator) if self.knows_copies else {}
        if image_shape[0] > 1:
            centre = torch.zeros(self.photo_net.feature_count(image_shape))
            stats = {**stats, "centres": centre.repeat(len(self._sizes), 1)}
        elif self.closeness == "evidence":
            stats = {**stats, **_named(plain_spread(self._feature_count(image_shape), self.axes))}
        return {"params": params | {"scale": torch.tensor(12.0)} | matcher, "stats": stats}

    def _require_views(self, image_shape: ImageShape) -> None:
        """Refuse photographs of whose smallest view nothing would be left."""
        channels, height, width = image_shape
        if channels == 1:
            return
        least = min(self._sizes)
        try:
            self.photo_net.feature_count((channels, round(least * height), round(least * width)))
        except SpecError as error:
            raise SpecError(
                f"photographs of {height}x{width} are too small for champion, which also looks at them {least:g} times "
                f"as large: {error}"
            ) from error

    def calibration_images(self, image_shape: ImageShape) -> tuple[int, int]:
        """Return how many training images are to be measured at most, and how many of a class."""
        return (12_288, 10) if image_shape[0] == 1 else (1_024, 8)

    def calibrated(self, meta: Meta, batches: Iterable[tuple[Images, Int64[Tensor, " n"]]]) -> Meta:
        """Return the weights with the spread of training characters, or the mean embedding of photographs by size."""
        stats = meta["stats"]
        if "centres" in stats:
            embedded = torch.cat(
                [self._photo_features(meta, images) for images, _ in batches], dim=1
            )
            return {**meta, "stats": {**stats, "centres": embedded.mean(dim=1)}}
        if self.closeness == "cosine":
            return meta
        features, classes, orders = [], [], [[0]]
        for images, labels in batches:
            features.append(self._character_features(meta, images))
            classes.append(labels)
            orders = turned_orders(*images.shape[2:]) if self.views == "turns" else orders
        spread = measured_spread(torch.cat(features), torch.cat(classes), self.axes, orders)
        return {**meta, "stats": {**stats, **_named(spread)}}

    def embed(self, meta: Meta, images: Images) -> Float[Tensor, "n numbers"]:
        """Return the embedding of all views, and after it the grey values that copies are known by."""
        if images.shape[1] > 1:
            centred = self._photo_features(meta, images) - meta["stats"]["centres"][:, None]
            features = _side_by_side(functional.normalize(centred, dim=2))
        else:
            features = self._character_features(meta, images)
            if self.closeness == "evidence":
                features = along(_spread_of(meta), features)
        return torch.cat([features, pixel_values(images)], dim=1) if self.knows_copies else features

    def _character_features(self, meta: Meta, images: Images) -> Float[Tensor, "n features"]:
        """Return the embedding of all views of characters, side by side or, if they are shifted, added up."""
        views = torch.stack(
            [self._unit_features(meta, view) for view in self._character_views(images)]
        )
        return _side_by_side(views.sum(dim=0, keepdim=True) if self.views == "shifts" else views)

    def _unit_features(self, meta: Meta, images: Images) -> Float[Tensor, "n features"]:
        net = self.net_for((images.shape[1], images.shape[2], images.shape[3]))
        return functional.normalize(
            net.features(meta["params"], meta["stats"], images, norm="running"), dim=1
        )

    def _photo_features(self, meta: Meta, images: Images) -> Float[Tensor, "sizes n features"]:
        """Return the embedding of photographs in every size, of both mirror images together."""
        if self.views == "one":
            return self._unit_features(meta, images)[None]
        seen = [resized_view(images, size) for size in self._sizes]
        both = [
            self._unit_features(meta, view) + self._unit_features(meta, view.flip(3))
            for view in seen
        ]
        return functional.normalize(torch.stack(both), dim=2)

    @property
    def _sizes(self) -> tuple[float, ...]:
        return (1.0,) if self.views == "one" else _PHOTO_SIZES

    def _character_views(self, images: Images) -> list[Images]:
        if self.views == "one":
            return [images]
        return shifted_views(images) if self.views == "shifts" else turned_views(images)

    def _numbers_kept(self, image_shape: ImageShape) -> int:
        """Return how many numbers a prototype has."""
        features = self._feature_count(image_shape)
        return min(features, self.axes) if self._weighs_evidence(image_shape) else features

    def _weighs_evidence(self, image_shape: ImageShape) -> bool:
        return image_shape[0] == 1 and self.closeness == "evidence"

    def _feature_count(self, image_shape: ImageShape) -> int:
        character_views = 2 * len(quarters_of(*image_shape[1:])) if self.views == "turns" else 1
        views = len(self._sizes) if image_shape[0] > 1 else character_views
        return views * self.net_for(image_shape).feature_count(image_shape)

    def episode_loss(
        self, params: Params, stats: Stats, batch: TaskBatch, *, turns: bool, moment: Moment
    ) -> tuple[Tensor, Stats]:
        """Return half the loss of images given one other of their class, and that given the mean of all others."""
        protonet = ProtoNet(net=self.net_for(_shape_of(batch)), metric="cosine")
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
        """Return the loss of a cosine classifier over all training classes, whose weights are params["head.weight"]."""
        logits = params["scale"] * closeness(features, params["head.weight"], "cosine")
        return functional.cross_entropy(logits, labels, label_smoothing=_SMOOTHING)

    def memory_loss(
        self, params: Params, images: Images, generator: torch.Generator
    ) -> Float[Tensor, ""]:
        """Return the loss of telling copies, on images as they are in the data set."""
        return copy_loss(params, images, generator) if self.knows_copies else images.new_zeros(())

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Nothing is known, and no support set has been seen."""
        numbers = self._numbers_kept(info.image_shape)
        state = {
            "info": info,
            "params": {
                name: meta["params"][name]
                for name in meta["params"]
                if name.startswith(("scale", "matcher"))
            },
            "means": torch.zeros(
                0, numbers, dtype=getattr(torch, self.numbers), device=info.device
            ),
            "counts": torch.zeros(0, dtype=torch.int16, device=info.device),
            "labels": torch.zeros(0, dtype=torch.int16, device=info.device),
            "first": 0,
            "seen": 0,
        }
        if self._weighs_evidence(info.image_shape):
            state["shares"] = _spread_of(meta).shares
        if self.knows_copies:
            codes = -(-pixel_count(info.image_shape) // 8)
            state["codes"] = torch.zeros(0, codes, dtype=torch.uint8, device=info.device)
            state["code_prototypes"] = torch.zeros(0, dtype=torch.int16, device=info.device)
        return state

    def observe(self, state: State, support: Support) -> State:
        """Open prototypes for labels that are new in this class group, move its means, and keep the pixels."""
        features = state["means"].shape[1]
        is_new_group = self.groups and state["seen"] % state["info"].cci == 0
        first = len(state["labels"]) if is_new_group else state["first"]
        new = _new_labels(support.labels, state["labels"][first:])
        labels = torch.cat([state["labels"], new])
        slots = first + (support.labels[:, None] == labels[first:]).int().argmax(dim=1)
        old_counts = functional.pad(state["counts"], (0, len(new)))
        counts = old_counts.index_add(0, slots, torch.ones_like(slots, dtype=torch.int16))
        old_sums = functional.pad(self._means(state), (0, 0, 0, len(new))) * old_counts[:, None]
        means = old_sums.index_add(0, slots, support.images[:, :features]) / counts[:, None]
        seen = state | {
            "labels": labels,
            "counts": counts,
            "means": self._kept(means, _byte_step(state)),
        }
        if self.knows_copies:
            seen["codes"] = torch.cat([state["codes"], packed(support.images[:, features:])])
            seen["code_prototypes"] = torch.cat([state["code_prototypes"], slots.to(torch.int16)])
        return seen | {"first": first, "seen": state["seen"] + 1}

    def predict(
        self, state: State, images: Float[Tensor, "n numbers"]
    ) -> Float[Tensor, "n labels"]:
        """Return log p(c | x) but for a constant: by class, and by copies."""
        features, labels = state["means"].shape[1], state["info"].labels
        close = self._closeness(state, images[:, :features])
        by_class = sums_by_label(close, state["labels"], labels)
        if not self.knows_copies:
            return by_class
        values, prototypes = images[:, features:], state["code_prototypes"].long()
        kept = state["labels"][prototypes]
        odds = copy_log_odds(
            state["params"], values, unpacked(state["codes"], values.shape[1])
        ) + self._familiar(state)
        if state["info"].image_shape[0] > 1:
            odds = odds + close[:, prototypes]
        images_kept = torch.bincount(kept.long(), minlength=labels).clamp_min(1)
        by_copy = sums_by_label(odds, kept, labels) - self._crowd(state) * images_kept.log()
        return torch.logaddexp(by_class, by_copy)

    def _closeness(self, state: State, images: Float[Tensor, "n features"]) -> Float[Tensor, "n m"]:
        """Return e(x, u) for all images and prototypes."""
        means = self._means(state)
        if "shares" in state:
            evidence = class_evidence(images, means, state["counts"], state["shares"])
            return (
                evidence + (_ODDEST - evidence.amax(dim=1, keepdim=True)).clamp_min(0)
                if len(means)
                else evidence
            )
        lengths = means.norm(dim=1).clamp_min(_BYTE_STEP) ** self.length_power
        close: Tensor = state["params"]["scale"] * closeness(images, means, "cosine") / lengths
        return close

    def _crowd(self, state: State) -> float:
        """Return h: how much less is made of a copy the more images of its label there are."""
        if "shares" in state:
            return _CROWD_BY_EVIDENCE
        return _CROWD if state["info"].image_shape[0] == 1 else _CROWD_PHOTO

    def _familiar(self, state: State) -> Tensor | float:
        """Return k: how close an image is to a prototype that is familiar by class."""
        if "shares" in state:
            return _FAMILIAR_BY_EVIDENCE
        is_character = state["info"].image_shape[0] == 1
        familiar: Tensor = (_FAMILIAR if is_character else _FAMILIAR_PHOTO) * state["params"][
            "scale"
        ]
        return familiar

    def _kept(self, means: Float[Tensor, "m features"], step: float) -> Tensor:
        """Return means as they are kept: in small steps, in a byte; or as they are."""
        if self.numbers == "float32":
            return means
        return (means / step).round().clamp(-128, 127).to(torch.int8)

    def _means(self, state: State) -> Float[Tensor, "m features"]:
        """Return means as they are read."""
        kept: Tensor = state["means"]
        return kept if self.numbers == "float32" else kept.float() * _byte_step(state)


def _byte_step(state: State) -> float:
    return _BYTE_STEP_ON_AXES if "shares" in state else _BYTE_STEP


def _side_by_side(views: Float[Tensor, "views n features"]) -> Float[Tensor, "n all"]:
    return functional.normalize(views.transpose(0, 1).flatten(1), dim=1)


def _named(spread: Spread) -> Stats:
    return {f"spread.{name}": tensor for name, tensor in spread._asdict().items()}


def _spread_of(meta: Meta) -> Spread:
    return Spread(*(meta["stats"][f"spread.{name}"] for name in Spread._fields))


def _shape_of(batch: TaskBatch) -> ImageShape:
    channels, height, width = batch.target_images.shape[-3:]
    return channels, height, width


def _new_labels(shown: Int64[Tensor, " n"], known: Tensor) -> Tensor:
    labels = torch.unique(shown).to(torch.int16)
    new: Tensor = labels[~torch.isin(labels, known)]
    return new
