"""Checks 13-15: this machine can run a bundle, its programs compile, and compute what they did.

A recording holds `in/<argument>` for what is no weight, constant or fresh slot, and
`out/<result>`. Where the same machine recorded it the bits must agree; elsewhere each array agrees
to the program's `rtol` of its largest magnitude.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle
from nitro_runtime.checks import CONSTANTS, INIT
from nitro_runtime.errors import BundleError, DeviceError
from nitro_runtime.findings import Finding, refuse
from nitro_runtime.manifest import ArgEntry, GoldenEntry, Manifest, ReportWord, ResultEntry
from nitro_runtime.report_words import ReportReader
from nitro_runtime.state import LIVING, Layout
from nitro_runtime.tensors import TensorFileError, read_header, read_tensors

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[Array]], Sequence[Array]]


def self_test(bundle: Bundle, platform: str | None = None) -> list[str]:
    """Compiles every program and runs those with a recording; one line each.

    Raises:
        DeviceError: 1-3 this machine can't run the bundle. BundleError: 14, 15.
    """
    devices = pjrt.devices(platform)
    check_device(bundle.manifest, platform_name(devices[0]), len(devices))
    lines: list[str] = []
    for name, entry in sorted(bundle.manifest.programs.items()):
        run = _compiled(bundle, name, devices[0])
        if entry.golden is None:
            lines.append(f"{name}: compiles, no recording")
            continue
        exact = check_golden(bundle, name, run, fingerprint_text(devices[0]))
        agrees = "bit for bit" if exact else f"to {entry.golden.rtol:g}"
        lines.append(f"{name}: compiles, agrees with its recording {agrees}")
    return lines


def platform_name(device: pjrt.Device) -> str:
    """`cpu`, `cuda`, `rocm` or `tpu`: a GPU is named by its vendor's platform."""
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def fingerprint_text(device: pjrt.Device) -> str:
    """A short name of everything that decides bits here, for recordings."""
    text = json.dumps(pjrt.fingerprint(device), sort_keys=True)
    return f"{platform_name(device)} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def check_device(manifest: Manifest, platform: str, available: int, count: int = 1) -> None:
    """Check 13: the bundle is for this platform, `count` was compiled, and so many are there.

    Raises:
        DeviceError: 1 another platform, 2 a count that was not compiled, 3 too few devices.
    """
    platforms = manifest.requires.platforms
    if platforms and platform not in platforms:
        raise DeviceError(
            1,
            f"the bundle is for {', '.join(platforms)}, not for {platform}",
            help=f"run with --backend {platforms[0]}, or build with --platform {platform}",
        )
    counts = sorted({program.devices for program in manifest.programs.values()})
    if counts and count not in counts:
        raise DeviceError(
            2,
            f"the bundle has no programs for {count} devices",
            help=f"it has them for {', '.join(map(str, counts))}; build with --n-devs {count}",
        )
    if count > available:
        raise DeviceError(
            3,
            f"{count} devices are needed, {available} are there",
            help="use a smaller count, or a machine with more devices",
        )


def check_golden(bundle: Bundle, name: str, run: Run, fingerprint: str) -> bool:
    """Check 15 of one program: runs its recording; True when bits had to agree, and do.

    `run` takes host arrays in argument order and gives host arrays in result order.

    Raises:
        BundleError: 15, with every result that differs.
    """
    entry = bundle.program(name)
    golden = entry.golden
    assert golden is not None, f"{name} has no recording"
    data = bundle.read(golden.file)
    try:
        _, metadata = read_header(data)
        tensors = read_tensors(data)
    except TensorFileError as error:
        raise BundleError(15, f"no recording: {error}", where=golden.file) from error
    recorded = {k.removeprefix("out/"): v for k, v in tensors.items() if k.startswith("out/")}
    inputs = {k.removeprefix("in/"): v for k, v in tensors.items() if k.startswith("in/")}
    outputs = run([_input(bundle, arg, inputs, golden) for arg in entry.args])
    exact = metadata.get("fingerprint") == fingerprint
    rtol = 0.0 if exact else golden.rtol
    results = dict(zip((r.name for r in entry.results), outputs, strict=True))
    findings = [
        Finding(golden.file, f"out/{key}", "a result of the program", "none")
        for key in sorted(recorded.keys() - results.keys())
    ]
    for result in entry.results:
        if result.name in recorded:
            pair = (recorded[result.name], results[result.name])
            findings += _compare(golden.file, result, entry.report, pair, rtol)
    refuse(15, findings)
    return exact


