"""Scaled dot product attention as one op, whose backward computes the probabilities anew instead of keeping them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from . import dtypes
from .philox import plane_words, unit
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten


@dataclass
class _Problem:
    """One call: batch and head make one dim; query heads that share a key head are stacked along the queries."""

    b: Builder
    query: Value  # [n, groups * length, depth]
    key: Value  # [n, keys, depth]
    value: Value  # [n, keys, value depth]
    bias: Value | None
    scale: Operand
    scores_shape: tuple[int, ...]  # [batch, query heads, length, keys]
    causal: bool
    dtype: torch.dtype  # of scores and accumulators
    rng: Value | None
    dropout: float

    def product(self, x: Value, y: Value, contract: tuple[int, int]) -> Value:
        return self.b.dot_general(x, y, contract=([contract[0]], [contract[1]]), batch=([0], [0]), dtype=self.dtype)

    def flat(self, scores: Value) -> Value:
        """Scores as the products take them: [n, groups * length, keys]."""
        return scores.reshape(self.query.shape[0], self.query.shape[1], self.key.shape[1])

    def scores(self) -> Value:
        b = self.b
        scores = self.product(self.query, self.key, (2, 2)).reshape(*self.scores_shape) * b.scalar(
            self.scale, self.dtype
        )
        if self.bias is not None:
            scores = scores + self.bias.to(self.dtype)
        if self.causal:
            length, keys = self.scores_shape[-2:]
            seen = b.iota((length, keys), 0, torch.int32) >= b.iota((length, keys), 1, torch.int32)
            scores = b.select(seen, scores, b.full((), -math.inf, self.dtype))
        return scores

    def drop(self, x: Value) -> Value:
        """x, shaped as the scores, where dropout keeps it, and scaled up for what it does not keep."""
        if self.rng is None:
            return x
        b = self.b
        word, next_word, *_ = plane_words(b, self.rng, self.scores_shape)
        kept = unit(b, word, next_word, torch.float32) >= self.dropout
        return b.select(kept, x * (1 / (1 - self.dropout) if self.dropout < 1 else 0.0), 0)


def _problem(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    bias: Value | None,
    causal: bool,
    scale: Operand | None,
    rng: Value | None,
    dropout: float,
) -> _Problem:
    batch, heads, length, depth = query.shape
    n = batch * key.shape[1]
    return _Problem(
        b,
        query.reshape(n, batch * heads // n * length, depth),
        key.reshape(n, *key.shape[2:]),
        value.reshape(n, *value.shape[2:]),
        bias,
        1 / math.sqrt(depth) if scale is None else scale,
        (batch, heads, length, key.shape[2]),
        causal,
        dtypes.opmath(query.dtype),
        rng,
        dropout,
    )


def _exp_minus(b: Builder, x: Value, y: Value) -> Value:
    """exp(x - y), and 0 where y is -inf: the row of a query that may see no key."""
    return b.exponential(x - b.select(b.is_neg_inf(y), 0, y))


def _forward(p: _Problem) -> tuple[Value, Value]:
    """(output as [n, groups * length, depth], logsumexp as [batch, heads, length])"""
    b = p.b
    scores = p.scores()
    largest = b.reduce_max(scores, [-1], keepdim=True)
    weights = _exp_minus(b, scores, largest)
    total = b.reduce_sum(weights, [-1], keepdim=True)
    out = p.product(p.flat(p.drop(weights)).to(p.value.dtype), p.value, (2, 1))
    divisor = b.select(total.eq(0), 1, total).reshape(*out.shape[:2], 1)
    lse = (largest + b.log(total)).reshape(*p.scores_shape[:-1])
    return out / divisor, lse


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
    p = _problem(b, query, key, value, attn_bias, is_causal, scale, rng, dropout_p)
    out, lse = _forward(p)
    drawn = b.full((2,), 0, torch.int64) if rng is None else b.bitcast_convert(rng, torch.int64)
    seed, offset = (b.slice_dim(drawn, 0, i, i + 1).reshape() for i in range(2))
    return out.reshape(*query.shape[:-1], value.shape[-1]), lse, None, None, None, None, seed, offset, None


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
    p = _problem(b, query, key, value, attn_bias, is_causal, scale, rng, dropout_p)
    weights = _exp_minus(b, p.scores(), logsumexp.to(p.dtype).reshape(*p.scores_shape[:-1], 1))
    flat_grad = grad.reshape(*p.query.shape[:2], value.shape[-1])
    grad_value = p.product(p.flat(p.drop(weights)).to(value.dtype), flat_grad, (1, 1))
    grad_weights = p.drop(p.product(flat_grad, p.value, (2, 2)).reshape(*p.scores_shape))
    delta = b.reduce_sum(grad.to(p.dtype) * out.to(p.dtype), [-1]).reshape(*p.scores_shape[:-1], 1)
    grad_scores = weights * (grad_weights - delta)
    scaled = p.flat(grad_scores * b.scalar(p.scale, p.dtype)).to(query.dtype)
    grad_query = p.product(scaled, p.key, (2, 1))
    grad_key = p.product(scaled, p.query, (1, 1))
    grad_bias = None
    if attn_bias is not None:
        wanted = grad_input_mask[3]
        grad_bias = _sum_to(b, grad_scores, attn_bias.shape) if wanted else b.full(attn_bias.shape, 0, p.dtype)
    return grad_query.reshape(*query.shape), grad_key.reshape(*key.shape), grad_value.reshape(*value.shape), grad_bias


def _sum_to(b: Builder, x: Value, shape: tuple[int, ...]) -> Value:
    """The gradient of broadcasting `shape` to x's."""
    full = (1,) * (x.ndim - len(shape)) + shape
    dims = [i for i, (size, wanted) in enumerate(zip(x.shape, full)) if size != wanted]
    return b.reduce_sum(x, dims).reshape(*shape) if dims else x.reshape(*shape)
