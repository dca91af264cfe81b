"""Batch normalization: the single-device ops, and the pieces that SyncBatchNorm exchanges statistics with.

Statistics are over every dim but 1; vectors of channels are kept as such and broadcast along dim 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from . import dtypes
from .meta import meta
from .normalization import gradient_through, moments
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten

Result = list["Value | None"]
RUNNING = ("running_mean", "running_var")


def _along(b: Builder, values: Value, x: Value) -> Value:
    """A vector of channels at x's shape and dtype."""
    return b.broadcast_in_dim(values.to(x.dtype), x.shape, [1])


def _others(x: Value) -> list[int]:
    return [0, *range(2, x.ndim)]


def _statistics(b: Builder, x: Value) -> tuple[Value, Value]:
    """Mean and biased variance of each channel."""
    mean, variance = moments(b, x, _others(x))
    return b.reshape(mean, (x.shape[1],)), b.reshape(variance, (x.shape[1],))


def _apply(b: Builder, x: Value, mean: Value, rstd: Value, weight: Value | None, bias: Value | None) -> Value:
    out = (x - _along(b, mean, x)) * _along(b, rstd, x)
    if weight is not None:
        out = out * _along(b, weight, x)
    return out if bias is None else out + _along(b, bias, x)


def _updated(b: Builder, running: Value | None, value: Value, momentum: Operand) -> Value | None:
    """The exponential moving average after seeing value."""
    if running is None:
        return None
    rate = b.scalar(momentum, value.dtype)
    return ((1.0 - rate) * running.to(value.dtype) + rate * value).to(running.dtype)


