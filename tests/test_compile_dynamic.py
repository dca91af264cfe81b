"""Programs over padded buckets: what the padding holds never shows, and few programs serve many sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torch_tpu.dynamo.programs import exact_reasons

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


Function = Callable[[Tensor, Tensor], Any]


def _batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


def _group_norm(x: Tensor) -> Tensor:
    return F.group_norm(x, 2)


# Of x (n, m, 4) and i (n, m) with integers below 4, where n and m differ from call to call.
OPS: dict[str, Function] = {
    "pointwise": lambda x, i: (x * 2 + 1).exp() / (1 + i[..., None]),
    "sum": lambda x, i: (x.exp().sum(0), x.exp().sum(1, keepdim=True), (x + 1).sum(), i.sum((0, 1))),
    "extremes": lambda x, i: (x.amax(0), x.amin(1), x.max(), (x - 100).amax((0, 1)), (x + 100).amin()),
    "max with indices": lambda x, i: (*x.max(0), *x.min(1)),
    "any all prod": lambda x, i: ((x > 9).any(1), (x < 9).all(0), x.cos().prod(1)),
    "mean": lambda x, i: (x.mean(0), x.mean((0, 1)), x.mean(), (x + 1).mean(1, keepdim=True)),
    "variance": lambda x, i: (x.var((0, 1)), x.std(), x.var(1, correction=0), *torch.var_mean(x, (0, 1), keepdim=True)),
    "softmax": lambda x, i: (x.softmax(0), x.softmax(1), x.log_softmax(1), x.softmax(-1)),
    "logsumexp": lambda x, i: (x.logsumexp(1), x.logsumexp((0, 1))),
    "products": lambda x, i: (x @ x.mT, x.mT @ x, torch.einsum("nmk,nmj->kj", x, x), F.linear(x, x.new_ones(3, 4))),
    "norms": lambda x, i: (F.layer_norm(x, (4,)), x.norm(dim=1), F.normalize(x, dim=1), F.rms_norm(x, (4,))),
    "views": lambda x, i: (
        x.flatten(0, 1) + 1,
        x.permute(2, 1, 0),
        x.reshape(-1, 2).exp().sum(0),
        x.mT.unsqueeze(0) * 2,
    ),
    "last": lambda x, i: (x[:, -1], x[-1], x[-1, -1], x[:, -2:].sum(1)),
    "slices": lambda x, i: (x[:, 1:] + x[:, :-1], x[1:].sum(0), x[:, :2], x[..., 1:3]),
    "joining": lambda x, i: (torch.cat([x, x + 1], 1).cos().sum(1), torch.cat([x, x[:, :1]], 1), torch.stack([x, x])),
    "sort": lambda x, i: (x.sort(1)[0], x.sort(0)[0], *x.sort(1, descending=True)),
    "cumsum": lambda x, i: (x.cumsum(1), x.cumsum(0), i.cumsum(1)),
    "arg extremes": lambda x, i: (x.argmax(1), x.argmin(0), (x - 100).argmax(), x.argmax(-1)),
    "embedding": lambda x, i: (F.embedding(i, x.new_ones(4, 2).cumsum(0)), x.mean() * 0 + i),
    "gather": lambda x, i: x.gather(2, i[..., None]),
    "triangles": lambda x, i: ((x @ x.mT).tril(), (x @ x.mT).masked_fill(torch.ones_like(x @ x.mT).triu(1).bool(), -1)),
    "factories": lambda x, i: (torch.arange(x.shape[1], device=x.device), torch.zeros_like(x), x.new_ones(x.shape[0])),
    "sizes as numbers": lambda x, i: (
        x * x.shape[1],
        x.sum() / x.shape[0],
        x + x.numel(),
        F.pad(x, (1, 0), value=x.shape[0]),
        torch.addbmm(x.new_ones(1), x, x.mT, alpha=x.shape[1], beta=x.shape[0]),
        torch.zeros_like(x).scatter(2, i[..., None], x.shape[0]),
    ),
    "attention": lambda x, i: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),
    "attention to all": lambda x, i: F.scaled_dot_product_attention(x[:, None, :2], x[:, None], x[:, None]),
    "attention in one dim": lambda x, i: F.scaled_dot_product_attention(*[x.flatten(0, 1)[None, None]] * 3),
    "of a joined dim": lambda x, i: [
        f(x.flatten(0, 1))
        for f in (
            lambda y: y.mean(0),
            lambda y: y.norm(dim=0),
            lambda y: y.sort(0)[0],
            lambda y: y.var(0),
            lambda y: y.argmax(0),
            lambda y: y[-1],
            lambda y: y[1:].reshape(-1) + 1,
        )
    ],
    "padding": lambda x, i: (F.pad(x, (0, 1, 1, 2), value=3.0), x.flip(1), x.roll(1, 1), x.repeat(2, 1, 1)),
    "top": lambda x, i: x.topk(2, 1)[0],
    "index": lambda x, i: (x[:, torch.tensor([0, -1], device=x.device)], x[i.clamp(max=1)].sum()),
    "losses": lambda x, i: (
        F.mse_loss(x, x * 2),
        F.smooth_l1_loss(x, x * 2),
        F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    ),
    "batch statistics": lambda x, i: [f(x.mT.contiguous()) for f in (_batch_norm, _group_norm)],
    "convolution": lambda x, i: F.conv1d(x.mT, x.new_ones(3, 4, 2), padding=1),
    "a number from a size": lambda x, i: x / (x.shape[1] + 1) ** 0.5,
    "where": lambda x, i: torch.where(i[..., None] > 1, x, x.sum()),
    "cross entropy": lambda x, i: F.cross_entropy(x.flatten(0, 1), i.flatten()),
    "unreduced cross entropy": lambda x, i: [
        F.cross_entropy(y, j, reduction="none", ignore_index=1)
        for y, j in ((x.flatten(0, 1), i.flatten()), (x.movedim(2, 1), i), (x[0, 0], i[0, 0]))
    ],
    "indexed writes": lambda x, i: (
        x.new_zeros(6, 4).index_put((i.flatten(),), x.flatten(0, 1), accumulate=True),
        x.new_zeros(6, 4).index_add(0, i.flatten(), x.flatten(0, 1)),
        x.new_zeros(x.shape[0], x.shape[1], 5).scatter(2, i[..., None], x[..., :1]),
        torch.zeros_like(x).scatter(1, torch.arange(x.shape[1], device=x.device).flip(0)[None, :, None], 2.0),
        x.new_zeros(6).scatter_reduce(0, i.flatten(), x[..., 0].flatten(), "amax", include_self=False),
        x.new_zeros(6).scatter_reduce(0, i.flatten(), x[..., 0].flatten(), "mean"),
        x.index_copy(0, torch.tensor([1], device=x.device), x[:1]),
    ),
    "indexed reads": lambda x, i: (
        x[torch.arange(x.shape[0], device=x.device), i[:, 0] % 2],
        x.gather(1, (i % 2)[..., None].expand(-1, -1, 4)),
        x.index_select(1, torch.arange(x.shape[1] - 1, -1, -1, device=x.device)),
        torch.take_along_dim(x, i[..., None] % 2, 1),
    ),
    "pooling": lambda x, i: (
        F.avg_pool1d(x.mT.contiguous(), 2),
        F.avg_pool2d(x[None], 2, stride=1, padding=1),
        F.max_pool1d(x.mT.contiguous(), 2, padding=1),
        F.adaptive_avg_pool1d(x.mT.contiguous(), 1),
        F.adaptive_avg_pool2d(x[None], 1),
    ),
    "edges": lambda x, i: (
        F.pad(x, (0, 0, 0, -x.shape[1] % 4)).unflatten(1, (-1, 4)).mean(2),
        F.pad(x, (0, 0, -1, 1)),
        F.pad(x.mT, (1, 1), mode="replicate"),
        F.pad(x.mT, (1, 1), mode="reflect"),
    ),
    "windows": lambda x, i: (x.unfold(1, 2, 1), F.unfold(x.permute(2, 0, 1)[None], 2), x.diff(dim=1)),
    "resizing": lambda x, i: (
        F.interpolate(x.mT, scale_factor=2),
        F.interpolate(x.mT, scale_factor=1.7, mode="linear"),
        F.interpolate(x.permute(2, 0, 1)[None], scale_factor=2, mode="bilinear"),
        F.interpolate(x.permute(2, 0, 1)[None], size=(6, 3), mode="bicubic"),
    ),
    "rotary embedding": lambda x, i: (
        torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * torch.arange(x.shape[1], device=x.device)[:, None],
        torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (2, 2))) * torch.polar(x[..., :2].exp(), x[..., 2:])),
    ),
    "grouped attention": lambda x, i: F.scaled_dot_product_attention(
        torch.stack([x, x + 1, x + 2, x + 3], 1),
        torch.stack([x, x * 2], 1),
        torch.stack([x, x - 1], 1),
        attn_mask=torch.ones_like(x @ x.mT).tril().bool()[:, None],
        enable_gqa=True,
    ),
    "diagonals": lambda x, i: (
        (x @ x.mT).diagonal(dim1=1, dim2=2) + 1,
        x.new_ones(x.shape[1], 4).T.diag(),
        x[0].trace(),
    ),
    "parts": lambda x, i: (*x.split([1, x.shape[1] - 1], 1), x[:, ::2] + 1, x.cummax(1)[0], x.kthvalue(2, 1)[0]),
    "causal with a past": lambda x, i: x.new_ones(x.shape[1], x.shape[1] + x.shape[0]).tril(x.shape[0]),
    "search": lambda x, i: torch.searchsorted(x[..., 0].sort(1)[0], x[..., 1].contiguous(), right=True),
    "bags": lambda x, i: [F.embedding_bag(i, x[0, :1].T.cumsum(0), mode=mode) for mode in ("sum", "mean", "max")],
    "a recurrence": lambda x, i: torch.gru_cell(
        x[:, 1], x[:, 0], *[x.new_ones(12, 4) * 0.1] * 2, *[x.new_ones(12)] * 2
    ),
    "transforms of a fixed dim": lambda x, i: torch.fft.rfft(x, dim=2).abs(),
    "one hot": lambda x, i: F.one_hot(i, 4).sum((0, 1)),
    "expand": lambda x, i: (i[:, :, None].expand(-1, -1, 3).sum(1), x[:, :1].expand(-1, x.shape[1], -1).sum(1)),
}
# Ops that cannot be padded yet: their graphs compile for each set of sizes.
EXACT: set[str] = set()
SIZES = [(3, 5), (7, 6), (2, 9), (8, 8), (5, 31), (13, 2)]


def inputs(n: int, m: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, m, 4), torch.randint(0, 4, (n, m))


def cpu(value: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda v: v.detach().cpu() if isinstance(v, Tensor) else v, value)


def programs() -> int:
    return int(torch.tpu.metrics().get("compiled_programs", 0))


@pytest.mark.parametrize("name", OPS)
def test_padding_never_shows(name: str) -> None:
    fn = OPS[name]
    run = torch.compile(fn, backend="tpu", fullgraph=True)
    exact = torch.tpu.metrics().get("compile.exact_shapes", 0)
    for n, m in SIZES:
        x, i = inputs(n, m)
        device = [x.to("tpu"), i.to("tpu")]
        for tensor in device:
            torch._dynamo.maybe_mark_dynamic(tensor, (0, 1))
        found, wanted = run(*device), fn(x, i)
        torch.testing.assert_close(cpu(found), wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
        for f, w in zip(*(torch.utils._pytree.tree_leaves(v) for v in (found, wanted))):
            assert (f.shape, f.stride(), f.dtype) == (w.shape, w.stride(), w.dtype)
    exactly = torch.tpu.metrics().get("compile.exact_shapes", 0) > exact
    assert exactly == (name in EXACT), exact_reasons()[-1:]


@pytest.mark.parametrize(
    "name",
    [
        "pointwise", "sum", "mean", "softmax", "products", "norms", "cross entropy", "slices", "last", "joining",
        "unreduced cross entropy",
        "attention", "attention to all", "losses", "batch statistics", "convolution", "grouped attention",
        "indexed writes", "indexed reads", "pooling", "windows", "resizing", "rotary embedding", "parts", "top", "sort",
        "bags",
    ],
)  # fmt: skip
def test_gradients(name: str) -> None:
    fn = OPS[name]

    def loss(x: Tensor, i: Tensor) -> Tensor:
        return sum(o.double().square().sum() for o in torch.utils._pytree.tree_leaves(fn(x, i)))

    run, exact = torch.compile(loss, backend="tpu", fullgraph=True), len(exact_reasons())
    for n, m in SIZES[:4]:
        x, i = inputs(n, m)
        x.requires_grad_()
        device = x.detach().to("tpu").requires_grad_()
        others = i.to("tpu")
        for tensor in (device, others):
            torch._dynamo.maybe_mark_dynamic(tensor, (0, 1))
        loss(x, i).backward()
        run(device, others).backward()
        torch.testing.assert_close(device.grad.cpu(), x.grad, rtol=1e-3, atol=1e-4)
    assert exact_reasons()[exact:] == []


# Each takes x (n, m, k) to a tensor of as many dims; all of its sizes differ from call to call.
STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "normalize": lambda x: (x - x.mean((1, 2), keepdim=True)) / (x.var((1, 2), keepdim=True) + 1),
    "norm": lambda x: x / (1 + x.norm(dim=1, keepdim=True)),
    "gram": lambda x: x @ x.mT / x.shape[-1],
    "across": lambda x: torch.einsum("nmk,nmj->mkj", x, x) / x.shape[0],
    "sort": lambda x: x.sort(1)[0],
    "cumsum": lambda x: x.cumsum(2) / x.shape[2],
    "join": lambda x: torch.cat([x, x.cos(), x[:1]], 0),
    "shift": lambda x: x[:, 1:] - x[:, :-1],
    "merge": lambda x: x.flatten(0, 1).tanh()[:, None] * x.flatten(0, 1)[:, :, None].amax(1, keepdim=True),
    "turn": lambda x: x.permute(2, 0, 1).contiguous(),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "maximum": lambda x: x - x.amax((0, 2), keepdim=True),
    "causal": lambda x: (x @ x.mT).tril(1) + x.sum(-1, keepdim=True),
    "conv": lambda x: F.conv1d(x.flatten(0, 1)[:, None], x.new_ones(1, 1, 3), padding=1).view_as(x),
    "choose": lambda x: x.gather(1, x.argsort(1)[:, :1].expand_as(x)) + x,
}


@settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=4),
    shapes=st.lists(st.tuples(*[st.integers(2, 11)] * 3), min_size=2, max_size=2),
)
def test_chains_of_ops_over_three_dims(names: list[str], shapes: list[tuple[int, int, int]]) -> None:
    torch._dynamo.reset()

    def fn(x: Tensor) -> Tensor:
        for name in names:
            x = STEPS[name](x)
        return x

    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        y = fn(x)
        return y, y.square().sum()

    run = torch.compile(loss, backend="tpu", dynamic=True, fullgraph=True)
    for shape in shapes:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
        device = x.detach().to("tpu").requires_grad_()
        torch._dynamo.maybe_mark_dynamic(device, (0, 1, 2))
        wanted, found = loss(x), run(device)
        for w, f in zip(wanted, found):
            torch.testing.assert_close(f.cpu(), w, rtol=1e-3, atol=1e-4)
        wanted[1].backward()
        found[1].backward()
        largest = x.grad.abs().max().item()
        torch.testing.assert_close(device.grad.cpu(), x.grad, rtol=1e-3, atol=1e-4 * max(largest, 1))


def test_marked_bounds_are_kept() -> None:
    """mark_dynamic's max is the largest bucket."""
    run = torch.compile(lambda x: (x * 2).sum(0), backend="tpu")
    before = programs()
    for n in (40, 33, 100, 64, 70):
        x = torch.randn(n, 3)
        device = x.to("tpu")
        torch._dynamo.mark_dynamic(device, 0, min=2, max=100)
        torch.testing.assert_close(run(device).cpu(), (x * 2).sum(0))
    assert programs() - before == 2
    assert torch.tpu.compiler.last_programs()[-1].plan.parameters[-1].shape == (100, 3)


