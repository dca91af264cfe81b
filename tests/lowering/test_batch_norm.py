"""Batch norm, its gradients and SyncBatchNorm's pieces against CPU torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import run
from samples import sample

aten = torch.ops.aten

EPS = 1e-5
MOMENTUM = 0.2


def operands(dtype: torch.dtype = torch.float32, param: torch.dtype | None = None) -> dict[str, Any]:
    param = param or dtype
    return {
        "x": sample(4, 3, 2, 5, dtype=dtype) * 2 + 1,
        "weight": sample(3, dtype=param),
        "bias": sample(3, dtype=param),
        "mean": sample(3, dtype=param),
        "var": sample(3, dtype=param).abs(),
    }


def reference(o: dict[str, Any], training: bool) -> tuple[torch.Tensor, ...]:
    """In float64: result, saved mean, saved rstd, new running mean, new running variance."""
    x, weight, bias, mean, var = (v.double().clone() for v in o.values())
    out = aten.native_batch_norm(x, weight, bias, mean, var, training, MOMENTUM, EPS)
    return (*out, mean, var)


def close(ours: Any, theirs: Any, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    for mine, wide in zip(ours, theirs):
        if mine is not None:
            narrow = mine.dtype in (torch.bfloat16, torch.float16)
            torch.testing.assert_close(
                mine, wide.to(mine.dtype), rtol=None if narrow else rtol, atol=None if narrow else atol
            )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_batch_norm(dtype: torch.dtype, training: bool) -> None:
    o = operands(dtype)
    theirs = reference(o, training)
    ours = run(aten.native_batch_norm, *o.values(), training, MOMENTUM, EPS)
    functional = run(aten._native_batch_norm_legit_functional, *o.values(), training, MOMENTUM, EPS)
    assert ours[0].dtype == dtype
    if training:
        close(ours, theirs)
        loose = 1e-2 if dtype == torch.bfloat16 else 1e-5  # the running statistics are rounded to bfloat16
        close(functional, theirs, loose, loose)
        close(run(aten._native_batch_norm_legit.default, *o.values(), training, MOMENTUM, EPS), theirs)
        ours = run(aten._batch_norm_with_update_functional, *o.values(), MOMENTUM, EPS)
        close([*ours[:3], *ours[4:]], theirs, loose, loose)
    else:
        assert ours[3] is None
        assert ours[4] is None
        close(ours[:1], theirs)
        close(functional[:1], theirs)
        assert torch.equal(functional[3], o["mean"])
        close(run(aten._native_batch_norm_legit_no_training, *o.values(), MOMENTUM, EPS)[:1], theirs)
        close(run(aten._batch_norm_no_update, *o.values(), MOMENTUM, EPS)[:1], theirs)


def test_statistics_are_optional() -> None:
    o = operands()
    theirs = reference(o, True)[:3]
    ours = run(aten.native_batch_norm, o["x"], o["weight"], o["bias"], None, None, True, MOMENTUM, EPS)
    close(ours[:3], theirs)
    assert ours[3:] == [None, None]
    close(run(aten._native_batch_norm_legit.no_stats, o["x"], o["weight"], o["bias"], True, MOMENTUM, EPS), theirs)
    plain = aten.native_batch_norm(o["x"], None, None, None, None, True, MOMENTUM, EPS)
    close(run(aten.native_batch_norm, o["x"], None, None, None, None, True, MOMENTUM, EPS)[:3], plain)


def test_float32_parameters_with_bfloat16_data() -> None:
    o = operands(torch.bfloat16, torch.float32)
    ours = run(aten.native_batch_norm, *o.values(), True, MOMENTUM, EPS)
    assert [r.dtype for r in ours] == [torch.bfloat16] + [torch.float32] * 4
    close(ours, reference(o, True))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients(dtype: torch.dtype, training: bool) -> None:
    o = operands(dtype)
    x, weight, _, mean, var = o.values()
    g = sample(*x.shape, dtype=dtype)
    saved = [s.to(torch.float32 if dtype == torch.bfloat16 else dtype) for s in reference(o, True)[1:3]]
    wide = [v.double() for v in (g, x, weight, mean, var, *saved)]
    for mask in ([True] * 3, [True, False, False], [False, True, True]):
        theirs = aten.native_batch_norm_backward(*wide, training, EPS, [True] * 3)
        ours = run(aten.native_batch_norm_backward, g, x, weight, mean, var, *saved, training, EPS, mask)
        assert [r is not None for r in ours] == mask
        close(ours, theirs, 1e-4, 1e-4)
    reserve = torch.empty(0, dtype=torch.uint8)
    close(run(aten.batch_norm_backward, g, x, weight, mean, var, *saved, training, EPS, [True] * 3, reserve), theirs)


def test_update_of_statistics() -> None:
    o = operands()
    theirs = reference(o, True)
    mean, var, *running = run(aten.batch_norm_update_stats, o["x"], o["mean"], o["var"], MOMENTUM)
    close([mean, torch.rsqrt(var + EPS), *running], theirs[1:])


def test_synchronized_batch_norm_equals_batch_norm_of_everything() -> None:
    """Two parts of unequal size, as SyncBatchNorm runs them on two devices."""
    o = operands()
    x, weight, bias, running_mean, running_var = o.values()
    theirs = reference(o, True)
    parts = x.split([1, 3])
    counts = torch.tensor([p.numel() / 3 for p in parts])
    statistics = [run(aten.batch_norm_stats, p, EPS) for p in parts]
    means, rstds = (torch.stack(s) for s in zip(*statistics))
    mean, rstd, *running = run(
        aten.batch_norm_gather_stats_with_counts, x, means, rstds, running_mean, running_var, MOMENTUM, EPS, counts
    )
    close([mean, rstd, *running], theirs[1:])
    out = torch.cat([run(aten.batch_norm_elemt, p, weight, bias, mean, rstd, EPS) for p in parts])
    close([out], theirs)

    g = sample(*x.shape)
    wide = [v.double() for v in (g, x, weight, running_mean, running_var, *theirs[1:3])]
    expected = aten.native_batch_norm_backward(*wide, True, EPS, [True] * 3)
    pairs = list(zip(g.split([1, 3]), parts))
    reduced = [run(aten.batch_norm_backward_reduce, a, p, mean, rstd, weight, True, True, True) for a, p in pairs]
    sum_dy, sum_dy_xmu, by_weight, by_bias = (sum(r) for r in zip(*reduced))
    by_x = torch.cat(
        [
            run(aten.batch_norm_backward_elemt, a, p, mean, rstd, weight, sum_dy, sum_dy_xmu, counts.int())
            for a, p in pairs
        ]
    )
    close([by_x, by_weight, by_bias], expected, 1e-4, 1e-4)
    assert run(aten.batch_norm_backward_reduce, g, x, mean, rstd, weight, True, False, False)[2:] == [None, None]


def test_equal_parts() -> None:
    o = operands()
    x, _, _, running_mean, running_var = o.values()
    statistics = [run(aten.batch_norm_stats, p, EPS) for p in x.split(2)]
    means, rstds = (torch.stack(s) for s in zip(*statistics))
    ours = run(aten.batch_norm_gather_stats, x, means, rstds, running_mean, running_var, MOMENTUM, EPS, 20)
    close(ours, reference(o, True)[1:])