def _count(x: Value) -> float:
    return float(x.numel // max(1, x.shape[1]))


def _unbiased(b: Builder, variance: Value, count: Operand) -> Value:
    """Infinite or NaN for one value, as PyTorch has it."""
    n = b.scalar(count, variance.dtype)
    return variance * b.divide(n, n - 1.0)


def _train(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: Operand,
    eps: Operand,
) -> tuple[Result, Result]:
    """(result, saved mean, saved rstd), (new running mean, new running variance)."""
    x = x.to(dtypes.opmath(x.dtype))
    mean, variance = _statistics(b, x)
    rstd = b.rsqrt(variance + b.scalar(eps, x.dtype))
    running: Result = [
        _updated(b, running_mean, mean, momentum),
        _updated(b, running_var, _unbiased(b, variance, _count(x)), momentum),
    ]
    return [_apply(b, x, mean, rstd, weight, bias), mean, rstd], running


def _infer(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    eps: Operand,
) -> Result:
    """(result, mean, rstd) with the running statistics."""
    assert running_mean is not None
    assert running_var is not None
    x = x.to(dtypes.opmath(x.dtype))
    mean, rstd = running_mean.to(x.dtype), b.rsqrt(running_var.to(x.dtype) + b.scalar(eps, x.dtype))
    return [_apply(b, x, mean, rstd, weight, bias), *(_saved(b, v, i + 1) for i, v in enumerate((mean, rstd)))]


def _saved(b: Builder, value: Value, index: int) -> Value:
    """Without training nothing need be saved: PyTorch's CPU gives empty tensors, its meta functions the statistics."""
    spec = b.outputs[index]
    return value if spec is None or spec.shape == value.shape else b.full(spec.shape, 0, value.dtype)


@lower(aten.native_batch_norm, aten._native_batch_norm_legit.default, mutates=RUNNING)
def native_batch_norm(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: Operand,
    eps: Operand,
) -> Result:
    if not training:
        return [*_infer(b, x, weight, bias, running_mean, running_var, eps), None, None]
    results, running = _train(b, x, weight, bias, running_mean, running_var, momentum, eps)
    return [*results, *running]


@lower(aten._native_batch_norm_legit_functional)
def native_batch_norm_functional(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: Operand,
    eps: Operand,
) -> Result:
    if not training:
        return [*_infer(b, x, weight, bias, running_mean, running_var, eps), running_mean, running_var]
    results, running = _train(b, x, weight, bias, running_mean, running_var, momentum, eps)
    return [*results, *running]


@lower(aten._native_batch_norm_legit.no_stats)
def native_batch_norm_without_statistics(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: Operand, eps: Operand
) -> Result:
    return _train(b, x, weight, bias, None, None, momentum, eps)[0]


@lower(aten._native_batch_norm_legit_no_training)
def native_batch_norm_without_training(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: Operand,
    eps: Operand,
) -> Result:
    return _infer(b, x, weight, bias, running_mean, running_var, eps)


def _reserve(b: Builder) -> Value:
    """What cuDNN would keep for its backward: nothing."""
    return b.full((0,), 0, torch.uint8)


@lower(aten._batch_norm_with_update.default, mutates=RUNNING)
def batch_norm_with_update(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: Operand,
    eps: Operand,
) -> Result:
    results, running = _train(b, x, weight, bias, running_mean, running_var, momentum, eps)
    return [*results, _reserve(b), *running]


lower(aten._batch_norm_with_update_functional)(batch_norm_with_update)


@lower(aten._batch_norm_no_update)
def batch_norm_no_update(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: Operand,
    eps: Operand,
) -> Result:
    return [*_infer(b, x, weight, bias, running_mean, running_var, eps), _reserve(b)]


@lower(aten.native_batch_norm_backward)
def native_batch_norm_backward(
    b: Builder,
    g: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_rstd: Value | None,
    train: bool,
    eps: Operand,
    output_mask: Sequence[bool],
) -> Result:
    dtype = dtypes.opmath(x.dtype)
    g, x = g.to(dtype), x.to(dtype)
    if train:
        mean, rstd = save_mean, save_rstd
    else:
        assert running_var is not None
        mean, rstd = running_mean, b.rsqrt(running_var.to(dtype) + b.scalar(eps, dtype))
    assert mean is not None
    assert rstd is not None
    spread = _along(b, rstd, x)
    normal = (x - _along(b, mean, x)) * spread
    scaled = g if weight is None else g * _along(b, weight, x)
    others = _others(x)
    by_x = None
    if output_mask[0]:
        by_x = gradient_through(b, scaled, normal, spread, others) if train else scaled * spread
    return [
        by_x,
        b.reduce_sum(g * normal, others) if output_mask[1] else None,
        b.reduce_sum(g, others) if output_mask[2] else None,
    ]


@lower(aten.batch_norm_backward)
def batch_norm_backward(
    b: Builder,
    g: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_rstd: Value | None,
    update: bool,
    eps: Operand,
    output_mask: Sequence[bool],
    reserve: Value,
) -> Result:
    return native_batch_norm_backward(
        b, g, x, weight, running_mean, running_var, save_mean, save_rstd, update, eps, output_mask
    )


# ---- SyncBatchNorm: statistics of a part, of all parts, and the two halves of the backward


@lower(aten.batch_norm_stats)
def batch_norm_stats(b: Builder, x: Value, eps: Operand) -> list[Value]:
    x = x.to(dtypes.opmath(x.dtype))
    mean, variance = _statistics(b, x)
    return [mean, b.rsqrt(variance + b.scalar(eps, x.dtype))]


@lower(aten.batch_norm_update_stats, mutates=RUNNING)
def batch_norm_update_stats(
    b: Builder, x: Value, running_mean: Value | None, running_var: Value | None, momentum: Operand
) -> Result:
    x = x.to(dtypes.opmath(x.dtype))
    mean, variance = _statistics(b, x)
    unbiased = _unbiased(b, variance, _count(x))
    return [
        mean,
        variance,
        _updated(b, running_mean, mean, momentum),
        _updated(b, running_var, unbiased, momentum),
    ]


@lower(aten.batch_norm_gather_stats_with_counts, mutates=RUNNING)
def batch_norm_gather_stats_with_counts(
    b: Builder,
    x: Value,
    mean: Value,
    rstd: Value,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: Operand,
    eps: Operand,
    counts: Value,
) -> Result:
    """Merge the statistics of the parts: mean and rstd (parts, channels), counts (parts)."""
    dtype = dtypes.opmath(mean.dtype)
    mean, rstd = mean.to(dtype), rstd.to(dtype)
    epsilon = b.scalar(eps, dtype)
    weights = b.broadcast_in_dim(counts.to(dtype), mean.shape, [0])
    total = b.reduce_sum(counts.to(dtype))
    merged = b.divide(b.reduce_sum(mean * weights, [0]), total)
    variance = b.divide(b.full((), 1.0, dtype), rstd * rstd) - epsilon
    away = mean - merged
    variance = b.divide(b.reduce_sum((variance + away * away) * weights, [0]), total)
    return [
        merged,
        b.rsqrt(variance + epsilon),
        _updated(b, running_mean, merged, momentum),
        _updated(b, running_var, _unbiased(b, variance, total), momentum),
    ]


@lower(aten.batch_norm_gather_stats, mutates=RUNNING)
def batch_norm_gather_stats(
    b: Builder,
    x: Value,
    mean: Value,
    rstd: Value,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: Operand,
    eps: Operand,
    count: int,
) -> Result:
    counts = b.full(mean.shape[:1], count, mean.dtype)
    return batch_norm_gather_stats_with_counts(b, x, mean, rstd, running_mean, running_var, momentum, eps, counts)


@lower(aten.batch_norm_elemt)
def batch_norm_elemt(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value, rstd: Value, eps: Operand
) -> Value:
    return _apply(b, x.to(dtypes.opmath(x.dtype)), mean, rstd, weight, bias)


@lower(aten.batch_norm_backward_reduce)
def batch_norm_backward_reduce(
    b: Builder,
    g: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> Result:
    dtype = dtypes.opmath(x.dtype)
    g, x = g.to(dtype), x.to(dtype)
    total = b.reduce_sum(g, _others(x))
    along = b.reduce_sum(g * (x - _along(b, mean, x)), _others(x))
    return [
        total if input_g else None,
        along if input_g else None,
        along * rstd.to(dtype) if weight_g else None,
        total if bias_g else None,
    ]


@lower(aten.batch_norm_backward_elemt)
def batch_norm_backward_elemt(
    b: Builder,
    g: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    sum_dy: Value,
    sum_dy_xmu: Value,
    count: Value,
) -> Value:
    dtype = dtypes.opmath(x.dtype)
    g, x, rstd = g.to(dtype), x.to(dtype), rstd.to(dtype)
    total = b.reduce_sum(count.to(dtype))
    mean_dy, mean_dy_xmu = (b.divide(v.to(dtype), total) for v in (sum_dy, sum_dy_xmu))
    centered = x - _along(b, mean, x)
    out = (g - _along(b, mean_dy, x) - centered * _along(b, mean_dy_xmu * rstd * rstd, x)) * _along(b, rstd, x)
    return out if weight is None else out * _along(b, weight, x)


# ---- their metadata: `mean` and its like are (channels,)


@meta(aten.batch_norm_stats.default)
def _meta_stats(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
    dtype = dtypes.opmath(x.dtype)
    return x.new_empty((x.shape[1],), dtype=dtype), x.new_empty((x.shape[1],), dtype=dtype)


@meta(aten.batch_norm_update_stats.default)
def _meta_update(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, ...]:
    return x.new_empty((x.shape[1],)), x.new_empty((x.shape[1],))


@meta(aten.batch_norm_gather_stats.default, aten.batch_norm_gather_stats_with_counts.default)
def _meta_gather(x: torch.Tensor, mean: torch.Tensor, *_: object) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(mean[0]), torch.empty_like(mean[0])


@meta(aten.batch_norm_elemt.default)
def _meta_elemt(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x)


@meta(aten.batch_norm_backward_reduce.default)
def _meta_reduce(
    g: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[torch.Tensor | None, ...]:
    of_weight = mean if weight is None else weight
    wanted = (input_g, mean), (input_g, mean), (weight_g, of_weight), (bias_g, of_weight)
    return tuple(torch.empty_like(like) if asked else None for asked, like in wanted)


@meta(aten.batch_norm_backward_elemt.default)
def _meta_backward_elemt(g: torch.Tensor, x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x)
