"""Compiled training: optimizers without capturable=True, whole steps, compiled autograd."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend="tpu", **options)


def programs() -> int:
    return int(torch.tpu.metrics().get("compiled_programs", 0))


def eager_pieces() -> int:
    return sum(n for name, n in torch.tpu.metrics().items() if name.startswith("compile.eager_piece."))


def twins() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    return model, copy.deepcopy(model).to("tpu")


def assert_same_parameters(device: nn.Module, model: nn.Module) -> None:
    for found, wanted in zip(device.parameters(), model.parameters()):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-4)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "nadam": torch.optim.NAdam,
    "asgd": torch.optim.ASGD,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_step_is_one_program(name: str) -> None:
    """The host keeps `step`: it is a parameter of the program and counts on without a copy from the device."""
    model, device = twins()
    ours, theirs = OPTIMIZERS[name](device.parameters()), OPTIMIZERS[name](model.parameters())
    step, pieces = compiled(ours.step), eager_pieces()
    for i in range(6):
        x = torch.randn(8, 6)
        for net, data in ((model, x), (device, x.to("tpu"))):
            net.zero_grad()
            net(data).square().mean().backward()
        theirs.step()
        before, copies = programs(), torch.tpu.metrics().get("device_to_host_bytes", 0)
        step()
        assert programs() - before <= (i < 3)
        assert torch.tpu.metrics().get("device_to_host_bytes", 0) == copies
    assert_same_parameters(device, model)
    assert eager_pieces() == pieces


def train(model: nn.Module, optimizer: Any, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_step_of_an_optimizer_inside_a_compiled_function(name: str) -> None:
    """PyTorch breaks the graph around Optimizer.step: forward, backward and step are programs."""
    model, device = twins()
    ours, theirs = OPTIMIZERS[name](device.parameters()), OPTIMIZERS[name](model.parameters())
    run = compiled(train)
    for i in range(5):
        x, before = torch.randn(8, 6), programs()
        torch.testing.assert_close(run(device, ours, x.to("tpu")).cpu(), train(model, theirs, x))
        assert i < 2 or programs() == before
    assert_same_parameters(device, model)


def test_forward_backward_and_step_in_one_program() -> None:
    model, device = twins()
    theirs = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    parameters = list(device.parameters())
    mean, square = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    steps = [torch.tensor(0.0) for _ in parameters]  # on the host

    def run(x: Tensor) -> Tensor:
        loss = device(x).square().mean()
        gradients = list(torch.autograd.grad(loss, parameters))
        with torch.no_grad():
            adamw(
                parameters, gradients, mean, square, [], steps, amsgrad=False, beta1=0.9, beta2=0.999, lr=0.1,
                weight_decay=0.01, eps=1e-8, maximize=False, foreach=True, capturable=True,
            )  # fmt: skip
        return loss.detach()

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        step, before = compiled(run, fullgraph=True), programs()
        for _ in range(4):
            x = torch.randn(8, 6)
            torch.testing.assert_close(step(x.to("tpu")).cpu(), train(model, theirs, x), rtol=1e-4, atol=1e-5)
    assert_same_parameters(device, model)
    assert programs() - before == 1
    assert [float(s) for s in steps] == [4.0] * 4
    updated = sum(t.numel() * 4 for t in [*parameters, *mean, *square])
    assert torch.tpu.compiler.last_programs()[-1].memory["alias_bytes"] >= updated


def test_backward_inside_a_compiled_function() -> None:
    model, device = twins()

    def run(net: nn.Module, x: Tensor) -> Tensor:
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        step, before = compiled(run, fullgraph=True), programs()
        for _ in range(3):  # gradients are made, then added to
            x = torch.randn(8, 6)
            torch.testing.assert_close(step(device, x.to("tpu")).cpu(), run(model, x), rtol=1e-4, atol=1e-5)
    assert programs() - before == 2
    for found, wanted in zip(device.parameters(), model.parameters()):
        torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=1e-3, atol=1e-4)


def test_compiled_autograd() -> None:
    model, device = twins()
    run = compiled(device)
    with torch._dynamo.compiled_autograd._enable(functools.partial(torch.compile, backend="tpu")):
        for _ in range(2):
            x = torch.randn(8, 6)
            model.zero_grad()
            device.zero_grad()
            model(x).square().mean().backward()
            run(x.to("tpu")).square().mean().backward()
    for found, wanted in zip(device.parameters(), model.parameters()):
        torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=1e-3, atol=1e-4)


def test_rematerialization_keeps_less_for_the_same_gradients() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(32, 256), nn.Linear(256, 32)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(torch.sin(self.up(x)).exp().cos())

    model = nn.Sequential(*(Block() for _ in range(4))).to("tpu")
    x, gradients, needed = torch.randn(512, 32, device="tpu"), [], []
    for rematerialize in (False, True):
        torch._dynamo.reset()
        model.zero_grad()
        compiled(model, options={"rematerialize": rematerialize})(x).square().sum().backward()
        gradients.append([p.grad.cpu() for p in model.parameters()])
        forward, backward = (program.memory for program in torch.tpu.compiler.last_programs()[-2:])
        needed.append(forward["output_bytes"] + backward["temp_bytes"])
    torch.testing.assert_close(gradients[1], gradients[0])
    assert needed[1] < 0.7 * needed[0]
