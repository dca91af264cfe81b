"""General eigenvalues and LDL factors, without the CPU: by what they have to satisfy, and LDL against LAPACK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    before, torch.tpu.config.cpu_fallback = torch.tpu.config.cpu_fallback, "error"
    yield
    torch.tpu.config.cpu_fallback = before


TOLERANCE = {torch.float32: 2e-5, torch.complex64: 2e-5, torch.float64: 1e-12, torch.complex128: 1e-12}


def check_eigenvectors(a: torch.Tensor) -> None:
    values, vectors = (x.cpu() for x in torch.linalg.eig(a.to("tpu")))
    assert torch.equal(torch.linalg.eigvals(a.to("tpu")).cpu(), values)
    size = a.abs().amax().item() or 1.0
    scaled = a.to(vectors.dtype) / size
    tolerance = TOLERANCE[a.dtype]
    torch.testing.assert_close(scaled @ vectors, vectors * (values / size).unsqueeze(-2), rtol=0, atol=tolerance)
    lengths = vectors.abs().square().sum(-2)
    torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=0, atol=tolerance)
    # Each eigenvalue once: the traces of A and of its square.
    for power in (1, 2):
        trace = scaled.matrix_power(power).diagonal(0, -2, -1).sum(-1)
        torch.testing.assert_close((values / size).pow(power).sum(-1), trace, rtol=0, atol=tolerance * 40)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_eigenvectors(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape in ((1, 1), (2, 3, 4, 4), (24, 24)):
        check_eigenvectors(torch.randn(shape, dtype=dtype))
    for shape in ((0, 0), (0, 3, 3)):
        assert torch.linalg.eig(torch.empty(shape, dtype=dtype, device="tpu")).eigenvectors.shape == shape


SPECIAL = {
    "zeros": torch.zeros(3, 3),
    "one eigenvalue": torch.eye(4),
    "defective": torch.eye(6) + torch.diag(torch.ones(5), 1),
    "rank one": torch.ones(6, 6),
    "a circle": torch.eye(5).roll(1, 0),  # the unshifted steps turn in a circle
    "triangular": torch.ones(5, 5).triu() * torch.arange(1.0, 6.0),
    "large": torch.full((3, 3), 1e30).triu() + torch.eye(3) * 3e30,
    "small": torch.ones(3, 3) * 1e-30,
}


@pytest.mark.parametrize("name", SPECIAL)
def test_eigenvectors_of_special_matrices(name: str) -> None:
    check_eigenvectors(SPECIAL[name])


def test_real_eigenvalues_of_real_matrices_have_no_imaginary_part() -> None:
    a = torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    mine, theirs = torch.linalg.eigvals(a.to("tpu")).cpu(), torch.linalg.eigvals(a)
    assert int((mine.imag == 0).sum()) == int((theirs.imag == 0).sum()) > 0


def test_gradients_of_eigenvalues_and_vectors() -> None:
    a = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to("tpu").requires_grad_()
    assert torch.autograd.gradcheck(lambda x: torch.linalg.eigvals(x).abs(), a)
    assert torch.autograd.gradcheck(lambda x: torch.linalg.eig(x).eigenvectors.abs(), a)


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_ldl(dtype: torch.dtype, hermitian: bool) -> None:
    torch.manual_seed(0)
    # No diagonal: half of the pivots are of two rows.
    a = torch.randn(20, 6, 6, dtype=dtype)
    a[::2].diagonal(0, -2, -1).zero_()
    mine = torch.linalg.ldl_factor_ex(a.to("tpu"), hermitian=hermitian)
    theirs = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
    assert 0.2 < float((theirs.pivots < 0).double().mean()) < 0.8
    assert torch.equal(mine.pivots.cpu(), theirs.pivots)
    tolerance = 1e-3 if dtype == torch.complex64 else 1e-10
    torch.testing.assert_close(mine.LD.cpu(), theirs.LD, rtol=tolerance, atol=tolerance)
    rhs = torch.randn(20, 6, 2, dtype=dtype)
    solved = torch.linalg.ldl_solve(*mine[:2], rhs.to("tpu"), hermitian=hermitian).cpu()
    wanted = torch.linalg.ldl_solve(*theirs[:2], rhs, hermitian=hermitian)
    torch.testing.assert_close(solved, wanted, rtol=tolerance, atol=tolerance)


def test_ldl_says_where_a_column_is_zero() -> None:
    a = torch.zeros(2, 3, 3)
    a[0] = torch.eye(3)
    a[1, 0, 0] = 1
    for mine, theirs in zip(torch.linalg.ldl_factor_ex(a.to("tpu")), torch.linalg.ldl_factor_ex(a), strict=True):
        assert torch.equal(mine.cpu(), theirs)
