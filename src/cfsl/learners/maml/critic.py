"""The critic of SCA: a learned loss of answers that needs no labels.

Its inputs are [z, |z|, z^2, sign z] of the logits z of each target. The width of its first layer
depends on the number of logits, so that a critic fits one number of labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from cfsl.nets.layers import Linear, Params, init_layers

Kind = Literal["mlp", "dilated"]
_HIDDEN, _CHANNELS, _KERNEL = 16, 8, 3
_DILATIONS = (1, 2, 4, 8, 16)
_SLOPE = {"mlp": 0.01, "dilated": 0.0}


def critic_weights(kind: Kind, labels: int, generator: torch.Generator) -> Params:
    """Draw first weights, as torch's layers do."""
    convolutions: Params = {}
    inputs = 1
    if kind == "dilated":
        for number in range(len(_DILATIONS)):
            convolutions |= _drawn_convolution(f"conv{number}", f"norm{number}", inputs, generator)
            inputs += _CHANNELS

    sizes = (inputs * 4 * labels, _HIDDEN, _HIDDEN, 1)
    layers = {f"linear{i}": Linear(sizes[i], sizes[i + 1]) for i in range(3)}
    return convolutions | init_layers(layers, "torch", generator)[0]


def predicted_loss(
    kind: Kind, critic: Mapping[str, Tensor], logits: Float[Tensor, "n labels"]
) -> Float[Tensor, ""]:
    """Return the sum over the targets of the loss that the critic predicts for each."""
    features = torch.cat([logits, logits.abs(), logits**2, logits.sign()], dim=1)
    if kind == "dilated":
        features = _convolved(critic, features)

    for number in range(2):
        hidden = functional.linear(features, critic[f"linear{number}.weight"])
        features = functional.leaky_relu(hidden, _SLOPE[kind])
    return functional.linear(features, critic["linear2.weight"]).sum()


def _drawn_convolution(conv: str, norm: str, inputs: int, generator: torch.Generator) -> Params:
    weight = torch.empty(_CHANNELS, inputs, _KERNEL, device=generator.device)
    bias = torch.empty(_CHANNELS, device=generator.device)
    bound = (inputs * _KERNEL) ** -0.5
    for tensor in (weight, bias):
        nn.init.uniform_(tensor, -bound, bound, generator=generator)

    ones = torch.ones_like(bias)
    return {
        f"{conv}.weight": weight,
        f"{conv}.bias": bias,
        f"{norm}.weight": ones,
        f"{norm}.bias": torch.zeros_like(ones),
    }


def _convolved(
    critic: Mapping[str, Tensor], features: Float[Tensor, "n inputs"]
) -> Float[Tensor, "n more"]:
    """Convolve along the features; each layer sees the outputs of all layers before it.

    Batch norm goes by the statistics of the targets at hand.
    """
    maps = features[:, None]
    for number, dilation in enumerate(_DILATIONS):
        weight, bias = (critic[f"conv{number}.{part}"] for part in ("weight", "bias"))
        scale, shift = (critic[f"norm{number}.{part}"] for part in ("weight", "bias"))

        added = functional.conv1d(maps, weight, bias, padding=dilation, dilation=dilation)
        added = functional.batch_norm(added, None, None, scale, shift, training=True)
        maps = torch.cat([maps, functional.relu(added)], dim=1)
    return maps.flatten(1)
