"""Marks from the experiment to the bundle: programs, manifest, dumps, reports, widths."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole import Linear, handle, jnp, missed, rows, trained

import nitroc as nt
from nitro_dialect import parse
from nitro_runtime.bundle import Bundle, verify
from nitro_runtime.errors import NitroError
from nitroc.emit.program import program_text
from nitroc.frontend.setup import prepare


class Watched(Linear):
    """Marks of every kind, in every hook that may have one."""

    def prepare(self, *, x: Any, y: Any) -> Any:
        nt.assert_finite("inputs", x)
        return {"half": x / 2}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any, half: Any) -> Any:
        outputs = x @ params["w"] + params["b"]
        nt.guard("outputs/large", nt.count_where(jnp.abs(outputs) > 1e6), layer=3, kind="head")
        nt.diagnostic("half/largest", jnp.max(half), reduce="max", below=1e6)
        return outputs, state

    def loss(self, outputs: Any, *, y: Any) -> Any:
        error = nt.metric("error", jnp.mean(jnp.abs(outputs - y)), below=1e9)
        nt.diagnostic("outputs/mean", jnp.mean(outputs))
        return error

    def train_metrics(self, outputs: Any, *, y: Any) -> Any:
        nt.metric("target", jnp.mean(y))
        return {"off": jnp.mean(outputs - y)}

    def metrics(self, outputs: Any, *, y: Any) -> Any:
        nt.guard("labels", nt.count_where(y != y))
        nt.diagnostic("never", jnp.mean(y), below=3)
        return {"bias": (jnp.sum(outputs - y), y.shape[0])}

    def metrics_residency(self, hook: str) -> str:
        return "device"


LARGE = "outputs/large{kind=head,layer=3}"
STEPS = ("train_step", "train_step_sampled")
FORWARDS = ("forward.b4", "forward.b2")
REDUCES = ("reduce.b4.r4", "reduce.b2.r2")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bundle/` of `Watched`, with its `stages/`."""
    root = tmp_path_factory.mktemp("watched")
    options: dict[str, Any] = {"accum": 2, "gradient_clip_norm": 1.0}
    nt.build(Watched(), root / "bundle", dump_ir=root / "stages", roundtrip=True, **options)
    return root


def test_marks_are_placed_where_they_run_in_the_order_of_the_source(built: Path) -> None:
    manifest = Bundle.open(built / "bundle").manifest
    placed = manifest.guards.placed
    assert {key: set(entry.programs) for key, entry in placed.items()} == {
        "inputs": {*STEPS, *FORWARDS},
        LARGE: {*STEPS, *FORWARDS},
        "half/largest": {"train_step_sampled"},
        "error": {*STEPS, *REDUCES},
        "outputs/mean": {"train_step_sampled"},
        "target": set(STEPS),
        "labels": set(REDUCES),
        "never": set(),
    }
    assert list(placed) == [
        "inputs", LARGE, "half/largest", "error", "outputs/mean", "target", "labels", "never"
    ]  # fmt: skip
    entry = placed[LARGE]
    assert (entry.kind, entry.name) == ("guard", "outputs/large")
    assert entry.metadata == {"kind": "head", "layer": 3}
    assert placed["inputs"].kind == "finite"
    assert (placed["error"].below, placed["error"].above) == (1e9, None)
    assert (placed["half/largest"].reduce, placed["half/largest"].below) == ("max", 1e6)
    for key, entry in placed.items():
        name, line, column = entry.source.rsplit(":", 2)
        text = Path(__file__).read_text().splitlines()[int(line) - 1]
        assert name.endswith("test_marked_bundles.py")
        assert f'"{key.partition("{")[0]}"' in text, entry.source
        assert text[int(column) - 1 :].startswith("nt."), entry.source


def test_words_of_the_report_say_what_they_are(built: Path) -> None:
    manifest = Bundle.open(built / "bundle").manifest
    entries = {entry.name: entry for entry in manifest.report}
    words = {word.name: word for word in manifest.programs["train_step"].report}
    assert entries.keys() == words.keys()
    large = entries[f"guard/{LARGE}"]
    assert (large.kind, large.metadata) == ("guard", {"kind": "head", "layer": 3})
    assert large.source == manifest.guards.placed[LARGE].source
    assert large.index == words[large.name].index
    assert words[large.name].dtype == "i64"
    assert entries["guard/inputs"].kind == "finite"
    assert entries["mark/error:sum"].kind == entries["guard/error"].kind == "metric"
    assert entries["metric/off.sum"].kind == "metric"
    assert entries["loss"].kind == "step"
    assert not any("half/largest" in name for name in entries)


