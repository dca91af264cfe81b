"""Scaled dot product attention as one op, whose backward computes the probabilities anew instead of keeping them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .philox import plane_words, unit
from .registry import LoweringError, lower, python_op

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten


@dataclass
class Problem:
    """One call on [batch, heads, length, depth]; query heads may share key heads, in order."""

    b: Builder
    query: Value
    key: Value
    value: Value
    scale: Operand | None
    bias: Value | None = None  # added to the scores
    seen: Value | None = None  # bool: which keys a query sees
    rng: Value | None = None
    dropout: float = 0.0

    @property
    def dtype(self) -> torch.dtype:
        """Of scores and accumulators."""
        return dtypes.opmath(self.query.dtype)

    @property
    def scores_shape(self) -> tuple[int, ...]:
        return (*self.query.shape[:3], self.key.shape[2])

    def flat(self, x: Value) -> Value:
        """As the products take it: batch and key head are one dim, the queries that share a key head stand together."""
        n = self.key.shape[0] * self.key.shape[1]
        return x.reshape(n, x.numel // (n * x.shape[-1]) if x.numel else 0, x.shape[-1])

    def product(self, x: Value, y: Value, contract: tuple[int, int]) -> Value:
        x, y = self.flat(x), self.flat(y)
        return self.b.dot_general(x, y, contract=([contract[0]], [contract[1]]), batch=([0], [0]), dtype=self.dtype)

    def scores(self) -> Value:
        b, depth = self.b, self.query.shape[-1]
        scale = b.scalar(1 / math.sqrt(depth) if self.scale is None else self.scale, self.dtype)
        scores = self.product(self.query, self.key, (2, 2)).reshape(*self.scores_shape) * scale
        if self.bias is not None:
            scores = scores + self.bias.to(self.dtype)
        if self.seen is not None:
            scores = b.select(self.seen, scores, b.full((), -math.inf, self.dtype))
        return scores

    def drop(self, x: Value) -> Value:
        """x, shaped as the scores, where dropout keeps it, and scaled up for what it does not keep."""
        if self.rng is None:
            return x
        b = self.b
        word, next_word, *_ = plane_words(b, self.rng, self.scores_shape)
        kept = unit(b, word, next_word, torch.float32) >= self.dropout
        return b.select(kept, x * (1 / (1 - self.dropout) if self.dropout < 1 else 0.0), 0)

    def exp_minus(self, x: Value, y: Value) -> Value:
        """exp(x - y), and 0 where y is -inf: the row of a query that may see no key."""
        b = self.b
        return b.exponential(x - b.select(b.is_neg_inf(y), 0, y))

    def forward(self) -> tuple[Value, Value]:
        """(output, logsumexp of the scores)"""
        b = self.b
        scores = self.scores()
        largest = b.reduce_max(scores, [-1], keepdim=True)
        weights = self.exp_minus(scores, largest)
        total = b.reduce_sum(weights, [-1], keepdim=True)
        out = self.product(self.drop(weights).to(self.value.dtype), self.value, (2, 1))
        out = out.reshape(*self.query.shape[:3], self.value.shape[3]) / b.select(total.eq(0), 1, total)
        return out, (largest + b.log(total)).reshape(*self.scores_shape[:3])

    def backward(self, grad: Value, out: Value, logsumexp: Value) -> tuple[Value, Value, Value, Value]:
        """The gradients of query, key, value and of the scores."""
        b = self.b
        weights = self.exp_minus(self.scores(), b.unsqueeze(logsumexp.to(self.dtype), -1))
        grad_value = self.product(self.drop(weights).to(self.value.dtype), grad, (1, 1))
        grad_weights = self.drop(self.product(grad, self.value, (2, 2)).reshape(*self.scores_shape))
        delta = b.reduce_sum(grad.to(self.dtype) * out.to(self.dtype), [-1], keepdim=True)
        grad_scores = weights * (grad_weights - delta)
        scale = b.scalar(1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale, self.dtype)
        scaled = (grad_scores * scale).to(self.query.dtype)
        grad_query = self.product(scaled, self.key, (2, 1)).reshape(*self.query.shape)
        grad_key = self.product(scaled, self.query, (1, 1)).reshape(*self.key.shape)
        return grad_query, grad_key, grad_value.reshape(*self.value.shape), grad_scores


# ---- the op behind scaled_dot_product_attention


def _causal(b: Builder, query: Value, key: Value) -> Value:
    shape = (query.shape[2], key.shape[2])
    return b.iota(shape, 0, torch.int32) >= b.iota(shape, 1, torch.int32)


@lower(aten._scaled_dot_product_fused_attention_overrideable.default, static=("dropout_p",), random="dropout_p")
def fused_attention(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Operand | None = None,
    rng: Value | None = None,
) -> tuple[Value | None, ...]:
    seen = _causal(b, query, key) if is_causal else None
    out, logsumexp = Problem(b, query, key, value, scale, attn_bias, seen, rng, dropout_p).forward()
    drawn = b.full((2,), 0, torch.int64) if rng is None else b.bitcast_convert(rng, torch.int64)
    seed, offset = (b.slice_dim(drawn, 0, i, i + 1).reshape() for i in range(2))
    return out, logsumexp, None, None, None, None, seed, offset, None


@lower(aten._scaled_dot_product_fused_attention_overrideable_backward.default, static=("dropout_p",))
def fused_attention_backward(
    b: Builder,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    grad_input_mask: list[bool],
    out: Value,
    logsumexp: Value,
    cum_seq_q: None,
    cum_seq_k: None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Value,
    philox_offset: Value,
    *,
    scale: Operand | None = None,
) -> tuple[Value | None, ...]:
    rng = None
    if dropout_p:
        drawn = b.concatenate([philox_seed.reshape(1), philox_offset.reshape(1)], 0)
        rng = b.bitcast_convert(drawn, torch.uint64)
    seen = _causal(b, query, key) if is_causal else None
    problem = Problem(b, query, key, value, scale, attn_bias, seen, rng, dropout_p)
    *gradients, grad_scores = problem.backward(grad, out, logsumexp)
    grad_bias = None
    if attn_bias is not None:
        wanted = grad_input_mask[3]
        grad_bias = _sum_to(b, grad_scores, attn_bias.shape) if wanted else b.full(attn_bias.shape, 0, attn_bias.dtype)
    return *gradients, grad_bias


def _sum_to(b: Builder, x: Value, shape: tuple[int, ...]) -> Value:
    """The gradient of broadcasting `shape` to x's."""
    full = (1,) * (x.ndim - len(shape)) + shape
    dims = [i for i, (size, wanted) in enumerate(zip(x.shape, full)) if size != wanted]
    return b.reduce_sum(x, dims).reshape(*shape) if dims else x.reshape(*shape)


