"""Losses and their gradients; those PyTorch composes of other ops need no rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import dtypes
from .elementwise import pointwise
from .meta import meta
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2  # at::Reduction


def _reduced(b: Builder, loss: Value, reduction: int) -> Value:
    if reduction == NONE:
        return loss
    total = b.reduce_sum(loss)
    return total / loss.numel if reduction == MEAN else total


def _share(grad: Value, reduction: int, numel: int) -> Value:
    """What each element's gradient is scaled by."""
    return grad / numel if reduction == MEAN else grad


def _numel(b: Builder, *xs: Value) -> int:
    numel = 1
    for size in b.broadcast_shape(*(x.shape for x in xs)):
        numel *= size
    return numel


# ---- regression


@pointwise(aten.mse_loss.default)
def mse_loss(b: Builder, x: Value, target: Value, reduction: int = MEAN) -> Value:
    difference = x - target
    return _reduced(b, difference * difference, reduction)


@pointwise(aten.mse_loss_backward.default)
def mse_loss_backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int) -> Value:
    return _share(2.0 * grad, reduction, _numel(b, x, target)) * (x - target)


@pointwise(aten.smooth_l1_loss.default)
def smooth_l1_loss(b: Builder, x: Value, target: Value, reduction: int = MEAN, beta: Operand = 1.0) -> Value:
    z = b.abs(x - target)
    return _reduced(b, b.select(z < beta, 0.5 * z * z / beta, z - 0.5 * beta), reduction)


@pointwise(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int, beta: Operand) -> Value:
    difference = x - target
    slope = b.select(b.abs(difference) >= beta, b.sign(difference), difference / beta)
    return slope * _share(grad, reduction, difference.numel)


@pointwise(aten.huber_loss.default)
def huber_loss(b: Builder, x: Value, target: Value, reduction: int = MEAN, delta: Operand = 1.0) -> Value:
    z = b.abs(x - target)
    return _reduced(b, b.select(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta)), reduction)


@pointwise(aten.huber_loss_backward.default)
def huber_loss_backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int, delta: Operand) -> Value:
    difference = x - target
    return b.clamp(difference, -1 * delta, delta) * _share(grad, reduction, difference.numel)


# ---- two classes


