"""A network that was trained elsewhere as a frozen embedding.

    python examples/frozen_backbone.py [MODEL]

MODEL is a folder (or a name) that Hugging Face `transformers` can load, such as
facebook/dinov2-small. Without one, a small network with random weights stands in for it, to show
how weights come from a file through `meta`.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import cfsl
from cfsl.cards.card import write_card
from cfsl.learners.frozen_backbone import (
    FrozenBackbone,
    backbone_weights,
    from_transformers,
    small_backbone,
)
from cfsl.runs.evaluation import evaluation_of


def from_file():
    """Save a module's weights, and read them again as `meta`."""
    torch.manual_seed(0)
    # Any function will do that returns a torch.nn.Module which makes one row of every image.
    module = small_backbone(width=32)
    learner = FrozenBackbone(
        architecture="cfsl.learners.frozen_backbone:small_backbone", arguments={"width": 32}
    )
    meta = backbone_weights(module)
    save_file({**meta["params"], **meta["stats"]}, "backbone.safetensors")

    tensors = load_file("backbone.safetensors")
    parts = ("params", "stats")
    return learner, {part: {name: tensors[name] for name in meta[part]} for part in parts}


def main(model=None, tasks=50):
    learner, meta = from_file() if model is None else from_transformers(model, side=224)
    data, spec = cfsl.load("glyphs-400x20"), cfsl.TaskSpec.type_b(nss=3)
    drawn = cfsl.Tasks(data, spec, numbers=range(tasks))
    name = "cfsl.learners.frozen_backbone:FrozenBackbone"
    card, _, answers = evaluation_of(name, learner, drawn, meta)

    # 'cfsl verify frozen.json' computes the numbers again.
    write_card(Path("frozen.json"), card, {"": answers})
    accuracy, atm = card.metrics.accuracy.mean, card.metrics.atm.total
    print(f"accuracy {100 * accuracy:.1f} %, ATM {atm:.3f}; wrote frozen.json")


if __name__ == "__main__":
    main(*sys.argv[1:2])
