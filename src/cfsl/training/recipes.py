"""Named training recipes: functions that return a `Training`. A variant is a `replace`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cfsl.data.store import Dataset
from cfsl.errors import SpecError, lookup
from cfsl.learners.registry import entry_of
from cfsl.sampling import is_feasible, most_feasible
from cfsl.spec import TaskSpec
from cfsl.training import strong
from cfsl.training.training_spec import MILD, PHOTOGRAPHIC, Augmentation, Schedule, Training

_CROPPED = 0.75
"""Fraction of the height of a photograph that a crop keeps: 48 of 64 pixels."""
_FEWEST_WAYS = 2


def paper(task: TaskSpec) -> Training:
    """Return the published protocol: 250 epochs of 500 tasks, one at a time, Adam at 0.001."""
    return Training(episodes=task, validation=task)


def short(task: TaskSpec) -> Training:
    """Return wide one-shot episodes for a few minutes of one core.

    An episode has 64 classes of 3 images, which take turns as the prototype. The optimizer is AdamW
    at 0.002 with warm-up and cosine decay. Weights are averaged, and images are warped mildly.
    """
    schedule = Schedule(
        epochs=10,
        updates=100,
        optimizer="adamw",
        rate=2e-3,
        decay="cosine",
        warmup=60,
        weight_decay=0.02,
        average=0.99,
    )

    return Training(
        episodes=TaskSpec.few_shot(n_way=64, k_shot=1, k_target=2),
        turns=True,
        validation=task,
        validation_tasks=200,
        augmentation=MILD,
        schedule=schedule,
    )


def pretrain_paper(task: TaskSpec) -> Training:
    """Return i.i.d. pretraining on as many images as the published protocol sees.

    The optimizer is AdamW, for 250 epochs of 500 updates.
    """
    return Training(
        episodes=task, iid=True, validation=task, schedule=Schedule(batch=90, optimizer="adamw")
    )


def pretrain_short(task: TaskSpec) -> Training:
    """Return i.i.d. pretraining for a few minutes of one core."""
    schedule = Schedule(
        epochs=10,
        updates=200,
        batch=128,
        optimizer="adamw",
        rate=2e-3,
        decay="cosine",
        warmup=60,
        weight_decay=0.02,
    )

    return Training(
        episodes=task, iid=True, validation=task, validation_tasks=50, schedule=schedule
    )


def meta_paper(task: TaskSpec) -> Training:
    """Return the published protocol for gradients through an inner loop.

    An update has one task, and the optimizer is AdamW at 0.001. This is the protocol of MAML++
    Low-End; the published High-End and SCA have Adam with the weight decay in the gradient.
    """
    return Training(episodes=task, validation=task, schedule=Schedule(optimizer="adamw"))


def meta_short(task: TaskSpec) -> Training:
    """Return training for a few minutes of one core on tasks like `task`.

    An update has two tasks, and the rate has a cosine decay.
    """
    schedule = Schedule(
        epochs=10,
        updates=50,
        batch=2,
        optimizer="adamw",
        rate=2e-3,
        decay="cosine",
        warmup=30,
    )

    return Training(
        episodes=task,
        validation=task,
        validation_tasks=50,
        augmentation=MILD,
        schedule=schedule,
    )


def short_on_photographs(task: TaskSpec) -> Training:
    """Return the wide episodes of `short` with crops, mirror images and other colours."""
    return short(task).replace(augmentation=PHOTOGRAPHIC)


def pretrain_short_on_photographs(task: TaskSpec) -> Training:
    """Return `pretrain_short` with crops, mirror images and other colours."""
    return pretrain_short(task).replace(augmentation=PHOTOGRAPHIC)


def meta_short_on_photographs(task: TaskSpec) -> Training:
    """Return `meta_short` with mirror images only: so short a training sees no photograph often."""
    return meta_short(task).replace(augmentation=Augmentation(mirror=True))


def champion(task: TaskSpec) -> Training:
    """Return episodes of 38 classes of 5 images; half of the classes look like another one.

    The training takes a quarter to half an hour of one core.
    """
    training = short(task).replace(
        episodes=TaskSpec.few_shot(n_way=38, k_shot=1, k_target=4), companions=3
    )

    schedule = training.schedule.replace(
        epochs=8, updates=500, optimizer="muon", rate=0.1, average=0.995
    )
    augmentation = training.augmentation.replace(quarter_turns=True, reflections=True)
    return training.replace(schedule=schedule, augmentation=augmentation)


def champion_on_photographs(task: TaskSpec) -> Training:
    """Return pretraining on all training classes, in smaller crops, some of them blended.

    The training takes most of an hour of one core.
    """
    training = pretrain_short(task)

    schedule = training.schedule.replace(
        epochs=8,
        updates=450,
        optimizer="muon",
        rate=0.05,
        warmup=100,
        weight_decay=0.05,
        average=0.998,
    )

    augmentation = Augmentation(crop=0.65, mirror=True, colour=0.4, side=48, blends=0.3)
    return training.replace(schedule=schedule, augmentation=augmentation, validation_tasks=200)


class Recipe(NamedTuple):
    """A training recipe: a function of the tasks that training is for."""

    on_characters: Callable[[TaskSpec], Training]
    on_photographs: Callable[[TaskSpec], Training]


RECIPES: Mapping[str, Recipe] = {
    "paper": Recipe(paper, paper),
    "meta_paper": Recipe(meta_paper, meta_paper),
    "pretrain_paper": Recipe(pretrain_paper, pretrain_paper),
    "short": Recipe(short, short_on_photographs),
    "meta_short": Recipe(meta_short, meta_short_on_photographs),
    "pretrain_short": Recipe(pretrain_short, pretrain_short_on_photographs),
    "champion": Recipe(champion, champion_on_photographs),
    "strong_maml_low": Recipe(
        strong.maml_low, lambda task: strong.on_photographs(strong.maml_low(task))
    ),
    "strong_maml_high": Recipe(
        strong.maml_high, lambda task: strong.on_photographs(strong.maml_high(task))
    ),
    "strong_sca": Recipe(strong.sca, lambda task: strong.on_photographs(strong.sca(task))),
}
"""All recipes, by the names that the registry of learners has for them."""
LENGTHS = ("paper", "short", "strong")
"""What `--recipe` can be; the registry says which recipe that is for a learner."""


def recipe_for(name: str, learner: str, task: TaskSpec, *, characters: bool = True) -> Training:
    """Return the training of a learner by 'paper', 'short' or 'strong', on tasks such as `task`."""
    lookup(dict.fromkeys(LENGTHS), name, "training recipe")
    recipes = entry_of(learner).recipes
    if name not in recipes:
        raise SpecError(f"there is no recipe '{name}' for {learner}; take 'short' or 'paper'")

    recipe = RECIPES[recipes[name]]
    return recipe.on_characters(task) if characters else recipe.on_photographs(task)


def training_asked_for(
    learner: str,
    recipe: str,
    task: TaskSpec,
    seed: int,
    wanted: Mapping[str, Any],
    *,
    characters: bool = True,
) -> Training:
    """Return the training of a recipe, with the fields in `wanted` that are not None."""
    training = recipe_for(recipe, learner, task, characters=characters)

    stated = {name: value for name, value in wanted.items() if value is not None}
    return training.with_seed(seed).replace(schedule=training.schedule.replace(**stated))


def fitted_to(data: Dataset, training: Training) -> Training:
    """Return a training that fits the classes and images of a data set.

    Where a data set has too few classes, the recipe's own episodes are smaller and the validation
    tasks have fewer support sets. A training that resizes images resizes them to three quarters of
    their size. The trainings that it starts from are fitted, too.
    """
    episodes = _fitted_episodes(data, training.episodes) if training.turns else training.episodes
    validation = _nearest(data, "val", training.validation, "nss")

    augmentation = training.augmentation
    if augmentation.side is not None:
        recipe = data.info.recipe
        side = max(1, round(_CROPPED * min(recipe.height, recipe.width)))
        augmentation = augmentation.replace(side=side)

    start = training.start
    if start is not None:
        start = start.replace(training=fitted_to(data, start.training))

    return training.replace(
        episodes=episodes, validation=validation, augmentation=augmentation, start=start
    )


def _fitted_episodes(data: Dataset, episodes: TaskSpec) -> TaskSpec:
    """Return episodes with no more classes, and no more images per class, than the data has.

    Episodes that would have fewer than two classes are returned unchanged. The sampler refuses them
    later, with an error that names their numbers.
    """
    classes = len(data.classes_of("train"))
    if classes < _FEWEST_WAYS:
        return episodes

    all_classes = episodes.replace(n_way=min(episodes.n_way, classes))
    images = _nearest(data, "train", all_classes, "k_target").k_target
    fitted = _nearest(data, "train", episodes.replace(k_target=images), "n_way")
    return fitted if fitted.n_way >= _FEWEST_WAYS else episodes


def _nearest(data: Dataset, split: str, task: TaskSpec, field: str) -> TaskSpec:
    """Return a task with less of one field if only that can be drawn, and else the task itself."""
    sizes = data.class_sizes[data.classes_of(split)]
    less = None if is_feasible(sizes, task) else most_feasible(sizes, task, field)
    return less or task
