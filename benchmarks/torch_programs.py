"""The workloads as a PyTorch user writes them; every PyTorch adapter runs this text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from .workloads import CHAIN_OPS, DECODE, GPT, MLP, RESNET, data, parameters, resnet_blocks

KeyValue = tuple[Tensor, Tensor]


class Mlp(nn.Module):
    """Three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2 = nn.Linear(MLP.width, MLP.width), nn.Linear(MLP.width, MLP.width)
        self.l3 = nn.Linear(MLP.width, MLP.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


class Block(nn.Module):
    """A transformer block; `attend` says which keys and values the queries see."""

    def __init__(self) -> None:
        super().__init__()
        w = GPT.width
        self.ln1, self.ln2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.proj = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down = nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        b, t, w = x.shape
        q, k, v = (z.view(b, t, GPT.heads, w // GPT.heads).transpose(1, 2) for z in self.qkv(self.ln1(x)).split(w, 2))
        x = x + self.proj(attend(q, k, v).transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Gpt(nn.Module):
    """A GPT with a training forward pass and one decoding step for each kind of cache."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(GPT.vocab, GPT.width), nn.Embedding(GPT.seq, GPT.width)
        self.blocks = nn.ModuleList(Block() for _ in range(GPT.layers))
        self.norm, self.head = nn.LayerNorm(GPT.width), nn.Linear(GPT.width, GPT.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.head(self.norm(x))

    def decode_cat(self, tokens: Tensor, past: list[KeyValue] | None) -> tuple[Tensor, list[KeyValue]]:
        """Return the next token and the cache grown by the keys and values of `tokens`."""
        begin = past[0][0].shape[2] if past else 0
        x = self.token(tokens) + self.position(torch.arange(begin, begin + tokens.shape[1], device=tokens.device))
        cache: list[KeyValue] = []

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if past:
                old_k, old_v = past[len(cache)]
                k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
            cache.append((k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=not past)

        for block in self.blocks:
            x = block(x, attend)
        return self.head(self.norm(x[:, -1:])).argmax(-1), cache

    def decode(self, tokens: Tensor, cache: list[KeyValue], at: Tensor) -> tuple[Tensor, list[KeyValue], Tensor]:
        """Return the next token, the cache with `tokens` written at the positions `at`, and the next position."""
        x = self.token(tokens) + self.position(at)
        mask = torch.arange(cache[0][0].shape[2], device=tokens.device) <= at[:, None]
        written: list[KeyValue] = []

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            old_k, old_v = cache[len(written)]
            written.append((old_k.index_copy(2, at, k), old_v.index_copy(2, at, v)))
            return F.scaled_dot_product_attention(q, *written[-1], attn_mask=mask)

        for block in self.blocks:
            x = block(x, attend)
        return self.head(self.norm(x[:, -1:])).argmax(-1), written, at[-1:] + 1


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.projects = stride != 1 or inputs != outputs
        if self.projects:
            self.conv3, self.norm3 = nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (self.norm3(self.conv3(x)) if self.projects else x))


class ResNet(nn.Module):
    """ResNet-18's layout for small images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, RESNET.base, 3, 1, 1, bias=False), nn.BatchNorm2d(RESNET.base)
        blocks = resnet_blocks()
        self.blocks = nn.Sequential(*(Residual(*shape) for _, *shape in blocks))
        self.head = nn.Linear(blocks[-1][2], RESNET.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


MODELS: dict[str, type[nn.Module]] = {"mlp": Mlp, "gpt": Gpt, "gpt_small": Gpt, "resnet": ResNet}
OPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x * 1.001,
    lambda x, y: x + y,
    lambda x, y: torch.tanh(x),
    lambda x, y: x - y,
    lambda x, y: torch.abs(x),
]


def load(model: str, device: str) -> nn.Module:
    """Return a model with the workload's weights."""
    module = MODELS[model]()
    module.load_state_dict({k: torch.from_numpy(v) for k, v in parameters(model).items()}, strict=False)
    return module.to(device)


def optimizer(model: str, module: nn.Module) -> torch.optim.Optimizer:
    """Return the workload's optimizer."""
    if model == "mlp":
        return torch.optim.SGD(module.parameters(), lr=MLP.lr)
    if model == "resnet":
        return torch.optim.SGD(module.parameters(), lr=RESNET.lr, momentum=RESNET.momentum)
    return torch.optim.AdamW(
        module.parameters(), lr=GPT.lr, betas=GPT.betas, eps=GPT.eps, weight_decay=GPT.weight_decay
    )


def functional_optimizer(model: str, module: nn.Module) -> Callable[[list[Tensor]], None]:
    """Return the workload's optimizer as a function of the gradients, for a graph that holds the whole step.

    Optimizer.step breaks graphs; torch.optim's functions do not.
    """
    p = list(module.parameters())
    zeros = lambda: [torch.zeros_like(x) for x in p]
    first, second, steps = zeros(), zeros(), [torch.zeros(()) for _ in p]

    def update(gradients: list[Tensor]) -> None:
        if model in ("gpt", "gpt_small"):
            beta1, beta2 = GPT.betas
            adamw(
                p, gradients, first, second, [], steps, amsgrad=False, beta1=beta1, beta2=beta2, lr=GPT.lr, eps=GPT.eps,
                weight_decay=GPT.weight_decay, maximize=False, foreach=True, capturable=True,
            )  # fmt: skip
            return
        momentum, lr = (RESNET.momentum, RESNET.lr) if model == "resnet" else (0.0, MLP.lr)
        sgd(
            p, gradients, first if momentum else [None] * len(p), foreach=True, weight_decay=0.0, momentum=momentum,
            lr=lr, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip

    return update


def build_whole(workload: str, device: str, compile_: Callable[[Any], Any]) -> Callable[[], Tensor]:
    """Return a training step that is one compiled function: forward, backward and the optimizer."""
    inputs = [torch.from_numpy(x).to(device) for x in data(workload)]
    module = load(workload, device)
    parameters_, update = list(module.parameters()), functional_optimizer(workload, module)

    @compile_
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(module(x).flatten(0, -2), y.flatten())
        gradients = torch.autograd.grad(loss, parameters_)
        with torch.no_grad():
            update(list(gradients))
        return loss.detach()

    return lambda: step(*inputs)


def build(
    workload: str,
    device: str,
    mark: Callable[[], None],
    wait: Callable[[], None],
    compile_: Callable[[Any], Any] = lambda fn: fn,
) -> Callable[[], Any]:
    """Return one iteration: `mark` is called where a lazy backend wants a step to end, `wait` where the workload waits.

    `compile_` gets what a user would compile: the function of the loss, the optimizer's step, a decoding step.
    An iteration returns the loss of a training step, or the tokens of a decoding run.
    """
    inputs = [torch.from_numpy(x).to(device) for x in data(workload)]
    if workload in ("chain", "chain_sync"):

        def chain() -> Tensor:
            x, y = inputs
            for _ in range(CHAIN_OPS // len(OPS)):
                for op in OPS:
                    x = op(x, y)
                    if workload == "chain_sync":
                        mark()
                        wait()
            mark()
            return x

        return chain if workload == "chain_sync" else compile_(chain)

    if workload in MODELS:
        module = load(workload, device)
        optim = optimizer(workload, module)

        @compile_
        def forward(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(module(x).flatten(0, -2), y.flatten())

        optim_step = compile_(optim.step)

        def train() -> Tensor:
            x, y = inputs
            optim.zero_grad(set_to_none=True)
            loss = forward(x, y)
            loss.backward()
            optim_step()
            mark()
            return loss.detach()

        return train

    gpt = load("gpt", device).eval()
    assert isinstance(gpt, Gpt)
    decode_cat, decode_static = compile_(gpt.decode_cat), compile_(gpt.decode)
    length, head = DECODE.prompt + DECODE.new, GPT.width // GPT.heads

    @torch.no_grad()
    def decode() -> list[int]:
        token, past, out = inputs[0], None, []
        cache = [tuple(torch.zeros(2, 1, GPT.heads, length, head, device=device)) for _ in range(GPT.layers)]
        at = torch.arange(DECODE.prompt, device=device)
        for _ in range(DECODE.new):
            if workload == "decode_cat":
                token, past = decode_cat(token, past)
            else:
                token, cache, at = decode_static(token, cache, at)
            mark()
            out.append(int(token))
        return out

    return decode
