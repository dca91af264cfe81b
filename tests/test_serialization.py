"""Saving, loading, copying and moving tensors, storages and modules."""

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from process import run_python
from torch import nn

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.float16]


def save(obj: object) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return buffer


def example(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(24).reshape(2, 3, 4).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(dtype: torch.dtype) -> None:
    x = example(dtype)
    for source in (x, x.transpose(0, 2), x[:, 1:], x[0, 0, 0], x[:0]):
        loaded = torch.load(save(source.to("tpu")))
        assert loaded.device == torch.device("tpu", 0)
        assert loaded.dtype == dtype
        assert torch.equal(loaded.cpu(), source)


def test_map_location() -> None:
    x = example(torch.float32)
    on_tpu, on_cpu = save(x.to("tpu")), save(x)
    to_cpu = [
        "cpu",
        torch.device("cpu"),
        {"tpu:0": "cpu"},
        lambda storage, _: storage,
        lambda storage, where: storage.cpu(),
    ]
    for location in to_cpu:
        on_tpu.seek(0)
        loaded = torch.load(on_tpu, map_location=location)
        assert loaded.device.type == "cpu"
        assert torch.equal(loaded, x)
    to_tpu = ["tpu", "tpu:0", torch.device("tpu"), torch.device("tpu", 0), {"cpu": "tpu:0"}, lambda s, _: s.tpu()]
    for location in to_tpu:
        on_cpu.seek(0)
        loaded = torch.load(on_cpu, map_location=location)
        assert loaded.device == torch.device("tpu", 0)
        assert torch.equal(loaded.cpu(), x)


def test_missing_device() -> None:
    code = """
    import io, torch, torch_tpu
    buffer = io.BytesIO()
    torch.save(torch.ones(2, device="tpu:1"), buffer)
    open("{path}", "wb").write(buffer.getvalue())
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "x.pt"))
        run_python(code.replace("{path}", path), TORCH_TPU_PLATFORM="cpu", TORCH_TPU_CPU_DEVICES="2")
        if torch.tpu.device_count() == 1:
            with pytest.raises(RuntimeError, match="device"):
                torch.load(path)
        assert torch.equal(torch.load(path, map_location="tpu").cpu(), torch.ones(2))


def test_shared_storage_stays_shared() -> None:
    x = torch.zeros(4, 4, device="tpu")
    x2, row = torch.load(save([x, x[1]]))
    row += 1
    assert torch.equal(x2.cpu().sum(), torch.tensor(4.0))


def test_mmap_and_files(tmp_path: Path) -> None:
    x = example(torch.float32)
    torch.save({"x": x.to("tpu")}, tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt", mmap=True, map_location="tpu")["x"].cpu(), x)
    assert torch.equal(torch.load(tmp_path / "x.pt", mmap=True, map_location="cpu")["x"], x)


def test_pickle_and_deepcopy() -> None:
    x = example(torch.float32).to("tpu").requires_grad_()
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert twin.is_tpu
        assert twin.requires_grad
        assert torch.equal(twin.detach().cpu(), x.detach().cpu())
        with torch.no_grad():
            twin += 1
    assert torch.equal(x.detach().cpu(), example(torch.float32))
    base = torch.zeros(3, device="tpu")
    twin, view = copy.deepcopy([base, base[1:]])
    view += 1
    assert twin.cpu().tolist() == [0, 1, 1]
    assert base.cpu().tolist() == [0, 0, 0]
    assert copy.copy(base).data_ptr() == base.data_ptr()


class Net(nn.Module):
    """Parameters, a tied one, a buffer and normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.tril(torch.ones(4, 4, dtype=torch.bool)))


@pytest.mark.parametrize("move", [lambda m: m.to("tpu"), lambda m: m.tpu(), lambda m: m.to(torch.device("tpu", 0))])
def test_module_keeps_its_parameters(move: object) -> None:
    net = Net()
    before = dict(net.named_parameters())
    expected = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    assert move(net) is net
    after = dict(net.named_parameters())
    assert all(after[name] is before[name] for name in before)
    assert net.head.weight is net.embedding.weight is optimizer.param_groups[0]["params"][0]
    assert all(value.is_tpu for value in net.state_dict().values())
    assert isinstance(net.head.weight, nn.Parameter)
    for name, value in net.state_dict().items():
        assert torch.equal(value.cpu(), expected[name])
    net.cpu()
    assert all(parameter is before[name] for name, parameter in net.named_parameters())
    assert all(value.device.type == "cpu" for value in net.state_dict().values())


