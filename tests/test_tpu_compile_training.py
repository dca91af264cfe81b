"""Optimizers, attention and CTC, of which OpInfo has no samples, compile for TPUs too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import tpu_programs
from torch._ops import OpOverload

from torch_tpu import dryrun
from torch_tpu.compiler import platform
from torch_tpu.lowering import registry

pytestmark = pytest.mark.skipif(not platform.installed_plugins("tpu"), reason="libtpu is not installed")

aten = torch.ops.aten


@pytest.fixture(scope="module")
def worker() -> Iterator[dryrun.Worker]:
    worker = dryrun.Worker()
    yield worker
    worker.close()


def _call(op: OpOverload, *args: Any, **kwargs: Any) -> tpu_programs.Call:
    rule = registry.rule_for(op)
    assert rule is not None
    return tpu_programs.call_of(rule, args, kwargs)


def _optimizers() -> list[tpu_programs.Call]:
    lists = [[torch.ones(4, 8), torch.ones(3, dtype=torch.bfloat16)] for _ in range(5)]
    steps = [torch.ones(()), torch.ones(())]
    scaling = {"grad_scale": torch.ones(()), "found_inf": torch.ones(()), "maximize": False, "weight_decay": 0.1}
    adam = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": True, **scaling}
    sgd = {"momentum": 0.9, "dampening": 0.1, "nesterov": True, "is_first_step": False, **scaling}
    adagrad = {"lr_decay": 0.1, "eps": 1e-8, **scaling}
    return [
        _call(aten._fused_adam.default, *lists, steps, lr=0.1, **adam),
        _call(aten._fused_adamw.tensor_lr, *lists, steps, lr=torch.ones(()), **adam),
        _call(aten._fused_sgd.default, *lists[:3], lr=0.1, **sgd),
        _call(aten._fused_adagrad.default, *lists[:3], steps, lr=0.1, **adagrad),
        _call(aten._amp_foreach_non_finite_check_and_unscale.default, lists[0], torch.ones(()), torch.ones(())),
        _call(
            aten._amp_update_scale.default,
            *(torch.ones(()), torch.ones((), dtype=torch.int32), torch.ones(()), 2.0, 0.5, 2000),
        ),
    ]


def _attention() -> list[tpu_programs.Call]:
    q, k = (torch.ones(2, h, n, 64, dtype=torch.bfloat16) for h, n in ((4, 128), (2, 256)))
    bias, lse = torch.ones(1, 1, 128, 256, dtype=torch.bfloat16), torch.ones(2, 4, 128)
    fused = (aten._scaled_dot_product_fused_attention_overrideable,)
    fused += (aten._scaled_dot_product_fused_attention_overrideable_backward,)
    number = torch.ones((), dtype=torch.int64)
    calls = []
    for mask, dropout, causal in ((None, 0.0, True), (bias, 0.1, False)):
        saved = (q, lse, None, None, 128, 256, dropout, causal, number, number)
        calls.append(_call(fused[0].default, q, k, k, mask, dropout, causal))
        calls.append(_call(fused[1].default, q, q, k, k, mask, [True] * 4, *saved, scale=0.1))
    x, ends = torch.ones(40, 4, 64), torch.ones(5, dtype=torch.int32)
    common = (ends, ends, 16, 16, 0.0, True)
    state = torch.ones(2, dtype=torch.uint64)
    calls.append(_call(aten._flash_attention_forward.default, x, x, x, *common, False))
    calls.append(_call(aten._flash_attention_backward.default, x, x, x, x, x, torch.ones(4, 40), *common, state, x))
    return calls


def _losses() -> list[tpu_programs.Call]:
    probs, targets, lengths = (
        torch.ones(20, 3, 5),
        torch.ones(3, 4, dtype=torch.int64),
        torch.ones(3, dtype=torch.int64),
    )
    common = (probs, targets, lengths, lengths)
    alpha = torch.ones(3, 20, 9)
    return [
        _call(aten._ctc_loss.Tensor, *common),
        _call(aten._ctc_loss_backward.Tensor, torch.ones(3), *common, torch.ones(3), alpha, 0, True),
    ]


@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2"])
@pytest.mark.parametrize("calls", [_optimizers, _attention, _losses])
def test_compiles(worker: dryrun.Worker, calls: Any, topology: str) -> None:
    for call in calls():
        result = worker.compile_for(topology, tpu_programs.module([call]), timeout=240.0)
        assert result.memory["output_bytes"] > 0, call
