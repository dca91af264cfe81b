"""Connectionist temporal classification: the forward and backward recursions over time as loops."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .meta import meta
from .registry import lower, python_op

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten

# PyTorch's default overloads take the lengths as lists. As tensors they are values, not part of the program.


def _padded(targets: Tensor, lengths: Sequence[int]) -> Tensor:
    """Targets as rows [batch, longest], also where they come joined end to end."""
    if targets.ndim == 2:
        return targets
    rows = targets.new_zeros((len(lengths), max(lengths, default=0)))
    for row, labels, length in zip(rows, torch.split(targets, list(lengths)), lengths):
        row[:length] = labels
    return rows


def _lengths(lengths: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(lengths, dtype=torch.int64).to(like.device)


@python_op(aten._ctc_loss.default)
def ctc_loss_of_lists(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    count = log_probs.shape[1]
    if len(input_lengths) != count or len(target_lengths) != count:
        raise RuntimeError("input_lengths and target_lengths must be of size batch_size")
    if not 0 <= blank < log_probs.shape[2]:
        raise RuntimeError("blank must be in label range")
    if any(not 0 <= n <= log_probs.shape[0] for n in input_lengths):
        raise RuntimeError(f"Expected input_lengths to have values of at most {log_probs.shape[0]}")
    if targets.ndim == 2 and any(n > targets.shape[1] for n in target_lengths):
        raise RuntimeError(f"Expected tensor to have size at least {max(target_lengths)} at dimension 1")
    lengths = (_lengths(input_lengths, log_probs), _lengths(target_lengths, log_probs))
    loss: tuple[Tensor, Tensor] = aten._ctc_loss.Tensor(
        log_probs, _padded(targets, target_lengths), *lengths, blank, zero_infinity
    )
    return loss


@python_op(aten._ctc_loss_backward.default)
def ctc_loss_backward_of_lists(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    loss: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    lengths = (_lengths(input_lengths, log_probs), _lengths(target_lengths, log_probs))
    result: Tensor = aten._ctc_loss_backward.Tensor(
        grad, log_probs, _padded(targets, target_lengths), *lengths, loss, log_alpha, blank, zero_infinity
    )
    return result


@meta(aten._ctc_loss.Tensor)
def _ctc_loss_meta(
    log_probs: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor, blank: int = 0, zero: bool = False
) -> tuple[Tensor, Tensor]:
    steps, batch, _ = log_probs.shape
    longest = targets.shape[-1]
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, 2 * longest + 1))


@meta(aten._ctc_loss_backward.Tensor)
def _ctc_loss_backward_meta(grad: Tensor, log_probs: Tensor, *_: object) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _rows(b: Builder, targets: Value, target_lengths: Value) -> Value:
    """Targets as rows, also where they come joined end to end."""
    if targets.ndim == 2:
        return targets
    batch, longest = target_lengths.shape[0], targets.shape[0]
    row, other = (b.iota((batch, batch), d, torch.int64) for d in (0, 1))
    start = b.reduce_sum(b.select(other < row, target_lengths.reshape(1, batch), 0), [1], keepdim=True)
    place = b.iota((batch, longest), 1, torch.int64) + start
    return b.gather(
        targets,
        b.unsqueeze(place, -1),
        [1],
        offset_dims=[],
        collapsed_dims=[0],
        start_index_map=[0],
        index_vector_dim=2,
    )


def _log_sum(b: Builder, xs: list[Value]) -> Value:
    """The logarithm of a sum of exponentials, -inf of nothing."""
    largest = functools.reduce(b.maximum, xs)
    base = b.select(b.is_neg_inf(largest), 0, largest)
    return b.log(functools.reduce(b.add, [b.exponential(x - base) for x in xs])) + base


class _Problem:
    """The states of a target: its labels, with a blank before, between and after them."""

    def __init__(
        self, b: Builder, log_probs: Value, targets: Value, lengths: Value, target_lengths: Value, blank: int
    ) -> None:
        steps, batch, _ = log_probs.shape
        labels = _rows(b, targets, target_lengths).to(torch.int64)
        states = 2 * labels.shape[1] + 1
        blanks = b.full((batch, labels.shape[1]), blank, torch.int64)
        pairs = b.concatenate([b.unsqueeze(blanks, 2), b.unsqueeze(labels, 2)], 2).reshape(batch, states - 1)
        self.b = b
        self.labels = b.concatenate([pairs, b.full((batch, 1), blank, torch.int64)], 1)  # [batch, states]
        self.state = b.iota((batch, states), 1, torch.int64)
        self.lengths = lengths.to(torch.int64).reshape(batch, 1)
        self.last = 2 * target_lengths.to(torch.int64).reshape(batch, 1)
        # Whether a path may come from two states before, past a blank to another label. (Blanks are all alike.)
        self.skips = b.pad(self.labels, -1, [0, 2], [0, -2]).ne(self.labels) & (self.state >= 2)
        gathered = b.gather(
            log_probs,
            b.unsqueeze(self.labels, -1),
            [steps, 1, 1],
            offset_dims=[0],
            collapsed_dims=[2],
            start_index_map=[2],
            index_vector_dim=2,
            operand_batching_dims=[1],
            indices_batching_dims=[0],
        )
        self.emitted = b.select(self.state <= self.last, gathered, -math.inf)  # [time, batch, states]

    def at(self, x: Value, step: Value) -> Value:
        zero = self.b.full((), 0, torch.int64)
        row = self.b.dynamic_slice(x, [step, zero, zero], (1, *x.shape[1:]))
        return row.reshape(*x.shape[1:])

    def put(self, x: Value, row: Value, step: Value) -> Value:
        zero = self.b.full((), 0, torch.int64)
        return self.b.dynamic_update_slice(x, self.b.unsqueeze(row, 0), [step, zero, zero])

    def ends(self) -> Value:
        """The states a path may end in."""
        return self.state.eq(self.last) | self.state.eq(self.last - 1)

    def collect(self, x: Value, by: int) -> Value:
        """Each state's sum over the states a path comes from (by=1) or goes to (by=-1)."""
        b = self.b
        one, two = (b.pad(x, -math.inf, [0, by * n], [0, -by * n]) for n in (1, 2))
        skips = self.skips if by > 0 else b.pad(self.skips, False, [0, -2], [0, 2])
        return _log_sum(b, [x, one, b.select(skips, two, -math.inf)])


