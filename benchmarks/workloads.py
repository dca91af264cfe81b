"""What is measured: sizes, data and initial weights, the same for every adapter. Needs neither PyTorch nor JAX."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Workload:
    """One row of the table: `scale` turns seconds an iteration into the unit shown."""

    title: str
    unit: str
    scale: float


CHAIN_OPS, CHAIN_SIZE = 200, 32
WORKLOADS = {
    "chain": Workload("200 elementwise ops on 32 floats, one wait", "us/op", 1e6 / CHAIN_OPS),
    "chain_sync": Workload("the same, a wait after each op", "us/op", 1e6 / CHAIN_OPS),
    "mlp": Workload("MLP 256-256-256-10, batch 64, SGD step", "ms", 1e3),
    "gpt": Workload("GPT 4 layers, 4 heads, width 128, T 128, batch 8, AdamW step", "ms", 1e3),
    "gpt_small": Workload("the same GPT step, T 32, batch 1", "ms", 1e3),
    "resnet": Workload("ResNet-18 layout, base width 32, 32x32, batch 32, SGD+momentum step", "ms", 1e3),
    "decode": Workload("GPT decode, 64 tokens, preallocated KV cache", "ms", 1e3),
    "decode_cat": Workload("GPT decode, 64 tokens, KV cache grown by cat", "ms", 1e3),
    "start": Workload("process start to end of first GPT step, cold cache", "s", 1),
    "start_warm": Workload("the same, warm cache", "s", 1),
}


@dataclass(frozen=True)
class Mlp:
    width: int = 256
    batch: int = 64
    classes: int = 10
    lr: float = 0.05


@dataclass(frozen=True)
class Gpt:
    layers: int = 4
    heads: int = 4
    width: int = 128
    seq: int = 128
    batch: int = 8
    vocab: int = 256
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1


@dataclass(frozen=True)
class ResNet:
    base: int = 32
    batch: int = 32
    size: int = 32
    classes: int = 10
    lr: float = 0.05
    momentum: float = 0.9
    stages: tuple[tuple[int, int], ...] = (
        (1, 1),
        (2, 2),
        (4, 2),
        (8, 2),
    )  # (multiple of base, stride), two blocks each


@dataclass(frozen=True)
class Decode:
    prompt: int = 16
    new: int = 64


MLP, GPT, RESNET, DECODE = Mlp(), Gpt(), ResNet(), Decode()


def resnet_blocks() -> list[tuple[str, int, int, int]]:
    """Return (name, input channels, output channels, stride) of every residual block."""
    blocks, inputs = [], RESNET.base
    for i, (multiple, stride) in enumerate(RESNET.stages):
        for j in range(2):
            blocks.append((f"blocks.{2 * i + j}", inputs, RESNET.base * multiple, stride if j == 0 else 1))
            inputs = RESNET.base * multiple
    return blocks


def shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a model, by its name in the PyTorch module."""
    out: dict[str, tuple[int, ...]] = {}

    def weight(name: str, *shape: int, bias: bool = True) -> None:
        out[f"{name}.weight"] = shape
        if bias:
            out[f"{name}.bias"] = shape[:1]

    if model == "mlp":
        weight("l1", MLP.width, MLP.width)
        weight("l2", MLP.width, MLP.width)
        weight("l3", MLP.classes, MLP.width)
    elif model in ("gpt", "gpt_small"):
        w = GPT.width
        weight("token", GPT.vocab, w, bias=False)
        weight("position", GPT.seq, w, bias=False)
        for i in range(GPT.layers):
            for name, *shape in (
                ("ln1", w),
                ("qkv", 3 * w, w),
                ("proj", w, w),
                ("ln2", w),
                ("up", 4 * w, w),
                ("down", w, 4 * w),
            ):
                weight(f"blocks.{i}.{name}", *shape)
        weight("norm", w)
        weight("head", GPT.vocab, w, bias=False)
    else:
        weight("stem", RESNET.base, 3, 3, 3, bias=False)
        weight("norm", RESNET.base)
        outputs = RESNET.base
        for name, inputs, outputs, stride in resnet_blocks():
            weight(f"{name}.conv1", outputs, inputs, 3, 3, bias=False)
            weight(f"{name}.norm1", outputs)
            weight(f"{name}.conv2", outputs, outputs, 3, 3, bias=False)
            weight(f"{name}.norm2", outputs)
            if stride != 1 or inputs != outputs:
                weight(f"{name}.conv3", outputs, inputs, 1, 1, bias=False)
                weight(f"{name}.norm3", outputs)
        weight("head", RESNET.classes, outputs)
    return out


def parameters(model: str) -> dict[str, np.ndarray]:
    """Return the initial weights of a model."""
    out = {}
    for name, shape in shapes(model).items():
        if len(shape) == 1:
            out[name] = np.full(shape, float(name.endswith("weight")), np.float32)
        else:
            scale = 0.02 if name in ("token.weight", "position.weight") else np.prod(shape[1:]) ** -0.5
            values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape) * scale
            out[name] = values.astype(np.float32)
    return out


def data(workload: str) -> tuple[np.ndarray, ...]:
    """Return the input arrays of a workload."""
    rng = np.random.default_rng(7)
    if workload == "mlp":
        return rng.standard_normal((MLP.batch, MLP.width)).astype(np.float32), rng.integers(0, MLP.classes, MLP.batch)
    if workload == "gpt":
        text = rng.integers(0, GPT.vocab, (GPT.batch, GPT.seq + 1))
        return text[:, :-1].copy(), text[:, 1:].copy()
    if workload == "gpt_small":
        tokens, targets = data("gpt")
        return tokens[:1, :32].copy(), targets[:1, :32].copy()
    if workload == "resnet":
        images = rng.standard_normal((RESNET.batch, 3, RESNET.size, RESNET.size)).astype(np.float32)
        return images, rng.integers(0, RESNET.classes, RESNET.batch)
    if workload.startswith("decode"):
        return (rng.integers(0, GPT.vocab, (1, DECODE.prompt)),)
    return tuple(rng.standard_normal((2, CHAIN_SIZE)).astype(np.float32))
