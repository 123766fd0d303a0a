"""The README is true: its experiment builds, trains, and has the program it shows."""

import re
from pathlib import Path

import pytest

import nitroc as nt
from nitroc.cli.app import COMMANDS

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.S | re.M)


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    (block,) = [text for language, text in BLOCKS if language == "python"]
    assert len(block.splitlines()) <= 40
    path = tmp_path / "exp.py"
    path.write_text(block)
    monkeypatch.chdir(tmp_path)
    return str(path)


def test_the_program_shown_is_the_experiments(experiment):
    (shown,) = [text for _, text in BLOCKS if text.startswith("program")]
    text = nt.ir(experiment, after="commit", gradient_clip_norm=1.0)
    assert "".join(f"  {line}\n" for line in shown.splitlines()) in text


def test_its_commands_train(experiment, tmp_path):
    bundle = nt.build(experiment, tmp_path / "bundle", gradient_clip_norm=1.0)
    nitro = nt.run(bundle, max_epochs=20, quiet=True)
    assert nitro.stop_reason == "completed"
    metrics = nt.evaluate(bundle, checkpoint="runs/Tumour", split="val", quiet=True)
    assert metrics["accuracy"] >= 0.93


def test_every_command_of_the_readme_exists():
    named = set(re.findall(r"(?:^|`)nitroc ([a-z]+) ", README, re.M))
    assert named
    assert named <= set(COMMANDS)
