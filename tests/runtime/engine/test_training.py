"""Training: the loop, its lines, its ends, against a hand-written loop in numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from line_bundle import Line, bundle, host, options, rows

from nitro_runtime.checkpoints import TopKCheckpointer
from nitro_runtime.data import arrays
from nitro_runtime.engine import Engine
from nitro_runtime.errors import DataError, GuardError, UsageError
from nitro_runtime.logging import JSONLogger


def lines(path: Path) -> list[dict[str, Any]]:
    text = (path / "run" / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def train_lines(path: Path) -> list[dict[str, Any]]:
    return [line for line in lines(path) if line.get("context") == "train"]


def logged(**changes: Any) -> Any:
    return host(logger=JSONLogger(), checkpointer=TopKCheckpointer(), **changes)


def test_a_run_is_the_same_steps_as_numpy(tmp_path: Path) -> None:
    plain = host(splits={"train": arrays(rows(16), 4)})
    engine = Engine(bundle(), plain, options(tmp_path, max_epochs=2)).train()
    data = rows(16)
    p, mu = np.array([0.1, -0.2, 0.3, 0.5]), np.zeros(4)
    losses = []
    for step in range(1, 9):
        at = slice((step - 1) % 4 * 4, (step - 1) % 4 * 4 + 4)
        x, y, m = (data[name][at].astype(np.float64) for name in "xym")
        error = x @ p[:3] + p[3] + (step + 42) % 7 * 1e-3 - y
        g = 2 * np.append(x.T @ (m * error), (m * error).sum()) / m.sum()
        losses.append((m * error**2).sum() / m.sum())
        mu = 0.9 * mu + g
        p = p - 0.05 * mu
    assert engine.step == engine.t == 8
    assert engine.epoch == 2
    assert engine.stop_reason == "completed"
    np.testing.assert_allclose(engine.parameters["w"], p[:3], rtol=1e-5)
    np.testing.assert_allclose(engine.parameters["b"], p[3], rtol=1e-5)
    np.testing.assert_allclose(
        engine.history["loss"], np.reshape(losses, (2, 4)).mean(1), rtol=1e-5
    )


def test_lines_begin_with_params_and_end_with_finish(tmp_path: Path) -> None:
    engine = Engine(bundle(), logged(), options(tmp_path, tags=("a",))).train()
    found = lines(tmp_path)
    assert found[0]["type"] == "params"
    assert found[0]["run_id"] == engine.run_id
    assert found[1] == {"type": "tags", "tags": ["a"]}
    assert found[-1] == {"type": "finish", "status": "completed"}
    first = train_lines(tmp_path)[0]
    assert list(first) == [
        "type",
        "context",
        "epoch",
        "step",
        "loss",
        "mae",
        "learning_rate",
        "grad_norm",
    ]
    validate = [line for line in found if line.get("context") == "validate"]
    assert [line["epoch"] for line in validate] == [1, 2, 3]
    assert list(validate[0])[4:] == ["val_loss", "worst"]


def test_equal_runs_give_equal_train_and_validate_lines(tmp_path: Path) -> None:
    for name in "ab":
        Engine(bundle(), logged(), options(tmp_path / name)).train()
    a, b = ([x for x in lines(tmp_path / n) if x["type"] == "metrics"] for n in "ab")
    assert [x for x in a if x["context"] != "data"] == [x for x in b if x["context"] != "data"]


@pytest.mark.parametrize("accum", [1, 2, 4])
def test_A02_a_constant_loss_is_on_every_line(tmp_path: Path, accum: int) -> None:
    data = {**rows(32), "y": np.full(32, 4, np.float32), "m": np.ones(32, np.float32)}
    given = logged(splits={"train": arrays(data, 4)})
    Engine(bundle(Line(accum=accum, loss="batch")), given, options(tmp_path, max_epochs=1)).train()
    found = train_lines(tmp_path)
    assert [line["loss"] for line in found] == [4.0] * (8 // accum)
    assert [line["step"] for line in found] == list(range(1, 8 // accum + 1))


@pytest.mark.parametrize("accum", [1, 2, 3])
def test_A16_lines_are_means_of_their_micro_batches(tmp_path: Path, accum: int) -> None:
    squares = np.repeat(np.arange(1, 7, dtype=np.float32) ** 2, 4)
    data = {**rows(24), "y": squares, "m": np.ones(24, np.float32)}
    given = logged(splits={"train": arrays(data, 4)})
    line = Line(accum=accum, loss="batch")
    engine = Engine(bundle(line), given, options(tmp_path, max_epochs=1)).train()
    want = np.arange(1, 7).reshape(-1, accum).astype(float) ** 2
    assert [x["loss"] for x in train_lines(tmp_path)] == pytest.approx(list(want.mean(1)))
    assert engine.history[-1]["loss"] == pytest.approx(91 / 6)


def test_log_every_keeps_first_multiples_and_last(tmp_path: Path) -> None:
    Engine(bundle(), logged(), options(tmp_path, log_every=5)).train()
    assert [line["step"] for line in train_lines(tmp_path)] == [1, 5, 10, 12]


def test_a_step_that_is_not_finite_stops_and_changes_nothing(tmp_path: Path) -> None:
    data = rows(24)
    data["x"][9] = np.nan
    given = logged(splits={"train": arrays(data, 4)})
    engine = Engine(bundle(), given, options(tmp_path, max_epochs=1))
    with pytest.raises(GuardError, match="the loss was nan at step 3") as caught:
        engine.train()
    error = caught.value
    assert (error.code, error.step, error.epoch, error.name) == ("E-GUARD-002", 3, 1, "the loss")
    assert "first parameter whose gradient was not finite: w" in str(error)
    kept = tmp_path / "run" / "replay" / "step-3"
    assert f"nothing of step 3 was committed; replay: {kept}; no checkpoint yet" in str(error)
    assert engine.stop_reason == "diverged"
    assert engine.step == engine.t == 2
    before = Engine(bundle(), given, options(tmp_path / "b", max_epochs=1, max_steps=2)).train()
    np.testing.assert_array_equal(engine.parameters["w"], before.parameters["w"])
    assert engine.state["mean"] == before.state["mean"]
    found = lines(tmp_path)
    assert [x["step"] for x in found if x.get("context") == "train"] == [1, 2, 3]
    assert found[-1]["status"] == "diverged"
    assert found[-1]["error"].startswith("failed: E-GUARD-002: the loss was nan")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["stop_reason"], status["step"]) == ("failed", "diverged", 2)
    assert not list((tmp_path / "run").glob("epoch-*"))


def test_a_gradient_that_is_not_finite_names_its_parameter(tmp_path: Path) -> None:
    data = rows(8)
    data["x"][5] = [1e30, 1.0, 1.0]
    data["y"][5] = 1e30 * 0.1
    data["m"][5] = 1e-30
    given = host(splits={"train": arrays(data, 4)})
    with pytest.raises(GuardError, match="at step 2") as caught:
        Engine(bundle(), given, options(tmp_path, max_epochs=1)).train()
    assert "w" in caught.value.name or "w" in str(caught.value)


def test_A17_a_step_without_weight_is_named(tmp_path: Path) -> None:
    data = rows(8)
    data["m"][4:] = 0
    for guard in (True, False):
        given = host(splits={"train": arrays(data, 4)})
        with pytest.raises(DataError, match="weights of step 2 add up to 0") as caught:
            Engine(bundle(Line(guard=guard)), given, options(tmp_path / str(guard))).train()
        assert (caught.value.code, caught.value.exit) == ("E-DATA-060", 1)


def test_F02_without_the_guard_lines_say_non_finite(tmp_path: Path) -> None:
    data = rows(12)
    data["x"][5] = np.inf
    given = logged(splits={"train": arrays(data, 4)})
    engine = Engine(bundle(Line(guard=False)), given, options(tmp_path, max_epochs=1)).train()
    first, second, third = train_lines(tmp_path)
    assert "nonfinite" not in first
    assert second["loss"] is None
    assert second["nonfinite"] == ["loss", "mae"]
    assert third["nonfinite"] == ["loss", "mae"]
    assert engine.stop_reason == "completed"
    assert np.isnan(engine.history[-1]["loss"]) or np.isinf(engine.history[-1]["loss"])


def test_F02_other_loggers_get_the_finite_values_and_the_names(tmp_path: Path) -> None:
    class Seen:
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def log_params(self, params: Any, **_: Any) -> None: ...
        def log_other(self, key: str, value: Any, **_: Any) -> None: ...
        def finish(self, status: str, **_: Any) -> None:
            self.calls.append(status)

        def log_metrics(self, metrics: Any, *, nonfinite: Any, **_: Any) -> None:
            self.calls.append((sorted(metrics), nonfinite))

    data = rows(4)
    data["x"][0] = np.nan
    seen = Seen()
    given = host(splits={"train": arrays(data, 4)}, logger=[seen, None])
    Engine(bundle(Line(guard=False)), given, options(tmp_path, max_epochs=1)).train()
    assert seen.calls == [(["learning_rate"], ["loss", "mae"]), "completed"]


def test_a_failing_logger_is_reported_once_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(JSONLogger):
        def log_metrics(self, *_: Any, **__: Any) -> None:
            raise OSError("no route to host")

    given = host(logger=Broken())
    engine = Engine(bundle(), given, options(tmp_path, quiet=False)).train()
    assert engine.stop_reason == "completed"
    said = [x for x in capsys.readouterr().err.splitlines() if "no route" in x]
    assert len(said) == 1


def test_max_steps_stops_inside_an_epoch(tmp_path: Path) -> None:
    engine = Engine(bundle(), logged(), options(tmp_path, max_steps=6)).train()
    assert (engine.stop_reason, engine.step, engine.epoch) == ("max_steps", 6, 2)
    last = [line for line in lines(tmp_path) if line.get("context") == "validate"][-1]
    assert last["partial"] is True
    assert len(engine.history) == 1


def test_a_request_stops_after_the_step_and_a_second_train_goes_on(tmp_path: Path) -> None:
    class Asks(JSONLogger):
        def log_metrics(self, *args: Any, **keywords: Any) -> None:
            super().log_metrics(*args, **keywords)
            if keywords["step"] == 5:
                engine.request_stop()

    engine = Engine(bundle(), host(logger=Asks()), options(tmp_path))
    engine.train()
    assert engine.stop_reason == "requested"
    assert 5 <= engine.step <= 7
    whole = Engine(bundle(), host(), options(tmp_path / "whole")).train()
    engine.train()
    assert engine.stop_reason == "completed"
    np.testing.assert_array_equal(engine.parameters["w"], whole.parameters["w"])
    assert engine.history.rows == whole.history.rows


def test_zero_epochs_validate_and_train_no_step(tmp_path: Path) -> None:
    engine = Engine(bundle(), logged(), options(tmp_path, max_epochs=0)).train()
    assert engine.step == 0
    assert [x.get("context") for x in lines(tmp_path)] == [None, "validate", None]


def test_E12_without_data_predict_works_and_train_is_refused(tmp_path: Path) -> None:
    engine = Engine(bundle(), host(splits={}), options(tmp_path))
    assert engine.predict({"x": rows(3)["x"]})["pred"].shape == (3,)
    with pytest.raises(UsageError, match="no train split"):
        engine.train()
    assert not (tmp_path / "run").exists()


def test_accum_that_does_not_divide_names_the_legal_counts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="5 batches, not a multiple of accum 2") as caught:
        Engine(bundle(Line(accum=2)), host(train=20), options(tmp_path))
    assert "4 or 6" in str(caught.value)


def test_a_short_train_batch_names_both_sizes(tmp_path: Path) -> None:
    given = host(splits={"train": arrays(rows(10), 4)})
    with pytest.raises(DataError, match="2 rows, the train program takes 4"):
        Engine(bundle(), given, options(tmp_path)).train()


def test_after_a_failing_step_scheduled_values_are_the_committed_ones(tmp_path: Path) -> None:
    data = rows(24)
    data["x"][9] = np.nan
    given = host(
        splits={"train": arrays(data, 4)},
        schedules={"shift": lambda total: lambda step: step / 10},
    )
    engine = Engine(bundle(), given, options(tmp_path, max_epochs=1))
    with pytest.raises(GuardError, match="step 3"):
        engine.train()
    assert engine.device_value("shift") == 0.2


def test_a_report_is_read_one_dispatch_late_and_two_are_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nitro_runtime.training import TrainProgram

    events: list[tuple[str, int]] = []
    dispatch, settle = TrainProgram.dispatch, TrainProgram.settle

    def noted_dispatch(self: Any, step: int, epoch: int, fields: Any) -> Any:
        events.append(("dispatch", step))
        return dispatch(self, step, epoch, fields)

    def noted_settle(self: Any, flight: Any) -> Any:
        events.append(("read", flight.step))
        return settle(self, flight)

    monkeypatch.setattr(TrainProgram, "dispatch", noted_dispatch)
    monkeypatch.setattr(TrainProgram, "settle", noted_settle)
    Engine(bundle(), host(), options(tmp_path, max_epochs=1)).train()
    assert events == [
        ("dispatch", 1), ("dispatch", 2), ("read", 1), ("dispatch", 3), ("read", 2),
        ("dispatch", 4), ("read", 3), ("read", 4),
    ]  # fmt: skip
