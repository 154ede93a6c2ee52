"""The layers of all backbones: their tensors, first weights and computations.

A layer is a name and a shape; its tensors live in flat dicts under `name.weight`, `name.bias`,
`name.mean`, `name.var`. So adapted weights are a dict, a pristine copy is the dict from before, and
batch norm with scales for each step is a dict with other rows.
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
"""Xavier uniform, the default of torch's layers, or Kaiming normal by fan-out.

Biases start at 0, but for torch's default."""
Maps = Float[Tensor, "n _channels _height _width"]
"""Maps before or after a layer: only the number of images stays the same."""
Norm = Callable[[str, Tensor], Tensor]
"""Normalises the maps of the layer of a name, by statistics that are already chosen."""

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
            drawn = _draw(layer, rule, generator)
            params |= {f"{name}.{part}": tensor for part, tensor in drawn.items()}

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
    weight, bias = params[f"{name}.weight"], params.get(f"{name}.bias")
    return functional.conv2d(maps, weight, bias, stride=stride, padding=weight.shape[-1] // 2)


def pool(maps: Maps) -> Maps:
    """Halve height and width by the maximum; an odd last row or column is dropped.

    Pooling commutes with every non-decreasing activation. Nets pool first: a quarter of the
    activations gives the same values.
    """
    return functional.max_pool2d(maps, 2)


class _RunningNorm:
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
    return _RunningNorm(params, stats)


def normed_and_pooled(norm: Norm, name: str, maps: Maps) -> Maps:
    """Normalise, then pool.

    Where pooling first gives the same to the bit, it comes first: a quarter is then normalised.
    """
    if not torch.is_grad_enabled() and isinstance(norm, _RunningNorm) and norm.rises(name):
        return norm(name, pool(maps))
    return pool(norm(name, maps))


def batch_norm(params: Mapping[str, Tensor], measured: Stats) -> Norm:
    """Normalise with the statistics of the batch.

    The norm adds them, with the unbiased variance, to `measured` as it is called, layer by layer.
    """

    def norm(name: str, maps: Tensor) -> Tensor:
        count = maps.numel() // max(1, maps.shape[1])
        if count < 2:
            raise SpecError(
                f"batch norm '{name}' got {count} value(s) a channel, from maps of shape "
                f"{tuple(maps.shape)}: too few for batch statistics. Use norm='running', "
                f"or give at least two images."
            )

        # The native function returns its statistics (cut off from the gradient): they need no
        # second pass over the maps, and nothing is updated in place.
        scale, shift = params[f"{name}.weight"], params[f"{name}.bias"]
        normed, mean, inverse_std = torch.native_batch_norm(
            maps, scale, shift, None, None, True, 0.0, EPS
        )
        var = (inverse_std**-2 - EPS).clamp_min(0) * (count / (count - 1))
        measured.update({f"{name}.mean": mean, f"{name}.var": var})
        return normed

    return norm


def norm_where_possible(
    params: Mapping[str, Tensor], stats: Mapping[str, Tensor], measured: Stats
) -> Norm:
    """Normalise by the batch where it has two values a channel or more, and else by `stats`.

    See `batch_norm` for `measured`.
    """
    by_batch, by_stats = batch_norm(params, measured), running_norm(params, stats)

    def norm(name: str, maps: Tensor) -> Tensor:
        single = maps.numel() <= maps.shape[1]
        return by_stats(name, maps) if single else by_batch(name, maps)

    return norm


def moved_stats(
    stats: Mapping[str, Tensor], measured: Mapping[str, Tensor], momentum: float
) -> Stats:
    """Return running statistics moved by `momentum` towards those of a batch."""
    return {name: old + momentum * (measured[name] - old) for name, old in stats.items()}


def parameter_count(params: Mapping[str, Tensor]) -> int:
    """Return how many numbers there are in `params`."""
    return sum(tensor.numel() for tensor in params.values())


def in_channels_last(params: Mapping[str, Tensor]) -> Params:
    """Return the same values with convolution weights in channels_last layout.

    The whole net then works in that layout, whatever the layout of the images. On a CPU this is
    about twice as fast in first-order work, and no faster in second-order work. Results differ by
    rounding only.
    """
    return {
        name: tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
        for name, tensor in params.items()
    }


def in_layout_of(params: Mapping[str, Tensor], images: Maps) -> Maps:
    """Return a view of one-channel images that is channels_last if the weights are.

    With one channel both layouts are the same bytes. Torch goes by the strides, takes them for the
    default layout, and would compute the first and largest maps in it.
    """
    if images.shape[1] != 1 or not any(_is_channels_last(weight) for weight in params.values()):
        return images
    return images[:, 0, :, :, None].permute(0, 3, 1, 2)


def _is_channels_last(weight: Tensor) -> bool:
    # One channel or a 1x1 kernel says nothing. vmap cannot be asked for a memory format, but it can
    # be asked for strides.
    says_something = weight.ndim == 4 and weight.shape[1] > 1 and weight.shape[-1] > 1
    return says_something and weight.stride(1) == 1
