"""Train a byte-level GPT on the source of Python's own standard library.

    python examples/train_gpt.py --device tpu
    python examples/train_gpt.py --device cpu --layers 2 --width 128 --seq 128 --batch 16 --steps 300

The sizes default to nanoGPT's character-level model. The run writes a checkpoint, its loss curve as a picture and a
sample of text to --out; --resume goes on from the checkpoint as if the run had never stopped.
"""

from __future__ import annotations

import argparse
import math
import os
import sysconfig
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

VOCAB = 256  # bytes


@dataclass
class Config:
    """The shape of a GPT."""

    layers: int = 6
    heads: int = 6
    width: int = 384
    seq: int = 256
    dropout: float = 0.0


class Block(nn.Module):
    """Causal self-attention and a two-layer MLP, each behind a LayerNorm and a residual connection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.ln1, self.ln2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.qkv, self.proj = nn.Linear(config.width, 3 * config.width), nn.Linear(config.width, config.width)
        self.up, self.down = nn.Linear(config.width, 4 * config.width), nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape (batch, time, width) of `x`."""
        batch, time_, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, time_, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(batch, time_, width)), dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.ln2(x)))), dropout)


class GPT(nn.Module):
    """A decoder-only transformer over bytes, input and output embeddings tied."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCAB, config.width), nn.Embedding(config.seq, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * config.layers) if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the byte after each of `tokens` (batch, time)."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


def load_text(limit: int) -> Tensor:
    """Return at least `limit` bytes of the standard library's source (all of it if it is smaller), tests left out."""
    root, data = Path(sysconfig.get_path("stdlib")), bytearray()
    for path in sorted(root.rglob("*.py")):
        if not {"site-packages", "dist-packages", "test", "tests", "idle_test"} & set(path.relative_to(root).parts):
            data += path.read_bytes()
            if len(data) >= limit:
                break
    return torch.frombuffer(data, dtype=torch.uint8)


def get_batch(
    text: Tensor, batch: int, seq: int, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return random windows of the text and the same windows one byte later."""
    start = torch.randint(len(text) - seq, (batch, 1), generator=generator)
    window = text[start + torch.arange(seq + 1)].long()
    return window[:, :-1].to(device), window[:, 1:].to(device)


def loss_of(model: GPT, x: Tensor, y: Tensor, bf16: bool) -> Tensor:
    """Return the mean cross entropy in nats per byte."""
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=bf16):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def evaluate(model: GPT, text: Tensor, args: argparse.Namespace, device: torch.device) -> float:
    """Return the mean loss over windows of `text` that are the same at every call."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    batches = [get_batch(text, args.batch, args.seq, generator, device) for _ in range(args.eval_batches)]
    loss = torch.stack([loss_of(model, x, y, args.bf16) for x, y in batches]).mean().item()
    model.train()
    return loss


@torch.no_grad()
def sample(model: GPT, prompt: Tensor, length: int, temperature: float, top_k: int, device: torch.device) -> bytes:
    """Return `length` bytes that go on from `prompt`, which fills the model's context."""
    model.eval()
    window, out = prompt.long()[None].to(device), []
    for _ in range(length):
        values, indices = torch.topk(model(window)[:, -1].float() / temperature, top_k)
        choice = indices.gather(1, torch.multinomial(values.softmax(-1), 1))
        window = torch.cat([window[:, 1:], choice], 1)  # the window keeps its size: one shape for the whole text
        out.append(choice)
    model.train()
    return bytes(torch.cat(out, 1)[0].tolist())


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Return the factor of the learning rate at `step`: linear warm-up, then a cosine down to a tenth."""
    if step < args.warmup:
        return (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the generators that the model draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Restore what `rng_state` returned."""
    torch.set_rng_state(state["cpu"])
    if device.type in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state[device.type], device)