def test_a_growing_cache_in_place() -> None:
    def step(cache: Tensor, x: Tensor, i: Tensor) -> Tensor:
        cache[:, i] = x
        cache.mul_(0.5)
        return cache.sum(1)

    run, exact = torch.compile(step, backend="tpu", dynamic=True, fullgraph=True), len(exact_reasons())
    for n, m in SIZES[:3]:
        cache, x, i = torch.randn(n, m), torch.randn(n, 1), torch.tensor([1])
        device = cache.to("tpu")
        view = device[:2]
        torch.testing.assert_close(run(device, x.to("tpu"), i.to("tpu")).cpu(), step(cache, x, i))
        torch.testing.assert_close(device.cpu(), cache)
        torch.testing.assert_close(view.cpu(), cache[:2])
    assert exact_reasons()[exact:] == []


def test_growing_cache_compiles_once_a_bucket() -> None:
    def step(cache: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        cache = torch.cat([cache, new], 1)
        return cache, (new @ cache.mT).softmax(-1) @ cache

    run = torch.compile(step, backend="tpu", dynamic=True, fullgraph=True)
    cache = torch.randn(2, 5, 4)
    device, before = cache.to("tpu"), programs()
    repacks = torch.tpu.metrics().get("repacks", 0)
    for _ in range(40):
        new = torch.randn(2, 1, 4)
        cache, wanted = step(cache, new)
        device, found = run(device, new.to("tpu"))
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(device.cpu(), cache)
    assert programs() - before <= 5  # 8, 16, 32, 64, and 128 ahead of time
    assert torch.tpu.metrics()["repacks"] - repacks <= 50


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def test_training_over_random_lengths() -> None:
    model = Model()
    device = Model()
    device.load_state_dict(model.state_dict())
    device.to("tpu")
    run = torch.compile(device, backend="tpu", dynamic=True)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (device, model))
    before, draw = programs(), random.Random(0)
    for step in range(20):
        tokens = torch.randint(0, 11, (3 if step == 19 else 4, draw.randint(3, 60)))
        losses = []
        for net, optimizer, where in ((model, theirs, "cpu"), (run, ours, "tpu")):
            loss = net(tokens.to(where))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    assert programs() - before <= 2 * 8


