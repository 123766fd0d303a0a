"""Checks 13-15: devices, compiling, and recordings compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bundle
from tiny_bundle import FORWARD, WEIGHTS, X, files, forward, golden, manifest, train_step

from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle, verify
from nitro_runtime.errors import BundleError, DeviceError
from nitro_runtime.selftest import check_device, check_golden, fingerprint_text, self_test
from nitroc.bundle.assemble import Golden
from nitroc.bundle.writer import write_bundle


def _here() -> str:
    return fingerprint_text(pjrt.devices()[0])


def test_a_recording_of_this_machine_agrees_bit_for_bit() -> None:
    lines = self_test(Bundle.from_files(files(recording=golden(_here()))))
    assert lines == [
        "forward.b4: compiles, agrees with its recording bit for bit",
        "train_step: compiles, no recording",
    ]


def test_a_foreign_recording_agrees_to_its_tolerance() -> None:
    recorded = golden("elsewhere", rtol=1e-5)
    recorded.outputs["outputs.y"][0, 1] *= 1 + 1e-6  # type: ignore[index]
    bundle = Bundle.from_files(files(recording=recorded))
    assert "to 1e-05" in self_test(bundle)[0]
    with pytest.raises(BundleError, match=r"E-BUNDLE-015: out/outputs.y\[1\]: .*bit for bit"):
        self_test(Bundle.from_files(files(recording=Golden(
            recorded.inputs, recorded.outputs, 1e-5, _here()
        ))))  # fmt: skip


@pytest.mark.parametrize("wrong", [1.1, np.nan])
def test_a_wrong_program_is_found(wrong: float) -> None:
    recorded = golden("elsewhere")
    recorded.outputs["outputs.y"][3, 2] *= wrong  # type: ignore[index]
    with pytest.raises(BundleError) as caught:
        self_test(Bundle.from_files(files(recording=recorded)))
    assert caught.value.code == "E-BUNDLE-015"
    assert caught.value.where == "golden/forward.b4.safetensors"
    assert "out/outputs.y[11]" in caught.value.what


def test_the_report_of_a_step_is_compared_word_by_word() -> None:
    def report(loss: float, t: int) -> Any:
        words = np.array([0, 0, t], np.uint32)
        words[:1] = np.array([loss], np.float32).view(np.uint32)
        return words.reshape(1, 3)

    bundle = Bundle.from_files(_with_step_recording(report(0.25, 1)))
    entry = bundle.program("train_step")

    def run(found: Any) -> bool:
        outputs = [WEIGHTS["param/w"], np.array(1), found]
        return check_golden(bundle, "train_step", lambda _: outputs, "here")

    assert entry.golden is not None
    assert run(report(0.25 * (1 + 1e-7), 1)) is False
    with pytest.raises(BundleError, match=r"report\.loss"):
        run(report(0.26, 1))
    with pytest.raises(BundleError, match=r"report\.t"):
        run(report(0.25, 2))


def _with_step_recording(report: Any) -> dict[str, bytes]:
    inputs = {
        "scalars": np.full((1, 1), 0.5, np.float32),
        "seed": np.zeros(2, np.uint32),
        "batch.x": X.reshape(1, 1, 4, 3),
        "steps": np.array(1, np.int32),
    }
    recorded = Golden(inputs, {"report": report}, 1e-5, "elsewhere")
    parts = [
        tiny_bundle.ProgramPart(train_step(), "train_step", golden=recorded),
        tiny_bundle.ProgramPart(forward(), "forward"),
    ]
    return tiny_bundle.assemble(
        manifest(), parts, functions={"ab" * 32: train_step().artifact}, ir={},
        weights=WEIGHTS, constants=tiny_bundle.CONSTANTS, host={"exp.py": b""},
    )  # fmt: skip


def test_the_first_step_runs_from_the_initial_state() -> None:
    report = np.array([[np.float32(0.25).view(np.uint32), 0, 1]], np.uint32)
    lines = self_test(Bundle.from_files(_with_step_recording(report)))
    assert "train_step: compiles, agrees with its recording to 1e-05" in lines


def test_a_recording_without_an_input() -> None:
    recorded = golden("x")
    del recorded.inputs["batch.x"]  # type: ignore[attr-defined]
    with pytest.raises(BundleError, match=r"the recording has no input batch\.x"):
        self_test(Bundle.from_files(files(recording=recorded)))


def test_a_program_that_does_not_compile() -> None:
    call = "stablehlo.custom_call @Qr(%w) : (tensor<3xf32>) -> tensor<3xf32>"
    text = FORWARD.replace("%rows = ", f"%q = {call}\n %rows = ").replace("in_dim %w", "in_dim %q")
    bundle = Bundle.from_files(files(programs=(train_step(), forward(text))))
    with pytest.raises(BundleError) as caught:
        self_test(bundle)
    assert caught.value.code == "E-BUNDLE-014"
    assert caught.value.where == "programs/forward.b4.shlo"


@pytest.mark.parametrize(
    ("platform", "available", "count", "number"),
    [("tpu", 8, 1, 1), ("cpu", 8, 2, 2), ("cpu", 0, 1, 3)],
)
def test_check_13(platform: str, available: int, count: int, number: int) -> None:
    bundle = Bundle.from_files(files())
    with pytest.raises(DeviceError) as caught:
        check_device(bundle.manifest, platform, available, count)
    assert caught.value.code == f"E-DEVICE-{number:03d}"
    assert caught.value.exit == 4


def test_check_13_passes() -> None:
    check_device(Bundle.from_files(files()).manifest, "cpu", 1)


def test_verify_says_what_it_checked(tmp_path: Path) -> None:
    path = write_bundle(files(recording=golden(_here())), tmp_path / "b")
    lines = verify(path)
    assert lines[-1] == "good"
    assert any("2 programs: forward.b4, train_step" in line for line in lines)
    assert not any("recording" in line for line in lines)
    assert any("bit for bit" in line for line in verify(path, run=True))
