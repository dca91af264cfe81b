"""Aliasing in full: what a view shows, what a write through one changes, and what PyTorch refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

MORE_THAN_ONE = "more than one element of the written-to tensor refers to a single memory location"
PARTIAL = "some elements of the input tensor and the written-to tensor refer to a single memory location"


def grid(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), device="cpu").to(dtype).view(shape).to(device)


def same(program: Callable[[str], Any]) -> None:
    """The program gives the same tensors, laid out alike, on both devices."""
    for mine, reference in zip(program("tpu"), program("cpu"), strict=True):
        assert mine.device.type == "tpu"
        assert (mine.shape, mine.stride(), mine.storage_offset()) == (
            reference.shape,
            reference.stride(),
            reference.storage_offset(),
        )
        torch.testing.assert_close(mine.cpu(), reference, rtol=0, atol=0)


def test_copies_between_shapes_that_do_not_fit_are_refused() -> None:
    for target in (torch.zeros(0, 4), torch.zeros(6, 0), torch.zeros(3), torch.zeros(())):
        for source in (torch.zeros(4, 6), torch.zeros(6, 4), torch.zeros(1, 4), torch.zeros(3)):
            try:
                target.clone().copy_(source)
            except RuntimeError as error:
                for given in (source, source.to("tpu")):
                    with pytest.raises(RuntimeError, match=re.escape(str(error))):
                        target.to("tpu").copy_(given)
            else:
                assert target.to("tpu").copy_(source.to("tpu")).shape == target.shape


def test_writes_through_a_deep_chain() -> None:
    def program(device: str) -> list[Tensor]:
        x = grid(device, 4, 6)
        view = x.t()[1:5].unsqueeze(0).transpose(1, 2)[:, ::2].squeeze(0)[..., 1]
        view.mul_(-10)
        x[2:].add_(1)
        x.view(-1)[3::5] = 7.0
        return [x, view]

    same(program)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x[...],
    "step": lambda x: x[::2, 1::3],
    "select": lambda x: x.select(1, 2),
    "diagonal": lambda x: x.diagonal(1),
    "transposed": lambda x: x.mT,
    "window": lambda x: x.as_strided((2, 3), (7, 2), 3),
    "gaps": lambda x: x.as_strided((3, 2), (5, 3), 2),
    "scalar": lambda x: x[1, 2],
    "empty": lambda x: x[:, 3:3],
    "unfolded": lambda x: x.unfold(1, 2, 2),
    "split": lambda x: x.split(2)[1],
    "unflattened": lambda x: x.unflatten(1, (2, 3))[:, 1],
    "data": lambda x: x.data,
    "detached": lambda x: x.detach()[0],
    "permuted": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "flattened": lambda x: x.view(-1)[5:],
}
WRITES: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda v: v.add_(3),
    "fill_": lambda v: v.fill_(5),
    "copy_": lambda v: v.copy_(torch.ones(v.shape)),
    "masked_fill_": lambda v: v.masked_fill_(v > 9, -1),
    "out": lambda v: torch.mul(torch.full(v.shape, 2.0, device=v.device), 3, out=v),
    "setitem": lambda v: v.__setitem__(..., 4.0),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_write_shows_in_the_base(view: str, write: str) -> None:
    def program(device: str) -> list[Tensor]:
        x = grid(device, 4, 6)
        v = VIEWS[view](x)
        WRITES[write](v)
        return [x, v]

    same(program)


def test_a_write_to_the_base_shows_in_views_and_not_in_copies() -> None:
    def program(device: str) -> list[Tensor]:
        x = grid(device, 4, 6)
        kept, copied, view = x.clone(), x.flip(0), x.t()[2]
        x.neg_()
        return [x, kept, copied, view]

    same(program)


def test_expanded_and_overlapping_reads() -> None:
    def program(device: str) -> list[Tensor]:
        x = grid(device, 4, 6)
        return [x[:1].expand(3, 6) + 0, x.as_strided((3, 4), (2, 1), 1) * 1, x.unfold(1, 3, 1).sum(-1)]

    same(program)


def test_overlapping_writes_are_refused() -> None:
    x = grid("tpu", 1, 6)
    for overlapping in (x.expand(3, 6), x.as_strided((3, 4), (0, 1)), x.view(6)[2:].expand(2, 4)):
        with pytest.raises(RuntimeError, match=MORE_THAN_ONE):
            overlapping.add_(1)
        with pytest.raises(RuntimeError, match=MORE_THAN_ONE):
            overlapping.copy_(torch.ones(overlapping.shape))
        with pytest.raises(RuntimeError, match=MORE_THAN_ONE):
            torch._foreach_mul_([overlapping], 2.0)
        with pytest.raises(RuntimeError, match=MORE_THAN_ONE):
            torch.neg(torch.ones(overlapping.shape, device="tpu"), out=overlapping)
    flat = x.view(6)
    for write in (
        lambda: flat[1:].add_(flat[:-1]),
        lambda: flat[1:].copy_(flat[:-1]),
        lambda: torch.add(flat[:-1], 1, out=flat[1:]),
    ):
        with pytest.raises(RuntimeError, match=PARTIAL):
            write()
    torch.testing.assert_close(x.cpu(), grid("cpu", 1, 6))


def test_filling_may_overlap() -> None:
    def program(device: str) -> list[Tensor]:
        x = grid(device, 4, 6)
        x[:1].expand(3, 6).fill_(2)
        x.as_strided((3, 4), (1, 1), 12).zero_()
        return [x]

    same(program)


def test_channels_last() -> None:
    def program(device: str) -> list[Tensor]:
        x = grid(device, 2, 3, 4, 4).to(memory_format=torch.channels_last)
        y = x.relu()
        x[:, 1].add_(1)
        return [x, y, x.contiguous(), x.permute(0, 2, 3, 1).reshape(-1, 3)]

    same(program)


@pytest.mark.parametrize("to", [torch.int32, torch.int16, torch.uint8, torch.float64, torch.bfloat16, torch.complex64])
def test_view_as_another_dtype(to: torch.dtype) -> None:
    def program(device: str) -> list[Tensor]:
        x = grid(device, 4, 6) + 0.5
        view = x.view(to)
        back = view.view(torch.float32)
        view[1].zero_()
        back[2, ::2] = 3.0
        return [x, view, back]

    same(program)


def test_complex_parts() -> None:
    def program(device: str) -> list[Tensor]:
        x = torch.view_as_complex(grid(device, 3, 4, 2))
        torch.view_as_real(x)[0].mul_(2)
        x.imag[1] = -1.0
        x.real.add_(1)
        return [torch.view_as_real(x), (x.conj() * 1j).resolve_conj()]

    same(program)


def test_writes_through_a_conjugated_view() -> None:
    def program(device: str) -> list[Tensor]:
        x = torch.view_as_complex(grid(device, 3, 4, 2))
        x.conj()[2].add_(1j)
        x.conj().imag[0] = 9.0
        return [torch.view_as_real(x)]

    same(program)


def test_products_of_conjugated_views() -> None:
    # PyTorch hands the bit on to its kernels here, instead of conjugating first.
    def program(device: str) -> list[Tensor]:
        x = torch.view_as_complex(grid(device, 3, 3, 2))
        out, sums, negative = torch.zeros_like(x), x.clone(), x.conj().imag
        torch.mm(x.conj(), x, out=out.conj())
        sums.conj().addmm_(x, x.mH)
        product = torch.vdot(x[0], x[1].conj()).resolve_conj()
        return [*map(torch.view_as_real, (out, sums, product)), negative @ negative]

    same(program)


def test_scatter_into_the_storage_behind_a_view() -> None:
    def program(device: str) -> list[Tensor]:
        x = grid(device, 4, 6)[:, 1::2]
        return [torch.as_strided_scatter(x, grid(device, 2), (2,), (3,), 1)]

    same(program)


def test_out_through_a_view_that_autograd_does_not_see() -> None:
    def program(device: str) -> list[Tensor]:
        out = grid(device, 6, 4).t()
        torch.kron(grid(device, 2, 3), grid(device, 2, 2), out=out)
        return [out]

    same(program)


def test_resize() -> None:
    def program(device: str) -> list[Tensor]:
        x = grid(device, 4, 6)
        view = x[1]
        x.resize_(2, 3)
        x.add_(1)
        grown = grid(device, 3).resize_(5)
        grown[3:] = 1.0
        return [x, view, grown]

    same(program)


def test_set() -> None:
    def program(device: str) -> list[Tensor]:
        x, y = grid(device, 4, 6), torch.empty(0, device=device)
        y.set_(x.untyped_storage(), 2, (3, 2), (6, 1))
        y.add_(100)
        z = torch.empty(0, device=device).set_(x)
        z[3].zero_()
        w = torch.empty(0, device=device).set_(x.untyped_storage())
        return [x, y, z, w, w.clone().set_()]

    same(program)


def test_storage_resized_to_nothing_and_back() -> None:
    x = grid("tpu", 4, 6)
    storage = x.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(size)
    x.copy_(torch.ones(4, 6))
    assert x.sum().item() == 24


def test_zero_sizes_and_zero_dims() -> None:
    def program(device: str) -> list[Tensor]:
        x, s = torch.zeros(0, 3, device=device), torch.tensor(2.0).to(device)
        x.add_(1)
        s.view(1)[0] = 5.0
        s.unsqueeze(0).mul_(2)
        return [x, x.t(), x.sum(0), s, s.expand(2, 2).contiguous()]

    same(program)


def test_errors_of_views_are_pytorchs() -> None:
    x = grid("tpu", 4, 6)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.t().view(24)
    with pytest.raises(RuntimeError, match="Negative strides are not supported"):
        x.as_strided((2,), (-1,), 3)
    with pytest.raises(RuntimeError, match="out of bounds"):
        x.as_strided((5, 6), (6, 1))
    with pytest.raises(ValueError, match="step must be greater than zero"):
        x[::-1]
    with pytest.raises(RuntimeError, match="must be 1 to view"):
        x.t().view(torch.float64)


def test_buffers_and_parameters_share_what_they_share() -> None:
    norm = nn.BatchNorm1d(3).to("tpu")
    mean, alias = norm.running_mean, norm.running_mean[1:]
    norm(grid("tpu", 4, 3))
    assert norm.running_mean is mean
    torch.testing.assert_close(alias.cpu(), mean.cpu()[1:])
    assert alias.abs().sum().item() > 0
    linear = nn.Linear(3, 3).to("tpu")
    row = linear.weight.detach()[0]
    with torch.no_grad():
        linear.weight.zero_()
    assert row.abs().sum().item() == 0


def test_is_set_to_compares_memory_not_values() -> None:
    x = grid("tpu", 3, 4)
    assert x.is_set_to(x.view(3, 4))
    assert not x.is_set_to(x.view(12))
    assert not x.is_set_to(x.clone())


def test_writes_under_a_mask_keep_the_other_bits() -> None:
    """-3 in 64 bits holds bfloat16 NaNs of two kinds."""

    def run(device: str) -> torch.Tensor:
        x = torch.full((4, 6), -3).to(device)
        narrow = x.view(torch.bfloat16)
        mask = torch.arange(24).remainder(2).eq(0).to(device)
        narrow.copy_(torch.where(mask, 2.0, narrow))
        narrow.masked_fill_(mask, 3.0)
        return x.cpu()

    assert torch.equal(run("tpu"), run("cpu"))
