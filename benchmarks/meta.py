"""Measure how fast a second-order training step of MAML++ Low-End is, against a plain one.

    python benchmarks/meta.py            (shapes of Omniglot; a few minutes; needs numba)

The plain loop is written here in torch as one would write it first: conv2d, batch_norm, max_pool2d,
leaky_relu in the default layout, and autograd.grad(create_graph=True) in every step. It takes turns
with the accelerated step in one process on one thread, and medians are compared.

Loss and gradients must agree in float64. In float32, rounding may swap two values of a pooling
window that are nearly equal, in either loop, and later steps differ from there on.

Peak is the best rate of a product of float32 matrices in the same run. The work is counted for
direct convolutions of F multiply-accumulates (2 FLOP each) an image:

- A step is 9 F: forward 1 F, backward 2 F, a Hessian-vector product 6 F.
- A step in the first block, whose images do not change, is 4 of its own F.
- The statistics of a support set, and the targets, are 3 F.

(Where Winograd's products replace direct ones, less than that is executed.)

Memory is the growth of the resident set of a new process in one step, after a step on a smaller
task.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from cfsl.data.tasks import TaskBatch
from cfsl.learners.base import Moment, Support, TaskInfo
from cfsl.learners.maml.accelerated import accelerated, why_not
from cfsl.learners.maml.episodes import Episode
from cfsl.learners.maml.maml_high import MamlHigh
from cfsl.learners.maml.maml_low import MamlLow
from cfsl.learners.maml.step_tables import strip_prefix
from cfsl.nets import in_channels_last
from cfsl.spec import TaskSpec

SHAPE, WAYS, TARGETS, WIDTH, BLOCKS = (1, 28, 28), 5, 5, 48, 4
LEARNER = MamlLow()
Tensors = dict[str, Tensor]
Contenders = dict[str, Callable[[], list[Tensor]]]


def episode_of(nss: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Episode:
    """Return a task of noise, which costs as much as any other."""
    source = torch.Generator().manual_seed(seed)
    supports = [
        Support(
            torch.randn(WAYS, *SHAPE, generator=source).to(dtype),
            torch.arange(WAYS) + WAYS * number,
        )
        for number in range(nss)
    ]
    labels = torch.arange(WAYS * nss).repeat_interleave(TARGETS)
    return Episode(supports, torch.randn(len(labels), *SHAPE, generator=source).to(dtype), labels)


def weights_for(nss: int, dtype: torch.dtype = torch.float32) -> tuple[Tensors, Tensors]:
    """Draw first weights."""
    meta = LEARNER.init_for(
        SHAPE, TaskSpec.type_b(nss=nss, n_way=WAYS), torch.Generator().manual_seed(0)
    )
    params = {name: tensor.to(dtype).requires_grad_() for name, tensor in meta["params"].items()}
    return params, {name: tensor.to(dtype) for name, tensor in meta["stats"].items()}


# --- the plain loop


def plain_logits(
    weights: Tensors, params: Tensors, row: int, x: Tensor, given: list[Tensor] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Classify by the statistics of the batch, which are returned, too, or by given ones."""
    seen = []
    for number in range(1, BLOCKS + 1):
        scales = f"scales.block{number}.norm"
        gamma, beta = params[f"{scales}.weight"][row], params[f"{scales}.bias"][row]

        x = functional.conv2d(
            x, weights[f"block{number}.conv.weight"], weights[f"block{number}.conv.bias"], padding=1
        )
        if given is None:
            seen += torch.var_mean(x, dim=(0, 2, 3))
            x = functional.batch_norm(x, None, None, gamma, beta, training=True)
        else:
            var, mean = (tensor.view(1, -1, 1, 1) for tensor in given[2 * number - 2 : 2 * number])
            x = (x - mean) * (var + 1e-5).rsqrt() * gamma.view(1, -1, 1, 1) + beta.view(1, -1, 1, 1)

        x = functional.leaky_relu(functional.max_pool2d(x, 2), 0.01)
    return functional.linear(x.flatten(1), weights["head.weight"], weights["head.bias"]), seen