@lower(aten._ctc_loss.Tensor)
def ctc_loss(
    b: Builder,
    log_probs: Value,
    targets: Value,
    input_lengths: Value,
    target_lengths: Value,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Value, Value]:
    p = _Problem(b, log_probs, targets, input_lengths, target_lengths, blank)
    steps = log_probs.shape[0]
    first = b.select(p.state < 2, p.at(p.emitted, b.full((), 0, torch.int64)), -math.inf)
    alphas = p.put(b.full(p.emitted.shape, -math.inf, log_probs.dtype), first, b.full((), 0, torch.int64))

    def advance(t: Value, alpha: Value, alphas: Value) -> list[Value]:
        following = p.at(p.emitted, t) + p.collect(alpha, 1)
        alpha = b.select(t < p.lengths, following, alpha)  # a sequence that has ended keeps its end
        return [t + 1, alpha, p.put(alphas, following, t)]

    start = [b.full((), 1, torch.int64), first, alphas]
    _, alpha, alphas = b.while_loop(start, lambda t, *_: t < steps, advance)
    alpha = b.select(p.lengths > 0, alpha, b.select(p.state.eq(0), 0.0, b.full(alpha.shape, -math.inf, alpha.dtype)))
    alpha = b.select(p.ends(), alpha, -math.inf)
    largest = b.reduce_max(alpha, [1], keepdim=True)
    base = b.select(b.is_neg_inf(largest), 0, largest)
    loss = -(b.log(b.reduce_sum(b.exponential(alpha - base), [1])) + base.reshape(base.shape[0]))
    return loss, b.transpose(alphas, [1, 0, 2])


@lower(aten._ctc_loss_backward.Tensor)
def ctc_loss_backward(
    b: Builder,
    grad: Value,
    log_probs: Value,
    targets: Value,
    input_lengths: Value,
    target_lengths: Value,
    loss: Value,
    log_alpha: Value,
    blank: int,
    zero_infinity: bool = False,
) -> Value:
    p = _Problem(b, log_probs, targets, input_lengths, target_lengths, blank)
    steps, batch, classes = log_probs.shape
    alphas = b.transpose(log_alpha, [1, 0, 2])
    nothing = b.full(p.state.shape, -math.inf, log_probs.dtype)

    def retreat(t: Value, beta: Value, betas: Value) -> list[Value]:
        inner = b.select(t < p.lengths - 1, p.collect(beta, -1), nothing)
        # What is to come after a state, without what the state itself emits: alpha has that.
        after = b.select(p.ends() & t.eq(p.lengths - 1), 0.0, inner)
        return [t - 1, after + p.at(p.emitted, t), p.put(betas, after, t)]

    start = [b.full((), steps - 1, torch.int64), nothing, b.full(p.emitted.shape, -math.inf, log_probs.dtype)]
    _, _, betas = b.while_loop(start, lambda t, *_: t >= 0, retreat)
    # The probability of being in a state at a time, given the target.
    occupied = b.exponential(alphas + betas + loss.reshape(1, batch, 1))
    hit = b.iota((batch, p.state.shape[1], classes), 2, torch.int64).eq(b.unsqueeze(p.labels, 2)).to(log_probs.dtype)
    seen = b.dot_general(occupied, hit, contract=([2], [1]), batch=([1], [0]), precision="HIGHEST")
    scale = b.select(b.is_finite(loss), grad, 0) if zero_infinity else grad
    slope = (b.exponential(log_probs) - b.transpose(seen, [1, 0, 2])) * scale.reshape(1, batch, 1)
    time = b.iota(log_probs.shape, 0, torch.int64)
    kept = time < p.lengths.reshape(1, batch, 1)
    if zero_infinity:
        kept = kept & b.is_finite(loss).reshape(1, batch, 1)
    return b.select(kept, slope, 0)
