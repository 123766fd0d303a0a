"""What compiles, when and why; what a program may read; errors of traced hooks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from whole import Linear, handle, losses, missed, module, reasons, rows, trained

import nitroc as nt
from nitro_runtime.errors import NitroError

ALL = ["forward.b4", "reduce.b4.r2", "reduce.b4.r4", "train_step"]


@pytest.fixture
def fresh() -> Any:
    """No program is compiled yet, in memory or on disk."""
    nt.cache_reset(disk=True)
    return nt.cache_stats()


class Counting:
    """A logger that notes how many programs are compiled when a line is written."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def log_params(self, params: Any, **_: Any) -> None: ...
    def log_other(self, key: str, value: Any, **_: Any) -> None: ...
    def finish(self, status: str, **_: Any) -> None: ...

    def log_metrics(self, metrics: Any, **_: Any) -> None:
        self.seen.append(nt.cache_stats()["misses"])


def test_B01_four_programs_and_nothing_after_step_1(tmp_path: Path, fresh: Any) -> None:
    counting = Counting()
    nitro = trained(Linear(), tmp_path / "first", max_epochs=2, logger=counting)
    assert nitro.step == 8
    assert missed(fresh) == ALL
    assert set(counting.seen) == {4}
    before = nt.cache_stats()
    trained(Linear(), tmp_path / "second", max_epochs=2)
    assert missed(before) == []
    assert nt.cache_stats()["hits"] >= before["hits"] + 4


class Settings(Linear):
    """Whatever may change without another program, and some that may not."""

    smoothing: nt.Device[float] = 0.1
    weight_decay: float = 0.1
    momentum: float = 0.9
    note: str = "a"
    width: nt.GraphConst[int] = 1

    def loss(self, outputs: Any, *, y: Any) -> Any:
        return ((outputs - y) ** 2).mean() * self.width + self.smoothing

    rule: str = "Momentum"
    exempt: str = ""

    def optimizer(self, group: str) -> Any:
        return getattr(nt.rules, self.rule)

    def no_decay(self, path: Any, leaf: Any) -> bool:
        return path[-1] == self.exempt


class OtherMetric(Settings):
    def metrics(self, outputs: Any, *, y: Any) -> Any:
        return {"off": (np.abs(outputs - y).sum(), len(y))}


class Finalized(OtherMetric):
    def finalize_metrics(self, acc: Any, split: str) -> Any:
        return {**acc, "double": 2 * acc["off"]}


def test_B02_what_may_change_without_a_program(tmp_path: Path, fresh: Any) -> None:
    def run(experiment: Any, **options: Any) -> list[str]:
        before = nt.cache_stats()
        trained(experiment, tmp_path / str(len(fresh) + before["hits"]), **options)
        return missed(before)

    assert run(Settings()) == ALL
    changed: dict[str, Any] = {
        "Device value": (Settings(smoothing=0.2), {}),
        "Host field": (Settings(note="b"), {}),
        "learning_rate": (Settings(learning_rate=0.01), {}),
        "weight_decay": (Settings(weight_decay=0.2), {}),
        "momentum": (Settings(momentum=0.5), {}),
        "seed": (Settings(), {"seed": 7}),
        "epochs": (Settings(), {"max_epochs": 2}),
        "schedule": (Settings(), {"schedules": {"learning_rate": lambda total: lambda s: 0.1 / s}}),
        "scheduled decay": (Settings(), {"schedules": {"weight_decay": lambda t: lambda s: 0.1}}),
        "scheduled momentum": (Settings(), {"schedules": {"momentum": lambda t: lambda s: 0.1}}),
        "scheduled Device": (Settings(), {"schedules": {"smoothing": lambda t: lambda s: s / t}}),
        "host metric": (OtherMetric(), {}),
        "finaliser": (Finalized(), {}),
    }
    found = {name: run(made, **options) for name, (made, options) in changed.items()}
    assert {name for name, programs in found.items() if programs} == set()


@pytest.mark.parametrize(
    ("experiment", "options", "why"),
    [
        (Settings(), {"gradient_clip_norm": 1.0}, "gradient_clip_norm"),
        (Settings(), {"accum": 2}, "accum"),
        (Settings(rule="SGD"), {}, "rule"),
    ],
)
def test_B02_the_train_program_only_with_its_reason(
    tmp_path: Path, fresh: Any, experiment: Any, options: Any, why: str
) -> None:
    trained(Settings(), tmp_path / "first")
    before = nt.cache_stats()
    trained(experiment, tmp_path / "second", **options)
    assert missed(before) == ["train_step"]
    assert why in reasons(before)[0]


