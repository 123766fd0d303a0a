"""Schedules: what they are taken for, when they are asked, what they may give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from line_bundle import bundle, host, options

from nitro_runtime import cache
from nitro_runtime.engine import Engine
from nitro_runtime.errors import ScheduleError, UsageError
from nitro_runtime.logging import JSONLogger
from nitro_runtime.schedules import resolve, schedule


def rates(path: Path) -> list[float]:
    text = (path / "run" / "metrics.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    return [line["learning_rate"] for line in found if line.get("context") == "train"]


def trained(path: Path, curve: Any, **changes: Any) -> Engine:
    given = host(schedules={"learning_rate": curve}, logger=JSONLogger())
    return Engine(bundle(), given, options(path, **changes)).train()


class Recorded:
    """A factory that notes what it was called with and what its schedule was asked."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.steps: list[int] = []

    def __call__(self, total: int) -> Any:
        self.totals.append(total)

        def ask(step: int) -> float:
            self.steps.append(step)
            return 0.01

        return ask


@pytest.mark.parametrize(("epochs", "limit", "total"), [(10, None, 40), (10, 7, 7), (1, 40, 4)])
def test_C01_a_factory_is_called_once_with_the_horizon(
    tmp_path: Path, epochs: int, limit: int | None, total: int
) -> None:
    curve = Recorded()
    trained(tmp_path, curve, max_epochs=epochs, max_steps=limit)
    assert curve.totals == [total]
    assert curve.steps == list(range(1, total + 1))


@pytest.mark.parametrize("total", [100, 3])
def test_schedule_total_pins_the_horizon_and_the_last_value_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], total: int
) -> None:
    curve = Recorded()
    trained(tmp_path, curve, max_epochs=2, schedule_total=total, quiet=False)
    assert curve.totals == [total]
    assert curve.steps == list(range(1, min(total, 8) + 1))
    held = f"is past its horizon of {total} steps, the last value is held"
    assert capsys.readouterr().err.count(held) == (total == 3)


def test_a_number_has_no_horizon_to_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, 0.01, max_epochs=2, schedule_total=3, quiet=False)
    assert rates(tmp_path) == [0.01] * 8
    assert "horizon" not in capsys.readouterr().err


def test_B03_every_real_number_is_one_program(tmp_path: Path) -> None:
    values = [1, 0.5, np.float64(0.25), np.float32(0.125), np.array(0.0625), 0]
    trained(tmp_path / "first", lambda total: lambda step: 0.01, max_epochs=1)
    before = cache.cache_stats()["misses"]
    trained(tmp_path, lambda total: lambda step: values[step - 1], max_steps=6)
    assert cache.cache_stats()["misses"] == before
    assert rates(tmp_path) == [1, 0.5, 0.25, 0.125, 0.0625, 0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "gave True at step 3, expected a real number, not a bool"),
        (1j, "gave 1j at step 3, expected a real number"),
        (float("nan"), "gave nan at step 3, expected a finite number"),
        (np.inf, "gave inf at step 3, expected a finite number"),
        (1e39, "expected a number that f32 holds"),
        (np.zeros(2), r"ndarray of shape \(2,\) at step 3"),
        ("0.1", "gave '0.1' at step 3"),
        (None, "at step 3"),
    ],
)
def test_B03_what_the_slot_cannot_hold_is_named_before_the_dispatch(
    tmp_path: Path, value: Any, message: str
) -> None:
    given = host(
        schedules={"learning_rate": schedule(lambda count: value if count == 2 else 0.1)},
        logger=JSONLogger(),
    )
    engine = Engine(bundle(), given, options(tmp_path))
    with pytest.raises(ScheduleError, match=message) as caught:
        engine.train()
    assert "learning_rate" in caught.value.what
    assert (caught.value.code, caught.value.exit) == ("E-SCHED-002", 1)
    assert engine.step == 2 or engine._run.machine.arrays("slot")["slot/attempt"] == 2
    assert engine.stop_reason == "error"


def test_C03_past_its_horizon_a_schedule_holds_and_warns_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = resolve("learning_rate", lambda total: lambda step: step / total, 100)
    assert [ask(99), ask(100), ask(101), ask(102)] == [0.99, 1.0, 1.0, 1.0]
    assert ask.warning is not None
    assert "step 101 is past its horizon of 100" in ask.warning


def test_C03_a_schedule_that_raises_surfaces_as_itself(tmp_path: Path) -> None:
    def curve(total: int) -> Any:
        def ask(step: int) -> float:
            if step == 5:
                raise ZeroDivisionError("at 5")
            return 0.1

        return ask

    given = host(schedules={"learning_rate": curve}, logger=JSONLogger())
    engine = Engine(bundle(), given, options(tmp_path))
    with pytest.raises(ZeroDivisionError, match="at 5"):
        engine.train()
    assert engine.step == 4
    assert len(rates(tmp_path)) == 4


def test_C06_optax_conventions_are_told_apart(tmp_path: Path) -> None:
    optax = pytest.importorskip("optax")
    cosine = optax.cosine_decay_schedule(1.0, 100)
    plain = resolve("learning_rate", cosine, 100)
    factory = resolve("learning_rate", lambda total: optax.cosine_decay_schedule(1.0, total), 100)
    assert plain(1) == 1.0
    assert factory(1) == float(cosine(1))
    assert "asked with step - 1" in plain.describe()
    assert "a factory, called with 100" in factory.describe()


def test_C06_the_report_says_what_was_assumed(tmp_path: Path) -> None:
    given = host(schedules={"learning_rate": lambda count: 0.5 ** (count + 1)})
    engine = Engine(bundle(), given, options(tmp_path))
    assert (
        "learning_rate: taken for a schedule, asked with step - 1, from 0; first 0.5 at step 1"
        in (engine.notes[0])
    )


def test_a_factory_that_gives_neither_is_refused() -> None:
    with pytest.raises(ScheduleError, match="returned 'a', expected a function"):
        resolve("learning_rate", lambda total: "a", 10)


def test_an_unknown_scalar_gets_a_near_miss(tmp_path: Path) -> None:
    given = host(schedules={"learning_rat": 0.1})
    with pytest.raises(UsageError, match="did you mean 'learning_rate'"):
        Engine(bundle(), given, options(tmp_path))


@pytest.mark.parametrize(
    ("value", "dtype", "want"), [(3.0, "i32", 3), (np.int64(7), "i32", 7), (True, "i1", True)]
)
def test_a_value_takes_its_slots_type(value: Any, dtype: str, want: Any) -> None:
    assert resolve("k", lambda count: value, 10, dtype=dtype)(1) == want


@pytest.mark.parametrize(
    ("value", "dtype"), [(0.5, "i32"), (True, "i32"), (2**31, "i32"), (1, "i1")]
)
def test_a_value_of_another_kind_is_refused(value: Any, dtype: str) -> None:
    with pytest.raises(ScheduleError, match="gave"):
        resolve("k", schedule(lambda count: value), 10, dtype=dtype)(1)


def test_the_report_describes_a_schedule_as_far_as_it_was_asked(tmp_path: Path) -> None:
    given = host(schedules={"learning_rate": schedule(lambda index: 0.01 * (index + 1))})
    engine = Engine(bundle(), given, options(tmp_path, max_epochs=2))
    assert "0.08" not in engine.notes[0]
    engine.train()
    assert engine.step == 8
    assert "0.08" in engine.notes[0]
