"""Every model trains one step with the CPU's gradients, and the decoders write the CPU's tokens."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .zoo import MODELS, TRANSFORMERS

# float32 sums in another order: relative to each element, and to the largest element of its tensor
RTOL, ATOL = 1e-4, 3e-5


@pytest.fixture(autouse=True)
def no_fallback(device: str) -> Iterator[None]:
    """Make an op that has no rule an error: all that these models need runs on the device."""
    if device != "tpu":
        yield
        return
    before = torch.tpu.config.cpu_fallback
    torch.tpu.config.cpu_fallback = "error"
    yield
    torch.tpu.config.cpu_fallback = before


def to(inputs: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    """Return the inputs on a device."""
    return {name: x.to(device) for name, x in inputs.items()}


def train_step(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the loss, each gradient, and each parameter and buffer after one AdamW step, on the CPU."""
    # With a large eps a gradient near zero moves its parameter in proportion, not by its sign.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-2)
    out = model(**inputs)
    loss: Tensor = out if isinstance(out, Tensor) else out.loss
    loss.backward()
    gradients = {f"{n}.grad": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    return {k: v.detach().cpu() for k, v in ({"loss": loss} | gradients | model.state_dict()).items()}


def assert_near(actual: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = RTOL, atol: float = ATOL) -> None:
    """Compare two results of `train_step`."""
    assert actual.keys() == expected.keys()
    for name, e in expected.items():
        largest = e.abs().max().item() if e.is_floating_point() else 0.0
        torch.testing.assert_close(
            actual[name], e, rtol=rtol, atol=atol * max(largest, 1e-2), msg=lambda m, name=name: f"{name}: {m}"
        )


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model with its inputs, the same at every call."""
    torch.manual_seed(0)
    return MODELS[name].build(), MODELS[name].inputs()


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str, device: str) -> None:
    """Loss, gradients and updated parameters are the CPU's."""
    model, inputs = build(name)
    model.train()
    expected = train_step(copy.deepcopy(model), inputs)
    assert sum(key.endswith(".grad") for key in expected) == len(list(model.parameters()))
    assert_near(train_step(model.to(device), to(inputs, device)), expected)


@pytest.mark.parametrize(
    ("name", "dynamic"), [("vit", False), ("unet", False), ("llama", False), ("moe", False), ("llama", True)]
)
def test_compiled_step(name: str, dynamic: bool, device: str) -> None:
    """The same through torch.compile without a graph break."""
    torch._dynamo.reset()
    model, inputs = build(name)
    expected = train_step(copy.deepcopy(model), inputs)
    model.to(device).compile(backend="tpu" if device == "tpu" else "aot_eager", fullgraph=True, dynamic=dynamic)
    assert_near(train_step(model, to(inputs, device)), expected)


@pytest.mark.parametrize("name", ["vit", "llama"])
def test_autocast_step(name: str, device: str) -> None:
    """Under bfloat16 autocast the gradients are the CPU's to bfloat16's precision, in the parameters' dtype."""
    model, inputs = build(name)
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        expected = train_step(copy.deepcopy(model), inputs)
    with torch.autocast(device, torch.bfloat16):
        actual = train_step(model.to(device), to(inputs, device))
    assert_near(actual, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", [name for name, case in TRANSFORMERS.items() if case.generates])
def test_generate(name: str, device: str) -> None:
    """Greedy decoding through transformers' own cache writes the same tokens."""
    model, inputs = build(name)
    model.eval()
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    del inputs["labels"]
    expected = model.generate(**inputs, **options)
    actual = model.to(device).generate(**to(inputs, device), **options)
    assert len(set(expected[:, -4:].flatten().tolist())) > 1  # the models do choose
    assert actual.tolist() == expected.tolist()
