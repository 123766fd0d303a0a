"""Opening bundles: checks 7-12 on files whose hashes are right, and what an open one offers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_bundle import FORWARD, TRAIN, WEIGHTS, files, sealed, serialize

from nitro_runtime import artifact
from nitro_runtime.bundle import Bundle
from nitro_runtime.canonical import parse
from nitro_runtime.errors import BundleError
from nitro_runtime.tensors import write_tensors
from nitroc.bundle.writer import write_bundle

INIT = "weights/init.safetensors"
TRAIN_FILE = "programs/train_step.shlo"

Edit = Callable[[dict[str, Any]], None]


def _refusal(broken: dict[str, bytes]) -> BundleError:
    with pytest.raises(BundleError) as caught:
        Bundle.from_files(broken)
    assert caught.value.exit == 3
    return caught.value


def test_what_an_open_bundle_offers() -> None:
    made = files()
    bundle = Bundle.from_files(made)
    assert bundle.path is None
    assert bundle.digest == parse(made["manifest.json"])["digest"]
    assert bundle.names() == sorted(made)
    assert bundle.program("forward.b4").role == "forward"
    assert bundle.artifact("train_step") == made[TRAIN_FILE]
    assert bundle.read("host/exp.py") == b"class Tiny: ...\n"
    assert bundle.arrays(INIT)["param/w"].tolist() == [1, 2, 3]
    assert bundle.arrays("weights/none.safetensors") == {}
    assert [entry.name for entry in bundle.manifest.state] == ["param.p:packed.f32", "slot.t"]


def test_names_that_are_not_there_are_suggested() -> None:
    bundle = Bundle.from_files(files())
    with pytest.raises(BundleError, match=r"E-BUNDLE-020: .*'forward.b3'[\s\S]*'forward.b4'"):
        bundle.program("forward.b3")
    with pytest.raises(BundleError, match=r"did you mean 'ir/import\.nir'"):
        bundle.read("ir/imports.nir")


def test_a_trusted_bundle_parses_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    made = files()
    monkeypatch.setattr(artifact, "inspect", _never)
    monkeypatch.setattr(artifact, "header_version", _never)
    assert Bundle.from_files(made, trusted=True).manifest.name == "Tiny"
    with pytest.raises(AssertionError):
        Bundle.from_files(made)


def _never(*_: object) -> None:
    raise AssertionError("a program was looked at")


def _set(*path: Any) -> Edit:
    *keys, last, new = path

    def edit(value: Any) -> None:
        for key in keys:
            value = value[key]
        value[last] = new

    return edit


def _change(*path: Any, **new: Any) -> Edit:
    def edit(value: Any) -> None:
        for key in path:
            value = value[key]
        value.update(new)

    return edit


STEP = ("programs", "train_step")


@pytest.mark.parametrize(
    ("edit", "where", "said"),
    [
        (_set(*STEP, "file", "programs/none.shlo"), ".file", "not listed"),
        (_set(*STEP, "file", "host/exp.py"), ".file", "a host file"),
        (_set("experiment", "file", "host/x.py"), "$.experiment.file", "not listed"),
        (_set("functions", {}), "functions/abab", "none"),
        (_set("functions", "forward", "digest", "00"), "$.functions[\"forward\"]", "not listed"),
        (_set("files", "host/exp.py", "kind", "golden"), ".kind", "a file under golden/"),
        (_set("groups", 0, "leaves", 0, "buffer", "b"), "leaves[0].buffer", "'b'"),
        (_set("groups", 0, "leaves", 0, "offset", 1), "$.groups[0].leaves", "at offset 0"),
        (_set("groups", 0, "leaves", 0, "dtype", "bf16"), "$.groups[0].leaves", "bf16"),
        (_set("groups", 0, "leaves", 0, "dtype", "float"), "$.groups[0].leaves", "float"),
        (_set("groups", 0, "buffers", 0, "shape", [4]), "$.groups[0].leaves", "4 elements"),
        (_set("groups", 1, "name", "default"), "$.groups", "'default' twice"),
        (_set("slots", []), "args[1]", "'t'"),
        (_set("slots", 0, "group", "none"), "$.slots[0].group", "'none'"),
        (_set("batch_schema", {}), "args[4]", "batch.x"),
        (_set("routing", "transfer", {"nothing": []}), "$.routing.transfer", "'nothing'"),
        (_set("report", 0, "index", 1), "$.report[0]", "'loss' at 1"),
        (_set(*STEP, "devices", 0), ".devices", "at least 1"),
        (_set(*STEP, "args", 3, "name", "steps"), ".args", "'steps' twice"),
        (_set(*STEP, "args", 0, "buffer", "w"), "args[0]", "a buffer of a group"),
        (_set(*STEP, "args", 0, "dtype", "i32"), "args[0]", "i32[3]"),
        (_set(*STEP, "donate", [[0, 0], [0, 1]]), ".donate", "twice"),
        (_set(*STEP, "donate", [[0, 9]]), ".donate", "[0, 9]"),
        (_set(*STEP, "donate", [[0, 1]]), ".donate", "i64"),
        (_set(*STEP, "scalars", []), ".scalars", "1 words"),
        (_set(*STEP, "scalars", 0, "index", 1), ".scalars", "[1]"),
        (_set(*STEP, "report", 1, "index", 2), ".report", "'t' at word 1"),
        (_set(*STEP, "report", 1, "words", 1), ".report", "3 words"),
        (_change(*STEP, golden={"file": "golden/x", "rtol": 0.0}), ".golden", "not listed"),
    ],
)  # fmt: skip
def test_check_7_references(
    edit: Edit, where: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = sealed(files(), edit)
    monkeypatch.setattr(artifact, "header_version", _never)
    text = str(_refusal(broken))
    assert text.startswith("E-BUNDLE-007")
    assert where in text
    assert said in text


def test_check_7_weights_or_init() -> None:
    made = files()
    del made[INIT]
    text = str(_refusal(sealed(made, lambda value: value["files"].pop(INIT))))
    assert text.startswith("E-BUNDLE-007")
    assert INIT in text


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"ML\xefR\rStableHLO_v99.0.0\0", "found 99.0.0"),
        (b"ML\xefR\rStableHLO_v0.1.0\0", "found 0.1.0"),
        (b"ML\xefR\rStableHLO_v1.13.6\0", "$.requires.stablehlo"),
        (b"ML\xefR\rMLIR21.0.0\0", "names no StableHLO version"),
        (b"\x7fELF", "expected 4d 4c ef 52"),
    ],
)
def test_check_8_headers(header: bytes, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = files()
    end = made[TRAIN_FILE].index(b"\0") + 1
    broken = sealed({**made, TRAIN_FILE: header + made[TRAIN_FILE][end:]})
    monkeypatch.setattr(artifact, "inspect", _never)
    error = _refusal(broken)
    assert error.code == "E-BUNDLE-008"
    assert error.where == TRAIN_FILE
    assert said in error.what


def test_check_8_functions_have_headers_too() -> None:
    made = files()
    name = next(name for name in made if name.startswith("functions/"))
    assert _refusal(sealed({**made, name: b"text"})).where == name


def _with_program(text: str) -> dict[str, bytes]:
    return sealed({**files(), TRAIN_FILE: serialize(text)})


def test_check_9_programs() -> None:
    twice = TRAIN.replace("func.func private @square", "func.func public @square")
    assert _refusal(_with_program(twice)).code == "E-BUNDLE-009"


def test_check_9_custom_calls_are_declared() -> None:
    calling = TRAIN.replace(
        "%w1 = stablehlo.subtract %w, %rate : tensor<3xf32>",
        "%w1 = stablehlo.custom_call @Sharding(%w) : (tensor<3xf32>) -> tensor<3xf32>",
    )
    error = _refusal(_with_program(calling))
    assert error.code == "E-BUNDLE-009"
    assert "$.requires.custom_calls: expected none, found Sharding" in error.what


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("%seed: tensor<2xui32>", "%seed: tensor<2xi32>", ["args[3]", "seed : ui32[2]", "i32[2]"]),
        ("%table: tensor<3xf32>", "%table: tensor<3x1xf32>", ["args[5]", "f32[3,1]"]),
        ("%table: tensor<3xf32>,", "", ["args: expected 7 of them, found 6"]),
        (" {tf.aliasing_output = 1 : i32}", "", ["donate", "[[0, 0]]"]),
        ("%steps: tensor<i32>", "%steps: tensor<f32>", ["args[6]", "found f32"]),
    ],
)
def test_check_10_signatures(old: str, new: str, said: list[str]) -> None:
    assert old in TRAIN
    error = _refusal(_with_program(TRAIN.replace(old, new)))
    assert error.code == "E-BUNDLE-010"
    assert error.where == TRAIN_FILE
    assert all(word in error.what for word in said), error.what


def test_check_10_the_manifest_is_wrong() -> None:
    def edit(value: Any) -> None:
        value["programs"]["forward.b4"]["args"][4]["dtype"] = "i32"
        value["programs"]["forward.b4"]["results"][0]["shape"] = [3, 4]

    error = _refusal(sealed(files(), edit))
    assert error.code == "E-BUNDLE-010"
    assert "batch.x : i32[4,3], found f32[4,3]" in error.what
    assert "outputs.y : f32[3,4], found f32[4,3]" in error.also[0]


def test_check_11_one_state() -> None:
    def edit(value: Any) -> None:
        value["state"][1]["dtype"] = "i32"
        value["state"].append({"name": "slot.mu", "role": "slot", "dtype": "f32", "shape": []})

    error = _refusal(sealed(files(), edit))
    assert error.code == "E-BUNDLE-011"
    assert "slot.t : i64" in error.what
    assert "all 3 buffers" in error.also[0]


W = WEIGHTS["param/w"]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"param/w": W[:2]}, "param/w: expected f32[3], found f32[2]"),
        ({"param/w": W.astype(np.float64)}, "param/w: expected f32[3], found f64[3]"),
        ({"param/w": W, "param/v": W}, "param/v: expected no tensor, found f32[3]"),
        ({"state/w": W}, "param/w: expected f32[3], found none"),
    ],
)
def test_check_12_weights(arrays: dict[str, Any], said: str) -> None:
    error = _refusal(sealed({**files(), INIT: write_tensors(arrays)}))
    assert error.code == "E-BUNDLE-012"
    assert error.where == INIT
    assert said in error.text()


@pytest.mark.parametrize("data", [b"", b"\xff" * 16, write_tensors(WEIGHTS)[:-1]])
def test_check_12_malformed_files(data: bytes) -> None:
    error = _refusal(sealed({**files(), INIT: data}))
    assert error.code == "E-BUNDLE-012"
    assert "a tensor file" in error.what


def test_check_12_constants() -> None:
    name = "weights/constants.safetensors"
    error = _refusal(sealed({**files(), name: write_tensors({"const/other": W})}))
    assert error.code == "E-BUNDLE-012"
    assert error.also == (f"{name}: const/table: expected f32[3], found none",)


def test_all_failures_of_a_check_are_reported_together() -> None:
    made = files()
    broken = {name: data if name == "manifest.json" else data + b"x" for name, data in made.items()}
    error = _refusal(broken)
    assert error.code == "E-BUNDLE-006"
    assert len(error.also) + 1 == len(made) - 1


def test_a_cut_file_and_a_changed_one_are_reported_together(tmp_path: Path) -> None:
    place = write_bundle(files(), tmp_path / "bundle")
    cut, changed = place / TRAIN_FILE, place / INIT
    cut.write_bytes(cut.read_bytes()[:-1])
    changed.write_bytes(changed.read_bytes()[:-1] + b"~")
    with pytest.raises(BundleError, match="E-BUNDLE-006") as caught:
        Bundle.open(place)
    assert all(name in str(caught.value) for name in (TRAIN_FILE, INIT))


def test_an_open_bundle_does_not_see_later_changes(tmp_path: Path) -> None:
    made = files()
    path = write_bundle(made, tmp_path / "b")
    opened = Bundle.open(path)
    for name in made:
        (path / name).write_bytes(b"")
    assert opened.read(TRAIN_FILE) == made[TRAIN_FILE]
    assert opened.arrays(INIT)["param/w"].tolist() == [1, 2, 3]


def test_the_program_used_in_tests_is_the_one_described() -> None:
    assert artifact.inspect(serialize(FORWARD)).problems == []
