"""Batches, evaluation and prediction through a handle."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from whole import INPUTS, Linear, bits, handle, losses, missed, rows, trained

import nitroc as nt
from nitro_runtime.bundle import Bundle
from nitro_runtime.errors import NitroError

NAMES = list("abcdef")


class Named(Linear):
    """Texts and paths beside the numbers; a host metric looks at them."""

    seen: Any = ()

    def build_data(self) -> Any:
        host = {"id": NAMES, "path": [Path(n) for n in NAMES], "none": None}
        data = {**rows(6), **host}
        return {"train": nt.data.arrays(data, 3), "val": nt.data.arrays(data, 4)}

    def loss(self, outputs: Any, **fields: Any) -> Any:
        assert sorted(fields) == ["x", "y"], sorted(fields)
        return ((outputs - fields["y"]) ** 2).mean()

    def metrics(self, outputs: Any, *, id: Any, path: Any, none: Any) -> Any:
        self.seen.append((list(id), [str(p) for p in path], none))
        return {"rows": (float(len(outputs)), None)}


def test_E01_texts_reach_host_metrics_and_nothing_else(tmp_path: Path) -> None:
    seen: list[Any] = []
    nitro = trained(Named(seen=seen), tmp_path, log_every=1)
    assert nitro.logger.lines("validate")[0]["rows"] == 6
    assert seen[-2:] == [(NAMES[:4], NAMES[:4], None), (NAMES[4:], NAMES[4:], None)]


class AsksText(Named):
    def loss(self, outputs: Any, *, id: Any) -> Any:  # type: ignore[override]
        return outputs.mean()


class WithKey(Linear):
    def build_data(self) -> Any:
        return {"train": [{**rows(4), "key": rows(4)["x"]}]}


def test_E01_a_traced_hook_asking_for_text_and_a_field_called_key(tmp_path: Path) -> None:
    with pytest.raises(NitroError) as caught:
        handle(AsksText(), tmp_path)
    assert "'id'" in str(caught.value)
    assert "str" in str(caught.value)
    with pytest.raises(NitroError, match="'key'"):
        handle(WithKey(), tmp_path)


def layouts(x: np.ndarray) -> dict[str, np.ndarray]:
    wide = np.zeros((8, 2 * INPUTS), np.float32)
    wide[::2, ::2] = x
    return {
        "fortran": np.asfortranarray(x),
        "strided": wide[::2, ::2],
        "reversed": x[::-1].copy()[::-1],
        "big-endian": x.astype(">f4"),
        "offset": np.frombuffer(b"0" + x.tobytes(), np.float32, offset=1).reshape(x.shape),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["fortran", "strided", "reversed", "big-endian", "offset"])
def test_E02_a_step_sees_the_numbers_whatever_their_layout(tmp_path: Path, kind: str) -> None:
    batch = rows(4)
    plain = trained(Linear(), tmp_path / "plain", data={"train": [batch, batch]})
    given = {**batch, "x": layouts(batch["x"])[kind]}
    np.testing.assert_array_equal(given["x"], batch["x"])
    other = trained(Linear(), tmp_path / "other", data={"train": [given, batch]})
    assert losses(other) == losses(plain)
    assert bits(other.parameters) == bits(plain.parameters)
    assert bits(other.predict({"x": given["x"]})) == bits(plain.predict({"x": batch["x"]}))


class OfAnyLayout(Linear):
    flipped: bool = False

    def build_model(self, key: Any) -> Any:
        w = np.arange(3, dtype=np.float32)
        w = w[::-1].copy()[::-1] if self.flipped else w
        b = np.broadcast_to(np.float32(2), (1,)) if self.flipped else np.full(1, 2, np.float32)
        return None, {"w": w, "b": b, "k": np.asfortranarray(np.ones((2, 3), np.float32))}, {}


def test_E02_parameters_and_checkpoints_of_any_layout(tmp_path: Path) -> None:
    plain = trained(OfAnyLayout(), tmp_path / "plain")
    run: dict[str, Any] = {"checkpointer": nt.TopKCheckpointer()}
    other = trained(OfAnyLayout(flipped=True), tmp_path / "other", **run)
    assert bits(other.parameters) == bits(plain.parameters)
    warm = handle(OfAnyLayout(), tmp_path / "warm", checkpoint=str(tmp_path / "other"))
    assert bits(warm.parameters) == bits(plain.parameters)


def test_E03_wide_numbers_are_narrowed_once_or_refused(tmp_path: Path) -> None:
    wide = {name: value.astype(np.float64) for name, value in rows(4).items()}
    before = nt.cache_stats()
    nitro = trained(Linear(), tmp_path / "f64", data={"train": [wide, rows(4), wide]})
    assert missed(before).count("train_step") <= 1
    assert nitro.binding_report().count("train.x") == 1
    assert "from float64" in nitro.binding_report()
    big = {**rows(4), "y": np.array([0, 1, 2**32, 3])}
    with pytest.raises(NitroError, match="4294967296") as caught:
        handle(Linear(), tmp_path / "i64", data={"train": [big]})
    assert "'y'" in str(caught.value)


class Pixels(Linear):
    cast: nt.GraphConst[bool] = True

    def build_data(self) -> Any:
        return {"train": [{"x": np.array([[10, 250]], np.uint8)}]}

    def build_model(self, key: Any) -> Any:
        return None, {"b": np.float32(0)}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        x = x.astype(jnp.float32) if self.cast else x
        return (x - 128) / 64 + params["b"], state

    def loss(self, outputs: Any) -> Any:  # type: ignore[override]
        return outputs.mean()


def test_E04_an_unsigned_field_is_cast_by_the_hook_or_reported(tmp_path: Path) -> None:
    def report(cast: bool) -> str:
        nitro = handle(Pixels(cast=cast), tmp_path / str(cast))
        found = nitro.predict({"x": np.array([[10, 250]], np.uint8)})
        if cast:
            np.testing.assert_allclose(found, [[-1.84375, 1.90625]])
        return nitro.binding_report()

    assert "wraps" not in report(True)
    (line,) = [line for line in report(False).splitlines() if "wraps" in line]
    assert "unsigned field x" in line
    assert "test_data_rows.py:" in line


def test_E05_a_short_batch_of_train_is_refused_or_dropped(tmp_path: Path) -> None:
    short = nt.data.arrays(rows(10), 4)
    with pytest.raises(NitroError, match="2 rows"):
        handle(Linear(), tmp_path / "kept", data={"train": short}, max_epochs=3)
    counting: list[int] = []
    dropping = nt.data.arrays(rows(10), 4, drop_last=True)
    data = {"train": dropping, "val": nt.data.arrays(rows(10), 4)}
    nitro = handle(Linear(), tmp_path / "dropped", data=data, max_epochs=3)
    assert "2 rows dropped" in nitro.binding_report()
    nitro.logger.log_metrics = lambda *_, **__: counting.append(nt.cache_stats()["misses"])
    nitro.train()
    assert nitro.step == 6
    assert len(set(counting)) == 1


def test_E05_rows_no_metric_sees_are_counted(tmp_path: Path) -> None:
    dropping = nt.data.arrays(rows(10), 4, drop_last=True)
    nitro = handle(Linear(), tmp_path, data={"train": dropping, "val": dropping})
    assert "2 rows dropped: no metric sees them" in nitro.binding_report()


class RowLoss(Linear):
    def loss(self, outputs: Any, *, y: Any) -> Any:
        return y.mean() + 0 * outputs.sum()


def test_E08_val_loss_weighs_rows(tmp_path: Path) -> None:
    y = np.float32([10, 10, 10, 10, 10, 1])
    val = nt.data.arrays({"x": rows(6)["x"], "y": y}, 4)
    nitro = trained(RowLoss(), tmp_path, data={"train": val_free(), "val": val})
    assert nitro.logger.lines("validate")[0]["val_loss"] == 8.5
    assert nitro.validate()["val_loss"] == 8.5


def val_free() -> Any:
    return nt.data.arrays(rows(8), 4)


def test_E09_predict_cuts_and_coalesces(tmp_path: Path) -> None:
    nitro = handle(Linear(), tmp_path, data={"train": nt.data.arrays(rows(16), 8)})
    x = rows(20)["x"]
    full = nitro.predict({"x": x[:8]})
    assert bits(nitro.predict({"x": x[:3]})) == bits(full[:3])
    whole = nitro.predict({"x": x})
    assert whole.shape == (20,)
    assert bits(whole[:8]) == bits(full)
    none = nitro.predict({"x": x[:0]})
    assert (none.shape, none.dtype) == ((0,), full.dtype)
    with pytest.raises(NitroError, match=r"f32\[.*3\]"):
        nitro.predict({"x": x[0]})


class OwnMetrics(Linear):
    def metrics(self, outputs: Any, *, y: Any) -> Any:
        return {"off": (float(np.abs(outputs - y).sum()), len(y))}


def test_E11_own_metrics_stand_beside_val_loss(tmp_path: Path) -> None:
    nitro = trained(OwnMetrics(), tmp_path / "own", checkpointer=nt.TopKCheckpointer())
    assert {"off", "val_loss"} <= nitro.logger.lines("validate")[0].keys()
    (entry,) = nt.read_manifest(tmp_path / "own")
    assert entry["score"] == nitro.logger.lines("validate")[0]["val_loss"]
    ranked = handle(
        OwnMetrics(), tmp_path / "typo", checkpointer=nt.TopKCheckpointer(metric="offf")
    )
    with pytest.raises(NitroError, match=r"(off, val_loss|val_loss, off)"):
        ranked.train()
    assert ranked.step == 0
    trained(
        Linear(), tmp_path / "no", data={"train": val_free()}, checkpointer=nt.TopKCheckpointer()
    )
    assert [entry["score"] for entry in nt.read_manifest(tmp_path / "no")] == [None]


def test_E12_without_data_predict_works_and_train_is_refused(tmp_path: Path) -> None:
    nitro = handle(Linear(), tmp_path, data={})
    x = rows(5)["x"]
    np.testing.assert_allclose(nitro.predict({"x": x}), x.sum(1), rtol=1e-6)
    assert bits(nitro.predict({"x": x[:2]})) == bits(nitro.predict({"x": x})[:2])
    assert nitro.predict({"x": rows(12)["x"]}).shape == (12,)
    assert nitro.predict({"x": x[:0]}).shape == (0,)
    batches = list(handle(Linear(), tmp_path, data={}).predict([{"x": x}, {"x": x[:3]}]))
    assert [batch.shape for batch in batches] == [(5,), (3,)]
    with pytest.raises(NitroError, match="train"):
        nitro.train()


class Centred(Linear):
    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return (x - x.mean(0)) @ params["w"], state


def test_E13_rows_that_are_mixed_are_never_filled(tmp_path: Path) -> None:
    val = rows(6, 1)
    nitro = handle(Centred(), tmp_path)
    parts = [slice(0, 4), slice(4, 6)]
    outputs = [(val["x"][p] - val["x"][p].mean(0)).sum(1) for p in parts]
    wanted = float(np.mean((np.concatenate(outputs) - val["y"]) ** 2))
    np.testing.assert_allclose(nitro.validate()["val_loss"], wanted, rtol=1e-5)
    two = nitro.predict({"x": val["x"][4:]})
    np.testing.assert_allclose(two, outputs[1], rtol=1e-5, atol=1e-6)


class FromZero(Centred):
    """Its head starts at zero, and so do all outputs."""

    def build_model(self, key: Any) -> Any:
        return None, {"w": jnp.zeros(INPUTS)}, {}


def test_E13_a_head_that_starts_at_zero_hides_nothing(tmp_path: Path) -> None:
    nt.build(FromZero(), tmp_path / "bundle")
    assert Bundle.open(tmp_path / "bundle").manifest.batching.row_independent is False


class Alike(Centred):
    def build_data(self) -> Any:
        fields = {"x": np.ones((8, INPUTS), np.float32), "y": np.zeros(8, np.float32)}
        return {"train": nt.data.arrays(fields, 4)}


def test_E13_rows_that_are_all_one_hide_nothing(tmp_path: Path) -> None:
    nt.build(Alike(), tmp_path / "bundle")
    assert Bundle.open(tmp_path / "bundle").manifest.batching.row_independent is False


def test_rows_that_can_not_be_tested_here_are_never_filled(tmp_path: Path) -> None:
    nt.build(Linear(), tmp_path / "bundle", platform="cuda")
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest.batching.row_independent is None
    assert {"forward.b2", "forward.b4"} <= manifest.programs.keys()


class Broken(Linear):
    def metrics(self, outputs: Any, *, y: Any) -> Any:
        return {"bad": (math.nan, 1), "good": (float(len(y)), None)}

    def train_metrics(self, outputs: Any, *, y: Any) -> Any:
        return {"odd": jnp.where(y[0] > 0, jnp.nan, 1.0)}


def test_F02_the_log_stays_strict_json_and_names_what_is_not_finite(tmp_path: Path) -> None:
    trained(Broken(), tmp_path, logger=nt.JSONLogger(), max_epochs=2)

    def strict(text: str) -> Any:
        pytest.fail(f"{text} is no JSON")

    text = (tmp_path / "metrics.jsonl").read_text()
    found = [json.loads(line, parse_constant=strict) for line in text.splitlines()]
    validate = [row for row in found if row.get("context") == "validate"]
    assert [(row["bad"], row["nonfinite"], row["good"]) for row in validate] == [
        (None, ["bad"], 6.0),
        (None, ["bad"], 6.0),
    ]
    train = [row for row in found if row.get("context") == "train"]
    assert {row["odd"] for row in train} == {None, 1.0}
    for row in train:
        assert (row.get("nonfinite") == ["odd"]) == (row["odd"] is None)
