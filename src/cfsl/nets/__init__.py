"""Backbones, as pure functions of (params, stats, images)."""

from cfsl.nets.base import ImageShape, NetSpec
from cfsl.nets.convnet import ConvNet, conv4, vgg
from cfsl.nets.dense import DenseNet, HighEndNet, SqueezeConv
from cfsl.nets.layers import Params, Stats, in_channels_last, parameter_count
from cfsl.nets.registry import NETS, Net, net_named
from cfsl.nets.resnet12 import ResNet12
from cfsl.nets.small_resnet import SmallResNet

__all__ = [
    "NETS",
    "ConvNet",
    "DenseNet",
    "HighEndNet",
    "ImageShape",
    "Net",
    "NetSpec",
    "Params",
    "ResNet12",
    "SmallResNet",
    "SqueezeConv",
    "Stats",
    "conv4",
    "in_channels_last",
    "net_named",
    "parameter_count",
    "vgg",
]
