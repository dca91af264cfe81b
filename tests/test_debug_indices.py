"""Debug mode's check of indices finds what PyTorch's CPU kernels find, with their message."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torch_tpu.compiler.debug import check_indices

X = torch.arange(12.0).reshape(3, 4)


def _pair(value: int) -> torch.Tensor:
    return torch.tensor([0, value])


def _row(value: int) -> torch.Tensor:
    return torch.tensor([[0, value]])


ONES = torch.ones(1, 2)
# name: op's arguments for an index
CALLS: dict[str, Any] = {
    "index.Tensor": lambda i: (X, [None, _pair(i)]),
    "index_put": lambda i: (X, [_pair(i)], torch.ones(2, 4)),
    "gather": lambda i: (X, 1, _row(i)),
    "scatter.value": lambda i: (X, -1, _row(i), 1.0),
    "scatter.src": lambda i: (X, 0, _row(i), ONES),
    "scatter_add": lambda i: (X, 0, _row(i), ONES),
    "scatter_reduce.two": lambda i: (X, 0, _row(i), ONES, "amax"),
    "index_select": lambda i: (X, 0, _pair(i)),
    "index_add": lambda i: (X[0], 0, _pair(i), torch.ones(2)),
    "index_copy": lambda i: (X, 0, _pair(i), torch.ones(2, 4)),
    "index_fill.int_Scalar": lambda i: (X, 0, _pair(i), 1.0),
    "index_reduce": lambda i: (X, 0, _pair(i), torch.ones(2, 4), "prod"),
    "take": lambda i: (X, _pair(i)),
    "put": lambda i: (X, _pair(i), torch.ones(2)),
    "embedding": lambda i: (X, _pair(i)),
    "nll_loss_forward": lambda i: (X, torch.tensor([0, i, 1]), None, 1, -100),
    "nll_loss2d_forward": lambda i: (torch.zeros(1, 3, 2, 2), torch.full((1, 2, 2), i), None, 1, -100),
    "multi_margin_loss": lambda i: (X, torch.tensor([0, i, 1])),
    "multilabel_margin_loss_forward": lambda i: (X, torch.tensor([0, i, -1, 1]).expand(3, 4).contiguous(), 1),
    "max_unpool2d": lambda i: (torch.ones(1, 1, 1, 2), torch.tensor([[[[0, i]]]]), [2, 4]),
}


@pytest.mark.parametrize("index", [0, 2, -1, -3, -100, 3, 40])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_as_the_cpu(name: str, index: int) -> None:
    packet, _, overload = name.partition(".")
    args = CALLS[name](index)
    try:
        getattr(getattr(torch.ops.aten, packet), overload or "default")(*args)
    except (IndexError, RuntimeError) as error:
        message = str(error).partition("\n")[0]
        with pytest.raises(IndexError) as caught:
            check_indices(f"aten::{name}", args)
        assert str(caught.value) == message
    else:
        check_indices(f"aten::{name}", args)


def test_masks_bags_and_other_ops() -> None:
    check_indices("aten::index", (X, [X > 3]))
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 3"):
        check_indices("aten::index_put_", (X, [_pair(9)], X))
    with pytest.raises(IndexError, match="value 9 which is not in the valid range"):
        check_indices("aten::_embedding_bag", (X, _pair(9), _pair(0), False, 0))
    with pytest.raises(IndexError, match="offsets"):
        check_indices("aten::_embedding_bag", (X, _pair(1), _pair(9), False, 0))
    check_indices("aten::add.Tensor", (X, X))
