"""How a run ends where little has happened: while compiling, between epochs, after an error."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from line_bundle import bundle, host, options, rows

from nitro_runtime.checkpoints import TopKCheckpointer
from nitro_runtime.data import arrays
from nitro_runtime.engine import Engine
from nitro_runtime.interruptible import interruptible
from nitro_runtime.logging import JSONLogger
from nitro_runtime.signals import Interrupts


def lines(engine: Engine) -> list[dict[str, Any]]:
    log = Path(engine.run_dir) / "metrics.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_signal_while_programs_compile_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(bundle(), host(logger=JSONLogger()), options(tmp_path, quiet=False))
    compiling: list[str] = []

    def caught(self: Interrupts) -> int | None:
        return 2 if compiling else None

    def compile_slowly(name: str, entry: Any, poll: Any) -> Any:
        compiling.append(name)
        return interruptible(lambda: time.sleep(1), poll)

    seen = property(caught, lambda self, value: None)
    monkeypatch.setattr(Interrupts, "caught", seen, raising=False)
    monkeypatch.setattr(engine._run.machine, "_compiler", compile_slowly)
    engine.train()
    assert engine.stop_reason == "interrupted"
    assert engine.step == 0
    assert compiling == ["train_step"]
    assert lines(engine)[-1] == {"type": "finish", "status": "interrupted"}


def test_a_stop_between_epochs_is_not_inside_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Asks:
        """Asks the run to end as its second epoch begins."""

        inner = arrays(rows(16), 4)

        def __len__(self) -> int:
            return len(self.inner)

        def begin_epoch(self, epoch: int, seed: int) -> Any:
            if epoch == 2:
                engine.request_stop()
            return self.inner.begin_epoch(epoch, seed)

        def batch_at(self, i: int, plan: Any) -> Any:
            return self.inner.batch_at(i, plan)

    given = host(splits={"train": Asks(), "val": arrays(rows(6), 4)}, logger=JSONLogger())
    engine = Engine(bundle(), given, options(tmp_path, max_epochs=3, quiet=False))
    engine.train()
    assert engine.stop_reason == "requested"
    assert "before epoch 2" in capsys.readouterr().err
    assert not any(line.get("partial") for line in lines(engine))


def test_the_last_step_before_an_error_has_its_line(tmp_path: Path) -> None:
    class Breaks:
        inner = arrays(rows(32), 4)

        def __len__(self) -> int:
            return len(self.inner)

        def begin_epoch(self, epoch: int, seed: int) -> Any:
            return epoch

        def batch_at(self, i: int, plan: Any) -> Any:
            if plan > 0 and i == 5:
                raise OSError("the disk is gone")
            return self.inner.batch_at(i, None)

    given = host(splits={"train": Breaks()}, logger=JSONLogger())
    engine = Engine(bundle(), given, options(tmp_path, log_every=100))
    with pytest.raises(OSError, match="the disk is gone"):
        engine.train()
    steps = [line["step"] for line in lines(engine) if line.get("context") == "train"]
    assert steps == [1, engine.step]


def test_a_logger_whose_state_raises_is_said_once_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Forgets(JSONLogger):
        def logger_state(self) -> Any:
            raise RuntimeError("the backend is gone")

    engine = Engine(
        bundle(),
        host(logger=Forgets(), checkpointer=TopKCheckpointer()),
        options(tmp_path, max_epochs=2, quiet=False),
    )
    engine.train()
    assert engine.stop_reason == "completed"
    assert capsys.readouterr().err.count("the backend is gone") == 1