def test_moving_moves_gradients() -> None:
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    grad = layer.weight.grad.clone()
    layer.to("tpu")
    assert layer.weight.grad.is_tpu
    assert torch.equal(layer.weight.grad.cpu(), grad)
    layer.to(torch.bfloat16)
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.bfloat16


def test_module_round_trip() -> None:
    net = Net().to("tpu")
    state = torch.load(save(net.state_dict()))
    twin = Net()
    twin.load_state_dict(state)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(net.state_dict().values(), twin.state_dict().values()))
    third = Net().tpu()
    third.load_state_dict(torch.load(save(twin.state_dict()), map_location="tpu"))
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(net.state_dict().values(), third.state_dict().values()))
    whole = torch.load(save(net), weights_only=False)
    assert whole.head.weight is whole.embedding.weight
    assert whole.head.weight.is_tpu
    clone = copy.deepcopy(net)
    assert clone.head.weight is clone.embedding.weight
    with torch.device("tpu"):
        assert nn.Linear(2, 3).weight.is_tpu
    meta = Net().to("meta").to_empty(device="tpu")
    assert meta.head.weight.is_tpu


def test_optimizer_round_trip() -> None:
    layer = nn.Linear(3, 3).to("tpu")
    optimizer = torch.optim.AdamW(layer.parameters(), 0.1)
    layer(torch.ones(1, 3, device="tpu")).sum().backward()
    optimizer.step()
    state = torch.load(save(optimizer.state_dict()), map_location="cpu")
    twin = torch.optim.AdamW(layer.parameters(), 0.1)
    twin.load_state_dict(state)
    for parameter in layer.parameters():
        assert twin.state[parameter]["exp_avg"].is_tpu
        assert torch.equal(twin.state[parameter]["exp_avg"].cpu(), optimizer.state[parameter]["exp_avg"].cpu())


def test_storages() -> None:
    x = torch.arange(6, dtype=torch.int32, device="tpu")
    storage = x.untyped_storage()
    assert storage.is_tpu
    assert storage.device == torch.device("tpu", 0)
    assert storage.nbytes() == storage.size() == 24
    assert not storage.cpu().is_tpu
    assert storage.cpu().tpu().is_tpu
    assert torch.equal(torch.tensor(storage.cpu().tolist(), dtype=torch.uint8).view(torch.int32), x.cpu())
    twin = storage.clone()
    assert twin.data_ptr() != storage.data_ptr()
    y = torch.empty(0, dtype=torch.int32, device="tpu").set_(twin)
    assert torch.equal(y.cpu(), x.cpu())
    storage.fill_(0)
    assert x.cpu().tolist() == [0] * 6
    storage.copy_(twin)
    assert x.cpu().tolist() == list(range(6))
    storage.resize_(32)
    assert torch.equal(x.cpu(), torch.arange(6, dtype=torch.int32))
    x.resize_(8)
    assert x.cpu()[:6].tolist() == list(range(6))
    storage.resize_(8)
    assert torch.empty(0, dtype=torch.int32, device="tpu").set_(storage).cpu().tolist() == [0, 1]
    typed = y.storage()
    assert typed.is_tpu
    assert typed.tolist() == list(range(6))
    assert torch.UntypedStorage(16, device="tpu").nbytes() == 16


def test_moving_between_devices_in_a_process() -> None:
    code = """
    import torch, torch_tpu
    x = torch.arange(6.0, device="tpu:0")
    y = x.to("tpu:1")
    assert y.device.index == 1 and torch.equal(y.cpu(), x.cpu())
    assert y.tpu(0).device.index == 0
    layer = torch.nn.Linear(2, 2).to("tpu:1")
    weight = layer.weight
    layer.to("tpu:0")
    assert layer.weight is weight and weight.get_device() == 0
    try:
        x + y
    except RuntimeError as error:
        assert "same device" in str(error), error
    else:
        raise SystemExit("no error")
    """
    run_python(code, TORCH_TPU_PLATFORM="cpu", TORCH_TPU_CPU_DEVICES="2")


def test_repr_and_format() -> None:
    x = torch.arange(3, device="tpu")
    assert repr(x) == "tensor([0, 1, 2], device='tpu:0')"
    assert f"{x[1]}" == "1"
    assert x.tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="can't convert tpu"):
        x.numpy()
