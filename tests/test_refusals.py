"""What the CPU refuses is refused at the call, with the same words, also where an equal call was fine before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Call = Callable[[str], object]


def rand(device: str, *shape: int) -> Tensor:
    return torch.rand(*shape or (4,), device=device)


def empty(device: str, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.empty(*shape, device=device, dtype=dtype)


REFUSED: dict[str, Call] = {
    "cauchy": lambda d: rand(d).cauchy_(0, 0),
    "exponential": lambda d: rand(d).exponential_(0),
    "geometric": lambda d: rand(d).geometric_(-1),
    "log_normal": lambda d: rand(d).log_normal_(0, 0),
    "uniform": lambda d: rand(d).uniform_(3, -1),
    "normal": lambda d: rand(d).normal_(0, -1),
    "bernoulli": lambda d: rand(d).bernoulli_(2.0),
    "aminmax": lambda d: torch.aminmax(rand(d, 4, 4), dim=0, out=(empty(d, 4), empty(d, 4))),
    "gather": lambda d: torch.gather(rand(d), 0, torch.zeros(4, dtype=torch.int64, device=d), out=empty(d, 4)),
    "add": lambda d: torch.add(rand(d), rand(d), out=empty(d, 4, dtype=torch.int64)),
    "gelu": lambda d: F.gelu(rand(d), approximate="other"),
    "conv1d": lambda d: F.conv1d(rand(d, 1, 1, 4), rand(d, 1, 1, 2), dilation=-1),
    "multinomial": lambda d: torch.multinomial(torch.ones(1, 2, dtype=torch.int64, device=d), 2),
    "bucketize": lambda d: torch.bucketize(rand(d), rand(d, 2, 2)),
    "complex": lambda d: torch.complex(rand(d), rand(d), out=empty(d, 4, dtype=torch.complex128)),
    "unique": lambda d: torch.unique(rand(d), dim=1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_as_on_the_cpu(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        REFUSED[name]("cpu")
    with pytest.raises(theirs.type) as ours:
        REFUSED[name]("tpu")
    assert str(ours.value) == str(theirs.value)


def test_a_bad_number_after_a_good_one() -> None:
    x = rand("tpu").exponential_(1.0)
    with pytest.raises(RuntimeError, match="lambda > 0"):
        x.exponential_(0.0)


def test_complex_half_has_no_place_on_the_device() -> None:
    with pytest.raises(TypeError, match="ComplexHalf"):
        torch.zeros(2, dtype=torch.complex32, device="tpu")
