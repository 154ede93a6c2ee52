"""The outer gradient of an inner loop over a stack of convolutions and a linear head, by hand.

It is what autograd finds by going back through `inner_loop`, several times faster. With u_i = rate_i * v_{i+1}, v_n the
gradient of the target loss L by theta_n, and g_i, H_i gradient and Hessian of the loss of step i at theta_i:

    v_i            = v_{i+1} - H_i u_i             one Hessian-vector product a step; order="first" leaves it out
    dL / d rate_i  = -<g_i, v_{i+1}>               for each adapted tensor
    dL / d scale_i = -d/d scale_i <g_i, u_i>       for each row of scales and shifts of batch norm, by the same product

and v_0 is the gradient by the first weights. With norm="support", L also depends on the statistics of the support sets,
each looked at with the weights after its last step: where v passes by, the gradient through that look joins it. The
same goes for the target losses after earlier steps, if these count (multi-step loss).

The biases of the convolutions stand before a batch norm that takes the mean off again. Their gradients are zero: they
keep their values, and get no outer gradient, where autograd finds rounding errors. This module needs numba.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cfsl.learners.base import Moment, State
from cfsl.learners.maml.episodes import Episode
from cfsl.learners.maml.inner_loop import InnerLoop, multi_step_shares
from cfsl.nets.convnet import ConvNet
from cfsl.nets.fused.blocks import Array
from cfsl.nets.fused.convolution import patches
from cfsl.nets.fused.stack import Scales, Stack, Tape, Weights
from cfsl.nets.layers import Params, Stats

_AT_A_TIME = 16
"""Targets that are normalised by given statistics do not need each other."""


@dataclass(frozen=True)
class Batch:
    """Images as the stack takes them, and their labels as rows with a single one."""

    images: Array
    truth: Tensor


class Course:
    """The course of a task: the stack, and the learner's tensors as the stack takes them."""

    def __init__(
        self, learner: InnerLoop, net: ConvNet, state: State, image_shape: Sequence[int]
    ) -> None:
        """Read the tables of rates and of scales."""
        numbers = range(1, len(net.widths) + 1)
        self.learner = learner
        self.names = [
            *(f"block{number}.conv.weight" for number in numbers),
            "head.weight",
            "head.bias",
        ]
        self.norms = [f"block{number}.norm" for number in numbers]
        self.biases = [state["weights"].get(f"block{number}.conv.bias") for number in numbers]
        self.weights = self._weights(state["weights"], net.widths[-1])
        self.stack = Stack(image_shape, net.widths, _array(self.weights[-1]).dtype)
        self.rates: list[list[float]] = torch.stack(
            [state["rates"][n].detach() for n in self.names], dim=1
        ).tolist()
        self.tables = [
            (_array(state["scales"][f"{name}.weight"]), _array(state["scales"][f"{name}.bias"]))
            for name in self.norms
        ]
        self._state = state

    def row(self, step: int) -> int:
        """Return the row of a step."""
        return self.learner.row({**self._state, "step": step})

    def target_row(self, step: int) -> int:
        """Return the row in which targets are seen after so many steps."""
        return min(step, len(self.rates))

    def scales(self, row: int) -> Scales:
        """Return one row of the scales and shifts."""
        return [(gamma[row], beta[row]) for gamma, beta in self.tables]

    def batch(self, images: Tensor, labels: Tensor) -> Batch:
        """Return images and labels as the stack takes them."""
        bias = self.weights[-1]
        return Batch(self._patches(images), functional.one_hot(labels, len(bias)).to(bias.dtype))

    def batches(self, images: Tensor, labels: Tensor, *, split: bool) -> list[Batch]:
        """Return images in one batch, or in several."""
        size = _AT_A_TIME if split else len(images)
        return [
            self.batch(images[i : i + size], labels[i : i + size])
            for i in range(0, len(images), size)
        ]

    def statistics(self, stats: Mapping[str, Tensor]) -> Array:
        """Return means and variances of all blocks one after the other; the stack knows no bias of a convolution."""
        parts = []
        for name, bias in zip(self.norms, self.biases, strict=True):
            mean = stats[f"{name}.mean"].detach()
            parts += [
                _array(mean if bias is None else mean - bias.detach()),
                _array(stats[f"{name}.var"]),
            ]
        return np.concatenate(parts)

    def stats(self, statistics: Array) -> Stats:
        """Return such statistics by name: the inverse of `statistics`."""
        named: Stats = {}
        for name, bias, pair in zip(self.norms, self.biases, self.pairs(statistics), strict=True):
            mean, var = map(torch.from_numpy, pair)
            named |= {
                f"{name}.mean": mean if bias is None else mean + bias.detach(),
                f"{name}.var": var,
            }
        return named

    def pairs(self, statistics: Array) -> Scales:
        """Return the means and variances block by block."""
        cuts = np.cumsum([block.outputs for block in self.stack.blocks for _ in range(2)])[:-1]
        parts = np.split(statistics, cuts)
        return list(zip(parts[::2], parts[1::2], strict=True))

    def logits(self, number: int, images: Tensor, stats: Mapping[str, Tensor] | None) -> Tensor:
        """Answer for targets after so many steps, normalised by given statistics or by their own."""
        scales = self.scales(self.target_row(number))
        given = None if stats is None else self.pairs(self.statistics(stats))
        size = len(images) if given is None else _AT_A_TIME
        parts = [self._patches(images[i : i + size]) for i in range(0, len(images), size)]
        return torch.cat(
            [self.stack.forward(self.weights, scales, part, given).logits for part in parts]
        )

    def _patches(self, images: Tensor) -> Array:
        return patches(_array(images.permute(0, 2, 3, 1).to(self.weights[-1].dtype)))

    def _weights(self, tensors: Mapping[str, Tensor], channels: int) -> Weights:
        *convolutions, head, bias = (tensors[name].detach() for name in self.names)
        by_place = head.reshape(len(head), channels, -1).permute(2, 1, 0).flatten(0, 1)
        weights = [weight.permute(2, 3, 1, 0).flatten(0, 1) for weight in convolutions]
        return [weight.contiguous() for weight in (*weights, by_place, bias)]

    def tensors(self, weights: Weights) -> Params:
        """Return weights of the stack as the learner's tensors."""
        *convolutions, head, bias = weights
        tensors = [
            weight.view(3, 3, *weight.shape[1:]).permute(3, 2, 0, 1) for weight in convolutions
        ]
        channels = self.stack.blocks[-1].outputs
        tensors += [head.view(-1, channels, len(bias)).permute(2, 1, 0).flatten(1), bias]
        return {name: tensor.contiguous() for name, tensor in zip(self.names, tensors, strict=True)}


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().contiguous().numpy()
    return array


