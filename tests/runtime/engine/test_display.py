"""What a person sees, what the log keeps of a cut line, and memory that stays flat."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from line_bundle import bundle, host, options, rows

from nitro_runtime.data import NoPrefetch, arrays
from nitro_runtime.engine import Engine
from nitro_runtime.errors import UsageError
from nitro_runtime.history import History
from nitro_runtime.logging import JSONLogger
from nitro_runtime.options import parse_duration
from nitro_runtime.run_dir import read_lines


def test_piped_progress_is_one_line_per_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Engine(bundle(), host(), options(tmp_path, quiet=False)).train()
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert lines[0].startswith("4 programs ready in ")
    assert lines[0].endswith(": train_step, forward.b4, reduce.b4.r4, reduce.b4.r2")
    epochs = [line for line in lines if line.startswith("epoch")]
    assert [line.split("  ")[0] for line in epochs] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert "val_loss" in epochs[0]
    assert "\x1b" not in said.err


def test_quiet_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Engine(bundle(), host(), options(tmp_path)).train()
    said = capsys.readouterr()
    assert said.out == said.err == ""


def test_half_a_line_is_isolated(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"type":"params","run_id":"a"}\n{"type":"metr')
    logger = JSONLogger()
    logger.log_metrics({"loss": 1.0}, step=1, epoch=1, context="train", nonfinite=["mae"])
    logger.bind(tmp_path)
    logger.finish("completed")
    found = list(read_lines(log))
    assert [line["type"] for line in found] == ["params", "metrics", "finish"]
    assert found[1] == {
        "type": "metrics", "context": "train", "epoch": 1, "step": 1, "loss": 1.0, "mae": None,
        "nonfinite": ["mae"],
    }  # fmt: skip


def test_params_are_strict_json_whatever_they_hold(tmp_path: Path) -> None:
    logger = JSONLogger()
    logger.bind(tmp_path)
    logger.log_params({"a": float("inf"), "b": rows(2)["x"], "c": Path("x"), "d": [1, None]})
    logger.finish("completed")
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert first["a"] == "inf"
    assert first["b"] == "float32[2, 3]"
    assert first["d"] == [1, None]


def test_history_is_read_by_epoch_and_by_metric() -> None:
    history = History([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25, "val_loss": 1.0}])
    assert history.epoch(2)["loss"] == 0.25
    assert history["val_loss"] == [None, 1.0]
    assert repr(history).splitlines()[1].split() == ["1", "0.5", "-"]
    with pytest.raises(KeyError, match="there are epoch, loss"):
        history["x"]


@pytest.mark.parametrize(
    ("given", "seconds"), [("2h30m", 9000), ("45s", 45), ("90", 90), (1.5, 1.5), ("1m30", 90)]
)
def test_durations_are_read(given: Any, seconds: float) -> None:
    assert parse_duration(given) == seconds


@pytest.mark.parametrize("given", ["", "soon", "-1", 0, "3x", float("nan"), float("inf")])
def test_other_durations_are_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="expected seconds above 0"):
        parse_duration(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("seed", 2**63), ("max_epochs", -1), ("log_every", 0), ("max_steps", 0),
     ("max_epochs", True), ("on_nonfinite_metric", "stop")],
)  # fmt: skip
def test_an_option_out_of_range_states_the_range(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value!r}, expected"):
        options(tmp_path, **{name: value})


def test_max_time_ends_the_run(tmp_path: Path) -> None:
    engine = Engine(bundle(), host(), options(tmp_path, max_epochs=10**6, max_time=0.3)).train()
    assert engine.stop_reason == "max_time"
    assert engine.epoch < 10**6


def test_objects_stay_flat_over_many_steps(tmp_path: Path) -> None:
    counts: list[int] = []

    class Counts(JSONLogger):
        def log_metrics(self, *_: Any, step: int, **__: Any) -> None:
            if step % 1000 == 0:
                gc.collect()
                counts.append(len(gc.get_objects()))

    train = NoPrefetch(arrays(rows(16 * 1024), 4))
    given = host(splits={"train": train}, logger=Counts())
    Engine(bundle(), given, options(tmp_path, max_epochs=1)).train()
    assert len(counts) == 4
    assert max(counts[1:]) - min(counts[1:]) < 50
