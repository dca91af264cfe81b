"""Fused eager: loops settle into known programs, writes are in place, errors lose nothing, all of it is explained."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    with torch.tpu.set_eager_mode("fused"):
        yield


def programs() -> int:
    """How many programs the process has needed so far."""
    torch.tpu.synchronize()
    return torch.tpu.metrics().get("programs", 0)


def settles(step: Callable[[int], Any], warm_up: int = 4, steps: int = 496) -> None:
    """Asserts that steps after the first few need no program that is not known."""
    kept: Any = None  # a loop holds on to its last result
    for i in range(warm_up):
        kept = step(i)
    before = torch.tpu.metrics()["programs"]
    for i in range(warm_up, warm_up + steps):
        kept = step(i)
    after = torch.tpu.metrics()["programs"]
    del kept
    torch.tpu.synchronize()
    assert after == before, torch.tpu.explain()


class Net(nn.Module):
    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms):
            x = x + F.gelu(layer(norm(x)))
        return x


def test_one_program_for_a_chain() -> None:
    x = torch.ones(8, device="tpu")
    torch.tpu.synchronize()
    before = torch.tpu.metrics()["launches"]
    y = x
    for _ in range(50):
        y = torch.tanh(y * 1.01 + x)
    y.cpu()
    assert torch.tpu.metrics()["launches"] == before + 1


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_settles_without_a_read(optimizer: type[torch.optim.Optimizer]) -> None:
    model = Net().to("tpu")
    x = torch.randn(4, 16, device="tpu")
    opt = optimizer(model.parameters(), lr=0.01)

    def step(i: int) -> None:
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
        if i % 10 == 9:
            next(model.parameters()).sum().item()

    settles(step, warm_up=21)


def test_training_equals_strict() -> None:
    def train(mode: str) -> list[Tensor]:
        torch.manual_seed(3)
        with torch.tpu.set_eager_mode(mode):
            model = Net().to("tpu")
            opt = torch.optim.AdamW(model.parameters(), lr=0.01)
            x = torch.randn(4, 16, device="tpu")
            for _ in range(5):
                opt.zero_grad()
                F.dropout(model(x), 0.3).square().mean().backward()
                opt.step()
            return [p.detach().cpu() for p in model.parameters()]

    for fused, strict in zip(train("fused"), train("strict")):
        torch.testing.assert_close(fused, strict, rtol=1e-4, atol=1e-5)


def test_inference_settles() -> None:
    model = Net(layers=8).to("tpu").eval()
    x = torch.randn(4, 16, device="tpu")

    @torch.no_grad()
    def step(i: int) -> Tensor:
        return model(x)

    settles(step, warm_up=12, steps=60)


def test_gradient_accumulation_settles() -> None:
    model = Net(layers=4).to("tpu")
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(4, 16, device="tpu")

    def step(i: int) -> None:
        model(x).square().mean().backward()
        if i % 4 == 3:
            opt.step()
            opt.zero_grad()

    settles(step, warm_up=16, steps=64)


def test_two_models_in_turn_settle() -> None:
    g, d = Net(), Net()
    g.to("tpu"), d.to("tpu")
    g_opt, d_opt = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (g, d))
    z = torch.randn(4, 16, device="tpu")

    def step(i: int) -> None:
        d_opt.zero_grad()
        (d(g(z).detach()).mean() - d(z).mean()).backward()
        d_opt.step()
        g_opt.zero_grad()
        (-d(g(z)).mean()).backward()
        g_opt.step()

    settles(step)


def test_decoding_settles() -> None:
    weight = torch.randn(16, 16, device="tpu")
    cache = torch.zeros(32, 16, device="tpu")

    @torch.no_grad()
    def step(i: int) -> int:
        x = torch.tanh(cache.sum(0, keepdim=True) @ weight)
        cache[i % 32] = x[0]
        return int(x.argmax())

    settles(step, warm_up=6)


def test_a_rare_branch_recompiles_only_itself() -> None:
    model = Net(layers=8).to("tpu").eval()
    x = torch.randn(4, 16, device="tpu")
    seen: list[Tensor] = []

    @torch.no_grad()
    def step(i: int) -> Tensor:
        y = model(x)
        if i % 20 == 19:
            seen.append(y.abs().max())
        return y

    settles(step, warm_up=60, steps=80)


def test_parameters_are_updated_in_their_own_buffers() -> None:
    model = Net().to("tpu")
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(4, 16, device="tpu")
    for _ in range(4):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
        torch.tpu.synchronize()
    bytes_of_parameters = sum(p.numel() * 4 for p in model.parameters())
    assert torch.tpu.explain().flushes[-1].donated_bytes == 3 * bytes_of_parameters


def test_a_value_that_somebody_sees_is_not_donated() -> None:
    x = torch.arange(8.0, device="tpu")
    y = x.clone()  # shares the value
    torch.tpu.synchronize()
    x.add_(1)
    torch.tpu.synchronize()
    assert y.cpu().equal(torch.arange(8.0))
    assert x.cpu().equal(torch.arange(8.0) + 1)


def test_dead_values_are_not_results() -> None:
    x = torch.ones(8, device="tpu")
    torch.tpu.synchronize()
    y = ((x + 1) * 2 - 3).tanh()
    torch.tpu.synchronize()
    assert torch.tpu.explain().flushes[-1].outputs == 1
    del y


def test_garbage_does_not_change_the_program() -> None:
    x = torch.ones(256, device="tpu")

    def step(i: int) -> Tensor:
        big = x.repeat(64)
        y = (big * 2).sum() + x.mean()
        if i % 2:  # a cycle keeps a small result alive until the collector comes
            cycle: list[Any] = [y]
            cycle.append(cycle)
        torch.tpu.synchronize()
        return big

    gc.disable()
    try:
        settles(step, warm_up=2, steps=6)
    finally:
        gc.enable()


def test_shape_errors_are_raised_at_the_call_and_lose_nothing() -> None:
    x = torch.ones(2, 3, device="tpu")
    y = x * 2
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        y + torch.ones(4, device="tpu")
    assert (y + 1).cpu().equal(torch.full((2, 3), 3.0))


def test_a_failed_program_names_the_line_and_rolls_back() -> None:
    x = torch.ones(4, device="tpu")
    torch.tpu.synchronize()
    x.add_(1)
    y = torch.empty(0, device="tpu")
    with torch.tpu.config.patch(memory_limit=None):
        huge = x.expand(1 << 40, 4)  # metadata only
        with pytest.raises(torch.OutOfMemoryError):
            y = huge * 2
    del y
    assert x.cpu().equal(torch.full((4,), 2.0))


def test_mode_change_is_a_boundary() -> None:
    x = torch.ones(4, device="tpu")
    y = x + 1
    with torch.tpu.set_eager_mode("strict"):
        z = y * 2
    assert (z + y).cpu().equal(torch.full((4,), 6.0))


def test_numbers_that_change_are_no_constants() -> None:
    x = torch.ones(4, device="tpu")
    torch.tpu.synchronize()
    (x * 0.5 + 1).cpu()
    before = programs()
    for i in range(5):
        y = (x * (0.1 * i) + i).cpu()
        assert y.allclose(torch.full((4,), 0.1 * i + i))
    assert programs() == before


def test_a_learning_rate_schedule_compiles_nothing() -> None:
    model = Net().to("tpu")
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 50)
    x = torch.randn(4, 16, device="tpu")

    def step(i: int) -> None:
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
        schedule.step()

    settles(step)


def test_explain_says_what_differed() -> None:
    for n in (16, 17):
        torch.cat([torch.ones(n, device="tpu"), torch.ones(3, device="tpu")]).cumsum(0).cpu()
    text = str(torch.tpu.explain())
    assert "size" in torch.tpu.explain().recompiles[-1].difference
    assert "host read" in text
    assert "test_fused.py" in text


def test_threads_record_at_once() -> None:
    results: dict[int, Tensor] = {}

    def work(seed: int) -> None:
        x = torch.full((8,), float(seed), device="tpu")
        for _ in range(50):
            x = x * 0.5 + seed
        results[seed] = x.cpu()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, result in results.items():
        assert result.allclose(torch.full((8,), 2.0 * seed))


def test_checkpoint_functions_and_hooks_equal_the_cpu() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2

    def gradients(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = Net().to(device)
        x = torch.linspace(-1, 1, 64).view(4, 16).to(device).requires_grad_()
        x.register_hook(lambda g: g * 3)
        y = checkpoint(model, Double.apply(x), use_reentrant=False)
        y.square().mean().backward()
        return [x.grad.cpu(), *(p.grad.cpu() for p in model.parameters())]

    for tpu, cpu in zip(gradients("tpu"), gradients("cpu")):
        torch.testing.assert_close(tpu, cpu, rtol=1e-4, atol=1e-5)


def test_transforms_equal_the_cpu() -> None:
    def f(x: Tensor) -> Tensor:
        return (torch.sin(x) * x).sum()

    x = torch.linspace(-1, 1, 12).view(3, 4)
    expected = torch.func.vmap(torch.func.grad(f))(x)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(f))(x.to("tpu")).cpu(), expected)


def test_random_streams_are_the_same_in_all_modes() -> None:
    def draw(mode: str) -> Tensor:
        with torch.tpu.set_eager_mode(mode):
            torch.manual_seed(5)
            x = torch.randn(3, 5, device="tpu")
            return torch.cat([x, torch.rand(2, 5, device="tpu"), F.dropout(x, 0.5)]).cpu()

    assert draw("debug").equal(draw("strict"))
    assert draw("fused").equal(draw("strict"))


def test_caps_are_options() -> None:
    with torch.tpu.config.patch(fused_max_nodes=10):
        x = torch.ones(4, device="tpu")
        torch.tpu.synchronize()
        before = torch.tpu.metrics().get("flushes.node cap", 0)
        for i in range(25):
            x = x + x.sin() * (i + 1)
        x.cpu()
    assert torch.tpu.metrics()["flushes.node cap"] > before


def test_programs_not_used_for_longest_are_forgotten_and_come_back() -> None:
    def run(width: int) -> torch.Tensor:
        return (torch.arange(width, device="tpu") * 3).cpu()

    with torch.tpu.config.patch(max_programs=8):
        before = torch.tpu.metrics().get("program_evictions", 0)
        for width in range(100, 124):
            assert run(width).tolist() == [3 * i for i in range(width)]
        assert torch.tpu.metrics()["program_evictions"] - before >= 16
        assert run(100)[-1] == 297
    forgotten = [flush for flush in torch.tpu.explain().flushes if flush.executable is None]
    assert forgotten
    with pytest.raises(RuntimeError, match="forgotten"):
        forgotten[0].stablehlo()


def test_an_iteration_that_the_host_waits_for_starts_before_it_is_recorded_whole() -> None:
    weights = [torch.randn(128, 128, device="tpu") for _ in range(10)]

    def step(_: int) -> float:
        x = torch.ones(128, 128, device="tpu")
        for w in weights:
            x = torch.tanh(x @ w).softmax(-1) + x
        return x.sum().item()

    results = [step(i) for i in range(4)]  # the first makes the weights too
    settles(step, warm_up=0, steps=10)
    *first, last = [flush for flush in torch.tpu.explain().flushes[-40:] if "test_fused" in flush.line][-4:]
    assert [flush.reason for flush in first] == ["repetition"] * 3
    assert last.reason == "host read"
    assert sum(flush.nodes for flush in (*first, last)) == 42
    assert results == [step(4)] * 4


def test_a_state_updated_by_functional_ops_stays_in_its_buffer() -> None:
    state = torch.zeros(1000, device="tpu")
    seen = state
    for i in range(3):
        state = state.index_fill(0, torch.tensor([i], device="tpu"), 1.0) * 2
        torch.tpu.synchronize()
        assert torch.tpu.explain().flushes[-1].donated_bytes == (4000 if i else 0)  # the first is still seen
    assert seen.sum().item() == 0
    assert state[:4].tolist() == [8, 4, 2, 0]


def test_a_value_that_comes_back() -> None:
    """Two values that take each other's place in one storage have no end of predecessors."""
    x = torch.ones(4, device="tpu")
    first, second = x * 2, x * 3
    kept = first.clone()
    first.copy_(second)
    first.copy_(kept)
    assert first.tolist() == [2.0] * 4
    assert second.tolist() == [3.0] * 4
