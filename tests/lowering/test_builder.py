"""The builder by itself: values, promotion, constants, regions, artifacts."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from harness import execute

from torch_tpu.lowering import dtypes, mlir
from torch_tpu.lowering.builder import Builder, TensorSpec, Value


def compute(body: Callable[..., Sequence[Value]], *inputs: torch.Tensor, version: str = "1.13.3") -> list[torch.Tensor]:
    b = Builder()
    with b.program([TensorSpec.of(t) for t in inputs]) as values:
        b.finish(body(b, *values))
    assert b.module.operation.verify()
    return execute(mlir.serialize(b.module, version), list(inputs))


SAMPLES = [
    torch.ones(2, dtype=torch.int32), torch.tensor(1.0, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bool),
    torch.tensor(1.0, dtype=torch.float64), torch.tensor(1), torch.tensor(1j), torch.ones(2, dtype=torch.float32),
    2, 2.5, True, 1j,
]  # fmt: skip


def test_promotion_agrees_with_torch() -> None:
    b = Builder()
    with b.program([TensorSpec.of(t) for t in SAMPLES if isinstance(t, torch.Tensor)]) as values:
        ours = [*values, *SAMPLES[len(values) :]]
        for x, mine in zip(SAMPLES, ours, strict=True):
            for y, other in zip(SAMPLES, ours, strict=True):
                assert b.promote(mine, other) == torch.result_type(x, y), (x, y)
        b.finish(values)


def test_operators_promote_and_broadcast() -> None:
    x, y = torch.randn(2, 3), torch.arange(3)
    results = compute(lambda b, x, y: [x * y + 1, 2 - x, 1 / (y + 1), (x < y) & (y > 0), -y, y.eq(1) | ~x.ne(x)], x, y)
    expected = [x * y + 1, 2 - x, 1 / (y + 1), (x < y) & (y > 0), -y, (y == 1) | ~(x != x)]
    for mine, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("dtype", list(dtypes.MLIR_NAMES), ids=str)
def test_constants_of_every_dtype(dtype: torch.dtype) -> None:
    values = [True, False, True] if dtype == torch.bool else [0, 1, 100]
    array, filled, empty = compute(
        lambda b: [b.constant(values, dtype), b.full((2,), 1, dtype), b.constant(torch.empty(0), dtype)]
    )
    assert torch.equal(array.to(torch.complex128), torch.tensor(values).to(dtype).to(torch.complex128))
    assert array.dtype == filled.dtype == empty.dtype == dtype
    assert empty.shape == (0,)


def test_extreme_constants() -> None:
    results = compute(
        lambda b: [
            b.full((), 2**64 - 1, torch.uint64), b.full((), -(2**63), torch.int64), b.full((), -1, torch.uint8),
            b.full((), math.nan, torch.bfloat16), b.full((), -0.0, torch.float32), b.full((), 1 + 2j, torch.complex64),
        ]
    )  # fmt: skip
    assert [r.item() for r in results[:3]] == [2**64 - 1, -(2**63), 255]
    assert results[3].isnan()
    assert results[4].signbit()
    assert results[5].item() == 1 + 2j


def test_comparisons_of_constants_know_their_sign() -> None:
    pairs = [(0, -1), (-1, 0), (-2, 3), (3, -2)]
    results = compute(lambda b: [b.compare(b.full((1,), p, torch.int32), "LE", q) for p, q in pairs])
    assert [bool(r) for r in results] == [p <= q for p, q in pairs]


def test_regions() -> None:
    def body(b: Builder, x: Value, flag: Value) -> list[Value]:
        (chosen,) = b.if_(flag, lambda: x + 1, lambda: x * 2)
        count = b.while_loop([b.full((), 0, torch.int32)], lambda i: i < 7, lambda i: i + 2)[0]
        ordered = b.sort([x], 0, lambda p, q: p > q)[0]
        total, largest = b.reduce([x, x], [0, -math.inf], [0], lambda s, m, p, q: (s + p, b.maximum(m, q)))
        pairs = b.reduce_window([x], [0], b.add, [2], strides=[2])[0]
        return [chosen, count, ordered, total, largest, pairs, b.case(count, [lambda: x, lambda: -x])[0]]

    x = torch.tensor([3.0, 1.0, 4.0, 1.5])
    chosen, count, ordered, total, largest, pairs, last = compute(body, x, torch.tensor(True))
    assert chosen.tolist() == [4.0, 2.0, 5.0, 2.5]
    assert count.item() == 8
    assert ordered.tolist() == [4.0, 3.0, 1.5, 1.0]
    assert (total.item(), largest.item()) == (9.5, 4.0)
    assert pairs.tolist() == [4.0, 5.5]
    assert last.tolist() == (-x).tolist()


def test_round_to_survives_the_simplifier() -> None:
    x = torch.rand(64)
    rounded, plain = compute(lambda b, x: [b.round_to(x, torch.bfloat16), x.to(torch.bfloat16)], x)
    assert torch.equal(rounded, plain.float())
    assert torch.equal(plain, x.bfloat16())


def test_contractions() -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    image, kernel = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)
    product, convolved = compute(
        lambda b, x, y, image, kernel: [
            b.dot_general(x, y, contract=([-1], [1]), batch=([0], [0])),
            b.convolution(image, kernel, strides=[2, 1], padding=[(1, 1), (0, 0)]),
        ],
        x, y, image, kernel,
    )  # fmt: skip
    torch.testing.assert_close(product, x @ y)
    reference = torch.nn.functional.conv2d(image, kernel, stride=(2, 1), padding=(1, 0))
    torch.testing.assert_close(convolved, reference, rtol=1e-4, atol=1e-5)


def test_aliases_are_marked() -> None:
    b = Builder()
    with b.program([TensorSpec((4,), torch.float32)] * 2, aliases={1: 0}) as (x, y):
        b.finish([x + y])
    assert "tf.aliasing_output = 0" in str(b.module)


def test_artifacts_are_deterministic_and_of_the_asked_version() -> None:
    def artifact(version: str) -> bytes:
        b = Builder()
        with b.program([TensorSpec((4,), torch.float32)]) as (x,):
            b.finish([b.erf(x)])
        return mlir.serialize(b.module, version)

    assert artifact("1.9.0") == artifact("1.9.0")
    assert b"StableHLO_v1.9.0" in artifact("1.9.0")
    assert b"chlo" not in artifact("1.13.3")
    # A plugin newer than the bindings reads what the bindings can write.
    assert f"StableHLO_v{mlir.hlo.get_current_version()}".encode() in artifact("99.0.0")


def test_threads_build_side_by_side() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def build(n: int) -> float:
        return compute(lambda b, x: [b.reduce_sum(x * n)], torch.ones(3))[0].item()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(8))) == [3.0 * n for n in range(8)]
