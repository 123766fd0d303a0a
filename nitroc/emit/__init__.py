"""Emission: a module of core ops becomes StableHLO, program by program.

Reading order: `layout` (how leaves lie in buffers), `mlir` (a face for MLIR), `scope` (what a value
is meanwhile), the rules `scalar tree control commit`, then `linking`, `interface` and `program`.
"""

from nitroc.emit.compat import resolve_compat
from nitroc.emit.layout import Buffer, GroupLayout, plan
from nitroc.emit.program import EmittedProgram, emit_program, program_text

__all__ = [
    "Buffer",
    "EmittedProgram",
    "GroupLayout",
    "emit_program",
    "plan",
    "program_text",
    "resolve_compat",
]
