"""Small models of every family: a table of what builds each one and the arguments of one training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with each common activation and both simple norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.BatchNorm1d(16),
            nn.Linear(16, 16), nn.SiLU(), nn.RMSNorm(16), nn.Linear(16, 5),
        )  # fmt: skip

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), y, label_smoothing=0.1)


class Recurrent(nn.Module):
    """Two recurrent layers, the first bidirectional, over embedded tokens."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=0)
        self.first = kind(6, 8, batch_first=True, bidirectional=True)
        self.second = kind(16, 8, batch_first=True, bias=False)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.second(self.first(self.embed(tokens))[0])[0]
        return F.cross_entropy(self.head(x[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)


class ViT(nn.Module):
    """Patches by a strided convolution, a class token, PyTorch's own encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.position = nn.Parameter(torch.randn(1, 5, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.position
        return F.cross_entropy(self.head(self.encoder(x)[:, 0]), y)


class UNet(nn.Module):
    """Down by max pooling, up once by a transposed convolution and once by interpolation, with skips."""

    def __init__(self) -> None:
        super().__init__()

        def stage(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU())

        self.down1, self.down2, self.middle = stage(1, 4), stage(4, 8), stage(8, 8)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.up2, self.up1 = stage(16, 4), stage(8, 4)
        self.head = nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.up2(torch.cat([self.up(self.middle(F.max_pool2d(b, 2))), b], 1))
        d = self.up1(torch.cat([F.interpolate(c, scale_factor=2, mode="bilinear", align_corners=False), a], 1))
        return F.binary_cross_entropy_with_logits(self.head(d), y) + F.mse_loss(self.head(d).sigmoid(), y)


class MoE(nn.Module):
    """The two best of four experts for each token; which tokens an expert gets depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1)
        weights, choice = probabilities.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(choice == i)
            out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        load = F.one_hot(choice[:, 0], 4).float().mean(0)
        return F.mse_loss(out, y) + 0.01 * 4 * (load * probabilities.mean(0)).sum()


class DLRM(nn.Module):
    """Embedding bags and a dense tower, their pairwise products, a click probability."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(10 + i, 8, mode=mode) for i, mode in enumerate(("sum", "mean")))
        self.bottom = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 3, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor, clicks: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = torch.stack([x] + [bag(i, o) for bag, i, o in zip(self.bags, indices, offsets)], 1)
        products = features @ features.mT
        row, column = torch.tril_indices(3, 3, -1, device=x.device)
        out = self.top(torch.cat([x, products[:, row, column]], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(out, clicks)


@dataclass
class Case:
    """One model: `build()` makes it, `inputs()` the keyword arguments of the call that returns its loss."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    generates: bool = False


def image(channels: int, size: int) -> Tensor:
    return torch.randn(2, channels, size, size)


def tokens(high: int, *shape: int) -> Tensor:
    return torch.randint(1, high, shape)


OWN = {
    "mlp": Case(MLP, lambda: {"x": torch.randn(6, 12), "y": tokens(5, 6)}),
    "lstm": Case(lambda: Recurrent(nn.LSTM), lambda: {"tokens": tokens(11, 2, 5)}),
    "gru": Case(lambda: Recurrent(nn.GRU), lambda: {"tokens": tokens(11, 2, 5)}),
    "vit": Case(ViT, lambda: {"x": image(3, 8), "y": tokens(4, 2)}),
    "unet": Case(UNet, lambda: {"x": image(1, 8), "y": image(1, 8).sigmoid()}),
    "moe": Case(MoE, lambda: {"x": torch.randn(12, 8), "y": torch.randn(12, 8)}),
    "dlrm": Case(
        DLRM,
        lambda: {
            "dense": torch.randn(3, 4),
            "indices": tokens(10, 2, 7),
            "offsets": torch.tensor([[0, 2, 4], [0, 1, 6]]),
            "clicks": torch.tensor([0.0, 1.0, 1.0]),
        },
    ),
}

VOCAB = 61


def language_model(model: type, config: type, generates: bool = True, **options: Any) -> Case:
    """Return the case of a tiny random model from transformers; its weights are large enough to tell tokens apart."""
    options = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **options}

    def inputs() -> dict[str, Tensor]:
        ids = tokens(VOCAB, 2, 6)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}

    return Case(lambda: model(config(**options)), inputs, generates)


DECODER = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 32, "initializer_range": 0.2,
}  # fmt: skip
TRANSFORMERS = {
    "gpt2": language_model(
        hf.GPT2LMHeadModel, hf.GPT2Config, n_embd=16, n_layer=2, n_head=2, n_positions=32, initializer_range=0.2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    ),
    "llama": language_model(hf.LlamaForCausalLM, hf.LlamaConfig, **DECODER),
    "qwen3": language_model(hf.Qwen3ForCausalLM, hf.Qwen3Config, head_dim=4, **DECODER),
    "bert": language_model(
        hf.BertForMaskedLM, hf.BertConfig, generates=False, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=32, initializer_range=0.2, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    "t5": language_model(
        hf.T5ForConditionalGeneration, hf.T5Config, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
        dropout_rate=0.0, decoder_start_token_id=0, tie_word_embeddings=False, initializer_factor=1.3,
    ),
}  # fmt: skip
MODELS = OWN | TRANSFORMERS
