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
"""Of the height of a photograph: 48 of 64 pixels."""
_FEWEST_WAYS = 2


def paper(task: TaskSpec) -> Training:
    """Return the published protocol: 250 epochs of 500 tasks, one at a time, Adam at 0.001."""
    return Training(episodes=task, validation=task)


def short(task: TaskSpec) -> Training:
    """Return wide one-shot episodes for a few minutes of one core.

    64 classes x 3 images that take turns as the prototype, AdamW at 0.002 with warm-up and cosine decay, averaged
    weights, mild warps of the images.
    """
    return Training(
        episodes=TaskSpec.few_shot(n_way=64, k_shot=1, k_target=2),
        turns=True,
        validation=task,
        validation_tasks=200,
        augmentation=MILD,
        schedule=Schedule(
            epochs=10,
            updates=100,
            optimizer="adamw",
            rate=2e-3,
            decay="cosine",
            warmup=60,
            weight_decay=0.02,
            average=0.99,
        ),
    )


def pretrain_paper(task: TaskSpec) -> Training:
    """Return i.i.d. pretraining for as many images as the published protocol sees: 250 x 500 updates, AdamW."""
    return Training(
        episodes=task, iid=True, validation=task, schedule=Schedule(batch=90, optimizer="adamw")
    )


def pretrain_short(task: TaskSpec) -> Training:
    """Return i.i.d. pretraining for a few minutes of one core."""
    return Training(
        episodes=task,
        iid=True,
        validation=task,
        validation_tasks=50,
        schedule=Schedule(
            epochs=10,
            updates=200,
            batch=128,
            optimizer="adamw",
            rate=2e-3,
            decay="cosine",
            warmup=60,
            weight_decay=0.02,
        ),
    )


def meta_paper(task: TaskSpec) -> Training:
    """Return the published protocol for gradients through an inner loop; one task an update, AdamW at 0.001.

    That is MAML++ Low-End's; the published High-End and SCA have Adam with the decay in the gradient.
    """
    return Training(episodes=task, validation=task, schedule=Schedule(optimizer="adamw"))


def meta_short(task: TaskSpec) -> Training:
    """Return a few minutes of one core on tasks of the very type asked for, two at a time, with cosine decay."""
    return Training(
        episodes=task,
        validation=task,
        validation_tasks=50,
        augmentation=MILD,
        schedule=Schedule(
            epochs=10,
            updates=50,
            batch=2,
            optimizer="adamw",
            rate=2e-3,
            decay="cosine",
            warmup=30,
        ),
    )


def short_on_photographs(task: TaskSpec) -> Training:
    """Return the wide episodes of `short` with crops, mirror images and other colours."""
    return short(task).replace(augmentation=PHOTOGRAPHIC)


def pretrain_short_on_photographs(task: TaskSpec) -> Training:
    """Return `pretrain_short` with crops, mirror images and other colours."""
    return pretrain_short(task).replace(augmentation=PHOTOGRAPHIC)


def meta_short_on_photographs(task: TaskSpec) -> Training:
    """Return `meta_short` with mirror images alone: so short a run sees no photograph often."""
    return meta_short(task).replace(augmentation=Augmentation(mirror=True))


def champion(task: TaskSpec) -> Training:
    """Return episodes of 38 classes x 5 images, half of them look-alikes, for a quarter to half an hour of one core."""
    training = short(task).replace(
        episodes=TaskSpec.few_shot(n_way=38, k_shot=1, k_target=4), companions=3
    )
    schedule = training.schedule.replace(
        epochs=8, updates=500, optimizer="muon", rate=0.1, average=0.995
    )
    augmentation = training.augmentation.replace(quarter_turns=True, reflections=True)
    return training.replace(schedule=schedule, augmentation=augmentation)


def champion_on_photographs(task: TaskSpec) -> Training:
    """Return most of an hour of one core of telling all training classes apart, in smaller crops, some blended."""
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
    """Return the training of a recipe with fields of its schedule changed, unless they are None."""
    training = recipe_for(recipe, learner, task, characters=characters)
    stated = {name: value for name, value in wanted.items() if value is not None}
    return training.with_seed(seed).replace(schedule=training.schedule.replace(**stated))


def fitted_to(data: Dataset, training: Training) -> Training:
    """Return a training for the classes and images there are.

    Its own episodes are smaller, or its validation tasks shorter, if classes are too few. Where images are brought to
    another size, it is three quarters of theirs. So are the stages that it starts from.
    """
    episodes = _fitted_episodes(data, training.episodes) if training.turns else training.episodes
    augmentation, recipe = training.augmentation, data.info.recipe
    if augmentation.side is not None:
        augmentation = augmentation.replace(
            side=max(1, round(_CROPPED * min(recipe.height, recipe.width)))
        )
    validation = _nearest(data, "val", training.validation, "nss")
    start = training.start
    if start is not None:
        start = start.replace(training=fitted_to(data, start.training))
    return training.replace(
        episodes=episodes, validation=validation, augmentation=augmentation, start=start
    )


def _fitted_episodes(data: Dataset, episodes: TaskSpec) -> TaskSpec:
    """Return episodes of as many images a class as the classes have, and of as many classes as there are.

    Where there are not two classes to tell apart, episodes are left as they are, to be refused with their numbers.
    """
    classes = len(data.classes_of("train"))
    if classes < _FEWEST_WAYS:
        return episodes
    all_classes = episodes.replace(n_way=min(episodes.n_way, classes))
    images = _nearest(data, "train", all_classes, "k_target").k_target
    fitted = _nearest(data, "train", episodes.replace(k_target=images), "n_way")
    return fitted if fitted.n_way >= _FEWEST_WAYS else episodes


def _nearest(data: Dataset, split: str, task: TaskSpec, field: str) -> TaskSpec:
    """Return a task with less of one field, if it can be drawn then, and only then."""
    sizes = data.class_sizes[data.classes_of(split)]
    less = None if is_feasible(sizes, task) else most_feasible(sizes, task, field)
    return less or task
