"""Checks 2-6 and 8-12 of a bundle, each a function from bytes and entries to findings.

`bundle.py` calls them in order and stops at the first that found something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from nitro_runtime import artifact
from nitro_runtime.canonical import CanonicalError, Json, digest, dump, identity, parse
from nitro_runtime.dtypes import spell
from nitro_runtime.findings import MANIFEST, Finding
from nitro_runtime.manifest import (
    MAJOR,
    MINOR,
    ArgEntry,
    FileEntry,
    Manifest,
    ProgramEntry,
    ResultEntry,
    StateEntry,
)
from nitro_runtime.records import from_json
from nitro_runtime.tensors import TensorFileError, TensorHeader, read_header

INIT = "weights/init.safetensors"
CONSTANTS = "weights/constants.safetensors"
PERSISTENT = ("param", "slot", "state")

Files = Mapping[str, bytes]


def parse_manifest(data: bytes) -> tuple[dict[str, Json], list[Finding]]:
    """Check 2: UTF-8, JSON, an object of bounded depth."""
    try:
        value = parse(data)
    except CanonicalError as error:
        return {}, [Finding(MANIFEST, "", "JSON in UTF-8", str(error))]
    if not isinstance(value, dict):
        return {}, [Finding(MANIFEST, "$", "an object", "another value")]
    return cast(dict[str, Json], value), []


def check_format(value: dict[str, Json]) -> list[Finding]:
    """Check 3: the format's major number is this runtime's, the minor one not newer."""
    given = value.get("format")
    entry = cast(dict[str, Json], given) if isinstance(given, dict) else {}
    major, minor = entry.get("major"), entry.get("minor")
    expected = f"format {MAJOR}.{MINOR}"
    if type(major) is not int or type(minor) is not int:
        return [Finding(MANIFEST, "$.format", expected, "no version")]
    if major == MAJOR and 0 <= minor <= MINOR:
        return []
    return [Finding(MANIFEST, "$.format", expected, f"format {major}.{minor}")]


def read_manifest(data: bytes, value: dict[str, Json]) -> tuple[Manifest | None, list[Finding]]:
    """Check 4: canonical text, known keys of the right types, the digest."""
    manifest, mismatches = from_json(Manifest, value)
    findings = [Finding(MANIFEST, m.path, m.expected, m.found) for m in mismatches]
    findings += _check_canonical(data, value)
    expected = identity(value)
    if manifest is not None and manifest.digest != expected:
        findings.append(Finding(MANIFEST, "$.digest", expected, manifest.digest))
    return manifest, findings


def _check_canonical(data: bytes, value: dict[str, Json]) -> list[Finding]:
    canonical = dump(value)
    if canonical == data:
        return []
    pairs = zip(canonical.splitlines(), data.splitlines(), strict=False)
    line = next((i for i, (a, b) in enumerate(pairs, 1) if a != b), None)
    where = f"line {line}" if line else "the end"
    return [Finding(MANIFEST, "", "the canonical text", f"another one at {where}")]


def check_listing(listed: Iterable[str], files: Mapping[str, FileEntry]) -> list[Finding]:
    """Check 5: the directory holds the manifest and what it lists, nothing else."""
    there = set(listed) - {MANIFEST}
    missing = [Finding(name, "", "a file", "none") for name in sorted(files.keys() - there)]
    extra = [Finding(name, "", "no file", "one") for name in sorted(there - files.keys())]
    return missing + extra


def check_content(name: str, data: bytes, entry: FileEntry) -> list[Finding]:
    """Check 6 of one file: its size and sha256."""
    if len(data) != entry.size:
        found = "more" if len(data) > entry.size else f"{len(data)} bytes"
        return [Finding(name, "", f"{entry.size} bytes", found)]
    found = digest(data)
    return [] if found == entry.sha256 else [Finding(name, "", f"sha256 {entry.sha256}", found)]


def check_headers(manifest: Manifest, files: Files) -> list[Finding]:
    """Check 8: every artifact's header names a StableHLO version that this runtime reads."""
    oldest, newest = artifact.supported_versions()
    findings: list[Finding] = []
    for name, entry in manifest.files.items():
        if entry.kind not in ("program", "function"):
            continue
        try:
            version = artifact.header_version(files[name])
        except artifact.ArtifactError as error:
            findings.append(Finding(name, "", "a StableHLO portable artifact", str(error)))
            continue
        spelled = artifact.spell_version(version)
        if not oldest <= version <= newest:
            bounds = f"{artifact.spell_version(oldest)} to {artifact.spell_version(newest)}"
            findings.append(Finding(name, "", f"StableHLO {bounds}", spelled))
        elif entry.kind == "program" and spelled != manifest.requires.stablehlo:
            expected = f"StableHLO {manifest.requires.stablehlo} ($.requires.stablehlo)"
            findings.append(Finding(name, "", expected, spelled))
    return findings


