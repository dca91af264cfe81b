"""Ops that only functional graphs have: eagerly they are made of a tensor not yet written and an op that writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import random
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten
Dims = Sequence[int]


@lower(
    aten.empty.memory_format, aten.empty_strided.default, aten.empty_permuted.default, aten.empty_like.default,
    aten.new_empty.default, aten.new_empty_strided.default,
)  # fmt: skip
def empty(b: Builder, *_: Any, **__: Any) -> Value:
    """As storages that nobody wrote: zeros."""
    (spec,) = b.outputs
    assert spec is not None
    return b.full(spec.shape, 0, spec.dtype)


@lower(aten.rand.default, aten.rand.generator, aten.rand_like.default, random=True)
def rand(b: Builder, _: Any, *, rng: Value, **__: Any) -> Value:
    return random.uniform(b, rng, rng=rng)


@lower(aten.randn.default, aten.randn.generator, aten.randn_like.default, random=True)
def randn(b: Builder, _: Any, *, rng: Value, **__: Any) -> Value:
    return random.normal(b, rng, rng=rng)


@lower(aten.randint.default, aten.randint.generator, random=True)
def randint(b: Builder, high: int, size: Dims, *, rng: Value, **__: Any) -> Value:
    return random.random_from(b, rng, 0, high, rng=rng)


@lower(aten.randint.low, aten.randint.low_generator, random=True)
def randint_between(b: Builder, low: int, high: int, size: Dims, *, rng: Value, **__: Any) -> Value:
    return random.random_from(b, rng, low, high, rng=rng)


@lower(aten.randint_like.default, random=True)
def randint_like(b: Builder, x: Value, high: int, *, rng: Value, **__: Any) -> Value:
    return random.random_from(b, rng, 0, high, rng=rng)


@lower(aten.randint_like.low_dtype, random=True)
def randint_like_between(b: Builder, x: Value, low: int, high: int, *, rng: Value, **__: Any) -> Value:
    return random.random_from(b, rng, low, high, rng=rng)
