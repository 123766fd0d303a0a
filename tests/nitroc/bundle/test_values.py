"""Values that JSON has no number for, from the build to the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from whole import INPUTS, Linear

import nitroc as nt
from nitro_runtime.bundle import Bundle
from nitro_runtime.recorded import recorded_host
from nitroc.bundle.values import constant, recorded, restored
from nitroc.opening import _recorded_fields  # pyright: ignore[reportPrivateUsage]


class Bounded(Linear):
    """A bound that nothing reaches, on the device and in the program."""

    guard_finite: bool = False
    bound: nt.Device[float] = math.inf
    ceiling: nt.GraphConst[float] = 1.0
    table: nt.Device[Any] = None

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        top = jnp.minimum(self.bound, self.ceiling) + self.table.max()
        return jnp.minimum(x @ params["w"] + params["b"], top), state


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.5, -0.0])
def test_a_number_is_given_back(value: float) -> None:
    again = restored(recorded(value))
    assert np.float64(again).tobytes() == np.float64(value).tobytes()
    assert (constant(value).table is None) == (not math.isfinite(value))


def test_values_that_are_not_finite_are_built_recorded_and_run(tmp_path: Path) -> None:
    table = np.array([0.0, -np.inf], np.float32)
    given = Bounded(ceiling=math.inf, table=table)
    path = nt.build(given, tmp_path / "bundle")
    fields = _recorded_fields(Bundle.open(path), Bounded)
    assert fields["ceiling"] == math.inf
    np.testing.assert_array_equal(fields["table"], table)
    assert "Device inf " in nt.explain(str(path))
    options: dict[str, Any] = {"quiet": True, "checkpointer": None, "logger": None}
    trained = nt.run(path, run_dir=tmp_path / "run", **options)
    direct = nt.Nitro(given, run_dir=tmp_path / "direct", **options).train()
    assert trained.parameters["w"].shape == (INPUTS,)
    np.testing.assert_array_equal(trained.parameters["w"], direct.parameters["w"])


class Switched(Linear):
    """A switch and a whole number that move from step to step."""

    on: nt.Device[bool] = True
    times: nt.Device[int] = 1

    @property
    def schedules(self) -> dict[str, Any]:
        return {
            "on": lambda total: lambda step: step % 2 == 0,
            "times": lambda total: lambda step: step,
        }

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        top = jnp.where(self.on, 1.0, 2.0) * self.times
        return (x @ params["w"] + params["b"]) * top, state


def test_curves_of_switches_and_whole_numbers_are_recorded_in_their_own_type(
    tmp_path: Path,
) -> None:
    bundle = Bundle.open(nt.build(Switched(), tmp_path / "bundle"))
    assert (bundle.manifest.schedules["on"].table or ())[:3] == (0.0, 1.0, 0.0)
    curves = recorded_host(bundle, {"train": []}).schedules
    asked = [curves[name].f(1) for name in ("on", "times")]
    assert asked == [True, 2]
    assert list(map(type, asked)) == [bool, int]
