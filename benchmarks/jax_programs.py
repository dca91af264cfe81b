"""The workloads as JAX programs, a whole iteration in one jit with donated buffers: what XLA can reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .workloads import CHAIN_OPS, DECODE, GPT, MLP, RESNET, data, parameters, resnet_blocks

Array = jax.Array
Tree = dict[str, Array]
OPS: list[Callable[[Array, Array], Array]] = [
    lambda x, y: x * 1.001,
    lambda x, y: x + y,
    lambda x, y: jnp.tanh(x),
    lambda x, y: x - y,
    lambda x, y: jnp.abs(x),
]


def linear(p: Tree, name: str, x: Array) -> Array:
    """A kernel lies (in, out), for decoding, a weight (out, in), for training: each the faster one there on XLA:CPU."""
    y = x @ p[f"{name}.kernel"] if f"{name}.kernel" in p else x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def layer_norm(p: Tree, name: str, x: Array) -> Array:
    d = x - x.mean(-1, keepdims=True)
    return d * lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def cross_entropy(logits: Array, y: Array) -> Array:
    logp = jax.nn.log_softmax(logits.reshape(-1, logits.shape[-1]))
    return -jnp.take_along_axis(logp, y.reshape(-1, 1), 1).mean()


def mlp(p: Tree, stats: Tree, x: Array) -> tuple[Array, Tree]:
    h = jax.nn.relu(linear(p, "l1", x))
    return linear(p, "l3", jax.nn.relu(linear(p, "l2", h))), stats


def block(p: Tree, i: int, x: Array, mask: Array | None, cache: Callable[..., tuple[Array, Array]]) -> Array:
    n, (b, t, w) = f"blocks.{i}", x.shape
    qkv = linear(p, f"{n}.qkv", layer_norm(p, f"{n}.ln1", x)).reshape(b, t, 3, GPT.heads, w // GPT.heads)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    k, v = cache(i, k, v)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (w // GPT.heads) ** -0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    y = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v).transpose(0, 2, 1, 3).reshape(b, t, w)
    x = x + linear(p, f"{n}.proj", y)
    up = linear(p, f"{n}.up", layer_norm(p, f"{n}.ln2", x))
    return x + linear(p, f"{n}.down", jax.nn.gelu(up, approximate=False))


def gpt(p: Tree, stats: Tree, tokens: Array) -> tuple[Array, Tree]:
    t = tokens.shape[1]
    x = p["token.weight"][tokens] + p["position.weight"][:t]
    mask = jnp.tril(jnp.ones((t, t), bool))
    for i in range(GPT.layers):
        x = block(p, i, x, mask, lambda i, k, v: (k, v))
    return linear(p, "head", layer_norm(p, "norm", x)), stats


def resnet(p: Tree, stats: Tree, x: Array) -> tuple[Array, Tree]:
    """Images and kernels lie channels last, which XLA:CPU prefers."""
    new: Tree = {}

    def conv(name: str, h: Array, stride: int) -> Array:
        k = p[f"{name}.weight"]
        pad = [(k.shape[0] // 2, k.shape[0] // 2)] * 2
        return lax.conv_general_dilated(h, k, (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def norm(name: str, h: Array) -> Array:
        mean, var, n = h.mean((0, 1, 2)), h.var((0, 1, 2)), h.size // h.shape[-1]
        new[f"{name}.mean"] = lax.stop_gradient(0.9 * stats[f"{name}.mean"] + 0.1 * mean)
        new[f"{name}.var"] = lax.stop_gradient(0.9 * stats[f"{name}.var"] + 0.1 * var * n / (n - 1))
        return (h - mean) * (p[f"{name}.weight"] * lax.rsqrt(var + 1e-5)) + p[f"{name}.bias"]

    h = jax.nn.relu(norm("norm", conv("stem", x, 1)))
    for n, _, _, stride in resnet_blocks():
        y = jax.nn.relu(norm(f"{n}.norm1", conv(f"{n}.conv1", h, stride)))
        y = norm(f"{n}.norm2", conv(f"{n}.conv2", y, 1))
        h = jax.nn.relu(y + (norm(f"{n}.norm3", conv(f"{n}.conv3", h, stride)) if f"{n}.conv3.weight" in p else h))
    return linear(p, "head", h.mean((1, 2))), new


MODELS: dict[str, Callable[[Tree, Tree, Array], tuple[Array, Tree]]] = {
    "mlp": mlp,
    "gpt": gpt,
    "gpt_small": gpt,
    "resnet": resnet,
}


def update(model: str, p: Tree, grad: Tree, state: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
    """Return the parameters and the optimizer's state after one step."""
    if model == "mlp":
        return {k: p[k] - MLP.lr * grad[k] for k in p}, state
    if model == "resnet":
        m = {k: RESNET.momentum * state["m"][k] + grad[k] for k in p}
        return {k: p[k] - RESNET.lr * m[k] for k in p}, {**state, "m": m}
    (b1, b2), t = GPT.betas, state["t"] + 1
    m = {k: b1 * state["m"][k] + (1 - b1) * grad[k] for k in p}
    v = {k: b2 * state["v"][k] + (1 - b2) * grad[k] ** 2 for k in p}

    def new(k: str) -> Array:
        denominator = jnp.sqrt(v[k]) / jnp.sqrt(1 - b2**t) + GPT.eps
        return p[k] * (1 - GPT.lr * GPT.weight_decay) - GPT.lr / (1 - b1**t) * m[k] / denominator

    return {k: new(k) for k in p}, {"m": m, "v": v, "t": t}


