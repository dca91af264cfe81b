"""torch.compile with backend tpu: the same numbers, gradients, mutations and random draws as eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.process import run_python

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend="tpu", fullgraph=options.pop("fullgraph", True), **options)


def on_tpu(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().to("tpu").requires_grad_(t.requires_grad) for t in tensors]


def pieces() -> dict[str, str]:
    return torch.tpu.compiler.eager_pieces()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "pointwise": lambda x, y: torch.tanh(x * 2 + y) - x / y.exp(),
    "views": lambda x, y: (x.t().reshape(2, -1)[:, 1:].unsqueeze(0).expand(3, -1, -1) * 2, y[..., ::2], y[-1]),
    "reductions": lambda x, y: (x.sum(0), y.mean(1, keepdim=True), x.amax(), y.std(), x.argmax(1)),
    "products": lambda x, y: (x @ y.t(), torch.einsum("ij,kj->ik", x, y), F.linear(x, y)),
    "indexing": lambda x, y: (x[torch.tensor([1, 0, 3], device=x.device)], x[x > 0].sum() * 0 + y[1:, 2].sum()),
    "joining": lambda x, y: (torch.cat([x, y]), torch.stack([x, y], 1), *x.chunk(2), *x.split([2, 4], 1)),
    "dtypes": lambda x, y: (x.to(torch.bfloat16).float(), (y > 0).int(), x.double() * 2, x.long() // 3),
    "factories": lambda x, y: (x + torch.arange(6, device=x.device), torch.zeros_like(y), torch.full((2,), 3.0) + 1),
    "constants": lambda x, y: (None, 3, x + 1),
    "sorting": lambda x, y: (*x.sort(1), *y.topk(2, 0), x.cumsum(1)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    fn, inputs = FUNCTIONS[name], [torch.randn(4, 6), torch.randn(4, 6)]
    found = compiled(fn, fullgraph=name not in ("indexing", "factories"))(*on_tpu(*inputs))
    wanted = fn(*inputs)
    torch.testing.assert_close(_to_cpu(found), _to_cpu(wanted), rtol=2e-5, atol=2e-5)


def _to_cpu(value: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda v: v.cpu() if isinstance(v, Tensor) else v, value)


@pytest.mark.parametrize("shape", [(5, 3), (0, 3), (1, 1)])
def test_strides_as_eager(shape: tuple[int, ...]) -> None:
    fn = lambda x: (x.t() + 1, x.expand(2, *shape).contiguous(), x.permute(1, 0).relu())
    x = torch.randn(shape).to("tpu")
    for found, wanted in zip(compiled(fn)(x), fn(x)):
        assert (found.shape, _strides(found), found.dtype) == (wanted.shape, _strides(wanted), wanted.dtype)


def _strides(x: Tensor) -> list[int]:
    """Of the dims that have more than one element, in a tensor that has any: the others' strides mean nothing."""
    return [stride for size, stride in zip(x.shape, x.stride()) if size != 1 and x.numel()]


# ---- mutation


def test_input_mutated_through_every_alias() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        x[1].mul_(y[0])
        return x.sum()

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    device_x, device_y = on_tpu(x, y)
    alias = device_x[1:]
    total = compiled(fn)(device_x, device_y)
    assert torch.allclose(total.cpu(), fn(x, y), atol=1e-5)
    torch.testing.assert_close(device_x.cpu(), x)
    torch.testing.assert_close(alias.cpu(), x[1:])


def test_mutated_view_of_a_larger_tensor() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    device = whole.to("tpu")
    compiled(lambda v: v.mul_(10))(device[:, 1:3])
    whole[:, 1:3].mul_(10)
    torch.testing.assert_close(device.cpu(), whole)


def test_mutated_input_is_donated_only_if_nobody_shares_its_value() -> None:
    step = compiled(lambda x: x.add_(1))
    x = torch.zeros(1000, device="tpu")
    clone = x.clone()  # shares the value until one side writes
    for _ in range(3):
        step(x)
    assert clone.cpu().eq(0).all()
    assert x.cpu().eq(3).all()
    assert torch.tpu.compiler.last_programs()[-1].memory["alias_bytes"] >= 4000


def test_output_that_is_an_input_or_a_view_of_one() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, x[1:], x + 1

    x = torch.randn(3, 2, device="tpu")
    same, view, new = compiled(fn)(x)
    x.zero_()
    assert same.cpu().eq(0).all()
    assert view.cpu().eq(0).all()
    assert not new.cpu().eq(1).all()


