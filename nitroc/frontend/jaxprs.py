# pyright: basic
"""What a traced function's jaxpr shows: values of other traces, unsigned arithmetic that wraps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


def foreign_use(closed: ClosedJaxpr, inputs: int, root: str | None) -> tuple[bool, str | None]:
    """Whether `closed` uses a traced value of another trace, and the line that does.

    jax puts such values before the function's own `inputs`.
    """
    foreign = dict.fromkeys(closed.jaxpr.invars[: len(closed.jaxpr.invars) - inputs], "")
    for equation in closed.jaxpr.eqns:
        if any(_in(var, foreign) for var in equation.invars):
            return True, _line(equation, root)
    return bool(foreign), None


def read_inputs(closed: ClosedJaxpr, names: Sequence[str | None]) -> set[str]:
    """The names, one per input or None, of the inputs that an equation or a result reads."""
    jaxpr = closed.jaxpr
    read = {id(v) for e in jaxpr.eqns for v in e.invars} | {id(v) for v in jaxpr.outvars}
    pairs = zip(jaxpr.invars, names, strict=True)
    return {name for var, name in pairs if name is not None and id(var) in read}


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
        marked = {var: tainted[var] for var in equation.invars if _in(var, tainted)}
        if not marked:
            continue
        line = _line(equation, root) or caller
        field = next(iter(marked.values()))
        name = equation.primitive.name
        if name in _ARITHMETIC and _is_unsigned(equation.outvars[0]):
            yield Wrap(field, str(next(iter(marked)).aval.dtype), name, line)
        for inner in jax.tree.leaves(equation.params, is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                yield from _walk(*_called(inner, equation, marked), root, line)
        tainted.update({var: field for var in equation.outvars if _is_unsigned(var)})


def _called(inner: Any, equation: Any, marked: Mapping[Any, str]) -> tuple[Any, dict[Any, str]]:
    """A called jaxpr and its marked inputs: it takes the last operands (a branch no predicate)."""
    body = getattr(inner, "jaxpr", inner)
    count = min(len(body.invars), len(equation.invars))
    pairs = list(zip(reversed(body.invars), reversed(equation.invars), strict=False))[:count]
    return body, {var: marked[given] for var, given in pairs if _in(given, marked)}


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns")


def _in(var: Any, known: Mapping[Any, str]) -> bool:
    return not isinstance(var, JaxprLiteral) and var in known


def _is_unsigned(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.unsignedinteger)


def _line(equation: Any, root: str | None) -> str | None:
    for file, line in equation_frames(equation):
        if is_user_file(file, root):
            return f"{relative_path(file, root)}:{line}"
    return None
