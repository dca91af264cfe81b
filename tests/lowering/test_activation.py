"""Activations and their backward ops against CPU torch."""

import math
from typing import Any

import pytest
import torch
from harness import check, run

aten = torch.ops.aten

EDGES = torch.tensor(
    [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.5, -6.5, 25.0, -25.0, math.inf, -math.inf, math.nan]
)
GRAD = torch.linspace(-1, 2, len(EDGES))

FORWARD: dict[Any, tuple[Any, ...]] = {
    aten.celu: (1.5,),
    aten.elu: (1.5, 1.0, 0.8),
    aten.gelu: (),
    aten.glu: (),
    aten.hardshrink: (0.4,),
    aten.hardsigmoid: (),
    aten.hardswish: (),
    aten.hardtanh: (-2.0, 0.7),
    aten.leaky_relu: (0.2,),
    aten.logit: (0.1,),
    aten.mish: (),
    aten.relu: (),
    aten.selu: (),
    aten.sigmoid: (),
    aten.silu: (),
    aten.softplus: (1.5, 10.0),
    aten.softshrink: (0.4,),
    aten.threshold: (0.3, -2.0),
}

BACKWARD: dict[Any, tuple[Any, ...]] = {
    aten.elu_backward: (1.5, 1.1, 0.8, False),
    aten.gelu_backward: (),
    aten.hardshrink_backward: (0.4,),
    aten.hardsigmoid_backward: (),
    aten.hardswish_backward: (),
    aten.hardtanh_backward: (-2.0, 0.7),
    aten.leaky_relu_backward: (0.2, False),
    aten.mish_backward: (),
    aten.sigmoid_backward: (),
    aten.silu_backward: (),
    aten.softplus_backward: (1.5, 10.0),
    aten.softshrink_backward: (0.4,),
    aten.tanh_backward: (),
    aten.threshold_backward: (0.3,),
}


@pytest.mark.parametrize("op", FORWARD, ids=str)
def test_forward(op: Any) -> None:
    x = EDGES[math.inf != EDGES] if op is aten.gelu else EDGES  # the CPU's gelu of inf is NaN in float32
    x = x[:14].reshape(7, 2) if op is aten.glu else x
    check(op, x, *FORWARD[op])
    if op is not aten.logit:
        check(op, torch.randn(2, 6).bfloat16(), *FORWARD[op])


@pytest.mark.parametrize("op", BACKWARD, ids=str)
def test_backward(op: Any) -> None:
    args = BACKWARD[op]
    finite = EDGES[:-3] if op is not aten.hardtanh_backward else EDGES
    grad = GRAD[: len(finite)]
    check(op, grad, *args, finite) if op is aten.elu_backward else check(op, grad, finite, *args)


def test_gelu_tanh() -> None:
    x, grad = torch.randn(64), torch.randn(64)
    check(aten.gelu, x, approximate="tanh")
    check(aten.gelu_backward, grad, x, approximate="tanh")


def test_elu_backward_from_the_result() -> None:
    y = torch.tensor([-0.9, -0.1, 0.0, 0.5, 2.0])
    check(aten.elu_backward, torch.randn(5), 1.0, 1.0, 1.0, True, y)


def test_prelu() -> None:
    x, weight, grad = torch.randn(2, 3), torch.rand(1, 3), torch.randn(2, 3)
    check(aten._prelu_kernel, x, weight)
    check(aten._prelu_kernel_backward, grad, x, weight)


def test_log_sigmoid() -> None:
    check(aten.log_sigmoid_forward, EDGES[:-3])
    _, buffer = aten.log_sigmoid_forward(EDGES)
    check(aten.log_sigmoid_backward, GRAD, EDGES, buffer)


def test_glu_backward() -> None:
    check(aten.glu_backward, torch.randn(2, 3), torch.randn(2, 6), 1)
    check(aten.glu_jvp, torch.randn(2, 3), torch.randn(2, 6), torch.randn(2, 6), 1)


def test_rrelu_backward() -> None:
    x, noise = torch.randn(6), torch.rand(6)
    check(aten.rrelu_with_noise_backward, torch.randn(6), x, noise, 0.1, 0.3, True, False)
    check(aten.rrelu_with_noise_backward, torch.randn(6), x, noise, 0.1, 0.3, False, False)


def test_logit_backward() -> None:
    x = torch.tensor([0.05, 0.3, 0.95])
    check(aten.logit_backward, torch.ones(3), x)
    check(aten.logit_backward, torch.ones(3), x, 0.1)


def test_relu_keeps_the_sign_of_zero() -> None:
    assert run(aten.relu, torch.tensor([-0.0])).signbit().item()