def test_outputs_that_are_views_of_another() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        z = y * 2
        return y, y[1:], y.t(), *z.split(1), (y.t() @ z).exp()

    x, before = torch.randn(3, 4), pieces()
    for results in (fn(x), compiled(fn)(x.to("tpu"))):
        y, part, turned, *others = results
        y.zero_()
        others[0].zero_()
        assert part.cpu().eq(0).all()
        assert turned.cpu().eq(0).all()
        assert others[1].cpu().ne(0).any()
        assert part.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    assert pieces() == before


def test_batch_norm_statistics_and_gradients() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    device = copy.deepcopy(model).to("tpu")
    run = compiled(device)
    for _ in range(2):
        x = torch.randn(5, 2, 6, 6)
        model(x).square().sum().backward()
        run(x.to("tpu")).square().sum().backward()
    for (name, wanted), found in zip(model.named_buffers(), device.buffers()):
        torch.testing.assert_close(found.cpu(), wanted, msg=name)
    for wanted, found in zip(model.parameters(), device.parameters()):
        torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=1e-3, atol=1e-3)


# ---- training


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.drop, self.down = nn.Linear(6, 16), nn.LayerNorm(16), nn.Dropout(0.3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.drop(F.gelu(self.norm(self.up(x)))))


def test_dropout_draws_what_eager_draws() -> None:
    model = Net().to("tpu")
    other = copy.deepcopy(model)
    run, x = compiled(model), torch.randn(5, 6, device="tpu")
    for seed in range(2):
        torch.manual_seed(seed)
        found = [run(x), run(x)]
        state = torch.tpu.get_rng_state()
        torch.manual_seed(seed)
        wanted = [other(x), other(x)]
        assert torch.equal(state, torch.tpu.get_rng_state())
        for f, w in zip(found, wanted):
            torch.testing.assert_close(f, w)
        assert not torch.equal(found[0].cpu(), found[1].cpu())


@pytest.mark.parametrize(
    "draw", [torch.rand_like, torch.randn_like, torch.bernoulli, lambda x: torch.randint_like(x, 9)]
)
def test_random_ops_draw_what_eager_draws(draw: Callable[[Tensor], Tensor]) -> None:
    x = torch.full((3, 5), 0.5, device="tpu")
    fn = lambda x: (draw(x), draw(x))
    torch.manual_seed(3)
    found = compiled(fn)(x)
    torch.manual_seed(3)
    torch.testing.assert_close(found, fn(x))
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("whole", [False, True], ids=["eager-step", "compiled-step"])
def test_training(optimizer: Any, whole: bool) -> None:
    model = Net().eval()
    device = copy.deepcopy(model).to("tpu")
    ours, theirs = optimizer(device.parameters(), lr=0.05), optimizer(model.parameters(), lr=0.05)
    run = compiled(device)
    step = torch.compile(ours.step, backend="tpu") if whole else ours.step
    for _ in range(4):
        x = torch.randn(8, 6)
        loss = model(x).square().mean()
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        found = run(x.to("tpu")).square().mean()
        ours.zero_grad()
        found.backward()
        step()
        torch.testing.assert_close(found.cpu(), loss, rtol=1e-4, atol=1e-5)
    for p, q in zip(model.parameters(), device.parameters()):
        torch.testing.assert_close(q.cpu(), p, rtol=1e-3, atol=1e-4)


def test_backward_twice_with_retained_graph() -> None:
    x = torch.randn(4, 4, device="tpu", requires_grad=True)
    y = compiled(lambda x: (x.exp() * x.sin()).sum())(x)
    y.backward(retain_graph=True)
    first = x.grad.clone()
    y.backward()
    torch.testing.assert_close(x.grad, 2 * first)


def test_inference_mode_no_grad_and_autocast() -> None:
    model = Net().eval()
    device, x = copy.deepcopy(model).to("tpu"), torch.randn(3, 6)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            torch.testing.assert_close(compiled(device)(x.to("tpu")).cpu(), model(x), rtol=1e-4, atol=1e-5)
    with torch.autocast("tpu", torch.bfloat16):
        outside = compiled(device)(x.to("tpu"))
    assert outside.dtype == torch.bfloat16

    def inside(x: Tensor) -> Tensor:
        with torch.autocast("tpu", torch.bfloat16):
            return device(x)

    torch.testing.assert_close(compiled(inside)(x.to("tpu")), outside)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 30 * x  # not the derivative, so that one sees whose it is


def test_custom_function_and_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(4, device="tpu", requires_grad=True)
    compiled(lambda x: Cube.apply(x).sum())(x).backward()
    torch.testing.assert_close(x.grad, 30 * x.detach())
    x.grad = None
    block = lambda x: torch.sin(x).exp().cos()
    compiled(lambda x: checkpoint(block, x, use_reentrant=False).sum())(x).backward()
    other = x.detach().cpu().requires_grad_()
    block(other).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), other.grad)


