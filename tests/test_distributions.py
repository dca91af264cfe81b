"""torch.distributions: densities and reparameterised gradients are the CPU's, draws have the right distribution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributions as D

Tensor = torch.Tensor
Make = Callable[[Tensor], D.Distribution]

DISTRIBUTIONS: dict[str, Make] = {
    "beta": lambda p: D.Beta(p, p + 1),
    "binomial": lambda p: D.Binomial(10, probs=p / 3),
    "categorical": lambda p: D.Categorical(probs=p),
    "cauchy": lambda p: D.Cauchy(p, p),
    "dirichlet": lambda p: D.Dirichlet(p),
    "gamma": lambda p: D.Gamma(p, p),
    "geometric": lambda p: D.Geometric(probs=p / 3),
    "mixture": lambda p: D.MixtureSameFamily(D.Categorical(probs=p), D.Normal(p, 1 + p)),
    "multinomial": lambda p: D.Multinomial(5, probs=p),
    "multivariate_normal": lambda p: D.MultivariateNormal(p, torch.diag(p)),
    "poisson": lambda p: D.Poisson(3 * p),
    "student": lambda p: D.StudentT(p + 5, p, p),
    "von_mises": lambda p: D.VonMises(p, 2 * p),
    "weibull": lambda p: D.Weibull(p, p + 1),
}
PARAMETERS = torch.tensor([0.6, 1.1, 1.3])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_densities(name: str) -> None:
    torch.manual_seed(0)
    values = DISTRIBUTIONS[name](PARAMETERS).sample((4,))

    def run(device: str) -> list[Tensor]:
        parameters = PARAMETERS.clone().to(device).requires_grad_()
        density = DISTRIBUTIONS[name](parameters).log_prob(values.to(device))
        density.sum().backward()
        assert parameters.grad is not None
        return [density.detach().cpu(), parameters.grad.cpu()]

    for mine, theirs in zip(run("tpu"), run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws(name: str) -> None:
    torch.manual_seed(0)
    on_device, on_cpu = (DISTRIBUTIONS[name](PARAMETERS.to(d)) for d in ("tpu", "cpu"))
    draws = on_device.sample((3000,))
    assert draws.device.type == "tpu"
    mine, theirs = (x.double().reshape(3000, -1) for x in (draws.cpu(), on_cpu.sample((3000,))))
    levels = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    for column in range(mine.shape[1]):
        a, b = mine[:, column], theirs[:, column]
        # Kolmogorov and Smirnov's distance of two samples of 3000 at the 1e-6 level, at the quantiles of one.
        places = b.quantile(levels)
        apart = [abs((a <= p).double().mean() - (b <= p).double().mean()).item() for p in places]
        assert max(apart) < 0.07, (name, column, max(apart))


@pytest.mark.parametrize("name", ["beta", "dirichlet", "gamma", "student"])
def test_gradients_of_draws_have_the_right_mean(name: str) -> None:
    """The mean's derivative, from implicit gradients of many draws."""

    def mean_gradient(device: str) -> Tensor:
        torch.manual_seed(1)
        parameters = PARAMETERS.double().to(device).requires_grad_()
        draws = DISTRIBUTIONS[name](parameters).rsample((4000,))
        (gradient,) = torch.autograd.grad(draws.tanh().mean(0).sum(), parameters)
        return gradient.cpu()

    torch.testing.assert_close(mean_gradient("tpu"), mean_gradient("cpu"), rtol=0.1, atol=0.05)


def test_gradient_of_dirichlet_draws_is_that_of_the_beta_distribution() -> None:
    """PyTorch's own approximation is good to three digits."""
    x, alpha, total = torch.tensor([[0.2, 0.7, 0.9], [2, 1, 3], [4, 2, 4]], dtype=torch.float64)
    mine = torch._dirichlet_grad(x.to("tpu"), alpha.to("tpu"), total.to("tpu")).cpu()
    torch.testing.assert_close(mine, torch._dirichlet_grad(x, alpha, total), rtol=2e-3, atol=0)
    # Where beta is 1 the cumulative function is x ** alpha.
    torch.testing.assert_close(mine[1], -0.7 * x[1].log() / (1 - 0.7), rtol=1e-9, atol=0)