@pytest.mark.parametrize(("layout", "evaluation"), [("leaves", False), ("auto", True)])
def test_B02_no_decay_reaches_evaluation_where_its_buffers_change(
    tmp_path: Path, fresh: Any, layout: str, evaluation: bool
) -> None:
    trained(Settings(), tmp_path / "first", layout=layout)
    before = nt.cache_stats()
    trained(Settings(exempt="b"), tmp_path / "second", layout=layout)
    assert "train_step" in missed(before)
    assert (missed(before) != ["train_step"]) == evaluation
    assert all("decay" in reason for reason in reasons(before))


def test_B02_a_constant_is_a_miss_that_says_so(tmp_path: Path, fresh: Any) -> None:
    trained(Settings(), tmp_path / "first")
    before = nt.cache_stats()
    trained(Settings(width=2), tmp_path / "second")
    assert missed(before) == ["reduce.b4.r2", "reduce.b4.r4", "train_step"]
    assert all("width" in reason for reason in reasons(before))


class OnlySmoothing(Settings):
    def loss(self, outputs: Any) -> Any:  # type: ignore[override]
        return 0 * outputs.sum() + self.smoothing


def test_B03_every_real_number_is_one_program(tmp_path: Path, fresh: Any) -> None:
    values = [1, 0.5, np.float64(0.25), np.float32(0.125), np.array(2.0)]
    made = trained(
        OnlySmoothing(),
        tmp_path,
        data={"train": nt.data.arrays(rows(20), 4)},
        schedules={"smoothing": lambda total: lambda step: values[step - 1]},
    )
    assert losses(made) == [float(value) for value in values]
    assert missed(fresh).count("train_step") == 1


class Nested(Linear):
    weights: nt.Device[Any]

    def loss(self, outputs: Any) -> Any:  # type: ignore[override]
        one, (two, on), many = self.weights["one"], self.weights["pair"], self.weights["many"]
        return 0 * outputs.sum() + one + two + jnp.where(on, many.sum(), 0)


def test_B02_numbers_inside_a_nested_device_value_are_arguments_too(
    tmp_path: Path, fresh: Any
) -> None:
    def said(one: float, two: int, on: bool) -> list[float]:
        weights = {"one": one, "pair": (two, on), "many": np.float32([4, 8])}
        return losses(trained(Nested(weights=weights), tmp_path / str(one), max_steps=1))

    assert said(1.0, 2, True) == [15]
    before = nt.cache_stats()
    assert said(0.5, 3, False) == [3.5]
    assert missed(before) == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "True"),
        (1j, "1j"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (np.zeros(2), ""),
        ("a", "'a'"),
    ],
)
def test_B03_what_is_no_value_is_named_before_the_dispatch(
    tmp_path: Path, value: Any, shown: str
) -> None:
    def curve(step: int) -> Any:
        return value if step == 3 else 0.1

    nitro = handle(Settings(), tmp_path, schedules={"smoothing": lambda total: curve})
    with pytest.raises(NitroError) as caught:
        nitro.train()
    text = str(caught.value)
    assert caught.value.code.startswith("E-SCHED")
    assert "smoothing" in text
    assert "step 3" in text
    assert shown in text
    assert nitro.step == 2


class Constants(Linear):
    value: nt.GraphConst[Any] = 0

    def loss(self, outputs: Any) -> Any:  # type: ignore[override]
        sign = math.copysign(1, self.value) if isinstance(self.value, float) else 1
        kind = {bool: 1, int: 2, float: 3}.get(type(self.value), 4)
        size = len(self.value) if isinstance(self.value, tuple) else 0
        return 0 * outputs.sum() + sign * (kind + 10 * size)


def test_B04_constants_that_python_calls_equal_are_not(tmp_path: Path, fresh: Any) -> None:
    def said(value: Any) -> list[float]:
        return losses(trained(Constants(value=value), tmp_path / repr(value), max_steps=1))

    assert [said(v) for v in (1, True, 1.0)] == [[2], [1], [3]]
    assert [said(v) for v in (0.0, -0.0)] == [[3], [-3]]
    before = nt.cache_stats()
    assert said(math.nan) == said(float("nan")) == [3]
    assert missed(before) == []
    given = [1, 2]
    assert said(tuple(given)) == [24]
    before = nt.cache_stats()
    assert said((1, 2)) == [24]
    assert missed(before) == []
    given.append(3)
    assert said(tuple(given)) == [34]
    assert "train_step" in missed(before)


GLOBALS = """
import jax
import jax.numpy as jnp
from whole import Linear

FACTOR = 2.0

@jax.jit
def helper(x):
    return x * FACTOR

@jax.checkpoint
def checkpointed(x):
    return x * FACTOR

def body(carry, x):
    return carry + x * FACTOR, None

class Plain(Linear):
    def loss(self, outputs):
        return 0 * outputs.sum() + FACTOR

class Helper(Linear):
    def loss(self, outputs):
        return 0 * outputs.sum() + helper(jnp.float32(1))

class Checkpointed(Linear):
    def loss(self, outputs):
        return 0 * outputs.sum() + checkpointed(jnp.float32(1))

class Scanned(Linear):
    def loss(self, outputs):
        return 0 * outputs.sum() + jax.lax.scan(body, jnp.float32(0), jnp.ones(1))[0]
"""