# ---- graphs


def test_graph_break_and_python_arguments() -> None:
    def fn(x: Tensor, scale: float, flag: bool) -> Tensor:
        y = x * scale
        if y.sum().item() > 0:  # a break
            y = y + 1
        return y.relu() if flag else y

    x = torch.randn(5)
    for scale in (0.5, 2.0, -1.0):
        for flag in (True, False):
            found = compiled(fn, fullgraph=False)(x.to("tpu"), scale, flag)
            torch.testing.assert_close(found.cpu(), fn(x, scale, flag))


def test_op_without_a_rule_runs_eagerly_and_is_counted() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x + 1)[x > 0].sum() * 2

    x = torch.randn(20)
    before = torch.tpu.metrics().get("compile.eager_piece.aten.index.Tensor", 0)
    torch.testing.assert_close(compiled(fn, fullgraph=False)(x.to("tpu")).cpu(), fn(x))
    assert pieces() or torch.tpu.metrics().get("compile.eager_piece.aten.index.Tensor", 0) == before


def test_assertions_are_results_that_nobody_waits_for() -> None:
    def fn(i: Tensor, x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all(), "x must be positive")
        return F.one_hot(i, 4).sum(0) + x.sum().long()

    run, i, x = compiled(fn), torch.tensor([0, 3]), torch.ones(3)
    before = torch.tpu.metrics().get("compile.eager_piece.aten._assert_async.msg", 0)
    torch.testing.assert_close(run(i.to("tpu"), x.to("tpu")).cpu(), fn(i, x))
    torch.tpu.synchronize()
    for wrong, message in (((i, -x), "x must be positive"), ((i + 1, x), "Class values must be smaller")):
        run(*(t.to("tpu") for t in wrong))
        with pytest.raises(RuntimeError, match=message):
            torch.tpu.synchronize()
    torch.tpu.synchronize()
    torch._assert_async(torch.tensor(False).to("tpu"), "in eager mode")
    with pytest.raises(RuntimeError, match="in eager mode"):
        torch.tpu.synchronize()
    assert torch.tpu.metrics().get("compile.eager_piece.aten._assert_async.msg", 0) == before


# ---- options


def test_ops_without_a_meta_function_are_traced_with_real_tensors() -> None:
    x = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    for f in (lambda x: torch.histogramdd(x, [2, 3]).hist, lambda x: torch.histogram(x, 3).hist):
        torch.testing.assert_close(torch.compile(f)(x.to("tpu")).cpu(), f(x))


def test_modes_and_options_are_checked() -> None:
    x = torch.ones(2, device="tpu")
    for mode in ("default", "reduce-overhead"):
        assert compiled(lambda x: x + 1, mode=mode)(x).cpu().eq(2).all()
    with pytest.raises(Exception, match="'fast' is unknown to backend tpu; known are default, reduce-overhead"):
        compiled(lambda x: x + 1, mode="fast")(x)
    with pytest.raises(Exception, match="'donat' is unknown to backend tpu; known are donate, matmul_precision"):
        compiled(lambda x: x + 1, options={"donat": True})(x)
    with pytest.raises(Exception, match="option donate must be True or False"):
        compiled(lambda x: x + 1, options={"donate": 1})(x)


def test_last_programs_show_every_stage() -> None:
    compiled(lambda x, y: (x @ y).relu())(*on_tpu(torch.randn(4, 5), torch.randn(5, 3)))
    program = torch.tpu.compiler.last_programs()[-1]
    assert program.kind == "inference"
    assert "aten.mm" in program.fx
    assert "stablehlo.dot_general" in program.stablehlo
    assert "HloModule" in program.optimized_hlo
    assert program.memory["argument_bytes"] == 140
    assert program.cost


def test_matmul_precision_reaches_every_product() -> None:
    inputs = on_tpu(torch.randn(4, 5), torch.randn(5, 3))
    for precision, word in (("highest", "HIGHEST"), ("high", "HIGH"), ("medium", "")):
        torch._dynamo.reset()
        compiled(lambda x, y: x @ y, options={"matmul_precision": precision})(*inputs)
        text = torch.tpu.compiler.last_programs()[-1].stablehlo
        assert (f"precision = [{word}, {word}]" if word else "precision") in text or not word
        assert word or "precision" not in text