def check_programs(
    manifest: Manifest, files: Files
) -> tuple[dict[str, artifact.Inspection], list[Finding]]:
    """Check 9: what each program is made of; returns what its `main` takes and returns."""
    inspections = {
        name: artifact.inspect(files[program.file]) for name, program in manifest.programs.items()
    }
    findings = [
        Finding(manifest.programs[name].file, "", "a program that can run", problem)
        for name, inspection in inspections.items()
        for problem in inspection.problems
    ]
    called = tuple(sorted({call for one in inspections.values() for call in one.custom_calls}))
    if called != manifest.requires.custom_calls:
        found = ", ".join(called) or "none"
        expected = ", ".join(manifest.requires.custom_calls) or "none"
        findings.append(Finding(MANIFEST, "$.requires.custom_calls", expected, found))
    return inspections, findings


def check_signatures(
    manifest: Manifest, inspections: Mapping[str, artifact.Inspection]
) -> list[Finding]:
    """Check 10: each argument, result and donation of a program is what the manifest says."""
    findings: list[Finding] = []
    for name, program in manifest.programs.items():
        found = inspections[name]
        path = f'$.programs["{name}"]'
        findings += _compare(program.file, f"{path}.args", program.args, found.args)
        findings += _compare(program.file, f"{path}.results", program.results, found.results)
        if sorted(program.donate) != sorted(found.donate):
            said = [list(pair) for pair in program.donate]
            got = [list(pair) for pair in found.donate]
            findings.append(Finding(program.file, f"{path}.donate", str(said), str(got)))
    return findings


def _compare(
    file: str,
    path: str,
    entries: tuple[ArgEntry, ...] | tuple[ResultEntry, ...],
    tensors: tuple[artifact.Tensor, ...],
) -> list[Finding]:
    if len(entries) != len(tensors):
        return [Finding(file, path, f"{len(entries)} of them", str(len(tensors)))]
    return [
        Finding(
            file,
            f"{path}[{index}]",
            f"{entry.name} : {spell(entry.dtype, entry.shape)}",
            spell(tensor.dtype, tensor.shape),
        )
        for index, (entry, tensor) in enumerate(zip(entries, tensors, strict=True))
        if (entry.dtype, entry.shape) != (tensor.dtype, tensor.shape)
    ]


def state_of(program: ProgramEntry) -> tuple[StateEntry, ...]:
    """The buffers of `program` that live from step to step, in argument order."""
    return tuple(
        StateEntry(arg.name, arg.role, arg.dtype, arg.shape)
        for arg in program.args
        if arg.role in PERSISTENT
    )


def check_state(manifest: Manifest) -> list[Finding]:
    """Check 11: every program sees the state that `$.state` lists; the train program all of it."""
    known = {entry.name: entry for entry in manifest.state}
    findings: list[Finding] = []
    for name, program in manifest.programs.items():
        path = f'$.programs["{name}"].args'
        seen = state_of(program)
        for entry in seen:
            if known.get(entry.name) != entry:
                there = known.get(entry.name)
                expected = spell(there.dtype, there.shape) if there else "an entry of $.state"
                found = f"{entry.name} : {spell(entry.dtype, entry.shape)}"
                findings.append(Finding(MANIFEST, path, expected, found))
        if program.role.startswith("train_step") and len(seen) != len(known):
            expected = f"all {len(known)} buffers of $.state"
            findings.append(Finding(MANIFEST, path, expected, str(len(seen))))
    return findings


def check_weights(manifest: Manifest, files: Files) -> list[Finding]:
    """Check 12: the tensor files hold exactly the leaves, constants and arrays, well formed."""
    return _check_tensors(INIT, expected_weights(manifest), files) + _check_tensors(
        CONSTANTS, expected_constants(manifest), files
    )


def expected_weights(manifest: Manifest) -> dict[str, str]:
    """Tensor names of the initial weights and their types."""
    return {
        f"{group.role}/{leaf.path}": spell(leaf.dtype, leaf.shape)
        for group in manifest.groups
        if group.role in ("param", "state")
        for leaf in group.leaves
    }


def expected_constants(manifest: Manifest) -> dict[str, str]:
    """Tensor names of the constants and array Device values that any program takes."""
    return {
        arg.name.replace(".", "/", 1): spell(arg.dtype, arg.shape)
        for program in manifest.programs.values()
        for arg in program.args
        if arg.role in ("const", "device")
    }


def _check_tensors(name: str, expected: dict[str, str], files: Files) -> list[Finding]:
    data = files.get(name)
    if data is None:
        return []
    try:
        tensors, _ = read_header(data)
    except TensorFileError as error:
        return [Finding(name, "", "a tensor file", str(error))]
    return [
        Finding(name, key, expected.get(key, "no tensor"), _spelled(tensors.get(key)))
        for key in sorted(expected.keys() | tensors.keys())
        if expected.get(key) != _spelled(tensors.get(key))
    ]


def _spelled(header: TensorHeader | None) -> str:
    return str(header) if header else "none"
