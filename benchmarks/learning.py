"""Measure how fast learning is, against what one would write first.

    python benchmarks/learning.py        (glyphs; the same shapes as Omniglot; about five minutes)

Every ratio is taken in one run: the two contenders take turns, and medians are compared.

- Evaluation of ProtoNets under the data-flow law with its table of embedded images, against a plain
  loop that embeds the images of each task: torch modules in the default layout, no law. The answers
  must agree.
- A training step of ProtoNets, which is in channels_last, against the same step with torch's
  modules in the default layout; and the share of the data path in it.
- A step of tuning on five photographs and the answers for 75, in channels_last, against torch's
  modules in the default layout.
- The eight corruptions of the instance test, learned once and asked about eight times, against
  learned eight times.
- Evaluation of a tuned learner by two worker processes of one thread, against one.
- Memory of tuning with 500 inner steps, against 5.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import cfsl
from cfsl.harness.cost import measure_peak_memory
from cfsl.harness.evaluate import Conditions, evaluate_variants
from cfsl.learners.base import Meta, Moment, Support, TaskInfo
from cfsl.learners.protonet import ProtoNet
from cfsl.learners.tune import init_tune
from cfsl.nets import in_channels_last
from cfsl.spec import Noise, Occlusion

ROUNDS = 5
SHAPE = (1, 28, 28)


def interleaved(
    contenders: dict[str, Callable[[], object]], rounds: int = ROUNDS
) -> dict[str, float]:
    """Return the median seconds of each contender, run in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def plain_embedding(meta: Meta) -> nn.Module:
    """Build ProtoNets' network from torch's own modules, in the default layout."""
    blocks: list[nn.Module] = []
    for number, inputs in enumerate((1, 64, 64, 64), start=1):
        convolution = nn.Conv2d(inputs, 64, 3, padding=1, bias=False)
        norm = nn.BatchNorm2d(64)

        state = {"weight": meta["params"][f"block{number}.conv.weight"].contiguous()}
        convolution.load_state_dict(state)
        names = {"weight": "params", "bias": "params"}
        learned = {name: meta[part][f"block{number}.norm.{name}"] for name, part in names.items()}
        running = {
            f"running_{name}": meta["stats"][f"block{number}.norm.{name}"]
            for name in ("mean", "var")
        }
        norm.load_state_dict(learned | running, strict=False)

        blocks += [convolution, nn.LeakyReLU(0.01), norm, nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.Flatten()).eval()


def plain_evaluation(net: nn.Module, tasks: cfsl.Tasks) -> Tensor:
    """Embed every image of every task, average, compare: no table, no law."""
    logits = []
    with torch.no_grad():
        for task in tasks:
            images = torch.cat(
                [*(support.images for support in task.support_sets), task.target.images]
            )
            labels = torch.cat([support.labels for support in task.support_sets])
            features = net(images)
            prototypes = torch.stack(
                [features[: len(labels)][labels == k].mean(0) for k in range(task.spec.labels)]
            )
            logits.append(-(torch.cdist(features[len(labels) :], prototypes) ** 2))
    return torch.stack(logits)


def compare_evaluation(data: cfsl.Dataset, nss: int, plain_tasks: int) -> None:
    """Time 600 tasks with the table, and fewer of them without."""
    learner = ProtoNet()
    meta = learner.init(SHAPE, torch.Generator().manual_seed(0))
    fast_meta = {"params": in_channels_last(meta["params"]), "stats": meta["stats"]}
    net, tasks = plain_embedding(meta), cfsl.Tasks(data, cfsl.TaskSpec.type_b(nss=nss))
    some = tasks[:plain_tasks]

    by_plain = plain_evaluation(net, some[:20]).numpy()
    by_table = cfsl.evaluate(learner, some[:20], fast_meta).logits
    difference = float(np.abs(by_plain - by_table).max())

    seconds = interleaved(
        {
            "plain": lambda: plain_evaluation(net, some),
            "law": lambda: cfsl.evaluate(learner, tasks, fast_meta),
            "no law": lambda: cfsl.evaluate(learner, tasks, fast_meta, law=False),
        },
        rounds=3,
    )

    plain = seconds["plain"] / plain_tasks * len(tasks)
    print(f"evaluation of {len(tasks)} tasks, B, NSS={nss}: a forward per task {plain:.1f} s")
    for name in ("law", "no law"):
        print(f"  table, {name:<7} {seconds[name]:6.2f} s   {plain / seconds[name]:.0f}x")
    print(f"  largest difference of a logit: {difference:.1e}")


