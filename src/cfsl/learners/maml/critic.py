"""The critic of SCA: a learned loss that looks at answers and knows no labels.

For each target it sees [z, |z|, z^2, sign z] of the target's logits z. Its first layer is as wide as there are logits,
so that a critic fits one number of labels.
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
    """Return the sum over the targets of what the critic thinks of each."""
    seen = torch.cat([logits, logits.abs(), logits**2, logits.sign()], dim=1)
    if kind == "dilated":
        seen = _convolved(critic, seen)
    for number in range(2):
        seen = functional.leaky_relu(
            functional.linear(seen, critic[f"linear{number}.weight"]), _SLOPE[kind]
        )
    return functional.linear(seen, critic["linear2.weight"]).sum()


def _drawn_convolution(conv: str, norm: str, inputs: int, generator: torch.Generator) -> Params:
    bound = (inputs * _KERNEL) ** -0.5
    weight, bias = (
        torch.empty(shape, device=generator.device)
        for shape in ((_CHANNELS, inputs, _KERNEL), _CHANNELS)
    )
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
    critic: Mapping[str, Tensor], seen: Float[Tensor, "n inputs"]
) -> Float[Tensor, "n more"]:
    """Convolve along the features, each layer seeing all before it; batch norm by the targets at hand."""
    maps = seen[:, None]
    for number, dilation in enumerate(_DILATIONS):
        weight, bias = (critic[f"conv{number}.{part}"] for part in ("weight", "bias"))
        added = functional.conv1d(maps, weight, bias, padding=dilation, dilation=dilation)
        scale, shift = (critic[f"norm{number}.{part}"] for part in ("weight", "bias"))
        added = functional.relu(
            functional.batch_norm(added, None, None, scale, shift, training=True)
        )
        maps = torch.cat([maps, added], dim=1)
    return maps.flatten(1)
