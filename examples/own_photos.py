"""Your own photos as a benchmark: python examples/own_photos.py [FOLDER]. Without a folder it paints some images."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import cfsl
from cfsl.data.catalog import AddRequest, add_dataset
from cfsl.learners.registry import find_learner


def painted(folder, classes=12, each=10):
    """Paint a folder of images, one folder a class: some coloured discs a class, which move about."""
    draw = np.random.default_rng(0)
    rows, columns = np.mgrid[:48, :48]
    for c in range(classes):
        places, colours = draw.uniform(8, 40, (3, 2)), draw.integers(40, 256, (3, 3))
        (folder / f"thing{c:02d}").mkdir(parents=True, exist_ok=True)
        for i in range(each):
            canvas = draw.integers(0, 40, (48, 48, 3)).astype(np.uint8)
            for (y, x), colour in zip(places + draw.normal(0, 2, (3, 2)), colours, strict=True):
                canvas[(rows - y) ** 2 + (columns - x) ** 2 < 60] = colour
            Image.fromarray(canvas).save(folder / f"thing{c:02d}" / f"{i:02d}.png")
    return folder


def main(folder=None):
    folder = painted(Path("photos")) if folder is None else Path(folder)
    data = add_dataset(AddRequest(name="my-photos", source=folder, size=32, replace=True))
    spec = cfsl.TaskSpec.type_b(nss=2, n_way=3, k_target=3)
    tasks = cfsl.Tasks(
        data, spec, split="all", numbers=range(50)
    )  # all classes: nothing is trained here
    for name in ("pixel_nn", "protonet"):
        learner = find_learner(name)
        meta = (
            learner.init((3, 32, 32), torch.Generator().manual_seed(0))
            if name == "protonet"
            else {}
        )
        accuracy = cfsl.summarise(cfsl.task_accuracies(cfsl.evaluate(learner, tasks, meta)))
        print(
            f"{name:<10}{100 * accuracy.mean:6.2f} +- {100 * accuracy.ci95:.2f} % of {spec.labels} labels"
        )
    cfsl.draw_task(tasks[0]).save("my-photos.png")
    print(
        "protonet had random weights: train it with 'cfsl train protonet --data my-photos'. See my-photos.png"
    )


if __name__ == "__main__":
    main(*sys.argv[1:2])
