"""Generated programs of views, writes and reads give the CPU's bits.

CI runs a few hundred, always the same ones. More, and new ones:

    TORCH_TPU_VIEW_PROGRAMS=20000 python -m pytest -q tests/test_view_programs.py --timeout 0
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

PROGRAMS = int(os.environ.get("TORCH_TPU_VIEW_PROGRAMS", "0"))
DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64, torch.uint8)
# Few shapes, so that most one-op programs come from the compile cache.
SHAPES = ((4, 6), (2, 3, 4))
MAX_TENSORS = 8
Numbers = tuple[int, int, int, int]
Step = tuple[str, Numbers]


class World:
    """The tensors of one program on one device; every step is a function of their metadata and of small numbers."""

    def __init__(self, device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        values = torch.arange(24) % 7 - 3
        base = (values % 2 if dtype == torch.bool else values.abs() if dtype == torch.uint8 else values).to(dtype)
        if dtype.is_complex:
            base = base + 1j * (torch.arange(24) % 5)
        self.tensors = [base.to(dtype).view(shape).to(device)]
        self.reinterpreted = False
        self.reads: list[Tensor] = []

    def pick(self, n: int) -> Tensor:
        return self.tensors[n % len(self.tensors)]

    def keep(self, tensor: Tensor) -> None:
        if tensor.ndim > 4 or tensor.numel() > 100:
            return
        if len(self.tensors) == MAX_TENSORS:
            self.tensors.pop(1)
        self.tensors.append(tensor)

    def run(self, step: Step) -> str:
        """Does a step; the type of the error if PyTorch refuses it (of two errors, devices may see either first)."""
        name, numbers = step
        try:
            if name in VIEWS:
                view = VIEWS[name](self.pick(numbers[0]), *numbers[1:])
                self.reinterpreted |= name == "dtype" and view.dtype != self.pick(numbers[0]).dtype
                self.keep(view)
            else:
                target = self.pick(numbers[0])
                # Arithmetic on any bits would be about NaNs and denormals.
                arithmetic = name in ("add", "multiply", "add_tensor")
                any_bits = arithmetic and self.reinterpreted and (target.is_floating_point() or target.is_complex())
                if not any_bits and not overlaps_unnoticed(target):
                    WRITES[name](self, target, *numbers[1:])
        except (RuntimeError, IndexError, ValueError) as error:
            return type(error).__name__
        return ""


def places(x: Tensor) -> Tensor:
    """Where in its storage each element lies."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
    return (torch.arange(reach) if x.numel() else torch.empty(0)).as_strided(x.shape, x.stride()) + x.storage_offset()


def overlaps_unnoticed(x: Tensor) -> bool:
    """Whether elements share memory in a way that PyTorch does not refuse to write: what it does then is undefined."""
    return 0 not in x.stride() and places(x).unique().numel() < x.numel()


def is_read_while_written(x: Tensor, source: Tensor) -> bool:
    """Whether x and a source share memory in a way that PyTorch leaves undefined: it refuses only dense ones."""
    same = (x.shape, x.stride(), x.storage_offset()) == (source.shape, source.stride(), source.storage_offset())
    if same or x.untyped_storage()._cdata != source.untyped_storage()._cdata:
        return False
    dense = all(t.is_contiguous() or t.mT.is_contiguous() for t in (x, source) if t.ndim > 1)
    return not (dense and x.ndim > 0) and bool(torch.isin(places(x), places(source)).any())


def dim(x: Tensor, n: int) -> int:
    return n % x.ndim if x.ndim else 0


