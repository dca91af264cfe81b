"""Fused mode over sizes that differ: few programs serve many sizes, and what their padding holds never shows."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_compile_dynamic import OPS, SIZES, Model, cpu, inputs
from torch import Tensor, nn

from torch_tpu.dynamo import recorded
from torch_tpu.dynamo.relations import Relations

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    with torch.tpu.set_eager_mode("fused"):
        yield
    torch.tpu.synchronize()


def counted(name: str) -> int:
    return int(torch.tpu.metrics().get(name, 0))


# Ops that cannot be padded yet: each of their programs is compiled for its own sizes.
EXACT = {"one hot", "windows", "rotary embedding", "diagonals"}  # scatter of a number; views that are no boxes


@pytest.mark.parametrize("name", OPS)
def test_padding_never_shows(name: str) -> None:
    fn, padded = OPS[name], counted("padded_programs")
    for n, m in SIZES:
        x, i = inputs(n, m)
        found, wanted = fn(x.to("tpu"), i.to("tpu")), fn(x, i)
        torch.testing.assert_close(cpu(found), wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
        for f, w in zip(*(torch.utils._pytree.tree_leaves(v) for v in (found, wanted))):
            assert (f.shape, f.stride(), f.dtype) == (w.shape, w.stride(), w.dtype)
    assert counted("padded_programs") > padded or name in EXACT, recorded.exact_reasons()


def losses_of(model: nn.Module, batches: list[Tensor], where: str) -> list[float]:
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for tokens in batches:
        loss = model(tokens.to(where))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_over_random_lengths() -> None:
    model, device = Model(), Model()
    device.load_state_dict(model.state_dict())
    draw = random.Random(0)
    batches = [torch.randint(0, 11, (3 if step == 29 else 4, draw.randint(16, 200))) for step in range(30)]
    before = counted("programs")
    found = losses_of(device.to("tpu"), batches, "tpu")
    # The optimizer's first step has programs of its own; then a length of its own, five buckets, the smaller batch.
    assert counted("programs") - before <= 10
    torch.testing.assert_close(found, losses_of(model, batches, "cpu"), rtol=1e-4, atol=1e-5)


def test_a_cache_that_grows_by_cat() -> None:
    def step(cache: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        cache = torch.cat([cache, new], 1)
        return cache, (new @ cache.mT).softmax(-1) @ cache

    cache = torch.randn(2, 5, 4)
    device, before, repacks = cache.to("tpu"), counted("programs"), counted("repacks")
    for _ in range(40):
        new = torch.randn(2, 1, 4)
        cache, wanted = step(cache, new)
        device, found = step(device, new.to("tpu"))
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(device.cpu(), cache)
    assert counted("programs") - before <= 5  # 5 alone, then up to 8, 16, 32, 64
    assert counted("repacks") - repacks <= 50


def test_writes_through_views() -> None:
    def run(x: Tensor, cache: Tensor) -> Tensor:
        y = x.clone()
        y[:, 1:] += 1
        y[-1] *= 2
        y[:, :, -1] = y[:, :, 0]
        cache[:, : x.shape[2]] = y.sum(0)
        return y.cumsum(1)

    cache = torch.zeros(4, 40)
    device, padded = cache.to("tpu"), counted("padded_programs")
    for n, m in [(3, 5), (7, 9), (4, 12), (9, 33), (5, 6)]:
        x = torch.randn(n, m, 4)
        torch.testing.assert_close(run(x.to("tpu").mT, device).cpu(), run(x.mT, cache))
        torch.testing.assert_close(device.cpu(), cache)
    assert counted("padded_programs") > padded


def test_draws_as_strict() -> None:
    def draw(n: int) -> list[Any]:
        torch.manual_seed(n)
        x = torch.ones(n, 6, device="tpu")
        return [v.cpu() for v in (F.dropout(x * 2, 0.5), torch.rand_like(x), torch.randn(n, device="tpu"))]

    for n in (5, 9, 12, 17):
        found = draw(n)
        with torch.tpu.set_eager_mode("strict"):
            wanted = draw(n)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted))


def test_sizes_of_what_is_made_on_the_device() -> None:
    before = counted("programs")
    for n in (20, 21, 25, 30, 31, 33, 40):
        wanted = torch.arange(n).cumsum(0) + torch.ones(n)
        assert torch.equal((torch.arange(n, device="tpu").cumsum(0) + torch.ones(n, device="tpu")).cpu(), wanted)
    assert counted("programs") - before == 3  # 20 alone, then up to 32, 64


def test_another_part_of_the_same_tensor_is_no_other_size() -> None:
    x = torch.arange(60.0).reshape(3, 4, 5)
    device, padded = x.to("tpu"), counted("padded_programs")
    for part in (lambda x: x[0], lambda x: x[:, 1], lambda x: x[:, 1:3, 2], lambda x: x[1:, :2, 3]):
        assert torch.equal((part(device) + 1).cpu(), part(x) + 1)
    assert counted("padded_programs") == padded


def test_results_are_ordinary_tensors() -> None:
    for n in (5, 6, 7):
        x = torch.randn(n, 3)
        y = x.to("tpu") * 2
        torch.tpu.synchronize()
        view = y[1:4]
        y.add_(1)
        wanted = x * 2 + 1
        torch.testing.assert_close(view.cpu(), wanted[1:4])
        torch.testing.assert_close((y.t() @ y).cpu(), wanted.t() @ wanted)
        assert y.untyped_storage().nbytes() == n * 12
        with torch.tpu.set_eager_mode("strict"):
            torch.testing.assert_close((y + 1).cpu(), wanted + 1)
        with torch.tpu.set_eager_mode("debug"), torch.tpu.config.patch(debug_check_nan=True):
            torch.testing.assert_close((x.to("tpu") * 2).cpu(), x * 2)  # a program that fused mode has padded


def test_off_compiles_for_every_size() -> None:
    with torch.tpu.config.patch(dynamic_shapes="off"):
        before = counted("programs")
        for n in range(20, 26):
            torch.ones(n, 5, device="tpu").erfinv().sum(1).cpu()
        assert counted("programs") - before == 6


def test_buckets_grow_as_configured() -> None:
    with torch.tpu.config.patch(bucket_growth=1.5, bucket_minimum=10):
        before = counted("programs")
        for n in (20, 9, 10, 11, 15, 16, 22):  # 20 alone, then up to 10, 15, 22
            torch.ones(n, 7, device="tpu").erfc().sum(1).cpu()
        assert counted("programs") - before == 4
    for name, value in {"bucket_growth": 1, "bucket_minimum": 0, "dynamic_shapes": "on"}.items():
        with pytest.raises(ValueError, match=name):
            setattr(torch.tpu.config, name, value)


def test_explain_says_why_sizes_are_exact() -> None:
    for n in (5, 6, 7):
        x = torch.randn(n, 4)
        torch.testing.assert_close(x.to("tpu").median(0)[0].cpu(), x.median(0)[0])
    assert "fused mode: exact sizes, aten.median.dim is not known" in str(torch.tpu.explain())


def test_a_bucket_that_cannot_be_compiled_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(*_: Any) -> Any:
        tried.append(1)
        raise RuntimeError("the compiler refuses")

    monkeypatch.setattr(recorded.programs, "executable", refuse)
    for n in (5, 6, 7, 9, 17):
        x = torch.randn(n, 11)
        torch.testing.assert_close((x.to("tpu").sinh() - 7).cpu(), x.sinh() - 7)
    assert len(tried) == 1
    assert "fused mode: exact sizes, the compiler refuses" in str(torch.tpu.explain())


sizes = st.integers(2, 600)


@given(st.lists(st.tuples(sizes, sizes), min_size=2, max_size=4, unique=True), st.tuples(sizes, sizes))
@settings(max_examples=200, deadline=None)
def test_relations_hold_only_for_what_they_compute(samples: list[tuple[int, int]], other: tuple[int, int]) -> None:
    def numbers(n: int, m: int) -> list[int]:
        return [n * m, 7, m, n, n * m * 3, n + 1, 2 * m + 3, n + m, m * m, n * (m + 1)]

    relations = Relations([numbers(*s) for s in samples])
    assert all(relations.holds(numbers(*s)) for s in samples)
    recorded_now = numbers(*other)
    if relations.holds(recorded_now):
        values = [form(relations.symbols(recorded_now)) for form in relations.forms]
        assert [values[form] for form in relations.form_of] == recorded_now
    assert not relations.holds([number + (i == 4) for i, number in enumerate(recorded_now)])
    assert not relations.holds([number + (i == 1) for i, number in enumerate(recorded_now)])


def test_the_callers_modes_do_not_reach_the_padded_program() -> None:
    def run(x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=True).exp().sum(0)

    with torch.device("tpu"), torch.autocast("tpu"), torch.inference_mode():
        padded = counted("padded_programs")
        for n in (5, 6, 7):
            x = torch.randn(n, 4, device="cpu")
            torch.testing.assert_close(run(x.to("tpu")).cpu(), run(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(torch.func.vmap(run)(x.to("tpu")[None]).cpu()[0], run(x), rtol=1e-4, atol=1e-5)
        assert counted("padded_programs") >= padded + 4


def test_sizes_that_come_often_get_a_program_of_their_own() -> None:
    def run(n: int) -> None:
        x = torch.randn(n, 6)
        torch.testing.assert_close((x.to("tpu").exp2() * 3).cpu(), x.exp2() * 3)

    run(20)
    run(21)
    before, deadline = counted("programs"), time.monotonic() + 60
    for _ in range(31):
        run(21)
    repacks = -1
    while counted("repacks") != repacks:  # each launch in the bucket puts the input under its dims
        assert time.monotonic() < deadline
        repacks = counted("repacks")
        run(21)
    assert counted("programs") == before + 1


def _ramp(device: str, *shape: int) -> Tensor:
    x = torch.arange(float(torch.Size(shape).numel()))
    return (x * 0.7).sin().reshape(shape).to(device)


def _grouped_attention(device: str, heads: int, groups: int, n: int) -> Tensor:
    key = _ramp(device, 2, groups, n + 1, 8)
    return F.scaled_dot_product_attention(_ramp(device, 2, heads, n, 8), key, key, enable_gqa=True)


def _scattered(device: str, n: int, m: int, k: int) -> Tensor:
    index = _ramp(device, k, m).argsort(0)
    return _ramp(device, n, m).scatter_add(0, index, _ramp(device, n + 1, m + 2))


def _windows(device: str, n: int, size: int, step: int) -> Tensor:
    x = _ramp(device, n).requires_grad_()
    (x.unfold(0, size, step).exp().sum() + x[::step].square().sum()).backward()
    assert x.grad is not None
    return x.grad


# Sizes that a user of torch.compile would hardly mark, but eager code changes as it likes.
CHANGING: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "parts of a size": (
        lambda d, n, m, k: F.interpolate(_ramp(d, 1, 2, n, m), size=(k, m - 1), mode="area"),
        [(4, 4, 3), (6, 6, 3), (9, 5, 4), (6, 7, 2)],
    ),
    "grouped heads": (_grouped_attention, [(4, 4, 5), (4, 2, 5), (6, 3, 9), (6, 2, 9)]),
    "a source larger than the index": (_scattered, [(6, 6, 5), (5, 7, 3), (9, 4, 6), (4, 9, 4)]),
    "steps": (_windows, [(10, 3, 3), (30, 3, 11), (30, 2, 7), (12, 2, 5)]),
    "channels": (
        lambda d, n, c, o: F.conv2d(_ramp(d, n, c, 6, 7), _ramp(d, o, c, 3, 3), _ramp(d, o)),
        [(2, 3, 4), (3, 5, 2), (4, 2, 9)],
    ),
    "channels of groups": (
        lambda d, n, c, o: F.conv1d(_ramp(d, n, 2 * c, 9), _ramp(d, 2 * o, c, 3), groups=2),
        [(2, 3, 4), (3, 5, 2), (4, 2, 9)],
    ),
    "all dims of a product": (
        lambda d, n, k, m: _ramp(d, n, k) @ _ramp(d, k, m),
        [(2, 3, 4), (5, 9, 2), (12, 4, 7)],
    ),
}


@pytest.mark.parametrize("name", CHANGING)
def test_any_size_may_change(name: str) -> None:
    fn, cases = CHANGING[name]
    for case in cases:
        torch.testing.assert_close(fn("tpu", *case).cpu(), fn("cpu", *case), rtol=1e-4, atol=1e-5)
