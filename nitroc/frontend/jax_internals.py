# pyright: basic, reportPrivateImportUsage=false
"""Every private name of jax the front end uses; `test_jax_internals` holds a contract per name.

`ir`, `hlo` and `passmanager` are jaxlib's MLIR bindings as jax re-exports them: the rewrites of
imported functions (`importer`, `constants`, `convolutions`, `locations`) take them from here.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jax._src import ad_checkpoint, config, core, custom_derivatives, effects, source_info_util
from jax._src.core import ClosedJaxpr, jaxpr_as_fun
from jax._src.core import Literal as JaxprLiteral
from jax._src.interpreters import ad, batching, mlir, partial_eval
from jax._src.lax.control_flow import loops
from jax._src.lax.control_flow.conditionals import cond_p
from jax._src.lib import _jax
from jax._src.lib import mlir as bindings
from jax._src.lib.mlir.dialects import hlo as stablehlo
from jax._src.pjit import jit_p
from jax.interpreters import partial_eval as exported_partial_eval

ir: Any = bindings.ir
passmanager: Any = bindings.passmanager
hlo: Any = stablehlo

__all__ = [
    "BATCHERS",
    "CUSTOM_PARTIAL_EVAL",
    "DCE_RULES",
    "EXPORTED_PARTIAL_EVAL",
    "JVPS",
    "PARTIAL_EVALS",
    "PARTIAL_EVAL_RULES",
    "TRANSPOSES",
    "ClosedJaxpr",
    "Effect",
    "JaxprLiteral",
    "JaxprTrace",
    "Primitive",
    "allow_effect",
    "batch_jaxpr",
    "called_jaxpr",
    "closed_call_p",
    "cond_p",
    "dce_jaxpr",
    "default_version",
    "deserialize_portable",
    "drop_dead",
    "equation_frames",
    "every_frame_in_locations",
    "hlo",
    "in_backward_rule",
    "in_trace",
    "ir",
    "jaxpr_as_fun",
    "jit_p",
    "keeps_constants_out",
    "lowered_inline",
    "lowering_with",
    "make_ir_context",
    "own_copy",
    "passmanager",
    "portable_artifact",
    "register_lowering",
    "remat_p",
    "scan_p",
    "scope_of",
    "stage",
    "while_p",
]

Effect: Any = effects.Effect
Primitive: Any = core.Primitive
JaxprTrace: Any = partial_eval.JaxprTrace
closed_call_p = core.closed_call_p
scan_p, while_p = loops.scan_p, loops.while_p
remat_p: Any = ad_checkpoint.remat_p

JVPS: dict[Any, Any] = ad.primitive_jvps
BATCHERS: dict[Any, Any] = batching.fancy_primitive_batchers
TRANSPOSES: dict[Any, Any] = ad.primitive_transposes
PARTIAL_EVAL_RULES: dict[Any, Any] = partial_eval.custom_partial_eval_rules
CUSTOM_PARTIAL_EVAL: dict[Any, Any] = partial_eval.partial_eval_jaxpr_custom_rules
DCE_RULES: dict[Any, Any] = partial_eval.dce_rules
"""The rules of jax by primitive."""

EXPORTED_PARTIAL_EVAL: dict[str, Any] = exported_partial_eval.__dict__
PARTIAL_EVALS: tuple[dict[str, Any], ...] = (partial_eval.__dict__, EXPORTED_PARTIAL_EVAL)
"""Names of jax's partial evaluation, its own and those it exports: `trace_to_jaxpr_nounits` is what
scan, and flax's, look with for what no iteration changes.
"""

batch_jaxpr = batching.batch_jaxpr
dce_jaxpr = partial_eval.dce_jaxpr
in_trace = core.set_current_trace
register_lowering = mlir.register_lowering


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


def scope_of(equation: Any) -> str:
    """The `jax.named_scope` an equation was made in, outermost first: `forward/block_0`."""
    return str(equation.source_info.name_stack)


def allow_effect(effect: type[Any]) -> None:
    """Lets primitives with `effect` stand wherever user code may call one."""
    for allowed in (
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
        effects.remat_allowed_effects,
        effects.partial_eval_kept_effects,
    ):
        allowed.add_type(effect)


def keeps_constants_out() -> bool:
    """Whether operations on constants are evaluated, not traced (`ensure_compile_time_eval`)."""
    return bool(config.eager_constant_folding.value)


def in_backward_rule() -> bool:
    """Whether the backward rule of a custom_vjp is running."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_flatten_bwd" and code.co_filename == custom_derivatives.__file__:
            return True
        frame = frame.f_back
    return False


def lowering_with(primitive: Any, rule: Any) -> Any:
    """For `Traced.lower(_private_parameters=...)`: `primitive` lowers by `rule`, in this call."""
    return mlir.LoweringParameters(override_lowering_rules=((primitive, rule),))


def lowered_inline(context: Any, function: Any, operands: Sequence[Any]) -> list[Any]:
    """In a lowering rule: the MLIR values of `function`, which returns a list, of `operands`."""
    return list(mlir.lower_fun(function)(context, *operands))


def called_jaxpr(function: Any) -> Any:
    """The jaxpr that a `closed_call` being traced calls."""
    return function.f.args[0]


def stage(trace: Any, primitive: Any, tracers: Sequence[Any], params: Any) -> list[Any]:
    """Partial evaluation of one equation, all of it left for later, its effects kept."""
    staged = [trace.instantiate_const(trace.to_jaxpr_tracer(t)) for t in tracers]
    avals, found = primitive.abstract_eval(*(t.aval for t in staged), **params)
    unknown = [partial_eval.PartialVal.unknown(aval) for aval in avals]
    results = [partial_eval.JaxprTracer(trace, value, None) for value in unknown]
    source = source_info_util.current()
    equation = partial_eval.new_eqn_recipe(trace, staged, results, primitive, params, found, source)
    trace.effect_handles.append(partial_eval.EffectHandle(staged, equation))
    for result in results:
        result.recipe = equation
    return results


def own_copy(module: Any) -> Any:
    """`module` in a context of its own: what `compiler_ir` returns is jax's cached module."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = module.context.allow_unregistered_dialects
    return ir.Module.parse(buffer.getvalue(), context)


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
