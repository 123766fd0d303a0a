"""Ctrl-C, SIGTERM and kill: what is on disk stays good, and what is lost is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from line_bundle import bundle, host, options, rows

from nitro_runtime.checkpoints import TopKCheckpointer, read_manifest
from nitro_runtime.data import arrays
from nitro_runtime.engine import Engine
from nitro_runtime.logging import JSONLogger
from nitro_runtime.signals import Interrupts
from nitro_runtime.snapshot import read_directory

TESTS = Path(__file__).parents[2]


class Slow:
    """Batches that take their time; batch `stuck_at` of the pass `stuck_pass` takes for ever."""

    def __init__(self, count: int, seconds: float, stuck: bool = False) -> None:
        self._inner = arrays(rows(count * 4), 4)
        self._seconds = seconds
        self._stuck = stuck
        self._passes = 0

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Any]:
        self._passes += 1
        for i, batch in enumerate(self._inner):
            time.sleep(3600 if self._stuck and self._passes > 1 and i == 2 else self._seconds)
            yield batch


def slow_run(path: Path, epochs: int, seconds: float, stuck: bool, resume: str | bool) -> Engine:
    given = host(
        splits={"train": Slow(8, seconds, stuck), "val": arrays(rows(6), 4)},
        checkpointer=TopKCheckpointer(),
        logger=JSONLogger(),
    )
    return Engine(bundle(), given, options(path, max_epochs=epochs, quiet=False, resume=resume))


PROGRAM = """
import sys
from pathlib import Path
from test_interrupts import slow_run
engine = slow_run(Path(sys.argv[1]), 1000, float(sys.argv[2]), sys.argv[3] == "stuck", "auto")
try:
    engine.train()
except KeyboardInterrupt:
    print("second")
    raise
print(engine.stop_reason, engine.step)
"""


def start(path: Path, *, seconds: float = 0.01, stuck: bool = False) -> subprocess.Popen[str]:
    where = [str(TESTS), str(TESTS / "runtime" / "engine")]
    command = [sys.executable, "-c", PROGRAM, str(path), str(seconds), "stuck" if stuck else "-"]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(where)},
    )


def wait_for_step(path: Path, step: int) -> None:
    log = path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if log.exists() and f'"step":{step},' in log.read_text():
            return
        time.sleep(0.02)
    pytest.fail(f"no step {step}")


def finish_line(path: Path) -> Any:
    return json.loads((path / "run" / "metrics.jsonl").read_text().splitlines()[-1])


def test_ctrl_c_ends_the_step_and_says_what_is_lost(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_step(tmp_path, 12)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    reason, step = out.split()
    assert reason == "interrupted"
    (newest,) = [max(read_manifest(tmp_path / "run"), key=lambda row: row["step"])]
    lost = int(step) - newest["step"]
    if lost:
        assert f"the last checkpoint is {newest['file']}, {lost} steps are not in it" in err
    assert newest["stop_reason"] == "interrupted"
    assert finish_line(tmp_path)["status"] == "interrupted"
    assert not (tmp_path / "run" / "run.lock").exists()
    again = slow_run(tmp_path, newest["epoch"] + 1, 0, False, "latest").train()
    assert again.step == newest["step"] + 8


def test_sigterm_ends_with_its_exit_status(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_step(tmp_path, 2)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "there is no checkpoint yet" in err
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["stop_reason"]) == ("done", "interrupted")


def test_sigterm_stays_what_ended_the_run_and_only_a_second_ctrl_c_is_at_once() -> None:
    with Interrupts() as interrupts:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert interrupts.terminated
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_batch_that_never_comes_does_not_hold_ctrl_c(tmp_path: Path) -> None:
    process = start(tmp_path, stuck=True)
    wait_for_step(tmp_path, 8)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.split()[0] == "interrupted"


def test_a_second_ctrl_c_ends_at_once_with_files_intact(tmp_path: Path) -> None:
    process = start(tmp_path, seconds=0.5)
    wait_for_step(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    for row in read_manifest(tmp_path / "run"):
        read_directory(tmp_path / "run" / row["file"])
    assert finish_line(tmp_path)["status"] == "interrupted"


def test_F01_a_kill_at_any_moment_leaves_a_run_that_resumes(tmp_path: Path) -> None:
    for attempt in range(4):
        process = start(tmp_path, seconds=0.0)
        wait_for_step(tmp_path, 8 * (attempt + 1))
        time.sleep(0.013 * attempt)
        process.kill()
        process.communicate(timeout=60)
    rows_left = read_manifest(tmp_path / "run")
    for row in rows_left:
        read_directory(tmp_path / "run" / row["file"])
    newest = max((row["step"] for row in rows_left), default=0)
    again = slow_run(tmp_path, newest // 8 + 2, 0, False, "auto").train()
    assert again.stop_reason == "completed"
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    for line in text.splitlines():
        assert line.startswith("{")
