"""Autocast's defaults and GradScaler; which op computes in which dtype is tested with the ops."""

import threading
import warnings

import pytest
import torch
from torch import nn


def autocast_dtype(make: object) -> torch.dtype:
    with make():
        return torch.mm(torch.ones(2, 2, device="tpu"), torch.ones(2, 2, device="tpu")).dtype


WAYS = [
    lambda: torch.autocast("tpu"),
    lambda: torch.amp.autocast(device_type="tpu"),
    lambda: torch.tpu.amp.autocast(),
    lambda: torch.autocast("tpu", dtype=torch.bfloat16),
]


@pytest.mark.parametrize("make", WAYS)
def test_default_is_bfloat16_in_every_thread(make: object) -> None:
    assert torch.get_autocast_dtype("tpu") is torch.bfloat16
    assert autocast_dtype(make) is torch.bfloat16
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(autocast_dtype(make) for _ in range(2)))
    thread.start()
    thread.join()
    assert seen == [torch.bfloat16, torch.bfloat16]


def test_float16_on_request_in_every_thread() -> None:
    def ask() -> None:
        seen.append(autocast_dtype(lambda: torch.autocast("tpu", dtype=torch.float16)))
        seen.append(autocast_dtype(lambda: torch.autocast("tpu")))
        with torch.autocast("tpu", dtype=torch.float16):  # a nested default is the outer one, as on other devices
            seen.append(autocast_dtype(lambda: torch.autocast("tpu")))

    seen: list[torch.dtype] = []
    ask()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [torch.float16, torch.bfloat16, torch.float16] * 2


def test_unsupported_dtype_warns_and_disables() -> None:
    with pytest.warns(UserWarning, match="bfloat16, torch.float16"):
        assert autocast_dtype(lambda: torch.autocast("tpu", dtype=torch.float64)) is torch.float32


def test_other_devices_are_left_alone() -> None:
    with torch.autocast("tpu"):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
    with torch.autocast("cpu"):
        assert torch.mm(torch.ones(2, 2, device="tpu"), torch.ones(2, 2, device="tpu")).dtype is torch.float32


def test_custom_function() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.tpu.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype is torch.float32
            assert not torch.is_autocast_enabled("tpu")
            return x * 2

        @staticmethod
        @torch.tpu.amp.custom_bwd
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    x = torch.ones(3, dtype=torch.bfloat16, device="tpu", requires_grad=True)
    with torch.autocast("tpu"):
        y = Double.apply(x)
    y.sum().backward()
    assert x.grad.cpu().tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "make", [lambda **o: torch.amp.GradScaler("tpu", **o), lambda **o: torch.tpu.amp.GradScaler(**o)]
)
def test_grad_scaler(make: object) -> None:
    """A step with finite gradients is taken, one with an infinity is skipped and halves the scale."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler = make(init_scale=8.0, growth_interval=1)
    layer = nn.Linear(2, 1, bias=False).to("tpu")
    start = layer.weight.detach().cpu().clone()
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)
    for inputs, scale, moved in ((1.0, 16.0, True), (float("inf"), 8.0, False)):
        before = layer.weight.detach().cpu().clone()
        optimizer.zero_grad()
        scaler.scale(layer(torch.full((1, 2), inputs, device="tpu")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
        assert torch.equal(layer.weight.detach().cpu(), before) is not moved
    assert torch.allclose(layer.weight.detach().cpu(), start - 0.5)
    twin = make()
    twin.load_state_dict(scaler.state_dict())
    assert twin.get_scale() == 8.0
