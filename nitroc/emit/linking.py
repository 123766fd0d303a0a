"""Brings the imported functions a program calls into its module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nitro_dialect.ir import Function, Program, Region
from nitroc.emit import mlir
from nitroc.emit.lookup import nearest
from nitroc.emit.scope import Scope
from nitroc.errors import BuildError


def link(
    builder: mlir.ModuleBuilder, scope: Scope, program: Program, functions: Mapping[str, bytes]
) -> None:
    """Links every function the program calls, once each.

    `functions`: digest -> serialised module, its symbols already prefixed. BuildError 22 when one
    is missing, has another signature than the IR says, or brings a symbol that is already there.
    """
    linked: set[str] = set()
    for name in dict.fromkeys(_callees(program.body)):
        function = scope.module.functions[name]
        if function.digest not in functions:
            raise BuildError(
                22,
                f"function @{name} ({function.digest}) is not among those given",
                where=f"@{program.name}",
                help=nearest(function.digest, functions),
            )
        signatures = builder.link(functions[function.digest])
        if twice := sorted(linked & set(signatures)):
            raise BuildError(22, f"symbol @{twice[0]} comes from two functions", where=f"@{name}")
        linked |= set(signatures)
        _check(scope, function, signatures)


def _callees(region: Region) -> Iterator[str]:
    for op in region.ops:
        if op.mnemonic == "call" and op.symbol is not None:
            yield op.symbol
        if op.body is not None:
            yield from _callees(op.body)


def _check(
    scope: Scope,
    function: Function,
    signatures: Mapping[str, tuple[Sequence[str], Sequence[str]]],
) -> None:
    if function.name not in signatures:
        raise BuildError(
            22,
            f"the module of @{function.name} has no symbol of that name",
            help=nearest(function.name, signatures),
        )
    for side, members, found in zip(
        ("arguments", "results"),
        (function.params, function.results),
        signatures[function.name],
        strict=True,
    ):
        wanted = [mlir.spell(*t) for p in members for t in scope.leaf_types(p.type)]
        if wanted != list(found):
            raise BuildError(
                22,
                f"@{function.name}: expected {side} ({', '.join(wanted)}), "
                f"found ({', '.join(found)})",
                help="the functions are those of another build: import them again",
            )
