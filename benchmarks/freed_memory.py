"""Measure how much faster training is if the process keeps freed memory.

    python benchmarks/freed_memory.py        (noise of the shapes of Omniglot and SlimageNet64;
                                              two minutes)

A forward and a backward pass of the networks that learners train, with `freed_memory_kept` and
without, on one thread. Both take turns, each time in a new process, since memory that a process has
kept once stays with it. Medians of the processor's time are compared; the part of it that the
system takes is printed, too.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing import get_context
from typing import NamedTuple

import torch

from cfsl.harness.freed_memory import freed_memory_kept
from cfsl.nets import DenseNet, conv4, in_channels_last
from cfsl.nets.base import ImageShape, NetSpec
from cfsl.nets.small_resnet import SmallResNet

CHARACTER, PHOTOGRAPH = (1, 28, 28), (3, 64, 64)
CONTENDERS: dict[str, tuple[NetSpec, ImageShape, int]] = {
    "champion, 190 characters": (SmallResNet(), CHARACTER, 190),
    "protonet, 192 characters": (conv4(64, "conv-act-norm"), CHARACTER, 192),
    "protonet, 192 photographs": (conv4(64, "conv-act-norm"), PHOTOGRAPH, 192),
    "maml_high, 90 photographs": (DenseNet(), PHOTOGRAPH, 90),
}
TURNS, PASSES, SETTLING = 3, 3, 2
WAYS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "given back": contextlib.nullcontext,
    "kept": freed_memory_kept,
}


class Taken(NamedTuple):
    """Seconds of the processor for one pass."""

    all: float
    system: float


def passes(name: str, way: str) -> list[Taken]:
    """Return what some passes take, after the first ones."""
    torch.set_num_threads(1)
    net, shape, images = CONTENDERS[name]
    generator = torch.Generator().manual_seed(0)
    params, stats = net.init(shape, generator)
    params = {name: tensor.requires_grad_() for name, tensor in in_channels_last(params).items()}
    shown = torch.randn(images, *shape, generator=generator).to(memory_format=torch.channels_last)

    taken = []
    with WAYS[way]():
        for _ in range(SETTLING + PASSES):
            before = os.times()
            features, _ = net.training_features(params, stats, shown)
            torch.autograd.grad(features.square().mean(), list(params.values()))
            after = os.times()

            system = after.system - before.system
            taken.append(Taken(after.user - before.user + system, system))
    return taken[SETTLING:]


def main() -> None:
    """Print seconds, the system's share and ratios."""
    new_process = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    for name in CONTENDERS:
        times: dict[str, list[Taken]] = {way: [] for way in WAYS}
        for _ in range(TURNS):
            for way, taken in times.items():
                taken += new_process.submit(passes, name, way).result()

        medians = {way: statistics.median(one.all for one in taken) for way, taken in times.items()}
        shares = {
            way: sum(one.system for one in taken) / sum(one.all for one in taken)
            for way, taken in times.items()
        }
        each = ", ".join(
            f"{way} {medians[way]:.3f} s ({shares[way]:.0%} in the system)" for way in WAYS
        )
        ratio = medians["given back"] / medians["kept"]
        print(f"{name}: {each}: {ratio:.2f} times as fast", flush=True)
    new_process.shutdown()


if __name__ == "__main__":
    main()
