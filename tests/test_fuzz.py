"""Calls with arguments that nobody chose, valid and not: the device does what the CPU does, or refuses as it does.

TORCH_TPU_FUZZ=20000 python -m pytest -q tests/test_fuzz.py --timeout 0
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

PROGRAMS = int(os.environ.get("TORCH_TPU_FUZZ", "150"))
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3,), (2, 3), (3, 2), (3, 3), (2, 1, 3), (2, 0, 3)]
DTYPES = [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.uint8, torch.complex64]

UNARY = [
    "abs",
    "neg",
    "exp",
    "sqrt",
    "sign",
    "floor",
    "isnan",
    "sigmoid",
    "logical_not",
    "bitwise_not",
    "angle",
    "erf",
    "t",
    "triu",
    "nonzero",
    "det",
    "trace",
    "inverse",
    "bincount",
    "real",
    "squeeze",
    "numel",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "eq",
    "lt",
    "logical_and",
    "bitwise_and",
    "remainder",
    "fmod",
    "pow",
    "atan2",
    "matmul",
    "mm",
    "bmm",
    "mv",
    "dot",
    "outer",
    "cross",
    "kron",
    "dist",
    "masked_select",
    "take",
    "isin",
    "gcd",
    "bitwise_left_shift",
]
BY_DIM = [
    "sum",
    "mean",
    "prod",
    "amax",
    "argmax",
    "any",
    "all",
    "cumsum",
    "cumprod",
    "softmax",
    "logsumexp",
    "sort",
    "argsort",
    "median",
    "mode",
    "std",
    "unbind",
    "flip",
    "squeeze",
    "unsqueeze",
    "cummax",
    "diff",
    "count_nonzero",
    "nansum",
    "unique",
]
BY_NUMBER = [
    "add",
    "mul",
    "div",
    "pow",
    "clamp_min",
    "fmod",
    "remainder",
    "floor_divide",
    "eq",
    "tril",
    "diag",
    "diagonal",
    "roll",
    "repeat_interleave",
    "chunk",
    "topk",
    "kthvalue",
    "narrow_copy",
    "select",
    "movedim",
    "rot90",
    "renorm",
    "logit",
]
METHODS = ["view", "reshape", "expand", "permute", "repeat", "tile", "new_zeros", "as_strided", "unflatten"]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """A tensor on the CPU of small whole numbers, negative ones among them; perhaps transposed."""
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))
    values = (
        (torch.arange(torch.Size(shape).numel()) * 5 % 7 - (0 if dtype == torch.uint8 else 2)).view(shape).to(dtype)
    )
    return values.mT if values.dim() >= 2 and draw(st.booleans()) else values


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Callable[[Any], Any]]:
    """A call, as text and as a function of where the tensors are to be."""
    kind = draw(st.sampled_from(["unary", "binary", "dim", "number", "method", "in-place", "index", "assign"]))
    x, y = draw(tensors()), draw(tensors())
    number = draw(st.sampled_from([0, 1, -1, 2, 3, 7, -4, 2**40, 0.5, float("nan"), float("inf"), True, 1j, None]))
    dim = draw(st.integers(-4, 3))
    sizes = draw(st.lists(st.integers(-1, 4), max_size=4))
    ops = {"unary": UNARY, "binary": BINARY, "dim": BY_DIM, "number": BY_NUMBER, "method": METHODS}
    name = draw(st.sampled_from(ops.get(kind, BINARY[:13])))
    index = draw(st.sampled_from([None, ..., dim, slice(dim, None), slice(None, None, 2), y]))
    shown = f"{kind} {name}: {describe(x)}, {describe(y)}, {number}, dim {dim}, sizes {sizes}, index {describe(index)}"

    def call(to: Callable[[Tensor], Tensor]) -> Any:
        a, b = to(x), to(y)
        place = b if index is y else index
        if kind == "unary":
            return getattr(torch, name)(a)
        if kind == "binary":
            return getattr(torch, name)(a, b)
        if kind == "dim":
            return getattr(torch, name)(a, dim=dim) if name != "flip" else torch.flip(a, [dim])
        if kind == "number":
            return getattr(torch, name)(a, number)
        if kind == "method":
            return getattr(a, name)(sizes)
        if kind == "in-place":
            getattr(a, name + "_")(b)
            return a
        if kind == "index":
            return a[place]
        a[place] = b if number is None else number
        return a

    return shown, call


def describe(value: object) -> str:
    return f"{value.dtype} {list(value.shape)} {list(value.stride())}" if isinstance(value, Tensor) else str(value)


# What only the values can tell is refused by the CPU; the device does as other accelerators do.
BY_VALUE = re.compile("out of bounds|out of range: tried|ZeroDivisionError|can't allocate memory")


def outcome(call: Callable[[Any], Any], to: Callable[[Tensor], Tensor]) -> Any:
    """The results on the CPU, or the exception."""
    try:
        return torch.utils._pytree.tree_map_only(Tensor, lambda t: t.cpu(), call(to))
    except Exception as error:
        return error


@settings(
    max_examples=PROGRAMS,
    deadline=None,
    derandomize=PROGRAMS == 150,  # in a normal run the same ones each time
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(calls())
@pytest.mark.filterwarnings("ignore")
def test_calls_end_as_on_the_cpu(made: tuple[str, Callable[[Any], Any]]) -> None:
    shown, call = made
    expected, found = outcome(call, torch.clone), outcome(call, lambda t: t.clone().to("tpu"))
    if isinstance(expected, Exception) and BY_VALUE.search(str(expected)):
        return
    if "isin" in shown and "view size" in str(expected):  # the CPU wants to view transposed elements as one row
        return
    if "Repeats cannot be negative" in str(found):  # the CPU repeats nothing minus once
        return
    if isinstance(expected, Exception) or isinstance(found, Exception):
        assert type(found) is type(expected), f"{shown}\nCPU: {expected!r}\ntpu: {found!r}"
        return
    rtol = 1e-2 if "bfloat16" in shown else 1e-4
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-4, equal_nan=True, msg=lambda m: f"{shown}\n{m}")