@pytest.mark.parametrize("kind", ["Plain", "Helper", "Checkpointed", "Scanned"])
def test_B05_a_handle_reads_globals_as_they_are(tmp_path: Path, kind: str) -> None:
    made = module(tmp_path / "reads_globals.py", GLOBALS)
    assert losses(trained(getattr(made, kind)(), tmp_path / "a", max_steps=1)) == [2]
    made.FACTOR = 3.0
    assert losses(trained(getattr(made, kind)(), tmp_path / "b", max_steps=1)) == [3]


MISUSED = """
from whole import Linear
import jax.numpy as jnp
import nitroc as nt

class Host(Linear):
    scale: float = 2.0

    def loss(self, outputs, *, y):
        return outputs.mean() * self.scale

class Device(Linear):
    scale: nt.Device[float] = 2.0

    def loss(self, outputs, *, y):
        if self.scale > 1:
            return outputs.mean()
        return outputs.sum()

class Shape(Linear):
    scale: nt.Device[int] = 2

    def loss(self, outputs, *, y):
        return outputs.mean() * jnp.ones(self.scale).sum()

class Range(Linear):
    scale: nt.Device[int] = 2

    def loss(self, outputs, *, y):
        return sum(outputs.mean() for _ in range(self.scale))

class Wrong(Linear):
    def loss(self, outputs, *, y):
        return (outputs @ jnp.ones((7, 2)) - y).mean()
"""


def misused(tmp_path: Path, kind: str) -> NitroError:
    made = module(tmp_path / "misused.py", MISUSED)
    with pytest.raises(NitroError) as caught:
        trained(getattr(made, kind)(), tmp_path / "run")
    return caught.value


def test_B06_a_host_field_in_a_traced_hook(tmp_path: Path) -> None:
    error = misused(tmp_path, "Host")
    assert error.code == "E-FIELD-001"
    text = str(error)
    for part in ("scale", "loss", "misused.py:10", "GraphConst", "Device", "host"):
        assert part in text


@pytest.mark.parametrize(("kind", "line"), [("Device", 16), ("Shape", 24), ("Range", 30)])
def test_B06_a_device_field_as_a_python_value(tmp_path: Path, kind: str, line: int) -> None:
    error = misused(tmp_path, kind)
    assert error.code == "E-FIELD-002"
    text = str(error)
    for part in ("scale", f"misused.py:{line}", "GraphConst"):
        assert part in text


def test_B08_a_shape_error_is_short_and_complete(tmp_path: Path) -> None:
    text = str(misused(tmp_path, "Wrong"))
    for part in ("loss", "misused.py:34", "f32[4]", "training program"):
        assert part in text
    assert len(text.splitlines()) <= 40


class Shrinking(Linear):
    def build_data(self) -> Any:
        whole = rows(4)
        cut = {"x": whole["x"][:, :2], "y": whole["y"]}
        return {"train": [whole, cut, whole]}


def test_B09_a_batch_of_another_shape_is_named_and_nothing_compiles(tmp_path: Path) -> None:
    nitro = handle(Shrinking(), tmp_path)
    with pytest.raises(NitroError) as caught:
        nitro.train()
    assert caught.value.code.startswith("E-DATA")
    for part in ("train", "batch 1", "x", "f32[2]", "f32[3]"):
        assert part in str(caught.value)
    assert missed(nt.cache_stats()) == []
    assert nitro.step == 1


class Bare(nt.Experiment):
    """Linear's hooks without its rate."""

    build_data = Linear.build_data
    build_model = Linear.build_model
    forward = Linear.forward
    optimizer = Linear.optimizer

    def loss(self, outputs: Any) -> Any:
        return outputs.mean()


class AsField(Bare):
    learning_rate: float = 0.25


class AsProperty(Bare):
    @property
    def learning_rate(self) -> float:
        return 0.25


class AsMethod(Bare):
    def learning_rate(self, group: str) -> float:
        return {"default": 0.25}[group]


@pytest.mark.parametrize("kind", [AsField, AsProperty, AsMethod])
def test_B12_a_rate_binds_as_field_property_and_method(tmp_path: Path, kind: Any) -> None:
    nitro = trained(kind(), tmp_path, max_steps=1)
    assert float(nitro.parameters["b"]) == -0.25
    assert nitro.logger.lines("train")[0]["learning_rate"] == 0.25
