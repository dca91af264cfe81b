"""Reductions of consecutive segments of a dim, which lengths or offsets delimit."""

from __future__ import annotations

import math

import torch

from .meta import meta
from .registry import decompose, python_call

aten = torch.ops.aten
Tensor = torch.Tensor
Number = bool | int | float

STARTS = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
SCATTERS = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def _lengths(lengths: Tensor | None, offsets: Tensor | None) -> Tensor:
    if lengths is not None:
        return lengths
    assert offsets is not None
    return offsets.diff(dim=-1)


def _spread(x: Tensor, data: Tensor, axis: int) -> Tensor:
    """(..., count) as a tensor that broadcasts along the dims of data after `axis`."""
    return x.reshape(*x.shape, *[1] * (data.ndim - axis - 1))


def _segments(lengths: Tensor, data: Tensor, axis: int) -> Tensor:
    """For each element of data its segment; their number where it is in none."""
    count = data.shape[axis]
    places = torch.arange(count, device=data.device).expand(*lengths.shape[:-1], count).contiguous()
    of_place = torch.searchsorted(lengths.cumsum(-1), places, right=True)
    return _spread(of_place, data, axis).expand(data.shape)


def _reduced(data: Tensor, segments: Tensor, count: int, reduce: str, axis: int, start: Number) -> Tensor:
    shape = (*data.shape[:axis], count + 1, *data.shape[axis + 1 :])
    everything = data.new_full(shape, start).scatter_reduce(axis, segments, data, SCATTERS[reduce])
    return everything.narrow(axis, 0, count)


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Tensor:
    lengths = _lengths(lengths, offsets)
    start = STARTS[reduce] if initial is None else initial
    out = _reduced(data, _segments(lengths, data, axis), lengths.shape[-1], reduce, axis, start)
    if reduce == "mean":
        sizes = _spread(lengths, data, axis)
        out = torch.where(sizes > 0, out / sizes, math.nan if initial is None else out).to(data.dtype)
    return out


def segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: Number | None = None,
) -> Tensor:
    lengths = _lengths(lengths, offsets)
    count = lengths.shape[-1]
    segments = _segments(lengths, data, axis)
    inside = segments < count
    segments = segments.clamp(max=max(0, count - 1))

    def of_segment(x: Tensor) -> Tensor:
        return x.gather(axis, segments)

    def total(x: Tensor) -> Tensor:
        return of_segment(_reduced(x, segments, count, "sum", axis, 0))

    g = of_segment(grad)
    if reduce == "mean":
        g = g / of_segment(_spread(lengths, data, axis).expand(output.shape))
    elif reduce in ("max", "min"):
        chosen = ((data == of_segment(output)) | data.isnan()).to(data.dtype)  # equal ones share
        g = g * chosen / total(chosen).clamp(min=1)
    elif reduce == "prod":
        zero = data == 0
        start = STARTS["prod"] if initial is None else initial
        others = of_segment(_reduced(torch.where(zero, 1, data), segments, count, "prod", axis, start))
        alone = total(zero.to(data.dtype)) == 1
        g = g * torch.where(zero, torch.where(alone, others, 0), of_segment(output) / torch.where(zero, 1, data))
    return torch.where(inside, g, 0).to(data.dtype)


@meta(aten.segment_reduce.default)
def _meta_segment_reduce(data: Tensor, reduce: str, *, axis: int = 0, **named: object) -> Tensor:
    lengths, offsets = named.get("lengths"), named.get("offsets")
    count = lengths.shape[-1] if isinstance(lengths, Tensor) else offsets.shape[-1] - 1  # type: ignore[attr-defined]
    return data.new_empty((*data.shape[:axis], count, *data.shape[axis + 1 :]))


@meta(aten._segment_reduce_backward.default)
def _meta_segment_reduce_backward(grad: Tensor, output: Tensor, data: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(data)


decompose(aten.segment_reduce.default, using=segment_reduce)
decompose(aten._segment_reduce_backward.default, using=segment_reduce_backward)


@python_call(
    aten.segment_reduce.default, when=lambda *_, lengths=None, unsafe=False, **__: not unsafe and lengths is not None
)
def segment_reduce_checked(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Tensor:
    """Read what the lengths sum to, as PyTorch does everywhere, and reduce."""
    if bool((lengths < 0).any()):
        raise RuntimeError("lengths contains negative value!")
    if not bool((lengths.sum(-1) == data.shape[axis]).all()):
        raise RuntimeError(
            "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when "
            "!unsafe."
        )
    return aten.segment_reduce(  # type: ignore[no-any-return]
        data, reduce, lengths=lengths, axis=axis, unsafe=True, initial=initial
    )
