"""scaled_dot_product_attention and the modules built on attention, on the device against the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

OVERRIDEABLE, MATH = SDPBackend.OVERRIDEABLE.value, SDPBackend.MATH.value


def _qkv(heads: int = 4, kv_heads: int = 4, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(2, h, n, 8).to(dtype) for h, n in ((heads, 5), (kv_heads, 6), (kv_heads, 6))]


def _attend(device: str, qkv: list[torch.Tensor], mask: torch.Tensor | None, **options: Any) -> list[torch.Tensor]:
    inputs = [x.detach().to(device).requires_grad_() for x in qkv]
    if mask is not None:
        options["attn_mask"] = mask.to(device)
    out = F.scaled_dot_product_attention(*inputs, **options)
    out.backward(torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(device, out.dtype))
    return [out.detach().cpu(), *(x.grad.cpu() for x in inputs if x.grad is not None)]


CAUSAL = torch.ones(5, 6, dtype=torch.bool).tril()
CASES: dict[str, tuple[dict[str, Any], torch.Tensor | None]] = {
    "plain": ({}, None),
    "causal": ({"is_causal": True}, None),
    "scale": ({"scale": 0.2}, None),
    "bool mask": ({}, CAUSAL),
    "float mask": ({}, torch.linspace(-1, 1, 60).reshape(2, 1, 5, 6)),
    "empty row": ({}, CAUSAL.clone().index_fill_(0, torch.tensor([2]), False)),
}


@pytest.mark.parametrize("case", CASES)
def test_matches_the_cpu(case: str) -> None:
    options, mask = CASES[case]
    qkv = _qkv()
    torch.testing.assert_close(_attend("tpu", qkv, mask, **options), _attend("cpu", qkv, mask, **options))


def test_grouped_heads_and_bfloat16() -> None:
    qkv = _qkv(kv_heads=2)
    options = {"enable_gqa": True, "is_causal": True}
    torch.testing.assert_close(_attend("tpu", qkv, None, **options), _attend("cpu", qkv, None, **options))
    qkv = _qkv(dtype=torch.bfloat16)
    ours, theirs = _attend("tpu", qkv, None), _attend("cpu", qkv, None)
    torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("mode", ["plain", "dims", "double", "heads"])
def test_what_is_fused(mode: str) -> None:
    q, k, v = (x.to("tpu") for x in _qkv())
    if mode == "plain":
        assert torch._fused_sdp_choice(q, k, v) == OVERRIDEABLE
        with sdpa_kernel(SDPBackend.MATH):
            assert torch._fused_sdp_choice(q, k, v) == MATH
    elif mode == "dims":
        assert torch._fused_sdp_choice(q[0], k[0], v[0]) == MATH
        with sdpa_kernel(SDPBackend.OVERRIDEABLE), pytest.raises(RuntimeError, match="math implementation is disabled"):
            F.scaled_dot_product_attention(q[0], k[0], v[0])
    elif mode == "double":
        assert torch._fused_sdp_choice(q.double(), k.double(), v.double()) == MATH
    else:
        assert torch._fused_sdp_choice(q, k[:, :2], v[:, :2], enable_gqa=True) == OVERRIDEABLE
        assert torch._fused_sdp_choice(q, k[:, :1], v[:, :1]) == MATH


def test_gradcheck_in_double() -> None:
    qkv = [x.double().to("tpu").requires_grad_() for x in _qkv()]
    attend = lambda *x: F.scaled_dot_product_attention(*x, is_causal=True)
    # XLA's CPU threads may sum in another order from run to run: the last bits of a double.
    assert torch.autograd.gradcheck(attend, qkv, fast_mode=True, nondet_tol=1e-12)


def test_dropout_draws_from_the_device_generator() -> None:
    q, k, v = (x.to("tpu").requires_grad_() for x in _qkv())

    def attend() -> tuple[torch.Tensor, torch.Tensor]:
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        return out.detach().cpu(), torch.autograd.grad(out.sum(), v)[0].cpu()

    torch.tpu.manual_seed(5)
    first, second = attend(), attend()
    torch.tpu.manual_seed(5)
    again = attend()
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], second[0])
    state = torch.tpu.get_rng_state()
    F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(state, torch.tpu.get_rng_state())


# ---- modules


def _both(module: nn.Module, *inputs: torch.Tensor, **options: Any) -> None:
    """The module's results in evaluation without gradients (PyTorch's fast paths) and in training."""
    # Attention of a tensor with itself takes the fast path only while it is one tensor.
    on_device = {id(x): x.to("tpu") for x in (*inputs, *options.values()) if isinstance(x, torch.Tensor)}
    moved = {k: on_device.get(id(v), v) for k, v in options.items()}
    module.eval()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            theirs = module.cpu()(*inputs, **options)
            ours = module.to("tpu")(*(on_device[id(x)] for x in inputs), **moved)
        for mine, reference in zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (ours, theirs))):
            if reference is None:
                assert mine is None
            else:
                torch.testing.assert_close(mine.cpu(), reference, equal_nan=True)


PADDING = torch.tensor([[False, False, False, True], [False, False, True, True]])
SQUARE = torch.ones(4, 4, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"average_attn_weights": False}])
def test_multi_head_attention(options: dict[str, bool]) -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 4, 8)
    _both(module, x, x, x, **options)
    _both(module, x, x, x, key_padding_mask=PADDING, **options)
    _both(module, x, x, x, attn_mask=SQUARE, **options)
    _both(module, x, x, x, attn_mask=SQUARE, key_padding_mask=PADDING, **options)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(norm_first: bool, activation: str) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True, norm_first=norm_first)
    x = torch.randn(2, 4, 8)
    _both(layer, x)
    _both(layer, x, src_mask=SQUARE)


def test_encoder_with_padding() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    x = torch.randn(2, 4, 8)
    with torch.no_grad():
        theirs = encoder.eval()(x, src_key_padding_mask=PADDING)
        ours = encoder.to("tpu")(x.to("tpu"), src_key_padding_mask=PADDING.to("tpu")).cpu()
    torch.testing.assert_close(ours[~PADDING], theirs[~PADDING])


def test_transformer() -> None:
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    _both(model, torch.randn(2, 4, 8), torch.randn(2, 4, 8), tgt_mask=SQUARE)


def test_transform_bias_rescale_qkv() -> None:
    qkv, bias = torch.randn(2, 4, 24), torch.randn(24)
    theirs = torch._transform_bias_rescale_qkv(qkv, bias, 2)
    ours = torch._transform_bias_rescale_qkv(qkv.to("tpu"), bias.to("tpu"), 2)
    torch.testing.assert_close([x.cpu() for x in ours], list(theirs))


# ---- recurrent modules


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent(kind: type[nn.RNNBase], packed: bool) -> None:
    module = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.randn(2, 5, 3)

    def run(device: str) -> list[torch.Tensor]:
        module.to(device).zero_grad()
        inputs = x.detach().to(device).requires_grad_()
        if packed:
            sequence = nn.utils.rnn.pack_padded_sequence(inputs, torch.tensor([5, 3]), batch_first=True)
            out = nn.utils.rnn.pad_packed_sequence(module(sequence)[0], batch_first=True)[0]
        else:
            out = module(inputs)[0]
        out.square().sum().backward()
        gradients = [p.grad for p in (inputs, *module.parameters())]
        return [out.detach().cpu(), *(g.cpu() for g in gradients if g is not None)]

    torch.testing.assert_close(run("tpu"), run("cpu"))


# ---- joined sequences


def _varlen(device: str, joined: bool, **options: Any) -> list[torch.Tensor]:
    """Attention inside each sequence, as one call over joined tensors or as PyTorch's own call for each."""
    from torch.nn.attention.varlen import varlen_attn

    lengths, key_lengths = [3, 0, 5, 2], [4, 1, 5, 6]
    tensors = [torch.randn(sum(n), 4, 8) for n in (lengths, key_lengths, key_lengths)]
    leaves = [x.to(device).requires_grad_() for x in tensors]
    if joined:
        ends = [torch.tensor([0, *n]).cumsum(0, dtype=torch.int32).to(device) for n in (lengths, key_lengths)]
        out = varlen_attn(*leaves, *ends, max(lengths), max(key_lengths), **options)
        assert isinstance(out, torch.Tensor)
    else:
        left, right = options.get("window_size", (-1, -1))
        pieces = []
        for q, k, v in zip(*(x.split(n) for x, n in zip(leaves, (lengths, key_lengths, key_lengths)))):
            i = torch.arange(len(q))[:, None] + len(k) - len(q)
            j = torch.arange(len(k))
            seen = ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))
            mask = torch.where(seen, 0.0, -torch.inf)
            pieces.append(F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (q, k, v)), mask).transpose(0, 1))
        out = torch.cat(pieces)
    out.backward(torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(device))
    return [out.detach().cpu(), *(x.grad.cpu() for x in leaves if x.grad is not None)]


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 1)])
def test_joined_sequences(window: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours = _varlen("tpu", True, window_size=window)
    torch.manual_seed(0)
    torch.testing.assert_close(ours, _varlen("cpu", False, window_size=window))


def test_joined_sequences_into_a_tensor() -> None:
    from torch.nn.attention.varlen import varlen_attn, varlen_attn_out

    q = torch.randn(7, 2, 8, device="tpu")
    ends = torch.tensor([0, 3, 7], dtype=torch.int32, device="tpu")
    out = torch.empty_like(q)
    varlen_attn_out(out, q, q, q, ends, ends, 4, 4)
    torch.testing.assert_close(out.cpu(), varlen_attn(q, q, q, ends, ends, 4, 4).cpu())