def plain_training_step(net: nn.Module, batch: cfsl.TaskBatch) -> Callable[[], None]:
    """Return one update of Adam on one task, with torch's modules in the default layout."""
    optimizer = torch.optim.Adam(net.train().parameters(), 1e-3)
    labels, answers = batch.support_labels.flatten(), batch.target_labels[0]
    images = torch.cat([batch.support_images.flatten(0, 2), batch.target_images[0]])

    def step() -> None:
        features = net(images)
        prototypes = torch.stack(
            [features[: len(labels)][labels == k].mean(0) for k in range(int(labels.max()) + 1)]
        )
        loss = nn.functional.cross_entropy(
            -(torch.cdist(features[len(labels) :], prototypes) ** 2), answers
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def training_step(learner: ProtoNet, meta: Meta, batch: cfsl.TaskBatch) -> Callable[[], None]:
    """Return one update of Adam on one task."""
    params = {name: tensor.clone().requires_grad_() for name, tensor in meta["params"].items()}
    optimizer = torch.optim.Adam(list(params.values()), 1e-3)

    def step() -> None:
        loss, _ = learner.episode_loss(
            params, meta["stats"], batch, turns=False, moment=Moment(0, 1)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def compare_training(data: cfsl.Dataset, nss: int) -> None:
    """Time a training step in both layouts, and the drawing of its task."""
    learner = ProtoNet()
    meta = learner.init(SHAPE, torch.Generator().manual_seed(0))
    fast_meta = {"params": in_channels_last(meta["params"]), "stats": meta["stats"]}
    tasks = cfsl.Tasks(data, cfsl.TaskSpec.type_b(nss=nss), split="train", numbers=range(2**30))
    batch, number = next(tasks[:1].batches(1)), iter(range(2**30))

    def draw() -> None:
        at = next(number)
        next(tasks[at : at + 1].batches(1))

    contenders = {
        "default": plain_training_step(plain_embedding(meta), batch),
        "channels_last": training_step(learner, fast_meta, batch),
        "draw": draw,
    }
    seconds = interleaved(contenders, rounds=40)

    default, fast = seconds["default"], seconds["channels_last"]
    share = 100 * seconds["draw"] / (fast + seconds["draw"])
    print(f"training step, B, NSS={nss}:")
    print(f"  default layout {1e3 * default:.0f} ms, channels_last {1e3 * fast:.0f} ms")
    print(f"  channels_last {default / fast:.2f}x; data path {share:.1f} %")


def plain_tuning(shape: tuple[int, int, int], labels: int) -> nn.Module:
    """Build the network that is tuned, with its head, from torch's modules."""
    channels, height, width = shape
    blocks: list[nn.Module] = []
    for inputs in (channels, 48, 48, 48):
        blocks += [
            nn.Conv2d(inputs, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.LeakyReLU(0.01),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(
        *blocks, nn.Flatten(), nn.Linear(48 * (height // 16) * (width // 16), labels)
    )


def compare_tuning() -> None:
    """Time tuning on photographs, and answering, in both layouts."""
    shape, labels = (3, 64, 64), 15
    generator = torch.Generator().manual_seed(0)
    support = Support(torch.randn(5, *shape, generator=generator), torch.arange(5))
    targets = torch.randn(75, *shape, generator=generator)
    net, learner = plain_tuning(shape, labels), init_tune()
    optimizer = torch.optim.SGD(net.parameters(), learner.lr)
    info = TaskInfo(shape, labels, nss=3, n_way=5, k_shot=1, cci=1, overwrite=False, seed=0)
    state = learner.begin(learner.init(shape, generator), info)

    def plain_step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(support.images), support.labels).backward()
        optimizer.step()

    def plain_answers() -> None:
        with torch.no_grad():
            net.eval()(targets)
        net.train()

    contenders = {
        "plain step": plain_step,
        "step": lambda: learner.step(state, support),
        "plain answers": plain_answers,
        "answers": lambda: learner.predict(state, targets),
    }
    seconds = interleaved(contenders, rounds=20)
    print("tuning on photographs of 64 x 64, default layout against channels_last:")
    for name in ("step", "answers"):
        plain, fast = seconds[f"plain {name}"], seconds[name]
        print(f"  {name:<7} {1e3 * plain:5.1f} ms, {1e3 * fast:5.1f} ms: {plain / fast:.2f}x")


def compare_corruptions(data: cfsl.Dataset, count: int) -> None:
    """Time the corrupted instance tests of a tuned learner, learned together and one by one."""
    learner = init_tune()
    meta = learner.init(SHAPE, torch.Generator().manual_seed(0))
    noisy = [Noise(fraction=fraction) for fraction in (0.05, 0.1, 0.2, 0.4)]
    hidden = [Occlusion(fraction=fraction) for fraction in (0.05, 0.1, 0.2, 0.3)]
    specs = [
        cfsl.TaskSpec.instance(4, 5, corruption=corruption) for corruption in (*noisy, *hidden)
    ]
    variants = [cfsl.Tasks(data, spec, numbers=range(count)) for spec in specs]

    seconds = interleaved(
        {
            "again": lambda: [cfsl.evaluate(learner, tasks, meta) for tasks in variants],
            "once": lambda: evaluate_variants(Conditions(), learner, variants, meta),
        }
    )
    print(f"eight corruptions of {count} instance tests, init_tune:")
    print(f"  learned each time {seconds['again']:.1f} s")
    print(f"  learned once {seconds['once']:.1f} s: {seconds['again'] / seconds['once']:.1f}x")


def compare_workers(data: cfsl.Dataset, count: int) -> None:
    """Time a tuned learner in one and in two worker processes that are running already."""
    learner = init_tune()
    meta = learner.init(SHAPE, torch.Generator().manual_seed(0))
    tasks = cfsl.Tasks(data, cfsl.TaskSpec.type_d(nss=4, cci=2), numbers=range(count))

    with cfsl.Workers(1) as one, cfsl.Workers(2) as two:
        for workers in (one, two):
            cfsl.evaluate(learner, tasks[:16], meta, workers=workers)
        seconds = interleaved(
            {
                "here": lambda: cfsl.evaluate(learner, tasks, meta),
                "one": lambda: cfsl.evaluate(learner, tasks, meta, workers=one),
                "two": lambda: cfsl.evaluate(learner, tasks, meta, workers=two),
            }
        )

    ratio = seconds["one"] / seconds["two"]
    print(f"evaluation of {count} tasks, init_tune, D, NSS=4:")
    print(f"  in this process {seconds['here']:.1f} s")
    print(f"  two workers {seconds['two']:.1f} s: {ratio:.2f}x one worker")


def compare_memory(data: cfsl.Dataset) -> None:
    """Measure the peak memory of a learn-predict cycle with few and with many inner steps."""
    tasks = cfsl.Tasks(data, cfsl.TaskSpec.type_d(nss=4, cci=2), numbers=range(1))
    for steps in (5, 500):
        learner = init_tune(steps=steps)
        meta = learner.init(SHAPE, torch.Generator().manual_seed(0))
        megabytes = measure_peak_memory(learner, tasks, meta) / 1e6
        print(f"peak memory of tuning with {steps:>3} steps: {megabytes:.2f} MB")


if __name__ == "__main__":
    torch.set_num_threads(1)
    data_set = cfsl.load(sys.argv[1] if len(sys.argv) > 1 else "glyphs")
    compare_evaluation(data_set, 3, plain_tasks=100)
    compare_evaluation(data_set, 10, plain_tasks=30)
    compare_training(data_set, 3)
    compare_training(data_set, 10)
    compare_tuning()
    compare_corruptions(data_set, 24)
    compare_workers(data_set, 64)
    compare_memory(data_set)