def _joined(pairs: Scales) -> Array:
    return np.concatenate([array for pair in pairs for array in pair])


def seen_by(tape: Tape) -> Array:
    """Return the statistics of a batch, one after the other."""
    return _joined([(kept.mean, kept.var) for kept in tape.blocks])


def _by_logits(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the gradient of the sum of cross-entropies by the logits."""
    return logits.softmax(dim=1).sub_(truth)


# --- steps


@dataclass(frozen=True)
class Step:
    """What going back needs of a step."""

    row: int
    weights: Weights
    gradients: Weights
    tape: Tape


def take(course: Course, number: int, weights: Weights, support: Batch) -> tuple[Step, Weights]:
    """Take step `number`; return it, and the weights after it."""
    row = course.row(number)
    scales = course.scales(row)
    tape = course.stack.forward(weights, scales, support.images)
    by_logits = _by_logits(tape.logits, support.truth).div_(len(support.truth))
    gradients, _ = course.stack.backward(weights, scales, tape, by_logits)
    after = [
        torch.sub(w, g, alpha=rate)
        for w, rate, g in zip(weights, course.rates[row], gradients, strict=True)
    ]
    return Step(row, weights, gradients, tape), after


def look(course: Course, number: int, weights: Weights, support: Batch) -> Tape:
    """See a support set as targets are seen after so many steps."""
    return course.stack.forward(weights, course.scales(course.target_row(number)), support.images)


# --- the way back


class Outer:
    """The outer loss of a task and its gradients, as they add up on the way back."""

    def __init__(self, course: Course) -> None:
        """Begin with zeros."""
        self._course = course
        self.loss = course.weights[-1].new_zeros(())
        self._weights = [torch.zeros_like(weight) for weight in course.weights]
        self._rates = self.loss.new_zeros(len(course.rates), len(course.names))
        self._tables = [
            (np.zeros_like(gamma), np.zeros_like(beta)) for gamma, beta in course.tables
        ]

    def judge(
        self,
        number: int,
        weights: Weights,
        targets: list[Batch],
        share: float,
        statistics: Array | None,
    ) -> tuple[Array, Array]:
        """Add a share of the target loss after so many steps; return the statistics used, and the gradient by them."""
        course, row = self._course, self._course.target_row(number)
        scales, count = course.scales(row), sum(len(batch.truth) for batch in targets)
        given = None if statistics is None else course.pairs(statistics)
        by_statistics = []
        for batch in targets:
            tape = course.stack.forward(weights, scales, batch.images, given)
            by_logits = _by_logits(tape.logits, batch.truth).mul_(share / count)
            self._add(course.stack.backward(weights, scales, tape, by_logits), row, 1)
            self.loss -= (batch.truth * tape.logits.log_softmax(dim=1)).sum() * (share / count)
            by_statistics.append(_joined(course.stack.by_statistics(scales, tape)))
        return seen_by(tape), np.sum(by_statistics, axis=0)

    def look_back(self, number: int, weights: Weights, tape: Tape, by_statistics: Array) -> None:
        """Add what comes through the statistics of a look at a support set."""
        course, row = self._course, self._course.target_row(number)
        nothing = torch.zeros_like(tape.logits)
        pairs = course.pairs(by_statistics)
        self._add(course.stack.backward(weights, course.scales(row), tape, nothing, pairs), row, 1)

    def go_back(self, step: Step, *, second: bool) -> None:
        """Take the gradients from after a step to before it."""
        course, rates = self._course, self._course.rates[step.row]
        dots = [
            torch.dot(g.flatten(), v.flatten())
            for g, v in zip(step.gradients, self._weights, strict=True)
        ]
        self._rates[step.row] -= torch.stack(dots)
        if second:
            direction = [v * rate for v, rate in zip(self._weights, rates, strict=True)]
            scales = course.scales(step.row)
            self._add(
                course.stack.backward_dot(step.weights, scales, step.tape, direction), step.row, -1
            )

    def _add(self, gradients: tuple[Weights, Scales], row: int, sign: int) -> None:
        for total, gradient in zip(self._weights, gradients[0], strict=True):
            total.add_(gradient, alpha=sign)
        for (dgamma, dbeta), (gamma, beta) in zip(self._tables, gradients[1], strict=True):
            dgamma[row] += sign * gamma
            dbeta[row] += sign * beta

    def by_name(self) -> Params:
        """Return the gradients by the names of what they belong to."""
        named = self._course.tensors(self._weights)
        named |= {
            f"rates.{name}": self._rates[:, k].clone() for k, name in enumerate(self._course.names)
        }
        for name, (dgamma, dbeta) in zip(self._course.norms, self._tables, strict=True):
            named |= {
                f"scales.{name}.weight": torch.from_numpy(dgamma),
                f"scales.{name}.bias": torch.from_numpy(dbeta),
            }
        return named


def outer_gradients(
    learner: InnerLoop, net: ConvNet, state: State, episode: Episode, moment: Moment
) -> tuple[Tensor, Params, Stats]:
    """Return the outer loss of a task, its gradients by name, and the statistics of its targets."""
    course = Course(learner, net, state, episode.targets.shape[1:])
    supports = [course.batch(support.images, support.labels) for support in episode.supports]
    by_support, weights = learner.norm == "support", course.weights
    steps: list[Step] = []
    looks: list[Tape] = []
    for support in supports:
        for _ in range(learner.steps):
            step, weights = take(course, len(steps), weights, support)
            steps.append(step)
        looks += [look(course, len(steps), weights, support)] if by_support else []
    return _way_back(course, steps, looks, weights, supports, episode, moment)


def _way_back(
    course: Course,
    steps: list[Step],
    looks: list[Tape],
    weights: Weights,
    supports: list[Batch],
    episode: Episode,
    moment: Moment,
) -> tuple[Tensor, Params, Stats]:
    outer, learner, seen = Outer(course), course.learner, Stats()
    targets = course.batches(episode.targets, episode.labels, split=bool(looks))
    judged = len(steps) if moment.epoch < learner.multi_step_epochs else 1
    shares = multi_step_shares(judged, moment.epoch, learner.multi_step_epochs)
    owed = [
        np.zeros_like(seen_by(tape)) for tape in looks
    ]  # the gradient by the statistics of each look
    while steps:
        number, last = len(steps), (len(steps) - 1) // learner.steps
        counts, at_end = bool(shares), number % learner.steps == 0
        if looks and counts and not at_end:
            looks[last] = look(course, number, weights, supports[last])
            owed[last] = np.zeros_like(owed[last])
        if counts:
            given = (
                np.mean([seen_by(tape) for tape in looks[: last + 1]], axis=0) if looks else None
            )
            used, by_statistics = outer.judge(number, weights, targets, shares.pop(), given)
            seen = seen or ({} if looks else course.stats(used))
            for debt in owed[: last + 1]:
                debt += by_statistics / (last + 1)
        if looks and (counts or at_end):
            outer.look_back(number, weights, looks[last], owed[last])
        step = steps.pop()
        outer.go_back(step, second=learner.order_at(moment) == "second")
        weights = step.weights
    return outer.loss, outer.by_name(), seen
