"""Control flow, function transforms, checkpoints and exported programs through torch.compile with backend tpu."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as hop_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.func import grad, jacrev, jvp, vmap
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(fn, backend="tpu", fullgraph=True)


def programs() -> int:
    return int(torch.tpu.metrics().get("compiled_programs", 0))


def cpu(value: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda v: v.detach().cpu() if isinstance(v, Tensor) else v, value)


def _nested(x: Tensor, y: Tensor) -> Tensor:
    inner = lambda a: torch.cond(a.sum() > y.sum(), lambda a: a * 2, lambda a: a - 1, (a,))
    return torch.cond(x.sum() > 0, inner, lambda a: a.cos(), (x,))


def _repeat(x: Tensor, y: Tensor) -> Any:
    count = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5 + y.sum() + i), (count, x))


CONTROL: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "cond": lambda x, y: torch.cond(x.sum() > 0, lambda a, b: (a.sin(), b + a), lambda a, b: (a * 2, b.cos()), (x, y)),
    "nested cond": _nested,
    "while": _repeat,
    "scan": lambda x, y: scan(lambda c, x: (c * 0.5 + x, (c * x).sum(0)), y[0], x, dim=0),
    "scan of another dim": lambda x, y: scan(lambda c, x: (c + x, c * x), y[:, 0].clone(), x, dim=1, reverse=True),
    "associative scan": lambda x, y: associative_scan(lambda a, b: a * b + b, x, 0, combine_mode="generic"),
    "map": lambda x, y: hop_map(lambda x, y: (x * y).relu().sum(0), x, y),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_is_part_of_one_program(name: str) -> None:
    run = compiled(CONTROL[name])
    before, y = programs(), torch.randn(5, 4)
    for sign in (1, -1):
        x = torch.rand(5, 4) * sign
        torch.testing.assert_close(cpu(run(x.to("tpu"), y.to("tpu"))), cpu(CONTROL[name](x, y)), rtol=1e-4, atol=1e-5)
    assert programs() - before == 1


@pytest.mark.parametrize("name", ["cond", "scan", "map"])
def test_gradients_of_control_flow(name: str) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return sum(o.square().sum() for o in torch.utils._pytree.tree_leaves(CONTROL[name](x, y)))

    run, before = compiled(loss), programs()
    for sign in (1, -1):
        inputs = [(torch.rand(5, 4) * sign).requires_grad_(), torch.randn(5, 4).requires_grad_()]
        device = [t.detach().to("tpu").requires_grad_() for t in inputs]
        loss(*inputs).backward()
        run(*device).backward()
        for d, t in zip(device, inputs):
            torch.testing.assert_close(d.grad.cpu(), t.grad, rtol=1e-4, atol=1e-5)
    assert programs() - before == 2


def test_a_loop_that_counts_in_python_numbers_runs_eagerly() -> None:
    fn = lambda x: while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5 + i), (0, x))
    x = torch.randn(3)
    torch.testing.assert_close(cpu(compiled(fn)(x.to("tpu"))), fn(x))
    assert "while_loop" in torch.tpu.compiler.eager_pieces()


def test_function_transforms() -> None:
    def fn(x: Tensor, w: Tensor) -> Any:
        return (
            vmap(lambda a: (a * w).sin().sum())(x),
            grad(lambda w: (x @ w).square().sum())(w),
            jacrev(lambda w: x @ w)(w),
            vmap(grad(lambda a: (a * a * w).sum()))(x),
            jvp(lambda w: (x @ w).sin(), (w,), (torch.ones_like(w),)),
        )

    x, w, before = torch.randn(5, 4), torch.randn(4), programs()
    torch.testing.assert_close(cpu(compiled(fn)(x.to("tpu"), w.to("tpu"))), fn(x, w), rtol=1e-4, atol=1e-5)
    assert programs() - before == 1


# ---- checkpoints


def _keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    keep = op == torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, _keep_products)


@pytest.mark.parametrize("selective", [False, True])
def test_checkpoints_recompute(selective: bool) -> None:
    block = lambda x, w: torch.tanh(torch.sin(x @ w) @ w)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        extra = {"context_fn": SELECTIVE} if selective else {}
        return checkpoint(block, x, w, use_reentrant=False, **extra).sum()

    inputs = [torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]
    device = [t.detach().to("tpu").requires_grad_() for t in inputs]
    block(*inputs).sum().backward()
    compiled(fn)(*device).backward()
    for d, t in zip(device, inputs):
        torch.testing.assert_close(d.grad.cpu(), t.grad, rtol=1e-4, atol=1e-5)
    backward = torch.tpu.compiler.last_programs()[-1]
    assert backward.fx.count("aten.mm") == (4 if selective else 6)
    assert "aten.sin" in backward.fx


def test_checkpointed_dropout_draws_the_same_again() -> None:
    def fn(x: Tensor) -> Tensor:
        return checkpoint(lambda x: F.dropout(x.sin(), 0.5), x, use_reentrant=False).sum() + F.dropout(x).sum()

    x, found = torch.ones(100, device="tpu", requires_grad=True), []
    for run in (compiled(fn), fn):
        torch.manual_seed(3)
        x.grad = None
        y = run(x)
        y.backward()
        found.append((y.detach(), x.grad, torch.tpu.get_rng_state()))
    torch.testing.assert_close(*found)


# ---- export


def test_exported_programs() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3)).eval()
    device = copy.deepcopy(model).to("tpu")
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(device, (torch.randn(3, 6, device="tpu"),), dynamic_shapes=({0: batch},))
    run, before = compiled(exported.module()), programs()
    for n in (3, 5, 9, 12):
        x = torch.randn(n, 6)
        torch.testing.assert_close(run(x.to("tpu")).cpu(), model(x), rtol=1e-4, atol=1e-5)
    assert programs() - before <= 3  # 3; then up to 8; then up to 16
