"""Tables with a row for every inner step: learned rates, and scales and shifts of batch norm.

See `inner_loop.py` for how they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from cfsl.errors import LearnerError
from cfsl.nets.layers import EPS, BatchNorm, Layer, Norm, Params, Stats, batch_norm, running_norm


def strip_prefix(tensors: Mapping[str, Tensor], prefix: str) -> Params:
    """Return the tensors whose names begin with a prefix, by their names without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> Params:
    """Return the tensors with a prefix before their names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def rows_of(tables: Mapping[str, Tensor], row: int) -> Params:
    """Return one row of every table."""
    return {name: table[row] for name, table in tables.items()}


def first_tables(steps: int, rate: float, weights: Params, scales: Params) -> Params:
    """Return first tables: rates of the adapted tensors, all alike, and rows of scales and shifts.

    There is a row for every step, and one for the end.
    """
    rates = {
        name: torch.full((steps,), rate, device=weight.device) for name, weight in weights.items()
    }
    rows = {name: scale.repeat(steps + 1, 1) for name, scale in scales.items()}
    return add_prefix("rates.", rates) | add_prefix("scales.", rows)


def with_rates(params: Mapping[str, Tensor], rates: Mapping[str, float]) -> Params:
    """Return weights whose tables of rates have one value throughout.

    `rates` gives that value by what the names of layers begin with.
    """
    tables: dict[str, float] = {}
    for layer, rate in rates.items():
        found = [name for name in params if name.startswith(f"rates.{layer}")]
        if not found:
            raise LearnerError(
                f"there are no inner rates of '{layer}' that could start from {rate}"
            )
        tables |= dict.fromkeys(found, rate)

    return {
        name: torch.full_like(tensor, tables[name]) if name in tables else tensor
        for name, tensor in params.items()
    }


def with_zero_head(params: Mapping[str, Tensor]) -> Params:
    """Return weights whose head is zero."""
    if "head.weight" not in params:
        raise LearnerError("there is no learned head that could start at zero")
    return {
        name: torch.zeros_like(tensor) if name.startswith("head.") else tensor
        for name, tensor in params.items()
    }


def first_head(features: int, labels: int, generator: torch.Generator) -> Params:
    """Draw a unit for every label, by Xavier's rule."""
    weight = torch.empty(labels, features, device=generator.device)
    nn.init.xavier_uniform_(weight, generator=generator)
    return {"head.weight": weight, "head.bias": torch.zeros(labels, device=generator.device)}


def linear_head(
    weights: Mapping[str, Tensor], features: Float[Tensor, "n features"]
) -> Float[Tensor, "n labels"]:
    """Return a logit for every unit of the head."""
    return functional.linear(features, weights["head.weight"], weights["head.bias"])


def split_scales(params: Params, layers: Mapping[str, Layer]) -> tuple[Params, Params]:
    """Tell what an inner loop adapts from the scales and shifts of batch norm."""
    of_norms = {name for name in params if isinstance(layers[name.rpartition(".")[0]], BatchNorm)}
    adapted = {name: tensor for name, tensor in params.items() if name not in of_norms}
    return adapted, {name: tensor for name, tensor in params.items() if name in of_norms}


# --- weights of an earlier training run


def with_drawn_lengths(
    drawn: Mapping[str, Tensor], params: Params, stats: Params
) -> tuple[Params, Params]:
    """Return weights whose adapted convolutions have the lengths that they were drawn with.

    Batch norm divides the length out again: once its running statistics are rescaled too, nothing
    changes but the inner rate that suits, which grows with the square of the length (van Laarhoven,
    "L2 Regularization versus Batch and Weight Normalization", 2017).
    """
    params, stats = dict(params), dict(stats)
    layers = [name.removesuffix(".weight") for name in drawn if name.endswith("conv.weight")]
    for layer in layers:
        weight = f"{layer}.weight"
        if f"rates.{weight}" not in drawn:
            continue

        ratio = drawn[weight].norm() / params[weight].norm()
        for name in (weight, f"{layer}.bias"):
            if name in params:
                params[name] = params[name] * ratio
        norm = f"targets.{layer.removesuffix('conv')}norm"
        stats[f"{norm}.mean"] = stats[f"{norm}.mean"] * ratio
        stats[f"{norm}.var"] = stats[f"{norm}.var"] * ratio**2

    return params, stats


