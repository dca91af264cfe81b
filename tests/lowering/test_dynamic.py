"""Ops with data-dependent shapes: their functions over tensors run here on the CPU, their static programs as rules."""

from typing import Any

import pytest
import torch
from harness import check, compare

from torch_tpu.lowering import registry

aten = torch.ops.aten


def same(op: Any, *args: Any, **kwargs: Any) -> None:
    """The Python function gives what PyTorch's kernel gives."""
    resolution = registry.resolve(op._schema.name, op._schema.overload_name)
    assert resolution.kind == "python"
    assert resolution.fn is not None
    compare(resolution.fn(*args, **kwargs), op(*args, **kwargs), exact=True)


def numbers(*shape: int, high: int = 5) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(3, 4, 5), (7,), (), (0, 3)])
def test_nonzero(shape: tuple[int, ...]) -> None:
    x = numbers(*shape, high=2)
    same(aten.nonzero.default, x)
    for size in (0, 2, 40):
        check(aten.nonzero_static, x, size=size, fill_value=-7, exact=True)
    check(aten.nonzero_static, x.float(), size=int((x != 0).sum()), exact=True)


def test_masked_select() -> None:
    x = numbers(4, 5).float()
    same(aten.masked_select.default, x, x > 2)
    same(aten.masked_select.default, x, x[0] > 2)
    same(aten.masked_select.default, x[0], x > 2)
    same(aten.masked_select.default, x, x > 9)


def test_repeat_interleave() -> None:
    for dtype in (torch.int64, torch.int32):
        same(aten.repeat_interleave.Tensor, torch.tensor([2, 0, 3, 1], dtype=dtype))
    same(aten.repeat_interleave.Tensor, torch.tensor([2, 3]), output_size=5)
    same(aten.repeat_interleave.Tensor, torch.empty(0, dtype=torch.int64))


def test_bincount() -> None:
    x = numbers(30)
    same(aten.bincount.default, x)
    same(aten.bincount.default, x.int(), minlength=9)
    same(aten.bincount.default, x, torch.arange(30.0))
    same(aten.bincount.default, x, torch.arange(30))
    same(aten.bincount.default, x[:0])
    fn = registry.resolve("aten::bincount", "").fn
    assert fn is not None
    with pytest.raises(RuntimeError, match="non-negative"):
        fn(x - 1)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_unique(inverse: bool, counts: bool) -> None:
    for x in (numbers(4, 6), numbers(9).float(), torch.tensor([1.0, float("nan"), 1.0, float("nan")]), numbers(0, 2)):
        same(aten._unique2.default, x, True, inverse, counts)
        same(aten.unique_consecutive.default, x.flatten().sort().values, inverse, counts)
        same(aten.unique_consecutive.default, x, inverse, counts)
    same(aten._unique.default, numbers(4, 6), True, inverse)


def test_unique_dim() -> None:
    x = numbers(20, 3, high=2)
    same(aten.unique_dim.default, x, 0, True, True, True)
    same(aten.unique_dim.default, x.t(), 1, True, True, True)
    same(aten.unique_dim.default, x.reshape(2, 10, 3), 1, True, True, True)
    same(aten.unique_dim_consecutive.default, x.sort(0).values, 0, True, True)
    same(aten.unique_consecutive.default, x, True, True, 0)
    same(aten.unique_dim.default, x[:0], 0, True, True, True)
    for fn in (registry.resolve("aten::unique_dim", "").fn, aten.unique_dim):
        assert fn is not None
        with pytest.raises(RuntimeError, match="cannot be applied"):
            fn(x[:0], 1)


def test_out_overloads_write_to_the_callers_tensors() -> None:
    fn = registry.resolve("aten::nonzero", "out").fn
    assert fn is not None
    out = torch.empty(0, dtype=torch.int64)
    assert fn(torch.tensor([0, 1, 1]), out=out) is out
    assert out.tolist() == [[1], [2]]


@pytest.mark.parametrize("op", [aten.index.Tensor, aten.index_put.default, aten.index_put_.default])
def test_index_by_masks(op: Any) -> None:
    x, i = numbers(4, 5), torch.tensor([0, 2])
    rows, columns = torch.tensor([True, False, True, False]), torch.tensor([False, True, False, False, True])
    resolution = registry.resolve(op._schema.name, op._schema.overload_name)
    assert resolution.kind == "record"
    assert resolution.when is not None
    assert resolution.fn is not None
    values = () if op is aten.index.Tensor else (torch.tensor(9),)
    for indices in ([rows, torch.tensor(2)], [rows, columns], [i, columns], [rows.to(torch.uint8), i]):
        assert resolution.when(x, indices, *values)
        expected = op(x.clone(), indices, *values)
        compare(resolution.fn(x.clone(), indices, *values), expected, exact=True)
    assert not resolution.when(x, [i], *values)
    assert resolution.when(x, [rows], *values) == (op is aten.index.Tensor)  # to write by one mask needs no count


@pytest.mark.parametrize(
    ("indices", "values"),
    [
        ([(4, 2)], None),
        ([(2,), (2,), (2,)], None),
        ([(2,), (3,)], None),
        ([(2,)], (3,)),
        ([None, (2,)], (4, 3)),
        ([(2,)], (1, 2, 5)),
    ],
)
def test_index_refuses_what_pytorch_refuses(
    indices: list[tuple[int, ...] | None], values: tuple[int, ...] | None
) -> None:
    x = numbers(4, 5)
    dtype = torch.bool if indices == [(4, 2)] else torch.int64
    tensors = [None if s is None else torch.zeros(s, dtype=dtype) for s in indices]
    args = (x, tensors, torch.zeros(values or (), dtype=torch.int64))
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        aten.index_put_(*args)
    when = registry.resolve("aten::index_put_", "").when
    assert when is not None
    with pytest.raises(theirs.type) as ours:
        when(*args)
    assert str(ours.value).startswith(str(theirs.value).split("[")[0])
