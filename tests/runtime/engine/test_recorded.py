"""A bundle trains and predicts where neither the compiler nor the experiment's Python is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from line_bundle import files, options, rows

from nitro_runtime.bundle import Bundle
from nitro_runtime.data import arrays
from nitro_runtime.engine import Engine
from nitro_runtime.manifest import ScheduleEntry
from nitro_runtime.recorded import CONSTANT, recorded_host

SCHEDULES = {
    "learning_rate": ScheduleEntry("schedules", 3, (0.05, 0.04, 0.03)),
    "shift": ScheduleEntry(CONSTANT, None, (0.0,)),
}

ALONE = """
import sys
from pathlib import Path

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("nitroc", "nitro_dialect", "lark"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())

import numpy as np
from nitro_runtime.bundle import Bundle
from nitro_runtime.data import arrays
from nitro_runtime.engine import Engine
from nitro_runtime.options import RunOptions
from nitro_runtime.recorded import recorded_host

bundle, data, run_dir = Bundle.open(sys.argv[1]), dict(np.load(sys.argv[2])), sys.argv[3]
splits = {"train": arrays(data, 4), "val": arrays(data, 4)}
made = Engine(bundle, recorded_host(bundle, splits), RunOptions(run_dir=run_dir, max_epochs=2))
np.save(sys.argv[4], made.train().predict({"x": data["x"]})["pred"])
"""


def written(path: Path) -> Path:
    for name, content in files(schedules=SCHEDULES).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def host(bundle: Bundle, data: dict[str, np.ndarray]) -> Any:
    return recorded_host(bundle, {"train": arrays(data, 4), "val": arrays(data, 4)})


def test_the_runtime_alone_trains_as_it_does_here(tmp_path: Path) -> None:
    place, data = written(tmp_path / "bundle"), rows(8)
    np.savez(tmp_path / "data.npz", **data)
    parts = [place, tmp_path / "data.npz", tmp_path / "alone", tmp_path / "alone.npy"]
    command = [sys.executable, "-c", ALONE, *map(str, parts)]
    subprocess.run(command, check=True, capture_output=True)
    bundle = Bundle.open(place)
    made = Engine(bundle, host(bundle, data), options(tmp_path, max_epochs=2)).train()
    found = np.load(tmp_path / "alone.npy")
    assert found.tobytes() == made.predict({"x": data["x"]})["pred"].tobytes()


def test_a_recorded_curve_holds_its_last_value_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Bundle.open(written(tmp_path / "bundle"))
    made = Engine(bundle, host(bundle, rows(8)), options(tmp_path, max_epochs=2, quiet=False))
    made.train()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    found = [row for row in map(json.loads, lines) if row.get("context") == "train"]
    assert [row["learning_rate"] for row in found] == [0.05, 0.04, 0.03, 0.03]
    assert "step 4 is past its horizon of 3 steps" in capsys.readouterr().err