# ---- the op behind torch.nn.attention.varlen: sequences joined end to end, [tokens, heads, depth]


class _Joined:
    """Where the sequences of a joined tensor begin and end."""

    def __init__(self, b: Builder, ends: Value, longest: int, tokens: int) -> None:
        self.b = b
        self.longest = longest
        self.tokens = tokens
        self.count = ends.shape[0] - 1
        ends = ends.to(torch.int32)
        self.start = b.slice_dim(ends, 0, 0, self.count)
        self.length = b.slice_dim(ends, 0, 1, self.count + 1) - self.start

    def split(self, x: Value) -> Value:
        """[tokens, heads, depth] as [sequences, heads, longest, depth]; past a sequence's end stands anything."""
        b = self.b
        place = b.unsqueeze(self.start, 1) + b.iota((self.count, self.longest), 1, torch.int32)
        return b.swap_dims(self._rows(x, place), 1, 2)

    def join(self, x: Value) -> Value:
        """The inverse of split."""
        b = self.b
        token = b.iota((self.tokens, self.count), 0, torch.int32)
        begun = (token >= b.unsqueeze(self.start, 0)).to(torch.int32)
        # Of empty sequences that begin where another one does, the last is the one with the token.
        sequence = b.reduce_sum(begun, [1]) - 1
        start = b.reduce_max(b.select(begun.ne(0), b.unsqueeze(self.start, 0), 0), [1])
        place = sequence * self.longest + b.iota((self.tokens,), 0, torch.int32) - start
        rows = b.swap_dims(x, 1, 2)
        return self._rows(rows.reshape(self.count * self.longest, *rows.shape[2:]), place)

    def _rows(self, x: Value, place: Value) -> Value:
        b, rest = self.b, x.shape[1:]
        return b.gather(
            x,
            b.unsqueeze(place, -1),
            [1, *rest],
            offset_dims=[place.ndim + i for i in range(len(rest))],
            collapsed_dims=[0],
            start_index_map=[0],
            index_vector_dim=place.ndim,
        )


