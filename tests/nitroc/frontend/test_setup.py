"""Setup: data, derived values, Device values, optimizer, schedules, the binding report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from declared import Tiny, batches, refused, set_up, tiny

from nitro_runtime.data.arrays import arrays
from nitroc.frontend import fields as nt
from nitroc.frontend.report import BindingReport
from nitroc.frontend.setup import prepare, probe_split, route_prediction
from nitroc.rules import SGD, Adam, rule


class Deriving(Tiny):
    classes: nt.GraphConst[int] = 0
    balance: nt.Device[float] = 1.0
    label: str = "given"
    order: Any = ()

    def derive(self, data: Any) -> dict[str, Any]:
        return {"classes": 1 + int(data["train"][0]["label"].max()), "balance": 0.25}

    def build_model(self, key: Any) -> Any:
        assert self.classes == 2
        assert self.balance == 0.25
        return super().build_model(key)


def test_derived_values_reach_later_hooks_and_the_report() -> None:
    setup = set_up(Deriving(balance=0.5))
    assert setup.derived == {"classes": 2, "balance": 0.25}
    assert setup.graphconst == {"classes": 2}
    assert setup.device["balance"].value == np.float32(0.25)
    text = setup.report.text()
    assert "derived, replaces 0.5" in text
    assert "GraphConst 2" in text


def test_recorded_derived_values_stand_for_the_hook() -> None:
    setup = prepare(
        Deriving(), {}, {}, derived={"classes": 2, "balance": 0.25, "label": "recorded"}
    )
    assert setup.host["label"] == "recorded"


def test_derive_of_an_unknown_field() -> None:
    error = refused("E-HOOK-007", lambda: set_up(tiny(derive=lambda self, data: {"x": 1})))
    assert "'x'" in error.what


@dataclass(frozen=True)
class Loose:
    sizes: list[int]


class Structural(Tiny):
    block: nt.GraphConst[Any] = 0
    count: nt.GraphConst[int] = 1


def test_graphconst_values_are_checked_and_copied() -> None:
    error = refused("E-FIELD-007", lambda: set_up(Structural(block=Loose([1]))))
    assert "block" in error.what
    assert "tuple" in error.what
    assert "count" in refused("E-FIELD-008", lambda: set_up(Structural(count="2"))).what  # pyright: ignore[reportArgumentType]
    sizes = [1, 2]
    setup = set_up(Structural(block=sizes, count=2.0))  # pyright: ignore[reportArgumentType]
    sizes.append(3)
    assert setup.graphconst == {"block": [1, 2], "count": 2}
    assert type(setup.graphconst["count"]) is int


class OnDevice(Tiny):
    rate: nt.Device[float] = 1
    count: nt.Device[int] = 3
    switch: nt.Device[bool] = True
    value: nt.Device[Any] = 0.5


def test_device_scalars_are_slots() -> None:
    leaves = set_up(OnDevice()).device
    assert [str(leaf) for leaf in leaves.values()] == ["f32", "i32", "i1", "f32"]
    assert all(leaf.scalar for leaf in leaves.values())


def test_device_arrays_and_nested_values_are_inputs() -> None:
    value = {"a": np.ones((2, 3)), "b": (np.arange(4), 1.0)}
    setup = set_up(OnDevice(value=value))
    nested = {n: str(leaf) for n, leaf in setup.device.items() if leaf.field == "value"}
    assert nested == {"value.a": "f32[2,3]", "value.b.#0": "i32[4]", "value.b.#1": "f32"}
    assert not any(leaf.scalar for leaf in setup.device.values() if leaf.field == "value")
    built = setup.device_fields.build({name: name for name in setup.device})
    assert built["value"] == {"a": "value.a", "b": ("value.b.#0", "value.b.#1")}
    value["a"][0] = 7
    assert setup.device["value.a"].value[0, 0] == 1


def test_device_arrays_keep_narrow_dtypes() -> None:
    setup = set_up(OnDevice(value=np.zeros(3, ml_dtypes.bfloat16)))
    assert str(setup.device["value"]) == "bf16[3]"


@pytest.mark.parametrize(
    ("field", "value", "code", "says"),
    [
        ("count", 2**31, "E-FIELD-009", "2147483648"),
        ("rate", 1e39, "E-FIELD-009", "1e+39"),
        ("count", 1.5, "E-FIELD-008", "1.5"),
        ("value", np.array([1, 2**40]), "E-FIELD-009", str(2**40)),
        ("value", np.array(["a"]), "E-FIELD-009", "<U1"),
        ("value", "text", "E-FIELD-009", "str"),
        ("value", {"a": None}, "E-FIELD-009", "None"),
    ],
)
def test_device_values_refused(field: str, value: Any, code: str, says: str) -> None:
    error = refused(code, lambda: set_up(OnDevice(**{field: value})))
    assert field in error.what
    assert says in error.what


def test_host_copies_of_device_scalars_are_as_given() -> None:
    assert set_up(OnDevice(rate=0.1)).experiment.rate == 0.1  # pyright: ignore[reportAttributeAccessIssue]


# --- optimizer ----------------------------------------------------------------------------------


def test_the_default_optimizer() -> None:
    optimizer = set_up(tiny()).optimizer
    assert optimizer.rule.name == "radam"
    assert (optimizer.learning_rate, optimizer.weight_decay, optimizer.decays) == (1e-3, 0.0, False)
    assert "weight_decay" not in optimizer.values
    assert set(optimizer.sources.values()) == {"default"}


def test_attributes_decide_the_rules_floats() -> None:
    chosen = tiny(optimizer=lambda self, group: Adam(b1=0.8, eps=1e-3), b2=property(lambda s: 0.9))
    optimizer = set_up(chosen).optimizer
    assert (optimizer.fields["b1"], optimizer.fields["b2"]) == (0.8, 0.9)
    assert optimizer.sources["b2"] == "attribute"


@rule(slots={"mu": lambda p: p * 2})
def started_by_the_parameter(g: Any, mu: Any, *, b1: float = 0.9) -> Any:
    return b1 * mu + g, mu


@pytest.mark.parametrize(
    ("members", "code", "says"),
    [
        ({"learning_rate": lambda self, group: 0.0}, "E-OPT-041", "frozen"),
        ({"learning_rate": lambda self, group: -1.0}, "E-OPT-042", "-1.0"),
        ({"learning_rate": lambda self, group: float("nan")}, "E-OPT-042", "nan"),
        ({"weight_decay": lambda self, group: -0.1}, "E-OPT-042", "weight_decay"),
        ({"b1": lambda self, group: "big"}, "E-OPT-042", "b1"),
        ({"learning_rate": lambda self: 0.1}, "E-HOOK-002", "group"),
        ({"optimizer": lambda self, group: "adam"}, "E-OPT-043", "str"),
        ({"optimizer": lambda self, group: started_by_the_parameter}, "E-HOOK-005", "slot mu"),
    ],
)
def test_optimizer_settings_refused(members: dict[str, Any], code: str, says: str) -> None:
    assert says in refused(code, lambda: set_up(tiny(**members))).what


class Both(Tiny):
    learning_rate: nt.Device[float] = 0.01
    weight: nt.Device[float] = 1.0
    table: nt.Device[Any] = (1.0, 2.0)
    width: nt.GraphConst[int] = 3
    note: str = ""


def factory(total: int) -> Callable[[int], float]:
    return lambda step: step / total


def test_a_device_field_may_supply_the_rate() -> None:
    optimizer = set_up(Both()).optimizer
    assert (optimizer.learning_rate, optimizer.device) == (0.01, {"learning_rate": "learning_rate"})


def test_schedules_by_the_slot_they_drive() -> None:
    qualified = {"opt": {"learning_rate": factory, "b1": 0.5}, "device": {"weight": factory}}
    entries = set_up(Both(), schedules=qualified).schedules
    assert {name: (e.key, e.target) for name, e in entries.items()} == {
        "opt.learning_rate": ("learning_rate", "opt"),
        "b1": ("b1", "opt"),
        "weight": ("weight", "device"),
    }
    grouped = {"opt": {"default": {"weight_decay": 0.1}}}
    setup = set_up(tiny(weight_decay=lambda self, group: 0.0), schedules=grouped)
    assert list(setup.schedules) == ["weight_decay"]
    assert setup.optimizer.decays


def test_the_keyword_replaces_the_attribute() -> None:
    scheduled = tiny(schedules=lambda self: {"learning_rate": factory})
    assert list(set_up(scheduled).schedules) == ["learning_rate"]
    assert set_up(scheduled, schedules={}).schedules == {}
    assert set_up(scheduled, schedules=None).schedules == {}


@pytest.mark.parametrize(
    ("schedules", "code", "says"),
    [
        ({"lr": factory}, "E-SCHED-040", "learning_rate"),
        ({"learning_rate": factory}, "E-SCHED-041", '{"opt": {"learning_rate": ...}}'),
        ({"device": {"b1": factory}}, "E-SCHED-040", "weight"),
        ({"opt": {"head": {"learning_rate": 1}}}, "E-SCHED-040", "default"),
        ({"table": factory}, "E-SCHED-042", "array"),
        ({"gradient_clip_norm": factory}, "E-SCHED-042", "clip"),
        ({"nesterov": factory}, "E-SCHED-042", "structure"),
        ({"width": factory}, "E-SCHED-042", "GraphConst"),
        ({"note": factory}, "E-SCHED-042", "Host"),
        ({"weight": 0.5, "device": {"weight": 0.1}}, "E-SCHED-044", "'device'"),
    ],
)
def test_schedules_refused(schedules: dict[str, Any], code: str, says: str) -> None:
    assert says in refused(code, lambda: set_up(Both(), schedules=schedules)).text()


def test_a_groups_curve_comes_before_the_bare_one() -> None:
    for schedules in (
        {"learning_rate": 0.5, "opt": {"default": {"learning_rate": 0.25}}},
        {"opt": {"default": {"learning_rate": 0.25}}, "learning_rate": 0.5},
    ):
        (entry,) = set_up(tiny(), schedules=schedules).schedules.values()
        assert entry.value == 0.25


def test_C02_base_rate_0_and_a_bare_decay_curve_beside_a_method() -> None:
    zero = tiny(learning_rate=lambda self, group: 0.0)
    error = refused("E-OPT-041", lambda: set_up(zero, schedules={"learning_rate": factory}))
    assert "ratio" in error.what
    decaying = tiny(weight_decay=lambda self, group: 0.1)
    error = refused("E-SCHED-043", lambda: set_up(decaying, schedules={"weight_decay": factory}))
    assert "method weight_decay(self, group)" in error.what


@pytest.mark.parametrize(
    ("count", "options", "steps"),
    [
        (10, {"max_epochs": 10}, 100),
        (8, {"max_epochs": 3, "accum": 4}, 6),
        (10, {"max_epochs": 10, "max_steps": 40}, 40),
        (10, {"max_epochs": 0}, 0),
    ],
)
def test_C01_the_horizon(count: int, options: dict[str, Any], steps: int) -> None:
    assert set_up(tiny(batches(count)), **options).horizon == steps


@pytest.mark.parametrize(
    ("count", "accum", "legal"), [(3, 2, "2 and 4"), (45, 2, "44 and 46"), (10, 4, "8 and 12")]
)
def test_A01_accum_names_the_nearest_legal_counts(count: int, accum: int, legal: str) -> None:
    error = refused("E-OPT-040", lambda: set_up(tiny(batches(count)), accum=accum))
    assert "accum" in error.what
    assert error.help is not None
    assert f"{legal} batches" in error.help


def test_A01_fewer_batches_than_accum() -> None:
    error = refused("E-OPT-040", lambda: set_up(tiny(batches(1)), accum=4))
    assert error.help is not None
    assert "counts are 4 batches" in error.help


# --- data and report ----------------------------------------------------------------------------


def test_splits_are_probed_when_first_used() -> None:
    rows = {"x": np.zeros((10, 3), np.float32), "label": np.zeros(10, np.int32)}
    splits = {
        "train": arrays(rows, 4, drop_last=True),
        "val": arrays(rows, 4),
        "test": arrays(rows, 5),
    }
    setup = set_up(tiny(build_data=lambda self: splits))
    assert set(setup.schema) == {"train", "val"}
    train, val = setup.schema["train"], setup.schema["val"]
    assert (train.width, train.last, train.batches) == (4, 4, 2)
    assert (val.width, val.last, val.batches) == (4, 2, 3)
    assert probe_split(setup, "test").width == 5
    error = refused("E-DATA-011", lambda: probe_split(setup, "tset"))
    assert error.help is not None
    assert "did you mean test?" in error.help
    assert "2 rows dropped" in setup.report.text()


def test_the_probe_consumes_nothing() -> None:
    asked: list[str] = []

    class Source:
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            asked.append("iter")
            return iter(batches(2))

    setup = set_up(tiny(Source()))
    assert asked == ["iter"]
    assert setup.schema["train"].last is None
    assert "resume continues at the next epoch" in setup.report.text()


def test_a_setup_without_data_is_routed_by_the_first_batch() -> None:
    setup = set_up(tiny(), data={})
    assert (setup.schema, setup.horizon) == ({}, 0)
    routed = route_prediction(setup, {"x": np.zeros((5, 3)), "id": list("abcde")})
    assert routed.routing["forward"].fields == ("x",)
    assert str(routed.schema["train"].fields["x"]) == "f32[3]"
    assert routed.schema["train"].width == 5


def test_the_report_states_every_source() -> None:
    class Reported(Tiny):
        max_epochs: int = 3
        checkpoint: str = "field"
        optimizer: Any = SGD
        smoothing: nt.Device[float] = 0.1

    text = set_up(Reported(smoothing=0.2), accum=2).report.text()
    for line in (
        "max_epochs  Host 3  (the run option, from attribute)",
        "checkpoint  Host 'field'  (an ordinary field: the option of this name is no attribute)",
        "smoothing  Device 0.2  (given)",
        "accum  2  (keyword, baked)",
        "rule  sgd",
        "forward  x  (declared.py:",
        "train.label  i32 per row",
    ):
        assert _has(text, line), line


def _has(text: str, line: str) -> bool:
    return any(" ".join(line.split()) in " ".join(row.split()) for row in text.splitlines())


def test_a_report_never_fails() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError

    report = BindingReport()
    report.add("fields", "bad", Bad(), "given")
    assert "<Bad whose repr raised RuntimeError>" in report.text()
