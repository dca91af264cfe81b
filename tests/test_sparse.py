"""Sparse tensors: their parts live on the device, and most of their arithmetic is the CPU's and is counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

Tensor = torch.Tensor
DENSE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
MATRIX = torch.arange(6.0).reshape(3, 2)

pytestmark = pytest.mark.filterwarnings("ignore")


def dense(x: Tensor) -> Tensor:
    assert x.device.type == "tpu"
    return x.cpu().to_dense() if x.layout != torch.strided else x.cpu()


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mm": lambda s, m: torch.sparse.mm(s, m),
    "matmul": lambda s, m: s @ m,
    "addmm": lambda s, m: torch.addmm(m[:2], s, m),
    "add": lambda s, m: s + s,
    "scale": lambda s, m: s * 2,
    "sine": lambda s, m: s.sin(),
    "in place": lambda s, m: s.clone().mul_(3),
    "to dense": lambda s, m: s.to_dense(),
    "transposed": lambda s, m: s.t().to_dense(),
    "dense plus sparse": lambda s, m: torch.ones_like(m.t()) + s,
    "zeroed": lambda s, m: s.clone().zero_(),
}


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_on_the_cpu(name: str, layout: torch.layout) -> None:
    sparse = DENSE.to_sparse(layout=layout)
    expected = PROGRAMS[name](sparse, MATRIX)
    on_device = sparse.to("tpu")
    assert on_device.layout == layout
    actual = PROGRAMS[name](on_device, MATRIX.to("tpu"))
    assert actual.layout == expected.layout
    torch.testing.assert_close(dense(actual), expected.to_dense())


def test_made_on_the_device() -> None:
    indices, values = torch.tensor([[0, 0, 0], [0, 2, 2]]), torch.tensor([1.0, 2.0, 5.0])
    coo = torch.sparse_coo_tensor(indices.to("tpu"), values.to("tpu"), (2, 3))
    assert not coo.is_coalesced()
    assert coo.coalesce().values().tolist() == [1.0, 7.0]
    assert coo.coalesce().indices().device.type == "tpu"
    csr = coo.coalesce().to_sparse_csr()
    assert csr.crow_indices().tolist() == [0, 2, 2]
    assert DENSE.to("tpu").to_sparse()._nnz() == 3


def test_sums_at_indices_need_no_cpu() -> None:
    def run(device: str) -> list[Tensor]:
        indices, values = torch.tensor([[1, 0, 1, 0], [2, 0, 2, 1]], device=device), torch.arange(8.0).reshape(4, 2)
        coo = torch.sparse_coo_tensor(indices, values.to(device), (3, 4, 2))
        given = torch.ones(3, 4, 2, device=device)
        summed = coo.coalesce()
        back = (given * summed.to_dense()).to_sparse()
        block = given.to_sparse(2)
        masked = given.add(coo, alpha=2).sparse_mask(summed)
        parts = [t for x in (summed, back, block, masked) for t in (x.indices(), x.values())]
        return [t.cpu() for t in (*parts, coo.to_dense(), given.add_(coo))]

    before = torch.tpu.metrics().get("cpu_fallbacks", 0)
    mine = run("tpu")
    assert torch.tpu.metrics().get("cpu_fallbacks", 0) == before
    for got, want in zip(mine, run("cpu"), strict=True):
        torch.testing.assert_close(got, want)


def test_gradients_of_a_product() -> None:
    def run(device: str) -> list[Tensor]:
        sparse = DENSE.to_sparse().to(device).requires_grad_()
        matrix = MATRIX.to(device).requires_grad_()
        torch.sparse.mm(sparse, matrix).square().sum().backward()
        assert sparse.grad is not None
        assert matrix.grad is not None
        return [sparse.grad.cpu().to_dense(), matrix.grad.cpu()]

    for mine, theirs in zip(run("tpu"), run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_gradients_of_a_reducing_product(reduce: str) -> None:
    def run(device: str) -> list[Tensor]:
        sparse = DENSE.to_sparse_csr().to(device).requires_grad_()
        matrix = torch.linspace(-1, 1, 3 * DENSE.shape[1]).reshape(-1, 3).to(device).requires_grad_()
        torch.sparse.mm(sparse, matrix, reduce).square().sum().backward()
        assert sparse.grad is not None
        assert matrix.grad is not None
        return [sparse.grad.cpu().to_dense(), matrix.grad.cpu()]

    for mine, theirs in zip(run("tpu"), run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_gradients_of_embeddings(optimizer: type[torch.optim.Optimizer]) -> None:
    def run(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        table, bags = nn.Embedding(5, 3, sparse=True), nn.EmbeddingBag(5, 3, sparse=True, mode="sum")
        net = nn.ModuleList([table, bags]).to(device)
        steps = optimizer(net.parameters(), lr=0.1)
        rows = torch.tensor([0, 3, 3], device=device)
        for _ in range(2):
            steps.zero_grad()
            (table(rows).square().sum() + bags(rows, torch.tensor([0, 1], device=device)).square().sum()).backward()
            assert all(p.grad is not None and p.grad.is_sparse for p in net.parameters())
            steps.step()
        return [p.detach().cpu() for p in net.parameters()]

    for mine, theirs in zip(run("tpu"), run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_counted() -> None:
    before = torch.tpu.metrics().get("cpu_fallback.aten::sin", 0)
    DENSE.to_sparse().to("tpu").sin()
    assert torch.tpu.metrics()["cpu_fallback.aten::sin"] == before + 1
