"""Autocast treats every op as CUDA's does; gradient scaling survives an overflow."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.autocast_test_lists import AutocastTestLists

LISTS = AutocastTestLists("cpu")
HALF = torch.bfloat16


def _move(value: Any, device: str, dtype: torch.dtype | None = None) -> Any:
    """Float tensors to the device (and dtype), half ones as bfloat16."""
    if isinstance(value, torch.Tensor):
        wanted = dtype or (HALF if value.dtype == torch.float16 else value.dtype)
        return value.to(device, wanted if value.is_floating_point() else value.dtype)
    return type(value)(_move(v, device, dtype) for v in value) if isinstance(value, list | tuple) else value


def _tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _cases(name: str) -> list[Any]:
    return [pytest.param(*case, id=f"{i}-{case[0]}") for i, case in enumerate(_entries(name))]


def _entries(name: str) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    entries = []
    for op, args, *rest in getattr(LISTS, name):
        keywords = rest[0] if rest and isinstance(rest[0], dict) else {}
        if not op.startswith("cudnn") and op != "einsum":  # torch.einsum's sample has its arguments where kwargs go
            entries.append((op, args, keywords))
    return entries


def _run(module: Any, op: str, args: Any, keywords: dict[str, Any]) -> list[torch.Tensor]:
    args = _move(args, "tpu")
    fn = getattr(module, op, None) or getattr(args[0], op)
    return _tensors(fn(*args, **keywords) if hasattr(module, op) else fn(*args[1:], **keywords))


def _check(module: Any, op: str, args: Any, keywords: dict[str, Any], dtype: torch.dtype) -> None:
    with torch.autocast("tpu"):
        ours = _run(module, op, args, keywords)
    control = _run(module, op, _move(_move(args, "cpu"), "cpu", dtype), keywords)
    assert [x.dtype for x in ours] == [dtype] * len(ours)
    torch.testing.assert_close([x.cpu() for x in ours], [x.cpu() for x in control], equal_nan=True)


@pytest.mark.parametrize(("op", "args", "keywords"), _cases("torch_fp16"))
def test_computes_in_bfloat16(op: str, args: Any, keywords: dict[str, Any]) -> None:
    _check(torch, op, args, keywords, HALF)


@pytest.mark.parametrize(("op", "args", "keywords"), _cases("torch_fp32"))
def test_computes_in_float32(op: str, args: Any, keywords: dict[str, Any]) -> None:
    _check(torch, op, args, keywords, torch.float32)


@pytest.mark.parametrize(("op", "args", "keywords"), _cases("torch_need_autocast_promote"))
def test_promotes(op: str, args: Any, keywords: dict[str, Any]) -> None:
    _check(torch, op, args, keywords, torch.float32)


@pytest.mark.parametrize("op", ["nn_fp16", "nn_fp32", "linalg_fp16", "methods_fp16", "methods_fp32"])
def test_other_modules(op: str) -> None:
    module = torch._C._nn if op.startswith("nn") else torch._C._linalg if op.startswith("linalg") else torch
    for name, args, keywords in _entries(op):
        _check(module, name, args, keywords, HALF if op.endswith("16") else torch.float32)


@pytest.mark.parametrize("name", ["torch_expect_builtin_promote", "methods_expect_builtin_promote"])
def test_promotion_of_the_ops_themselves_stays(name: str) -> None:
    for op, args, dtype in getattr(LISTS, name):
        moved = _move(args, "tpu")
        fn = getattr(torch if name.startswith("torch") else moved[0], op, None)
        if fn is None:  # Python 3 has no Tensor.__div__
            continue
        with torch.autocast("tpu"):
            result = fn(*moved) if name.startswith("torch") else fn(*moved[1:])
        assert isinstance(result, bool) or result.dtype == dtype, op


def test_same_ops_as_cuda() -> None:
    torch.zeros(1, device="tpu")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_all_op_names()
    cuda = {n for n in names if has(n, "AutocastCUDA") and "cudnn" not in n}
    ours = {n for n in names if has(n, "AutocastPrivateUse1")}
    assert ours == cuda
    assert len(ours) > 100


def test_binary_cross_entropy_is_refused() -> None:
    x = torch.rand(4, device="tpu")
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(x, x)
    with torch.autocast("tpu"), torch.autocast("tpu", enabled=False):
        assert F.binary_cross_entropy(x, x).dtype == torch.float32


def test_default_is_bfloat16_in_every_thread() -> None:
    seen = []

    def work() -> None:
        with torch.autocast("tpu"):
            seen.append((torch.mm(x, x).dtype, torch.get_autocast_dtype("tpu")))

    x = torch.ones(2, 2, device="tpu")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    assert seen == [(HALF, HALF)] * 2


def test_float16_and_disabling() -> None:
    x = torch.ones(2, 2, device="tpu")
    with torch.autocast("tpu", torch.float16):
        assert (x @ x).dtype == torch.float16
        with torch.autocast("tpu", enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (x.double() @ x.double()).dtype == torch.float64  # double is left alone
        assert (x.int() + 1).dtype == torch.int32


def test_attention_takes_mixed_inputs() -> None:
    q = torch.randn(1, 2, 4, 8, device="tpu")
    with torch.autocast("tpu"):
        assert F.scaled_dot_product_attention(q, q, q.bfloat16()).dtype == HALF
        mask = torch.zeros(4, 4, device="tpu")
        assert F.scaled_dot_product_attention(q, q, q, attn_mask=mask).dtype == HALF


def _train(device: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).to(device)
    x, target = torch.randn(5, 8).to(device), torch.tensor([0, 1, 2, 3, 0]).to(device)
    with torch.autocast(device, HALF):
        out = model(x)
        assert out.dtype == HALF
        loss = F.cross_entropy(out, target)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(g.dtype == torch.float32 for g in gradients)
    return loss.detach().cpu(), [g.cpu() for g in gradients]


def test_training_step() -> None:
    (loss, gradients), (expected_loss, expected) = _train("tpu"), _train("cpu")
    torch.testing.assert_close(loss.float(), expected_loss.float(), rtol=0.02, atol=0.02)
    torch.testing.assert_close(gradients, expected, rtol=0.05, atol=0.02)


# ---- gradient scaling

OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "sgd_fused": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, fused=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.1, foreach=True),
    "adamw_fused": lambda ps: torch.optim.AdamW(ps, lr=0.1, fused=True),
}


def _scaled(device: str, optimizer: str, clip: bool) -> tuple[list[torch.Tensor], list[float]]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(device)
    opt = OPTIMIZERS[optimizer](model.parameters())
    scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
    scales = []
    for step in range(6):
        x = torch.randn(4, 3).to(device)
        if step == 2:
            x[0, 0] = torch.inf
        opt.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        if clip:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(opt)
        scaler.update()
        scales.append(scaler.get_scale())
    return [p.detach().cpu() for p in model.parameters()], scales


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_grad_scaler_recovers(optimizer: str, clip: bool) -> None:
    ours, theirs = _scaled("tpu", optimizer, clip), _scaled("cpu", optimizer, clip)
    assert ours[1] == theirs[1] == [8.0, 16.0, 8.0, 8.0, 16.0, 16.0]
    torch.testing.assert_close(ours[0], theirs[0])
    assert all(p.isfinite().all() for p in ours[0])


def test_grad_scaler_state() -> None:
    scaler = torch.tpu.amp.GradScaler(init_scale=4.0)
    x = torch.ones(2, device="tpu", requires_grad=True)
    scaler.scale(x.sum()).backward()
    torch.testing.assert_close(x.grad.cpu(), torch.full((2,), 4.0))  # type: ignore[union-attr]
    other = torch.amp.GradScaler("tpu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 4.0
