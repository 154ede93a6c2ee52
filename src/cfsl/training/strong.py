"""The recipe 'strong': the MAML family, trained in stages to what the papers printed or better.

The published schedule makes 125,000 updates through a network of 100 million multiply-accumulates
an image: 76 to 448 core hours a cell. Here the parts are learned one after another, each by what
teaches it most in a minute:

    1. start        the embedding and the small net as one network, by wide one-shot episodes
                    (see `metric_start.py`)
    2. inner loop   first weights, rates and rows of the small net and its head, on tasks of three
                    support sets; the embedding is frozen, so that every training image is embedded
                    once, in eight positions
    3. column       the same on the tasks of the column, from the weights of stage 2
    4. critic       SCA, from the weights of MAML++ High-End in its column; the critic's step is
                    zero at first

MAML++ Low-End has no embedding that could be frozen. Its network starts as that of ProtoNets; then
come stages 2 and 3 with the whole network.

A stage is a `Training` whose `start` is the stage before. Stage 1 is done once for all columns, and
stage 2 once for type C, whose labels stand for several classes, and once for all others.
"""

from __future__ import annotations

from typing import NamedTuple

from cfsl.spec import TaskSpec
from cfsl.training.training_spec import (
    MILD,
    PHOTOGRAPHIC,
    Augmentation,
    FirstRates,
    Schedule,
    Start,
    Training,
)


class Memory(NamedTuple):
    """The layer of the small net that remembers a task, and how its inner loop is learned."""

    first_inner_rates: FirstRates
    zero_head: bool
    rate: float
    """Of matrices (Muon)."""
    inner_rate: float
    """Of the learned inner rates."""


HEAD = Memory(
    (("conv", 0.012), ("head", 0.5), ("squeeze1", 0.3), ("squeeze2", 0.3)), True, 4e-3, 1e-2
)
"""The head remembers. Its inputs are the 48 features of the small net, which change little."""
CONVOLUTION = Memory(
    (("conv", 1.2), ("head", 0.03), ("squeeze1", 0.1), ("squeeze2", 0.1)), False, 2e-2, 2e-2
)
"""The convolution remembers. Its filters' inputs have more dimensions than the features, which a
label that stands for several classes needs."""
_RATES_OF_LOW_END = (("head", 0.5),)
_CONV_4 = {"metric": "cosine", "net.order": "conv-norm-act", "net.widths": [48] * 4}
"""ProtoNets with the network of MAML++ Low-End."""
_EPOCHS = 5
_UPDATES_OF_START = 2000
_UPDATES_OF_COLUMN = {3: 1000, 4: 1000, 5: 1000}
"""By the number of support sets."""
_FEWEST_UPDATES = 600


def start(epochs: int = 6, updates: int = 600) -> Training:
    """Return stage 1: episodes of 40 classes x 3 images that take turns as the support image.

    Half of the classes of an episode look like the other half. Quarter turns make three further
    classes of each class. Mirror images stay unseen, for the inner loop (`_on_table`).
    """
    return Training(
        episodes=TaskSpec.few_shot(n_way=40, k_shot=1, k_target=2),
        turns=True,
        companions=3,
        validation=TaskSpec.type_b(3),
        validation_tasks=200,
        augmentation=MILD.replace(quarter_turns=True),
        schedule=Schedule(
            epochs=epochs,
            updates=updates,
            optimizer="muon",
            rate=0.07,
            decay="cosine",
            warmup=20,
            weight_decay=0.02,
            average=0.99,
            precision="bfloat16",
        ),
    )


def maml_high(task: TaskSpec) -> Training:
    """Return stages 1 and 2, and for other tasks than those of stage 2 the third."""
    task_of_start = _task_of_start(task)
    if task != task_of_start:
        return _on_table(
            task, _updates(task), Start(learner="maml_high", training=maml_high(task_of_start))
        )

    memory = memory_for(task)
    training = _on_table(task, _UPDATES_OF_START, Start(learner="metric_start", training=start()))
    return training.replace(first_inner_rates=memory.first_inner_rates, zero_head=memory.zero_head)


def sca(task: TaskSpec) -> Training:
    """Return the critic's stage on top of those of MAML++ High-End in the same column."""
    training = _on_table(task, _updates(task), Start(learner="maml_high", training=maml_high(task)))
    return training.replace(schedule=training.schedule.replace(rate=training.schedule.rate / 2))


def maml_low(task: TaskSpec) -> Training:
    """Return a short stage 1, then stage 2, and for other tasks the third."""
    task_of_start = _task_of_start(task)

    if task == task_of_start:
        protonets = Start(
            learner="protonet", changes=_CONV_4, training=start(epochs=4, updates=200)
        )
        training = _on_images(task, _UPDATES_OF_START, protonets)
        return training.replace(first_inner_rates=_RATES_OF_LOW_END, zero_head=True)
    return _on_images(
        task, _updates(task), Start(learner="maml_low", training=maml_low(task_of_start))
    )


def on_photographs(training: Training) -> Training:
    """Return the same stages for photographs: cropped, coloured and mirrored, but never turned."""
    augmentation = Augmentation() if training.embedding == "frozen" else PHOTOGRAPHIC
    earlier = training.start
    if earlier is not None:
        earlier = earlier.replace(training=on_photographs(earlier.training))
    return training.replace(augmentation=augmentation, start=earlier)


def memory_for(task: TaskSpec) -> Memory:
    """Return what remembers tasks of a type."""
    return CONVOLUTION if task.task_type == "C" else HEAD


def _task_of_start(task: TaskSpec) -> TaskSpec:
    """Return the task of stage 2: labels that stand for several classes need another inner loop."""
    return TaskSpec.type_c(3) if task.task_type == "C" else TaskSpec.type_b(3)


def _updates(task: TaskSpec) -> int:
    return _UPDATES_OF_COLUMN.get(task.nss, _FEWEST_UPDATES)


def _on_table(task: TaskSpec, updates: int, start: Start) -> Training:
    """Return a stage whose updates see two tasks each, from a table of the frozen embedding's maps.

    Mirror images are among them. They are classes that stage 1 has never seen, so that their maps
    are as unclear as those of test classes.
    """
    memory = memory_for(task)

    return Training(
        episodes=task,
        validation=task,
        validation_tasks=200,
        augmentation=Augmentation(quarter_turns=True, reflections=True),
        schedule=Schedule(
            epochs=_EPOCHS,
            updates=updates // _EPOCHS,
            batch=2,
            optimizer="muon",
            rate=memory.rate,
            decay="cosine",
            warmup=20,
            weight_decay=1e-5,
            average=0.97,
            vector_rate=2e-3,
            inner_rate=memory.inner_rate,
        ),
        start=start,
        embedding="frozen",
    )


def _on_images(task: TaskSpec, updates: int, start: Start) -> Training:
    """Return a stage whose updates see two tasks each, for a whole network that adapts."""
    training = _on_table(task, updates, start)
    schedule = training.schedule.replace(rate=0.01, vector_rate=1e-3)
    augmentation = MILD.replace(quarter_turns=True)
    return training.replace(embedding="learned", augmentation=augmentation, schedule=schedule)
