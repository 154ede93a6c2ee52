"""A task as a picture, like Figure 2 of paper 1 and Figure 3 of paper 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from cfsl.report.task_picture import Panel, draw_panels
from cfsl.spec import TaskSpec

if TYPE_CHECKING:
    from cfsl.data.recipe import Recipe
    from cfsl.data.tasks import Task


def draw_task(task: Task, title: str = "") -> Image.Image:
    """Draw the support sets in order, then the target set, with labels as colours and numbers."""
    spec = task.spec
    panels = [
        Panel(
            f"S{i + 1}",
            shown_bytes(support.images.numpy(), task.recipe),
            support.labels.numpy(),
            i // spec.interval,
        )
        for i, support in enumerate(task.support_sets)
    ]

    panels.append(
        Panel(
            "T",
            shown_bytes(task.target.images.numpy(), task.recipe),
            task.target.labels.numpy(),
            None,
        )
    )

    heading = f"{title + ', ' if title else ''}task {task.number}: {describe_spec(spec)}"
    labels = 1 + max(int(panel.labels.max()) for panel in panels)
    return draw_panels(panels, heading=heading, caption=_caption(task, labels), labels=labels)


def describe_spec(spec: TaskSpec) -> str:
    """Say in one line what a task of this spec is."""
    kind = (
        spec.task_type if spec.task_type in ("few-shot", "instance") else f"type {spec.task_type}"
    )
    size = f"{_count(spec.n_way, 'class', 'classes')} x {_count(spec.k_shot, 'image')}"
    sets = f"{_count(spec.nss, 'support set')} of {size}"

    if spec.groups == 1:
        change = (
            f"same {'class' if spec.n_way == 1 else 'classes'} throughout" if spec.nss > 1 else ""
        )
    else:
        change = "new classes every " + ("set" if spec.interval == 1 else f"{spec.interval} sets")

    overwrite = "labels overwritten" if spec.overwrite and spec.groups > 1 else ""
    return ", ".join(part for part in (f"{kind}, {sets}", change, overwrite) if part)


def _caption(task: Task, labels: int) -> str:
    """Say what the target set asks, and how it was corrupted."""
    spec, targets, sets = task.spec, len(task.target.labels), len(task.support_sets)
    shown = f"Support sets S1 to S{sets} in order" if sets > 1 else "Support set S1"
    caption = (
        f"{shown}, then the target set T: {_count(labels, 'label')}, {_count(targets, 'target')}"
    )

    if spec.kind == "instance":
        caption += ", the same images again, each to be told from all others"

    if spec.corruption is None:
        return f"{caption}."

    covered = 100 * float(task.target.covered.mean())
    if spec.corruption.kind == "noise":
        return f"{caption}. Noise replaces {covered:.1f} % of each target's values."
    return f"{caption}. A {spec.corruption.shape} covers {covered:.1f} % of a target on average."


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def shown_bytes(
    images: Float32[np.ndarray, "n channels height width"], recipe: Recipe
) -> UInt8[np.ndarray, "n channels height width"]:
    """Undo the normalisation, back to bytes."""
    if recipe.mean:
        images = images * np.array(recipe.std, np.float32)[:, None, None]
        images = images + np.array(recipe.mean, np.float32)[:, None, None]
    shown: UInt8[np.ndarray, "n channels height width"] = np.clip(
        np.rint(images * 255), 0, 255
    ).astype(np.uint8)
    return shown
