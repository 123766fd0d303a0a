# pyright: basic
"""Arithmetic on an unsigned batch field before a cast: it wraps, which is said with its line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from nitroc.frontend.jax_internals import ClosedJaxpr, JaxprLiteral, equation_frames
from nitroc.frontend.locations import is_user_file, relative_path

_ARITHMETIC = frozenset(
    (
        *("add", "sub", "mul", "neg", "pow", "integer_pow", "square", "shift_left"),
        *("dot_general", "conv_general_dilated", "reduce_sum", "reduce_prod", "cumsum", "cumprod"),
        "scatter_add",
    )
)


@dataclass(frozen=True)
class Wrap:
    """Arithmetic that may wrap, on values of the batch field `field`; `where`: the user's line."""

    field: str
    dtype: str
    operation: str
    where: str | None

    def note(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return (
            f"{self.operation} on the unsigned field {self.field} ({self.dtype}) wraps{place}: "
            "cast it first, e.g. `.astype(jnp.float32)`"
        )


def wraps(closed: ClosedJaxpr, fields: Sequence[str | None], root: str | None) -> list[Wrap]:
    """What wraps in `closed`, whose input i is the batch field `fields[i]` (None: another)."""
    tainted = {
        var: name
        for var, name in zip(closed.jaxpr.invars, fields, strict=True)
        if name is not None and _is_unsigned(var)
    }
    return list(dict.fromkeys(_walk(closed.jaxpr, tainted, root, None)))


def _walk(
    jaxpr: Any, tainted: dict[Any, str], root: str | None, caller: str | None
) -> Iterator[Wrap]:
    for equation in jaxpr.eqns:
        marked = {v: tainted[v] for v in equation.invars if _in(v, tainted)}
        if not marked:
            continue
        line = _line(equation, root) or caller
        field = next(iter(marked.values()))
        name = equation.primitive.name
        if name in _ARITHMETIC and _is_unsigned(equation.outvars[0]):
            yield Wrap(field, str(next(iter(marked)).aval.dtype), name, line)
        for inner in jax.tree.leaves(equation.params, is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                yield from _into(inner, equation, marked, root, line)
        tainted.update({v: field for v in equation.outvars if _is_unsigned(v)})


def _into(
    inner: Any, equation: Any, marked: dict[Any, str], root: str | None, line: str | None
) -> Iterator[Wrap]:
    """A called jaxpr takes the last of the equation's operands (a branch has no predicate)."""
    body = getattr(inner, "jaxpr", inner)
    count = min(len(body.invars), len(equation.invars))
    if not count:
        return
    pairs = zip(body.invars[-count:], equation.invars[-count:], strict=True)
    below = {var: marked[given] for var, given in pairs if _in(given, marked)}
    yield from _walk(body, below, root, line)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns")


def _in(var: Any, known: dict[Any, str]) -> bool:
    return not isinstance(var, JaxprLiteral) and var in known


def _is_unsigned(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.unsignedinteger)


def _line(equation: Any, root: str | None) -> str | None:
    for file, line in equation_frames(equation):
        if is_user_file(file, root):
            return f"{relative_path(file, root)}:{line}"
    return None
