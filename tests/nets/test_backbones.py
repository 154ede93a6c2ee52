"""Backbones have the published sizes and the arithmetic of torch, and are pure functions."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn
from torch.nn import functional
from torch.nn.init import calculate_gain
from torch.utils._python_dispatch import TorchDispatchMode

from cfsl.errors import SpecError, UnknownNameError
from cfsl.harness.macs import counting_macs
from cfsl.nets import (
    NETS,
    ConvNet,
    DenseNet,
    Net,
    NetSpec,
    ResNet12,
    SmallResNet,
    SqueezeConv,
    conv4,
    in_channels_last,
    net_named,
    parameter_count,
    vgg,
)
from cfsl.nets.convnet import convnet
from cfsl.nets.layers import pool

GREY, RGB = (1, 28, 28), (3, 64, 64)
TINY = {
    "conv-norm-act": convnet((4, 6), "conv-norm-act"),
    "conv-act-norm": convnet((4, 6), "conv-act-norm"),
    "resnet12": ResNet12(widths=(4, 6)),
    "small": SmallResNet(widths=(4, 6, 8), embedding=5),
    "small, averaged": SmallResNet(widths=(4, 6), stem_kernel=5, stem_stride=2, embedding=None),
    "dense": DenseNet(filters=3, stages=2, blocks=2, size=2),
    "squeeze": SqueezeConv(filters=4),
}
tiny_nets = pytest.mark.parametrize("net", TINY.values(), ids=TINY)
all_nets = pytest.mark.parametrize("net", NETS.values(), ids=NETS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trained_weights(
    net: NetSpec, shape: tuple[int, int, int] = (2, 11, 13), dtype: torch.dtype = torch.float32
):
    """Return weights and statistics as after training, with negative scales, and seven images."""
    generator = seeded(1)
    params, stats = net.init(shape, generator)
    for name, tensor in params.items():
        if tensor.ndim == 1:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        params[name] = tensor.to(dtype)

    stats = {
        name: torch.rand(tensor.shape, generator=generator, dtype=dtype) + 0.5
        for name, tensor in stats.items()
    }

    return params, stats, torch.randn(7, *shape, generator=generator, dtype=dtype)


def macs_an_image(net: NetSpec, shape: tuple[int, int, int]) -> int:
    params, stats = net.init(shape, seeded())
    on_meta = [
        {name: tensor.to("meta") for name, tensor in tensors.items()} for tensors in (params, stats)
    ]
    with counting_macs() as macs:
        net.features(*on_meta, torch.empty(2, *shape, device="meta"), norm="running")
    return sum(macs.by_operator.get(name, 0) for name in ("convolution", "mm", "addmm")) // 2


def weights_of(net: NetSpec, shape: tuple[int, int, int]) -> int:
    """Count convolutions and projections with their biases, as the papers' tables do."""
    return parameter_count(
        {n: t for n, t in net.init(shape, seeded())[0].items() if "norm" not in n}
    )


# --- sizes


@pytest.mark.parametrize(
    ("name", "shape", "weights", "with_norm", "features", "macs"),
    [
        ("conv4_48", GREY, 62_832, 63_216, 48, 5_605_632),
        ("conv4_48", RGB, 63_696, 64_080, 768, 33_177_600),
        ("conv4_64", GREY, 111_168, 111_680, 64, 9_815_040),
        ("conv4_64", RGB, 112_320, 112_832, 1024, 56_623_104),
        ("resnet_small", GREY, 564_768, 566_176, 128, 15_565_824),
        ("resnet_small_rgb", RGB, 1_163_616, 1_165_472, 256, 44_924_928),
        ("resnet12", RGB, 12_414_848, 12_424_320, 640, 2_092_433_408),
        ("resnet12_512", RGB, 7_989_120, 7_996_800, 512, 1_467_482_112),
        ("dense_64", GREY, 451_776, 453_952, 320 * 5 * 5, 100_324_352),
        ("dense_64", RGB, 452_928, 455_104, 320 * 5 * 5, 528_343_040),
        ("squeeze_conv_48", (320, 5, 5), 243_360, 243_456, 48, 3_560_704),
    ],
)
def test_a_named_network_has_the_published_size(name, shape, weights, with_norm, features, macs):
    net = net_named(name)
    assert weights_of(net, shape) == weights
    assert parameter_count(net.init(shape, seeded())[0]) == with_norm
    assert net.feature_count(shape) == features
    assert macs_an_image(net, shape) == macs


