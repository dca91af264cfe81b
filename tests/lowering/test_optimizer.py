"""Foreach ops, fused optimizers and gradient scaling against CPU torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import check

from torch_tpu.lowering.registry import resolve, rule_for

aten = torch.ops.aten


def _list(positive: bool = False) -> list[torch.Tensor]:
    xs = [torch.randn(2, 3), torch.randn(4)]
    return [x.abs() + 0.5 if positive else x for x in xs]


def test_unary() -> None:
    for name in ("abs", "neg", "sqrt", "rsqrt", "reciprocal", "exp", "log", "sign", "zero", "clone", "max", "floor"):
        check(getattr(aten, f"_foreach_{name}"), _list(positive=True))


def test_binary() -> None:
    x, y = _list(), _list(positive=True)
    check(aten._foreach_add.List, x, y, alpha=0.5)
    check(aten._foreach_add.Scalar, x, 2)
    check(aten._foreach_add.ScalarList, x, [2.0, 3.0])
    check(aten._foreach_add.Tensor, x, torch.tensor(2.0), alpha=3)
    check(aten._foreach_div.List, x, y)
    check(aten._foreach_mul.ScalarList, x, [2.0, 3.0])
    check(aten._foreach_sub.List, x, y, alpha=2)
    check(aten._foreach_maximum.Scalar, x, 0.1)
    check(aten._foreach_clamp_max.ScalarList, x, [0.1, -0.2])
    check(aten._foreach_pow.ScalarAndTensor, 0.9, y)
    check(aten._foreach_pow.Scalar, y, 0.5)


def test_ternary_and_norm() -> None:
    x, y, z = _list(), _list(), _list(positive=True)
    check(aten._foreach_addcmul.Scalar, x, y, z, 0.3)
    check(aten._foreach_addcdiv.ScalarList, x, y, z, [0.3, -1.0])
    check(aten._foreach_lerp.Scalar, x, y, 0.3)
    check(aten._foreach_lerp.List, x, y, z)
    check(aten._foreach_lerp.ScalarList, x, y, [0.3, 0.7])
    check(aten._foreach_norm.Scalar, x)
    check(aten._foreach_norm.Scalar, x, float("inf"))
    check(aten._foreach_norm.Scalar, [x[0].bfloat16()], 1, torch.float32)


def test_mixed_dtypes() -> None:
    x = [torch.randn(3).bfloat16(), torch.arange(4)]
    check(aten._foreach_add.Scalar, x, 2, exact=True)
    check(aten._foreach_mul.List, x, [torch.randn(3), torch.ones(4)])


def test_every_foreach_op_has_a_rule() -> None:
    lists = {"_foreach_copy", "_foreach_powsum"}  # PyTorch composes these: the sources may be on another device
    for name in dir(aten):
        if not name.startswith("_foreach_") or name.endswith("_") or name in lists:
            continue
        packet = getattr(aten, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if not op._schema.is_mutable and overload != "Tensor":
                assert rule_for(op) is not None, op


@pytest.mark.parametrize("bad", [False, True])
def test_gradient_scaling(bad: bool) -> None:
    grads = [torch.randn(3), torch.randn(2, 2)]
    if bad:
        grads[1][0, 0] = torch.inf
    check(aten._amp_foreach_non_finite_check_and_unscale, grads, torch.zeros(1), torch.tensor(0.25))
    found = torch.full((), float(bad))
    for tracker in (0, 1):
        tracked = torch.tensor(tracker, dtype=torch.int32)
        check(aten._amp_update_scale, torch.tensor(8.0), tracked, found, 2.0, 0.5, 2)
    huge = torch.tensor(3e38)
    check(aten._amp_update_scale, huge, torch.tensor(1, dtype=torch.int32), found, 2.0, 0.5, 2)


def _state(n: int) -> list[list[torch.Tensor]]:
    return [[torch.rand(2, 3) + 0.1, torch.rand(4) + 0.1] for _ in range(n)]


SCALING: list[dict[str, Any]] = [
    {},
    {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)},
    {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(1.0)},
]


@pytest.mark.parametrize("scaling", SCALING)
@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
def test_fused_adam(name: str, scaling: dict[str, Any]) -> None:
    steps = [torch.tensor(3.0), torch.tensor(1000.0)]
    hyper = dict(beta1=0.9, beta2=0.999, weight_decay=0.1, eps=1e-8, maximize=False, **scaling)
    op = getattr(aten, name)
    params, grads, avgs, squares, largest = _state(5)
    check(op.default, params, grads, avgs, squares, [], steps, lr=0.01, amsgrad=False, **hyper, atol=0, rtol=1e-5)
    hyper["maximize"] = True
    check(op.tensor_lr, params, grads, avgs, squares, largest, steps, lr=torch.tensor(0.01), amsgrad=True, **hyper)


@pytest.mark.parametrize("scaling", SCALING)
def test_fused_sgd_and_adagrad(scaling: dict[str, Any]) -> None:
    params, grads, buffers = _state(3)
    hyper = dict(weight_decay=0.1, maximize=False, **scaling)
    for first, nesterov, kept in ((True, False, buffers), (False, True, buffers), (False, False, [])):
        kind = {"momentum": 0.9 if kept else 0.0, "nesterov": nesterov, "is_first_step": first}
        check(aten._fused_sgd.default, params, grads, kept, lr=0.1, dampening=0.1, **kind, **hyper)
    steps = [torch.tensor(3.0), torch.tensor(5.0)]
    check(aten._fused_adagrad.default, params, grads, buffers, steps, lr=0.1, lr_decay=0.2, eps=1e-10, **hyper)


def test_narrow_parameters_are_updated_in_float32() -> None:
    params, grads, avgs, squares = ([x.bfloat16() for x in xs] for xs in _state(4))
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    hyper = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    check(aten._fused_adam.default, params, grads, avgs, squares, [], steps, **hyper, amsgrad=False, maximize=False)


def test_gradients_are_written_only_where_they_are_unscaled() -> None:
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
        assert resolve(f"aten::{name}", "").keeps == (("grads", "grad_scale"),)