@pointwise(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    b: Builder, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    # PyTorch bounds the logarithms so that a certain mistake costs 100, not infinity.
    loss = (target - 1) * b.maximum(b.log_plus_one(-x), -100) - target * b.maximum(b.log(x), -100)
    return _reduced(b, loss if weight is None else loss * weight, reduction)


@pointwise(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    b: Builder, grad: Value, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    slope = _share(grad, reduction, x.numel) * (x - target) / b.maximum((1 - x) * x, 1e-12)
    return slope if weight is None else slope * weight


@pointwise(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    b: Builder,
    x: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    softplus = b.log_plus_one(b.exponential(-b.abs(x))) + b.maximum(-x, 0)  # log(1 + exp(-x))
    if pos_weight is not None:
        softplus = softplus * ((pos_weight - 1) * target + 1)
    loss = (1 - target) * x + softplus
    return _reduced(b, loss if weight is None else loss * weight, reduction)


@pointwise(aten.soft_margin_loss.default)
def soft_margin_loss(b: Builder, x: Value, target: Value, reduction: int = MEAN) -> Value:
    return _reduced(b, b.log_plus_one(b.exponential(-target * x)), reduction)


@pointwise(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int) -> Value:
    z = b.exponential(-target * x)
    return -target * z / (1 + z) * _share(grad, reduction, _numel(b, x, target))


# ---- many classes


def _class_dim(x: Value) -> int:
    return 1 if x.ndim > 1 else 0


def _pick(b: Builder, x: Value, index: Value, dim: int) -> Value:
    """x at `index` along `dim`, one element for each element of index; out of range takes the nearest."""
    if index.numel == 0:
        return b.full(index.shape, 0, x.dtype)
    others = [d for d in range(x.ndim) if d != dim]
    return b.gather(
        x,
        b.unsqueeze(index, -1),
        [1] * x.ndim,
        offset_dims=[],
        collapsed_dims=[dim],
        start_index_map=[dim],
        index_vector_dim=index.ndim,
        operand_batching_dims=others,
        indices_batching_dims=list(range(index.ndim)),
    )


def _target_weight(b: Builder, target: Value, weight: Value | None, ignore_index: int, dtype: torch.dtype) -> Value:
    """The weight of each target's class, 0 where it is ignored."""
    kept = target.ne(ignore_index)
    if weight is None:
        return kept.to(dtype)
    every = b.gather(
        weight.to(dtype),
        b.unsqueeze(target, -1),
        [1],
        offset_dims=[],
        collapsed_dims=[0],
        start_index_map=[0],
        index_vector_dim=target.ndim,
    )
    return b.select(kept, every, 0)


@lower(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    b: Builder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    dtype = dtypes.opmath(x.dtype)
    scale = _target_weight(b, target, weight, ignore_index, dtype)
    chosen = _pick(b, x, target, _class_dim(x)).to(dtype)
    # A product would turn an ignored infinity into NaN.
    loss = b.select(target.ne(ignore_index), -chosen * scale, 0)
    total_weight = b.reduce_sum(scale)
    if reduction == NONE:
        return loss, total_weight if x.ndim == 1 else b.full((), 0, dtype)
    total = b.reduce_sum(loss)
    return total / total_weight if reduction == MEAN else total, total_weight


@lower(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
) -> Value:
    dtype = dtypes.opmath(x.dtype)
    grad = grad.to(dtype)
    if reduction == MEAN:
        grad = grad / total_weight.to(dtype)
    dim = _class_dim(x)
    slope = b.broadcast_to(-grad, target.shape) * _target_weight(b, target, weight, ignore_index, dtype)
    classes = b.iota(x.shape, dim, target.dtype)
    # Selecting, not scattering, fuses with the softmax below.
    hit = classes.eq(b.unsqueeze(target, dim)) & b.unsqueeze(target.ne(ignore_index), dim)
    return b.select(hit, b.unsqueeze(slope, dim), 0)


def _margins(b: Builder, x: Value, target: Value, margin: Operand) -> tuple[Value, Value]:
    """(where a class is the target, margin - x[target] + x) of rows of classes."""
    hit = b.iota(x.shape, 1, target.dtype).eq(b.unsqueeze(target, 1))
    return hit, margin - b.unsqueeze(_pick(b, x, target, 1), 1) + x


def _rows(b: Builder, x: Value) -> Value:
    """A batch of one where PyTorch takes a single sample."""
    return b.reshape(x, (1, x.numel)) if x.ndim < 2 else x


@lower(aten.multi_margin_loss.default, static=("p",))
def multi_margin_loss(
    b: Builder,
    x: Value,
    target: Value,
    p: int = 1,
    margin: Operand = 1,
    weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    dtype = dtypes.opmath(x.dtype)
    rows, target = _rows(b, x.to(dtype)), target.reshape(target.numel)
    hit, z = _margins(b, rows, target, b.scalar(margin, dtype))
    z = b.maximum(z, 0)
    z = b.select(hit, 0, z if p == 1 else z * z)
    loss = b.reduce_sum(z, [1]) / rows.shape[1]
    if weight is not None:
        loss = loss * _target_weight(b, target, weight, -1, dtype)
    return _reduced(b, loss, reduction).reshape(*b.outputs[0].shape)  # type: ignore[union-attr]


@lower(aten.multi_margin_loss_backward.default, static=("p",))
def multi_margin_loss_backward(
    b: Builder,
    grad: Value,
    x: Value,
    target: Value,
    p: int,
    margin: Operand,
    weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    dtype = dtypes.opmath(x.dtype)
    rows, target = _rows(b, x.to(dtype)), target.reshape(target.numel)
    hit, z = _margins(b, rows, target, b.scalar(margin, dtype))
    slope = b.select(z > 0, 1.0 if p == 1 else 2.0 * z, 0.0) / rows.shape[1]
    if weight is not None:
        slope = slope * b.unsqueeze(_target_weight(b, target, weight, -1, dtype), 1)
    others = b.select(hit, 0, slope)
    slope = b.select(hit, -b.reduce_sum(others, [1], keepdim=True), others)
    grad = _share(grad.to(dtype), reduction, rows.shape[0])
    return (slope * (b.unsqueeze(grad, 1) if grad.ndim else grad)).reshape(*x.shape)


def _labels(b: Builder, rows: Value, target: Value) -> tuple[Value, Value]:
    """(which targets count: those before the first -1, which classes are one of them) of rows."""
    # Prefix "all non-negative" as a small product over pairs: every earlier target must be a label.
    n = target.shape[1]
    earlier = b.iota((n, n), 0, torch.int32) >= b.iota((n, n), 1, torch.int32)
    bad = (target < 0).reshape(target.shape[0], 1, n)
    counts = ~b.reduce_or(b.and_(b.broadcast_to(earlier, (target.shape[0], n, n)), bad), [2])
    classes = b.iota((*target.shape, n), 2, target.dtype)
    hits = classes.eq(b.unsqueeze(target, 2)) & b.unsqueeze(counts, 2)
    return counts, b.reduce_or(hits, [1])


@lower(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(b: Builder, x: Value, target: Value, reduction: int) -> tuple[Value, Value]:
    dtype = dtypes.opmath(x.dtype)
    rows, labels = _rows(b, x.to(dtype)), _rows(b, target)
    counts, is_target = _labels(b, rows, labels)
    z, used = _label_margins(b, rows, labels, counts, is_target)
    loss = b.reduce_sum(b.select(used, b.maximum(z, 0), 0), [1, 2]) / rows.shape[1]
    loss = _reduced(b, loss, reduction)
    return loss.reshape(*b.outputs[0].shape), is_target.to(x.dtype).reshape(*target.shape)  # type: ignore[union-attr]


def _label_margins(b: Builder, rows: Value, target: Value, counts: Value, is_target: Value) -> tuple[Value, Value]:
    """(1 - x[target] + x, whether that pair counts), over rows, targets and classes."""
    chosen = b.gather(
        rows,
        target,
        [1, 1],
        offset_dims=[],
        collapsed_dims=[1],
        start_index_map=[1],
        index_vector_dim=2,
        operand_batching_dims=[0],
        indices_batching_dims=[0],
    )
    z = 1.0 - b.unsqueeze(chosen, 2) + b.unsqueeze(rows, 1)
    return z, b.unsqueeze(counts, 2) & ~b.unsqueeze(is_target, 1)


@lower(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(
    b: Builder, grad: Value, x: Value, target: Value, reduction: int, is_target: Value
) -> Value:
    dtype = dtypes.opmath(x.dtype)
    rows, labels = _rows(b, x.to(dtype)), _rows(b, target)
    counts, marked = _labels(b, rows, labels)
    z, used = _label_margins(b, rows, labels, counts, marked)
    slope = (used & (z > 0)).to(dtype) / rows.shape[1]
    classes = b.iota((*labels.shape, rows.shape[1]), 2, labels.dtype)
    down = b.select(classes.eq(b.unsqueeze(labels, 2)), b.reduce_sum(slope, [2], keepdim=True), 0)
    grad = _share(grad.to(dtype), reduction, rows.shape[0])
    total = b.reduce_sum(slope, [1]) - b.reduce_sum(down, [1])
    return (total * (b.unsqueeze(grad, 1) if grad.ndim else grad)).reshape(*x.shape)


@meta(aten.multi_margin_loss_backward.default)
def _multi_margin_loss_backward(grad: torch.Tensor, x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@meta(aten.multilabel_margin_loss_backward.default)
def _multilabel_margin_loss_backward(grad: torch.Tensor, x: torch.Tensor, *args: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