def build(workload: str) -> Callable[[], Any]:
    """Return one iteration, which gives the loss of a training step or the tokens of a decoding run."""
    inputs = [jnp.asarray(x) for x in data(workload)]
    if workload == "chain":

        def whole(x: Array, y: Array) -> Array:
            for i in range(CHAIN_OPS):
                x = OPS[i % len(OPS)](x, y)
            return x

        jitted = jax.jit(whole)
        return lambda: jitted(*inputs)
    if workload == "chain_sync":
        ops = [jax.jit(op) for op in OPS]

        def chain() -> Array:
            x, y = inputs
            for i in range(CHAIN_OPS):
                x = ops[i % len(OPS)](x, y).block_until_ready()
            return x

        return chain
    return train(workload, inputs) if workload in MODELS else decode(workload, inputs[0])


def train(model: str, inputs: list[Array]) -> Callable[[], Array]:
    """Return a training step whose state stays on the device."""
    step, state, inputs = training_step(model, inputs)
    jitted = jax.jit(step, donate_argnums=(0, 1, 2))

    def iteration() -> Array:
        value, *state[:] = jitted(*state, *inputs)
        return value

    return iteration


def training_step(model: str, inputs: list[Array]) -> tuple[Callable[..., tuple[Any, ...]], list[Any], list[Array]]:
    """Return the step, its first state (three trees) and its inputs; it returns the loss and the next state."""
    weights = parameters(model)
    stats: Tree = {}
    if model == "resnet":
        weights = {k: v.transpose(2, 3, 1, 0) if v.ndim == 4 else v for k, v in weights.items()}
        inputs = [inputs[0].transpose(0, 2, 3, 1), inputs[1]]
        norms = [k.removesuffix(".weight") for k in weights if "norm" in k and k.endswith("weight")]
        stats = {f"{n}.mean": jnp.zeros(weights[f"{n}.weight"].shape) for n in norms}
        stats |= {f"{n}.var": jnp.ones(weights[f"{n}.weight"].shape) for n in norms}
    p = {k: jnp.asarray(v) for k, v in weights.items()}
    zeros = {k: jnp.zeros_like(v) for k, v in p.items()}
    optim = {"m": zeros, "v": {k: jnp.zeros_like(v) for k, v in p.items()}, "t": jnp.zeros(())}

    def loss(p: Tree, stats: Tree, x: Array, y: Array) -> tuple[Array, Tree]:
        logits, stats = MODELS[model](p, stats, x)
        return cross_entropy(logits, y), stats

    def step(p: Tree, stats: Tree, optim: dict[str, Any], x: Array, y: Array) -> tuple[Any, ...]:
        (value, stats), grad = jax.value_and_grad(loss, has_aux=True)(p, stats, x, y)
        p, optim = update(model, p, grad, optim)
        return value, p, stats, optim

    return step, [p, stats, optim], inputs


def decode(workload: str, prompt: Array) -> Callable[[], list[int]]:
    """Return a decoding run; the host reads every token."""
    p = {}
    for name, w in parameters("gpt").items():
        table = name in ("token.weight", "position.weight") or w.ndim == 1
        p[name if table else name.replace("weight", "kernel")] = jnp.asarray(w if table else w.T)
    length, size = DECODE.prompt + DECODE.new, (1, GPT.heads, DECODE.prompt + DECODE.new, GPT.width // GPT.heads)

    def run(p: Tree, x: Array, mask: Array | None, cache: Callable[..., tuple[Array, Array]]) -> tuple[Array, Any]:
        new: list[tuple[Array, Array]] = []

        def keep(i: int, k: Array, v: Array) -> tuple[Array, Array]:
            new.append(cache(i, k, v))
            return new[-1]

        for i in range(GPT.layers):
            x = block(p, i, x, mask, keep)
        return linear(p, "head", layer_norm(p, "norm", x[:, -1:])).argmax(-1), new

    def cat(p: Tree, tokens: Array, past: Any) -> tuple[Array, Any]:
        begin, t = (past[0][0].shape[2] if past else 0), tokens.shape[1]
        x = p["token.weight"][tokens] + p["position.weight"][begin : begin + t]
        if past is None:
            return run(p, x, jnp.tril(jnp.ones((t, t), bool)), lambda i, k, v: (k, v))
        return run(p, x, None, lambda i, *kv: tuple(jnp.concatenate(pair, 2) for pair in zip(past[i], kv)))

    def static(p: Tree, tokens: Array, past: Any, at: Array) -> tuple[Array, Any, Array]:
        x = p["token.weight"][tokens] + p["position.weight"][at]
        mask = jnp.arange(length) <= at[:, None]

        def write(i: int, *kv: Array) -> tuple[Array, ...]:
            return tuple(lax.dynamic_update_slice(old, new, (0, 0, at[0], 0)) for old, new in zip(past[i], kv))

        token, past = run(p, x, mask, write)
        return token, past, at[-1:] + 1

    jitted_cat, jitted_static = jax.jit(cat), jax.jit(static, donate_argnums=(2,))

    def iteration() -> list[int]:
        out, token = [], prompt
        past = None if workload == "decode_cat" else [(jnp.zeros(size), jnp.zeros(size)) for _ in range(GPT.layers)]
        at = jnp.arange(DECODE.prompt)
        for _ in range(DECODE.new):
            if workload == "decode_cat":
                token, past = jitted_cat(p, token, past)
            else:
                token, past, at = jitted_static(p, token, past, at)
            out.append(int(token[0, 0]))
        return out

    return iteration
