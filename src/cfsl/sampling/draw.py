"""The sampler: a pure function from class sizes, spec, seed and task number to image numbers.

A task shuffles the classes once and deals them to its groups; every class shuffles its images once and deals
them, first to the support sets, then to the target set. What is dealt once cannot be dealt again, so the rules of
the specification hold by construction. All tasks of a block are dealt at the same time.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt64

from cfsl.sampling.feasible import eligible, require_feasible
from cfsl.sampling.philox import Stream, full_shuffle, partial_shuffle
from cfsl.sampling.plan import PlanBlock
from cfsl.spec import TaskSpec

SAMPLER = "cfsl-1"
_CARDS_AT_ONCE = 120_000


def draw_tasks(
    class_sizes: Integer[np.ndarray, " classes"],
    spec: TaskSpec,
    tasks: range,
    *,
    seed: int = 0,
    split: str = "test",
) -> PlanBlock:
    """Draw tasks by their numbers. A task is the same whatever other tasks it is drawn with."""
    require_feasible(class_sizes, spec, f"the {split} split")
    per_task = spec.classes * spec.images_per_class + spec.target_images
    step = max(1, _CARDS_AT_ONCE // per_task)
    sizes = np.asarray(class_sizes, np.int64)
    block = PlanBlock.empty(len(tasks), spec.nss, spec.n_way * spec.k_shot, spec.target_images)
    for start in range(0, len(tasks), step):
        part = slice(start, start + step)
        _draw_into(block[part], sizes, spec, np.array(tasks[part], np.uint64), (split, seed))
    return block


def _draw_into(
    block: PlanBlock,
    class_sizes: Int64[np.ndarray, " classes"],
    spec: TaskSpec,
    tasks: UInt64[np.ndarray, " tasks"],
    source: tuple[str, int],
) -> None:
    """Fill a block that is small enough for the cache."""
    layout = _layout(spec)
    cards = _deal(class_sizes, spec, tasks, source)
    words = _stream("target order", spec, source).words(
        tasks, np.zeros_like(tasks), spec.target_images
    )
    order = full_shuffle(np.ascontiguousarray(words.T))
    block.support_images[:] = cards[layout.support_cards].T.reshape(block.support_images.shape)
    block.support_labels[:] = layout.support_labels
    places = np.take(layout.target_cards, order)
    places *= len(tasks)
    places += np.arange(len(tasks))[:, None]
    # All places are in range; "clip" spares numpy a second buffer.
    np.take(cards.reshape(-1), places, out=block.target_images, mode="clip")
    np.take(layout.target_labels, order, out=block.target_labels, mode="clip")
    np.take(layout.target_groups, order, out=block.target_groups, mode="clip")


def _stream(purpose: str, spec: TaskSpec, source: tuple[str, int]) -> Stream:
    """Return the random numbers of one purpose of one setting (rule 17)."""
    return Stream.named("tasks", SAMPLER, *source, spec.draw_json(), purpose)


def _deal(
    class_sizes: Int64[np.ndarray, " classes"],
    spec: TaskSpec,
    tasks: UInt64[np.ndarray, " tasks"],
    source: tuple[str, int],
) -> Int32[np.ndarray, "cards tasks"]:
    """Deal every class of every task its images; card i of class slot c stands in row i x classes + c."""
    large_enough = np.flatnonzero(eligible(class_sizes, spec))
    slots, n = spec.classes, len(tasks)

    decks = np.arange(len(large_enough), len(large_enough) - slots, -1, dtype=np.uint64)
    picks = _stream("classes", spec, source).below(
        np.broadcast_to(decks[:, None], (slots, n)), tasks, np.zeros_like(tasks)
    )
    classes = large_enough[partial_shuffle(picks, len(large_enough))].reshape(-1)

    rows, lanes = np.tile(tasks, slots), np.repeat(np.arange(slots, dtype=np.uint64), n)
    sizes = class_sizes[classes].astype(np.uint64)
    bounds = sizes - np.arange(spec.images_per_class, dtype=np.uint64)[:, None]
    picks = _stream("images", spec, source).below(bounds, rows, lanes)
    images = partial_shuffle(picks, int(sizes.max())).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(class_sizes)[:-1]]).astype(np.int32)
    images += starts[classes]
    return images.reshape(-1, n)


class _Layout(NamedTuple):
    """Who gets which card, and under which label: the same for all tasks of a spec."""

    support_cards: Int64[np.ndarray, " supports"]
    support_labels: Int32[np.ndarray, "sets images"]
    target_cards: Int64[np.ndarray, " targets"]
    target_labels: Int32[np.ndarray, " targets"]
    target_groups: Int32[np.ndarray, " targets"]


@functools.lru_cache(maxsize=64)
def _layout(spec: TaskSpec) -> _Layout:
    """Work out the seats before the cards are dealt."""
    return _instance_layout(spec) if spec.kind == "instance" else _class_layout(spec)


def _class_layout(spec: TaskSpec) -> _Layout:
    """Supports take the first cards of a class, targets the ones after; labels follow the order of the deal."""
    sets, ways, shots = np.indices((spec.nss, spec.n_way, spec.k_shot)).reshape(3, -1)
    groups = sets // spec.interval
    slots = groups * spec.n_way + ways
    support_cards = ((sets % spec.interval) * spec.k_shot + shots) * spec.classes + slots

    per_class = spec.target_rule == "per_class"
    rounds = spec.groups if per_class else spec.nss
    rounds_, ways_, copies = np.indices((rounds, spec.n_way, spec.k_target)).reshape(3, -1)
    target_groups = rounds_ if per_class else rounds_ // spec.interval
    target_slots = target_groups * spec.n_way + ways_
    dealt_before = (
        np.zeros_like(rounds_) if per_class else (rounds_ % spec.interval) * spec.k_target
    )
    first_target = spec.interval * spec.k_shot
    target_cards = (first_target + dealt_before + copies) * spec.classes + target_slots

    return _Layout(
        support_cards,
        (ways if spec.overwrite else slots).astype(np.int32).reshape(spec.nss, -1),
        target_cards,
        (ways_ if spec.overwrite else target_slots).astype(np.int32),
        target_groups.astype(np.int32),
    )


def _instance_layout(spec: TaskSpec) -> _Layout:
    """Every image has a label of its own, in the order it is shown, and comes back k_target times."""
    sets, ways, shots = np.indices((spec.nss, spec.n_way, spec.k_shot)).reshape(3, -1)
    cards = (sets * spec.k_shot + shots) * spec.classes + ways
    labels = np.arange(spec.labels, dtype=np.int32)
    return _Layout(
        cards,
        labels.reshape(spec.nss, -1),
        np.repeat(cards, spec.k_target),
        np.repeat(labels, spec.k_target),
        np.repeat(sets, spec.k_target).astype(np.int32),
    )