def plain_answers(params: Tensors, episode: Episode, *, create_graph: bool) -> Tensor:
    """Adapt to all support sets, and answer by the mean of their statistics."""
    names = [name.removeprefix("rates.") for name in params if name.startswith("rates.")]
    weights, row, statistics_of_sets = {name: params[name] for name in names}, 0, []

    for support in episode.supports:
        for _ in range(LEARNER.steps):
            logits, _ = plain_logits(weights, params, row, support.images)
            loss = functional.cross_entropy(logits, support.labels)
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
            if not create_graph:
                weights = {name: weight.detach() for name, weight in weights.items()}
            weights = {
                name: weights[name] - params[f"rates.{name}"][row] * gradient
                for name, gradient in zip(names, gradients, strict=True)
            }
            if not create_graph:
                weights = {
                    name: weight.detach().requires_grad_() for name, weight in weights.items()
                }
            row += 1

        with torch.set_grad_enabled(create_graph):
            statistics_of_sets.append(plain_logits(weights, params, row, support.images)[1])

    with torch.set_grad_enabled(create_graph):
        given = [
            torch.stack(tensors).mean(dim=0) for tensors in zip(*statistics_of_sets, strict=True)
        ]
        return plain_logits(weights, params, row, episode.targets, given)[0]


# --- contenders


def training_steps(nss: int, dtype: torch.dtype = torch.float32) -> Contenders:
    """Return the loss and all gradients of a task, by the plain loop and accelerated."""
    params, stats = weights_for(nss, dtype)
    episode, fast = episode_of(nss, dtype=dtype), accelerated(LEARNER)

    def gradients(loss: Tensor) -> list[Tensor]:
        return [loss.detach(), *torch.autograd.grad(loss, list(params.values()))]

    def plain() -> list[Tensor]:
        answers = plain_answers(params, episode, create_graph=True)
        return gradients(functional.cross_entropy(answers, episode.labels))

    return {
        "plain": plain,
        "fast": lambda: gradients(fast.task_loss(params, stats, episode, Moment(0, 1))[0]),
    }


