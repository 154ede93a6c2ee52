"""The objectives of training: the loss of an update as a function of weights and update number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn import functional

from cfsl.data.images import SplitImages
from cfsl.data.store import Dataset
from cfsl.data.tasks import TaskBatch, Tasks
from cfsl.errors import LearnerError
from cfsl.learners.base import (
    InnerLoopOnly,
    Meta,
    Moment,
    NetByImages,
    OwnClassifier,
    Pretrained,
    Recollecting,
    Scalar,
    Startable,
    TrainedOnTasks,
    first_weights,
)
from cfsl.learners.maml.step_tables import with_rates, with_zero_head
from cfsl.nets.base import ImageShape, NetSpec
from cfsl.nets.layers import Params, Stats
from cfsl.sampling import partner_of, with_companions
from cfsl.sampling.philox import Stream
from cfsl.training.augment import augment, blended
from cfsl.training.look_alikes import nearest_classes
from cfsl.training.on_table import TasksOnTable
from cfsl.training.randomness import generator_of_update
from cfsl.training.training_spec import Training

_EPOCH_OF_TASKS = 2**40


class Objective(Protocol):
    """First weights, and the loss of update number u."""

    def init(self, generator: torch.Generator) -> Meta:
        """Draw first weights."""
        ...

    def is_learned(self, name: str) -> bool:
        """Tell whether a weight of this name is learned; others stay as they are."""
        ...

    def prepare(self) -> None:
        """Compute what all updates need."""
        ...

    def start_epoch(self, learned: Meta) -> None:
        """Receive the weights with which an epoch starts. The first epoch does not call this."""
        ...

    def loss(self, params: Params, stats: Stats, update: int) -> tuple[Scalar, Stats]:
        """Return the loss of an update. The same update of an epoch always sees the same data."""
        ...


def objective_of(
    learner: Any, training: Training, data: Dataset, start: Meta | None = None
) -> Objective:
    """Return the objective of a training; `start` has the weights of an earlier training run."""
    name = type(learner).__name__
    if start is not None and not isinstance(learner, Startable):
        raise LearnerError(f"{name} cannot start from other weights: it has no started_from")

    if training.embedding == "frozen":
        if not isinstance(learner, InnerLoopOnly) or start is None:
            raise LearnerError(f"{name} has no inner loop on an embedding that could be frozen")
        generator = torch.Generator().manual_seed(training.seed)
        first = _first_weights_of(learner, training, data, start, generator)
        return TasksOnTable(learner, training, data, first)

    if training.iid:
        return _Pretraining(learner, training, data)

    if not isinstance(learner, TrainedOnTasks):
        raise LearnerError(f"{name} is not trained on tasks; it has no episode_loss")
    return _Episodes(learner, training, data, start)


def _first_weights_of(
    learner: Any, training: Training, data: Dataset, start: Meta | None, generator: torch.Generator
) -> Meta:
    """Return the weights that training starts with.

    Weights are drawn first; then those of an earlier training run replace the ones that they fit.
    """
    drawn = first_weights(learner, _image_shape(data), training.episodes, generator)
    if training.first_inner_rates:
        drawn = {**drawn, "params": with_rates(drawn["params"], dict(training.first_inner_rates))}
    if training.zero_head:
        drawn = {**drawn, "params": with_zero_head(drawn["params"])}

    return drawn if start is None else learner.started_from(drawn, start)


def net_of(learner: Any, image_shape: ImageShape) -> NetSpec:
    """Return the network of a learner, which may depend on the shape of the images."""
    if isinstance(learner, NetByImages):
        return learner.net_for(image_shape)
    net: NetSpec = learner.net
    return net


def _image_shape(data: Dataset) -> ImageShape:
    recipe = data.info.recipe
    return recipe.channels, recipe.height, recipe.width


def _device_of(params: Params) -> torch.device:
    """Return the device of the weights, to which the data is moved."""
    return next(iter(params.values())).device


def _moved(batch: TaskBatch, device: torch.device, precision: torch.dtype) -> TaskBatch:
    """Return tasks on a device, with their images in the precision of training."""
    moved = {name: value.to(device) for name, value in vars(batch).items() if name != "numbers"}
    images = {name: moved[name].to(precision) for name in ("support_images", "target_images")}
    return replace(batch, **(moved | images))


def _precision(training: Training) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, training.schedule.precision)
    return dtype


def _all_images(batch: TaskBatch) -> Float32[Tensor, "n channels height width"]:
    return torch.cat([batch.support_images.flatten(0, 2), batch.target_images.flatten(0, 1)])


def _memory_loss(
    learner: Any,
    params: Params,
    images: Float32[Tensor, "n channels height width"],
    training: Training,
    update: int,
) -> Scalar | float:
    """Return the loss of a learner that recognises images it has seen; 0 for other learners."""
    if not isinstance(learner, Recollecting):
        return 0.0

    generator = generator_of_update(training, "memory", update)
    return learner.memory_loss(params, images.to(_device_of(params)), generator)


class _Episodes:
    """Training on tasks of the training split. Update u starts at the task number u x batch."""

    def __init__(
        self, learner: TrainedOnTasks, training: Training, data: Dataset, start: Meta | None
    ) -> None:
        self._learner, self._training, self._data, self._start = learner, training, data, start
        self._shape = _image_shape(data)

        self._tasks = Tasks(
            data,
            training.episodes,
            split="train",
            seed=training.seed,
            numbers=range(_EPOCH_OF_TASKS),
        )
        self._look_alikes: Int64[np.ndarray, "classes nearest"] | None = None

    def init(self, generator: torch.Generator) -> Meta:
        return _first_weights_of(self._learner, self._training, self._data, self._start, generator)

    def is_learned(self, name: str) -> bool:
        """All weights are learned."""
        return True

    def prepare(self) -> None:
        """Every update draws what it needs."""

    def loss(self, params: Params, stats: Stats, update: int) -> tuple[Scalar, Stats]:
        schedule = self._training.schedule
        batch = self._batch(update)
        moment = Moment(update // schedule.updates, schedule.epochs)
        augmented = self._augmented(batch, update)
        shown = _moved(augmented, _device_of(params), _precision(self._training))

        try:
            loss, stats = self._learner.episode_loss(
                params, stats, shown, turns=self._training.turns, moment=moment
            )
        except (RuntimeError, TypeError) as error:
            if schedule.precision != "bfloat16" or "bfloat16" not in str(error).lower():
                raise
            name = type(self._learner).__name__
            raise LearnerError(
                f"{name} fails on images in {schedule.precision} ({error}); "
                "train it with --precision float32"
            ) from error

        images = _all_images(batch)
        return loss + _memory_loss(self._learner, params, images, self._training, update), stats

    def start_epoch(self, learned: Meta) -> None:
        if self._training.companions:
            net = net_of(self._learner, self._shape)
            self._look_alikes = nearest_classes(
                net, learned, self._tasks.data, self._training.companions
            )

    def _batch(self, update: int) -> TaskBatch:
        size = self._training.schedule.batch
        tasks = self._tasks[update * size : (update + 1) * size]
        plan = tasks.plan()

        if self._look_alikes is not None:
            stream = Stream.named("training", self._training.seed, "companions")
            numbers = np.arange(tasks.numbers.start, tasks.numbers.stop, dtype=np.uint64)
            words = stream.words(numbers, np.zeros_like(numbers), tasks.spec.labels).T
            plan = with_companions(plan, tasks.class_sizes, self._look_alikes, words)

        return tasks.gathered(plan, tasks.numbers)

    def _augmented(self, batch: TaskBatch, update: int) -> TaskBatch:
        """Augment all images of the tasks at once.

        Every label of every task is a class of its own, whose images are turned alike. Where
        classes have look-alikes, a class is turned like its companion.
        """
        labels = self._training.episodes.labels
        turned_as = torch.from_numpy(
            np.arange(labels) if self._look_alikes is None else partner_of(labels)
        )

        tasks = torch.arange(len(batch))[:, None] * labels
        support_classes = (turned_as[batch.support_labels] + tasks[:, :, None]).flatten()
        classes = torch.cat([support_classes, (turned_as[batch.target_labels] + tasks).flatten()])

        generator = generator_of_update(self._training, "augmentation", update)
        images = augment(_all_images(batch), classes, self._training.augmentation, generator)

        cut = len(support_classes)
        return replace(
            batch,
            support_images=images[:cut].view(*batch.support_images.shape[:4], *images.shape[2:]),
            target_images=images[cut:].view(*batch.target_images.shape[:3], *images.shape[2:]),
        )


class _Pretraining:
    """Training on shuffled images of all training classes.

    A linear layer tells the classes apart. It is not part of the learner, and is dropped when
    training ends.
    """

    def __init__(self, learner: Pretrained, training: Training, data: Dataset) -> None:
        self._learner, self._training = learner, training
        self._shape = _image_shape(data)
        classes = data.classes_of("train")
        self._images, self._classes = SplitImages.of(data, classes), len(classes)
        self._net = net_of(learner, self._shape)

        self._class_of = torch.from_numpy(
            np.repeat(np.arange(self._classes), data.class_sizes[classes])
        )

    def init(self, generator: torch.Generator) -> Meta:
        meta = self._learner.init(self._shape, generator)
        features = self._net.feature_count(self._shape)
        bound = (6 / (features + self._classes)) ** 0.5
        weight = (torch.rand(self._classes, features, generator=generator) * 2 - 1) * bound
        head = {"head.weight": weight, "head.bias": torch.zeros(self._classes)}
        return {"params": {**meta["params"], **head}, "stats": meta["stats"]}

    def is_learned(self, name: str) -> bool:
        """All weights are learned."""
        return True

    def prepare(self) -> None:
        """Every update draws what it needs."""

    def start_epoch(self, learned: Meta) -> None:
        """Every epoch sees images of all classes."""

    def loss(self, params: Params, stats: Stats, update: int) -> tuple[Scalar, Stats]:
        generator = generator_of_update(self._training, "batch", update)
        chosen = torch.randint(
            len(self._class_of), (self._training.schedule.batch,), generator=generator
        )
        images = torch.from_numpy(self._images.normalised(chosen.numpy().astype(np.int32)))
        labels = self._class_of[chosen]
        memory_loss = _memory_loss(self._learner, params, images, self._training, update)

        images = augment(images, labels, self._training.augmentation, generator)
        images, others, share = blended(images, self._training.augmentation, generator)

        device, precision = _device_of(params), _precision(self._training)
        shown = images.to(device, precision, memory_format=torch.channels_last)
        features, stats = self._net.training_features(params, stats, shown)
        loss = self._classifier_loss(params, features, labels.to(device))

        # A blended image belongs to two classes, each by its share of the image.
        if share < 1:
            other_loss = self._classifier_loss(params, features, labels[others].to(device))
            loss = share * loss + (1 - share) * other_loss

        return loss + memory_loss, stats

    def _classifier_loss(self, params: Params, features: Tensor, labels: Tensor) -> Scalar:
        if isinstance(self._learner, OwnClassifier):
            return self._learner.classifier_loss(params, features, labels)
        logits = functional.linear(features, params["head.weight"], params["head.bias"])
        return functional.cross_entropy(logits, labels)
