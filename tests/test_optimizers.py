"""torch.optim on the device: three steps of every optimizer end where the CPU's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

SHAPES = [(3, 4), (5,), ()]

# name: (class, options)
CASES: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "adadelta": (optim.Adadelta, {"weight_decay": 0.1}),
    "adagrad": (optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
    "adam": (optim.Adam, {}),
    "adam_amsgrad": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    "adamw": (optim.AdamW, {"weight_decay": 0.1}),
    "adamax": (optim.Adamax, {"weight_decay": 0.1}),
    "asgd": (optim.ASGD, {"weight_decay": 0.1, "t0": 1}),
    "nadam": (optim.NAdam, {"weight_decay": 0.1}),
    "radam": (optim.RAdam, {"weight_decay": 0.1}),
    "rmsprop": (optim.RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    "rprop": (optim.Rprop, {}),
    "sgd": (optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
}
FUSED = ["adagrad", "adam", "adam_amsgrad", "adamw", "sgd", "sgd_momentum"]
CAPTURABLE = ["adadelta", "adam", "adamw", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"]


def _gradients(steps: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(s, generator=generator) for s in SHAPES] for _ in range(steps)]


def _train(
    device: str,
    make: Callable[[list[nn.Parameter]], optim.Optimizer],
    each: Callable[[optim.Optimizer], None] = lambda _: None,
    steps: int = 3,
) -> tuple[list[torch.Tensor], optim.Optimizer]:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(s, generator=generator).to(device)) for s in SHAPES]
    optimizer = make(parameters)
    for gradients in _gradients(steps):
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient.to(device)
        optimizer.step()
        each(optimizer)
    return [p.detach().cpu() for p in parameters], optimizer


def _states(optimizer: optim.Optimizer) -> list[torch.Tensor]:
    return [v.cpu() for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]


def _compare(name: str, options: dict[str, Any], reference: dict[str, Any] | None = None) -> None:
    cls, common = CASES[name]
    theirs, theirs_optimizer = _train("cpu", lambda ps: cls(ps, **common, **(reference or {})))
    ours, ours_optimizer = _train("tpu", lambda ps: cls(ps, **common, **options))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(_states(ours_optimizer), _states(theirs_optimizer), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("foreach", [False, True, None])
@pytest.mark.parametrize("name", CASES)
def test_steps(name: str, foreach: bool | None) -> None:
    _compare(name, {"foreach": foreach}, {"foreach": False})


@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str) -> None:
    _compare(name, {"fused": True}, {"fused": True})


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", CAPTURABLE)
def test_capturable(name: str, foreach: bool) -> None:
    _compare(name, {"capturable": True, "foreach": foreach})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adamw", {"foreach": True, "capturable": True}),
        ("adamw", {"fused": True}),
        ("adagrad", {"fused": True}),
        ("sgd", {"fused": True}),
    ],
)
def test_learning_rate_may_be_a_tensor(name: str, options: dict[str, bool]) -> None:
    cls, _ = CASES[name]
    theirs, _ = _train("cpu", lambda ps: cls(ps, lr=0.01))
    ours, _ = _train("tpu", lambda ps: cls(ps, lr=torch.tensor(0.01, device="tpu"), **options))
    torch.testing.assert_close(ours, theirs)


def test_lbfgs() -> None:
    def train(device: str) -> torch.Tensor:
        x = nn.Parameter(torch.tensor([-1.0, 2.0], device=device))
        optimizer = optim.LBFGS([x], max_iter=5, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return x.detach().cpu()

    torch.testing.assert_close(train("tpu"), train("cpu"), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
@pytest.mark.parametrize("name", ["adamw", "sgd_momentum"])
def test_hyperparameters_never_recompile(name: str, options: dict[str, bool]) -> None:
    programs = []

    def each(optimizer: optim.Optimizer) -> None:
        torch.tpu.synchronize()
        programs.append(torch.tpu.metrics()["programs"])
        group = optimizer.param_groups[0]
        group["lr"] *= 0.7
        group["weight_decay"] *= 0.9
        if "betas" in group:
            group["betas"] = (group["betas"][0] * 0.9, group["betas"][1] * 0.99)
        else:
            group["momentum"] *= 0.9

    cls, common = CASES[name]
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.STRICT):
        _train("tpu", lambda ps: cls(ps, **common, **options), each, steps=6)
    assert programs[-1] == programs[1], programs


@pytest.mark.parametrize("bad", [False, True])
def test_clip_gradients(bad: bool) -> None:
    def clip(device: str) -> list[torch.Tensor]:
        parameters = [nn.Parameter(torch.zeros(s, device=device)) for s in SHAPES]
        for parameter, gradient in zip(parameters, _gradients(1)[0]):
            parameter.grad = gradient.to(device) * (float("inf") if bad and parameter.ndim == 1 else 1.0)
        norm = nn.utils.clip_grad_norm_(parameters, 0.5)
        nn.utils.clip_grad_value_(parameters, 0.3)
        return [norm.cpu(), *(p.grad.cpu() for p in parameters if p.grad is not None)]

    torch.testing.assert_close(clip("tpu"), clip("cpu"), equal_nan=True)
