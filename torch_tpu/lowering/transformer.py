"""The ops behind nn.MultiheadAttention and nn.TransformerEncoderLayer when they run without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .meta import meta
from .registry import decompose, lower, python_call

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    batch, length, _ = query.shape
    depth = embed_dim // num_head
    projected = map(F.linear, (query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3))
    q, k, v = (x.reshape(batch, -1, num_head, depth).transpose(1, 2) for x in projected)
    scores = q / math.sqrt(depth) @ k.transpose(2, 3)
    weights = scores.softmax(-1) if mask is None else aten._masked_softmax(scores, mask.bool(), -1, mask_type)
    out = F.linear((weights @ v).transpose(1, 2).reshape(batch, length, embed_dim), proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _multi_head_attention(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    out, weights = _attend(*args, **kwargs)
    return out, out.new_zeros(0) if weights is None else weights  # as the meta kernel says


def _without_weights(*args: Any, need_weights: bool = True, **_: Any) -> bool:
    return not (args[10] if len(args) > 10 else need_weights)


# PyTorch's kernels return no tensor where weights are not needed, its meta kernel an empty one.
python_call(aten._native_multi_head_attention.default, when=_without_weights)(_attend)
decompose(aten._native_multi_head_attention.default, using=_multi_head_attention)


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    def attend(x: Tensor) -> Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _attend(x, x, x, embed_dim, num_heads, *weights, mask, need_weights=False, mask_type=mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        activation: Callable[[Tensor], Tensor] = F.gelu if use_gelu else F.relu
        return F.linear(activation(F.linear(x, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        src = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return src + feed_forward(norm(src, norm_weight_2, norm_bias_2))
    src = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(src + feed_forward(src), norm_weight_2, norm_bias_2)


decompose(aten._transformer_encoder_layer_fwd.default, using=_encoder_layer)


@lower(aten._transform_bias_rescale_qkv.default)
def transform_bias_rescale_qkv(b: Builder, qkv: Value, bias: Value, num_heads: int) -> tuple[Value, ...]:
    batch, length, width = qkv.shape
    depth = width // 3 // num_heads
    parts = b.transpose((qkv + bias).reshape(batch, length, 3, num_heads, depth), [2, 0, 3, 1, 4])
    q, k, v = (b.slice_dim(parts, 0, i, i + 1).reshape(batch, num_heads, length, depth) for i in range(3))
    return q / math.sqrt(depth), k, v


@meta(aten._transform_bias_rescale_qkv.default)
def _transform_bias_rescale_qkv_meta(qkv: Tensor, bias: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    batch, length, width = qkv.shape
    shape = (batch, num_heads, length, width // 3 // num_heads)
    return qkv.new_empty(shape), qkv.new_empty(shape), qkv.new_empty(shape)
