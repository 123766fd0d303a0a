"""Bundles that `nt.build` wrote: damage, reproducibility, running them again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole import bits

import nitroc as nt
from nitro_runtime.errors import BundleError

SOURCE = '''
import numpy as np
import nitroc as nt
from shapes import ROWS


class Line(nt.Experiment):
    """A line through eight points."""

    learning_rate: float = 0.1
    shift: nt.Device[float] = 0.5

    def build_data(self):
        x = np.linspace(-1, 1, 8, dtype=np.float32)
        return {"train": nt.data.arrays({"x": x, "y": 2 * x}, ROWS)}

    def build_model(self, key):
        return None, {"w": np.float32(0)}, {}

    def forward(self, model, params, state, *, x):
        return x * params["w"] + self.shift, state

    def loss(self, outputs, *, y):
        return ((outputs - y) ** 2).mean()

    def optimizer(self, group):
        return nt.rules.SGD
'''


def project(root: Path) -> Path:
    """`exp.py` and a module beside it, in a folder of its own."""
    root.mkdir(parents=True)
    (root / "shapes.py").write_text("ROWS = 4\n")
    (root / "exp.py").write_text(SOURCE)
    return root / "exp.py"


def command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from nitroc.cli import main; main()", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    return nt.build(str(project(root / "project")), root / "bundle")


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_F05_one_flipped_byte_of_any_file_is_refused(bundle: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, content in files(bundle).items():
        broken = tmp_path / "broken"
        shutil.copytree(bundle, broken)
        place = int(rng.integers(len(content)))
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        (broken / name).write_bytes(changed)
        with pytest.raises(BundleError) as caught:
            nt.open_bundle(broken)
        assert caught.value.code.startswith("E-BUNDLE-0"), (name, place)
        shutil.rmtree(broken)


def test_F05_a_changed_host_is_never_imported(bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    with (broken / "host" / "exp.py").open("a") as file:
        file.write(f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    done = command("run", str(broken), cwd=tmp_path)
    assert done.returncode == 3
    assert "E-BUNDLE-006" in done.stderr
    assert "host/exp.py" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_F06_two_folders_two_users_one_bundle(tmp_path: Path) -> None:
    made: list[dict[str, bytes]] = []
    for user, seed in (("lovelace", "1"), ("hopper", "2")):
        home = tmp_path / f"home of {user}"
        source = project(home / "work")
        done = command(
            "build", str(source), "-o", str(home / "out"), cwd=home,
            HOME=str(home), USER=user, LOGNAME=user, HOSTNAME=f"{user}s-machine",
            PYTHONHASHSEED=seed, TZ="UTC" if seed == "1" else "Asia/Tokyo",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        made.append(files(home / "out"))
    assert made[0].keys() == made[1].keys()
    assert [name for name in made[0] if made[0][name] != made[1][name]] == []
    folders = [str(tmp_path), str(Path(__file__).parents[2])]
    for name, content in made[0].items():
        for secret in (*folders, "lovelace", "hopper", os.uname().nodename):
            assert secret.encode() not in content, (name, secret)


def test_a_bundle_and_a_handle_train_to_the_same_bits(bundle: Path, tmp_path: Path) -> None:
    opened = nt.open_bundle(bundle, quiet=True, max_epochs=3, run_dir=str(tmp_path / "opened"))
    opened.train()
    done = command(
        "run", str(bundle), "--epochs", "3", "--run-dir", str(tmp_path / "run"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (a,), (b,) = (nt.read_manifest(tmp_path / n)[-1:] for n in ("opened", "run"))
    assert a["file"] == b["file"]
    warm = nt.open_bundle(bundle, quiet=True, checkpoint=str(tmp_path / "run"))
    assert bits(warm.parameters) == bits(opened.parameters)

    def lines(name: str) -> list[Any]:
        text = (tmp_path / name / "metrics.jsonl").read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        return [r for r in rows if r.get("context") in ("train", "validate")]

    assert lines("opened") == lines("run")
    assert len(lines("run")) == 6