def evaluations(nss: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Contenders:
    """Return the answers to a task, by the plain loop and accelerated."""
    params, stats = weights_for(nss, dtype)
    episode, fast = episode_of(nss, seed, dtype), accelerated(LEARNER)
    info = TaskInfo(SHAPE, WAYS * nss, nss, WAYS, 1, 1, overwrite=False, seed=0)
    meta = {"params": {name: tensor.detach() for name, tensor in params.items()}, "stats": stats}

    def accelerated_answers() -> list[Tensor]:
        state = fast.begin(meta, info)
        for support in episode.supports:
            state = fast.observe(state, support)
        return [fast.predict(state, episode.targets)]

    return {
        "plain": lambda: [plain_answers(params, episode, create_graph=False).detach()],
        "fast": accelerated_answers,
    }


def high_end_steps(nss: int) -> Contenders:
    """Return the gradients of MAML++ High-End, embedding at every step, and only once."""
    learner, spec = MamlHigh(norm="batch"), TaskSpec.type_b(nss=nss, n_way=WAYS)
    meta = learner.init_for(SHAPE, spec, torch.Generator().manual_seed(0))
    params = {name: tensor.requires_grad_() for name, tensor in meta["params"].items()}
    fast_params = {
        name: tensor.detach().requires_grad_()
        for name, tensor in in_channels_last(meta["params"]).items()
    }
    episode, stats = episode_of(nss), dict(meta["stats"])
    batch = TaskBatch(
        numbers=range(1),
        support_images=torch.stack([support.images for support in episode.supports])[None],
        support_labels=torch.stack([support.labels for support in episode.supports])[None],
        target_images=episode.targets[None],
        target_labels=episode.labels[None],
        target_groups=torch.zeros_like(episode.labels)[None],
        covered=torch.zeros(1, len(episode.labels)),
    )

    def embedded(images: Tensor) -> Tensor:
        embedding = strip_prefix(params, "embedding.")
        return learner.embedding.training_features(
            embedding, strip_prefix(stats, "embedding."), images
        )[0]

    def plain() -> list[Tensor]:
        state = learner.initial_state(params, stats, spec.labels)
        for support in episode.supports:
            for _ in range(learner.steps):
                state = learner.inner_step(
                    state, Support(embedded(support.images), support.labels), "second"
                )
        logits, _ = learner.target_logits(state, embedded(episode.targets), training=True)
        loss = functional.cross_entropy(logits, episode.labels)
        return list(torch.autograd.grad(loss, list(params.values()), allow_unused=True))

    def once() -> list[Tensor]:
        loss, _ = learner.episode_loss(fast_params, stats, batch, turns=False, moment=Moment(0, 1))
        return list(torch.autograd.grad(loss, list(fast_params.values()), allow_unused=True))

    return {"plain": plain, "once": once}


# --- measures


def interleaved(contenders: Contenders, rounds: int) -> dict[str, float]:
    """Return the median seconds of each contender, run in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()

    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the relative distance of results, taken as one vector."""
    one, other = (
        torch.cat([tensor.flatten().double() for tensor in tensors]) for tensors in (ours, theirs)
    )
    return float((one - other).norm() / other.norm())


def compare_results(nss: int = 3, tasks: int = 9) -> None:
    """Print how far the two are apart in float64, and how far each is from there in float32."""
    plain, fast = (run() for run in training_steps(nss, torch.float64).values())
    print(f"loss and gradients, NSS={nss}: apart by {distance(fast, plain):.0e} in float64")

    apart: dict[str, list[float]] = {"plain": [], "fast": []}
    for seed in range(tasks):
        exact = evaluations(nss, seed, torch.float64)["fast"]()
        for name, run in evaluations(nss, seed).items():
            apart[name].append(distance(run(), exact))
    print(f"answers to {tasks} tasks in float32, distance from float64, median and largest:")
    for name, values in apart.items():
        print(f"  {name:<5} {statistics.median(values):.0e}   {max(values):.0e}")


def peak_rate(rounds: int = 20) -> float:
    """Return FLOP a second of the best matrix product."""
    rates = []
    for rows, inner, columns in ((1024, 1024, 1024), (980, 432, 48)):
        a, b = torch.randn(rows, inner), torch.randn(inner, columns)
        out = torch.empty(rows, columns)
        for _ in range(rounds):
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            rates.append(2 * rows * inner * columns / (time.perf_counter() - start))
    return max(rates)


def work(nss: int, *, training: bool) -> float:
    """Return the FLOP of a task; see the top of this file."""
    first = 28 * 28 * 9 * WIDTH
    others = sum((28 >> depth) ** 2 for depth in range(1, BLOCKS)) * 9 * WIDTH**2
    supports, targets = WAYS * nss, WAYS * nss * TARGETS

    step, look = 2 * first + 3 * others, first + others
    if training:
        step, look = 4 * first + 9 * others, 2 * first + 3 * others
    return 2 * (supports * LEARNER.steps * step + (supports + targets) * look)


def memory(name: str, nss: int) -> float:
    """Return MB by which a process grows in one training step; Linux only."""
    training_steps(1)[name]()
    step = training_steps(nss)[name]
    before = _kilobytes("VmRSS")
    step()
    return (_kilobytes("VmHWM") - before) / 1024


def _kilobytes(entry: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(entry))


def memory_elsewhere(name: str, nss: int) -> float:
    """Measure in a process of its own."""
    run = subprocess.run(
        [sys.executable, __file__, "memory", name, str(nss)], check=True, capture_output=True
    )
    return float(run.stdout)


def report(what: str, contenders: Contenders, flop: float, rounds: int) -> None:
    """Time both and print."""
    peak, seconds = peak_rate(), interleaved(contenders, rounds)
    print(f"{what}: {flop / 1e9:.1f} GFLOP, peak {peak / 1e9:.0f} GFLOP/s")
    for name, value in seconds.items():
        ratio, of_peak = seconds["plain"] / value, flop / value / peak
        print(f"  {name:<5} {value * 1e3:7.0f} ms   {ratio:4.2f}x   {of_peak:4.0%} of peak")


def main() -> None:
    """Compare results, times and memory."""
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["memory"]:
        print(memory(sys.argv[2], int(sys.argv[3])))
        return

    reason = why_not(LEARNER)
    if reason:
        sys.exit(f"there is nothing to compare: {reason}")

    compare_results()
    for nss, rounds in ((3, 11), (10, 5)):
        report(f"training step, NSS={nss}", training_steps(nss), work(nss, training=True), rounds)
        grown = {name: memory_elsewhere(name, nss) for name in ("plain", "fast")}
        print(f"  memory: {', '.join(f'{name} {mb:.0f} MB' for name, mb in grown.items())}")
        report(f"evaluation, NSS={nss}", evaluations(nss), work(nss, training=False), rounds)

    seconds = interleaved(high_end_steps(3), 3)
    plain, once = seconds["plain"], seconds["once"]
    print("training step of maml_high, NSS=3:")
    print(f"  embedded at every step {plain:.2f} s, embedded once {once:.2f} s")
    print(f"  {plain / once:.2f}x")


if __name__ == "__main__":
    main()
