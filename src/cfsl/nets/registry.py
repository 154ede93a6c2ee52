"""The table of backbones by name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cfsl.errors import lookup
from cfsl.nets.base import NetSpec
from cfsl.nets.convnet import ConvNet, conv4, vgg
from cfsl.nets.dense import DenseNet, HighEndNet, SqueezeConv
from cfsl.nets.resnet12 import ResNet12
from cfsl.nets.small_resnet import SmallResNet

Net = Annotated[
    ConvNet | DenseNet | HighEndNet | ResNet12 | SmallResNet | SqueezeConv,
    Field(discriminator="kind"),
]
"""For fields of other specs: any backbone, told apart by its `kind`."""

NETS: dict[str, NetSpec] = {
    "conv4_48": conv4(48, "conv-norm-act"),
    "conv4_64": conv4(64, "conv-act-norm"),
    "conv4_48_act_norm": conv4(48, "conv-act-norm"),
    "conv4_64_norm_act": conv4(64, "conv-norm-act"),
    "vgg_64x4": vgg(64, 4),
    "vgg_128x2": vgg(128, 2),
    "vgg_128x3": vgg(128, 3),
    "vgg_128x4": vgg(128, 4),
    "vgg_256x3": vgg(256, 3),
    "vgg_512x3": vgg(512, 3),
    "resnet12": ResNet12(),
    "resnet12_512": ResNet12(widths=(64, 128, 256, 512)),
    "resnet_small": SmallResNet(),
    "resnet_small_rgb": SmallResNet(
        widths=(32, 64, 128, 256), stem_kernel=5, stem_stride=2, embedding=None
    ),
    "dense_64": DenseNet(),
    "squeeze_conv_48": SqueezeConv(),
    "high_end": HighEndNet(),
}
"""Conv-4 and VGG are named after the papers' use: 48 filters and VGG as in Pretrain+Tune, 64 as in
ProtoNets.

"dense_64" embeds for MAML++ High-End, and "squeeze_conv_48" classifies its maps; "high_end" is both
in one.

Other sizes come from `conv4`, `vgg` or `replace`: ``vgg(96, 5, "conv-act-norm")``.
"""


def net_named(name: str) -> NetSpec:
    """Return a backbone of the table, or say which names there are."""
    return lookup(NETS, name, "network")
