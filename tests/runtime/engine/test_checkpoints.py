"""Checkpoints, and runs that go on from them as if they had never stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from line_bundle import Line, bundle, files, host, options

from nitro_runtime.bundle import Bundle
from nitro_runtime.checkpoints import TopKCheckpointer, read_manifest
from nitro_runtime.engine import Engine
from nitro_runtime.errors import CheckpointError, GuardError, RunError, UsageError
from nitro_runtime.logging import JSONLogger
from nitro_runtime.manifest import FieldEntry
from nitro_runtime.run_dir import runs
from nitro_runtime.snapshot import Snapshot, checkpoint_info
from nitro_runtime.stopping import EarlyStopping

TESTS = Path(__file__).parents[2]


def saving(**changes: Any) -> Any:
    given = {
        "logger": JSONLogger(),
        "checkpointer": TopKCheckpointer(k=2),
        "schedules": {"learning_rate": lambda total: lambda step: 0.05 / step},
        "early_stop": EarlyStopping(patience=50),
    }
    return host(**{**given, **changes})


def trained(path: Path, epochs: int, *, line: Line = Line(), **changes: Any) -> Engine:  # noqa: B008
    given = {k: changes.pop(k) for k in ("checkpointer", "early_stop") if k in changes}
    return Engine(
        bundle(line), saving(**given), options(path, max_epochs=epochs, **changes)
    ).train()


def everything(engine: Engine) -> dict[str, np.ndarray]:
    return engine._run.machine.arrays()


def same_run(a: Engine, b: Engine) -> None:
    left, right = everything(a), everything(b)
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.tobytes() == right[name].tobytes(), name
    assert a.history.rows == b.history.rows
    assert (a.step, a.t, a.epoch) == (b.step, b.t, b.epoch)


def metric_lines(path: Path) -> list[str]:
    text = (path / "run" / "metrics.jsonl").read_text()
    return [x for x in text.splitlines() if '"context":"train"' in x or '"context":"val' in x]


def ranking(path: Path) -> list[tuple[Any, ...]]:
    return [(r["file"], r["step"], r["score"]) for r in read_manifest(path / "run")]


def test_the_best_and_the_newest_are_kept(tmp_path: Path) -> None:
    engine = trained(tmp_path, 6)
    rows = read_manifest(tmp_path / "run")
    scores = {i + 1: row["val_loss"] for i, row in enumerate(engine.history)}
    best = sorted(scores, key=lambda epoch: scores[epoch])[:2]
    assert {row["epoch"] for row in rows} == {*best, 6}
    on_disk = {p.name for p in (tmp_path / "run").glob("epoch-*")}
    assert on_disk == {row["file"] for row in rows}
    for row in rows:
        score = scores[row["epoch"]]
        assert row["file"] == f"epoch-{row['epoch']:04d}-step-{row['step']}-val_loss={score:.6g}"
        assert row["run_id"] == engine.run_id
    assert max(rows, key=lambda r: r["step"])["stop_reason"] == "completed"
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_meta_holds_the_keys_of_the_format(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    (place,) = (tmp_path / "run").glob("epoch-*")
    meta = json.loads((place / "meta.json").read_text())
    assert set(meta) == {
        "format", "files", "producer", "written_at", "run_id", "parent", "bundle", "epoch",
        "step", "t", "position", "skips", "seed", "horizon", "options", "preset", "fields",
        "devices", "derived", "layout", "anchors", "metrics", "score", "early_stop",
        "checkpointer", "logger", "weights_from", "stop_reason",
    }  # fmt: skip
    info = checkpoint_info(place)
    assert (info.epoch, info.step, info.stop_reason) == (1, 4, "completed")
    assert info.metrics["val_loss"] == meta["score"]["value"]
    names = {row["path"] for row in meta["layout"]}
    assert names == {
        "param/w", "param/b", "slot/mu/w", "slot/mu/b", "slot/t", "slot/attempt", "state/mean"
    }  # fmt: skip


def test_printing_a_checkpoint_prints_no_tensor(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    keeper = TopKCheckpointer(dir=tmp_path / "run")
    record = keeper.load(read_manifest(tmp_path / "run")[0]["file"])
    assert repr(record) == f"Snapshot(epoch=1, step=4, {len(record.arrays)} arrays, 52 bytes)"


def test_resume_is_bit_for_bit_the_uninterrupted_run(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 6)
    part = tmp_path / "part"
    for epochs in (2, 3, 6):
        last = trained(part, epochs, resume="auto", schedule_total=24)
    pinned = trained(tmp_path / "pinned", 6, schedule_total=24)
    same_run(last, whole)
    same_run(last, pinned)
    assert metric_lines(part) == metric_lines(tmp_path / "whole")
    assert ranking(part) == ranking(tmp_path / "whole")
    assert last._run.stopper.state_dict() == whole._run.stopper.state_dict()
    assert len({row["run_id"] for row in read_manifest(part / "run")}) == 1


PROGRAM = """
import sys
from pathlib import Path
from test_checkpoints import trained
trained(Path(sys.argv[1]), int(sys.argv[2]), resume="auto", schedule_total=20)
"""


def test_resume_in_another_process_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 5, schedule_total=20)
    where = [str(TESTS), str(TESTS / "runtime" / "engine")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(where)}
    for epochs in (2, 5):
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "part"), str(epochs)],
            check=True,
            env=environment,
        )
    last = trained(tmp_path / "part", 5, resume="latest", schedule_total=20)
    same_run(last, whole)
    assert metric_lines(tmp_path / "part") == metric_lines(tmp_path / "whole")


def test_F07_auto_in_an_empty_directory_is_a_fresh_run_and_latest_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = trained(tmp_path, 1, resume="auto", quiet=False)
    assert engine.step == 4
    assert "resume=auto: no checkpoint" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        trained(tmp_path / "empty", 1, resume="latest")


def test_F07_a_completed_run_returns_with_the_reason_and_goes_on_with_more_epochs(
    tmp_path: Path,
) -> None:
    first = trained(tmp_path, 2)
    again = trained(tmp_path, 2, resume="auto")
    assert again.stop_reason == "completed"
    assert again.step == first.step
    assert again.notes[-1] == "nothing to train: the run ended as completed at epoch 2, step 8"
    more = trained(tmp_path, 3, resume="auto")
    assert (more.step, more.run_id) == (12, first.run_id)
    assert "resume: the horizon was 8 steps, it is 12" in more.notes


def test_F07_resume_beside_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two sources"):
        options(tmp_path, resume="auto", checkpoint="x")


def test_a_damaged_newest_is_named_and_the_one_before_is_used(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 4, checkpointer=TopKCheckpointer(k=9))
    part = trained(tmp_path / "part", 3, checkpointer=TopKCheckpointer(k=9), schedule_total=16)
    newest = max(read_manifest(tmp_path / "part" / "run"), key=lambda row: row["step"])
    tensors = tmp_path / "part" / "run" / newest["file"] / "state.safetensors"
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    last = trained(
        tmp_path / "part", 4, resume="auto", checkpointer=TopKCheckpointer(k=9), schedule_total=16
    )
    assert any(f"checkpoint {newest['file']} is damaged" in note for note in last.notes)
    assert last.run_id == part.run_id
    same_run(last, whole)
    assert ranking(tmp_path / "part") == ranking(tmp_path / "whole")


def test_best_forks_a_run_with_a_parent(tmp_path: Path) -> None:
    first = trained(tmp_path, 3)
    rows = read_manifest(tmp_path / "run")
    best = min(rows, key=lambda row: row["score"])
    fork = trained(tmp_path, 5, resume="best")
    assert fork.run_id != first.run_id
    assert fork._run.parent == {"run_id": first.run_id, "file": best["file"]}
    listed = read_manifest(tmp_path / "run")
    assert rows == [row for row in listed if row["run_id"] == first.run_id]
    assert {r["parent"]["run_id"] for r in listed if r["run_id"] == fork.run_id} == {first.run_id}
    assert [row.run_id for row in runs(tmp_path / "run")] == [first.run_id, fork.run_id]


def test_a_run_id_and_a_path_are_resumed(tmp_path: Path) -> None:
    first = trained(tmp_path, 2)
    newest = max(read_manifest(tmp_path / "run"), key=lambda row: row["step"])
    by_id = trained(tmp_path, 3, resume=first.run_id)
    assert (by_id.run_id, by_id.step) == (first.run_id, 12)
    elsewhere = trained(tmp_path / "b", 3, resume=tmp_path / "run" / newest["file"])
    assert elsewhere._run.parent["run_id"] == first.run_id
    same_run(by_id, elsewhere)
    with pytest.raises(CheckpointError, match="names neither a run"):
        trained(tmp_path, 3, resume="nothing")


def test_the_stored_seed_wins_and_is_said(tmp_path: Path) -> None:
    trained(tmp_path, 1, seed=7)
    again = trained(tmp_path, 2, seed=8, resume="auto")
    assert again._run.seed == 7
    assert any("the stored seed 7 is used, not 8" in note for note in again.notes)


def test_a_changed_device_value_wins_and_is_said(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    given = saving(values={"learning_rate": 0.05, "shift": 0.5})
    again = Engine(bundle(), given, options(tmp_path, resume="auto", max_epochs=2))
    assert again.device_value("shift") == 0.5
    assert "resume: shift 0.0 -> 0.5" in again.notes


def test_a_changed_graphconst_is_refused_with_both_values(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    changed = {"width": FieldEntry("GraphConst", "int", 16, "", "default")}
    other = Bundle.from_files(files(fields=changed), trusted=True)
    with pytest.raises(CheckpointError, match="width was 8, is 16"):
        Engine(other, saving(), options(tmp_path, resume="auto"))


def test_a_changed_layout_is_refused_by_leaf(tmp_path: Path) -> None:
    engine = trained(tmp_path, 1)
    record = engine._run.checkpointer.load(read_manifest(tmp_path / "run")[0]["file"])
    rows = [dict(row) for row in record.meta["layout"]]
    rows[0]["shape"] = [5]
    meta = {**record.meta, "layout": [*rows[:-1], {**rows[-1], "path": "state/gone"}]}

    class Store(TopKCheckpointer):
        def load(self, name: str) -> Snapshot:
            return Snapshot(record.arrays, meta)

    with pytest.raises(CheckpointError, match="layout is another") as caught:
        Engine(bundle(), saving(checkpointer=Store()), options(tmp_path, resume="auto"))
    assert "param/w is f32[5] of group default in the checkpoint, f32[3]" in str(caught.value)
    assert "state/gone is not in the bundle" in str(caught.value)


def test_a_warm_start_takes_weights_only(tmp_path: Path) -> None:
    first = trained(tmp_path, 3)
    warm = Engine(bundle(), saving(), options(tmp_path / "b", checkpoint=tmp_path / "run"))
    best = min(read_manifest(tmp_path / "run"), key=lambda row: row["score"])
    record = first._run.checkpointer.load(best["file"])
    np.testing.assert_array_equal(warm.parameters["w"], record.arrays["param/w"])
    np.testing.assert_array_equal(warm.state["mean"], record.arrays["state/mean"])
    slots = warm._run.machine.arrays("slot")
    assert not slots["slot/mu/w"].any()
    assert (warm.step, warm.epoch, slots["slot/t"]) == (0, 0, 0)
    assert best["file"] in str(warm.checkpoint_source)
    with pytest.raises(CheckpointError, match="no checkpoint, run directory or run id"):
        Engine(bundle(), saving(), options(tmp_path / "c", checkpoint="nowhere"))


def test_early_stopping_ends_after_its_patience_and_is_saved(tmp_path: Path) -> None:
    stopper = EarlyStopping(patience=2, min_delta=1e9)
    engine = trained(tmp_path, 9, early_stop=stopper)
    assert (engine.stop_reason, engine.epoch) == ("early_stop", 3)
    newest = max(read_manifest(tmp_path / "run"), key=lambda row: row["step"])
    assert (newest["epoch"], newest["stop_reason"]) == (3, "early_stop")
    still = trained(tmp_path, 9, resume="auto", early_stop=EarlyStopping(patience=2, min_delta=1e9))
    assert (still.stop_reason, still.epoch) == ("early_stop", 3)
    other = trained(tmp_path, 9, resume="auto", early_stop=EarlyStopping(patience=4, min_delta=1e9))
    assert (other.stop_reason, other.epoch) == ("early_stop", 5)


def test_patience_is_carried_over_a_resume(tmp_path: Path) -> None:
    def stopper() -> EarlyStopping:
        return EarlyStopping(patience=3, min_delta=1e9)

    trained(tmp_path, 2, early_stop=stopper())
    again = trained(tmp_path, 9, resume="auto", early_stop=stopper())
    assert (again.stop_reason, again.epoch) == ("early_stop", 4)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"patience": 0}, "at least 1"),
        ({"mode": "mni"}, "min or max; did you mean 'min'"),
        ({"min_delta": -1.0}, "min_delta"),
    ],
)
def test_an_impossible_rule_is_refused(keywords: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EarlyStopping(**keywords)


def test_a_metric_that_decides_and_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    def given() -> Any:
        made = saving()
        made.finalize_metrics = lambda acc, split: {**acc, "val_loss": float("nan")}
        return made

    engine = Engine(bundle(), given(), options(tmp_path))
    with pytest.raises(GuardError, match="val_loss was nan in epoch 1"):
        engine.train()
    assert engine.stop_reason == "diverged"
    assert read_manifest(tmp_path / "run") == []
    goes_on = options(tmp_path / "b", on_nonfinite_metric="ignore")
    ignored = Engine(bundle(), given(), goes_on).train()
    assert ignored.stop_reason == "completed"
    (row,) = read_manifest(tmp_path / "b" / "run")
    assert (row["epoch"], row["score"]) == (3, None)
    again = Engine(
        bundle(),
        given(),
        options(tmp_path / "b", on_nonfinite_metric="ignore", resume="auto", max_epochs=4),
    ).train()
    assert np.isnan(again.history["val_loss"]).all()


def test_F03_a_metric_name_is_made_a_legal_file_name(tmp_path: Path) -> None:
    name = "val/acc@0.5 é" + "x" * 300
    given = saving(checkpointer=TopKCheckpointer(metric=name, mode="max"))
    given.finalize_metrics = lambda acc, split: {**acc, name: 0.25}
    Engine(bundle(), given, options(tmp_path)).train()
    for row in read_manifest(tmp_path / "run"):
        assert row["metric"] == name
        assert row["file"].startswith(f"epoch-{row['epoch']:04d}-step-{row['step']}-val_acc_0.5_x")
        assert len(row["file"]) < 100
        assert (tmp_path / "run" / row["file"]).is_dir()


def test_the_hook_names_checkpoints(tmp_path: Path) -> None:
    given = saving()
    given.checkpoint_filename = lambda *, epoch, step, metric, score: f"../e/{epoch}"
    Engine(bundle(), given, options(tmp_path, max_epochs=1)).train()
    (row,) = read_manifest(tmp_path / "run")
    assert row["file"] == "_e_1"


def test_keep_latest_false_writes_only_what_ranks(tmp_path: Path) -> None:
    engine = trained(tmp_path, 5, checkpointer=TopKCheckpointer(k=1, keep_latest=False))
    scores = engine.history["val_loss"]
    (row,) = read_manifest(tmp_path / "run")
    assert row["epoch"] == scores.index(min(scores)) + 1


def test_a_failed_write_surfaces_and_hides_nothing(tmp_path: Path) -> None:
    keeper = TopKCheckpointer(dir=tmp_path / "store")
    (tmp_path / "store").mkdir()

    class Fills(JSONLogger):
        def log_metrics(self, *args: Any, **keywords: Any) -> None:
            super().log_metrics(*args, **keywords)
            if keywords["step"] == 1:
                (tmp_path / "store").rmdir()
                (tmp_path / "store").write_text("a file")

    with pytest.raises(OSError, match="store"):
        Engine(bundle(), host(checkpointer=keeper, logger=Fills()), options(tmp_path)).train()


def test_F04_a_file_of_that_name_fails_at_setup(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunError, match="can't be written") as caught:
        Engine(bundle(), saving(), options(tmp_path))
    assert caught.value.code == "E-RUN-001"
    assert (tmp_path / "run").read_text() == "mine"


def test_F04_odd_names_and_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = Engine(bundle(), saving(), options(tmp_path, run_dir="räum 模型 (1) #x=1"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    engine.train()
    assert len(read_manifest(tmp_path / "räum 模型 (1) #x=1")) >= 1


def test_a_second_training_is_refused_and_a_dead_ones_lock_is_taken_over(tmp_path: Path) -> None:
    import socket

    lock = tmp_path / "run" / "run.lock"
    engine = Engine(bundle(), saving(), options(tmp_path))
    lock.write_text(json.dumps({"pid": os.getppid(), "host": socket.gethostname()}))
    with pytest.raises(RunError, match="is training in"):
        engine.train()
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    lock.write_text(json.dumps({"pid": int(dead.stdout), "host": socket.gethostname()}))
    engine.train()
    assert "is taken over" in engine.notes[-1]
    assert not lock.exists()


def test_the_run_directory_copies_what_explains_it(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    run = tmp_path / "run"
    assert json.loads((run / "bundle.json").read_text()) == {
        "digest": bundle().digest,
        "path": None,
    }
    assert (run / "manifest.json").read_bytes() == bundle().read("manifest.json")
    assert (run / "ir" / "train_step.nir").is_file()
