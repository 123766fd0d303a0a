"""The examples with models from Flax, as a person types them: build, run, evaluate, predict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import own_imports, succeed
from sklearn.datasets import load_digits

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with own_imports():
        yield


def train_lines(run: str) -> list[dict[str, Any]]:
    lines = map(json.loads, Path("runs", run, "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["type"] == "metrics" and line["context"] == "train"]


def test_digits_cnn_reads_digits_it_has_not_seen() -> None:
    succeed("build", EXAMPLES / "digits_cnn" / "exp.py", "-o", "bundle")
    succeed("run", "bundle", "-q")
    chosen = ("--checkpoint", "runs/DigitsCNN")
    assert json.loads(succeed("evaluate", "bundle", *chosen, "--json").out)["accuracy"] > 0.97

    images, labels = load_digits(return_X_y=True)
    np.savez("x.npz", image=(images[:70] / 16).astype(np.float32))
    succeed("predict", "bundle", *chosen, "--input", "x.npz", "-o", "y.npz")
    outputs = np.load("y.npz")["outputs"]
    assert outputs.shape == (70, 10)
    assert np.mean(outputs.argmax(-1) == labels[:70]) > 0.97


def test_char_lm_learns_and_continues_a_text() -> None:
    succeed("build", EXAMPLES / "char_lm" / "exp.py", "-o", "bundle", "--preset", "small")
    succeed("run", "bundle", "-q", "--diagnostics", "attention/*", "--sample-every", "50")
    chosen = ("--checkpoint", "runs/CharLM")
    found = json.loads(succeed("evaluate", "bundle", *chosen, "--split", "val", "--json").out)
    assert found["val_loss"] < 3.5 < np.log(256)
    assert found["accuracy"] > 0.3
    np.testing.assert_allclose(found["bits_per_byte"], found["val_loss"] / np.log(2), rtol=1e-5)

    lines = train_lines("CharLM")
    assert {line["guard/bits_per_byte"] for line in lines} == {0}
    for line in lines:
        series = [(row["name"], row["meta"]["layer"]) for row in line["series"]]
        assert series.count(("guard/attention/scores", 1)) == 1
        assert series.count(("attention/entropy", 1)) == (line["step"] % 50 == 0)

    np.savez("x.npz", text=np.frombuffer(b"def f(self, x):\n", np.uint8)[None].astype(np.int32))
    succeed("predict", "bundle", *chosen, "--input", "x.npz", "-o", "y.npz")
    outputs = np.load("y.npz")["outputs"]
    assert outputs.shape == (1, 16, 256)
    assert outputs[0, -1].argmax() in b" \n", "an indented line follows"
