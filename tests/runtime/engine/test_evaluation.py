"""Evaluation over real rows only, and prediction of any number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from line_bundle import Line, bundle, host, options, rows

from nitro_runtime import cache, pjrt
from nitro_runtime.checkpoints import TopKCheckpointer
from nitro_runtime.data import arrays
from nitro_runtime.engine import Engine
from nitro_runtime.errors import DataError, UsageError
from nitro_runtime.host import NoHost
from nitro_runtime.machine import Machine
from nitro_runtime.metrics import Concat, Max, Min
from nitro_runtime.stopping import EarlyStopping

PLAIN = Line()


def engine(tmp_path: Path, line: Line = PLAIN, **changes: Any) -> Engine:
    return Engine(bundle(line), host(**changes), options(tmp_path))


def expected(data: Mapping[str, np.ndarray]) -> np.ndarray:
    w, b = np.array([0.1, -0.2, 0.3], np.float32), np.float32(0.5)
    return data["x"] @ w + b


def test_E08_val_loss_weighs_rows_not_batches(tmp_path: Path) -> None:
    data = {**rows(6), "y": np.array([10, 10, 10, 10, 10, 1], np.float32)}
    data["m"] = np.ones(6, np.float32)
    made = engine(tmp_path, Line(loss="batch"), splits={"val": arrays(data, 4)})
    assert made.evaluate()["val_loss"] == 8.5


def test_val_loss_divides_by_the_true_weight(tmp_path: Path) -> None:
    data = rows(10, 3)
    made = engine(tmp_path, splits={"test": arrays(data, 4)})
    found = made.evaluate("test")
    error = expected(data) - data["y"]
    assert found["val_loss"] == pytest.approx((data["m"] * error**2).sum() / data["m"].sum())
    assert found["worst"] == pytest.approx(abs(error).max())


def test_a_pass_is_the_same_each_time_and_changes_no_state(tmp_path: Path) -> None:
    made = engine(tmp_path)
    before = made.state["mean"]
    assert made.evaluate() == made.evaluate()
    assert made.state["mean"] == before


def test_an_unknown_split_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'val'") as caught:
        engine(tmp_path).evaluate("vla")
    assert "train, val" in str(caught.value)


@dataclass
class Measured(NoHost):
    """A host whose metrics see every field."""

    metric_fields: tuple[str, ...] | None = ("y", "id")
    empty: bool = False
    scored: str | None = None

    def metrics(self, outputs: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        pred, y = outputs["pred"], fields["y"]
        assert isinstance(pred, np.ndarray)
        assert len(pred) == len(y) == len(fields["id"])
        error = abs(pred - y)
        made: dict[str, Any] = {
            "near": ((error < 1).sum(), 0 if self.empty else len(y)),
            "group": {"rows": (len(y), None), "best": Min(error.min())},
            "largest": Max(error.max()),
            "ids": Concat(np.array(fields["id"])),
        }
        return made if self.scored is None else {**made, self.scored: (1.0, 2)}


def measured(count: int = 6, **changes: Any) -> Measured:
    data = {**rows(count, 2), "id": [f"row {i}" for i in range(count)]}
    given = host()
    splits = {"train": arrays(rows(16), 4), "val": arrays(data, 4)}
    return Measured(**{"splits": splits, "values": given.values, **changes})


def test_host_metrics_see_real_rows_and_strings(tmp_path: Path) -> None:
    found = Engine(bundle(), measured(), options(tmp_path)).evaluate()
    data = rows(6, 2)
    error = abs(expected(data) - data["y"])
    assert found["near"] == (error < 1).mean()
    assert found["group/rows"] == 6
    assert found["group/best"] == pytest.approx(error.min(), abs=1e-6)
    assert found["largest"] == pytest.approx(error.max())
    assert list(found["ids"]) == [f"row {i}" for i in range(6)]
    assert {"val_loss", "worst"} <= set(found)


def test_E06_a_count_of_zero_says_no_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Engine(bundle(), measured(empty=True), options(tmp_path, quiet=False))
    assert "near" not in made.evaluate()
    assert "val: near: no data" in capsys.readouterr().err


def test_a_metric_without_data_in_its_first_batch_may_rank(tmp_path: Path) -> None:
    class Late(Measured):
        def metrics(self, outputs: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"late": (1.0, 0 if len(fields["y"]) == 4 else 2)}

    given = Late(**{**vars(measured()), "checkpointer": TopKCheckpointer(metric="late")})
    made = Engine(bundle(), given, options(tmp_path)).train()
    assert made.history["late"] == [1.0] * 3


@pytest.mark.parametrize("name", ["step", "epoch", "loss", "type"])
def test_a_metric_may_not_be_called_what_a_line_calls_its_own(tmp_path: Path, name: str) -> None:
    made = Engine(bundle(), measured(scored=name), options(tmp_path))
    with pytest.raises(DataError, match=f"E-DATA-069: split val has a metric '{name}'"):
        made.evaluate()


def test_hooks_that_forget_their_return_are_named(tmp_path: Path) -> None:
    class Forgets(Measured):
        def metrics(self, outputs: Any, fields: Mapping[str, Any]) -> Any:
            return None

    class Drops(Measured):
        def finalize_metrics(self, acc: dict[str, Any], split: str) -> Any:
            return None

    for host_type, hook in ((Forgets, "`metrics` gave"), (Drops, "`finalize_metrics` returned")):
        made = Engine(bundle(), host_type(**vars(measured())), options(tmp_path))
        with pytest.raises(DataError, match=f"E-DATA-067: {hook}"):
            made.evaluate()


def test_a_split_without_labels_has_outputs_and_host_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Counted(NoHost):
        def metrics(self, outputs: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"sum": (outputs["pred"].sum(), None)}

    data = rows(6)
    splits = {"plain": arrays({"x": data["x"]}, 4), "val": arrays({"x": data["x"]}, 4)}
    given = Counted(splits=splits, values=host().values, metric_fields=())
    made = Engine(bundle(), given, options(tmp_path, quiet=False))
    assert made.evaluate("plain") == {"sum": pytest.approx(expected(data).sum(), rel=1e-5)}
    assert "plain: no val_loss, its batches have no m, y" in capsys.readouterr().err
    with pytest.raises(DataError, match="field 'm' is missing"):  # the build saw it in val
        made.evaluate("val")


def test_a_batch_wider_than_any_program_says_what_there_is(tmp_path: Path) -> None:
    made = engine(tmp_path, splits={"wide": arrays(rows(8), 8)})
    with pytest.raises(DataError, match="a batch of 8 rows, and forward is compiled for 4"):
        made.evaluate("wide")


def test_the_device_goes_on_while_a_batch_is_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine(tmp_path, splits={"val": arrays(rows(12), 4)})
    events: list[str] = []
    called, read = Machine.call, pjrt.read
    monkeypatch.setattr(
        Machine, "call", lambda m, p, g: (events.append(p.entry.role), called(m, p, g))[1]
    )
    monkeypatch.setattr(pjrt, "read", lambda a: (events.append("read"), read(a))[1])
    made.evaluate()
    both = ["forward", "reduce"]
    assert events == [*both, *both, "read", *both, "read", "read"]


def test_a_host_metric_called_val_loss_replaces_ours(tmp_path: Path) -> None:
    made = Engine(bundle(), measured(scored="val_loss"), options(tmp_path))
    assert made.evaluate()["val_loss"] == 0.5


def test_arrays_are_returned_but_not_logged(tmp_path: Path) -> None:
    made = Engine(bundle(), measured(checkpointer=TopKCheckpointer()), options(tmp_path)).train()
    assert "ids" not in made.history[-1]
    assert made.history[-1]["group/rows"] == 6


def test_E11_val_loss_stands_beside_own_metrics(tmp_path: Path) -> None:
    given = measured(checkpointer=TopKCheckpointer())
    made = Engine(bundle(), given, options(tmp_path)).train()
    assert len(made.history["val_loss"]) == len(made.history["near"]) == 3


def test_E11_a_metric_nobody_emits_is_refused_before_step_1(tmp_path: Path) -> None:
    for changes in (
        {"checkpointer": TopKCheckpointer(metric="nears")},
        {"early_stop": EarlyStopping(metric="nears")},
    ):
        made = Engine(bundle(), measured(**changes), options(tmp_path))
        with pytest.raises(UsageError, match="did you mean 'near'") as caught:
            made.train()
        assert "val_loss" in str(caught.value)
        assert "group/best" in str(caught.value)
        assert made.step == 0
    good = measured(checkpointer=TopKCheckpointer(metric="near", mode="max"))
    assert Engine(bundle(), good, options(tmp_path / "b")).train().stop_reason == "completed"


def test_E11_without_val_checkpoints_have_no_score(tmp_path: Path) -> None:
    keeper = TopKCheckpointer()
    Engine(bundle(), host(val=None, checkpointer=keeper), options(tmp_path)).train()
    (row,) = keeper.entries()
    assert (row["score"], row["metric"]) == (None, None)
    assert row["file"] == "epoch-0003-step-12"
    stops = Engine(bundle(), host(val=None, early_stop=EarlyStopping()), options(tmp_path / "b"))
    with pytest.raises(UsageError, match="nobody emits"):
        stops.train()


def test_E13_a_forward_that_mixes_rows_is_never_filled(tmp_path: Path) -> None:
    data = rows(6)
    line = Line(mixes=True)
    made = engine(tmp_path, line, splits={"val": arrays(data, 4)})
    x = np.concatenate(
        [data["x"][:4] - data["x"][:4].mean(0), data["x"][4:] - data["x"][4:].mean(0)]
    )
    want = expected({"x": x})
    np.testing.assert_allclose(made.predict(data)["pred"], want, rtol=1e-5)
    loss = (data["m"] * (want - data["y"]) ** 2).sum() / data["m"].sum()
    assert made.evaluate()["val_loss"] == pytest.approx(loss)
    with pytest.raises(DataError, match=r"3 rows.*4|3 rows, and forward is compiled for 2, 4"):
        made.predict(rows(3))


def test_a_row_count_without_a_program_is_named(tmp_path: Path) -> None:
    made = engine(tmp_path, splits={"val": arrays(rows(7), 4)})
    with pytest.raises(DataError, match="a batch of 3 rows") as caught:
        made.evaluate()
    assert "2, 4" in str(caught.value)


def test_nothing_compiles_after_step_1(tmp_path: Path) -> None:
    made = Engine(bundle(), host(), options(tmp_path, max_epochs=1)).train()
    before = cache.cache_stats()
    made.evaluate()
    made.predict(rows(9))
    made.set_device(shift=1.0)
    made.evaluate()
    after = cache.cache_stats()
    assert (after["hits"], after["misses"]) == (before["hits"], before["misses"])


# ------------------------------------------------------------------------------------ predict


@pytest.mark.parametrize("count", [1, 3, 4, 20])
def test_E09_predict_gives_exactly_the_rows(tmp_path: Path, count: int) -> None:
    made = engine(tmp_path)
    data = rows(20)
    whole = made.predict({"x": data["x"][:4]})["pred"]
    found = made.predict({"x": data["x"][:count], "unread": ["a"] * 99})["pred"]
    assert found.shape == (count,)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:4], whole[:count])
    np.testing.assert_allclose(found, expected(data)[:count], rtol=1e-5)


def test_E09_no_rows_give_empty_arrays(tmp_path: Path) -> None:
    found = engine(tmp_path).predict({"x": np.zeros((0, 3), np.float32)})["pred"]
    assert (found.shape, found.dtype) == ((0,), np.float32)


def test_E09_a_row_without_batch_axis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no batch axis, expected f32\[rows,3\]") as caught:
        engine(tmp_path).predict({"x": np.zeros(3, np.float32)})
    assert caught.value.code == "E-DATA-063"


def test_a_bare_array_is_refused_naming_the_fields(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x: f32\[rows,3\]"):
        engine(tmp_path).predict(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"X": np.zeros((2, 3))}, "no field 'x'"),
        ({"x": np.zeros((2, 4))}, r"f64\[2,4\], expected f32\[rows,3\]"),
        ({"x": [["a", "b", "c"]]}, "list of list"),
        ({"x": np.zeros((2, 3), np.int32)}, r"i32\[2,3\], expected f32"),
    ],
)
def test_a_wrong_batch_is_named(tmp_path: Path, batch: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        engine(tmp_path).predict(batch)


def test_a_source_that_is_asked_by_index_is_predicted(tmp_path: Path) -> None:
    class Indexed:
        def __len__(self) -> int:
            return 2

        def begin_epoch(self, epoch: int, seed: int) -> tuple[int, int]:
            return (epoch, seed)

        def batch_at(self, i: int, plan: tuple[int, int]) -> dict[str, np.ndarray]:
            assert plan == (0, 0)
            return {"x": rows(3, i)["x"]}

    found = list(engine(tmp_path).predict(Indexed()))
    for i, piece in enumerate(found):
        np.testing.assert_allclose(piece["pred"], expected(rows(3, i)), rtol=1e-5)
    assert len(found) == 2


def test_a_loader_is_predicted_lazily(tmp_path: Path) -> None:
    taken: list[int] = []

    def batches() -> Any:
        for i in range(3):
            taken.append(i)
            yield {"x": np.asfortranarray(rows(5)["x"])}

    found = engine(tmp_path).predict(batches())
    assert taken == []
    assert next(found)["pred"].shape == (5,)
    assert taken == [0]
    assert len(list(found)) == 2


def test_E02_any_layout_of_the_same_numbers_predicts_the_same(tmp_path: Path) -> None:
    made = engine(tmp_path)
    x = rows(8)["x"]
    want = made.predict({"x": x})["pred"]
    for same in (np.asfortranarray(x), x[::-1][::-1], x.astype(">f4"), x.astype(np.float64)):
        np.testing.assert_array_equal(made.predict({"x": same})["pred"], want)


# ------------------------------------------------------------------------------ device values


def test_set_device_changes_what_follows_and_reads_back(tmp_path: Path) -> None:
    made = engine(tmp_path)
    before = made.evaluate()["val_loss"]
    made.set_device(shift=100.0)
    assert made.device_value("shift") == 100.0
    assert made.evaluate()["val_loss"] > before + 1000
    for name, message in (("shfit", "did you mean 'shift'"), ("learning_rate", "no Device")):
        with pytest.raises(UsageError, match=message):
            made.set_device(**{name: 1.0})
    with pytest.raises(UsageError, match="expected f32"):
        made.set_device(shift="much")
    assert made.device_value("shift") == 100.0


def test_C04_a_scheduled_value_is_refused_by_hand_and_seen_afterwards(tmp_path: Path) -> None:
    ramp = {"shift": lambda total: lambda step: step / total}
    made = Engine(bundle(), host(train=32, schedules=ramp), options(tmp_path, max_epochs=1))
    assert made.device_value("shift") == 1 / 8
    made.train()
    assert made.device_value("shift") == 1.0
    with pytest.raises(UsageError, match="is scheduled"):
        made.set_device(shift=0.5)
    still = Engine(bundle(), host(values={"learning_rate": 0.0, "shift": 1.0}), options(tmp_path))
    still._run.machine.load({**made._run.machine.arrays()})
    assert still.evaluate()["val_loss"] == made.evaluate()["val_loss"]
