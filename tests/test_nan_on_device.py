"""What is not a number shows wherever PyTorch shows it, and hides where it hides it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

X, Y = torch.tensor([1.0, math.nan, 1.0, math.nan, -2.0]), torch.tensor([math.nan, 1.0, 2.0, math.nan, 0.5])
CALLS: dict[str, Callable[[Tensor, Tensor], object]] = {
    **{f.__name__: f for f in (torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.atan2, torch.where)},
    **{
        f.__name__: lambda x, y, f=f: f(x)
        for f in (torch.amax, torch.amin, torch.max, torch.min, torch.argmax, torch.argmin, torch.aminmax)
        + (torch.sort, torch.median, torch.nanmedian, torch.cummax, torch.cummin, torch.logsumexp, torch.nansum)
        + (F.relu, F.relu6, F.hardtanh, F.leaky_relu, F.gelu, F.hardswish, F.hardsigmoid, F.softplus, F.elu, F.silu)
        + (F.hardshrink, F.softshrink, torch.sign, torch.floor, torch.nan_to_num, torch.frac, F.mish, torch.erf)
        if f not in (torch.logsumexp, torch.cummax, torch.cummin)
    },
    "cummax": lambda x, y: torch.cummax(x, 0),
    "cummin": lambda x, y: torch.cummin(x, 0),
    "logsumexp": lambda x, y: torch.logsumexp(x, 0),
    "where": lambda x, y: torch.where(x > y, x, y),
    "comparisons": lambda x, y: [x > y, x <= y, x == y, x != y],
    "topk": lambda x, y: torch.topk(x, 3).values,
    "max_pool1d": lambda x, y: F.max_pool1d(x[None], 2),
    "clamp_min": lambda x, y: [x.clamp_min(math.nan), x.clamp_min(1.5), x.clamp_min(y)],
    "clamp_max": lambda x, y: [x.clamp_max(math.nan), x.clamp_max(1.5), x.clamp_max(y)],
    "clamp": lambda x, y: [x.clamp(math.nan, 1), x.clamp(1, math.nan), x.clamp(2, 1), x.clamp(y, y + 1)],
    "logit": lambda x, y: [torch.logit(x), torch.logit(x, 1.0), torch.logit(y, 0.25)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, dtype: torch.dtype) -> None:
    x, y = X.to(dtype), Y.to(dtype)
    found, expected = CALLS[name](x.to("tpu"), y.to("tpu")), CALLS[name](x, y)
    found = torch.utils._pytree.tree_map_only(Tensor, Tensor.cpu, found)
    torch.testing.assert_close(found, expected, equal_nan=True)
