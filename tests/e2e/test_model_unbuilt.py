"""A bundle holds what `build_model` returned: running it asks again for the user's trees only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import command, own_imports, succeed, write

import nitroc as nt
from nitroc.errors import HookError

MODEL = """        return None, {"w": jnp.zeros((1, 1)), "b": jnp.zeros(1)}, {}
"""
ASKED = """        with open("asked", "a") as file:
            file.write("build_model ")
        return None, Pair(jnp.zeros((1, 1)), [jnp.zeros(1)]), {}

    def no_decay(self, path, leaf):
        with open("asked", "a") as file:
            file.write("no_decay ")
        return False

    def param_group(self, path, leaf):
        with open("asked", "a") as file:
            file.write("param_group ")
        return "default"
"""
CHANGES = (
    ("import numpy", "from typing import NamedTuple\nimport numpy"),
    ("ROWS = 16\n", "ROWS = 16\n\nclass Pair(NamedTuple):\n    w: object\n    rest: list\n"),
    (MODEL, ASKED),
    ('params["w"]', "params.w"),
    ('params["b"]', "params.rest[0]"),
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with the bundle `b` of an experiment that writes into `asked` what is called."""
    monkeypatch.chdir(tmp_path)
    with own_imports():
        succeed("build", write(tmp_path / "line.py", *CHANGES), "-o", "b", "-q")
        assert asked().split() == ["build_model", *["param_group"] * 2, *["no_decay"] * 2]
        yield tmp_path


def asked() -> str:
    """What was called since the last time this was asked."""
    file = Path("asked")
    text = file.read_text() if file.exists() else ""
    file.unlink(missing_ok=True)
    return text


def test_no_command_on_a_bundle_calls_build_model(place: Path) -> None:
    run = ("run", "b", "--run-dir", "r", "-q")
    succeed(*run, "--epochs", "1", "--seed", "3", "--set", "scale=0.5", "--set", "batch_size=4")
    succeed(*run, "--epochs", "2", "--resume", "auto")
    succeed("run", "b", "--run-dir", "warm", "--checkpoint", "r", "-q")
    succeed("evaluate", "b", "--checkpoint", "r", "-q")
    assert asked() == ""
    report = nt.open_bundle("b", run_dir="s", quiet=True).binding_report()
    assert "as built: build_model is called for its trees only" in report


def test_the_parameters_are_in_the_tree_that_build_model_returns(place: Path) -> None:
    handle = nt.open_bundle("b", run_dir="r", quiet=True)
    assert asked() == ""
    before = handle.parameters
    assert type(before).__name__ == "Pair"
    np.testing.assert_array_equal(before.w, np.zeros((1, 1)))
    assert handle.state == {}
    assert asked().split() == ["build_model"]
    handle.train()
    after = handle.parameters
    assert isinstance(after.rest, list)
    assert not np.array_equal(after.w, before.w)
    assert asked() == ""


def test_a_tree_that_is_another_now_is_refused_when_it_is_asked_for(place: Path) -> None:
    changed = ("[jnp.zeros(1)]", '[jnp.zeros(3 if __import__("os").path.exists("more") else 1)]')
    write(place / "line.py", *CHANGES, changed)
    succeed("build", "line.py", "-o", "b", "-q", "--force")
    (place / "more").touch()
    handle = nt.open_bundle("b", run_dir="r", quiet=True)
    with pytest.raises(HookError, match="other params than when the bundle was built") as refused:
        _ = handle.parameters
    assert refused.value.code == "E-HOOK-073"
    assert handle.train().stop_reason == "completed"


def test_a_changed_derived_graphconst_is_still_refused(place: Path) -> None:
    derive = (
        "    def build_model(",
        "    def derive(self, data):\n"
        '        return {"power": 2 if __import__("os").path.exists("more") else 1}\n\n'
        "    def build_model(",
    )
    write(place / "line.py", *CHANGES, derive)
    succeed("build", "line.py", "-o", "b", "-q", "--force")
    (place / "more").touch()
    result = command("run", "b", "--run-dir", "r", "-q")
    assert (result.status, "E-BUILD-086" in result.err) == (3, True)


def test_the_command_run_imports_no_compiler_and_no_drawing() -> None:
    absent = ("nitroc.building", "nitroc.lowering", "nitroc.emit", "rich", "jax.extend", "flax")
    code = f"import sys, nitroc.cli.run; print([n for n in {absent} if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", nt.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(nt, name) is not None
    assert name in dir(nt)
    assert not hasattr(nt, f"{name}_")
