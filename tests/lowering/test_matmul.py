"""Matrix products against CPU torch."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from harness import check, lower, run
from samples import check_once_rounded, is_exact, sample

from torch_tpu.lowering import mlir

aten = torch.ops.aten

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.complex64, torch.int8, torch.uint8, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_products(dtype: torch.dtype) -> None:
    exact = is_exact(dtype)
    check(aten.mm.default, sample(5, 7, dtype=dtype), sample(7, 3, dtype=dtype), exact=exact)
    check(aten.bmm.default, sample(2, 5, 7, dtype=dtype), sample(2, 7, 3, dtype=dtype), exact=exact)
    check(aten.mv, sample(5, 7, dtype=dtype), sample(7, dtype=dtype), exact=exact)
    check(aten.dot, sample(7, dtype=dtype), sample(7, dtype=dtype), exact=exact)
    check(aten.vdot, sample(7, dtype=dtype), sample(7, dtype=dtype), exact=exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaled_sums(dtype: torch.dtype) -> None:
    exact = is_exact(dtype)
    scales = [(2, 3)] if exact else [(0.5, 2.0), (1, 1)]
    for beta, alpha in scales:
        k: dict[str, Any] = {"beta": beta, "alpha": alpha}
        compare_with = functools.partial(check, exact=True) if exact else check_once_rounded
        mats = sample(4, 6, dtype=dtype), sample(6, 3, dtype=dtype)
        for base in (sample(3, dtype=dtype), sample(4, 3, dtype=dtype), sample(4, 1, dtype=dtype)):
            compare_with(aten.addmm.default, base, *mats, **k)
        batches = sample(2, 4, 6, dtype=dtype), sample(2, 6, 3, dtype=dtype)
        compare_with(aten.baddbmm.default, sample(2, 4, 3, dtype=dtype), *batches, **k)
        compare_with(aten.addbmm, sample(4, 3, dtype=dtype), *batches, **k)
        compare_with(aten.addmv, sample(4, dtype=dtype), mats[0], sample(6, dtype=dtype), **k)
        compare_with(aten.addr, sample(4, 3, dtype=dtype), sample(4, dtype=dtype), sample(3, dtype=dtype), **k)


def test_beta_zero_ignores_the_base() -> None:
    base = torch.full((4, 3), float("nan"))
    check(aten.addmm.default, base, sample(4, 6), sample(6, 3), beta=0)
    check(aten.baddbmm.default, base[None], sample(1, 4, 6), sample(1, 6, 3), beta=0.0, alpha=2)
    check(aten.addmv, base[:, 0], sample(4, 6), sample(6), beta=0)
    check(aten.addr, base, sample(4), sample(3), beta=0)


def test_addr_of_bool_and_mixed_dtypes() -> None:
    bits = [torch.tensor([True, False, True]), torch.tensor([True, True, False])]
    check(aten.addr, torch.zeros(3, 3, dtype=torch.bool), *bits, beta=True, alpha=True, exact=True)
    check(aten.addr, sample(3, 3, dtype=torch.int32), sample(3), sample(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16])
def test_sizes_of_zero(dtype: torch.dtype) -> None:
    check(aten.mm.default, sample(4, 0, dtype=dtype), sample(0, 3, dtype=dtype), exact=True)
    check(aten.mm.default, sample(0, 4, dtype=dtype), sample(4, 3, dtype=dtype), exact=True)
    check(aten.bmm.default, sample(0, 4, 2, dtype=dtype), sample(0, 2, 3, dtype=dtype), exact=True)
    check(aten.addmm.default, sample(3, dtype=dtype), sample(4, 0, dtype=dtype), sample(0, 3, dtype=dtype), exact=True)
    check(aten.dot, sample(0, dtype=dtype), sample(0, dtype=dtype), exact=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_accumulate_in_float32_and_round_once(dtype: torch.dtype) -> None:
    x, y, base = (sample(*s, dtype=dtype) for s in ((8, 512), (512, 8), (8,)))
    wide = x.double() @ y.double()
    assert torch.equal(run(aten.mm.default, x, y), wide.to(dtype))
    assert torch.equal(run(aten.addmm.default, base, x, y), (wide + base.double()).to(dtype))
    torch.testing.assert_close(run(aten.mm.dtype, x, y, torch.float32), wide.float())
    torch.testing.assert_close(
        run(aten.addmm.dtype, base.float(), x, y, torch.float32, beta=2), wide.float() + 2 * base.float()
    )


def test_activation() -> None:
    for use_gelu in (False, True):
        check(aten._addmm_activation, sample(3), sample(4, 6), sample(6, 3), use_gelu=use_gelu, beta=0.5)


def test_int8() -> None:
    x, y = sample(32, 64, dtype=torch.int8), sample(64, 16, dtype=torch.int8)
    check(aten._int_mm, x, y, exact=True)
    check(aten._weight_int8pack_mm, sample(4, 64), y.t().contiguous(), torch.rand(16), rtol=1e-5, atol=1e-4)


def test_float8() -> None:
    x, y = sample(16, 32).to(torch.float8_e4m3fn), sample(16, 32).to(torch.float8_e4m3fn).t()
    one = torch.tensor(0.5)
    check(aten._scaled_mm, x, y, one, one, out_dtype=torch.float32)
    check(aten._scaled_mm, x, y, one, one, bias=sample(16, dtype=torch.bfloat16), out_dtype=torch.bfloat16)
    check(aten._scaled_mm, x, y, torch.rand(16, 1), torch.rand(1, 16), out_dtype=torch.bfloat16)


def test_float32_precision_follows_torch() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        for name, expected in (("highest", "[HIGHEST, HIGHEST]"), ("high", "[HIGH, HIGH]"), ("medium", None)):
            torch.set_float32_matmul_precision(name)
            text = str(lower(aten.mm.default, (sample(2, 2), sample(2, 2)), {})[0])
            assert (expected in text) if expected else ("HIGH" not in text)
            assert "HIGH" not in str(lower(aten.mm.default, (sample(2, 2).bfloat16(),) * 2, {})[0])
    finally:
        torch.set_float32_matmul_precision(before)


def test_eager_products_have_the_precision_that_was_set_when_they_were_recorded() -> None:
    x = torch.rand(17, 19, device="tpu")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        exact = x @ x.t()
        torch.set_float32_matmul_precision("medium")
        rough = (x + 1) @ x.t()
        torch.set_float32_matmul_precision("highest")
        torch.testing.assert_close(exact.cpu() + x.sum(1).cpu(), rough.cpu())
    finally:
        torch.set_float32_matmul_precision(before)
    [flush] = [f for f in torch.tpu.explain().flushes if "test_matmul" in f.line and f.nodes >= 4]
    with mlir.context().ctx as context:
        module = mlir.hlo.deserialize_portable_artifact(context, flush.stablehlo())
        products = [line for line in str(module).splitlines() if "dot_general" in line]
    assert len(products) == 2
    assert "HIGHEST" in products[0]
    assert "HIGH" not in products[1]
