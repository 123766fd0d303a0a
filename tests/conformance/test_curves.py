"""Schedules through a handle."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import optax
import pytest
from whole import Linear, handle, losses, missed, rows, trained

import nitroc as nt
from nitro_runtime.errors import NitroError

FORTY_ROWS = {"train": nt.data.arrays(rows(40), 4)}
THIRTY_TWO_ROWS = {"train": nt.data.arrays(rows(32), 4)}


class Asked:
    """A factory that notes its horizon and the steps that are asked for."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.steps: list[int] = []

    def __call__(self, total: int) -> Any:
        self.totals.append(total)

        def curve(step: int) -> float:
            self.steps.append(step)
            return 0.01 * step

        return curve


@pytest.mark.parametrize(
    ("data", "options", "total"),
    [
        (FORTY_ROWS, {"max_epochs": 10}, 100),
        ({"train": nt.data.arrays(rows(32), 4)}, {"max_epochs": 3, "accum": 4}, 6),
        (FORTY_ROWS, {"max_epochs": 10, "max_steps": 40}, 40),
    ],
)
def test_C01_a_factory_gets_the_horizon_once_and_the_first_step_is_1(
    tmp_path: Path, data: Any, options: Any, total: int
) -> None:
    asked = Asked()
    nitro = handle(Linear(), tmp_path, data=data, schedules={"learning_rate": asked}, **options)
    nitro.train()
    assert asked.totals == [total]
    assert asked.steps[0] == 1
    assert max(asked.steps) == total == nitro.step
    rates = [line["learning_rate"] for line in nitro.logger.lines("train")]
    assert rates == pytest.approx([0.01 * step for step in range(1, total + 1)], rel=1e-7)


class Stop(Exception):
    pass


def test_C03_a_schedule_that_raises_surfaces_as_itself(tmp_path: Path) -> None:
    def curve(step: int) -> float:
        if step == 50:
            raise Stop("no more")
        return 0.01

    nitro = handle(
        Linear(),
        tmp_path,
        data=FORTY_ROWS,
        max_epochs=10,
        schedules={"learning_rate": lambda total: curve},
    )
    with pytest.raises(Stop, match="no more"):
        nitro.train()
    assert nitro.step == 49
    assert nitro.logger.lines("train")[-1]["step"] == 49
    assert nitro.logger.status == "error"


class Shifted(Linear):
    shift: nt.Device[float] = 0.25

    def loss(self, outputs: Any) -> Any:  # type: ignore[override]
        return 0 * outputs.sum() + self.shift


def test_C04_a_device_field_follows_its_schedule_and_keeps_the_last_value(tmp_path: Path) -> None:
    data = {**THIRTY_TWO_ROWS, "val": nt.data.arrays(rows(6), 4)}
    trained(Shifted(), tmp_path / "constant", data=data)
    before = nt.cache_stats()
    nitro = trained(
        Shifted(),
        tmp_path / "scheduled",
        data=data,
        schedules={"shift": lambda total: lambda step: step / total},
    )
    assert losses(nitro) == [step / 8 for step in range(1, 9)]
    assert missed(before) == []
    with pytest.raises(NitroError, match="shift"):
        nitro.set_device(shift=0.5)
    assert nitro.device_value("shift") == 1.0
    assert nitro.validate()["val_loss"] == 1.0


def test_C06_a_schedule_of_optax_and_a_factory_of_one(tmp_path: Path) -> None:
    curve = optax.cosine_decay_schedule(1.0, 100)

    def rates(schedule: Any, name: str) -> tuple[list[float], str]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            nitro = trained(
                Linear(),
                tmp_path / name,
                data=THIRTY_TWO_ROWS,
                schedules={"learning_rate": schedule},
            )
        lines = nitro.logger.lines("train")
        return [line["learning_rate"] for line in lines], nitro.binding_report()

    itself, said = rates(curve, "itself")
    made, said_of_factory = rates(lambda total: curve, "factory")
    assert itself == pytest.approx([float(curve(step)) for step in range(8)], rel=1e-6)
    assert itself[0] == 1.0
    assert made == pytest.approx([float(curve(step)) for step in range(1, 9)], rel=1e-6)
    assert "step - 1" in said
    assert "factory" in said_of_factory
