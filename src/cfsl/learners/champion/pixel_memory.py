"""A memory of images, of one bit a pixel: is this picture a copy of an image that was shown?

Of every image it is kept which of its pixels are lighter than its mean, on a grid of at most
32 x 32. How much a picture resembles a copy follows from the values that it has where the kept
image was light, and where it was dark: the mean and the spread of either part, and the correlation
of picture and kept image. A small network, the matcher, makes log-odds of these measures. It is
trained on copies that were left as they are, made noisy or hidden in part, against other images.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from cfsl.nets.layers import Linear, Params, init_layers

Images = Float[Tensor, "n channels height width"]
Values = Float[Tensor, "n pixels"]
Codes = UInt8[Tensor, "m bytes"]

_LARGEST_SIDE = 32
_BITS = 8
_HIDDEN = 32
_MEASURES = 9
_TINY = 1e-3
_MOST_NOISE = 0.5
"""The largest share of the pixels that are noise, in training."""
_LARGEST_RADIUS = 0.35
"""The radius of the largest disc that hides an image, as a share of its height."""


def pixel_values(images: Images) -> Values:
    """Return the grey values of images in a row, averaged down to a grid of at most 32 x 32."""
    grey = images.mean(dim=1, keepdim=True)
    height, width = (min(length, _LARGEST_SIDE) for length in images.shape[2:])
    if grey.shape[2:] != (height, width):
        grey = functional.adaptive_avg_pool2d(grey, (height, width))
    return grey.flatten(1)


def pixel_count(image_shape: tuple[int, int, int]) -> int:
    """Return how many grey values an image has."""
    return min(image_shape[1], _LARGEST_SIDE) * min(image_shape[2], _LARGEST_SIDE)


def code_length(image_shape: tuple[int, int, int]) -> int:
    """Return how many bytes are kept of an image."""
    return -(-pixel_count(image_shape) // _BITS)


def packed(values: Values) -> Codes:
    """Return what is kept: whether each pixel is lighter than the mean, eight pixels to a byte."""
    bits = functional.pad(_is_light(values), (0, -values.shape[1] % _BITS))
    by_byte = bits.view(len(values), -1, _BITS)
    return (by_byte * _powers(values.device)).sum(dim=2).to(torch.uint8)


def unpacked(codes: Codes, pixels: int) -> Float[Tensor, "m pixels"]:
    """Return 1 for light pixels and 0 for dark ones."""
    bits = torch.bitwise_and(codes[:, :, None].long(), _powers(codes.device)) != 0
    return bits.flatten(1)[:, :pixels].float()


def _is_light(values: Values) -> Tensor:
    return (values > values.mean(dim=1, keepdim=True)).long()


def _powers(device: torch.device) -> Tensor:
    return 2 ** torch.arange(_BITS, device=device)


def init_matcher(generator: torch.Generator) -> Params:
    """Draw the first weights of the matcher."""
    layers = {
        "matcher.1": Linear(_MEASURES, _HIDDEN, bias=True),
        "matcher.2": Linear(_HIDDEN, _HIDDEN, bias=True),
        "matcher.3": Linear(_HIDDEN, 1, bias=True),
    }
    params, _ = init_layers(layers, "torch", generator)
    return params


def copy_log_odds(
    params: Params, values: Values, light: Float[Tensor, "m pixels"]
) -> Float[Tensor, "n m"]:
    """Return the log-odds that each picture is a copy of each kept image."""
    activations = _measures(values, light)
    for number in (1, 2):
        activations = functional.relu(_layer(params, number, activations))
    return _layer(params, 3, activations)[..., 0]


def _layer(params: Params, number: int, inputs: Tensor) -> Tensor:
    weight, bias = params[f"matcher.{number}.weight"], params[f"matcher.{number}.bias"]
    return functional.linear(inputs, weight, bias)


def _measures(values: Values, light: Float[Tensor, "m pixels"]) -> Float[Tensor, "n m measures"]:
    """Compare pictures with kept images: two matrix products, and arithmetic on their results."""
    pixels = values.shape[1]
    share = light.mean(dim=1).clamp(1 / pixels, 1 - 1 / pixels)[None]
    mean, square = values.mean(dim=1)[:, None], (values**2).mean(dim=1)[:, None]
    mean_of_light, square_of_light = values @ light.T / pixels, values**2 @ light.T / pixels

    on_light, on_dark = mean_of_light / share, (mean - mean_of_light) / (1 - share)
    spread_on_light = (square_of_light / share - on_light**2).clamp_min(0)
    spread_on_dark = ((square - square_of_light) / (1 - share) - on_dark**2).clamp_min(0)
    spread = (square - mean**2).clamp_min(0)

    contrast = on_light - on_dark
    correlation = contrast * torch.sqrt(share * (1 - share) / (spread + _TINY**2))
    correlation = correlation.clamp(-1, 1)

    measures = [
        on_light,
        on_dark,
        torch.log(spread_on_light + _TINY) / 4,
        torch.log(spread_on_dark + _TINY) / 4,
        correlation,
        torch.log(1 + _TINY - correlation) / 4,
        mean,
        spread,
        share,
    ]
    return torch.stack([measure.expand_as(correlation) for measure in measures], dim=-1)


def copy_loss(params: Params, images: Images, generator: torch.Generator) -> Float[Tensor, ""]:
    """Return the cross-entropy of "is a copy of" for all pairs of spoiled and whole images."""
    light = _is_light(pixel_values(images)).float()
    odds = copy_log_odds(params, pixel_values(spoiled(images, generator)), light)
    is_copy = torch.eye(len(images), device=images.device)
    return functional.binary_cross_entropy_with_logits(odds, is_copy)


def spoiled(images: Images, generator: torch.Generator) -> Images:
    """Return copies: three of eight noisy, three of eight under a disc, a quarter as they are.

    The disc has the darkest or the lightest value.
    """
    n, _, height, width = images.shape
    low, high = images.min(), images.max()

    def uniform(*shape: int) -> Tensor:
        return torch.rand(n, *shape, generator=generator).to(images.device)

    way = uniform(1, 1, 1)
    noise = low + (high - low) * uniform(*images.shape[1:])
    is_noise = (uniform(*images.shape[1:]) < _MOST_NOISE * uniform(1, 1, 1)) & (way < 3 / 8)

    radius = height * _LARGEST_RADIUS * uniform(1, 1, 1)
    centre_row, centre_column = (
        radius + (length - 1 - 2 * radius) * uniform(1, 1, 1) for length in (height, width)
    )
    rows = torch.arange(height, device=images.device)[:, None] - centre_row
    columns = torch.arange(width, device=images.device)[None, :] - centre_column
    in_disc = rows**2 + columns**2 <= radius**2
    is_hidden = in_disc & (way >= 3 / 8) & (way < 6 / 8)

    disc = torch.where(uniform(1, 1, 1) < 1 / 2, low, high)
    return torch.where(is_hidden, disc, torch.where(is_noise, noise, images))
