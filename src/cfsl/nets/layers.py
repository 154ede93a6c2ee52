"""The layers that every backbone is made of: what they hold, how they start, what they compute.

A layer is a name and a shape; its tensors live in flat dicts under `name.weight`, `name.bias`, `name.mean`, `name.var`.
So fast weights are a dict, a pristine copy is the dict from before, and per-step batch norm is a dict with other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from cfsl.errors import SpecError

Params = dict[str, Tensor]
"""What gradients train."""
Stats = dict[str, Tensor]
"""Running means and variances of batch norm: data, never trained by a gradient."""
Init = Literal["xavier", "torch", "he"]
"""Xavier uniform with bias 0; what torch's layers do by default; Kaiming normal by fan-out with bias 0."""
Maps = Float[Tensor, "n _channels _height _width"]
"""Before or after a layer, hence free but for the number of images."""
Norm = Callable[[str, Tensor], Tensor]
"""Batch norm by layer name, with the source of its statistics already chosen."""

EPS = 1e-5


@dataclass(frozen=True)
class Conv:
    """A square convolution that keeps the size of a map (times 1 / stride)."""

    inputs: int
    outputs: int
    kernel: int = 3
    bias: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return (self.outputs, self.inputs, self.kernel, self.kernel)


@dataclass(frozen=True)
class Linear:
    """A matrix, with a shift if there is a bias."""

    inputs: int
    outputs: int
    bias: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return (self.outputs, self.inputs)


@dataclass(frozen=True)
class BatchNorm:
    """Batch norm with a scale and a shift for each channel."""

    channels: int


Layer = Conv | Linear | BatchNorm


def init_layers(
    layers: Mapping[str, Layer], rule: Init, generator: torch.Generator
) -> tuple[Params, Stats]:
    """Draw the first weights in the order of `layers`, on the generator's device."""
    params: Params = {}
    stats: Stats = {}
    for name, layer in layers.items():
        if isinstance(layer, BatchNorm):
            ones = torch.ones(layer.channels, device=generator.device)
            params |= {f"{name}.weight": ones, f"{name}.bias": torch.zeros_like(ones)}
            stats |= {f"{name}.mean": torch.zeros_like(ones), f"{name}.var": ones.clone()}
        else:
            params |= {
                f"{name}.{part}": tensor for part, tensor in _draw(layer, rule, generator).items()
            }
    return params, stats


def _draw(layer: Conv | Linear, rule: Init, generator: torch.Generator) -> Params:
    weight = torch.empty(layer.shape, device=generator.device)
    bias = torch.zeros(layer.outputs, device=generator.device)
    if rule == "xavier":
        nn.init.xavier_uniform_(weight, generator=generator)
    elif rule == "he":
        nn.init.kaiming_normal_(weight, mode="fan_out", generator=generator)
    else:
        bound = 1 / math.sqrt(weight[0].numel())
        nn.init.uniform_(weight, -bound, bound, generator=generator)
        if layer.bias:
            nn.init.uniform_(bias, -bound, bound, generator=generator)
    return {"weight": weight, "bias": bias} if layer.bias else {"weight": weight}


def conv(params: Mapping[str, Tensor], name: str, maps: Maps, stride: int = 1) -> Maps:
    """Convolve with the layer `name`, padded so that only the stride shrinks the map."""
    weight = params[f"{name}.weight"]
    return functional.conv2d(
        maps, weight, params.get(f"{name}.bias"), stride=stride, padding=weight.shape[-1] // 2
    )


def pool(maps: Maps) -> Maps:
    """Halve height and width by the maximum; an odd last row or column is dropped.

    Commutes with every non-decreasing activation. Nets pool first: a quarter of the activations, the same values.
    """
    return functional.max_pool2d(maps, 2)