def test_first_static_then_dynamic_by_itself() -> None:
    fn = lambda x: (x + 1).sum(0)
    run = torch.compile(fn, backend="tpu")
    before = programs()
    for n in (5, 6, 7, 9, 11, 13, 16):
        x = torch.randn(n, 3)
        torch.testing.assert_close(run(x.to("tpu")).cpu(), fn(x))
    assert programs() - before == 3  # 5; then up to 8; then up to 16


def test_padded_results_are_ordinary_tensors_to_eager_ops() -> None:
    run = torch.compile(lambda x: x * 2, backend="tpu", dynamic=True)
    x = torch.randn(5, 3)
    y = run(x.to("tpu"))
    view = y[1:4]
    y.add_(1)
    torch.testing.assert_close(view.cpu(), (x * 2 + 1)[1:4])
    torch.testing.assert_close((y.t() @ y).cpu(), (x * 2 + 1).t() @ (x * 2 + 1))
    assert y.untyped_storage().nbytes() == 60


def test_draws_as_eager() -> None:
    fn = lambda x: (F.dropout(x, 0.4), torch.rand_like(x))
    run = torch.compile(fn, backend="tpu", dynamic=True)
    for n, m in SIZES[:3]:
        x = torch.ones(n, m, device="tpu")
        torch.manual_seed(1)
        found, state = run(x), torch.tpu.get_rng_state()
        torch.manual_seed(1)
        torch.testing.assert_close(found, fn(x))
        assert torch.equal(state, torch.tpu.get_rng_state())