@pytest.mark.parametrize(
    ("name", "weights", "features", "macs", "rgb_features", "rgb_macs"),
    [
        ("vgg_128x2", 296_448, 12_544, "5.87e+07", 65_536, "3.16e+08"),
        ("vgg_128x3", 1_181_568, 3_456, "1.02e+08", 24_576, "5.43e+08"),
        ("vgg_256x3", 4_722_432, 6_912, "4.06e+08", 49_152, "2.14e+09"),
        ("vgg_512x3", 18_882_048, 13_824, "1.62e+09", 98_304, "8.51e+09"),
        ("vgg_64x4", 738_496, 256, "2.97e+07", 4_096, "1.68e+08"),
        ("vgg_128x4", 2_951_552, 512, "1.18e+08", 8_192, "6.56e+08"),
    ],
)
def test_a_vgg_has_the_size_in_the_table_of_paper_2(
    name, weights, features, macs, rgb_features, rgb_macs
):
    net = net_named(name)
    assert weights_of(net, GREY) == weights
    assert (net.feature_count(GREY), net.feature_count(RGB)) == (features, rgb_features)
    assert (f"{macs_an_image(net, GREY):.2e}", f"{macs_an_image(net, RGB):.2e}") == (macs, rgb_macs)


def test_block_i_of_a_vgg_is_i_times_as_wide_and_conv4_is_even():
    assert vgg(96, 5).widths == (96, 192, 288, 384, 480)
    assert conv4(64, "conv-act-norm").widths == (64, 64, 64, 64)


@all_nets
def test_the_features_are_as_many_as_announced_for_images_of_any_size(net):
    for shape in [(1, 28, 28), (3, 33, 20)]:
        params, stats = net.init(shape, seeded())
        features = net.features(params, stats, torch.rand(2, *shape), norm="running")
        assert features.shape == (2, net.feature_count(shape))


# --- arithmetic


class Block(nn.Module):
    """A block of a ConvNet as the papers write it."""

    def __init__(self, inputs: int, outputs: int, net: ConvNet) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=net.bias)
        self.norm = nn.BatchNorm2d(outputs)
        act, pooling = nn.LeakyReLU(), nn.MaxPool2d(2)
        orders = {
            "conv-norm-act": (self.conv, self.norm, act, pooling),
            "conv-act-norm": (self.conv, act, self.norm, pooling),
        }
        self.steps = orders[net.order]

    def forward(self, maps):
        for step in self.steps:
            maps = step(maps)
        return maps


class Residual12(nn.Module):
    """A block of ResNet-12 as few-shot code bases write it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv3 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut = named(
            conv=nn.Conv2d(inputs, outputs, 1, bias=False), norm=nn.BatchNorm2d(outputs)
        )
        self.act = nn.LeakyReLU(0.1)

    def forward(self, maps):
        out = self.act(self.norm1(self.conv1(maps)))
        out = self.act(self.norm2(self.conv2(out)))
        out = self.norm3(self.conv3(out)) + self.shortcut(maps)
        return functional.max_pool2d(self.act(out), 2)


class Stage(nn.Module):
    """A stage of the small residual net, with the pooling last."""

    def __init__(self, inputs: int, outputs: int, *, pooled: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.pooled = pooled

    def forward(self, maps):
        maps = functional.relu(self.norm1(self.conv1(maps)))
        maps = functional.relu(maps + self.norm2(self.conv2(maps)))
        return functional.max_pool2d(maps, 2) if self.pooled else maps


class Excited(nn.Module):
    """Squeeze-and-excite without a bottleneck."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels)

    def forward(self, maps):
        return (
            maps
            * self.squeeze(functional.adaptive_avg_pool2d(maps, 1).flatten(1)).sigmoid()[
                ..., None, None
            ]
        )


