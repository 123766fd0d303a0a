"""Every bad input has a code, says what, where and the fix, and ends with the right status."""

import errno
import json
import os
import shutil

import numpy as np
import pytest
from command_line import command, own_imports, succeed, write

import nitroc as nt
from nitro_runtime.tensors import write_tensors
from nitroc import sources

Y = '"y": 2 * x[:, 0] + 1'
FORWARD = '(x ** self.power @ params["w"] + params["b"])[:, 0] * self.scale, state'
METRICS = '        return {"error": (np.abs(outputs - y).sum(), len(y))}'
TRAIN = '"train": nt.data.arrays(split, self.batch_size, shuffle=True)'


@pytest.fixture(autouse=True)
def _imports():
    with own_imports():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with `line.py`, its bundle `b` and a run `r` of it."""
    folder = tmp_path_factory.mktemp("made")
    with own_imports():
        succeed("build", write(folder / "line.py"), "-o", folder / "b", "-q")
        succeed("run", folder / "b", "--run-dir", folder / "r", "-q")
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(result, code, status, *said):
    """The form of every error: command, code, what, where, help; no traceback, no stdout."""
    first, *rest = result.err.strip().splitlines()
    assert result.status == status, result.err
    assert first.startswith("nitroc "), result.err
    assert f": {code}: " in first, result.err
    assert "Traceback" not in result.err
    assert any(line.startswith("help: ") for line in rest), result.err
    assert result.out == ""
    for text in said:
        assert text in result.err, result.err


BUILD = {
    "no_loss": (
        [("def loss", "def los")],
        ("E-HOOK-001", 3, "no loss hook", "Line.los has a similar name"),
    ),
    "no_data": ([("def build_data", "def data")], ("E-HOOK-001", 3, "build_data")),
    "signature": (
        [("def forward(self, model, params, state, *, x)", "def forward(self, params, x)")],
        ("E-HOOK-002", 3, "exp.py:31", "expected 3", "def forward(self, model, params, state"),
    ),
    "unknown_batch_field": (
        [("def loss(self, outputs, *, y)", "def loss(self, outputs, *, yy)")],
        ("E-HOOK-003", 3, "'yy'", "exp.py:34", "did you mean y?"),
    ),
    "unknown_field": (
        [("* self.scale", "* self.scala")],
        ("E-HOOK-060", 3, "no attribute 'scala'", "exp.py:32", "full text: "),
    ),
    "marker_in_marker": (
        [("nt.Device[float]", "nt.Device[nt.Device[float]]")],
        ("E-FIELD-003", 3, "scale", "exp.py:13"),
    ),
    "marker_without_type": ([("nt.Device[float]", "nt.Device")], ("E-FIELD-003", 3, "exp.py:13")),
    "host_in_traced": (
        [("nt.Device[float]", "float")],
        ("E-FIELD-001", 3, "Host field scale", "exp.py:32", "GraphConst"),
    ),
    "device_in_shape": (
        [("x ** self.power", "x[:int(self.scale)]")],
        ("E-FIELD-002", 3, "scale", "exp.py:32", "GraphConst"),
    ),
    "text": (
        [(Y, '"y": np.array(["a"] * self.rows)')],
        ("E-DATA-003", 3, "'y'", "<U1", "exp.py:34", "split 'train'"),
    ),
    "objects": (
        [(Y, '"y": np.array([{}] * self.rows, dtype=object)')],
        ("E-DATA-003", 3, "object"),
    ),
    "float64_too_large": (
        [(Y, '"y": (2 * x[:, 0] + 1).astype(np.float64) * 1e300')],
        ("E-DATA-004", 3, "does not fit f32", "split 'train', batch 0, field 'y'"),
    ),
    "unequal_rows": ([(Y, '"y": 2 * x[:-1, 0]')], ("E-DATA-041", 3, "'x' 16, 'y' 15")),
    "labels_of_wrong_shape": (
        [(Y, '"y": np.zeros((self.rows, 3), np.float32)')],
        ("E-HOOK-060", 3, "field y: f32[4,3]", "exp.py:35", "`loss`"),
    ),
    "batch_without_field": (
        [(TRAIN, '"train": [{k: v[:4] for k, v in split.items()}, {"x": x[:4]}]')],
        ("E-DATA-005", 3, "'y' is missing", "split 'train', batch 1", "the batch has x"),
    ),
    "forward_scalar": (
        [(FORWARD, "x.sum() * self.scale, state")],
        ("E-HOOK-061", 3, "is f32", "[4,...]", "exp.py:31"),
    ),
    "batch_axis_not_first": (
        [(FORWARD, "jnp.ones((7, 4)) * x[:, 0] * self.scale, state")],
        ("E-HOOK-061", 3, "f32[7,4]", "[4,...]"),
    ),
    "no_pair": ([(FORWARD, "x * self.scale")], ("E-HOOK-061", 3, "(outputs, new_state)")),
    "debug_print": (
        [("        return (x", "        import jax; jax.debug.print('{}', x)\n        return (x")],
        ("E-CONTRACT-001", 3, "jax.debug.print", "exp.py:32"),
    ),
    "build_data_raises": (
        [("x = np.linspace", "x = 1 / 0; x = np.linspace")],
        ("E-HOOK-010", 3, "ZeroDivisionError: division by zero; exp.py:20, in hook build_data"),
    ),
    "build_model_raises": (
        [("return None, {", "raise KeyError('abc'); return None, {")],
        ("E-HOOK-010", 3, "KeyError: 'abc'; exp.py:29, in hook build_model"),
    ),
    "import_raises": (
        [("ROWS = 16", "ROWS = 1 // 0")],
        ("E-BUILD-082", 3, "ZeroDivisionError", "exp.py:6"),
    ),
    "syntax": ([("ROWS = 16", "ROWS = = 1")], ("E-BUILD-082", 3, "SyntaxError", "exp.py:6")),
    "leaves_at_import": (
        [("ROWS = 16", "import sys; sys.exit(7)")],
        ("E-BUILD-082", 3, "SystemExit: 7"),
    ),
    "no_experiment": ([("(nt.Experiment)", "")], ("E-BUILD-081", 3, "declares no experiment")),
}


@pytest.mark.parametrize(("changes", "expected"), BUILD.values(), ids=BUILD)
def test_an_experiment_that_cannot_be_built(place, changes, expected):
    write(place / "exp.py", *changes)
    refused(command("build", "exp.py", "-o", "b"), *expected)
    assert not (place / "b").exists()


RAISES = {
    "metrics": ([(METRICS, "        raise ValueError('one\\ntwo')")], "ValueError: one", "metrics"),
    "finalize_metrics": (
        [(METRICS, METRICS + "\n\n    def finalize_metrics(self, acc, split):\n        acc['n']")],
        "KeyError: 'n'",
        "finalize_metrics",
    ),
    "checkpoint_filename": (
        [(METRICS, METRICS + "\n\n    def checkpoint_filename(self, **k):\n        return 1 / 0")],
        "ZeroDivisionError: division by zero",
        "checkpoint_filename",
    ),
}


@pytest.mark.parametrize(("changes", "what", "hook"), RAISES.values(), ids=RAISES)
def test_a_host_hook_that_raises_is_one_line(place, changes, what, hook):
    write(place / "exp.py", *changes)
    succeed("build", "exp.py", "-o", "b", "-q")
    result = command("run", "b", "-q", "--run-dir", "r")
    refused(result, "E-RUN-004", 1, f"{what}; exp.py:", f", in hook {hook}")
    (named,) = [line for line in result.err.splitlines() if "full text: " in line]
    with open(named.partition("full text: ")[2], encoding="utf-8") as file:
        assert "Traceback" in file.read()
    assert json.loads((place / "r/status.json").read_text())["stop_reason"] == "error"


def test_a_source_that_raises_is_named_by_its_line(place):
    source = (
        "        class Source:\n            def __len__(self): return 3\n"
        "            def __iter__(self):\n"
        "                yield {k: v[:4] for k, v in split.items()}\n"
        "                raise OSError('the disk\\nis gone')\n        return {"
    )
    write(
        place / "exp.py", ("        return {\n            " + TRAIN, source + '"train": Source()')
    )
    succeed("build", "exp.py", "-o", "b", "-q")
    result = command("run", "b", "-q", "--run-dir", "r")
    refused(result, "E-RUN-004", 1, "OSError: the disk; exp.py:", "in __iter__")


def test_in_python_what_a_hook_raises_surfaces_as_itself(place):
    write(place / "exp.py", RAISES["metrics"][0][0])
    succeed("build", "exp.py", "-o", "b", "-q")
    with pytest.raises(ValueError, match="one") as raised:
        nt.run("b", run_dir="r", quiet=True)
    assert raised.value.__notes__ == ["in hook metrics, exp.py:37"]


def test_a_file_system_that_refuses_is_no_defect(place, made):
    (place / "r/manifest.json").mkdir(parents=True)
    result = command("run", made / "b", "-q", "--run-dir", "r")
    refused(result, "E-RUN-006", 1, "Is a directory", "manifest.json")


def test_options_in_python_that_would_be_lost(place, made):
    with own_imports():
        origin = sources.load(str(made / "line.py"))
    for options, code in (
        ({"early_stop": nt.EarlyStopping("val_loss")}, "E-USAGE-007"),
        ({"checkpoint": made / "r"}, "E-USAGE-007"),
        ({"epochs": 3}, "E-USAGE-001"),
    ):
        with pytest.raises(nt.NitroError) as raised:
            nt.build(origin.cls, "b", **options)
        assert raised.value.code == code
    x = np.zeros((4, 1), np.float32)
    data = {"train": {"x": x, "y": x[:, 0]}}
    for options, code in (
        ({"epochs": 3}, "E-USAGE-001"),
        ({"accum": 2}, "E-USAGE-005"),
        ({"early_stop": None}, "E-USAGE-037"),
    ):
        with pytest.raises(nt.NitroError) as raised:
            nt.open_bundle(made / "b", data=data, **options)
        assert raised.value.code == code


def test_nan_data_stop_the_run(place):
    write(place / "exp.py", ('"x": x,', '"x": x * np.nan,'))
    succeed("build", "exp.py", "-o", "b", "-q")
    result = command("run", "b", "-q", "--run-dir", "r")
    refused(result, "E-GUARD-002", 1, "loss was nan at step 1", "nothing of step 1 was committed")


def test_a_hook_that_returns_no_metric(place):
    write(place / "exp.py", (METRICS, '        return {"error": "abc"}'))
    succeed("build", "exp.py", "-o", "b", "-q")
    refused(command("run", "b", "-q", "--run-dir", "r"), "E-DATA-067", 1, "error", "made of str")


SETTINGS = {
    "unknown": ("scael=2", "E-USAGE-001", "did you mean scale?"),
    "without_value": ("scale", "E-USAGE-032", "NAME=VALUE"),
    "unreadable": ("scale=abc", "E-USAGE-004", "expected float"),
    "graphconst": ("power=2", "E-USAGE-005", "build again"),
    "baked_option": ("accum=2", "E-USAGE-005", "build again"),
    "object": ("logger=abc", "E-USAGE-004", "expected none"),
    "out_of_range": ("max_epochs=-1", "E-USAGE-002", ">= 0"),
    "data": ("data=x", "E-USAGE-001", "--data F.npz"),
}


@pytest.mark.parametrize(("text", "code", "said"), SETTINGS.values(), ids=SETTINGS)
def test_a_setting_that_a_run_cannot_have(made, place, text, code, said):
    refused(command("run", made / "b", "--set", text), code, 2, said)
    assert os.listdir(place) == []


@pytest.mark.parametrize(
    "flag", ["--accum", "--layout", "--n-devs", "--preset", "--no-guard-finite"]
)
def test_a_flag_of_build_on_run_says_build_again(made, flag):
    refused(command("run", made / "b", flag, "2"), "E-USAGE-005", 2, f"-o bundle/ {flag}")


FLAGS = {
    "device_count": (["--n-devs", "2"], "E-USAGE-003", 2, "it has 1"),
    "device_counts": (["--n-devs", "1,2"], "E-USAGE-003", 2, "[1, 2]"),
    "fuse": (["--fuse", "3"], "E-USAGE-003", 2, "'auto' or 1"),
    "layout": (["--layout", "zz"], "E-USAGE-002", 2, "'leaves'"),
    "policy": (["--on-nonfinite", "skip"], "E-USAGE-003", 2, "'stop'"),
    "clip": (["--gradient-clip-norm", "nan"], "E-USAGE-002", 2, "finite"),
    "accum": (["--accum", "3"], "E-OPT-040", 3, "3 and 6"),
    "compat": (["--compat", "nonsense"], "E-BUILD-021", 3, "max, current or M.m.p"),
    "compat_too_new": (["--compat", "99.0.0"], "E-BUILD-021", 3, "choose a version from"),
    "platform": (["--platform", "cdua"], "E-USAGE-036", 2, "did you mean cuda?"),
    "check": (["--check", "x"], "E-USAGE-033", 2, "roundtrip"),
    "preset": (["--preset", "big"], "E-FIELD-011", 3, "no presets"),
    "preset_as_setting": (["--set", "preset=big"], "E-USAGE-001", 2, "--preset NAME"),
    "weights_of_nothing": (["--weights", "w"], "E-USAGE-037", 2, "--from"),
    "one_run": (["--set", "resume=latest"], "E-USAGE-007", 2, "belongs to one run"),
    "dump_into_a_file": (["--dump-ir", "file/x"], "E-BUILD-087", 3, "file/x"),
}


@pytest.mark.parametrize(("flags", "code", "status", "said"), FLAGS.values(), ids=FLAGS)
def test_a_flag_that_build_cannot_have(place, flags, code, status, said):
    write(place / "line.py")
    (place / "file").write_text("x")
    refused(command("build", "line.py", "-o", "b", *flags), code, status, said)
    assert not (place / "b").exists()


def test_a_file_that_is_no_experiment(place):
    refused(command("build", "nope.py", "-o", "b"), "E-BUILD-080", 3, "nope.py")
    write(place / "a.b.py")
    refused(command("build", "a.b.py", "-o", "b"), "E-BUILD-080", 3, "a_b.py")
    for name in ("json.py", "numpy.py", "nitroc.py"):
        write(place / name)
        refused(command("build", name, "-o", "b"), "E-BUILD-080", 3, "installed module")
    two = (place / "two.py", ("class Line", "class One"))
    text = write(*two).read_text()
    write(place / "two.py", text=text + text[text.index("class One") :].replace("One", "Two"))
    refused(command("build", "two.py", "-o", "b"), "E-BUILD-081", 3, "One, Two")
    refused(
        command("build", "two.py:Twoo", "-o", "b"), "E-BUILD-081", 3, "did you mean two.py:Two?"
    )


def test_what_is_on_disk_is_never_lost(place, made):
    write(place / "line.py")
    (place / "file").write_text("precious")
    (place / "folder").mkdir()
    (place / "folder/precious").write_text("x")
    refused(command("build", "line.py", "-o", "file"), "E-BUILD-070", 3)
    refused(command("build", "line.py", "-o", "file", "--force"), "E-BUILD-073", 3)
    refused(command("build", "line.py", "-o", "folder", "--force"), "E-BUILD-073", 3, "precious")
    refused(command("build", "line.py", "-o", "file/b"), "E-BUILD-072", 3, "file/b")
    shutil.copytree(made / "b", place / "b")
    before = (place / "b/manifest.json").read_bytes()
    refused(command("build", "line.py", "-o", "b"), "E-BUILD-070", 3, "--force")
    assert (place / "b/manifest.json").read_bytes() == before
    assert (place / "file").read_text() == "precious"
    assert os.listdir(place / "folder") == ["precious"]


def test_no_permission_to_write_the_bundle(place, monkeypatch):
    write(place / "line.py")

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("nitroc.bundle.writer._write_files", refuse)
    refused(command("build", "line.py", "-o", "b"), "E-BUILD-071", 3, "Permission denied", "; b")
    assert not (place / "b").exists()


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/nope"])
def test_F04_a_run_directory_that_cannot_be_written(place, made, name):
    (place / "file").write_text("x")
    refused(command("run", made / "b", "-q", "--run-dir", name), "E-RUN-001", 1, name)
    assert (place / "file").read_text() == "x"


def damaged(place, made, name):
    shutil.copytree(made / "b", place / "b")
    path = place / "b" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "name",
    ["programs/train_step.shlo", "weights/init.safetensors", "host/line.py", "ir/import.nir"],
)
def test_a_damaged_bundle(place, made, name):
    damaged(place, made, name)
    for use in (["run"], ["explain"], ["verify"], ["evaluate", "--checkpoint", made / "r"]):
        refused(command(use[0], "b", *use[1:]), "E-BUNDLE-006", 3, name)


def test_what_is_no_bundle(place, made):
    refused(command("run", "nope"), "E-BUNDLE-001", 3, "nope")
    refused(command("run", write(place / "x.py")), "E-BUNDLE-001", 3, "a file")
    refused(command("verify", "."), "E-BUNDLE-002", 3, "this is not a bundle")
    (place / "foreign").mkdir()
    (place / "foreign/manifest.json").write_text('{"name": "an extension"}')
    refused(command("run", "foreign"), "E-BUNDLE-003", 3, "no version")
    shutil.copytree(made / "b", place / "newer")
    manifest = place / "newer/manifest.json"
    manifest.write_text(manifest.read_text().replace('"major": 1', '"major": 2'))
    refused(command("run", "newer"), "E-BUNDLE-003", 3, "Install a nitroc that reads")


@pytest.mark.parametrize("name", ["nonsense", "tpu"])
def test_a_backend_that_is_not_here(place, made, name):
    checkpoint = ["--checkpoint", made / "r"]
    np.savez("x.npz", x=np.zeros((2, 1), np.float32))
    files = ["--input", "x.npz", "-o", "y.npz"]
    for use in (["run"], ["evaluate", *checkpoint], ["predict", *checkpoint, *files]):
        result = command(use[0], made / "b", *use[1:], "--backend", name)
        refused(result, "E-DEVICE-020", 4, name, "cpu")
    assert os.listdir(place) == ["x.npz"]


INPUTS = {
    "missing_field": ({"z": np.zeros(2, np.float32)}, "E-DATA-062", "the batch has z"),
    "shape": ({"x": np.zeros(2, np.float32)}, "E-DATA-063", "f32[rows,1]"),
    "dtype": ({"x": np.zeros((2, 1), np.int32)}, "E-DATA-063", "x.astype('float32')"),
    "scalar": ({"x": np.float32(1)}, "E-DATA-063", "is f32"),
    "text": ({"x": np.array([["a"]])}, "E-DATA-063", "<U1"),
    "objects": ({"x": np.array([[{}]], dtype=object)}, "E-DATA-090", "no npz of plain arrays"),
}


@pytest.mark.parametrize(("arrays", "code", "said"), INPUTS.values(), ids=INPUTS)
def test_arrays_that_do_not_fit(place, made, arrays, code, said):
    np.savez("x.npz", **arrays)
    arguments = ["--checkpoint", made / "r", "--input", "x.npz", "-o", "y.npz"]
    refused(command("predict", made / "b", *arguments), code, 3, said)
    assert os.listdir(place) == ["x.npz"]


def test_files_that_are_no_npz(place, made):
    np.save("x.npy", np.zeros(3))
    (place / "text.npz").write_text("x")
    for name in ("x.npy", "text.npz", "nope.npz", "."):
        arguments = ["--checkpoint", made / "r", "--input", name, "-o", "y.npz"]
        refused(command("predict", made / "b", *arguments), "E-DATA-090", 3, name)
        refused(command("run", made / "b", "--data", name), "E-DATA-090", 3, name)
    assert sorted(os.listdir(place)) == ["text.npz", "x.npy"]


def test_outputs_that_cannot_be_written(place, made):
    np.savez("x.npz", x=np.zeros((2, 1), np.float32))
    (place / "old").write_text("x")
    for name in ("old/y.npz", "nowhere/y.npz", "."):
        arguments = ["--checkpoint", made / "r", "--input", "x.npz", "-o", name]
        refused(command("predict", made / "b", *arguments), "E-USAGE-040", 2)
    assert (place / "old").read_text() == "x"


def test_checkpoints_that_are_none(place, made):
    (place / "file").write_text("x")
    (place / "empty").mkdir()
    for name in ("nope", "file", "empty", made / "b"):
        result = command("evaluate", made / "b", "--checkpoint", name)
        refused(result, "E-CKPT-001", 3, str(name))
    write(place / "wide.py", ("jnp.zeros((1, 1))", "jnp.zeros((1, 2))"), ("[:, 0] *", ".sum(1) *"))
    succeed("build", "wide.py", "-o", "wide", "-q")
    result = command("evaluate", "wide", "--checkpoint", made / "r")
    refused(result, "E-CKPT-004", 3, "f32[1,1]", "f32[1,2]")
    both = ["--resume", "latest", "--checkpoint", made / "r"]
    refused(command("run", made / "b", *both), "E-USAGE-062", 2, "two sources")
    refused(command("run", made / "b", "--resume", "latest"), "E-CKPT-001", 3, "resume=auto")
    refused(command("run", made / "b", "--resume", "nonsense"), "E-CKPT-001", 3, "nonsense")


def test_dumps_that_make_no_bundle(place, made):
    write(place / "line.py")
    succeed("build", "line.py", "-o", "b", "--dump-ir", "d", "-q")
    weights = ["--weights", "b/weights/init.safetensors"]
    stage = ["build", "--from", "d/00-import.nir", "-o", "c"]
    refused(command(*stage), "E-BUILD-089", 3, "--weights")
    refused(command(*stage, "--weights", "nope"), "E-BUILD-088", 3, "nope")
    refused(command(*stage, "--weights", "line.py"), "E-BUILD-088", 3, "line.py")
    other = write_tensors({"param/other": np.zeros(3, np.float32)})
    (place / "other.safetensors").write_bytes(other)
    refused(command(*stage, "--weights", "other.safetensors"), "E-BUILD-088", 3, "param/w")
    for flags in (["--accum", "2"], ["--set", "power=2"], ["--preset", "x"], ["--dump-ir", "e"]):
        refused(command(*stage, *weights, *flags), "E-USAGE-037", 2, "with --from")
    refused(command("build", "--from", "line.py", "-o", "c", *weights), "E-IR-001", 3, "line 2")
    refused(command("build", "--from", "d/9.nir", "-o", "c", *weights), "E-BUILD-088", 3, "9.nir")
    shutil.rmtree(place / "d/functions")
    refused(command(*stage, *weights), "E-BUILD-088", 3, "functions/")
    assert not (place / "c").exists()


def test_looking_at_what_is_not_there(made):
    refused(command("ir", made / "b", "--program", "tran_step"), "E-USAGE-039", 2, "train_step?")
    refused(command("ir", made / "b", "--after", "comit"), "E-USAGE-039", 2, "did you mean commit?")
    refused(command("ir", made / "b", "--diff", "import"), "E-USAGE-039", 2, "first stage")
    refused(command("ir", made / "b", "--all", "--diff", "commit"), "E-USAGE-037", 2, "--all")
    refused(command("ir", made / "b", "--set", "power=2"), "E-USAGE-037", 2, "change nothing")
    refused(command("explain", made / "b", "--accum", "2"), "E-USAGE-037", 2, "--accum")
    refused(command("explain", "E-FEILD-001"), "E-USAGE-038", 2, "did you mean E-FIELD-001?")
    refused(command("explain", "nope"), "E-BUILD-080", 3, "nope")
    result = command("evaluate", made / "b", "--checkpoint", made / "r", "--split", "tset")
    refused(result, "E-DATA-065", 3, "did you mean 'test'?")
