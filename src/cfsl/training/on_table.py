"""Training of an inner loop alone, on a frozen embedding that sees every training image once.

An embedding separates the classes that it was trained on better than any others. A character that
is turned or mirrored is another class. Where the augmentation has positions that the embedding was
not trained on, many classes of a task are new to it, and the inner loop learns to work with maps as
unclear as those of test classes.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from cfsl.data.splits import splits_hash
from cfsl.data.store import Dataset
from cfsl.data.tasks import Tasks
from cfsl.learners.base import InnerLoopOnly, Meta, Moment, Support
from cfsl.learners.maml.episodes import Episode
from cfsl.learners.maml.step_tables import strip_prefix
from cfsl.learners.views import quarters_of
from cfsl.nets import in_channels_last
from cfsl.nets.layers import Params, Stats
from cfsl.training.randomness import generator_of_update
from cfsl.training.training_spec import Training

Scalar = Float[Tensor, ""]
Maps = Float[Tensor, "images features"]
_EMBEDDED_AT_ONCE = 32
"""Small enough for the maps to stay in the cache of a processor."""
_KEPT: dict[str, list[Maps]] = {}
"""The tables that were made last, by the hash of everything that they were made from."""
_TASKS = 2**40
"""More tasks than any training run draws."""
_EMBEDDING = "embedding."
"""The names of the weights of an embedding begin with this."""


class _Position(NamedTuple):
    """How the images of a class are turned and mirrored."""

    quarter_turns: int
    mirrored: bool


class TasksOnTable:
    """Tasks of the training split whose images are looked up in tables of a frozen embedding."""

    def __init__(
        self, learner: InnerLoopOnly, training: Training, data: Dataset, first: Meta
    ) -> None:
        """Take the weights `first`, whose embedding stays as it is."""
        self._learner, self._training, self._data, self._first = learner, training, data, first
        self._positions = _positions(training, data)
        self._tasks = Tasks(
            data, training.episodes, split="train", seed=training.seed, numbers=range(_TASKS)
        )
        ends = np.cumsum(self._tasks.class_sizes)
        self._class_of = np.repeat(np.arange(len(ends)), self._tasks.class_sizes)
        self._tables: list[Maps] = []

    def init(self, generator: torch.Generator) -> Meta:
        """Return the weights that this stage starts from."""
        return self._first

    def is_learned(self, name: str) -> bool:
        """Tell the weights of the inner loop from those of the embedding."""
        return not name.startswith(_EMBEDDING)

    def prepare(self) -> None:
        """Embed all training images in every position, unless these tables were the last made.

        A bench asks for the same tables for one column after another.
        """
        if self._tables:
            return

        key = self._hash_of_sources()
        if key not in _KEPT:
            _KEPT.clear()  # before the next ones are made: both may not fit into memory
            _KEPT[key] = [self._table(position) for position in self._positions]
        self._tables = _KEPT[key]

    def _hash_of_sources(self) -> str:
        """Return a hash of everything that the tables depend on."""
        sources = [
            self._learner.embedding.canonical_json(),
            self._data.fingerprint,
            splits_hash(self._data.splits),
        ]
        digest = hashlib.sha256(f"{sources} {self._positions}".encode())

        for kind in ("params", "stats"):
            for name, tensor in sorted(strip_prefix(self._first[kind], _EMBEDDING).items()):
                digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def start_epoch(self, learned: Meta) -> None:
        """Every epoch sees tasks of all classes."""

    def loss(self, params: Params, stats: Stats, update: int) -> tuple[Scalar, Stats]:
        """Return the mean loss of the next tasks."""
        schedule = self._training.schedule
        device = next(iter(params.values())).device
        plan = self._tasks.plan(range(update * schedule.batch, (update + 1) * schedule.batch))
        generator = generator_of_update(self._training, "positions", update)

        episodes = []
        for task in range(schedule.batch):
            position_of_class = self._drawn_positions(generator)
            supports = [
                Support(self._maps(images, position_of_class).to(device), _on(device, labels))
                for images, labels in zip(
                    plan.support_images[task], plan.support_labels[task], strict=True
                )
            ]
            targets = self._maps(plan.target_images[task], position_of_class).to(device)
            labels = _on(device, plan.target_labels[task])
            episodes.append(Episode(supports, targets, labels))

        moment = Moment(update // schedule.updates, schedule.epochs)
        return self._learner.mean_loss(params, stats, episodes, moment)

    def _drawn_positions(self, generator: torch.Generator) -> Int64[np.ndarray, " classes"]:
        """Draw the number of a position for every class of the split."""
        classes = len(self._tasks.class_sizes)
        return torch.randint(len(self._positions), (classes,), generator=generator).numpy()

    def _maps(self, images: np.ndarray, position_of_class: Int64[np.ndarray, " classes"]) -> Maps:
        """Look up images, each class in its position."""
        self.prepare()
        positions = position_of_class[self._class_of[images]]

        maps = torch.empty(len(images), self._tables[0].shape[1])
        for position in np.unique(positions):
            in_position = positions == position
            rows = torch.from_numpy(images[in_position].astype(np.int64))
            maps[torch.from_numpy(in_position)] = self._tables[position][rows].float()
        return maps

    @torch.no_grad()
    def _table(self, position: _Position) -> Maps:
        """Embed all training images in one position.

        In bfloat16: that takes half the memory, and often a third of the time.
        """
        first = {**self._first, "params": in_channels_last(self._first["params"])}
        count, parts = len(self._tasks.images.rows), []

        for start in range(0, count, _EMBEDDED_AT_ONCE):
            numbers = np.arange(start, min(start + _EMBEDDED_AT_ONCE, count), dtype=np.int32)
            images = torch.from_numpy(self._tasks.images.normalised(numbers))
            mirrored = images.flip(3) if position.mirrored else images
            shown = torch.rot90(mirrored, position.quarter_turns, (2, 3)).contiguous()
            with torch.autocast("cpu", torch.bfloat16):
                parts.append(self._learner.embed(first, shown).to(torch.bfloat16))

        return torch.cat(parts)


def _positions(training: Training, data: Dataset) -> list[_Position]:
    """Return the positions that the augmentation asks for, if they fit the images."""
    augmentation, recipe = training.augmentation, data.info.recipe
    quarters = quarters_of(recipe.height, recipe.width) if augmentation.quarter_turns else (0,)
    mirrors = (False, True) if augmentation.reflections else (False,)
    return [_Position(quarter, mirrored) for mirrored in mirrors for quarter in quarters]


def _on(device: torch.device, labels: np.ndarray) -> Int64[Tensor, " n"]:
    return torch.from_numpy(labels.astype(np.int64)).to(device)
