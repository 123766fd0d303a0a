"""Guards, metrics and diagnostics through the whole stack: what counts, what a failure says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from command_line import command, own_imports, succeed, write
from whole import Linear, bits, handle, rows

import nitroc as nt
from nitro_runtime.checkpoints import TopKCheckpointer, read_manifest
from nitro_runtime.errors import GuardError, NitroError
from nitro_runtime.logging import JSONLogger


def failed(nitro: nt.Nitro) -> GuardError:
    with pytest.raises(GuardError) as caught:
        nitro.train()
    return caught.value


def log(run_dir: Path) -> list[dict[str, Any]]:
    text = (run_dir / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


class Levels(Linear):
    """The loss of a batch is its `k`, whatever the parameters."""

    levels: tuple[float, ...] = (1.0, 2.0, 19.0, 21.0)

    def build_data(self) -> Any:
        k = np.repeat(np.float32(self.levels), 4)
        return {"train": nt.data.arrays({**rows(len(k)), "k": k}, 4)}

    def loss(self, outputs: Any, *, k: Any) -> Any:  # type: ignore[override]
        value = k.mean() + 0 * outputs.sum()
        nt.metric("level", k.mean(), below=20, above=0.5)
        return value


def test_D02_a_bound_looks_at_every_micro_batch_and_the_series_at_their_mean(
    tmp_path: Path,
) -> None:
    nitro = handle(Levels(), tmp_path, accum=2)
    error = failed(nitro)
    assert (error.name, error.count, error.step) == ("level", 1, 2)
    first, second = nitro.logger.lines("train")
    assert (first["level"], first["guard/level"]) == (1.5, 0)
    assert (second["level"], second["guard/level"]) == (20, 1)


@pytest.mark.parametrize("accum", [1, 2])
def test_D02_a_nan_is_neither_below_nor_above(tmp_path: Path, accum: int) -> None:
    nitro = handle(Levels(levels=(np.nan,) * accum), tmp_path, accum=accum, guard_finite=False)
    assert failed(nitro).count == 2 * accum


class Spiked(Linear):
    """The third batch has a row whose x is above the limit."""

    limit: nt.Device[float] = 50.0

    def build_data(self) -> Any:
        data = rows(40)
        data["x"][9, 1] = 60
        return {"train": nt.data.arrays(data, 4)}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        nt.guard("x/large", nt.count_where(jnp.abs(x) > self.limit), layer=3)
        return x @ params["w"] + params["b"], state


def test_D04_it_stops_at_the_step_that_counted(tmp_path: Path) -> None:
    options = {"logger": JSONLogger(), "checkpointer": TopKCheckpointer(), "log_every": 10}
    nitro = handle(Spiked(learning_rate=0.01), tmp_path / "a", **options)
    error = failed(nitro)
    assert (error.step, error.count, dict(error.meta)) == (3, 1, {"layer": 3})
    train = [line for line in log(tmp_path / "a") if line.get("context") == "train"]
    assert [line["step"] for line in train] == [1, 3]
    assert train[-1]["series"] == [
        {"name": "guard/x/large", "meta": {"layer": 3, "split": "train", "stage": "train"},
         "value": 1}
    ]  # fmt: skip
    assert not read_manifest(tmp_path / "a")
    before = handle(Spiked(learning_rate=0.01), tmp_path / "b", max_steps=2).train()
    assert bits(nitro.parameters) == bits(before.parameters)
    assert (nitro.step, nitro.stop_reason) == (2, "guard")


@nt.rule()
def watched(g: Any) -> Any:
    nt.assert_finite("update", g)
    return g


class Both(Linear):
    def optimizer(self, group: str) -> Any:
        return watched

    def build_data(self) -> Any:
        data = rows(16)
        data["x"][5] = np.nan
        return {"train": nt.data.arrays(data, 4)}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        nt.guard("first", nt.count_where(jnp.isnan(x).any(-1)))
        return nt.assert_finite("second", x @ params["w"] + params["b"]), state


def test_D05_all_that_counted_are_listed_in_order(tmp_path: Path) -> None:
    error = failed(handle(Both(), tmp_path))
    assert error.name == "first"
    assert [other.name for other in error.others] == ["second", "finite", "update"]
    lines = str(error).splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        "E-GUARD-001:", "also:", "also:", "also:", "also:", "help:"
    ]  # fmt: skip
    assert lines[1].startswith("also: guard second counted 1, written at ")
    assert lines[2] == "also: the loss was nan, expected a finite number"
    assert lines[3] == "also: the first parameter whose gradient was not finite: b"
    assert lines[4].startswith("also: guard update group=default param=b counted 1, written at ")


GUARDED = (
    '        return (x ** self.power @ params["w"] + params["b"])[:, 0] * self.scale, state',
    '        nt.guard("geometry/off-manifold", nt.count_where(jnp.abs(x) > self.limit), layer=3)\n'
    "        scores = jnp.where(jnp.abs(x).max() > self.limit, jnp.nan, 0.0)\n"
    '        nt.guard("attention/scores", scores)\n'
    '        return (x ** self.power @ params["w"] + params["b"])[:, 0] * self.scale, state',
)
LIMIT = ("    rows: int = ROWS", "    limit: nt.Device[float] = 5.0\n    rows: int = ROWS")
SPIKE = (
    "        split = {",
    "        x[9] = 7\n        split = {",
)
UNSHUFFLED = ('"train": nt.data.arrays(split, self.batch_size, shuffle=True)',
              '"train": nt.data.arrays(split, self.batch_size)')  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with own_imports():
        yield tmp_path


def position(text: str, call: str) -> str:
    """`exp.py:41:9` of the line that begins with `call`."""
    line = next(i for i, row in enumerate(text.splitlines(), 1) if row.strip().startswith(call))
    return f"exp.py:{line}:9"


def test_D07_the_command_says_what_counted_and_exits_1(folder: Path) -> None:
    exp = write(folder / "exp.py", GUARDED, LIMIT, SPIKE, UNSHUFFLED)
    text = exp.read_text()
    off, scores = position(text, 'nt.guard("geometry'), position(text, 'nt.guard("attention')
    succeed("build", exp, "-o", folder / "b", "-q")
    result = command("run", folder / "b", "--epochs", 1)
    assert result.status == 1
    head = (
        "E-GUARD-001: guard geometry/off-manifold layer=3 counted 1 at step 3, expected 0; "
        f"it is written at {off}"
    )
    assert result.err.splitlines()[-3:] == [
        f"nitroc run: {head}",
        f"also: guard attention/scores counted 1 (its count was NaN), written at {scores}",
        "help: nothing of step 3 was committed; replay: runs/Line/replay/step-3; no checkpoint yet",
    ]
    run_dir = folder / "runs" / "Line"
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["state"], status["error"]) == ("failed", f"failed: {head}")
    first, second = (line for line in log(run_dir) if line["type"] == "annotation")
    assert first == {
        "type": "annotation",
        "text": "guard geometry/off-manifold failed",
        "step": 3,
        "epoch": 1,
        "name": "geometry/off-manifold",
        "meta": {"layer": 3},
        "count": 1,
        "source": off,
    }
    assert (second["text"], second["source"]) == ("guard attention/scores failed", scores)
    last = {"type": "finish", "status": "guard", "error": f"failed: {head}"}
    assert log(run_dir)[-1] == last
    kept = {path.name for path in (run_dir / "replay" / "step-3").iterdir()}
    assert kept == {"state.safetensors", "batch.safetensors", "step.json"}


def test_D07_the_last_checkpoint_is_named(tmp_path: Path) -> None:
    made = Spiked(learning_rate=0.01, limit=1e9)
    store = TopKCheckpointer()
    nitro = handle(made, tmp_path, max_epochs=2, checkpointer=store, schedules={"limit": _limit})
    error = failed(nitro)
    assert (error.step, error.epoch) == (13, 2)
    assert error.help.endswith("; last checkpoint: epoch-0001-step-10")


def _limit(total: int) -> Any:
    return lambda step: 1e9 if step <= 10 else 50.0


VAL_ONLY = ('"val": nt.data.arrays(split, self.batch_size)',
            '"val": nt.data.arrays({**split, "x": x * 7}, self.batch_size)')  # fmt: skip


def test_D08_a_guard_that_counts_in_a_pass(folder: Path) -> None:
    exp = write(folder / "exp.py", GUARDED, LIMIT, VAL_ONLY)
    succeed("build", exp, "-o", folder / "b", "-q")
    result = command("run", folder / "b", "--set", "limit=1e9", "--epochs", 1, "-q")
    assert result.status == 0, result.err
    failing = command("run", folder / "b", "--epochs", 2, "--run-dir", folder / "f")
    assert failing.status == 1
    assert "in evaluation of val at step 4, expected 0; it is written at exp.py:" in failing.err
    assert "help: no checkpoint of epoch 1 was written; no checkpoint yet" in failing.err
    lines = [line for line in log(folder / "f") if line.get("context")]
    assert [line["context"] for line in lines][-1] == "validate"
    assert lines[-1]["series"][0]["value"] > 0
    assert not (folder / "f" / "replay").exists()
    assert not read_manifest(folder / "f")

    given = ("--checkpoint", folder / "runs" / "Line", "--split", "val")
    evaluated = command("evaluate", folder / "b", *given, "--json")
    assert evaluated.status == 1
    assert json.loads(evaluated.out).keys() == {"val_loss", "error"}
    assert evaluated.err.startswith("nitroc evaluate: E-GUARD-001: guard geometry/off-manifold")
    assert "in evaluation of val at step 4, expected 0" in evaluated.err
    np.savez(folder / "x.npz", x=np.full((3, 1), 99, np.float32))
    given = ("--checkpoint", folder / "runs" / "Line", "--input", folder / "x.npz")
    succeed("predict", folder / "b", *given, "-o", folder / "y.npz", "-q")
    assert np.load(folder / "y.npz")["outputs"].shape == (3,)


class Watched(Linear):
    """A diagnostic whose bound is violated at every step."""

    def build_data(self) -> Any:
        return {"train": nt.data.arrays(rows(32), 4)}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        nt.diagnostic("geometry/norm", jnp.linalg.norm(x), reduce="max", below=0.0)
        nt.diagnostic("other", x.mean())
        return x @ params["w"] + params["b"], state


@pytest.mark.parametrize("chosen", [(), ("other",)])
def test_D09_a_diagnostic_that_is_not_selected_never_stops(
    tmp_path: Path, chosen: tuple[str, ...]
) -> None:
    nitro = handle(Watched(), tmp_path, diagnostics=chosen, sample_every=4)
    assert nitro.train().stop_reason == "completed"
    found = [line["step"] for line in nitro.logger.lines("train") if "other" in line]
    assert found == ([4, 8] if chosen else [])


def test_D09_a_selected_one_stops_at_the_first_sample(tmp_path: Path) -> None:
    nitro = handle(Watched(), tmp_path, diagnostics=("geometry/*",), sample_every=4)
    error = failed(nitro)
    assert (error.name, error.step, nitro.step) == ("geometry/norm", 4, 3)


def test_D09_the_flags_of_the_command(folder: Path) -> None:
    watched = GUARDED[1].replace('guard("attention/scores", scores)', 'diagnostic("s", x.sum())')
    exp = write(folder / "exp.py", (GUARDED[0], watched), LIMIT)
    succeed("build", exp, "-o", folder / "b", "-q")
    succeed("run", folder / "b", "--epochs", 1, "--diagnostics", "s", "--sample-every", 2, "-q")
    train = [line for line in log(folder / "runs" / "Line") if line.get("context") == "train"]
    assert [line["step"] for line in train if "s" in line] == [2, 4]
    refused = command("run", folder / "b", "--diagnostics", "t")
    assert refused.status == 2
    assert "E-USAGE-068: no diagnostic fits 't'" in refused.err


class Numpy(Linear):
    """Host-resident metrics with marks: evaluated at once, on numpy."""

    def metrics(self, outputs: Any, *, y: Any) -> Any:
        nt.guard("wide", nt.count_where(np.abs(outputs) > 1e3), hook="metrics")
        nt.metric("rows", float(len(y)), below=self.most)
        return {"error": (float(np.abs(outputs - y).sum()), len(y))}

    most: float = 5.0


def test_D08_marks_of_host_metrics_count_in_the_pass(tmp_path: Path) -> None:
    nitro = handle(Numpy(), tmp_path / "a", max_epochs=1).train()
    (line,) = nitro.logger.lines("validate")
    assert line["rows"] == (4 * 4 + 2 * 2) / 6
    assert (line["guard/rows"], line["guard/wide{hook=metrics,split=val}"]) == (0, 0)
    assert nitro.history[-1]["rows"] == line["rows"]
    error = failed(handle(Numpy(most=4.0), tmp_path / "b", max_epochs=1))
    assert (error.name, error.count, error.split) == ("rows", 1, "val")
    assert str(error.source).startswith("test_guards.py:")


class Source:
    """A source that asks for what only a step could answer."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(2):
            made = rows(4)
            nt.guard("x", float(np.abs(made["x"]).max() > 99))
            yield made


