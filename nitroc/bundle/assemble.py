"""The files of a bundle, from the parts of a compilation.

Everything is a function of the parts: no time, host, user or absolute path enters, so equal parts
give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from nitro_runtime import artifact
from nitro_runtime.canonical import digest, dump, identity
from nitro_runtime.checks import CONSTANTS, INIT, state_of
from nitro_runtime.findings import MANIFEST
from nitro_runtime.manifest import (
    ArgEntry,
    FileEntry,
    GoldenEntry,
    GuardsEntry,
    Manifest,
    ProgramEntry,
    ReportEntry,
    ReportWord,
    ResultEntry,
    RoutingEntry,
    ScalarEntry,
    StateEntry,
    word_of_mark,
)
from nitro_runtime.records import to_json
from nitro_runtime.tensors import write_tensors
from nitroc.errors import BuildError

Arrays = Mapping[str, np.ndarray[Any, Any]]


class Emitted(Protocol):
    """A program as emission hands it over."""

    @property
    def name(self) -> str: ...
    @property
    def artifact(self) -> bytes: ...
    @property
    def args(self) -> tuple[ArgEntry, ...]: ...
    @property
    def results(self) -> tuple[ResultEntry, ...]: ...
    @property
    def scalars(self) -> tuple[ScalarEntry, ...]: ...
    @property
    def report(self) -> tuple[ReportWord, ...]: ...


@dataclass(frozen=True)
class Golden:
    """A recording: `inputs` by argument name (those that are no weights), `outputs` by result.

    fingerprint: what recorded it, as the device adapter spells it; there the bits must agree.
    """

    inputs: Arrays
    outputs: Arrays
    rtol: float
    fingerprint: str


@dataclass(frozen=True)
class ProgramPart:
    """An emitted program and what only the caller knows of it.

    dims: those that apply of `width`, `rows`, `accum`, `capacity`. devices: what it is for.
    """

    emitted: Emitted
    role: str
    dims: Mapping[str, int] = field(default_factory=dict[str, int])
    devices: int = 1
    golden: Golden | None = None


def assemble(
    manifest: Manifest,
    programs: Sequence[ProgramPart],
    *,
    functions: Mapping[str, bytes],
    ir: Mapping[str, str],
    weights: Arrays,
    constants: Arrays,
    host: Mapping[str, bytes] | None = None,
    provenance: Mapping[str, bytes] | None = None,
) -> dict[str, bytes]:
    """Every file of the bundle, `manifest.json` included.

    manifest: what the compiler knows; `files programs state report routing.transfer portable
    digest` and the StableHLO version and custom calls of `requires` are filled in here.
    functions: artifacts by digest. ir: text by stage (`import`) or program. weights: by
    `param/<path>` and `state/<path>`. constants: by `const/<name>` and `device/<leaf>`. host,
    provenance: by file name.

    Raises:
        BuildError: 74 for a program that a loader would refuse.
    """
    files = {_program_file(part): part.emitted.artifact for part in programs}
    kinds = dict.fromkeys(files, "program")
    for kind, contents in (
        ("function", {f"functions/{key}.shlo": data for key, data in functions.items()}),
        ("ir", {f"ir/{stage}.nir": text.encode() for stage, text in ir.items()}),
        ("weights", {INIT: write_tensors(weights)} if weights else {}),
        ("constants", {CONSTANTS: write_tensors(constants)} if constants else {}),
        ("host", {f"host/{name}": data for name, data in (host or {}).items()}),
        ("golden", {_golden_file(part): _golden(part.golden) for part in programs if part.golden}),
        ("provenance", {f"provenance/{n}": data for n, data in (provenance or {}).items()}),
    ):
        files.update(contents)
        kinds.update(dict.fromkeys(contents, kind))
    entries = {
        name: FileEntry(len(data), digest(data), kinds[name]) for name, data in files.items()
    }
    complete = replace(_with_programs(manifest, programs), files=entries)
    complete = replace(complete, digest=identity(to_json(complete)))
    return {MANIFEST: dump(to_json(complete)), **files}


def _with_programs(manifest: Manifest, parts: Sequence[ProgramPart]) -> Manifest:
    inspected = {part.emitted.name: _inspect(part) for part in parts}
    programs = {part.emitted.name: _entry(part, inspected[part.emitted.name]) for part in parts}
    calls = tuple(sorted({call for one in inspected.values() for call in one.custom_calls}))
    versions = {artifact.header_version(part.emitted.artifact) for part in parts}
    requires = replace(
        manifest.requires,
        stablehlo=artifact.spell_version(max(versions)) if versions else "",
        custom_calls=calls,
    )
    transfer = {
        name: tuple(arg.name.removeprefix("batch.") for arg in entry.args if arg.role == "batch")
        for name, entry in programs.items()
    }
    return replace(
        manifest,
        programs=programs,
        requires=requires,
        portable=not calls,
        state=_state(programs),
        report=manifest.report or _report(programs, manifest.guards),
        routing=RoutingEntry(manifest.routing.hooks, transfer),
    )


def _inspect(part: ProgramPart) -> artifact.Inspection:
    inspection = artifact.inspect(part.emitted.artifact)
    if inspection.problems:
        first, *rest = inspection.problems
        raise BuildError(
            74,
            f"the emitted program breaks a rule of the format: {first}",
            where=f"@{part.emitted.name}",
            also=rest,
            help="this is a defect of the compiler: please report it with this message",
        )
    return inspection


def _entry(part: ProgramPart, inspection: artifact.Inspection) -> ProgramEntry:
    golden = GoldenEntry(_golden_file(part), part.golden.rtol) if part.golden else None
    return ProgramEntry(
        file=_program_file(part),
        role=part.role,
        dims=dict(part.dims),
        devices=part.devices,
        args=part.emitted.args,
        results=part.emitted.results,
        scalars=part.emitted.scalars,
        report=part.emitted.report,
        donate=inspection.donate,
        golden=golden,
    )


def _state(programs: Mapping[str, ProgramEntry]) -> tuple[StateEntry, ...]:
    """The train program's persistent buffers; without one, what the other programs take."""
    ordered = sorted(programs.values(), key=lambda entry: entry.role != "train_step")
    known: dict[str, StateEntry] = {}
    for entry in ordered:
        for buffer in state_of(entry):
            known.setdefault(buffer.name, buffer)
    return tuple(known.values())