class DenseBlock(Excited):
    """A block of the squeeze-excite DenseNet: scaled input, and new channels beside it."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__(channels)
        self.narrow, self.wide = activated(channels, filters, 1), activated(filters, filters, 3)

    def forward(self, maps):
        scaled = super().forward(maps)
        return torch.cat([scaled, self.wide(self.narrow(scaled))], dim=1)


def activated(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    return named(conv=conv, norm=nn.BatchNorm2d(outputs), act=nn.LeakyReLU())


def dense_module(net: DenseNet, inputs: int) -> nn.Module:
    stages, channels = {}, net.filters
    for stage in range(1, net.stages + 1):
        parts = {}
        for block in range(1, net.blocks + 1):
            parts[f"block{block}"] = DenseBlock(channels, net.filters)
            channels += net.filters
        stages[f"stage{stage}"] = named(
            **parts, pool=nn.AvgPool2d(2), transition=activated(channels, channels, 1)
        )

    last = nn.Sequential(nn.AdaptiveAvgPool2d(net.size), nn.Flatten())
    return named(stem=activated(inputs, net.filters, 3), **stages, flat=last)


class Squeezed(nn.Module):
    """The small net of MAML++ High-End."""

    def __init__(self, inputs: int, filters: int) -> None:
        super().__init__()
        self.squeeze1, self.squeeze2 = nn.Linear(inputs, inputs), nn.Linear(filters, filters)
        self.conv, self.norm = nn.Conv2d(inputs, filters, 3, padding=1), nn.BatchNorm2d(filters)

    def forward(self, maps):
        maps = maps * self.squeeze1(maps.mean((2, 3))).sigmoid()[..., None, None]
        maps = functional.max_pool2d(functional.leaky_relu(self.norm(self.conv(maps))), 2)
        return (maps * self.squeeze2(maps.mean((2, 3))).sigmoid()[..., None, None]).mean((2, 3))


def named(**modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules))


def averaged() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def torch_module(net: NetSpec, shape: tuple[int, int, int]) -> nn.Module:
    """Build the same network from torch's layers, with the same names."""
    if isinstance(net, DenseNet):
        return dense_module(net, shape[0])
    if isinstance(net, SqueezeConv):
        return Squeezed(shape[0], net.filters)

    widths = (shape[0], *net.widths)
    if isinstance(net, ConvNet):
        blocks = [Block(*widths[i : i + 2], net) for i in range(len(net.widths))]
        return named(**{f"block{i}": block for i, block in enumerate(blocks, 1)}, flat=nn.Flatten())
    if isinstance(net, ResNet12):
        residuals = [Residual12(*widths[i : i + 2]) for i in range(len(net.widths))]
        return named(
            **{f"block{i}": block for i, block in enumerate(residuals, 1)}, flat=averaged()
        )

    assert isinstance(net, SmallResNet)
    kernel, stride, last = net.stem_kernel, net.stem_stride, len(net.widths) - 1
    stem = named(
        conv=nn.Conv2d(*widths[:2], kernel, stride, kernel // 2, bias=False),
        pool=nn.MaxPool2d(2),
        norm=nn.BatchNorm2d(widths[1]),
        act=nn.ReLU(),
    )

    stages = {f"stage{i}": Stage(*widths[i : i + 2], pooled=i < last) for i in range(1, last + 1)}

    if net.embedding is None:
        return named(stem=stem, **stages, flat=averaged())
    linear = nn.LazyLinear(net.embedding, bias=False)
    return named(
        stem=stem,
        **stages,
        flat=nn.Flatten(),
        embedding=named(linear=linear, norm=nn.BatchNorm1d(net.embedding)),
    )


def loaded(net: NetSpec, params, stats, images) -> nn.Module:
    module = torch_module(net, tuple(images.shape[1:]))
    module.eval()(images)  # a lazy layer finds its size
    running = {
        name.replace(".mean", ".running_mean").replace(".var", ".running_var"): t
        for name, t in stats.items()
    }
    missing, unexpected = module.load_state_dict(params | running, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    return module


@tiny_nets
def test_features_and_running_statistics_are_those_of_torchs_own_layers(net):
    params, stats, images = trained_weights(net)
    module = loaded(net, params, stats, images)
    torch.testing.assert_close(
        net.features(params, stats, images, norm="running"), module(images), atol=1e-5, rtol=1e-5
    )

    module.train()
    expected = module(images)
    features, new_stats = net.training_features(params, stats, images)
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        net.features(params, stats, images, norm="batch"), expected, atol=1e-5, rtol=1e-5
    )

    buffers = dict(module.named_buffers())
    assert new_stats.keys() == stats.keys()
    for name, tensor in new_stats.items():
        layer, part = name.rsplit(".", 1)
        torch.testing.assert_close(tensor, buffers[f"{layer}.running_{part}"], atol=1e-5, rtol=1e-5)


@tiny_nets
@pytest.mark.parametrize("norm", ["running", "batch"])
def test_gradients_equal_finite_differences(net, norm):
    params, stats, images = trained_weights(net, (1, 9, 8), torch.float64)
    names = list(params)
    leaves = [tensor.requires_grad_() for tensor in params.values()]
    images = images[:3].requires_grad_()

    def embed(*tensors):
        return net.features(dict(zip(names, tensors, strict=False)), stats, tensors[-1], norm=norm)

    assert torch.autograd.gradcheck(embed, (*leaves, images), fast_mode=True)


@tiny_nets
def test_second_derivatives_equal_finite_differences(net):
    params, stats, images = trained_weights(net, (1, 8, 8), torch.float64)
    names = list(params)
    leaves = [tensor.requires_grad_() for tensor in params.values()]

    def embed(*tensors):
        return net.training_features(dict(zip(names, tensors, strict=True)), stats, images[:3])[0]

    assert torch.autograd.gradgradcheck(embed, leaves, fast_mode=True)


def test_pooling_first_gives_the_same_values_to_the_last_bit():
    maps = torch.randn(3, 4, 9, 8, generator=seeded())
    for slope in (0.0, 0.01, 0.1):
        late = pool(functional.leaky_relu(maps, slope))
        assert torch.equal(functional.leaky_relu(pool(maps), slope), late)


@tiny_nets
def test_channels_last_changes_the_layout_and_not_the_features(net):
    params, stats, images = trained_weights(net)
    laid_out = in_channels_last(params)
    assert all(
        tensor.is_contiguous(memory_format=torch.channels_last)
        for tensor in laid_out.values()
        if tensor.ndim == 4
    )

    expected = net.features(params, stats, images, norm="batch")
    for layout in (torch.contiguous_format, torch.channels_last):
        features = net.features(
            laid_out, stats, images.contiguous(memory_format=layout), norm="batch"
        )
        torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-5)


