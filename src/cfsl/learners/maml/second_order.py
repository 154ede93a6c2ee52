"""The outer gradient of an inner loop over a stack of convolutions and a linear head, by hand.

It is the gradient that autograd finds by going back through `inner_loop`, several times faster.
With u_i = rate_i * v_{i+1}, v_n the gradient of the target loss L by theta_n, and g_i, H_i gradient
and Hessian of the loss of step i at theta_i:

    v_i            = v_{i+1} - H_i u_i             for the weights of step i
    dL / d rate_i  = -<g_i, v_{i+1}>               for each adapted tensor
    dL / d scale_i = -d/d scale_i <g_i, u_i>       for each row of scales and shifts of batch norm

and v_0 is the gradient by the first weights. One Hessian-vector product a step gives both H_i u_i
and the gradient by scale_i; order="first" leaves it out.

With norm="support", L also depends on the statistics of the support sets, each measured by a
forward pass with the weights after the last step on the set. When v reaches those weights, the
gradient through that pass is added. The same goes for the target losses after earlier steps, if
these count (multi-step loss).

The biases of the convolutions stand before a batch norm that takes the mean off again. Their
gradients are zero: they keep their values, and get no outer gradient, where autograd finds rounding
errors. This module needs numba.
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
from cfsl.learners.maml.inner_loop import InnerLoop, multi_step_weights
from cfsl.nets.convnet import ConvNet
from cfsl.nets.fused.blocks import Array
from cfsl.nets.fused.convolution import patches
from cfsl.nets.fused.stack import Scales, Stack, Tape, Weights
from cfsl.nets.layers import Params, Stats

_AT_A_TIME = 16
"""Targets that are normalised by given statistics may come in several batches."""


@dataclass(frozen=True)
class Batch:
    """Images as the stack takes them, and their labels as one-hot rows."""

    patches: Array
    truth: Tensor


class StackedLearner:
    """A learner in a state, its tensors laid out as `Stack` takes them."""

    def __init__(
        self, learner: InnerLoop, net: ConvNet, state: State, image_shape: Sequence[int]
    ) -> None:
        """Lay out the weights, and read the tables of rates and of scales."""
        numbers = range(1, len(net.widths) + 1)
        convolutions = [f"block{number}.conv.weight" for number in numbers]
        self.names = [*convolutions, "head.weight", "head.bias"]
        self.norms = [f"block{number}.norm" for number in numbers]
        self.learner = learner
        self._state = state

        self._biases = [state["weights"].get(f"block{number}.conv.bias") for number in numbers]
        self.weights = self._weights(state["weights"], net.widths[-1])
        self.stack = Stack(image_shape, net.widths, _array(self.weights[-1]).dtype)

        rates = [state["rates"][name].detach() for name in self.names]
        self.rates: list[list[float]] = torch.stack(rates, dim=1).tolist()
        self.tables = [
            (_array(state["scales"][f"{name}.weight"]), _array(state["scales"][f"{name}.bias"]))
            for name in self.norms
        ]

    # --- rows

    def row(self, step: int) -> int:
        """Return the row of a step."""
        return self.learner.row({**self._state, "step": step})

    def target_row(self, step: int) -> int:
        """Return the row by which targets are scaled after so many steps."""
        return min(step, len(self.rates))

    def scales(self, row: int) -> Scales:
        """Return one row of the scales and shifts."""
        return [(gamma[row], beta[row]) for gamma, beta in self.tables]

    # --- images

    def batch(self, images: Tensor, labels: Tensor) -> Batch:
        """Return images and labels as the stack takes them."""
        bias = self.weights[-1]
        truth = functional.one_hot(labels, len(bias)).to(bias.dtype)
        return Batch(self._patches(images), truth)

    def batches(self, images: Tensor, labels: Tensor, *, split: bool) -> list[Batch]:
        """Return images in one batch, or in several."""
        size = _AT_A_TIME if split else len(images)
        return [
            self.batch(images[first : first + size], labels[first : first + size])
            for first in range(0, len(images), size)
        ]

    def _patches(self, images: Tensor) -> Array:
        return patches(_array(images.permute(0, 2, 3, 1).to(self.weights[-1].dtype)))

    def logits(self, step: int, images: Tensor, stats: Mapping[str, Tensor] | None) -> Tensor:
        """Answer for targets after so many steps, normalised by `stats` or by their own."""
        scales = self.scales(self.target_row(step))
        statistics = None if stats is None else self.pairs(self.statistics(stats))
        size = len(images) if statistics is None else _AT_A_TIME

        logits = []
        for first in range(0, len(images), size):
            part = self._patches(images[first : first + size])
            logits.append(self.stack.forward(self.weights, scales, part, statistics).logits)
        return torch.cat(logits)

    # --- statistics of batch norm

    def statistics(self, stats: Mapping[str, Tensor]) -> Array:
        """Return means and variances of all blocks one after the other.

        The stack has no biases of convolutions, so they are taken off the means.
        """
        parts = []
        for name, bias in zip(self.norms, self._biases, strict=True):
            mean = stats[f"{name}.mean"].detach()
            parts.append(_array(mean if bias is None else mean - bias.detach()))
            parts.append(_array(stats[f"{name}.var"]))
        return np.concatenate(parts)

    def stats(self, statistics: Array) -> Stats:
        """Return such statistics by name: the inverse of `statistics`."""
        stats: Stats = {}
        pairs = self.pairs(statistics)
        for name, bias, (mean_array, var_array) in zip(
            self.norms, self._biases, pairs, strict=True
        ):
            mean = torch.from_numpy(mean_array)
            stats[f"{name}.mean"] = mean if bias is None else mean + bias.detach()
            stats[f"{name}.var"] = torch.from_numpy(var_array)
        return stats

    def pairs(self, statistics: Array) -> Scales:
        """Return the means and variances block by block."""
        cuts = np.cumsum([block.outputs for block in self.stack.blocks for _ in range(2)])[:-1]
        parts = np.split(statistics, cuts)
        return list(zip(parts[::2], parts[1::2], strict=True))

    # --- weights

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


def _gradient_by_logits(logits: Tensor, truth: Tensor) -> Tensor:
    """Return the gradient of the sum of cross-entropies by the logits."""
    return logits.softmax(dim=1).sub_(truth)


# --- forward: the inner steps


@dataclass(frozen=True)
class Step:
    """What the backward pass needs of an inner step."""

    row: int
    weights: Weights
    gradients: Weights
    tape: Tape


def take_step(
    stacked: StackedLearner, number: int, weights: Weights, support: Batch
) -> tuple[Step, Weights]:
    """Take inner step `number`; return it, and the weights after it."""
    row = stacked.row(number)
    scales = stacked.scales(row)
    tape = stacked.stack.forward(weights, scales, support.patches)

    by_logits = _gradient_by_logits(tape.logits, support.truth).div_(len(support.truth))
    gradients, _ = stacked.stack.backward(weights, scales, tape, by_logits)
    after = [
        torch.sub(weight, gradient, alpha=rate)
        for weight, rate, gradient in zip(weights, stacked.rates[row], gradients, strict=True)
    ]
    return Step(row, weights, gradients, tape), after


def measure(stacked: StackedLearner, steps: int, weights: Weights, support: Batch) -> Tape:
    """Run a support set forward as targets are after so many steps, to measure its statistics."""
    scales = stacked.scales(stacked.target_row(steps))
    return stacked.stack.forward(weights, scales, support.patches)


def measured_statistics(tape: Tape) -> Array:
    """Return the statistics of a batch, block after block."""
    return _joined([(block.mean, block.var) for block in tape.blocks])


# --- backward: the outer gradient


class _OuterGradient:
    """The outer loss of a task and its gradients, which add up on the way back to the first step.

    The gradient by the weights is v: it starts at the last weights, and ends at the first.
    """

    def __init__(self, stacked: StackedLearner) -> None:
        """Begin with zeros."""
        self._stacked = stacked
        self.loss = stacked.weights[-1].new_zeros(())
        self._by_weights = [torch.zeros_like(weight) for weight in stacked.weights]
        self._by_rates = self.loss.new_zeros(len(stacked.rates), len(stacked.names))
        self._by_scales = [
            (np.zeros_like(gamma), np.zeros_like(beta)) for gamma, beta in stacked.tables
        ]

    def add_target_loss(
        self,
        steps: int,
        weights: Weights,
        targets: list[Batch],
        loss_weight: float,
        statistics: Array | None,
    ) -> tuple[Array, Array]:
        """Add the weighted target loss after so many steps, and its gradients.

        Return the statistics that normalised the targets, and the gradient by them.
        """
        stack, row = self._stacked.stack, self._stacked.target_row(steps)
        scales = self._stacked.scales(row)
        given = None if statistics is None else self._stacked.pairs(statistics)
        factor = loss_weight / sum(len(batch.truth) for batch in targets)

        by_statistics = []
        for batch in targets:
            tape = stack.forward(weights, scales, batch.patches, given)
            by_logits = _gradient_by_logits(tape.logits, batch.truth).mul_(factor)
            self._add(stack.backward(weights, scales, tape, by_logits), row, 1)
            self.loss -= (batch.truth * tape.logits.log_softmax(dim=1)).sum() * factor
            by_statistics.append(_joined(stack.by_statistics(scales, tape)))
        return measured_statistics(tape), np.sum(by_statistics, axis=0)

    def add_through_statistics(
        self, steps: int, weights: Weights, tape: Tape, by_statistics: Array
    ) -> None:
        """Add the gradient that flows through the measured statistics of a support set."""
        row = self._stacked.target_row(steps)
        scales, pairs = self._stacked.scales(row), self._stacked.pairs(by_statistics)
        no_gradient = torch.zeros_like(tape.logits)
        gradients = self._stacked.stack.backward(weights, scales, tape, no_gradient, pairs)
        self._add(gradients, row, 1)

    def back_through_step(self, step: Step, *, second_order: bool) -> None:
        """Turn the gradient by the weights after a step into that by the weights before it."""
        by_rate = [
            torch.dot(gradient.flatten(), by_weight.flatten())
            for gradient, by_weight in zip(step.gradients, self._by_weights, strict=True)
        ]
        self._by_rates[step.row] -= torch.stack(by_rate)
        if not second_order:
            return

        rates, scales = self._stacked.rates[step.row], self._stacked.scales(step.row)
        direction = [
            by_weight * rate for by_weight, rate in zip(self._by_weights, rates, strict=True)
        ]
        product = self._stacked.stack.backward_dot(step.weights, scales, step.tape, direction)
        self._add(product, step.row, -1)

    def _add(self, gradients: tuple[Weights, Scales], row: int, sign: int) -> None:
        by_weights, by_scales = gradients
        for total, gradient in zip(self._by_weights, by_weights, strict=True):
            total.add_(gradient, alpha=sign)
        for (dgamma, dbeta), (gamma, beta) in zip(self._by_scales, by_scales, strict=True):
            dgamma[row] += sign * gamma
            dbeta[row] += sign * beta

    def by_name(self) -> Params:
        """Return the gradients by the names of the learned tensors."""
        gradients = self._stacked.tensors(self._by_weights)
        for column, name in enumerate(self._stacked.names):
            gradients[f"rates.{name}"] = self._by_rates[:, column].clone()
        for name, (dgamma, dbeta) in zip(self._stacked.norms, self._by_scales, strict=True):
            gradients[f"scales.{name}.weight"] = torch.from_numpy(dgamma)
            gradients[f"scales.{name}.bias"] = torch.from_numpy(dbeta)
        return gradients


def outer_gradients(
    learner: InnerLoop, net: ConvNet, state: State, episode: Episode, moment: Moment
) -> tuple[Tensor, Params, Stats]:
    """Return the outer loss of a task, its gradients by name, and the statistics of its targets."""
    stacked = StackedLearner(learner, net, state, episode.targets.shape[1:])
    supports = [stacked.batch(support.images, support.labels) for support in episode.supports]
    weights = stacked.weights

    steps: list[Step] = []
    measured: list[Tape] = []
    for support in supports:
        for _ in range(learner.steps):
            step, weights = take_step(stacked, len(steps), weights, support)
            steps.append(step)
        if learner.norm == "support":
            measured.append(measure(stacked, len(steps), weights, support))

    return _backward(stacked, steps, measured, weights, supports, episode, moment)


def _backward(
    stacked: StackedLearner,
    steps: list[Step],
    measured: list[Tape],
    weights: Weights,
    supports: list[Batch],
    episode: Episode,
    moment: Moment,
) -> tuple[Tensor, Params, Stats]:
    """Go back from the last step to the first.

    `measured` has the forward pass that measured each support set, if targets are normalised by
    these statistics; `weights` are those after the last step.
    """
    learner, outer, stats_of_targets = stacked.learner, _OuterGradient(stacked), Stats()
    second_order = learner.order_at(moment) == "second"
    targets = stacked.batches(episode.targets, episode.labels, split=bool(measured))

    # Weights of the target losses that are still to be added, the next one last.
    losses = len(steps) if moment.epoch < learner.multi_step_epochs else 1
    loss_weights = multi_step_weights(losses, moment.epoch, learner.multi_step_epochs)
    # The gradient by the statistics of each support set, as far as it is known.
    by_statistics = [np.zeros_like(measured_statistics(tape)) for tape in measured]

    while steps:
        number, last = len(steps), (len(steps) - 1) // learner.steps
        has_loss, ends_set = bool(loss_weights), number % learner.steps == 0

        # In the middle of a set, the target loss depends on statistics at the weights of then.
        if measured and has_loss and not ends_set:
            measured[last] = measure(stacked, number, weights, supports[last])
            by_statistics[last] = np.zeros_like(by_statistics[last])

        if has_loss:
            of_sets = [measured_statistics(tape) for tape in measured[: last + 1]]
            mean = np.mean(of_sets, axis=0) if measured else None
            used, by_mean = outer.add_target_loss(
                number, weights, targets, loss_weights.pop(), mean
            )
            stats_of_targets = stats_of_targets or ({} if measured else stacked.stats(used))
            for gradient in by_statistics[: last + 1]:
                gradient += by_mean / (last + 1)

        if measured and (has_loss or ends_set):
            outer.add_through_statistics(number, weights, measured[last], by_statistics[last])

        step = steps.pop()
        outer.back_through_step(step, second_order=second_order)
        weights = step.weights

    return outer.loss, outer.by_name(), stats_of_targets