def take_slice(x: Tensor, a: int, b: int, c: int) -> Tensor:
    if x.ndim == 0:
        return x.view(())
    d = dim(x, a)
    start = b % (x.shape[d] + 1)
    index: list[Any] = [slice(None)] * x.ndim
    index[d] = slice(start, start + 1 + c % 4, 1 + c // 4 % 3)
    return x[tuple(index)]


def factored(x: Tensor, a: int) -> Tensor:
    n = x.numel()
    sizes = [(-1,), (1, -1), (2, -1), (-1, 2), (3, -1), (2, 2, -1), (-1, 3, 2)][a % 7]
    return x.view(sizes) if n else x.view(0)


def as_strided(x: Tensor, a: int, b: int, c: int) -> Tensor:
    """A window on the storage: dense, with gaps, overlapping, broadcast."""
    capacity = x.untyped_storage().nbytes() // x.element_size()
    sizes, strides = [
        ((2, 3), (3, 1)),
        ((2, 3), (1, 2)),
        ((3, 3), (1, 1)),
        ((2, 3), (4, 2)),
        ((2, 2), (5, 3)),
        ((2, 3), (0, 1)),
        ((3,), (7,)),
        ((2, 2, 2), (4, 6, 1)),
        ((), ()),
    ][a % 9]
    reach = sum((s - 1) * t for s, t in zip(sizes, strides))
    return x.as_strided(sizes, strides, (b + 8 * c) % max(1, capacity - reach))


def other_dtype(x: Tensor, a: int) -> Tensor:
    if x.dtype == torch.bool:
        return x.view(torch.bool)
    return x.view((torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.complex64, torch.int32)[a % 6])


def part(x: Tensor, a: int) -> Tensor:
    if x.is_complex():
        return (x.real, x.imag, x.conj(), torch.view_as_real(x))[a % 4]
    if x.dtype == torch.float32 and x.ndim and x.shape[-1] == 2:
        return torch.view_as_complex(x)
    return x.detach()


VIEWS: dict[str, Callable[..., Tensor]] = {
    "transpose": lambda x, a, b, c: x.transpose(dim(x, a), dim(x, b)),
    "slice": take_slice,
    "select": lambda x, a, b, c: x.select(dim(x, a), b % max(1, x.shape[dim(x, a)])) if x.ndim else x.detach(),
    "unsqueeze": lambda x, a, b, c: x.unsqueeze(a % (x.ndim + 1)),
    "squeeze": lambda x, a, b, c: x.squeeze(),
    "view": lambda x, a, b, c: factored(x, a),
    "reshape": lambda x, a, b, c: x.reshape(-1) if a % 2 else x.reshape(2, -1),
    "expand": lambda x, a, b, c: x.expand(2, *x.shape) if a % 2 else x.unsqueeze(-1).expand(*x.shape, 2),
    "diagonal": lambda x, a, b, c: x.diagonal(a % 3 - 1) if x.ndim > 1 else x.detach(),
    "unfold": lambda x, a, b, c: x.unfold(dim(x, a), 2, 1 + b % 2),
    "as_strided": as_strided,
    "dtype": lambda x, a, b, c: other_dtype(x, a),
    "part": lambda x, a, b, c: part(x, a),
    "flip": lambda x, a, b, c: x.flip(dim(x, a)) if x.ndim else x.clone(),
    "data": lambda x, a, b, c: x.data if a % 2 else x.detach(),
    "split": lambda x, a, b, c: x.split(2, dim(x, a))[-1] if x.ndim else x.detach(),
    "clone": lambda x, a, b, c: x.clone() if a % 2 else x.contiguous(),
    "empty": lambda x, a, b, c: x.narrow(dim(x, a), 0, 0) if x.ndim else x.detach(),
}


def number(x: Tensor, n: int) -> float:
    return (2, -1, 3, 0, 1)[n % 5] if x.dtype != torch.uint8 and x.dtype != torch.bool else (2, 1, 3, 0)[n % 4]


def copy(world: World, x: Tensor, a: int, b: int, c: int) -> None:
    source = world.pick(a)
    if is_read_while_written(x, source):
        return
    if source.dtype == x.dtype or (not world.reinterpreted and not source.is_complex() and x.dtype != torch.uint8):
        x.copy_(source)


def add_tensor(world: World, x: Tensor, a: int, b: int, c: int) -> None:
    source = world.pick(a)
    if source.dtype == x.dtype and not is_read_while_written(x, source):
        x.add_(source)


def write_slice(world: World, x: Tensor, a: int, b: int, c: int) -> None:
    take_slice(x, a, b, c)[...] = number(x, c)


def write_rows(world: World, x: Tensor, a: int, b: int, c: int) -> None:
    if x.ndim:
        x[a % x.shape[0] if x.shape[0] else 0, ...] = x[b % x.shape[0] if x.shape[0] else 0].clone()


def write_masked(world: World, x: Tensor, a: int, b: int, c: int) -> None:
    mask = torch.arange(x.numel()).view(x.shape).remainder(2 + a % 3).eq(0).to(x.device)
    x.copy_(torch.where(mask, torch.full_like(x, number(x, b)), x))


def masked_fill(world: World, x: Tensor, a: int, b: int, c: int) -> None:
    if 0 in moving_strides(x):  # deprecated in PyTorch, refused here
        return
    x.masked_fill_(torch.arange(x.numel()).view(x.shape).remainder(2 + a % 3).eq(0).to(x.device), number(x, b))


def grow(world: World, x: Tensor, a: int, b: int, c: int) -> None:
    """resize_, within what is defined: new elements are written at once."""
    storage = x.untyped_storage()
    size = ((2, 3), (24,), (2, 2, 2))[a % 3]
    if max(size[0] * 1, torch.Size(size).numel()) + x.storage_offset() <= storage.nbytes() // x.element_size():
        x.resize_(size)


WRITES: dict[str, Callable[[World, Tensor, int, int, int], Any]] = {
    "fill": lambda w, x, a, b, c: x.fill_(number(x, a)),
    "zero": lambda w, x, a, b, c: x.zero_(),
    "add": lambda w, x, a, b, c: x.add_(number(x, a)) if x.dtype != torch.bool else x.logical_not_(),
    "multiply": lambda w, x, a, b, c: x.mul_(number(x, a)) if x.dtype != torch.bool else x.logical_xor_(x),
    "copy": copy,
    "add_tensor": add_tensor,
    "slices": write_slice,
    "rows": write_rows,
    "where": write_masked,
    "masked_fill": masked_fill,
    "resize": grow,
    "read": lambda w, x, a, b, c: w.reads.append(x.cpu().clone()),
}

number_strategy = st.integers(0, 11)
steps = st.tuples(
    st.sampled_from([*VIEWS, *WRITES, *WRITES]),
    st.tuples(number_strategy, number_strategy, number_strategy, number_strategy),
)


def bits(x: Tensor) -> Tensor:
    flat = torch.empty(x.numel(), dtype=x.dtype)
    return flat.copy_(x.detach().cpu().resolve_conj().resolve_neg().reshape(-1)).view(torch.uint8)


def moving_strides(x: Tensor) -> list[int]:
    return [stride for size, stride in zip(x.shape, x.stride()) if size > 1]


def check(dtype: torch.dtype, shape: tuple[int, ...], program: list[Step]) -> None:
    """Runs a program on both devices and compares every error, every view's layout, every read and all that is left."""
    host, device = World("cpu", dtype, shape), World("tpu", dtype, shape)
    for step in program:
        expected = host.run(step)
        assert device.run(step) == expected
        for mine, reference in zip(device.tensors, host.tensors):
            assert mine.dtype == reference.dtype
            assert mine.shape == reference.shape
            assert mine.storage_offset() == reference.storage_offset()
            assert (mine.is_conj(), mine.is_neg()) == (reference.is_conj(), reference.is_neg())
            if mine.numel():
                assert moving_strides(mine) == moving_strides(reference)
    for mine, reference in zip(device.reads + device.tensors, host.reads + host.tensors):
        assert torch.equal(bits(mine), bits(reference)), f"{mine.cpu()} instead of {reference}"


@pytest.mark.parametrize("mode", ["strict", "fused"])
@settings(
    max_examples=PROGRAMS or 150,
    derandomize=PROGRAMS == 0,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
@given(dtype=st.sampled_from(DTYPES), shape=st.sampled_from(SHAPES), program=st.lists(steps, min_size=3, max_size=12))
def test_programs(mode: str, dtype: torch.dtype, shape: tuple[int, ...], program: list[Step]) -> None:
    with torch.tpu.set_eager_mode(mode):
        check(dtype, shape, program)