def test_views_of_an_argument_share_its_memory() -> None:
    run = torch.compile(lambda x: (x.flatten(0, 1)[3], x[1:]), backend="tpu", dynamic=True)
    x = torch.arange(60.0).reshape(3, 5, 4).to("tpu")
    row, rest = run(x)
    assert row.cpu().tolist() == [12.0, 13.0, 14.0, 15.0]
    x.zero_()
    assert row.cpu().eq(0).all()
    assert rest.cpu().eq(0).all()


def test_explain_says_why_a_graph_is_compiled_for_exact_sizes() -> None:
    run = torch.compile(lambda x: x.median(0)[0], backend="tpu", dynamic=True)
    for n in (5, 6):
        x = torch.randn(n, 3)
        y = x.to("tpu") + 1
        torch.testing.assert_close(run(y).cpu(), (x + 1).median(0)[0])
    explanation = torch.tpu.explain()
    reason = "inference: aten.median.dim is not known to leave padding out along such a size"
    assert f"torch.compile: exact sizes, {reason}" in explanation.compiled
    assert reason in str(explanation)
    assert explanation.flushes[-1].reason == "compiled call"


def test_arguments_that_are_views_or_empty() -> None:
    run = torch.compile(lambda x: (x + 1).sum(0), backend="tpu", dynamic=True)
    for x in (torch.randn(9, 4), torch.randn(7, 3)):
        device = x.to("tpu")
        torch.testing.assert_close(run(device.t()[::2]).cpu(), (x.t()[::2] + 1).sum(0))
        torch.testing.assert_close(run((device * 2)[1:, 1:]).cpu(), (x * 2 + 1)[1:, 1:].sum(0))
    for shape in ((0, 5), (3, 0)):
        torch._dynamo.reset()
        assert run(torch.ones(shape, device="tpu")).cpu().eq(0).all()


