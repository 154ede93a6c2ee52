"""Your own photos as a benchmark; without a folder, some images are painted.

python examples/own_photos.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import cfsl
from cfsl.data.catalog import AddRequest, add_dataset
from cfsl.learners.registry import find_learner


def painted(folder, classes=12, each=10):
    """Paint a folder of images, with a folder for every class: coloured discs that move about."""
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
    # Tasks of all classes, since nothing is trained here.
    tasks = cfsl.Tasks(data, spec, split="all", numbers=range(50))

    pixel_nn, protonet = find_learner("pixel_nn"), find_learner("protonet")
    drawn = protonet.init((3, 32, 32), torch.Generator().manual_seed(0))
    for name, learner, meta in (("pixel_nn", pixel_nn, {}), ("protonet", protonet, drawn)):
        accuracy = cfsl.summarise(cfsl.task_accuracies(cfsl.evaluate(learner, tasks, meta)))
        percents = f"{100 * accuracy.mean:6.2f} +- {100 * accuracy.ci95:.2f}"
        print(f"{name:<10}{percents} % of {spec.labels} labels")

    cfsl.draw_task(tasks[0]).save("my-photos.png")
    print("protonet had random weights: train it with 'cfsl train protonet --data my-photos'.")
    print("See my-photos.png")


if __name__ == "__main__":
    main(*sys.argv[1:2])
