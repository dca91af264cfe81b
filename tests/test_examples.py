"""The examples train, and a resumed run goes on exactly."""

from pathlib import Path

import pytest
import train_gpt
import train_resnet

SIZES = "--layers 1 --heads 2 --width 32 --seq 32 --batch 8"
GPT = f"{SIZES} --log-every 2 --eval-every 50 --eval-batches 1 --text-bytes 300000"


def gpt(device: str, out: Path, *options: str) -> list[float]:
    """Train the small GPT and return its losses."""
    return train_gpt.main([*GPT.split(), "--device", device, "--out", str(out), *options])


@pytest.mark.parametrize("precision", [[], ["--bf16"]], ids=["float32", "bf16"])
def test_gpt_trains_as_on_the_cpu(device: str, tmp_path: Path, precision: list[str]) -> None:
    """The loss falls as it does on the CPU, and all results are written."""
    options = ["--steps", "30", "--sample", "8", "--lr", "1e-2", *precision]
    losses = gpt(device, tmp_path / "a", *options)
    expected = gpt("cpu", tmp_path / "b", *options)
    assert losses[-1] < losses[0] - 1.5
    assert losses == pytest.approx(expected, abs=0.1 if precision else 0.02)
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"checkpoint.pt", "loss.png", "sample.txt"}
    assert len((tmp_path / "a" / "sample.txt").read_bytes()) == 32 + 8


def test_gpt_resumes_exactly(device: str, tmp_path: Path) -> None:
    """A run stopped inside a logging interval and resumed has the losses of one that never stopped, to the bit."""
    options = ["--steps", "8", "--dropout", "0.1", "--sample", "0"]
    whole = gpt(device, tmp_path / "whole", *options)
    assert len(gpt(device, tmp_path / "parts", *options, "--stop-at", "3")) == 3
    assert gpt(device, tmp_path / "parts", *options, "--resume") == whole


def test_resnet_learns_the_digits(device: str) -> None:
    """More than 97 % of the test images are named rightly."""
    assert train_resnet.main(["--device", device, "--epochs", "8"]) > 0.97
