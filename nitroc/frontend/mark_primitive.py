# pyright: basic
"""The primitive that a mark binds while jax traces.

It has no result and an effect, so that no transformation drops it. Its operand stays the raw value
of each execution, with one more axis per vmap it is in: what is counted of it is decided when it is
lowered (`mark_lowering`). By default it lowers to nothing: user code under plain jax is plain jax.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from nitro_dialect.ir import Mark
from nitroc.errors import ContractError
from nitroc.frontend.jax_internals import (
    BATCHERS,
    JVPS,
    TRANSPOSES,
    Effect,
    Primitive,
    allow_effect,
    keeps_constants_out,
    register_lowering,
)


class MarkEffect(Effect):
    """All marks have the one effect: their order is that of the equations."""

    def __repr__(self) -> str:
        return "Mark"

    def __hash__(self) -> int:
        return hash(MarkEffect)

    def __eq__(self, other: object) -> bool:
        return type(other) is MarkEffect


allow_effect(MarkEffect)

mark_p = Primitive("nitro_mark")
mark_p.multiple_results = True
"""`nitro_mark [x] {mark, tap, lanes}`.

`mark`: the `Mark`, its key still empty; of kind `tap`, and without an operand, it says that the
gradient is tapped here. `tap`: it watches a cotangent. `lanes`: how many lanes of vmaps, which `x`
has no axis for, run it.
"""


def bind(mark: Mark, value: Any, *, tap: bool = False) -> None:
    """Marks `value`, of rank 0, in the current trace."""
    operand = jax.lax.stop_gradient(_operand(value))
    mark_p.bind(operand, mark=mark, tap=tap, lanes=1)


def _operand(value: Any) -> Any:
    """The value as an array; an integer that jax would wrap into 32 bits is the nearest float."""
    if not isinstance(value, int | np.integer):
        return jnp.asarray(value)
    narrow = np.uint32 if isinstance(value, np.unsignedinteger) else np.int32
    limits = np.iinfo(narrow)
    return jnp.asarray(value if limits.min <= value <= limits.max else np.float32(value))


def bind_tap(source: str) -> None:
    """Says that the gradient is tapped here: where a mark is refused, so is a tap."""
    mark_p.bind(mark=Mark("", "tap", "tap_gradient", source=source), tap=True, lanes=1)


def is_tracer(value: object) -> bool:
    return isinstance(value, jax.core.Tracer)


def will_be_lost(value: Any) -> bool:
    """Whether `bind` would evaluate the mark now instead of tracing it."""
    return keeps_constants_out() and not is_tracer(value)


@mark_p.def_impl
def _evaluate(*_: Any, **__: Any) -> list[Any]:
    return []


@mark_p.def_effectful_abstract_eval
def _abstract(*_: Any, **__: Any) -> tuple[list[Any], set[Any]]:
    return [], {MarkEffect()}


def _jvp(primals: Any, _: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    return mark_p.bind(*primals, **params), []


def _batch(axis: Any, values: Any, dims: Any, *, lanes: int, **params: Any) -> tuple[Any, Any]:
    mapped = any(dim is not None for dim in dims)
    return mark_p.bind(*values, lanes=lanes if mapped else lanes * axis.size, **params), []


def _transpose(_: Any, *__: Any, mark: Mark, **___: Any) -> Any:
    raise ContractError(
        17,
        f"{mark.kind} {mark.name} is on a tangent, in a derivative rule",
        where=mark.source.rpartition(":")[0],
        help="write nt.tap_gradient(x, fn) in the hook; guard the forward value instead",
    )


JVPS[mark_p] = _jvp
TRANSPOSES[mark_p] = _transpose
BATCHERS[mark_p] = _batch
register_lowering(mark_p, lambda *_, **__: [], cacheable=False)
