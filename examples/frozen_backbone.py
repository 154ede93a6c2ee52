"""A network of your own, trained elsewhere, as a frozen embedding: python examples/frozen_backbone.py [MODEL].

MODEL is a folder (or a name) that Hugging Face `transformers` can load, such as facebook/dinov2-small. Without one, a
small network with random weights stands in for it: what counts is how weights come from a file through `meta`.
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
    module = small_backbone(
        width=32
    )  # any function that returns a torch.nn.Module: images -> one row an image
    learner = FrozenBackbone(
        architecture="cfsl.learners.frozen_backbone:small_backbone", arguments={"width": 32}
    )
    meta = backbone_weights(module)
    save_file({**meta["params"], **meta["stats"]}, "backbone.safetensors")
    tensors = load_file("backbone.safetensors")
    return learner, {
        part: {name: tensors[name] for name in meta[part]} for part in ("params", "stats")
    }


def main(model=None, tasks=50):
    learner, meta = from_file() if model is None else from_transformers(model, side=224)
    drawn = cfsl.Tasks(
        cfsl.load("glyphs-400x20"), cfsl.TaskSpec.type_b(nss=3), numbers=range(tasks)
    )
    card, _, answers = evaluation_of(
        "cfsl.learners.frozen_backbone:FrozenBackbone", learner, drawn, meta
    )
    write_card(
        Path("frozen.json"), card, {"": answers}
    )  # 'cfsl verify frozen.json' works it out again
    metrics = card["metrics"]
    print(
        f"accuracy {100 * metrics['accuracy']['mean']:.1f} %, ATM {metrics['atm']['total']:.3f}; wrote frozen.json"
    )


if __name__ == "__main__":
    main(*sys.argv[1:2])
