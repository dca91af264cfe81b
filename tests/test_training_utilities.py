"""What surrounds a training loop: schedulers, averages, clipping, parametrizations, packing; as on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, rnn
from torch.optim import lr_scheduler, swa_utils

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda i: 1 / (1 + i)),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=8),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "swa": lambda o: swa_utils.SWALR(o, 0.05, 3),
}


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def both(run: Callable[[str], Any]) -> None:
    """Runs on both devices from the same random numbers and compares."""
    results = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        results.append(torch.utils._pytree.tree_map_only(Tensor, lambda t: t.detach().cpu(), run(device)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def train(net: nn.Module, x: Tensor, after: Callable[[], None], steps: int = 6, **options: Any) -> list[Tensor]:
    """A few steps; `after` is called between the gradients and the step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        after()
        optimizer.step()
    return list(net.parameters())


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str) -> None:
    def run(device: str) -> Any:
        net, x = model().to(device), torch.randn(5, 6).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        scheduler, rates = SCHEDULERS[name](optimizer), []
        for _ in range(7):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            scheduler.step()
            rates.append(scheduler.get_last_lr())
        return rates, list(net.parameters())

    both(run)


def test_plateau_scheduler_reads_the_loss() -> None:
    def run(device: str) -> Any:
        net, x = model().to(device), torch.randn(5, 6).to(device)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        for _ in range(4):
            loss = net(x).square().mean()
            scheduler.step(loss.detach() * 0 + 1)
        return optimizer.param_groups[0]["lr"]

    both(run)


@pytest.mark.parametrize("average", ["swa", "ema"])
def test_averaged_models(average: str) -> None:
    def run(device: str) -> Any:
        net, x = model().to(device), torch.randn(5, 6).to(device)
        decay = swa_utils.get_ema_multi_avg_fn(0.9) if average == "ema" else None
        averaged = swa_utils.AveragedModel(net, multi_avg_fn=decay, use_buffers=average == "ema")
        train(net, x, lambda: averaged.update_parameters(net))
        if average == "swa":
            swa_utils.update_bn([x, x + 1], averaged)
        return averaged(x), list(averaged.parameters())

    both(run)


@pytest.mark.parametrize("foreach", [False, True])
def test_clipping(foreach: bool) -> None:
    def run(device: str) -> Any:
        net, x, norms = model().to(device), torch.randn(5, 6).to(device), []

        def clip() -> None:
            norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.05, foreach=foreach))
            norms.append(nn.utils.get_total_norm([p.grad for p in net.parameters()], torch.inf, foreach=foreach))
            nn.utils.clip_grad_value_(net.parameters(), 0.01, foreach=foreach)

        return train(net, x, clip), norms, nn.utils.parameters_to_vector(net.parameters())

    both(run)


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrizations(name: str) -> None:
    def run(device: str) -> Any:
        net, x = model(), torch.randn(5, 6).to(device)
        getattr(parametrizations, name)(net[3])
        net.to(device)
        train(net, x, lambda: None, steps=3)
        nn.utils.parametrize.remove_parametrizations(net[3], "weight")
        return net[3].weight, net(x)

    both(run)


def test_pruning() -> None:
    def run(device: str) -> Any:
        net, x = model().to(device), torch.randn(5, 6).to(device)
        prune.l1_unstructured(net[0], "weight", 0.5)
        prune.ln_structured(net[3], "weight", 0.5, n=2, dim=1)
        train(net, x, lambda: None, steps=3)
        prune.remove(net[0], "weight")
        return net[0].weight, net[3].weight_mask, net(x)

    both(run)


def test_packed_sequences() -> None:
    def run(device: str) -> Any:
        rows = [torch.randn(n, 4).to(device) for n in (5, 3, 1)]
        packed = rnn.pack_sequence(rows)
        net = nn.GRU(4, 6).to(device)
        out, hidden = net(packed)
        padded, lengths = rnn.pad_packed_sequence(out)
        (padded.sum() + hidden.sum()).backward()
        return padded, lengths, [p.grad for p in net.parameters()], rnn.pad_sequence(rows), rnn.unpack_sequence(out)

    both(run)


def test_functional_calls_and_copies() -> None:
    def run(device: str) -> Any:
        net, x = model().to(device), torch.randn(5, 6).to(device)
        doubled = {name: p * 2 for name, p in net.named_parameters()}
        clone = copy.deepcopy(net)
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(net.parameters()) + 1, clone.parameters())
        return torch.func.functional_call(net, doubled, x), clone(x), net(x)

    both(run)


def test_generator_objects_are_streams_of_their_own() -> None:
    generator = torch.Generator("tpu").manual_seed(7)
    state = generator.get_state()
    first = torch.randn(5, device="tpu", generator=generator)
    torch.randn(9, device="tpu")  # the default stream is another one
    second = torch.randn(5, device="tpu", generator=generator)
    generator.set_state(state)
    assert torch.equal(torch.randn(5, device="tpu", generator=generator).cpu(), first.cpu())
    assert torch.equal(torch.randn(5, device="tpu", generator=generator.clone_state()).cpu(), second.cpu())
    assert generator.initial_seed() == 7
    assert not torch.equal(first.cpu(), second.cpu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_training_converges(dtype: torch.dtype) -> None:
    """A small classification is learnt under autocast, in float16 with a GradScaler."""
    torch.manual_seed(0)
    x = torch.randn(256, 8, device="tpu")
    y = (x[:, 0] * x[:, 1] > 0).long()
    net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)).to("tpu")
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("tpu", enabled=dtype == torch.float16)
    for _ in range(250):
        with torch.autocast("tpu", dtype=dtype):
            loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (net(x).argmax(1) == y).float().mean().item() > 0.97
