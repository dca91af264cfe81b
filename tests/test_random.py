"""The generators' states; what ops draw from them is tested with the ops."""

import struct

import pytest
import torch
from process import run_python


def state(seed: int, offset: int = 0) -> torch.Tensor:
    return torch.tensor(list(struct.pack("<QQ", seed, offset)), dtype=torch.uint8)


def test_state_is_seed_and_offset() -> None:
    torch.tpu.manual_seed(7)
    got = torch.tpu.get_rng_state()
    assert got.device.type == "cpu"
    assert got.dtype == torch.uint8
    assert got.shape == (16,)
    assert torch.equal(got, state(7))
    assert torch.tpu.initial_seed() == 7
    torch.tpu.set_rng_state(state(9, 40))
    assert torch.tpu.initial_seed() == 9
    assert torch.tpu.default_generators[0].get_offset() == 40
    assert got[8:].view(torch.int64).item() == 0  # as DTensor reads it


def test_ops_advance_the_device_generator_only() -> None:
    torch.manual_seed(3)
    cpu = torch.get_rng_state()
    assert torch.equal(torch.tpu.get_rng_state(), state(3))
    torch.randn(10, device="tpu")
    assert torch.equal(torch.tpu.get_rng_state(), state(3, 12))  # 10 rounded up to 4
    assert torch.equal(torch.get_rng_state(), cpu)


def test_same_seed_same_numbers() -> None:
    torch.manual_seed(11)
    a = torch.randn(100, device="tpu")
    saved = torch.tpu.get_rng_state()
    b = torch.randn(100, device="tpu")
    torch.tpu.set_rng_state(saved)
    c = torch.randn(100, device="tpu")
    torch.tpu.manual_seed_all(11)
    d = torch.randn(100, device="tpu")
    assert torch.equal(b, c)
    assert torch.equal(a, d)
    assert not torch.equal(a, b)


def test_explicit_generator() -> None:
    generator = torch.Generator("tpu")
    assert generator.device == torch.device("tpu", 0)
    generator.manual_seed(5)
    before = torch.tpu.get_rng_state()
    a = torch.rand(8, device="tpu", generator=generator)
    assert generator.get_offset() == 8
    assert torch.equal(torch.tpu.get_rng_state(), before)
    generator.manual_seed(5)
    assert torch.equal(torch.rand(8, device="tpu", generator=generator), a)
    twin = generator.clone_state()
    assert twin.initial_seed() == 5
    assert twin.get_offset() == 8
    twin.set_offset(400)
    assert generator.get_offset() == 8
    generator.set_state(twin.get_state())
    assert generator.get_offset() == 400
    assert generator.seed() == generator.initial_seed() != 5


def test_bad_states() -> None:
    for bad in (torch.zeros(15, dtype=torch.uint8), torch.zeros(16), torch.zeros(32, dtype=torch.uint8)[::2]):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            torch.tpu.set_rng_state(bad)
    with pytest.raises(ValueError, match="multiple of 4"):
        torch.tpu.set_rng_state(state(1, 3))


def test_negative_and_large_seeds() -> None:
    torch.manual_seed(-1)
    assert torch.tpu.initial_seed() == 2**64 - 1
    torch.manual_seed(2**63)
    assert torch.tpu.initial_seed() == 2**63


def test_seed_all_and_states_of_all() -> None:
    torch.tpu.seed()
    one = torch.tpu.initial_seed()
    torch.tpu.seed_all()
    assert torch.tpu.initial_seed() != one
    states = torch.tpu.get_rng_state_all()
    torch.tpu.manual_seed(1)
    torch.tpu.set_rng_state_all(states)
    assert torch.equal(torch.tpu.get_rng_state(), states[0])
    assert len(torch.tpu.default_generators) == torch.tpu.device_count()


def test_seeding_before_the_first_use() -> None:
    """A seed reaches devices whose generators nobody has asked for yet."""
    code = """
    import torch, torch_tpu
    torch.manual_seed(123)
    assert not torch.tpu.is_initialized()
    assert [g.initial_seed() for g in torch.tpu.default_generators] == [123, 123]
    with torch.random.fork_rng(devices=range(2), device_type="tpu"):
        torch.manual_seed(5)
    assert [g.initial_seed() for g in torch.tpu.default_generators] == [123, 123]
    with torch.tpu.device(1):
        torch.tpu.manual_seed(6)
    assert [g.initial_seed() for g in torch.tpu.default_generators] == [123, 6]
    """
    run_python(code, TORCH_TPU_PLATFORM="cpu", TORCH_TPU_CPU_DEVICES="2")


def test_fork_rng() -> None:
    torch.manual_seed(2)
    expected = torch.randn(5, device="tpu")
    torch.manual_seed(2)
    with torch.random.fork_rng(device_type="tpu"):
        torch.randn(50, device="tpu")
    assert torch.equal(torch.randn(5, device="tpu"), expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_replays_dropout(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, 64, device="tpu", requires_grad=True)
    torch.manual_seed(4)
    checkpoint(lambda t: torch.nn.functional.dropout(t * 2, 0.5), x, use_reentrant=reentrant).sum().backward()
    torch.manual_seed(4)
    expected = torch.nn.functional.dropout(torch.full((64, 64), 2.0, device="tpu"), 0.5)
    assert torch.equal(x.grad, expected)


def test_dropout_in_place() -> None:
    x = torch.ones(100, device="tpu")
    assert torch.nn.functional.dropout(x, 0.5, True, inplace=True) is x
    assert sorted(set(x.tolist())) == [0.0, 2.0]
