"""Products of groups of rows against CPU torch."""

from __future__ import annotations

import pytest
import torch
from harness import check, run
from samples import sample

from torch_tpu.lowering.grouped import any_grouped_mm


def grouped(x: torch.Tensor, y: torch.Tensor, offs: torch.Tensor | None = None) -> torch.Tensor:
    return run(any_grouped_mm, x, y, offs, None, None)


# How many rows each group has.
SIZES = [[16, 16, 16], [0, 40, 8], [1, 0, 47], [48, 0, 0], [17, 30, 1]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sizes", SIZES)
def test_groups(sizes: list[int], dtype: torch.dtype) -> None:
    ends = torch.tensor(sizes).cumsum(0).int()
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    spans = [slice(e - s, e) for e, s in zip(ends.tolist(), sizes)]
    rows, weights = sample(48, 16, dtype=dtype), sample(3, 16, 8, dtype=dtype)

    def close(ours: torch.Tensor, wide: torch.Tensor) -> None:
        torch.testing.assert_close(ours.double(), wide, rtol=tolerance, atol=tolerance)

    by_rows = torch.cat([rows[s].double() @ w.double() for s, w in zip(spans, weights)])
    close(grouped(rows, weights, ends), by_rows)
    by_columns = torch.cat([w.double().mT @ rows[s].double().T for s, w in zip(spans, weights)], 1)
    close(grouped(weights.mT.contiguous(), rows.T.contiguous(), ends), by_columns)
    other = sample(48, 8, dtype=dtype)
    inner = torch.stack([rows[s].double().T @ other[s].double() for s in spans])
    close(grouped(rows.T.contiguous(), other, ends), inner)


def test_equal_groups() -> None:
    x, y = sample(3, 16, 8), sample(3, 8, 16)
    torch.testing.assert_close(grouped(x, y), x @ y)


def test_bfloat16_through_pytorchs_own_op() -> None:
    ends = torch.tensor([16, 32, 48], dtype=torch.int32)
    x, y = sample(48, 16, dtype=torch.bfloat16), sample(3, 16, 8, dtype=torch.bfloat16)
    check(torch.ops.aten._grouped_mm, x, y, ends)