def test_the_sampled_step_has_a_mask_and_the_same_state(built: Path) -> None:
    programs = Bundle.open(built / "bundle").manifest.programs
    step, sampled = (programs[name] for name in STEPS)
    assert sampled.role == "train_step_sampled"
    assert sampled.dims == step.dims == {"width": 4, "accum": 2, "capacity": 1}
    (mask,) = (arg for arg in sampled.args if arg.role == "mask")
    assert (mask.name, mask.dtype, mask.shape) == ("mask", "i1", (3,))
    own = {arg.name for arg in sampled.args} - {"mask"}
    assert own == {arg.name for arg in step.args} - {"steps"}


@pytest.mark.parametrize("stage", range(9))
def test_any_dump_goes_on_to_the_same_marks(
    built: Path, tmp_path: Path, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(built / "stages", tmp_path / "stages")
    monkeypatch.setattr("nitroc.sources.load", lambda *_: pytest.fail("the experiment was loaded"))
    path = sorted((tmp_path / "stages").glob("*.nir"))[stage]
    weights = built / "bundle" / "weights" / "init.safetensors"
    again = Bundle.open(nt.build_from(path, tmp_path / "again", weights=weights))
    first = Bundle.open(built / "bundle")
    assert again.manifest.guards == first.manifest.guards
    assert again.manifest.report == first.manifest.report
    assert again.manifest.programs.keys() == first.manifest.programs.keys()
    for name in first.manifest.programs:
        texts = [program_text(b.artifact(name), locations=True) for b in (again, first)]
        assert texts[0] == texts[1], name


def test_recordings_hold_the_counts(built: Path) -> None:
    entry = Bundle.open(built / "bundle").manifest.programs["forward.b2"]
    assert entry.golden is not None
    assert {word.name for word in entry.report} == {
        f"guard/{LARGE}",
        f"guard/{LARGE}:odd",
        "guard/inputs",
    }
    lines = verify(built / "bundle", run=True)
    for name in FORWARDS:
        assert any(f"{name}: compiles, agrees with its recording" in line for line in lines)


# ------------------------------------------------------------------------------- explain


def explained(text: str) -> dict[str, str]:
    """The rows of the section `guards`, by name."""
    section = text.split("\nguards:\n")[1]
    rows = [line for line in section.splitlines() if line]
    kept = rows[: next((i for i, row in enumerate(rows) if row[0] != " "), len(rows))]
    return {row.split()[0]: " ".join(row.split()[1:]) for row in kept}


def test_explain_lists_every_mark(built: Path) -> None:
    found = explained(nt.explain(str(built / "bundle")))
    placed = Bundle.open(built / "bundle").manifest.guards.placed
    sources = {key: f"({entry.source})" for key, entry in placed.items()}
    assert found[LARGE].startswith("guard, in train_step, train_step_sampled, forward.b4")
    assert found["inputs"].startswith("assert_finite, in train_step")
    assert found["error"].startswith("metric, below 1000000000.0, in train_step")
    assert found["half/largest"].startswith(
        "diagnostic, reduce max, below 1000000.0, in train_step_sampled"
    )
    assert found["never"].startswith(
        "diagnostic, reduce mean, below 3.0, never run: its hook is not part of training"
    )
    assert all(found[key].endswith(source) for key, source in sources.items())
    assert found["short"].startswith("batches not filled in a pass")


SOURCE = """
import numpy as np
import nitroc as nt

class Exp(nt.Experiment):
    def build_data(self):
        fields = {"x": np.ones((6, 2), np.float32), "unused": np.ones(6, np.float32)}
        return {"train": nt.data.arrays(fields, 2), "val": nt.data.arrays(fields, 4)}

    def build_model(self, key):
        return None, {"w": np.ones(2, np.float32)}, {}

    def forward(self, model, params, state, *, x, unused):
        nt.guard("bad", nt.count_where(unused < 0), layer=1)
        return x @ params["w"], state

    def loss(self, outputs, *, x):
        return outputs.mean()

    def optimizer(self, group):
        return nt.rules.SGD
"""


def test_the_binding_report_of_an_experiment_has_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "exp.py"
    path.write_text(SOURCE)
    text = nt.explain(str(path))
    assert "forward takes the field unused only because a mark reads it" in text
    found = explained(text)
    assert found["bad{layer=1}"] == ("guard, in train_step, forward.b2, forward.b4 (exp.py:14:9)")
    assert found["short"] == (
        "batches not filled in a pass: a filled row would count in bad{layer=1}"
    )


# -------------------------------------------------------------------------------- widths


class Guarded(Linear):
    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        nt.guard("rows", nt.count_where(x[:, 0] > 1e6))
        return super().forward(model, params, state, x=x)


def test_a_short_batch_of_a_marked_forward_is_not_filled(tmp_path: Path) -> None:
    nitro = handle(Guarded(), tmp_path / "run")
    plain = handle(Linear(), tmp_path / "plain")
    np.testing.assert_allclose(
        nitro.validate()["val_loss"], plain.validate()["val_loss"], rtol=1e-6
    )
    x = rows(6, 1)["x"]
    np.testing.assert_array_equal(nitro.predict({"x": x}), plain.predict({"x": x}))
    manifest = Bundle.open(nt.build(Guarded(), tmp_path / "bundle")).manifest
    assert set(manifest.programs) == {"train_step", *FORWARDS, *REDUCES}
    assert manifest.batching.row_independent is True
    assert manifest.batching.sizes == (2, 4)
    assert "filled in predictions, not in a pass" in nt.explain(str(tmp_path / "bundle"))


class Reduced(Linear):
    def loss(self, outputs: Any, *, y: Any) -> Any:
        nt.metric("spread", jnp.max(y) - jnp.min(y))
        return super().loss(outputs, y=y)


def test_marks_outside_forward_leave_filling_alone(tmp_path: Path) -> None:
    manifest = Bundle.open(nt.build(Reduced(), tmp_path / "bundle")).manifest
    assert set(manifest.programs) == {"train_step", "forward.b4", "reduce.b4.r4", "reduce.b4.r2"}


class Unlabelled(Guarded):
    def build_data(self) -> Any:
        test = nt.data.arrays({"x": rows(7, 2)["x"]}, 4)
        return {**super().build_data(), "test": test}

    def metrics(self, outputs: Any) -> Any:
        return {"rows": (float(len(outputs)), None)}


def test_a_split_without_labels_has_its_own_short_forward(tmp_path: Path) -> None:
    manifest = Bundle.open(nt.build(Unlabelled(), tmp_path / "bundle")).manifest
    assert {"forward.b4", "forward.b3", "forward.b2"} <= manifest.programs.keys()
    assert "reduce.b3.r3" not in manifest.programs
    assert handle(Unlabelled(), tmp_path / "run").evaluate("test") == {"rows": 7.0}


# ------------------------------------------------------------------------------ pipelines


def pipeline_of(experiment: Any, tmp_path: Path, **options: Any) -> str:
    path = nt.build(experiment, tmp_path / "bundle", force=True, **options)
    return Bundle.open(path).manifest.pipeline


class Diagnosed(Linear):
    def loss(self, outputs: Any, *, y: Any) -> Any:
        nt.diagnostic("mean", jnp.mean(outputs), below=1e6)
        return super().loss(outputs, y=y)


def test_D06_passes_for_marks_are_there_when_marks_are(tmp_path: Path) -> None:
    off: dict[str, Any] = {"guard_finite": False}
    assert "guard" not in pipeline_of(Linear(), tmp_path, **off)
    assert "guard" not in pipeline_of(Reduced(), tmp_path, **off)
    assert "guard{finite=false,policy=stop}" in pipeline_of(Guarded(), tmp_path, **off)
    assert "guard{finite=true,policy=stop}" in pipeline_of(Guarded(), tmp_path)
    both = pipeline_of(Diagnosed(), tmp_path, **off)
    assert both.startswith("diagnose,differentiate,")
    assert "guard{finite=false,policy=stop}" in both
    assert "diagnose" not in pipeline_of(Guarded(), tmp_path)


@nt.rule()
def watched(g: Any) -> Any:
    xp = nt.namespace(g)
    nt.guard("update/large", nt.count_where(abs(g) > 1e6), layer=1)
    nt.metric("update/mean", xp.mean(g))
    return g


@nt.rule()
def diagnosed(g: Any) -> Any:
    nt.diagnostic("update/largest", nt.namespace(g).max(g), reduce="max", below=1e6)
    return g


class ByRule(Linear):
    rule: str = ""

    def optimizer(self, group: str) -> Any:
        return {"watched": watched, "diagnosed": diagnosed}[self.rule]


def test_marks_of_a_rule_are_those_of_a_group(tmp_path: Path) -> None:
    path = nt.build(ByRule(rule="watched"), tmp_path / "bundle", guard_finite=False)
    manifest = Bundle.open(path).manifest
    assert "diagnose" not in manifest.pipeline
    assert "guard{finite=false,policy=stop}" in manifest.pipeline
    large, mean = manifest.guards.placed.values()
    assert large.metadata == {"group": "default", "layer": 1}
    assert large.programs == mean.programs == ("train_step",)
    key = "update/large{group=default,layer=1}"
    entry = next(e for e in manifest.report if e.name == f"guard/{key}:first")
    assert (entry.kind, entry.source) == ("guard", large.source)
    report = prepare(ByRule(rule="watched"), {}, {}).report.text()
    assert "evaluated twice in every step" in report
    assert "applied leaf by leaf" in report


@pytest.mark.parametrize("finite", [True, False])
def test_diagnostics_of_a_rule_alone_are_sampled_too(tmp_path: Path, finite: bool) -> None:
    path = nt.build(ByRule(rule="diagnosed"), tmp_path / "bundle", guard_finite=finite)
    manifest = Bundle.open(path).manifest
    (entry,) = manifest.guards.placed.values()
    assert entry.programs == ("train_step_sampled",)
    words = {word.name for word in manifest.programs["train_step_sampled"].report}
    assert "guard/update/largest{group=default}" in words
    options: dict[str, Any] = {"diagnostics": ("update/*",), "sample_every": 2}
    assert trained(ByRule(rule="diagnosed"), tmp_path / "run", **options).step == 4


def test_a_guard_alone_stops_a_step(tmp_path: Path) -> None:
    """With the finite guard off, the step is still committed by the count."""
    nitro = trained(Guarded(), tmp_path / "run", guard_finite=False, max_epochs=1)
    assert nitro.step == 4
    bundle = Bundle.open(nt.build(Guarded(), tmp_path / "bundle", guard_finite=False))
    module = parse(bundle.read("ir/import.nir").decode())
    assert list(module.marks) == ["rows"]
    assert module.marks["rows"].source == bundle.manifest.guards.placed["rows"].source


def test_a_mark_is_part_of_the_programs_it_runs_in(tmp_path: Path) -> None:
    nt.cache_reset(disk=True)
    trained(Linear(), tmp_path / "plain")
    before = nt.cache_stats()
    trained(Reduced(), tmp_path / "marked")
    assert missed(before) == ["reduce.b4.r2", "reduce.b4.r4", "train_step"]


def test_a_program_that_a_pass_makes_is_shown_from_there_on(built: Path) -> None:
    bundle, sampled = str(built / "bundle"), "train_step_sampled"
    every = nt.ir(bundle, program=sampled, every_stage=True)
    assert every.startswith("// diagnose\n")
    assert "// expand\n" in every
    added = nt.ir(bundle, program=sampled, diff="diagnose").splitlines()
    assert any(line.startswith("+  program @train_step_sampled") for line in added)
    with pytest.raises(NitroError, match=r"E-USAGE-039.*train_step_smpled"):
        nt.ir(bundle, program="train_step_smpled", every_stage=True)


def test_a_marked_forward_predicts_without_data(tmp_path: Path) -> None:
    x = rows(5)["x"]
    found = handle(Guarded(), tmp_path, data={}).predict({"x": x})
    np.testing.assert_allclose(found, x.sum(1), rtol=1e-6)