class MapLayouts(TorchDispatchMode):
    """Notes for every map that is pooled whether it is in channels_last layout."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (
            torch.ops.aten.max_pool2d_with_indices.default,
            torch.ops.aten.avg_pool2d.default,
        ):
            self.seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("channels", [1, 3])
@tiny_nets
def test_the_layout_of_the_weights_is_that_of_every_map_also_after_one_channel(net, channels):
    if isinstance(net, SqueezeConv) and channels == 1:
        pytest.skip("its one convolution has one channel, which tells no layout from another")
    params, stats, images = trained_weights(net, (channels, 16, 16))
    for weights, expected in ((params, False), (in_channels_last(params), True)):
        with MapLayouts() as layouts:
            net.features(weights, stats, images, norm="running")
            net.training_features(weights, stats, images)
        assert layouts.seen
        assert set(layouts.seen) == {expected}


# --- torch.func


@tiny_nets
def test_torch_func_gives_the_gradients_of_autograd_and_the_statistics_beside_them(net):
    params, stats, images = trained_weights(net, dtype=torch.float64)

    def loss(weights):
        features, new_stats = net.training_features(weights, stats, images)
        return (features**2).mean(), new_stats

    gradients, new_stats = torch.func.grad(loss, has_aux=True)(params)

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    value, expected_stats = loss(leaves)
    expected = torch.autograd.grad(value, list(leaves.values()))
    torch.testing.assert_close(list(gradients.values()), list(expected))
    torch.testing.assert_close(new_stats, expected_stats)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch, of itself
@tiny_nets
def test_a_jvp_of_the_gradient_is_the_hessian_vector_product_of_double_backward(net):
    params, stats, images = trained_weights(net, dtype=torch.float64)
    direction = {name: torch.cos(tensor) for name, tensor in params.items()}

    def loss(weights):
        return (net.features(weights, stats, images, norm="batch") ** 3).mean()

    _, forward_over_reverse = torch.func.jvp(torch.func.grad(loss), (params,), (direction,))

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    gradients = torch.autograd.grad(loss(leaves), list(leaves.values()), create_graph=True)
    along = sum((g * v).sum() for g, v in zip(gradients, direction.values(), strict=True))
    expected = torch.autograd.grad(along, list(leaves.values()))
    torch.testing.assert_close(list(forward_over_reverse.values()), list(expected))


@tiny_nets
@pytest.mark.parametrize("norm", ["running", "batch"])
def test_vmap_over_weights_equals_a_loop(net, norm):
    params, stats, images = trained_weights(net)
    others = {name: tensor * 1.5 - 0.1 for name, tensor in params.items()}
    stacked = {name: torch.stack([params[name], others[name]]) for name in params}

    together = torch.func.vmap(lambda weights: net.features(weights, stats, images, norm=norm))(
        stacked
    )

    apart = [net.features(weights, stats, images, norm=norm) for weights in (params, others)]
    torch.testing.assert_close(together, torch.stack(apart), atol=1e-5, rtol=1e-4)


# --- purity


@all_nets
def test_first_weights_depend_on_the_generator_alone(net):
    before = torch.get_rng_state()
    params, stats = net.init(GREY, seeded(3))
    torch.rand(5)
    again, _ = net.init(GREY, seeded(3))
    other, _ = net.init(GREY, seeded(4))

    assert all(torch.equal(params[name], again[name]) for name in params)
    drawn = [name for name, tensor in params.items() if tensor.ndim > 1]
    assert not any(torch.equal(params[name], other[name]) for name in drawn)
    assert all((stats[name] == (0 if name.endswith("mean") else 1)).all() for name in stats)

    torch.set_rng_state(before)
    net.init(GREY, seeded(3))
    assert torch.equal(torch.get_rng_state(), before)


@tiny_nets
def test_computing_features_leaves_every_argument_as_it_was(net):
    params, stats, images = trained_weights(net)
    before = [tensor.clone() for tensor in (*params.values(), *stats.values(), images)]
    first = net.features(params, stats, images, norm="running")
    net.features(params, stats, images, norm="batch")
    net.training_features(params, stats, images)
    after = (*params.values(), *stats.values(), images)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert torch.equal(net.features(params, stats, images, norm="running"), first)


@tiny_nets
def test_no_gradient_reaches_the_running_statistics(net):
    params, stats, images = trained_weights(net)
    leaves = {name: tensor.requires_grad_() for name, tensor in params.items()}
    features, new_stats = net.training_features(leaves, stats, images)
    assert features.requires_grad
    assert not any(tensor.requires_grad for tensor in new_stats.values())


@tiny_nets
def test_momentum_says_how_far_the_running_statistics_move(net):
    params, stats, images = trained_weights(net)
    _, still = net.training_features(params, stats, images, momentum=0.0)
    _, batch = net.training_features(params, stats, images, momentum=1.0)
    _, half = net.training_features(params, stats, images, momentum=0.5)
    torch.testing.assert_close(still, stats)
    torch.testing.assert_close(half, {name: (stats[name] + batch[name]) / 2 for name in stats})


def test_images_that_are_all_alike_have_variance_zero_and_never_less():
    net = TINY["conv-norm-act"]
    params, stats, images = trained_weights(net)
    params["block1.conv.weight"].zero_()
    _, batch = net.training_features(params, stats, images, momentum=1.0)
    assert (batch["block1.norm.var"] >= 0).all()
    assert (batch["block1.norm.var"] < 1e-9).all()


@tiny_nets
def test_with_running_statistics_an_image_is_embedded_by_itself(net):
    params, stats, images = trained_weights(net)
    together = net.features(params, stats, images, norm="running")
    alone = torch.cat(
        [net.features(params, stats, image[None], norm="running") for image in images]
    )
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=1e-5)
    assert net.features(params, stats, images[:0], norm="running").shape == (0, together.shape[1])


# --- small batches and small images


@all_nets
def test_one_image_that_ends_in_a_1x1_map_has_features_by_running_statistics(net):
    shape = (1, 16, 16)
    params, stats = net.init(shape, seeded())
    features = net.features(params, stats, torch.rand(1, *shape), norm="running")
    assert features.isfinite().all()


@pytest.mark.parametrize("name", ["conv4_48", "conv4_64", "resnet12", "vgg_128x2"])
def test_one_image_has_batch_statistics_as_long_as_its_maps_have_pixels(name):
    net, image = net_named(name), torch.rand(1, 1, 16, 16, generator=seeded())
    params, stats = net.init((1, 16, 16), seeded())
    features, new_stats = net.training_features(params, stats, image)
    assert all(tensor.isfinite().all() for tensor in (features, *new_stats.values()))


@pytest.mark.parametrize(
    ("name", "layer"), [("resnet_small", "embedding.norm"), ("resnet_small_rgb", "stage3.norm1")]
)
def test_one_value_a_channel_has_no_batch_statistics_and_is_refused_in_words(name, layer):
    net, images = net_named(name), torch.rand(2, 1, 16, 16, generator=seeded())
    params, stats = net.init((1, 16, 16), seeded())
    message = f"'{layer}' got 1 value.*norm='running', or give at least two"
    with pytest.raises(SpecError, match=message):
        net.training_features(params, stats, images[:1])
    with pytest.raises(SpecError, match=message):
        net.features(params, stats, images[:1], norm="batch")
    assert net.features(params, stats, images, norm="batch").isfinite().all()


def test_an_empty_batch_has_no_batch_statistics():
    net = TINY["conv-norm-act"]
    params, stats, images = trained_weights(net)
    with pytest.raises(SpecError, match="got 0 value"):
        net.features(params, stats, images[:0], norm="batch")


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("conv4_64", 16),
        ("vgg_128x2", 4),
        ("resnet12", 16),
        ("resnet_small", 8),
        ("resnet_small_rgb", 15),
    ],
)
def test_images_that_would_vanish_are_refused_with_the_least_size(name, least):
    net = net_named(name)
    params, stats = net.init((1, least, least), seeded())
    assert (
        net.features(params, stats, torch.rand(2, 1, least, least), norm="running").isfinite().all()
    )

    with pytest.raises(SpecError, match=f"at least {least}x{least}"):
        net.init((1, 40, least - 1), seeded())
    with pytest.raises(SpecError, match=f"at least {least}x{least}"):
        net.features(params, stats, torch.rand(2, 1, least - 1, 40), norm="running")


def test_a_projection_refuses_images_of_another_size_than_it_was_made_for():
    net = net_named("resnet_small")
    params, stats = net.init(GREY, seeded())
    with pytest.raises(SpecError, match="project 1152 numbers, but images of this size give 2048"):
        net.features(params, stats, torch.rand(1, 1, 32, 32), norm="running")


# --- first weights


def test_proto_nets_start_as_torchs_convolutions_do():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = nn.Conv2d(3, 64, 3, bias=False).weight
    params, _ = net_named("conv4_64").init(RGB, seeded(5))
    torch.testing.assert_close(params["block1.conv.weight"], expected)


def test_with_a_bias_torchs_rule_draws_it_within_the_same_bound():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = nn.Conv2d(3, 64, 3, bias=True)
    net = net_named("conv4_64").replace(bias=True)
    params, _ = net.init(RGB, seeded(5))
    torch.testing.assert_close(params["block1.conv.weight"], expected.weight)
    torch.testing.assert_close(params["block1.conv.bias"], expected.bias)


def test_conv4_48_starts_by_xaviers_rule_with_bias_zero():
    params, _ = net_named("conv4_48").init(RGB, seeded())
    bound = (6 / (48 * 9 + 48 * 9)) ** 0.5
    assert 0.99 * bound < params["block2.conv.weight"].abs().max() <= bound
    assert (params["block2.conv.bias"] == 0).all()


def test_residual_nets_start_by_kaimings_rule_on_the_fan_out():
    params, _ = net_named("resnet12").init(RGB, seeded())
    expected = calculate_gain("relu") / (160 * 9) ** 0.5
    assert params["block2.conv1.weight"].std().item() == pytest.approx(expected, rel=0.02)


# --- specs


@all_nets
def test_a_network_comes_back_from_its_json(net):
    assert type(net).from_json(net.canonical_json()) == net
    assert TypeAdapter(Net).validate_json(net.canonical_json()) == net


def test_a_network_without_blocks_and_a_field_nobody_knows_are_refused():
    with pytest.raises(SpecError, match="widths"):
        conv4(64, "conv-act-norm").replace(widths=())
    with pytest.raises(SpecError, match="did you mean 'widths'"):
        ResNet12(width=(64,))


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'resnet12'"):
        net_named("resnet-12")


@pytest.mark.parametrize("order", ["conv-norm-act", "conv-act-norm"])
@pytest.mark.parametrize("sign", [1, -1], ids=["rising", "falling"])
def test_pooling_before_the_norm_gives_the_same_bits(order, sign):
    """Only without gradients, and if no scale is negative, does the norm see pooled maps."""
    net, generator = conv4(6, order), torch.Generator().manual_seed(0)
    params, stats = net.init((1, 28, 28), generator)
    for name in params:
        if name.endswith("norm.weight"):
            params[name] = torch.rand(6, generator=generator) + 0.1
            params[name][2] *= sign

    stats = {name: torch.rand(6, generator=generator) + 0.1 for name in stats}
    images = torch.randn(5, 1, 28, 28, generator=generator)

    with torch.no_grad():
        fast = net.features(params, stats, images, norm="running")
    assert torch.equal(fast, net.features(params, stats, images, norm="running"))
