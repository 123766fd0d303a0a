"""The demo as a person types it: build, run, evaluate, predict."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

EXPERIMENT = Path(__file__).parents[2] / "examples" / "digits" / "exp.py"


def nitroc(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from nitroc.cli import main; main()", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    nitroc("build", str(EXPERIMENT), "-o", "bundle", cwd=folder)
    nitroc("run", "bundle", "--epochs", "40", cwd=folder)
    return folder


def test_the_test_split_is_read_well(folder):
    text = nitroc("evaluate", "bundle", "--checkpoint", "runs/Digits", "--json", cwd=folder)
    metrics = json.loads(text)
    assert metrics["accuracy"] >= 0.96
    assert 0 < metrics["val_loss"] < 0.6


def test_predict_writes_logits_of_every_row(folder):
    images, labels = load_digits(return_X_y=True)
    np.savez(folder / "x.npz", image=(images[:70] / 16).astype(np.float32))
    arguments = ["--checkpoint", "runs/Digits", "--input", "x.npz", "-o", "y.npz"]
    nitroc("predict", "bundle", *arguments, cwd=folder)
    outputs = np.load(folder / "y.npz")["outputs"]
    assert outputs.shape == (70, 10)
    assert np.mean(outputs.argmax(-1) == labels[:70]) > 0.95


def test_verify_replays_the_recorded_forward(folder):
    lines = nitroc("verify", "bundle", "--run", cwd=folder)
    assert "forward.b32: compiles, agrees with its recording bit for bit" in lines
    assert lines.rstrip().endswith("good")
