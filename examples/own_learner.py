"""A learner of your own, under the data-flow law: nearest class mean on small, blurred images."""

from dataclasses import dataclass

import torch
from torch.nn import functional

import cfsl


@dataclass(frozen=True)
class BlurredMeans:
    """Keeps the sum of each label's images, shrunk to `side` x `side` pixels."""

    side: int = 10

    def begin(self, meta, info):
        pixels = info.image_shape[0] * self.side**2
        return {"sums": torch.zeros(info.labels, pixels), "counts": torch.zeros(info.labels)}

    def observe(self, state, support):
        images = self.shrunk(support.images)
        return {
            "sums": state["sums"].index_add(0, support.labels, images),
            "counts": state["counts"]
            + torch.bincount(support.labels, minlength=len(state["counts"])),
        }

    def predict(self, state, images):
        means = state["sums"] / state["counts"].clamp(min=1)[:, None]
        logits = -torch.cdist(self.shrunk(images), means)
        return logits.masked_fill(state["counts"] == 0, float("-inf"))

    def shrunk(self, images):
        return functional.adaptive_avg_pool2d(images, self.side).flatten(1)


if __name__ == "__main__":
    tasks = cfsl.Tasks(cfsl.load("glyphs"), cfsl.TaskSpec.type_b(nss=3), numbers=range(50))
    trace = cfsl.evaluate(BlurredMeans(), tasks)
    accuracy = cfsl.summarise(cfsl.task_accuracies(trace)).mean
    print(f"accuracy {accuracy:.3f}, ATM {cfsl.atm(trace).total:.3f}")
