"""The fused cells that nn.LSTM and nn.GRU call at each time step on an accelerator, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .meta import meta
from .registry import lower, python_call

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten


def _chunks(b: Builder, x: Value, count: int) -> list[Value]:
    """Equal parts of the last dim, in the dtype to compute in."""
    size = x.shape[-1] // count
    x = x.to(dtypes.opmath(x.dtype))
    return [b.slice_dim(x, x.ndim - 1, i * size, (i + 1) * size) for i in range(count)]


def _join(b: Builder, xs: list[Value]) -> Value:
    return b.concatenate(xs, xs[0].ndim - 1)


def _gates(b: Builder, product: Value, bias: Value | None, count: int) -> list[Value]:
    """The parts of a gate's product with its bias added."""
    product = product.to(dtypes.opmath(product.dtype))
    return _chunks(b, product if bias is None else product + bias.to(product.dtype), count)


@lower(aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    b: Builder, inputs: Value, hidden: Value, cx: Value, input_bias: Value | None = None, bias: Value | None = None
) -> tuple[Value, Value, Value]:
    pairs = zip(_gates(b, inputs, input_bias, 4), _gates(b, hidden, bias, 4))
    i, f, g, o = (x + y for x, y in pairs)
    i, f, g, o = b.logistic(i), b.logistic(f), b.tanh(g), b.logistic(o)
    cy = f * cx.to(f.dtype) + i * g
    return o * b.tanh(cy), cy, _join(b, [i, f, g, o])


@python_call(aten._thnn_fused_lstm_cell.default, when=lambda x, h, c, input_bias=None, bias=None: input_bias is None)
def lstm_cell_without_bias(inputs: torch.Tensor, hidden: torch.Tensor, cx: torch.Tensor, *_: None) -> Any:
    """PyTorch's meta kernel reads the device of a bias even if there is none."""
    zero = inputs.new_zeros(inputs.shape[1])
    return aten._thnn_fused_lstm_cell(inputs, hidden, cx, zero, zero)


@lower(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(
    b: Builder, grad_hy: Value | None, grad_cy: Value | None, cx: Value, cy: Value, workspace: Value, has_bias: bool
) -> tuple[Value | None, ...]:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = _chunks(b, workspace, 4)
    tanh = b.tanh(cy.to(o.dtype))
    zero = b.full((), 0, o.dtype)
    grad_h = zero if grad_hy is None else grad_hy.to(o.dtype)
    grad_c = grad_h * o * (1 - tanh * tanh) + (zero if grad_cy is None else grad_cy.to(o.dtype))
    grads = [
        grad_c * g * i * (1 - i),
        grad_c * cx.to(o.dtype) * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_h * tanh * o * (1 - o),
    ]
    grad_gates = _join(b, [b.broadcast_to(x, i.shape) for x in grads])
    return grad_gates, grad_c * f, b.reduce_sum(grad_gates, (0,)) if has_bias else None


@meta(aten._thnn_fused_gru_cell.default)
def _gru_cell_meta(
    inputs: torch.Tensor,
    hidden: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    hy = torch.empty_like(hx, memory_format=torch.contiguous_format)
    return hy, hx.new_empty(hx.shape[0], 5 * hx.shape[1])


@lower(aten._thnn_fused_gru_cell.default)
def gru_cell(
    b: Builder, inputs: Value, hidden: Value, hx: Value, input_bias: Value | None = None, bias: Value | None = None
) -> tuple[Value, Value]:
    input_r, input_z, input_n = _gates(b, inputs, input_bias, 3)
    hidden_r, hidden_z, hidden_n = _gates(b, hidden, bias, 3)
    r, z = b.logistic(input_r + hidden_r), b.logistic(input_z + hidden_z)
    n, h = b.tanh(input_n + r * hidden_n), hx.to(r.dtype)
    return n + z * (h - n), _join(b, [r, z, n, h, hidden_n])


@meta(aten._thnn_fused_gru_cell_backward.default)
def _gru_cell_backward_meta(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    batch, size = workspace.shape[0], workspace.shape[1] // 5
    gates = [workspace.new_empty(batch, 3 * size) for _ in range(2)]
    biases = [workspace.new_empty(3 * size) if has_bias else None for _ in range(2)]
    return *gates, grad_hy.new_empty(grad_hy.shape), *biases


@lower(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(b: Builder, grad_hy: Value, workspace: Value, has_bias: bool) -> tuple[Value | None, ...]:
    r, z, n, h, hidden_n = _chunks(b, workspace, 5)
    grad = grad_hy.to(r.dtype)
    grad_z = grad * (h - n) * z * (1 - z)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_r = grad_n * hidden_n * r * (1 - r)
    input_gates, hidden_gates = _join(b, [grad_r, grad_z, grad_n]), _join(b, [grad_r, grad_z, grad_n * r])
    biases = [b.reduce_sum(x, (0,)) if has_bias else None for x in (input_gates, hidden_gates)]
    return input_gates, hidden_gates, grad * z, *biases
