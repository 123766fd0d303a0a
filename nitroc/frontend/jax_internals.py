# pyright: basic, reportPrivateImportUsage=false
"""Every private name of jax the front end uses; `test_jax_internals` holds a contract per name.

`ir`, `hlo` and `passmanager` are jaxlib's MLIR bindings as jax re-exports them: the rewrites of
imported functions (`importer`, `constants`, `convolutions`, `locations`) take them from here.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jax._src import config, source_info_util
from jax._src.interpreters import mlir, partial_eval
from jax._src.lib import _jax
from jax._src.lib import mlir as bindings
from jax._src.lib.mlir.dialects import hlo as stablehlo
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.extend.core import Literal as JaxprLiteral

ir: Any = bindings.ir
passmanager: Any = bindings.passmanager
hlo: Any = stablehlo

__all__ = [
    "ClosedJaxpr",
    "JaxprLiteral",
    "default_version",
    "deserialize_portable",
    "drop_dead",
    "equation_frames",
    "every_frame_in_locations",
    "hlo",
    "ir",
    "jaxpr_as_fun",
    "make_ir_context",
    "own_copy",
    "passmanager",
    "portable_artifact",
]


def drop_dead(closed: ClosedJaxpr, keep: Sequence[bool]) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """`closed` without dead equations, and which inputs are left: live ones and those of `keep`."""
    jaxpr = closed.jaxpr
    smaller, used = partial_eval.dce_jaxpr(
        jaxpr, [True] * len(jaxpr.outvars), instantiate=list(keep)
    )
    return ClosedJaxpr(smaller, closed.consts), tuple(used)


def equation_frames(equation: Any) -> Iterator[tuple[str, int]]:
    """`(file, line)` of the frames outside jax that made an equation, innermost first."""
    for frame in source_info_util.user_frames(equation.source_info.traceback):
        yield frame.file_name, frame.start_line


def every_frame_in_locations() -> AbstractContextManager[Any]:
    """Lowering inside it writes whole call stacks, whatever limit jax is configured with."""
    return config.traceback_in_locations_limit(-1)


def own_copy(module: Any) -> Any:
    """`module` in a context of its own: what `compiler_ir` returns is jax's cached module."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return ir.Module.parse(buffer.getvalue(), mlir.make_ir_context())


def portable_artifact(module: Any, version: str) -> bytes:
    """VHLO of `version`, CHLO legalised. Mutates `module`; the exception says what it refuses."""
    return _jax.mlir.serialize_portable_artifact(module, version, True)


def default_version() -> str:
    """The StableHLO version of about twelve weeks back, the default of `--compat`."""
    return hlo.get_version_from_compatibility_requirement(
        hlo.StablehloCompatibilityRequirement.WEEK_12
    )


def make_ir_context() -> Any:
    """A fresh context with every dialect a program or imported function may hold."""
    return mlir.make_ir_context()


def deserialize_portable(artifact: bytes, context: Any) -> Any:
    """The StableHLO module of a portable artifact. It checks nothing: hash foreign bytes first."""
    return hlo.deserialize_portable_artifact(context, artifact)
