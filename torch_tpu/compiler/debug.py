"""Debug mode's check of indices: an XLA program clamps or drops an index out of range, PyTorch promises an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Check:
    """Every element of index is in [0, size), or in [-size, size) if negative; else the message about it."""

    index: Tensor
    size: int
    message: str
    negative: bool = False
    ignored: int | None = None  # an index that is not one

    def run(self) -> None:
        index = self.index.cpu().to(torch.int64)
        bad = (index < (-self.size if self.negative else 0)) | (index >= self.size)
        if self.ignored is not None:
            bad &= index != self.ignored
        if bad.any():
            raise IndexError(self.message.format(index=int(index[bad][0]), size=self.size))


Checks = Callable[..., Iterator[_Check]]

_OF_DIMENSION = "index {{index}} is out of bounds for dimension {dim} with size {{size}}"
_IN_SELF = "index out of range in self"
_OF_ELEMENTS = "out of range: tried to access index {index} on a tensor of {size} elements."
_OF_TARGET = "Target {index} is out of bounds."


def _index(x: Tensor, indices: Sequence[Tensor | None], *_: Any) -> Iterator[_Check]:
    dim = position = 0  # position counts indexed dims only, as PyTorch's message does
    for index in indices:
        if index is None:
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):  # a mask: its shape has been checked
            dim += index.ndim
            position += index.ndim
        else:
            yield _Check(index, x.shape[dim], _OF_DIMENSION.format(dim=position), negative=True)
            dim += 1
            position += 1


def _along(message: str, negative: bool = False) -> Checks:
    def checks(x: Tensor, dim: int, index: Tensor, *_: Any) -> Iterator[_Check]:
        dim = dim % max(1, x.ndim)
        yield _Check(index, x.shape[dim] if x.ndim else 1, message.format(dim=dim), negative)

    return checks


def _flat(x: Tensor, index: Tensor, *_: Any) -> Iterator[_Check]:
    yield _Check(index, x.numel(), _OF_ELEMENTS, negative=True)


def _rows(weight: Tensor, indices: Tensor, *_: Any) -> Iterator[_Check]:
    yield _Check(indices, weight.shape[0], _IN_SELF)


def _bag(weight: Tensor, indices: Tensor, offsets: Tensor, *_: Any) -> Iterator[_Check]:
    yield _Check(
        indices, weight.shape[0], "Index of input takes value {index} which is not in the valid range [0, {size})"
    )
    message = "offsets can not be greater than input's length but got {index}"
    yield _Check(offsets, indices.numel() + 1, message)


def _nll(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Iterator[_Check]:
    yield _Check(target, x.shape[1 if x.ndim > 1 else 0], _OF_TARGET, ignored=ignore_index)


def _multi_margin(x: Tensor, target: Tensor, *_: Any) -> Iterator[_Check]:
    yield _Check(target, x.shape[-1], "target out of range")


def _multilabel_margin(x: Tensor, target: Tensor, *_: Any) -> Iterator[_Check]:
    yield _Check(target, x.shape[-1], "argument #2 'target' is out of range", ignored=-1)


def _unpool(x: Tensor, indices: Tensor, output_size: Sequence[int], *_: Any) -> Iterator[_Check]:
    volume = "x".join(map(str, output_size))
    message = f"Found an invalid max index: {{index}} (output volumes are of size {volume})"
    yield _Check(indices, math.prod(output_size), message)


# By the functional op's name.
_CHECKS: dict[str, Checks] = {
    "index": _index,
    "_unsafe_index": _index,
    "index_put": _index,
    "_index_put_impl": _index,
    "_unsafe_index_put": _index,
    "gather": _along(_OF_DIMENSION),
    "scatter": _along(_OF_DIMENSION),
    "scatter_add": _along(_OF_DIMENSION),
    "scatter_reduce": _along(_OF_DIMENSION),
    "index_select": _along(_IN_SELF),
    "index_add": _along(_IN_SELF),
    "index_reduce": _along(_IN_SELF),
    "index_copy": _along("index_copy_(): " + _OF_DIMENSION),
    "index_fill": _along(_OF_DIMENSION, negative=True),
    "take": _flat,
    "put": _flat,
    "embedding": _rows,
    "embedding_renorm": _rows,
    "_embedding_bag": _bag,
    "_embedding_bag_forward_only": _bag,
    "nll_loss_forward": _nll,
    "nll_loss2d_forward": _nll,
    "multi_margin_loss": _multi_margin,
    "multilabel_margin_loss_forward": _multilabel_margin,
    "max_unpool2d": _unpool,
    "max_unpool3d": _unpool,
}


def check_indices(name: str, args: tuple[Any, ...]) -> None:
    """Read the indices that an op ("aten::index_put_", any overload) is given; IndexError if one is out of range.

    args: the op's arguments in the order of its schema.
    """
    checks = _CHECKS.get(name.removeprefix("aten::").partition(".")[0].rstrip("_"))
    if checks is not None:
        for check in checks(*args):
            check.run()