def save_checkpoint(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write the checkpoint; a run stopped in the middle leaves the previous one whole."""
    torch.save(checkpoint, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def plot(path: Path, losses: list[float], validation: list[tuple[int, float]], title: str) -> None:
    """Draw the loss curve."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(range(1, len(losses) + 1), losses, linewidth=0.8, label="training")
    axes.plot(*zip(*validation), marker="o", markersize=3, label="validation")
    axes.set(xlabel="step", ylabel="nats per byte", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    fig.savefig(path, dpi=120)
    plt.close(fig)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="tpu", help="tpu, cpu, ... (default: %(default)s)")
    p.add_argument("--out", type=Path, default=Path("out/gpt"), help="folder of all results (default: %(default)s)")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out, if there is one")
    p.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    p.add_argument("--seed", type=int, default=1)
    sizes = p.add_argument_group("model")
    for name, value in asdict(Config()).items():
        sizes.add_argument(f"--{name}", type=type(value), default=value, help="(default: %(default)s)")
    t = p.add_argument_group("training")
    t.add_argument("--batch", type=int, default=64, help="(default: %(default)s)")
    t.add_argument("--steps", type=int, default=5000, help="(default: %(default)s)")
    t.add_argument("--stop-at", type=int, help="stop here; the schedule still runs to --steps, for --resume to end")
    t.add_argument("--lr", type=float, default=1e-3, help="(default: %(default)s)")
    t.add_argument("--warmup", type=int, default=20, help="steps of linear warm-up (default: %(default)s)")
    t.add_argument("--weight-decay", type=float, default=0.1, help="(default: %(default)s)")
    t.add_argument("--text-bytes", type=int, default=8_000_000, help="bytes of text to train on (default: %(default)s)")
    t.add_argument("--log-every", type=int, default=10, help="steps between host reads (default: %(default)s)")
    t.add_argument("--eval-every", type=int, default=100, help="(default: %(default)s)")
    t.add_argument("--eval-batches", type=int, default=4, help="(default: %(default)s)")
    t.add_argument("--save-every", type=int, default=500, help="(default: %(default)s)")
    s = p.add_argument_group("sample")
    s.add_argument("--sample", type=int, default=300, help="bytes of text to write at the end (default: %(default)s)")
    s.add_argument("--temperature", type=float, default=0.8, help="(default: %(default)s)")
    s.add_argument("--top-k", type=int, default=40, help="(default: %(default)s)")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> list[float]:
    """Train, and return the training loss of every step."""
    args = parse_args(argv)
    console, device = Console(), torch.device(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    text = load_text(args.text_bytes)
    train, held_out = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]

    model = GPT(Config(**{name: getattr(args, name) for name in asdict(Config())})).to(device)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": args.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args))
    order = torch.Generator().manual_seed(args.seed)  # which windows come next: the position in the data

    step, losses, validation = 0, [], []
    path = args.out / "checkpoint.pt"
    if args.resume and path.exists():
        saved = torch.load(path, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        order.set_state(saved["order"])
        set_rng_state(saved["rng"], device)
        step, losses, validation = saved["step"], saved["losses"], saved["validation"]
        console.print(f"resumed at step {step}")

    parameters = sum(p.numel() for p in model.parameters())
    console.print(f"{parameters / 1e6:.2f} M parameters on {device}, {len(text) / 1e6:.1f} MB of text")
    end = min(args.stop_at or args.steps, args.steps)
    pending: list[Tensor] = []  # losses not yet read, so that the host does not wait for every step
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=end, completed=step)
        tokens, since = 0, time.perf_counter()
        while step < end:
            x, y = get_batch(train, args.batch, args.seq, order, device)
            loss = loss_of(model, x, y, args.bf16)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            pending.append(loss.detach())
            tokens += x.numel()
            if step % args.log_every == 0 or step == end:
                losses += torch.stack(pending).tolist()
                pending.clear()
                rate = tokens / (time.perf_counter() - since)
                tokens, since = 0, time.perf_counter()
                progress.update(task, completed=step, description=f"loss {losses[-1]:.3f}  {rate:,.0f} tokens/s")
                if step % args.eval_every == 0 or step == end:
                    validation.append((step, evaluate(model, held_out, args, device)))
                    numbers = f"loss {losses[-1]:.4f}   validation {validation[-1][1]:.4f}   {rate:,.0f} tokens/s"
                    console.print(f"step {step:5d}   {numbers}")
                    since = time.perf_counter()
            if step % args.save_every == 0 or step == end:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "order": order.get_state(),
                    "rng": rng_state(device),
                    "step": step,
                    "losses": losses + torch.stack(pending).tolist() if pending else losses,
                    "validation": validation,
                }
                save_checkpoint(path, checkpoint)

    plot(args.out / "loss.png", losses, validation, f"GPT, {parameters / 1e6:.2f} M parameters, {device}")
    if args.sample:
        prompt = held_out[: args.seq]
        written = sample(model, prompt, args.sample, args.temperature, args.top_k, device)
        (args.out / "sample.txt").write_bytes(bytes(prompt.tolist()) + written)
        console.rule("the end of a held-out file, and how the model goes on")
        console.print(bytes(prompt[-120:].tolist()).decode(errors="replace"), style="dim", end="", markup=False)
        console.print(written.decode(errors="replace"), markup=False, highlight=False)
        console.rule()
    console.print(f"checkpoint, loss.png and sample.txt are in {args.out}")
    return losses


if __name__ == "__main__":
    main()
