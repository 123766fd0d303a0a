"""Guards, metrics and diagnostics of a run, with marks written by hand into a bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from line_bundle import Line, bundle, host, options, rows
from line_marks import PEAK

from nitro_runtime import places, replay
from nitro_runtime.checkpoints import TopKCheckpointer, read_manifest
from nitro_runtime.data import arrays
from nitro_runtime.engine import Engine
from nitro_runtime.errors import DataError, GuardError, RunError, UsageError
from nitro_runtime.logging import JSONLogger

MARKED = Line(marks=True)


def data(count: int = 24, *changes: tuple[str, int, float], seed: int = 0) -> dict[str, np.ndarray]:
    """Rows with small y, and `changes`: field, row, value (of x: its first column)."""
    made = rows(count, seed)
    made["m"][:] = 1
    for field, row, value in changes:
        made[field][row] = value if field != "x" else [value, 0, 0]
    return made


def lines(path: Path, context: str | None = None) -> list[dict[str, Any]]:
    text = (path / "run" / "metrics.jsonl").read_text()
    found = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    return [x for x in found if context is None or x.get("context") == context]


def of_type(path: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines(path) if line["type"] == kind]


def engine(
    path: Path,
    train: Mapping[str, np.ndarray],
    val: Mapping[str, np.ndarray] | None = None,
    line: Line = MARKED,
    **changes: Any,
) -> Engine:
    splits = {"train": arrays(dict(train), 4)}
    if val is not None:
        splits["val"] = arrays(dict(val), 4)
    given = host(splits=splits, logger=JSONLogger(), checkpointer=changes.pop("checkpointer", None))
    return Engine(bundle(line), given, options(path, **{"max_epochs": 1, **changes}))


def failed(made: Engine) -> GuardError:
    with pytest.raises(GuardError) as caught:
        made.train()
    return caught.value


BIG = ("y", 9, 60.0)  # in step 3 of batches of 4; the peak's bound counts there too


# ------------------------------------------------------------------------------------- the error


def test_D07_the_error_says_what_counted_where_and_what_stands(tmp_path: Path) -> None:
    made = engine(tmp_path, data(24, BIG, ("y", 10, 77.0)))
    error = failed(made)
    kept = tmp_path / "run" / "replay" / "step-3"
    assert str(error).splitlines() == [
        "E-GUARD-001: guard geometry/off-manifold layer=3 counted 2 at step 3, expected 0; "
        "it is written at exp.py:41:5",
        "also: guard attention/scores counted 1 (its count was NaN), written at exp.py:52:9",
        "also: guard peak counted 1, written at exp.py:53:9",
        f"help: nothing of step 3 was committed; replay: {kept}; no checkpoint yet",
    ]
    assert (error.name, dict(error.meta), error.count) == ("geometry/off-manifold", {"layer": 3}, 2)
    assert (error.step, error.epoch, error.stage, error.split) == (3, 1, "train", "train")
    assert error.source == "exp.py:41:5"
    assert [(o.name, o.count, o.source) for o in error.others] == [
        ("attention/scores", 1, "exp.py:52:9"),
        ("peak", 1, "exp.py:53:9"),
    ]
    assert (error.exit, error.metrics) == (1, None)


def test_D07_status_annotations_and_the_last_line(tmp_path: Path) -> None:
    made = engine(tmp_path, data(24, BIG))
    failed(made)
    text = (
        "failed: E-GUARD-001: guard geometry/off-manifold layer=3 counted 1 at step 3, expected 0; "
        "it is written at exp.py:41:5"
    )
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["stop_reason"], status["error"]) == ("failed", "guard", text)
    assert (made.stop_reason, made.step, made.t) == ("guard", 2, 2)
    first, second = of_type(tmp_path, "annotation")
    assert first == {
        "type": "annotation",
        "text": "guard geometry/off-manifold failed",
        "step": 3,
        "epoch": 1,
        "name": "geometry/off-manifold",
        "meta": {"layer": 3},
        "count": 1,
        "source": "exp.py:41:5",
    }
    assert second["text"] == "guard peak failed"
    assert lines(tmp_path)[-1] == {"type": "finish", "status": "guard", "error": text}


def test_the_second_call_of_a_series_is_the_one_that_is_named(tmp_path: Path) -> None:
    error = failed(engine(tmp_path, data(24, ("y", 9, -60.0))))
    assert (error.name, error.source) == ("geometry/off-manifold", "exp.py:44:9")
    value = series(lines(tmp_path, "train")[-1])["guard/geometry/off-manifold", 3]
    assert value == 1


def test_D05_training_guards_then_the_finite_guard_then_the_optimizer(tmp_path: Path) -> None:
    made = engine(tmp_path, data(24, ("y", 9, 88.0), ("x", 10, np.nan)))
    error = failed(made)
    assert [line.partition(" ")[2].partition(" at step")[0] for line in str(error).splitlines()][
        :3
    ] == [
        "guard geometry/off-manifold layer=3 counted 1",
        "guard peak counted 1, written at exp.py:53:9",
        "the loss was nan, expected a finite number",
    ]
    update = "also: guard update group=default param=b counted 3, written at exp.py:80:5"
    assert update in str(error)
    assert [o.name for o in error.others] == ["peak", "finite", "update"]
    texts = [line["text"] for line in of_type(tmp_path, "annotation")]
    assert texts == [
        "guard geometry/off-manifold failed",
        "guard peak failed",
        "guard finite failed",
        "guard update failed",
    ]
    assert made.stop_reason == "guard"


def test_a_finite_guard_before_an_optimizers_is_a_divergence(tmp_path: Path) -> None:
    values = data(24, ("x", 10, np.nan))
    error = failed(engine(tmp_path, values))
    assert (error.code, error.name) == ("E-GUARD-002", "the loss")
    (annotation,) = of_type(tmp_path, "annotation")
    assert annotation["text"] == "guard finite failed"
    assert (annotation["name"], annotation["found"]) == ("finite", "the loss")
    assert lines(tmp_path)[-1]["status"] == "diverged"


def test_a_guard_comes_before_a_step_without_weight(tmp_path: Path) -> None:
    values = data(24, BIG)
    values["m"][8:12] = 0
    error = failed(engine(tmp_path, values))
    assert error.code == "E-GUARD-001"
    assert "also: the weights of step 3 add up to 0, expected more than 0" in str(error)
    values["y"][9] = 0
    with pytest.raises(DataError, match="weights of step 3"):
        engine(tmp_path / "b", values).train()


# ------------------------------------------------------------------------------ stopping, lines


def series(line: Mapping[str, Any]) -> dict[tuple[str, Any], Any]:
    """The tagged points of a line by name and first tag."""
    return {
        (point["name"], next(v for k, v in point["meta"].items() if k not in ("split", "stage"))): (
            point["value"]
        )
        for point in line["series"]
    }


def test_D04_it_stops_at_its_step_with_the_next_one_in_flight(tmp_path: Path) -> None:
    store = TopKCheckpointer()
    made = engine(tmp_path, data(40, BIG), log_every=10, checkpointer=store)
    error = failed(made)
    assert error.step == 3
    assert [line["step"] for line in lines(tmp_path, "train")] == [1, 3]
    assert not read_manifest(tmp_path / "run")
    before = engine(tmp_path / "b", data(40, BIG), max_steps=2).train()
    for name, array in before._run.machine.arrays().items():
        if name != "slot/halted":
            np.testing.assert_array_equal(made._run.machine.arrays()[name], array, err_msg=name)
    assert (made.step, made.t) == (2, 2)


def test_lines_carry_a_flat_zero_and_series_with_metadata(tmp_path: Path) -> None:
    values = data(16, ("y", 5, 66.0))
    values["y"][5] = 0
    engine(tmp_path, values).train()
    for line in lines(tmp_path, "train"):
        at = slice(4 * line["step"] - 4, 4 * line["step"])
        assert (line["guard/attention/scores"], line["guard/peak"]) == (0, 0)
        assert line["peak"] == values["y"][at].max()
        assert "spread" not in line
        assert not [name for name in line if "{" in name or name.endswith("geometry/norm")]
        by_name = {point["name"]: point for point in line["series"]}
        assert by_name["spread"] == {
            "name": "spread",
            "meta": {"layer": 1, "split": "train", "stage": "train"},
            "value": values["x"][at].max(),
        }
        assert by_name["guard/update"]["meta"]["group"] == "default"
        assert len(by_name) == len(line["series"]) == 3


def test_D02_a_bound_counts_every_value_and_the_series_says_their_mean(tmp_path: Path) -> None:
    values = data(16)
    values["y"][:] = np.repeat([1, 2, 19, 21], 4)
    error = failed(engine(tmp_path, values, line=Line(marks=True, accum=2)))
    assert (error.name, error.count, error.step) == (PEAK, 1, 2)
    first, second = lines(tmp_path, "train")
    assert (first["peak"], first["guard/peak"]) == (1.5, 0)
    assert (second["peak"], second["guard/peak"]) == (20, 1)


def test_a_series_without_an_execution_has_no_point(tmp_path: Path) -> None:
    values = data(8, ("y", 5, 66.0))
    failed(engine(tmp_path, values))
    first, second = lines(tmp_path, "train")
    assert ("spread", 1) in series(first)
    assert ("spread", 1) not in series(second)


def test_other_loggers_have_series_among_the_values(tmp_path: Path) -> None:
    class Seen(JSONLogger):
        def log_metrics(self, metrics: Any, **more: Any) -> None:
            seen.append((dict(metrics), more))

    seen: list[Any] = []
    made = engine(tmp_path, data(8), data(6, seed=1))
    made._run.loggers.all[:] = [Seen()]
    made.train()
    metrics, more = seen[0]
    assert metrics["guard/geometry/off-manifold{layer=3}"] == 0
    assert metrics["spread{layer=1}"] == series({"series": more["series"]})["spread", 1]
    metrics, more = seen[-1]
    assert more["context"] == "validate"
    assert metrics["mean-x{part=a,split=val}"] == pytest.approx(2 * metrics["mean-x"])
    assert more["series"][0]["meta"] == {"part": "a", "split": "val", "stage": "evaluate"}


def test_a_value_that_is_not_finite_is_null_and_named(tmp_path: Path) -> None:
    values = data(8, ("y", 1, np.nan))
    failed(engine(tmp_path, values))
    (line,) = lines(tmp_path, "train")
    assert line["peak"] is None
    assert "peak" in line["nonfinite"]
    values = data(8, ("x", 1, np.nan))
    failed(engine(tmp_path / "b", values))
    (line,) = lines(tmp_path / "b", "train")
    assert series(line)["spread", 1] is None
    assert "spread{layer=1}" in line["nonfinite"]
    assert "spread{layer=1}" not in line


def test_a_count_beyond_2_to_the_24_is_in_the_error_only(tmp_path: Path) -> None:
    from nitro_runtime.marks import EXACT, Site, guard_series

    site = Site("a", "guard", "a", {}, "exp.py:1:1")
    assert [s.value for s in guard_series([(site, EXACT, 0)], "train", "train")] == [EXACT]
    assert guard_series([(site, EXACT, 0), (site, 1, 0)], "train", "train") == []


def test_guards_are_neither_in_history_nor_metrics(tmp_path: Path) -> None:
    made = engine(tmp_path, data(8), data(6, seed=1)).train()
    assert made.history.columns == [
        "epoch", "step", "loss", "val_loss", "worst", "mean-x", "mean-x{part=a}"
    ]  # fmt: skip
    assert not [name for name in made.evaluate() if name.startswith("guard")]


# ------------------------------------------------------------------------------------ evaluation


def test_short_batches_run_at_their_own_width_and_weigh_by_their_rows(tmp_path: Path) -> None:
    val = data(6, seed=1)
    made = engine(tmp_path, data(8), val)
    found = made.evaluate()
    x = val["x"][:, 0].astype(np.float64)
    assert found["mean-x"] == pytest.approx(x.mean(), rel=1e-5)
    assert found["mean-x{part=a}"] == pytest.approx(2 * x.mean(), rel=1e-5)
    assert set(made._run.machine.compiled) == {
        "forward.b4", "forward.b2", "reduce.b4.r4", "reduce.b2.r2"
    }  # fmt: skip


def test_predict_fills_and_leaves_counts_unread(tmp_path: Path) -> None:
    made = engine(tmp_path, data(8))
    x = data(3, ("x", 2, 99.0))["x"]
    assert made.predict({"x": x})["pred"].shape == (3,)
    assert made._run.machine.compiled == ["forward.b4"]


def test_a_row_count_without_a_program_says_why_it_is_not_filled(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it holds marks, so none is filled up"):
        engine(tmp_path, data(8), data(7, seed=1)).evaluate()


def test_D08_a_guard_of_a_pass_stops_after_it(tmp_path: Path) -> None:
    val = data(6, ("x", 0, 99.0), ("x", 1, 98.0), ("x", 5, 97.0), ("y", 2, 60.0), seed=1)
    made = engine(tmp_path, data(8), val, checkpointer=TopKCheckpointer(), max_epochs=3)
    error = failed(made)
    assert str(error).splitlines() == [
        "E-GUARD-001: guard tall counted 3 in evaluation of val at step 2, expected 0; "
        "it is written at exp.py:60:9",
        "also: guard wrong counted 1, written at exp.py:70:9",
        "help: no checkpoint of epoch 1 was written; no checkpoint yet",
    ]
    assert (error.stage, error.split, error.step, error.epoch) == ("evaluate", "val", 2, 1)
    assert error.metrics is not None
    (line,) = lines(tmp_path, "validate")
    assert line["guard/tall"] == 3
    assert line["val_loss"] == error.metrics["val_loss"]
    assert [x["name"] for x in of_type(tmp_path, "annotation")] == ["tall", "wrong"]
    assert not read_manifest(tmp_path / "run")
    assert not (tmp_path / "run" / "replay").exists()
    assert (made.stop_reason, made.step) == ("guard", 2)


def test_D08_an_evaluation_outside_training_carries_its_metrics(tmp_path: Path) -> None:
    made = engine(tmp_path, data(8), data(6, ("x", 0, 99.0), seed=1))
    with pytest.raises(GuardError, match="guard tall counted 1 in evaluation of val") as caught:
        made.evaluate()
    assert caught.value.metrics is not None
    assert "val_loss" in caught.value.metrics


def test_a_metric_of_a_mark_ranks_and_one_with_a_taken_name_is_refused(tmp_path: Path) -> None:
    store = TopKCheckpointer(metric="mean-x")
    made = engine(tmp_path, data(8), data(6, seed=1), checkpointer=store).train()
    (entry,) = read_manifest(tmp_path / "run")
    assert entry["score"] == made.history[-1]["mean-x"]
    with pytest.raises(UsageError, match="guard/tall"):
        engine(
            tmp_path / "b", data(8), data(6), checkpointer=TopKCheckpointer(metric="guard/tall")
        ).train()


def test_marks_of_host_metrics_are_collected_from_the_numpy_place(tmp_path: Path) -> None:
    class Host(type(host())):  # type: ignore[misc]
        def metrics(self, outputs: Any, fields: Any) -> Any:
            place = places.current()
            assert place is not None
            assert place.kind is places.Kind.NUMPY
            meta = (("part", "h"),)
            bound = {"below": 9.0, "count": int((fields["y"] > 9).sum()), "source": "exp.py:9:1"}
            value = float(len(fields["y"]))
            place.collected += [
                places.Found("guard", "host", count=int((fields["y"] > 50).sum()), odd=0),
                places.Found("metric", "rows", meta, value=value, **bound),
                places.Found("metric", "plain", value=value),
            ]
            return {"error": (1.0, 1)}

    val = data(6, ("y", 5, 60.0), seed=1)
    val["y"][:5] = 0
    given = Host(
        splits={"train": arrays(data(8), 4), "val": arrays(val, 4)},
        values={"learning_rate": 0.05, "shift": 0.0},
        metric_fields=("y",),
        logger=JSONLogger(),
    )
    made = Engine(bundle(MARKED), given, options(tmp_path, max_epochs=1))
    error = failed(made)
    assert error.metrics is not None
    # 4 rows say 4, 2 rows say 2
    assert error.metrics["plain"] == pytest.approx((4 * 4 + 2 * 2) / 6)
    assert error.metrics["rows{part=h}"] == error.metrics["plain"]
    assert [x.name for x in error.others] == ["host", "rows"]
    (line,) = lines(tmp_path, "validate")
    assert line["guard/host"] == 1
    assert "guard/plain" not in line


# ----------------------------------------------------------------------------------- diagnostics


def test_a_selected_diagnostic_is_on_sampled_lines_only(tmp_path: Path) -> None:
    values = data(24)
    made = engine(
        tmp_path, values, diagnostics=("geometry/*",), sample_every=2, log_every=5
    ).train()
    found = lines(tmp_path, "train")
    assert [line["step"] for line in found] == [1, 2, 4, 5, 6]
    for line in found:
        assert ("geometry/norm" in line) == (line["step"] % 2 == 0)
        assert "other/mean" not in line
        assert "guard/peak" in line
    at = slice(4, 8)
    assert found[1]["geometry/norm"] == values["y"][at].max()
    assert found[1]["guard/geometry/norm"] == 0
    assert "train_step_sampled" in made._run.machine.compiled


def test_a_sampled_step_is_the_same_step_and_compiled_before_the_first(tmp_path: Path) -> None:
    values = data(24)
    plain = engine(tmp_path / "a", values).train()
    seen = engine(tmp_path / "b", values, diagnostics=("*",), sample_every=3)
    compiled: list[str] = []
    original = seen._run.loggers.metrics

    def first(*args: Any, **keywords: Any) -> None:
        compiled.append(",".join(seen._run.machine.compiled))
        original(*args, **keywords)

    seen._run.loggers.metrics = first  # type: ignore[method-assign]
    seen.train()
    assert compiled[0] == "train_step,train_step_sampled"
    assert plain._run.machine.compiled == ["train_step"]
    np.testing.assert_array_equal(plain.parameters["w"], seen.parameters["w"])


def test_D09_a_bound_of_a_diagnostic_counts_where_it_is_selected_and_sampled(
    tmp_path: Path,
) -> None:
    values = data(32)
    values["y"][:] = 35
    line = Line(marks=True, bounded=False)
    for path, chosen in (("none", ()), ("other", ("other/*",))):
        made = engine(tmp_path / path, values, line=line, diagnostics=chosen, sample_every=4)
        assert made.train().t == 8
    made = engine(tmp_path / "norm", values, line=line, diagnostics=("g*norm",), sample_every=4)
    error = failed(made)
    assert (error.name, error.step, error.source) == ("geometry/norm", 4, "exp.py:55:9")


def test_a_pattern_that_fits_nothing_lists_the_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no diagnostic fits 'geometry/nrom'; did you") as caught:
        engine(tmp_path, data(8), diagnostics=("geometry/*", "geometry/nrom"))
    assert caught.value.code == "E-USAGE-068"
    assert "geometry/norm, other/mean" in caught.value.help
    with pytest.raises(UsageError, match="no diagnostic fits 'never'"):
        engine(tmp_path, data(8), diagnostics=("never",))
    with pytest.raises(UsageError, match="sample_every is 0"):
        engine(tmp_path, data(8), sample_every=0)


# ----------------------------------------------------------------------------------------- replay


def test_a_replay_holds_the_state_before_the_step_and_its_batch(tmp_path: Path) -> None:
    values = data(40, BIG)
    made = engine(tmp_path, values, seed=7)
    error = failed(made)
    kept = replay.read(tmp_path / "run" / "replay" / "step-3")
    for field in "xym":
        np.testing.assert_array_equal(kept.batch[field][0, 0], values[field][8:12])
    before = engine(tmp_path / "b", values, seed=7, max_steps=2).train()._run.machine.arrays()
    del before["slot/halted"]
    assert kept.state.keys() == before.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(kept.state[name], array, err_msg=name)
    record = kept.record
    assert (record["step"], record["epoch"], record["seed"]) == (3, 1, 7)
    assert record["scalars"] == {"learning_rate": 0.05, "shift": 0.0}
    assert (record["program"], record["mask"]) == ("train_step", None)
    assert record["error"]["code"] == error.code
    assert record["bundle"] == made.manifest.digest
    assert record["run_id"] == made.run_id


def test_a_replay_of_a_scheduled_and_sampled_step(tmp_path: Path) -> None:
    made = engine(tmp_path, data(40, BIG), diagnostics=("other/*",), sample_every=3)
    made._run.scalars.schedules["shift"] = schedule = _Ramp()
    failed(made)
    record = replay.read(tmp_path / "run" / "replay" / "step-3").record
    assert record["scalars"]["shift"] == 0.3
    assert schedule.asked == 4
    assert (record["program"], record["mask"]) == ("train_step_sampled", [False, True, False])


class _Ramp:
    """A schedule that remembers how far it was asked."""

    warning: str | None = None
    asked = 0

    def __call__(self, step: int) -> float:
        self.asked = step
        return step / 10


def test_the_newest_replay_of_a_run_is_kept_and_anothers_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "replay"
    first = failed(engine(tmp_path, data(40, BIG)))
    made = engine(tmp_path, data(40, BIG))
    failed(made)
    own = folder / f"step-3-{made.run_id}"
    assert sorted(folder.iterdir()) == sorted([folder / "step-3", own])
    assert first.step == replay.read(own).record["step"] == 3
    again = replay.Replay({}, {}, {**replay.read(own).record, "step": 5})
    assert replay.write(tmp_path / "run", again) == folder / "step-5"
    assert sorted(path.name for path in folder.iterdir()) == ["step-3", "step-5"]


def test_a_replay_that_cant_be_written_hides_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = engine(tmp_path, data(24, BIG), quiet=False)
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "replay").write_text("in the way")
    error = failed(made)
    assert "replay" not in error.help
    assert "the replay of step 3 can't be written" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["state.safetensors", "batch.safetensors", "step.json"])
def test_a_damaged_replay_is_refused(tmp_path: Path, name: str) -> None:
    failed(engine(tmp_path, data(24, BIG)))
    path = tmp_path / "run" / "replay" / "step-3"
    (path / name).write_bytes((path / name).read_bytes()[:-40])
    with pytest.raises(RunError, match="no replay can be read") as caught:
        replay.read(path)
    assert caught.value.code == "E-RUN-007"


# ----------------------------------------------------------------------------------------- places


@pytest.mark.parametrize("threaded", [True, False])
def test_sources_schedules_loggers_and_rules_run_where_marks_are_refused(
    tmp_path: Path, threaded: bool
) -> None:
    from nitro_runtime.data import NoPrefetch, Prefetch

    seen: set[tuple[str, Any]] = set()

    def here(name: str) -> None:
        place = places.current()
        seen.add((name, None if place is None else place.kind))

    class Source:
        inner = arrays(rows(16), 4)

        def __len__(self) -> int:
            here("len")
            return 4

        def begin_epoch(self, epoch: int, seed: int) -> Any:
            here("begin_epoch")
            return self.inner.begin_epoch(epoch, seed)

        def batch_at(self, i: int, plan: Any) -> Any:
            here("batch_at")
            return self.inner.batch_at(i, plan)

    class Logger(JSONLogger):
        def log_metrics(self, *args: Any, **keywords: Any) -> None:
            here("logger")

    class Stopper:
        def should_stop(self, epoch: int, metrics: Any) -> bool:
            here("stopper")
            return False

    def factory(total: int) -> Any:
        here("factory")

        def at(step: int) -> float:
            here("schedule")
            return 0.1

        return at

    given = host(
        splits={"train": (Prefetch if threaded else NoPrefetch)(Source())},
        schedules={"shift": factory},
        logger=Logger(),
        early_stop=Stopper(),
    )
    Engine(bundle(), given, options(tmp_path, max_epochs=2)).train()
    names = ["len", "begin_epoch", "batch_at", "logger", "stopper", "factory", "schedule"]
    assert seen == {(name, places.Kind.REFUSED) for name in names}
    assert places.current() is None
