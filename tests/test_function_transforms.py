"""torch.func, over ops on the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import func, nn

Tensor = torch.Tensor


def energy(x: Tensor) -> Tensor:
    return (torch.sin(x) * x.cumsum(0)).square().sum()


def outputs(x: Tensor) -> Tensor:
    return torch.softmax(x, 0) * x


TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "grad": func.grad(energy),
    "jacrev": func.jacrev(outputs),
    "jacfwd": func.jacfwd(outputs),
    "hessian": func.hessian(energy),
    "vmap of grad": lambda x: func.vmap(func.grad(energy))(torch.stack([x, 2 * x])),
    "grad of vmap": func.grad(lambda x: func.vmap(energy)(torch.stack([x, x.flip(0)])).sum()),
    "jvp": lambda x: func.jvp(outputs, (x,), (x.cos(),))[1],
    "vjp": lambda x: func.vjp(outputs, x)[1](x.cos())[0],
    "linearize": lambda x: func.linearize(outputs, x)[1](x.cos()),
    "vmap over matrices": lambda x: func.vmap(torch.mv, in_dims=(0, None))(x.outer(x).expand(2, 4, 4), x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_as_on_the_cpu(name: str) -> None:
    x = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
    torch.testing.assert_close(TRANSFORMS[name](x.to("tpu")).cpu(), TRANSFORMS[name](x))


def test_gradients_of_each_sample() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    inputs = torch.randn(5, 3)

    def run(device: str) -> dict[str, Tensor]:
        net = model.to(device)
        parameters = {k: v.detach() for k, v in net.named_parameters()}

        def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            return func.functional_call(net, parameters, (x.unsqueeze(0),)).square().sum()

        found = func.vmap(func.grad(loss), in_dims=(None, 0))(parameters, inputs.to(device))
        return {k: v.cpu() for k, v in found.items()}

    mine, theirs = run("tpu"), run("cpu")
    for key, value in theirs.items():
        torch.testing.assert_close(mine[key], value, rtol=1e-4, atol=1e-5)


def test_random_numbers_under_vmap() -> None:
    x = torch.zeros(3, 100, device="tpu")
    different = func.vmap(lambda v: v + torch.rand_like(v), randomness="different")(x)
    same = func.vmap(lambda v: v + torch.rand_like(v[:1]).expand(100), randomness="same")(x)
    assert len(different.unique(dim=0)) == 3
    assert len(same.unique()) == 1