@pytest.mark.parametrize("wrap", [nt.data.Prefetch, nt.data.NoPrefetch])
def test_D03_a_guard_in_a_source_or_a_schedule_is_refused(tmp_path: Path, wrap: Any) -> None:
    with pytest.raises(NitroError, match="no step it could stop") as caught:
        handle(Linear(), tmp_path / "a", data={"train": wrap(Source())}).train()
    assert caught.value.code == "E-CONTRACT-019"

    def schedule(step: int) -> float:
        return nt.metric("rate", 0.1)

    with pytest.raises(NitroError, match="no step it could stop"):
        handle(Linear(), tmp_path / "b", schedules={"learning_rate": nt.schedule(schedule)}).train()


class Finalizing(Linear):
    def finalize_metrics(self, acc: Any, split: str) -> Any:
        nt.diagnostic("dropped", 1.0, below=0.0)
        if self.guards:
            nt.assert_finite("acc", np.float32(1))
        return acc

    guards: bool = False


def test_D03_a_guard_in_finalize_metrics_is_refused_and_a_diagnostic_dropped(
    tmp_path: Path,
) -> None:
    assert handle(Finalizing(), tmp_path / "a").train().stop_reason == "completed"
    with pytest.raises(NitroError, match="finalize_metrics") as caught:
        handle(Finalizing(guards=True), tmp_path / "b").train()
    assert caught.value.code == "E-CONTRACT-019"


class Named(Linear):
    mark: nt.GraphConst[str] = "loss"

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        nt.metric(self.mark, x.mean())
        return x @ params["w"] + params["b"], state


def test_a_mark_called_as_another_value_of_the_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NitroError, match="the mark 'loss' has the name") as caught:
        handle(Named(), tmp_path / "train").train()
    assert caught.value.code == "E-USAGE-069"
    with pytest.raises(NitroError, match="'val_loss' has a name of another") as caught:
        handle(Named(mark="val_loss"), tmp_path / "val").train()
    assert caught.value.code == "E-DATA-069"
