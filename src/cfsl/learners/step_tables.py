"""Tables with a row for every inner step: learned rates, and scales and shifts of batch norm. See `inner_loop.py`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from cfsl.nets.layers import EPS, BatchNorm, Layer, Norm, Params, Stats, batch_norm, running_norm


def part(tensors: Mapping[str, Tensor], prefix: str) -> Params:
    """Return the tensors under a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Params:
    """Return the tensors with a prefix to their names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def rows_of(tables: Mapping[str, Tensor], row: int) -> Params:
    """Return one row of every table."""
    return {name: table[row] for name, table in tables.items()}


def first_tables(steps: int, rate: float, weights: Params, scales: Params) -> Params:
    """Return the rates of the adapted tensors, all alike, and a row of scales and shifts for every step and the end."""
    rates = {name: torch.full((steps,), rate, device=weight.device) for name, weight in weights.items()}
    rows = {name: scale.repeat(steps + 1, 1) for name, scale in scales.items()}
    return under("rates.", rates) | under("scales.", rows)


def first_head(features: int, labels: int, generator: torch.Generator) -> Params:
    """Draw a unit for every label, by Xavier's rule."""
    weight = torch.empty(labels, features, device=generator.device)
    nn.init.xavier_uniform_(weight, generator=generator)
    return {"head.weight": weight, "head.bias": torch.zeros(labels, device=generator.device)}


def linear_head(weights: Mapping[str, Tensor], features: Float[Tensor, "n features"]) -> Float[Tensor, "n labels"]:
    """Return a logit for every unit of the head."""
    return functional.linear(features, weights["head.weight"], weights["head.bias"])


def split_scales(params: Params, layers: Mapping[str, Layer]) -> tuple[Params, Params]:
    """Tell what an inner loop adapts from the scales and shifts of batch norm."""
    scales = {n: t for n, t in params.items() if isinstance(layers[n.rpartition(".")[0]], BatchNorm)}
    return {name: tensor for name, tensor in params.items() if name not in scales}, scales


# --- batch norm


def norm_by(scales: Mapping[str, Tensor], stats: Mapping[str, Tensor]) -> Norm:
    """Normalise by given statistics; unlike torch's batch norm, gradients flow to these, too, if they ask for them."""
    if not any(tensor.requires_grad for tensor in stats.values()):
        return running_norm(scales, stats)

    def norm(name: str, maps: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (maps.ndim - 2)
        mean, var = (stats[f"{name}.{kind}"].view(shape) for kind in ("mean", "var"))
        scale, shift = (scales[f"{name}.{kind}"].view(shape) for kind in ("weight", "bias"))
        return (maps - mean) * (var + EPS).rsqrt() * scale + shift

    return norm


def norm_by_batch(
    scales: Mapping[str, Tensor], stats: Mapping[str, Tensor], seen: Stats, *, differentiable: bool = False
) -> Norm:
    """Normalise by the batch wherever it has at least two values a channel, and write its statistics into `seen`.

    There they are data, cut off from the gradient, unless `differentiable` asks otherwise.
    """
    by_batch, by_stats = batch_norm(scales, seen), norm_by(scales, stats)

    def norm(name: str, maps: Tensor) -> Tensor:
        if maps.numel() <= maps.shape[1]:
            return by_stats(name, maps)
        normed = by_batch(name, maps)
        if differentiable:
            var, mean = torch.var_mean(maps, dim=[0, *range(2, maps.ndim)])
            seen.update({f"{name}.mean": mean, f"{name}.var": var})
        return normed

    return norm
