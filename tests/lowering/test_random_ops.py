"""Random rules: reproducible streams and the right distributions (fixed seeds, so the tests are deterministic)."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import run

from torch_tpu.lowering import registry

aten = torch.ops.aten
RNG = (1234567890123, 8)
N = 20000


def draw(op: Any, *args: Any, rng: tuple[int, int] = RNG, **kwargs: Any) -> torch.Tensor:
    out = run(op, *args, rng=rng, **kwargs)
    assert isinstance(out, torch.Tensor)
    return out


def kolmogorov(sample: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """The p-value of the sample under the distribution (asymptotic Kolmogorov-Smirnov)."""
    x = sample.double().flatten().sort().values
    n = len(x)
    expected = cdf(x)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    distance = float(torch.maximum((steps[1:] - expected).max(), (expected - steps[:-1]).max()))
    z = distance * math.sqrt(n)
    return min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * z) ** 2) for k in range(1, 50)))


def philox_reference(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 with Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        mask = 0xFFFFFFFF
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & mask, (p0 >> 32) ^ c[3] ^ k[1], p0 & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def test_philox_known_answers() -> None:
    # From the Random123 distribution's known-answer tests.
    assert philox_reference([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox_reference([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("offset", [0, 12, 2**32 - 2])
def test_stream_is_the_documented_one(offset: int) -> None:
    seed = 0x123456789ABCDEF
    out = draw(aten.random.to, torch.empty(2, 3, dtype=torch.int64), 2**32, rng=(seed, offset))
    for i, value in enumerate(out.flatten().tolist()):
        counter = offset + i
        block = philox_reference([counter & 0xFFFFFFFF, counter >> 32, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])
        assert value == block[0]


def test_same_seed_same_numbers() -> None:
    x = torch.empty(100)
    first = draw(aten.uniform, x)
    assert torch.equal(first, draw(aten.uniform, x))
    assert torch.equal(first[:50].reshape(5, 10), draw(aten.uniform, x[:50].reshape(5, 10)))
    assert torch.equal(first[12:], draw(aten.uniform, x, rng=(RNG[0], RNG[1] + 12))[:-12])
    assert not (first == draw(aten.uniform, x, rng=(RNG[0] + 1, RNG[1]))).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_uniform(dtype: torch.dtype) -> None:
    u = draw(aten.uniform, torch.empty(N, dtype=dtype)).double()
    bits = {torch.float32: 24, torch.float64: 53, torch.bfloat16: 8, torch.float16: 11}[dtype]
    assert torch.equal(u * 2**bits, (u * 2**bits).floor())
    assert u.min() >= 0
    assert u.max() < 1
    if bits >= 24:
        assert kolmogorov(u, lambda x: x) > 0.01
        v = draw(aten.uniform, torch.empty(N, dtype=dtype), -3.0, 5.0)
        assert kolmogorov(v, lambda x: (x + 3) / 8) > 0.01
    else:
        counts = torch.histc(u.float(), 16, 0, 1)
        assert ((counts - N / 16).abs() < 5 * math.sqrt(N / 16)).all()
    lagged = torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1]
    assert abs(lagged) < 4 / math.sqrt(N)


def normal_cdf(x: torch.Tensor) -> torch.Tensor:
    return torch.special.ndtr(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normal(dtype: torch.dtype) -> None:
    x = draw(aten.normal_functional, torch.empty(N, dtype=dtype), 2.0, 3.0).double()
    assert abs(x.mean() - 2) < 0.1
    assert abs(x.std() - 3) < 0.07
    if dtype != torch.bfloat16:
        assert kolmogorov((x - 2) / 3, normal_cdf) > 0.01
    z = (x - 2) / 3
    assert abs((z**4).mean() - 3) < 0.25


def test_normal_overloads() -> None:
    mean, std = torch.arange(4.0).repeat(N // 4), torch.tensor(2.0)
    for args in [(mean, 2.0), (mean, std.expand(N)), (1.0, std.expand(N))]:
        name = "_".join("Tensor" if isinstance(a, torch.Tensor) else "float" for a in args)
        x = draw(getattr(aten.normal, name), *args)
        assert kolmogorov((x - args[0]) / 2, normal_cdf) > 0.01
    c = draw(aten.normal_functional, torch.empty(N, dtype=torch.complex64))
    for part in (c.real, c.imag):
        assert kolmogorov(part * math.sqrt(2), normal_cdf) > 0.01
    assert abs((c.real * c.imag).mean()) < 0.02


DISTRIBUTIONS: dict[str, tuple[tuple[float, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "exponential": ((1.5,), lambda x: 1 - torch.exp(-1.5 * x)),
    "cauchy": ((1.0, 2.0), lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5),
    "log_normal": ((0.5, 0.8), lambda x: normal_cdf((x.log() - 0.5) / 0.8)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_continuous(name: str, dtype: torch.dtype) -> None:
    args, cdf = DISTRIBUTIONS[name]
    x = draw(getattr(aten, name), torch.empty(N, dtype=dtype), *args)
    assert kolmogorov(x, cdf) > 0.01
    if name == "exponential":
        assert (x > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_bernoulli(dtype: torch.dtype) -> None:
    x = draw(aten.bernoulli.p, torch.empty(N, dtype=dtype), 0.3)
    assert x.dtype == dtype
    assert abs(x.double().mean() - 0.3) < 0.015
    p = torch.tensor([0.0, 0.25, 1.0]).repeat_interleave(N // 4)
    for x in (draw(aten.bernoulli.Tensor, torch.empty(len(p), dtype=dtype), p).float(), draw(aten.bernoulli, p)):
        none, quarter, always = x.reshape(3, -1).mean(1).tolist()
        assert (none, always) == (0, 1)
        assert abs(quarter - 0.25) < 0.03


def test_geometric() -> None:
    for dtype in (torch.float32, torch.int64):
        x = draw(aten.geometric, torch.empty(N, dtype=dtype), 0.3).double()
        assert x.min() == 1
        for k in (1, 2, 5):
            assert abs((x == k).double().mean() - 0.3 * 0.7 ** (k - 1)) < 0.015


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8, torch.float32, torch.bfloat16])
def test_random(dtype: torch.dtype) -> None:
    x = draw(getattr(aten.random, "from"), torch.empty(N, dtype=dtype), 3, 10).double()
    counts = torch.bincount(x.long(), minlength=10)
    assert counts[:3].sum() == 0
    assert ((counts[3:] - N / 7).abs() < 5 * math.sqrt(N / 7)).all()
    high = {torch.float32: 2**24, torch.bfloat16: 2**8}.get(dtype) or torch.iinfo(dtype).max
    full = draw(aten.random, torch.empty(N, dtype=dtype)).double()
    assert full.min() >= 0
    assert full.max() <= high
    assert abs(full.mean() / high - 0.5) < 0.02


def test_random_of_64_bits() -> None:
    low = -(2**63)
    x = draw(getattr(aten.random, "from"), torch.empty(N, dtype=torch.int64), low, None)
    assert kolmogorov(x.double() / 2.0**64, lambda x: x + 0.5) > 0.01
    x = draw(getattr(aten.random, "from"), torch.empty(N, dtype=torch.int64), -5, 2**40)
    assert kolmogorov((x + 5) / (2**40 + 5), lambda x: x) > 0.01
    flags = draw(aten.random, torch.empty(N, dtype=torch.bool))
    assert abs(flags.double().mean() - 0.5) < 0.02


def test_dropout() -> None:
    x = torch.arange(1.0, N + 1)
    out, mask = run(aten.native_dropout, x, 0.2, True, rng=RNG)
    assert mask.dtype == torch.bool
    assert abs(mask.double().mean() - 0.8) < 0.015
    torch.testing.assert_close(out, x * mask / 0.8)
    out, mask = run(aten.native_dropout, x, 1.0, True, rng=RNG)
    assert not out.any()
    assert not mask.any()
    for args in [(0.0, True), (0.5, False)]:
        out, mask = run(aten.native_dropout, x, *args, rng=RNG)
        assert torch.equal(out, x)
        assert mask.all()


def test_rrelu() -> None:
    x = torch.linspace(-1, 1, N)
    out, noise = run(aten.rrelu_with_noise_functional, x, torch.zeros(N), 0.1, 0.4, True, rng=RNG)
    torch.testing.assert_close(out, x * noise)
    assert (noise[x > 0] == 1).all()
    assert kolmogorov((noise[x <= 0] - 0.1) / 0.3, lambda x: x) > 0.01
    out, _ = run(aten.rrelu_with_noise_functional, x, torch.zeros(N), 0.1, 0.4, False, rng=RNG)
    torch.testing.assert_close(out, torch.where(x < 0, x * 0.25, x))


@pytest.mark.parametrize("n", [0, 1, 2, 100, 4096])
def test_randperm(n: int) -> None:
    p = draw(aten.randperm, n, dtype=torch.int64)
    assert torch.equal(p.sort().values, torch.arange(n))
    if n > 2:
        fixed = (p == torch.arange(n)).sum()
        assert fixed < 6
        assert not torch.equal(p, draw(aten.randperm, n, dtype=torch.int64, rng=(RNG[0], RNG[1] + n)))


def test_multinomial() -> None:
    weights = torch.tensor([1.0, 0.0, 3.0, 6.0])
    one = draw(aten.multinomial, weights.expand(N, 4), 1)
    many = draw(aten.multinomial, weights, N, True)
    both = draw(aten.multinomial, torch.stack([weights, weights.flip(0)]), N // 2, True)
    assert (one.shape, many.shape, both.shape) == ((N, 1), (N,), (2, N // 2))
    for sample in (one[:, 0], many, both[0], 3 - both[1]):
        shares = torch.bincount(sample, minlength=4) / len(sample)
        assert shares[1] == 0
        assert torch.allclose(shares, weights / 10, atol=0.015)
    drawn = draw(aten.multinomial, weights.expand(1000, 4), 3)
    assert (drawn.sort(1).values == torch.tensor([0, 2, 3])).all()
    second = torch.bincount(drawn[drawn[:, 0] == 3, 1], minlength=4).double()
    assert abs(second[2] / second.sum() - 0.75) < 0.07


@pytest.mark.parametrize(
    ("called", "functional"),
    [
        ("normal_", "normal_functional"),
        ("uniform_", "uniform"),
        ("random_", "random"),
        ("random_.from", "random.from"),
        ("random_.to", "random.to"),
        ("bernoulli_.float", "bernoulli.p"),
        ("bernoulli_.Tensor", "bernoulli.Tensor"),
        ("bernoulli.out", "bernoulli.default"),
        ("exponential_", "exponential"),
        ("geometric_", "geometric"),
        ("cauchy_", "cauchy"),
        ("log_normal_", "log_normal"),
        ("normal.Tensor_float_out", "normal.Tensor_float"),
        ("randperm.out", "randperm.default"),
        ("randperm.generator_out", "randperm.generator"),
        ("multinomial.out", "multinomial.default"),
        ("rrelu_with_noise", "rrelu_with_noise"),
        ("rrelu_with_noise_", "rrelu_with_noise_functional"),
    ],
)
def test_mutating_overloads_find_their_rule(called: str, functional: str) -> None:
    name, _, overload = called.partition(".")
    resolution = registry.resolve(f"aten::{name}", overload)
    assert resolution.kind == "record"
    assert resolution.random
    assert str(resolution.functional).removeprefix("aten.").removesuffix(".default") == functional.removesuffix(
        ".default"
    )
