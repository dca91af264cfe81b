"""The fused LSTM and GRU cells against PyTorch's unfused cells and their gradients."""

from __future__ import annotations

import pytest
import torch
from harness import run

aten = torch.ops.aten
BATCH, SIZE = 3, 4


def _cell(kind: str, bias: bool, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gate products, states and biases of one step that need gradients, and the unfused cell's new states."""
    torch.manual_seed(0)
    gates = {"lstm": 4, "gru": 3}[kind] * SIZE
    products = [torch.randn(BATCH, gates, dtype=dtype).requires_grad_() for _ in range(2)]
    states = [torch.randn(BATCH, SIZE, dtype=dtype).requires_grad_() for _ in range(1)]
    biases = [torch.randn(gates, dtype=dtype).requires_grad_() for _ in range(2)] if bias else []
    x, h = (p + b for p, b in zip(products, biases)) if bias else products
    (state,) = states
    if kind == "lstm":
        i, f, g, o = (x + h).chunk(4, 1)
        cy = f.sigmoid() * state + i.sigmoid() * g.tanh()
        new = [o.sigmoid() * cy.tanh(), cy]
    else:
        (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), h.chunk(3, 1)
        z, n = (xz + hz).sigmoid(), (xn + (xr + hr).sigmoid() * hn).tanh()
        new = [n + z * (state - n)]
    return [*products, *states, *biases], new


@pytest.mark.parametrize(("kind", "bias"), [("lstm", True), ("gru", True), ("gru", False)])
def test_cell(kind: str, bias: bool) -> None:
    inputs, expected = _cell(kind, bias, torch.float32)
    op = {"lstm": aten._thnn_fused_lstm_cell, "gru": aten._thnn_fused_gru_cell}[kind]
    *new, workspace = run(op, *(x.detach() for x in inputs))
    torch.testing.assert_close(new, [x.detach() for x in expected])

    grads = [torch.randn_like(x) for x in new]
    reference = torch.autograd.grad(expected, inputs, grads)
    if kind == "lstm":
        backward = aten._thnn_fused_lstm_cell_backward_impl
        gates, state, *biases = run(backward, *grads, inputs[2].detach(), new[1], workspace, bias)
        ours = [gates, gates, state, *biases * 2]
    else:
        ours = run(aten._thnn_fused_gru_cell_backward, *grads, workspace, bias)
    for mine, wanted in zip(ours, reference):
        torch.testing.assert_close(mine, wanted)
    assert all(x is None for x in ours[len(reference) :])


@pytest.mark.parametrize("missing", [0, 1])
def test_lstm_with_the_gradient_of_one_state(missing: int) -> None:
    inputs, expected = _cell("lstm", True, torch.float32)
    *new, workspace = run(aten._thnn_fused_lstm_cell, *(x.detach() for x in inputs))
    grads = [torch.randn_like(x) for x in new]
    given = [None if i == missing else g for i, g in enumerate(grads)]
    used = 1 - missing
    reference = torch.autograd.grad(expected[used], inputs, grads[used])
    backward = aten._thnn_fused_lstm_cell_backward_impl
    gates, state, bias = run(backward, *given, inputs[2].detach(), new[1], workspace, True)
    for mine, wanted in zip([gates, state, bias], [reference[0], reference[2], reference[3]]):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_bfloat16_rounds_once(kind: str) -> None:
    inputs, _ = _cell(kind, True, torch.bfloat16)
    op = {"lstm": aten._thnn_fused_lstm_cell, "gru": aten._thnn_fused_gru_cell}[kind]
    new, *_ = run(op, *(x.detach() for x in inputs))
    exact, *_ = run(op, *(x.detach().float() for x in inputs))
    assert new.dtype == torch.bfloat16
    torch.testing.assert_close(new, exact.bfloat16(), rtol=1e-2, atol=1e-2)