def _compiled(bundle: Bundle, name: str, device: pjrt.Device) -> Run:
    """Check 14 of one program."""
    entry = bundle.program(name)
    try:
        executable = pjrt.compile(
            bundle.artifact(name), device, entry.args, entry.results, donate=entry.donate
        )
    except DeviceError as error:
        if error.code != "E-DEVICE-027":
            raise
        raise BundleError(14, error.what, where=entry.file, help=error.help) from error

    return on_host(executable)


def on_host(executable: pjrt.Executable) -> Run:
    """An executable as a function of host arrays, in argument and result order."""

    def run(arrays: Sequence[Array]) -> list[Array]:
        placed = [pjrt.put(x, executable.device) for x in arrays]
        return [pjrt.read(x) for x in executable(placed)]

    return run


def _input(
    bundle: Bundle, arg: ArgEntry, inputs: Mapping[str, Array], golden: GoldenEntry
) -> Array:
    """The recorded input, else the initial value of a parameter, slot, state or constant."""
    if arg.name in inputs:
        return inputs[arg.name]
    constants = bundle.arrays(CONSTANTS)
    if (key := arg.name.replace(".", "/", 1)) in constants:
        return constants[key]
    if arg.role in LIVING:
        try:
            return Layout(bundle.manifest).pack(arg, bundle.arrays(INIT))
        except KeyError:
            pass  # the bundle has `init` instead of weights, and the recording lacks the argument
    raise BundleError(15, f"the recording has no input {arg.name}", where=golden.file)


def _compare(
    file: str,
    result: ResultEntry,
    words: Sequence[ReportWord],
    pair: tuple[Array, Array],
    rtol: float,
) -> list[Finding]:
    recorded, found = pair
    if recorded.dtype != found.dtype or recorded.shape != found.shape:
        expected = f"{recorded.dtype}{list(recorded.shape)}"
        return [Finding(file, f"out/{result.name}", expected, f"{found.dtype}{list(found.shape)}")]
    if recorded.tobytes() == found.tobytes():
        return []
    path = f"out/{result.name}"
    if rtol == 0:
        at = int(np.flatnonzero(_bytes(recorded) != _bytes(found))[0]) // recorded.itemsize
        values = recorded.reshape(-1)[at], found.reshape(-1)[at]
        return [Finding(file, f"{path}[{at}]", f"{values[0]}, bit for bit", str(values[1]))]
    if result.role == "report":
        return _compare_report(file, path, words, pair, rtol)
    return _compare_values(file, path, recorded, found, rtol)


def _bytes(array: Array) -> Array:
    return np.frombuffer(array.tobytes(), np.uint8)


def _compare_report(
    file: str, path: str, words: Sequence[ReportWord], pair: tuple[Array, Array], rtol: float
) -> list[Finding]:
    """Each word as the value it stands for: a float to `rtol`, a count exactly."""
    read = ReportReader(words)
    recorded, found = (read(report.reshape(-1)[: report.shape[-1]]) for report in pair)
    return [
        finding
        for name, value in recorded.items()
        for finding in _compare_values(
            file, f"{path}.{name}", np.asarray(value), np.asarray(found[name]), rtol
        )
    ]


def _compare_values(
    file: str, path: str, recorded: Array, found: Array, rtol: float
) -> list[Finding]:
    if recorded.dtype.kind in "biu":
        if np.array_equal(recorded, found):
            return []
        return [Finding(file, path, "the recorded integers", "others")]
    wide = np.complex128 if recorded.dtype.kind == "c" else np.float64
    a, b = recorded.astype(wide), found.astype(wide)
    scale = float(np.max(np.abs(a), where=np.isfinite(a), initial=0.0))
    close = np.isclose(a, b, rtol=0.0, atol=rtol * scale + 1e-7, equal_nan=True)
    if close.all():
        return []
    at = int(np.flatnonzero(~close)[0])
    values = a.reshape(-1)[at], b.reshape(-1)[at]
    return [Finding(file, f"{path}[{at}]", f"{values[0]:g} to {rtol:g}", f"{values[1]:g}")]