def test_flags_are_parsed_once_and_checked() -> None:
    from torch_tpu.compiler.flags import parse

    assert parse("--torchtpu_allow_tf32 --torchtpu_lazy_rematerialization=false").allow_tf32
    with pytest.raises(ValueError, match="unknown; known are --torchtpu_allow_tf32, --torchtpu_lazy"):
        parse("--torchtpu_fast")
    with pytest.raises(ValueError, match="must be true or false"):
        parse("--torchtpu_allow_tf32=maybe")


# ---- the default backend, and other processes

PLAIN = """
    import torch
    model = torch.nn.Linear(3, 2).to("tpu")
    x = torch.ones(2, 3, device="tpu")
    assert torch.equal(torch.compile(model)(x).cpu(), model(x).cpu())
    print([p.kind for p in torch.tpu.compiler.last_programs()])
"""


def test_plain_compile_of_tpu_tensors_comes_here() -> None:
    assert run_python(PLAIN) == "['forward']\n"


def test_plain_compile_of_cpu_tensors_goes_to_inductor() -> None:
    code = """
        import torch
        seen = []
        def spy(self, graph, inputs, **kwargs):
            seen.append(self.config.get("max_autotune", False))
            return graph
        torch._TorchCompileInductorWrapper.__call__ = spy
        fn = torch.compile(lambda x: x + 1, options={"max_autotune": True})
        assert fn(torch.ones(2)).eq(2).all()
        print(seen, torch.tpu.compiler.last_programs())
    """
    assert run_python(code) == "[True] []\n"


def test_a_default_that_the_user_chose_stays() -> None:
    code = """
        import torch
        torch.compiler.set_default_backend("eager")
        import torch._dynamo
        assert torch.compiler.get_default_backend() == "eager"
        torch.compile(lambda x: x + 1)(torch.ones(2, device="tpu"))
        print(torch.tpu.compiler.last_programs())
    """
    assert run_python(code) == "[]\n"


def test_second_process_builds_no_module(tmp_path: Any) -> None:
    code = """
        import sys, torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(0.5)).to("tpu")
        model = torch.compile(model, backend="tpu")
        for _ in range(2):
            model(torch.ones(2, 3).to("tpu")).sum().backward()
        grow = torch.compile(lambda x: torch.cat([x, x[:1]]).softmax(0), backend="tpu", dynamic=True)
        x = torch.ones(5, 2).to("tpu")
        for _ in range(5):
            x = grow(x)
        torch.tpu.synchronize()
        print(torch.tpu.cache.stats()["compiles"] > 0, "jaxlib.mlir.ir" in sys.modules)
    """
    assert run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)) == "True True\n"
    assert run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)) == "False False\n"


def test_a_row_times_a_weight_copies_no_weight() -> None:
    layer = nn.Linear(64, 96)
    device, x = copy.deepcopy(layer).to("tpu"), torch.randn(1, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(device)(x.to("tpu")).cpu(), layer(x), rtol=1e-4, atol=1e-5)
    assert torch.tpu.compiler.last_programs()[-1].memory["temp_bytes"] < 4 * 64 * 96


def test_global_precision_reaches_products_and_convolutions() -> None:
    layer = nn.Conv2d(2, 3, 3).to("tpu")
    run = lambda x: layer(x).flatten(1) @ x.flatten(1)[:, :12].t()
    x, before = torch.randn(4, 2, 4, 4, device="tpu"), torch.get_float32_matmul_precision()
    try:
        for precision, count in (("highest", 2), ("high", 2), ("medium", 0)):
            torch.set_float32_matmul_precision(precision)
            torch._dynamo.reset()
            compiled(run)(x)
            text = torch.tpu.compiler.last_programs()[-1].stablehlo
            lines = [line for line in text.splitlines() if "dot_general" in line or "stablehlo.convolution" in line]
            assert len(lines) == 2
            word = precision.upper()
            assert sum(f"[{word}, {word}]" in line or f"precision {word}>" in line for line in lines) == count
    finally:
        torch.set_float32_matmul_precision(before)


def test_max_autotune_measures_each_candidate_once(tmp_path: Any) -> None:
    code = """
        import torch
        from torch_tpu.dynamo import autotune
        measured, measure = [], autotune._measure
        autotune._measure = lambda *args: measured.append(measure(*args)) or measured[-1]
        x = torch.randn(8, 8, device="tpu")
        y = torch.compile(lambda x: (x @ x).relu().sum(1), backend="tpu", mode="max-autotune")(x)
        print(torch.allclose(y, (x @ x).relu().sum(1), atol=1e-5), len(measured))
    """
    assert run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)) == "True 3\n"
    assert run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)) == "True 0\n"