class _Layout:
    """Flash attention's inputs, [batch, length, heads, depth] or joined, in the order the products take."""

    def __init__(
        self, b: Builder, query: Value, key: Value, ends: tuple[Value | None, Value | None], longest: tuple[int, int]
    ) -> None:
        self.b = b
        self.joined = [
            None if e is None else _Joined(b, e, n, x.shape[0]) for x, e, n in zip((query, key), ends, longest)
        ]

    def split(self, x: Value, side: int) -> Value:
        joined = self.joined[side]
        return self.b.swap_dims(x, 1, 2) if joined is None else joined.split(x)

    def join(self, x: Value, side: int) -> Value:
        joined = self.joined[side]
        return self.b.swap_dims(x, 1, 2) if joined is None else joined.join(x)

    def seen(
        self, shape: tuple[int, ...], causal: bool, window: tuple[int | None, int | None], used: Value | None
    ) -> Value | None:
        """Which keys a query sees; with a different number of keys, the last query is level with the last key."""
        b = self.b
        left, right = (-1 if w is None else w for w in window)
        if causal:
            right = 0
        lengths = [
            b.full((1,), n, torch.int32) if joined is None else joined.length
            for joined, n in zip(self.joined, shape[2:])
        ]
        if used is not None:
            lengths[1] = used.to(torch.int32)
        queries, keys = (x.reshape(x.shape[0], 1, 1, 1) for x in lengths)
        query, key = (b.iota((1, 1, *shape[2:]), d, torch.int32) for d in (2, 3))
        level = query + (keys - queries)
        conditions = []
        if self.joined[0] is not None:
            conditions.append(query < queries)
        if self.joined[1] is not None or used is not None:
            conditions.append(key < keys)
        if left >= 0:
            conditions.append(key >= level - left)
        if right >= 0:
            conditions.append(key <= level + right)
        return functools.reduce(b.and_, conditions) if conditions else None


def _only(dropout: float, alibi_slopes: Value | None, block_table: Value | None) -> None:
    for name, given in (("dropout", dropout), ("alibi_slopes", alibi_slopes), ("block_table", block_table)):
        if given:
            raise LoweringError(f"flash attention with {name} is not supported on tpu")


@lower(aten._flash_attention_forward.default, static=("dropout_p",))
def flash_attention(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    cum_seq_q: Value | None,
    cum_seq_k: Value | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: Operand | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Value | None = None,
    alibi_slopes: Value | None = None,
    block_table: Value | None = None,
    num_splits: int | None = None,
) -> tuple[Value, ...]:
    _only(dropout_p, alibi_slopes, block_table)
    layout = _Layout(b, query, key, (cum_seq_q, cum_seq_k), (max_q, max_k))
    problem = Problem(b, layout.split(query, 0), layout.split(key, 1), layout.split(value, 1), scale)
    problem.seen = layout.seen(problem.scores_shape, is_causal, (window_size_left, window_size_right), seqused_k)
    out, logsumexp = problem.forward()
    if cum_seq_q is not None:
        logsumexp = b.transpose(layout.join(b.unsqueeze(logsumexp, -1), 0), [1, 0, 2]).reshape(
            query.shape[1], query.shape[0]
        )
    state = b.full((2,), 0, torch.uint64)
    nothing = b.full((0,), 0, query.dtype)
    return layout.join(out, 0), logsumexp, state, b.full((), 0, torch.uint64), nothing


@lower(aten._flash_attention_backward.default, static=("dropout_p",))
def flash_attention_backward(
    b: Builder,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    cum_seq_q: Value | None,
    cum_seq_k: Value | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Value,
    unused: Value,
    *,
    scale: Operand | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Value, ...]:
    _only(dropout_p, None, None)
    layout = _Layout(b, query, key, (cum_seq_q, cum_seq_k), (max_q, max_k))
    problem = Problem(b, layout.split(query, 0), layout.split(key, 1), layout.split(value, 1), scale)
    problem.seen = layout.seen(problem.scores_shape, is_causal, (window_size_left, window_size_right), None)
    if cum_seq_q is not None:
        logsumexp = layout.split(b.unsqueeze(b.transpose(logsumexp, [1, 0]), -1), 0)
        logsumexp = logsumexp.reshape(*logsumexp.shape[:3])
    gradients = problem.backward(layout.split(grad, 0), layout.split(out, 0), logsumexp)[:3]
    return tuple(layout.join(x, side) for x, side in zip(gradients, (0, 1, 1)))


@python_op(aten._flash_attention_forward_no_dropout_inplace.default)
def flash_attention_into(target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    out, logsumexp, *_ = aten._flash_attention_forward.default(*args, **kwargs)
    target.copy_(out)
    result: torch.Tensor = logsumexp
    return result
