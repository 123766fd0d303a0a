"""The commands as a person types them: flags, streams, statuses, files."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from command_line import command, own_imports, succeed, write

import nitroc as nt
from nitro_dialect import CODES as IR_CODES
from nitro_runtime.bundle import Bundle
from nitro_runtime.errors import CODES
from nitroc.cli.app import COMMANDS

METRICS = "    def metrics(self, outputs, *, y):\n"


@pytest.fixture(autouse=True)
def _imports():
    with own_imports():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with `line.py`, its bundle `b`, a run `r` of it and the arrays of `x.npz`."""
    folder = tmp_path_factory.mktemp("made")
    with own_imports():
        succeed("build", write(folder / "line.py"), "-o", folder / "b", "-q")
        succeed("run", folder / "b", "--run-dir", folder / "r", "-q")
    x = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]
    y = 2 * x[:, 0]
    np.savez(folder / "x.npz", x=x)
    np.savez(folder / "splits.npz", **{"train/x": x, "train/y": y, "val/x": x, "val/y": y})
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(run_dir, kind):
    """The records of a run's log of one type."""
    records = map(json.loads, Path(run_dir, "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["type"] == kind]


def losses(run_dir):
    return [row["loss"] for row in lines(run_dir, "metrics") if row["context"] == "train"]


# -------------------------------------------------------------------------------- every command


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_one_example(name):
    text = succeed(name, "--help").out
    assert text.count("Example: ") == 1
    assert f"Example: nitroc {name} " in text
    assert "-q, --quiet" in text


def test_the_command_is_missing_or_misspelt():
    shown = command()
    assert (shown.status, shown.out) == (2, "")
    assert shown.err.startswith("Usage: nitroc ")
    result = command("biuld")
    assert result.status == 2
    assert "did you mean build?" in result.err
    result = command("run", "b", "--epohcs", "3")
    assert result.status == 2
    assert "Did you mean '--epochs'?" in result.err
    assert "help: nitroc run --help" in result.err


def test_quiet_means_errors_only(made, place):
    noisy = ("x = np.linspace", 'import warnings; warnings.warn("w"); x = np.linspace')
    write(place / "exp.py", noisy)
    x = ["--checkpoint", "r", "--input", made / "x.npz", "-o", "y.npz"]
    for arguments in (
        ["build", "exp.py", "-o", "b"],
        ["run", "b", "--run-dir", "r"],
        ["evaluate", "b", "--checkpoint", "r"],
        ["predict", "b", *x],
        ["run", "b", "--run-dir", "r", "--resume", "latest", "--epochs", "3"],
        ["run", "b", "--run-dir", "r2", "--data", made / "splits.npz"],
        ["verify", "b"],
        ["explain", "exp.py"],
    ):
        assert succeed(*arguments, "-q").err == "", arguments


def test_data_go_to_stdout_and_all_else_to_stderr(made, place):
    built = succeed("build", made / "line.py", "-o", "b")
    assert built.out == ""
    assert built.err.startswith("b: ")
    run = succeed("run", "b", "--run-dir", "r", "--epochs", "1")
    assert run.out == ""
    assert "epoch 1/1  step 4  loss " in run.err
    assert run.err.splitlines()[-1] == f"completed: {place / 'r'}"
    metrics = succeed("evaluate", "b", "--checkpoint", "r", "--json")
    assert sorted(json.loads(metrics.out)) == ["error", "val_loss"]
    plain = succeed("evaluate", "b", "--checkpoint", "r").out.splitlines()
    assert sorted(line.split()[0] for line in plain) == ["error", "val_loss"]


def test_a_reader_that_leaves_early_is_no_error(made):
    with start("ir", made / "b", "--all", stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (0, 1)


# ----------------------------------------------------------------------------------------- build


def test_presets_and_settings_are_recorded_and_honoured(place):
    presets = (
        "    def build_data",
        "    @classmethod\n    def presets(cls):\n"
        '        return {"big": {"power": 3, "scale": 3.0}}\n\n    def build_data',
    )
    write(place / "exp.py", presets)
    settings = ["scale=2", "seed=9", "max_epochs=3", "log_every=2", 'tags=["q"]', "run_dir=here"]
    flags = [part for text in settings for part in ("--set", text)]
    succeed("build", "exp.py", "-o", "b", "--preset", "big", *flags, "-q")
    fields = Bundle.open("b").manifest.fields
    assert (fields["power"].value, fields["power"].source) == (3, "preset big")
    assert (fields["scale"].value, fields["scale"].source) == (2.0, "--set")
    succeed("run", "b", "-q")
    (params,) = lines("here", "params")
    assert params["preset"] == "big"
    assert (params["power"], params["scale"], params["seed"]) == (3, 2.0, 9)
    assert lines("here", "tags")[0]["tags"] == ["q"]
    assert json.loads(Path("here/status.json").read_text())["epoch"] == 3
    steps = [row["step"] for row in lines("here", "metrics") if row["context"] == "train"]
    assert steps == [1, 2, 4, 6, 8, 10, 12]


def test_an_object_turned_off_at_build_stays_off(place):
    stopper = (
        METRICS,
        "    @property\n    def early_stop(self):\n"
        '        return nt.EarlyStopping("val_loss", patience=1, min_delta=100.0)\n\n' + METRICS,
    )
    write(place / "exp.py", stopper)
    succeed("build", "exp.py", "-o", "on", "-q")
    succeed("build", "exp.py", "-o", "off", "--set", "early_stop=none", "-q")
    for name, reason in (("on", "early_stop"), ("off", "completed")):
        result = succeed("run", name, "--run-dir", f"r-{name}", "--epochs", "4")
        assert result.err.splitlines()[-1].startswith(f"{reason}: ")


def test_force_replaces_a_bundle(made, place):
    shutil.copytree(made / "b", "b")
    succeed("build", made / "line.py", "-o", "b", "--force", "--accum", "2", "-q")
    assert Bundle.open("b").manifest.options["accum"].value == 2
    assert os.listdir(place) == ["b"]


def test_every_stage_of_a_dump_makes_the_same_training(made, place):
    build = ["build", made / "line.py", "-o", "b", "--accum", "2", "--gradient-clip-norm", "1"]
    succeed(*build, "--set", "power=3", "--dump-ir", "d", "-q")
    data = ["--data", made / "splits.npz", "--epochs", "2", "-q"]
    succeed("run", "b", *data, "--run-dir", "r")
    stages = sorted(Path("d").glob("*.nir"))
    assert [stage.stem.partition("-")[2] for stage in stages] == [
        *("import", "differentiate", "accumulate", "clip", "guard", "optimizer"),
        *("commit", "expand"),
    ]
    for stage in stages:
        weights = ["--weights", "b/weights/init.safetensors"]
        succeed("build", "--from", stage, "-o", stage.stem, *weights, "-q")
        assert not Path(stage.stem, "host").exists()
        succeed("run", stage.stem, *data, "--run-dir", f"r-{stage.stem}")
        assert losses(f"r-{stage.stem}") == losses("r"), stage
    files = ["--input", made / "x.npz", "-o", "y.npz"]
    for name in ("b", stages[0].stem):
        succeed("predict", name, "--checkpoint", "r", *files, "-q")
        shutil.move("y.npz", f"{name}.npz")
    assert np.array_equal(np.load("b.npz")["outputs"], np.load("00-import.npz")["outputs"])


@pytest.mark.parametrize("version", ["max", "current", "1.13.7"])
def test_each_stablehlo_version_trains_alike(made, place, version):
    succeed("build", made / "line.py", "-o", "b", "--compat", version, "--check", "roundtrip", "-q")
    succeed("run", "b", "--run-dir", "r", "-q")
    assert losses("r") == losses(made / "r")


def test_stripped_programs_hold_no_locations(made, place):
    succeed("build", made / "line.py", "-o", "b", "--strip-locs", "-q")
    programs = [*Path("b/programs").iterdir(), *Path("b/functions").iterdir()]
    assert programs
    assert all(b"line.py" not in file.read_bytes() for file in programs)
    assert any(b"line.py" in file.read_bytes() for file in (made / "b/functions").iterdir())
    succeed("run", "b", "--run-dir", "r", "-q")
    assert losses("r") == losses(made / "r")


@pytest.mark.parametrize("layout", ["flat", "leaves"])
def test_every_layout_trains_alike(made, place, layout):
    succeed("build", made / "line.py", "-o", "b", "--layout", layout, "-q")
    succeed("run", "b", "--run-dir", "r", "-q")
    np.testing.assert_allclose(losses("r"), losses(made / "r"), rtol=1e-6)


def test_a_bundle_for_another_platform_builds_here_and_runs_there(made, place):
    succeed("build", made / "line.py", "-o", "b", "--platform", "cuda", "-q")
    succeed("verify", "b", "-q")
    for use in (["run", "b"], ["verify", "b", "--run"]):
        result = command(*use)
        assert result.status == 4
        assert "E-DEVICE-001: the bundle is for cuda" in result.err


def test_the_project_travels_in_the_bundle_and_only_the_project(place):
    """Modules and packages beside the experiment are carried; bundles never mix their Python."""
    use = (METRICS, METRICS + "        assert tools.SLOPE == SLOPE and OFFSET == 10 * SLOPE\n")
    for name, slope in (("one", 2), ("two", 3)):
        write(place / name / "tools.py", text=f"SLOPE = {slope}\n")
        write(place / name / "pkg/__init__.py", text="from .deep import OFFSET\n")
        write(place / name / "pkg/deep.py", text=f"OFFSET = {slope * 10}\n")
        imports = f"import nitroc as nt\nimport tools\nfrom pkg import OFFSET\nSLOPE = {slope}"
        write(place / name / "exp.py", ("import nitroc as nt", imports), use)
        succeed("build", f"{name}/exp.py", "-o", f"{name}-b", "-q")
        carried = sorted(p.relative_to(f"{name}-b/host").as_posix() for p in host_of(f"{name}-b"))
        assert carried == ["exp.py", "pkg/__init__.py", "pkg/deep.py", "tools.py"]
    shutil.rmtree(place / "one")
    write(place / "two/exp.py", text="raise SystemExit(3)")
    Path("far").mkdir()
    shutil.move("one-b", "far/moved")
    for bundle in ("far/moved", "two-b", "far/moved"):
        succeed("run", bundle, "--run-dir", f"r-{Path(bundle).name}", "--epochs", "1", "-q")
    write(place / "line.py")
    succeed("build", "line.py", "-o", "line-b", "-q")
    assert [path.name for path in host_of("line-b")] == ["line.py"]


def host_of(bundle):
    return [path for path in Path(bundle, "host").rglob("*") if path.is_file()]


def test_the_file_may_have_any_name_of_a_module(place):
    for name in ("my-exp", "räum"):
        with own_imports():
            write(place / f"{name}.py")
            succeed("build", f"{name}.py", "-o", f"{name}-b", "-q")
            succeed("run", f"{name}-b", "--run-dir", f"{name}-r", "--epochs", "1", "-q")


# ------------------------------------------------------------------------------------------- run


def test_settings_of_a_run(made, place):
    settings = ["scale=0.5", "learning_rate=1e-3", "max_epochs=1"]
    flags = [part for text in settings for part in ("--set", text)]
    succeed("run", made / "b", "--run-dir", "r", *flags, "--seed", "7", "-q")
    (params,) = lines("r", "params")
    assert (params["scale"], params["learning_rate"], params["seed"]) == (0.5, 1e-3, 7)
    rows = [row for row in lines("r", "metrics") if row["context"] == "train"]
    assert [row["learning_rate"] for row in rows] == [1e-3] * 4
    assert losses("r") != losses(made / "r")[:4]


def test_limits(made, place):
    run = ["run", made / "b", "--run-dir"]
    assert "completed: " in succeed(*run, "zero", "--epochs", "0").err
    contexts = {row["context"] for row in lines("zero", "metrics")}
    assert contexts == {"validate"}
    steps = succeed(*run, "steps", "--max-steps", "3")
    assert "stopped (max_steps) at step 3, inside epoch 1: there is no checkpoint yet" in steps.err
    assert len(losses("steps")) == 3
    timed = succeed(*run, "time", "--max-time", "0.01s", "--epochs", "1000000")
    assert timed.err.splitlines()[-1].startswith("max_time: ")


def test_F04_run_directories_of_any_name(made, place):
    name = "räum 模型 (1) #x=1"
    succeed("run", made / "b", "--run-dir", name, "--tags", "a,b", "-q")
    assert lines(name, "tags")[0]["tags"] == ["a", "b"]
    succeed("evaluate", made / "b", "--checkpoint", name, "-q")
    succeed("run", made / "b", "--run-dir", name, "--resume", "auto", "--epochs", "3", "-q")


def test_going_on_is_the_same_as_going_through(made, place):
    run = ["run", made / "b", "-q", "--run-dir"]
    succeed(*run, "whole", "--epochs", "4", "--schedule-total", "16")
    succeed(*run, "parts", "--epochs", "1", "--schedule-total", "16", "--resume", "auto")
    (first,) = [row["run_id"] for row in lines("parts", "params")]
    for which, epochs in (("auto", 2), ("latest", 3), (first, 4)):
        more = ["--resume", which, "--epochs", epochs, "--schedule-total", "16"]
        succeed(*run, "parts", *more)
    assert losses("parts") == losses("whole")
    outputs = []
    for name in ("whole", "parts"):
        files = ["--input", made / "x.npz", "-o", f"{name}.npz"]
        succeed("predict", made / "b", "--checkpoint", name, *files, "-q")
        outputs.append(np.load(f"{name}.npz")["outputs"])
    assert np.array_equal(*outputs)


def test_a_checkpoint_starts_a_run_from_its_weights(made, place):
    run = ["run", made / "b", "-q", "--epochs", "1", "--run-dir"]
    succeed(*run, "warm", "--checkpoint", made / "r")
    assert losses("warm")[0] < losses(made / "r")[0]
    assert next(row["step"] for row in lines("warm", "metrics")) == 1


def test_F09_data_from_a_file_need_no_python_of_the_bundle(made, place):
    hooks = (
        METRICS,
        "    @property\n    def early_stop(self):\n"
        '        return nt.EarlyStopping("val_loss", patience=1)\n\n'
        "    def finalize_metrics(self, acc, split):\n        return acc\n\n" + METRICS,
    )
    once = (
        "ROWS = 16",
        "import os\n\nif os.path.exists('built'):\n    raise OSError('host/ was imported')\n"
        "ROWS = 16",
    )
    write(place / "exp.py", hooks, once)
    settings = ["--set", "seed=9", "--set", "max_epochs=1", "--set", "scale=2"]
    succeed("build", "exp.py", "-o", "b", *settings, "-q")
    Path("built").touch()
    assert "host/ was imported" in command("run", "b").err
    result = succeed("run", "b", "--data", made / "splits.npz", "--run-dir", "r")
    for said in ("hook metrics (exp.py:", "hook finalize_metrics (exp.py:", "early_stop (EarlyS"):
        assert f"the experiment's Python is not imported: {'option ' * ('(E' in said)}{said}" in (
            result.err
        )
    assert len(losses("r")) == 2
    succeed("run", "b", "--data", made / "splits.npz", "--run-dir", "r2", "--set", "scale=1", "-q")
    assert losses("r2") != losses("r")
    splits = ["--checkpoint", "r", "--data", made / "splits.npz", "--split", "val"]
    assert "val_loss " in succeed("evaluate", "b", *splits).out


INTERRUPTING = METRICS + (
    "        import os, pathlib, signal\n"
    "        if 'validate' in pathlib.Path('r/metrics.jsonl').read_text():\n"
    "            times, os.environ['TIMES'] = int(os.environ['TIMES']), '0'\n"
    "            for _ in range(times):\n"
    "                signal.raise_signal(getattr(signal, os.environ['SIGNAL']))\n"
)


@pytest.mark.parametrize(
    ("name", "times", "status", "said"),
    [
        ("SIGINT", 1, 130, "interrupted: "),
        ("SIGTERM", 1, 143, "nitroc run: terminated"),
        ("SIGINT", 2, 130, "nitroc run: interrupted"),
    ],
)
def test_signals_at_the_end_of_an_epoch(place, monkeypatch, name, times, status, said):
    write(place / "exp.py", (METRICS, INTERRUPTING))
    succeed("build", "exp.py", "-o", "b", "-q")
    monkeypatch.setenv("SIGNAL", name)
    monkeypatch.setenv("TIMES", str(times))
    result = command("run", "b", "--run-dir", "r", "--epochs", "3")
    assert result.status == status
    assert said in result.err
    assert "Traceback" not in result.err
    assert json.loads(Path("r/status.json").read_text())["stop_reason"] == "interrupted"
    succeed("run", "b", "--run-dir", "r", "--epochs", "3", "--resume", "auto", "-q")
    assert json.loads(Path("r/status.json").read_text())["epoch"] == 3


def start(*arguments, **streams):
    code = "from nitroc.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        **streams,
    )


def test_ctrl_c_says_what_is_lost(place):
    slow = (
        "    def build_data",
        "    def build_data(self):\n        made = self.sources()\n        import time\n"
        "        class Slow:\n            def __len__(self): return 4\n"
        "            def __iter__(self):\n                for batch in batches:\n"
        "                    time.sleep(0.2)\n                    yield batch\n"
        "        train = made['train']\n        plan = train.begin_epoch(1, 1)\n"
        "        batches = [train.batch_at(i, plan) for i in range(4)]\n"
        "        return {**made, 'train': Slow()}\n\n    def sources",
    )
    write(place / "exp.py", slow)
    succeed("build", "exp.py", "-o", "b", "-q")
    log = place / "r/metrics.jsonl"
    deadline = time.monotonic() + 120
    with start("run", "b", "--run-dir", "r", "--epochs", "1000") as process:
        while time.monotonic() < deadline and not (log.exists() and len(losses("r")) > 4):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == f"interrupted: {place / 'r'}"
    assert "Traceback" not in err
    assert "stopped (interrupted) at step " in err
    assert "the last checkpoint is epoch-000" in err
    assert "not in it" in err


# -------------------------------------------------------------------- evaluate, predict, and looks


def test_evaluate_takes_device_values(made):
    use = ["evaluate", made / "b", "--checkpoint", made / "r", "--split", "val", "--json"]
    as_built = json.loads(succeed(*use).out)
    scaled = json.loads(succeed(*use, "--set", "scale=3").out)
    assert as_built == json.loads(succeed(*use, "--set", "scale=1").out)
    assert scaled["val_loss"] != as_built["val_loss"]


def test_predict_writes_every_row(made, place):
    use = ["predict", made / "b", "--checkpoint", made / "r", "-o", "y.npz"]
    said = succeed(*use, "--input", made / "x.npz")
    assert (said.out, said.err) == ("", "y.npz\n")
    outputs = np.load("y.npz")["outputs"]
    assert outputs.shape == (8,)
    succeed(*use, "--input", made / "x.npz", "--set", "scale=2", "-q")
    np.testing.assert_allclose(np.load("y.npz")["outputs"], 2 * outputs, rtol=1e-6)
    x = np.load(made / "x.npz")["x"]
    np.savez("x.npz", x=x.astype(np.float64)[:3], unused=np.zeros(3))
    succeed(*use, "--input", "x.npz", "-q")
    assert np.array_equal(np.load("y.npz")["outputs"], outputs[:3])
    np.savez("x.npz", x=x[:0])
    succeed(*use, "--input", "x.npz", "-q")
    assert np.load("y.npz")["outputs"].shape == (0,)


def test_array_fields_of_the_device_are_in_the_bundle(made, place):
    table = (
        "    rows: int = ROWS",
        "    table: nt.Device[np.ndarray] = dataclasses.field(\n"
        "        default_factory=lambda: np.full(3, 2.0, np.float32))\n    rows: int = ROWS",
    )
    imports = ("import numpy as np", "import dataclasses\nimport numpy as np")
    use = ("* self.scale, state", "* self.scale * self.table[0], state")
    write(place / "exp.py", imports, table, use)
    succeed("build", "exp.py", "-o", "b", "-q")
    files = ["--input", made / "x.npz", "-o"]
    succeed("predict", "b", "--checkpoint", made / "r", *files, "two.npz", "-q")
    succeed("predict", made / "b", "--checkpoint", made / "r", *files, "one.npz", "-q")
    one, two = np.load("one.npz")["outputs"], np.load("two.npz")["outputs"]
    np.testing.assert_allclose(two, 2 * one, rtol=1e-6)
    succeed("run", "b", "--data", made / "splits.npz", "--run-dir", "r", "-q")


def test_every_code_has_a_page():
    codes = {**CODES, **IR_CODES}
    assert len(codes) > 150
    for code in codes:
        text = nt.explain(code.lower())
        assert text.startswith(f"{code}: "), code
        assert "\ncause: " in text, code
        assert "\nfix: " in text, code
    assert succeed("explain", "e-field-001").out.startswith("E-FIELD-001: ")


def test_explain_of_a_bundle_and_an_experiment(made):
    bundle = succeed("explain", made / "b").out
    for said in ("scale           Device 1.0", "train_step", "metrics", "slots:"):
        assert said.split()[0] in bundle
    assert "default.exempt   " in bundle
    assert "learning_rate  " in bundle.partition("schedules:")[2]
    text = succeed("explain", made / "line.py", "--set", "power=3", "--accum", "2").out
    assert "power          GraphConst 3" in text
    assert "(keyword, baked)" in text
    assert "default.exempt " in text
    assert "forward.b4 " in text.partition("programs:")[2]
    unknown = command("explain", made / "line.py", "--platform", "cdua")
    assert unknown.status == 2
    assert "cuda" in unknown.err


def test_ir_shows_stages_changes_and_programs(made):
    ir = ["ir", made / "b"]
    last = succeed(*ir).out
    assert last.startswith("module @Line ")
    assert 'left ""' in last
    assert "program @forward.b4" in succeed(*ir, "--program", "forward.b4").out
    first = succeed(*ir, "--after", "import").out
    assert 'pipeline ""' in first
    every = succeed(*ir, "--all").out
    assert every.startswith("// import\n")
    assert every.count("// ") == every.count("module @Line ") == 7
    change = succeed(*ir, "--diff", "commit").out
    assert change.startswith("--- optimizer\n+++ commit\n")
    text = succeed(*ir, "--stablehlo").out
    assert "stablehlo." in text
    assert "loc(" not in text
    assert "line.py" in succeed(*ir, "--stablehlo", "--locs").out
    clipped = ["ir", made / "line.py", "--gradient-clip-norm", "1"]
    assert "grad_norm" in succeed(*clipped, "--after", "clip").out
    assert succeed("ir", made / "line.py").out == last
    assert "stablehlo." in succeed(*clipped, "--stablehlo", "--compat", "1.13.7").out


def test_verify_says_what_it_checked(made):
    text = succeed("verify", made / "b", "--run").out
    assert "forward.b4: compiles, agrees with its recording bit for bit" in text
    assert text.endswith("good\n")
