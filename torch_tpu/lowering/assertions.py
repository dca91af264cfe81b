"""Assertions about values on the device: nobody waits for them; what is wrong is said at the next occasion."""

from __future__ import annotations

from collections import deque

import torch

from .registry import python_op

aten = torch.ops.aten

_KEPT = 64  # conditions that have not been looked at
_conditions: deque[tuple[torch.Tensor, str]] = deque()


@python_op(aten._assert_async.default, aten._assert_async.msg)
def assert_later(condition: torch.Tensor, message: str = "Expected Tensor with single nonzero value") -> tuple[()]:
    """Remember the condition for `check`; of very many the oldest, long computed, is looked at now. No results."""
    if condition.numel() != 1:
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
    _conditions.append((condition.detach(), message))
    if len(_conditions) > _KEPT:
        _look()
    return ()


def check() -> None:
    """Look at every condition; raises RuntimeError with the message of the first that is false or zero."""
    while _conditions:
        _look()


def _look() -> None:
    condition, message = _conditions.popleft()
    if not condition.item():
        _conditions.clear()  # what follows may follow from it
        raise RuntimeError(message)