class RunningNorm:
    """Normalises with running statistics: each image by itself, whatever else is in the batch."""

    def __init__(self, params: Mapping[str, Tensor], stats: Mapping[str, Tensor]) -> None:
        """Take the scales and shifts from `params`."""
        self._params, self._stats = params, stats

    def __call__(self, name: str, maps: Tensor) -> Tensor:
        """Normalise the maps of layer `name`."""
        scale, shift = self._params[f"{name}.weight"], self._params[f"{name}.bias"]
        mean, var = self._stats[f"{name}.mean"], self._stats[f"{name}.var"]
        return functional.batch_norm(maps, mean, var, scale, shift, training=False, eps=EPS)

    def rises(self, name: str) -> bool:
        """Tell whether no scale is negative, so that a larger value stays the larger one."""
        return bool((self._params[f"{name}.weight"] >= 0).all())


def running_norm(params: Mapping[str, Tensor], stats: Mapping[str, Tensor]) -> Norm:
    """Return a norm with running statistics."""
    return RunningNorm(params, stats)


def normed_and_pooled(norm: Norm, name: str, maps: Maps) -> Maps:
    """Normalise, then pool. Where that is the same the other way round, to the bit, a quarter is normalised."""
    if not torch.is_grad_enabled() and isinstance(norm, RunningNorm) and norm.rises(name):
        return norm(name, pool(maps))
    return pool(norm(name, maps))


def batch_norm(params: Mapping[str, Tensor], seen: Stats) -> Norm:
    """Normalise with the statistics of the batch, and write them (unbiased variance) into `seen`."""

    def norm(name: str, maps: Tensor) -> Tensor:
        count = maps.numel() // max(1, maps.shape[1])
        if count < 2:
            raise SpecError(
                f"batch norm '{name}' got {count} value(s) a channel, from maps of shape {tuple(maps.shape)}: too few "
                f"for batch statistics. Use norm='running', or give at least two images."
            )
        scale, shift = params[f"{name}.weight"], params[f"{name}.bias"]
        # Called by its native name since it returns its statistics (cut off from the gradient): no second pass over
        # the maps, nothing updated in place.
        normed, mean, inverse_std = torch.native_batch_norm(
            maps, scale, shift, None, None, True, 0.0, EPS
        )
        var = (inverse_std**-2 - EPS).clamp_min(0) * (count / (count - 1))
        seen.update({f"{name}.mean": mean, f"{name}.var": var})
        return normed

    return norm


def norm_where_possible(
    params: Mapping[str, Tensor], stats: Mapping[str, Tensor], seen: Stats
) -> Norm:
    """Normalise by the batch wherever it has at least two values a channel, and by the given statistics elsewhere."""
    by_batch, by_stats = batch_norm(params, seen), running_norm(params, stats)

    def norm(name: str, maps: Tensor) -> Tensor:
        single = maps.numel() <= maps.shape[1]
        return by_stats(name, maps) if single else by_batch(name, maps)

    return norm


def moved_stats(stats: Mapping[str, Tensor], seen: Mapping[str, Tensor], momentum: float) -> Stats:
    """Return running statistics moved by `momentum` towards those of a batch."""
    return {name: old + momentum * (seen[name] - old) for name, old in stats.items()}


def parameter_count(params: Mapping[str, Tensor]) -> int:
    """Return how many numbers there are in `params`."""
    return sum(tensor.numel() for tensor in params.values())


def in_channels_last(params: Mapping[str, Tensor]) -> Params:
    """Return the same values with convolution weights in channels_last layout.

    The whole net then works in that layout, whatever the layout of the images: about twice as fast on CPU in
    first-order work, no gain in second-order work. Results differ by rounding only.
    """
    return {
        name: tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
        for name, tensor in params.items()
    }


def in_layout_of(params: Mapping[str, Tensor], images: Maps) -> Maps:
    """Return a view of one-channel images that is channels_last if the weights are.

    With one channel both layouts are the same bytes; torch goes by the strides, takes them for the default layout, and
    would compute the first and largest maps in it.
    """
    if images.shape[1] != 1 or not any(_is_channels_last(weight) for weight in params.values()):
        return images
    return images[:, 0, :, :, None].permute(0, 3, 1, 2)


def _is_channels_last(weight: Tensor) -> bool:
    # By strides, since vmap cannot be asked for a memory format; one channel or a 1x1 kernel says nothing.
    return (
        weight.ndim == 4 and weight.shape[1] > 1 and weight.shape[-1] > 1 and weight.stride(1) == 1
    )
