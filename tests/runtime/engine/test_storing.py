"""What is stored of a run when names, numbers, disks or limits are odd."""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from line_bundle import bundle, host, options

from nitro_runtime import run_dir, snapshot
from nitro_runtime.checkpoints import TopKCheckpointer, read_manifest
from nitro_runtime.engine import Engine
from nitro_runtime.errors import CheckpointError, UsageError
from nitro_runtime.host import NoHost
from nitro_runtime.logging import JSONLogger
from nitro_runtime.snapshot import Snapshot, checkpoint_info


@pytest.mark.parametrize("text", ["null", "{}", "[1]", '[{"file": "a"}]'])
def test_a_list_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoints.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"E-CKPT-002: checkpoints\.json is no list"):
        read_manifest(tmp_path)


def test_one_name_for_all_checkpoints_makes_one_directory_each(tmp_path: Path) -> None:
    class Named(NoHost):
        def checkpoint_filename(self, **_: Any) -> str:
            return "model"

    given = host(checkpointer=TopKCheckpointer(k=9))
    made = Engine(bundle(), Named(**vars(given)), options(tmp_path, max_epochs=5)).train()
    rows_ = read_manifest(made.run_dir)
    assert len({row["file"] for row in rows_}) == 5
    for row in rows_:
        assert checkpoint_info(Path(made.run_dir, row["file"])).epoch == row["epoch"]


def test_numbers_that_are_not_finite_are_stored_and_come_back(tmp_path: Path) -> None:
    class Best:
        best = float("inf")

        def should_stop(self, epoch: int, metrics: Any) -> bool:
            return False

        def state_dict(self) -> dict[str, Any]:
            return {"best": self.best, "seen": [float("nan")]}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            assert math.isnan(state["seen"][0])
            self.best = -state["best"]

    class Recorded(NoHost):
        def record(self) -> dict[str, Any]:
            return {"fields": {"bound": float("nan")}, "derived": {"top": [float("inf")]}}

    def train(stop: Best, **more: Any) -> Engine:
        given = host(checkpointer=TopKCheckpointer(), early_stop=stop)
        return Engine(bundle(), Recorded(**vars(given)), options(tmp_path, **more)).train()

    newest = read_manifest(train(Best()).run_dir)[-1]["file"]
    meta = json.loads((tmp_path / "run" / newest / "meta.json").read_text())
    assert meta["fields"]["bound"] == {"repr": "nan"}
    again = Best()
    resumed = train(again, resume="latest", max_epochs=4)
    assert again.best == -float("inf")
    assert not [note for note in resumed.notes if "top" in note]


def test_a_memory_that_is_no_json_is_refused_before_step_1(tmp_path: Path) -> None:
    class Odd:
        def should_stop(self, epoch: int, metrics: Any) -> bool:
            return False

        def state_dict(self) -> Any:
            return {"best": object()}

    made = Engine(
        bundle(), host(checkpointer=TopKCheckpointer(), early_stop=Odd()), options(tmp_path)
    )
    with pytest.raises(UsageError, match=r"E-USAGE-067: state_dict\(\) of Odd"):
        made.train()
    assert made.step == 0


def test_a_last_checkpoint_that_is_not_written_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = snapshot.write_directory

    def full(directory: Path, record: Snapshot) -> None:
        if record.meta["epoch"] == 3:
            raise OSError(errno.ENOSPC, "no space")
        write(directory, record)

    monkeypatch.setattr(snapshot, "write_directory", full)
    given = host(checkpointer=TopKCheckpointer(), logger=JSONLogger())
    made = Engine(bundle(), given, options(tmp_path))
    with pytest.raises(CheckpointError, match="E-CKPT-007") as caught:
        made.train()
    assert (caught.value.exit, made.stop_reason) == (1, "error")
    status = json.loads(Path(made.run_dir, "status.json").read_text())
    assert (status["state"], status["error"][:19]) == ("failed", "failed: E-CKPT-007:")
    assert not [t for t in threading.enumerate() if t.name.startswith("nitro-checkpoint")]


def test_a_status_that_is_not_written_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = run_dir.replace_file

    def full(path: Path, content: bytes, *, sync: bool = True) -> None:
        if path.name == "status.json":
            raise OSError(errno.ENOSPC, "no space")
        write(path, content, sync=sync)

    monkeypatch.setattr(run_dir, "replace_file", full)
    made = Engine(bundle(), host(), options(tmp_path, quiet=False)).train()
    assert made.stop_reason == "completed"
    assert capsys.readouterr().err.count("status.json can't be written") == 1


def test_a_lock_whose_process_number_another_one_has_is_taken_over(tmp_path: Path) -> None:
    lock = tmp_path / "run" / "run.lock"
    lock.parent.mkdir()
    row = {"pid": os.getpid(), "host": socket.gethostname(), "began": "before the restart 1"}
    lock.write_text(json.dumps(row))
    assert Engine(bundle(), host(), options(tmp_path)).train().stop_reason == "completed"


@pytest.mark.parametrize("more", [{"max_epochs": 9}, {"max_steps": 6}])
def test_a_limit_that_did_not_end_the_run_may_grow(tmp_path: Path, more: dict[str, int]) -> None:
    given = {"max_steps": 6, "max_epochs": 4}
    Engine(bundle(), host(checkpointer=TopKCheckpointer()), options(tmp_path, **given)).train()
    again = {**given, **more, "resume": "latest"}
    made = Engine(bundle(), host(checkpointer=TopKCheckpointer()), options(tmp_path, **again))
    assert made.train().step == 4
    assert "nothing to train: the run ended as max_steps" in made.notes[-1]


def test_what_a_fork_loses_is_counted_from_where_it_forked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Engine(bundle(), host(checkpointer=TopKCheckpointer()), options(tmp_path)).train()
    changes: dict[str, Any] = {"resume": "best", "max_epochs": 5, "max_steps": 14}
    given = host(checkpointer=TopKCheckpointer())
    Engine(bundle(), given, options(tmp_path, quiet=False, **changes)).train()
    said = capsys.readouterr().err
    assert "the last checkpoint is epoch-0003" in said
    assert "2 steps are not in it" in said
