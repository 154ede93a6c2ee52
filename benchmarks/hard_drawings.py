"""Find the drawings, and the pairs of classes, that make the champion's errors on type A.

    python benchmarks/hard_drawings.py --split train --picture hard.png
                                                    (Omniglot; a minute or two of one core)

Tasks draw five classes at random, so errors of a tenth of a per cent take many tasks to see. Here
every drawing is compared with the prototypes of all classes of a split at once. If the share p of
other classes is closer to it than its own class, it is wrong among four of them with probability
1 - (1 - p)^4. The support images are drawn anew in every round. Only class prototypes answer: there
is no memory of pixels.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import cfsl
from cfsl.learners.champion.champion import Champion
from cfsl.learners.champion.spread import class_evidence
from cfsl.training.ready import ready_for
from cfsl.training.run_folder import read_weights

LEARNER = Champion(knows_copies=False, numbers="float32")
Weights = dict[str, dict[str, Tensor]]
OTHERS = 4
SHOWN, BESIDE = 30, 7
_AT_ONCE = 32


def drawings_of(data: cfsl.Dataset, split: str) -> Tensor:
    """Return the images of a split, class by class; all classes must have as many."""
    classes, sizes = data.classes_of(split), data.class_sizes
    least, most_images = sizes[classes].min(), sizes[classes].max()
    if least != most_images:
        raise SystemExit(
            f"classes of {data.name}/{split} have from {least} to {most_images} images; "
            f"as many wanted"
        )

    numbers = data.class_starts[classes][:, None] + np.arange(sizes[classes[0]])
    all_images = cfsl.Tasks(data, cfsl.TaskSpec.type_b(1), split="all").images
    images = all_images.normalised(numbers.flatten().astype(np.int32))
    return torch.from_numpy(images).view(*numbers.shape, *images.shape[1:])


def embedded(meta: Weights, drawings: Tensor) -> Tensor:
    """Return every drawing on the axes of the weights."""
    rows = [LEARNER.embed(meta, part) for part in drawings.flatten(0, 1).split(_AT_ONCE)]
    return torch.cat(rows).view(*drawings.shape[:2], -1)


def wrong_classes(
    features: Tensor, shares: Tensor, shots: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw support images, and return the other drawings, by class, and the closer classes.

    These are the classes that are closer to a drawing than its own.
    """
    classes, images, _ = features.shape
    order = torch.rand(classes, images, generator=generator).argsort(dim=1)
    rows, targets = torch.arange(classes)[:, None], order[:, shots:]
    means = features[rows, order[:, :shots]].mean(dim=1)
    asked = features[rows, targets]

    counts = torch.full((classes,), shots)
    evidence = class_evidence(asked.flatten(0, 1), means, counts, shares)
    close = evidence.view(*asked.shape[:2], -1)
    own = close[torch.arange(classes), :, torch.arange(classes)]
    return targets, close > own[:, :, None]


def errors(features: Tensor, shares: Tensor, shots: int, rounds: int) -> tuple[Tensor, Tensor]:
    """Return the errors of every drawing, and those of every pair of classes.

    The errors are those among five classes, as shares of all answers, as if every drawing were
    asked equally often: they add up to the error.
    """
    generator = torch.Generator().manual_seed(0)
    classes, images, _ = features.shape
    wrong, asked = torch.zeros(classes, images), torch.zeros(classes, images)
    pairs = torch.zeros(classes, classes)

    for _ in range(rounds):
        targets, closer = wrong_classes(features, shares, shots, generator)
        share = closer.float().mean(dim=2) * classes / (classes - 1)
        wrong.scatter_add_(1, targets, 1 - (1 - share) ** OTHERS)
        asked.scatter_add_(1, targets, torch.ones_like(share))
        pairs += closer.float().mean(dim=1) / rounds

    by_drawing = wrong / asked.clamp_min(1) / (asked > 0).sum()
    return by_drawing, (pairs + pairs.T).triu(1) * OTHERS / (classes - 1) / classes


def most(values: Tensor, counts: tuple[int, ...]) -> str:
    """Return the sums of the largest values, in percent."""
    added = values.flatten().sort(descending=True).values.cumsum(0)
    return " | ".join(f"{100 * float(added[min(count, len(added)) - 1]):.4f}" for count in counts)


def picture(drawings: Tensor, features: Tensor, shares: Tensor, wrong: Tensor, path: Path) -> None:
    """Write a picture of the worst drawings.

    Beside each are others of its class, and some of the class that it is mistaken for.
    """
    means, counts = features.mean(dim=1), torch.full((len(features),), features.shape[1])
    bar = torch.full((drawings.shape[3], 6), 0.5)

    rows = []
    for place in wrong.flatten().argsort(descending=True)[:SHOWN].tolist():
        group, number = divmod(place, drawings.shape[1])
        close = class_evidence(features[group, number][None], means, counts, shares)[0]
        close[group] = -torch.inf
        own = [drawings[group, i, 0] for i in range(drawings.shape[1]) if i != number][:BESIDE]
        other = list(drawings[int(close.argmax()), : BESIDE // 2, 0])
        rows.append(torch.cat([drawings[group, number, 0], bar, *own, bar, *other], dim=1))

    columns = torch.cat(rows[0::2]), torch.cat(rows[1::2])
    gap = torch.full((columns[0].shape[0], 12), 0.5)
    grey = torch.cat([columns[0], gap, columns[1]], dim=1).clamp(0, 1)
    image = Image.fromarray((255 * grey).to(torch.uint8).numpy())
    image.resize((2 * image.width, 2 * image.height), Image.Resampling.NEAREST).save(path)
    print(f"wrote {path}")


@torch.no_grad()
def main() -> None:
    """Print a row for every number of shots."""
    parser = argparse.ArgumentParser(description="What makes the champion's errors on type A.")
    parser.add_argument("--data", default="omniglot")
    parser.add_argument("--split", default="val")
    parser.add_argument(
        "--weights", type=Path, help="a training folder, or an epoch in it; else the ready weights"
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--picture", type=Path, help="also draw the drawings that are worst with the most shots"
    )
    asked = parser.parse_args()

    torch.set_num_threads(1)
    data = cfsl.load(asked.data)
    path = asked.weights or ready_for("champion", data)
    if path is None:
        parser.error(f"there are no ready weights for {data.name}; name some with --weights")
    drawings, weights = drawings_of(data, asked.split), read_weights(path)
    features, shares = embedded(weights, drawings), weights["stats"]["spread.shares"]

    classes, images = drawings.shape[:2]
    print(f"{data.name}/{asked.split}: {classes} classes of {images} drawings")
    print("errors in % of answers")
    print("| shots | all | the worst drawing | 5 | 20 | 80 | the worst pair of classes | 10 | 40 |")
    print("|--:" * 9 + "|")
    for shots in (shots for shots in (1, 3, 5, 10) if shots < drawings.shape[1]):
        wrong, pairs = errors(features, shares, shots, asked.rounds)
        parts = f"{most(wrong, (1, 5, 20, 80))} | {most(pairs, (1, 10, 40))}"
        print(f"| {shots} | {100 * float(wrong.sum()):.4f} | {parts} |", flush=True)

    if asked.picture is not None:
        picture(drawings, features, shares, wrong, asked.picture)


if __name__ == "__main__":
    main()
