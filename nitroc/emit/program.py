"""One program of the IR as a StableHLO artifact, with every argument and result explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nitro_dialect.ir import Module, Program
from nitro_runtime.manifest import ArgEntry, ReportWord, ResultEntry, ScalarEntry
from nitroc.emit import commit, control, leaf, mlir, scalar, tree, vec
from nitroc.emit.interface import Interface, Results, bind_arguments, collect, interface
from nitroc.emit.layout import GroupLayout
from nitroc.emit.linking import link
from nitroc.emit.lookup import nearest
from nitroc.emit.scope import Commits, Scope
from nitroc.errors import BuildError

RULES = {**scalar.RULES, **tree.RULES, **leaf.RULES, **vec.RULES, **control.RULES, **commit.RULES}
"""One rule per core op."""


@dataclass(frozen=True)
class EmittedProgram:
    """What the bundle holds of one program.

    artifact: portable, for the StableHLO version asked. text: StableHLO without locations, which
    identifies the program in caches. donate: (argument, result) pairs that share memory.
    """

    name: str
    artifact: bytes
    text: str
    args: tuple[ArgEntry, ...]
    results: tuple[ResultEntry, ...]
    scalars: tuple[ScalarEntry, ...]
    report: tuple[ReportWord, ...]
    donate: tuple[tuple[int, int], ...]


def emit_program(
    module: Module,
    program_name: str,
    functions: Mapping[str, bytes],
    *,
    layouts: Mapping[str, GroupLayout],
    version: str,
    strip_locations: bool = False,
    commits: Commits = Commits.LOOP,
) -> EmittedProgram:
    """Emits one program of a module that `expand` has been through.

    functions: digest -> serialised imported function. layouts: by group. version: of StableHLO
    (`compat.resolve_compat`). commits: the form of a commit. The same input gives the same bytes.
    BuildError 20: not expressible in that version; 22: a function that does not fit; 23: a named op
    is left; 24: a scalar of another dtype; 26: no such program.
    """
    program = _program(module, program_name)
    builder = mlir.ModuleBuilder(program_name)
    scope = Scope(module, layouts, RULES, commits=commits)
    link(builder, scope, program, functions)
    face = interface(scope, program)
    donate = _donations(face)
    made = _main(builder, scope, program, face, dict(donate))
    if strip_locations:
        builder.strip_locations()
    artifact = _serialize(builder, program_name, version)
    return EmittedProgram(
        program_name,
        artifact,
        program_text(artifact, locations=False),
        face.args,
        tuple(made.entries),
        face.scalars,
        made.report,
        donate,
    )


def program_text(artifact: bytes, locations: bool) -> str:
    """The StableHLO text of an emitted program, with or without source locations."""
    return mlir.text(artifact, locations=locations)


def import_text(text: str, version: str) -> bytes:
    """The artifact of a function that was written as text. BuildError 27 for no such text."""
    try:
        return mlir.artifact_of(text, version)
    except mlir.EmissionFailed as error:
        raise BuildError(
            27, f"a function's text can't be read: {error}", help="dump the stages again"
        ) from error


def stripped(artifact: bytes, version: str) -> bytes:
    """The artifact without source locations."""
    return mlir.without_locations(artifact, version)


def _program(module: Module, name: str) -> Program:
    if name not in module.programs:
        raise BuildError(
            26, f"no program @{name} in module @{module.name}", help=nearest(name, module.programs)
        )
    return module.programs[name]


def _donations(face: Interface) -> tuple[tuple[int, int], ...]:
    """Stateful arguments of a train program; their results come first, in the same order."""
    if not face.capacity:
        return ()
    held = [i for i, a in enumerate(face.args) if a.role in ("param", "slot", "state")]
    return tuple((argument, result) for result, argument in enumerate(held))


def _main(
    builder: mlir.ModuleBuilder,
    scope: Scope,
    program: Program,
    face: Interface,
    donate: Mapping[int, int],
) -> Results:
    made = Results([], [])
    arguments = [
        mlir.Argument(a.name, a.dtype, a.shape, donate.get(i)) for i, a in enumerate(face.args)
    ]

    def body(tensors: list[mlir.Tensor]) -> list[mlir.Tensor]:
        bind_arguments(scope, program, face, tensors)
        ends = scope.run(program.body)
        collected = collect(scope, program, face, ends)
        made.entries, made.tensors, made.report = (
            collected.entries,
            collected.tensors,
            collected.report,
        )
        return made.tensors

    builder.main(arguments, body)
    return made


def _serialize(builder: mlir.ModuleBuilder, name: str, version: str) -> bytes:
    try:
        builder.verify()
        return builder.serialize(version)
    except mlir.EmissionFailed as error:
        raise BuildError(
            20,
            f"program @{name} can't be written for StableHLO {version}: {error}",
            help="choose another version with --compat, or leave out the op named above",
        ) from error