def _report(programs: Mapping[str, ProgramEntry], guards: GuardsEntry) -> tuple[ReportEntry, ...]:
    words = next((p.report for p in programs.values() if p.role == "train_step"), ())
    return tuple(_report_entry(word, guards) for word in words)


def _report_entry(word: ReportWord, guards: GuardsEntry) -> ReportEntry:
    """`metric/accuracy.sum` is of a metric; a name without a folder is of the step itself."""
    key, _ = word_of_mark(word.name) or ("", "")
    mark = guards.placed.get(key)
    if mark is not None:
        return ReportEntry(word.index, word.name, mark.kind, mark.metadata, mark.source)
    kind = word.name.split("/", 1)[0] if "/" in word.name else "step"
    return ReportEntry(word.index, word.name, kind, {}, "")


def _file_stem(part: ProgramPart) -> str:
    return part.emitted.name + (f".d{part.devices}" if part.devices != 1 else "")


def _program_file(part: ProgramPart) -> str:
    return f"programs/{_file_stem(part)}.shlo"


def _golden_file(part: ProgramPart) -> str:
    return f"golden/{_file_stem(part)}.safetensors"


def _golden(golden: Golden | None) -> bytes:
    assert golden is not None, "asked for programs that have one"
    tensors = {f"in/{name}": array for name, array in golden.inputs.items()}
    tensors |= {f"out/{name}": array for name, array in golden.outputs.items()}
    return write_tensors(tensors, {"fingerprint": golden.fingerprint})
