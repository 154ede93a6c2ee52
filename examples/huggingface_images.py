"""Any Hugging Face image data set as CFSL tasks; here with a stand-in for `datasets`."""

import numpy as np

import cfsl
from cfsl.data.huggingface import add_labelled_images
from cfsl.learners.registry import find_learner


def images():
    """Yield rows with an image and a label, as `datasets.load_dataset("beans", split="train")`.

    Any iterable will do. These are twelve textures that are made up, each with ten samples.
    """
    draw = np.random.default_rng(0)
    base = draw.integers(0, 256, (12, 8, 8, 3))
    for i in range(120):
        texture = np.clip(base[i % 12] + draw.normal(0, 20, (8, 8, 3)), 0, 255)
        yield {"image": np.kron(texture, np.ones((4, 4, 1))).astype(np.uint8), "label": i % 12}


def main():
    data = add_labelled_images("textures", images(), size=32)
    spec = cfsl.TaskSpec.type_d(nss=4, cci=2, n_way=3)
    tasks = cfsl.Tasks(data, spec, split="all", numbers=range(50))
    trace = cfsl.evaluate(find_learner("pixel_nn"), tasks)
    accuracy = cfsl.summarise(cfsl.task_accuracies(trace))
    print(f"{data}: pixel_nn {100 * accuracy.mean:.1f} %")


if __name__ == "__main__":
    main()
