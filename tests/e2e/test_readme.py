"""The README is true: its experiment builds, trains, and has the program it shows."""

import re
from pathlib import Path

import pytest
from blocks import blocks, run
from command_line import own_imports

import nitroc as nt
from nitroc.cli.app import COMMANDS

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = blocks(README)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with own_imports():
        yield tmp_path


def test_the_program_shown_is_the_experiments(place):
    (experiment,) = [block for block in BLOCKS if block.title]
    assert len(experiment.text.splitlines()) <= 40
    assert not list(run([experiment], place, "page.py"))
    (shown,) = [block.text for block in BLOCKS if block.text.startswith("program")]
    text = nt.ir(experiment.title, after="commit", gradient_clip_norm=1.0)
    assert "".join(f"  {line}\n" for line in shown.splitlines()) in text


def test_its_blocks_train(place):
    *_, evaluated, in_python = run(BLOCKS, place, "page.py")
    assert float(re.search(r"accuracy (\S+)", evaluated.printed)[1]) >= 0.93
    assert "nitro.set_device(dropout=0.2)" in in_python.block.text


def test_every_command_of_the_readme_exists():
    named = set(re.findall(r"(?:^|`|\$ )nitroc ([a-z]+) ", README, re.M))
    assert named
    assert named <= set(COMMANDS)


def test_every_example_is_named_and_runs_as_its_own_readme_says():
    examples = Path(__file__).parents[2] / "examples"
    folders = {path.name for path in examples.iterdir() if (path / "exp.py").is_file()}
    assert set(re.findall(r"`examples/(\w+)`", README)) == folders
    for name in folders:
        text = (examples / name / "README.md").read_text()
        assert f"nitroc build examples/{name}/exp.py -o bundle/" in text
        assert set(re.findall(r"^nitroc ([a-z]+) ", text, re.M)) <= set(COMMANDS)