class Steps(NamedTuple):
    """How many inner steps weights are for."""

    of_set: int
    """On every support set."""
    of_all: int
    """On all support sets of a task; tables may have rows for what comes after them."""


def taken_over(
    first: Mapping[str, Tensor], start: Mapping[str, Tensor], had: Steps, wanted: Steps
) -> Params:
    """Return first weights, replaced by those of an earlier training run where it has any.

    - "embedding.X" and "targets.X" are also taken from X, and a table "scales.X" from X, which
      becomes each of its rows: so a network that was trained by itself becomes the embedding, or
      what adapts.
    - A table for more support sets repeats the rows of the last one.
    - A head for more labels keeps the units that were drawn for the new ones.
    """
    return {name: _taken_over(name, tensor, start, had, wanted) for name, tensor in first.items()}


def _taken_over(
    name: str, drawn: Tensor, start: Mapping[str, Tensor], had: Steps, wanted: Steps
) -> Tensor:
    plain = name.removeprefix("embedding.").removeprefix("targets.").removeprefix("scales.")
    found = start.get(name, start.get(plain))
    if found is None:
        return drawn.clone()

    is_table = name.startswith(("rates.", "scales."))
    if is_table and found.ndim == drawn.ndim - 1:
        return found.expand(drawn.shape).clone()
    if is_table and found.shape[1:] == drawn.shape[1:]:
        return _for_other_sets(found, drawn, had, wanted)
    if found.shape == drawn.shape:
        return found.clone()
    if name.startswith("head.") and found.shape[1:] == drawn.shape[1:]:
        units = min(len(found), len(drawn))
        return torch.cat([found[:units], drawn[units:]])

    raise LearnerError(
        f"'{name}' has shape {tuple(found.shape)} where training starts from, "
        f"and {tuple(drawn.shape)} here: the networks differ"
    )


def _for_other_sets(found: Tensor, drawn: Tensor, had: Steps, wanted: Steps) -> Tensor:
    """Return a table with as many rows as `drawn`: further support sets have those of the last one.

    Then come the rows for the steps after the support sets. Where there were fewer, the last one is
    repeated, and where there were none, they stay as they were drawn.
    """
    last_set = found[had.of_all - had.of_set : had.of_all]
    missing_sets = max(0, wanted.of_all - had.of_all) // wanted.of_set
    of_sets = torch.cat([found[: had.of_all], *[last_set] * missing_sets])[: wanted.of_all]

    after, rows_after = found[had.of_all :], len(drawn) - wanted.of_all
    if not len(after):
        return torch.cat([of_sets, drawn[wanted.of_all :]])
    repeated = after[-1:].expand(max(0, rows_after - len(after)), *drawn.shape[1:])
    return torch.cat([of_sets, after[:rows_after], repeated])


# --- batch norm


def norm_by(scales: Mapping[str, Tensor], stats: Mapping[str, Tensor]) -> Norm:
    """Normalise by given statistics.

    Unlike in torch's batch norm, gradients flow to these, too, if they ask for them.
    """
    if not any(tensor.requires_grad for tensor in stats.values()):
        return running_norm(scales, stats)

    def norm(name: str, maps: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (maps.ndim - 2)
        mean, var = (stats[f"{name}.{kind}"].view(shape) for kind in ("mean", "var"))
        scale, shift = (scales[f"{name}.{kind}"].view(shape) for kind in ("weight", "bias"))
        return (maps - mean) * (var + EPS).rsqrt() * scale + shift

    return norm


def norm_by_batch(
    scales: Mapping[str, Tensor],
    stats: Mapping[str, Tensor],
    measured: Stats,
    *,
    differentiable: bool = False,
) -> Norm:
    """Normalise by the batch where it has two values a channel or more, and else by `stats`.

    The norm adds the statistics of the batch to `measured` as it is called, layer by layer. No
    gradient flows through them, unless they are to be `differentiable`.
    """
    by_batch, by_stats = batch_norm(scales, measured), norm_by(scales, stats)

    def norm(name: str, maps: Tensor) -> Tensor:
        if maps.numel() <= maps.shape[1]:
            return by_stats(name, maps)
        normed = by_batch(name, maps)
        if differentiable:
            var, mean = torch.var_mean(maps, dim=[0, *range(2, maps.ndim)])
            measured.update({f"{name}.mean": mean, f"{name}.var": var})
        return normed

    return norm