def test_sizes_among_an_ops_numbers() -> None:
    """A rule sees padded sizes as plain ints: where it would take one for a number, the graph compiles exactly."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[0]
        return (
            x.triu(n - 3),
            x.split([1, n - 1])[1],
            torch.arange(n, 0, -1, device=x.device),
            torch.linalg.vector_norm(x, n),
            torch.addmm(x, x, x, beta=n, alpha=2),
            x[0].expand(n, -1),
            torch.complex(x, x),
        )

    run = torch.compile(fn, backend="tpu", dynamic=True)
    for n in (4, 5):
        x = torch.randn(n, n)
        torch.testing.assert_close(cpu(run(x.to("tpu"))), cpu(fn(x)), rtol=1e-4, atol=1e-5)


def test_a_size_told_only_with_others() -> None:
    """The parts of a graph between eager ops, and backward passes, may see a product of sizes but not its factors."""

    def fn(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.tensorsolve(a, b) + torch.linalg.eigvals(a.flatten(0, 1)).real.amax()

    run = torch.compile(fn, backend="tpu", dynamic=True, fullgraph=True)
    for n, m in ((2, 3), (3, 4)):
        a, b = torch.randn(n, m, n * m) + 5 * torch.eye(n * m).reshape(n, m, -1), torch.randn(n, m)
        torch.testing.assert_close(run(a.to("tpu"), b.to("tpu")).cpu(), fn(a, b), rtol=1e-4, atol=1e-4)


def test_a_quotient_of_sizes() -> None:
    fn = lambda x, n: torch.view_copy(x, (n, x.shape[0] // n, x.shape[1]))
    run = torch.compile(fn, backend="tpu", dynamic=True)
    for n in (5, 4):
        x = torch.randn(n * 5, 3)
        torch.testing.assert_close(run(x.to("tpu"), n).cpu(), fn(x, n))


def test_option_for_exact_sizes() -> None:
    run = torch.compile(lambda x: x.sum(0), backend="tpu", dynamic=True, options={"pad_sizes": False})
    before = programs()
    for n in (5, 6, 7):
        x = torch.randn(n, 3)
        torch.testing.assert_close(run(x.to("tpu")).cpu(), x.sum(0))
    assert programs() - before == 3
