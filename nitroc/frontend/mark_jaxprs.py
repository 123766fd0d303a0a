# pyright: basic
"""Marks in jaxprs: whether one is there, where it may not be, and jaxprs without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from nitro_dialect.ir import Mark
from nitroc.errors import ContractError
from nitroc.frontend.jax_internals import ClosedJaxpr, scope_of
from nitroc.frontend.mark_primitive import MarkEffect, mark_p

_COUNTED = frozenset(
    (
        *("jit", "closed_call", "core_call", "checkpoint", "remat2", "scan", "while", "cond"),
        *("custom_jvp_call", "custom_vjp_call", "custom_linear_solve", "composite"),
        "eval_jaxpr",
        "custom_vmap_call",
    )
)
"""Primitives that call user functions, each a number of times that the program's text fixes."""


def holds_mark(jaxprs: Iterable[Any]) -> bool:
    return any(isinstance(effect, MarkEffect) for jaxpr in jaxprs for effect in jaxpr.effects)


def inner_jaxprs(params: Any) -> list[Any]:
    """The jaxprs an equation calls."""
    return [x for x in jax.tree.leaves(params, is_leaf=_is_jaxpr) if _is_jaxpr(x)]


def all_marks(closed: ClosedJaxpr) -> list[Mark]:
    """Every mark, and what says that a gradient is tapped, in program order."""
    return list(_marks(closed.jaxpr))


def first_mark(jaxprs: Iterable[Any]) -> Mark | None:
    """The first mark in program order; None without one."""
    return next((mark for jaxpr in jaxprs for mark in _marks(jaxpr)), None)


def first_mark_in_rule(jaxprs: Iterable[Any]) -> Mark | None:
    """The first mark in a function with a custom derivative; None without one."""
    for equation in (equation for jaxpr in jaxprs for equation in jaxpr.eqns):
        inner = inner_jaxprs(equation.params)
        custom = equation.primitive.name in ("custom_jvp_call", "custom_vjp_call")
        mark = first_mark(inner) if custom else first_mark_in_rule(inner)
        if mark is not None:
            return mark
    return None


def refuse_uncounted(closed: ClosedJaxpr) -> None:
    """E-CONTRACT-026 for a mark in a function that reduces, sorts or scatters, or a condition."""
    _refuse_uncounted(closed.jaxpr)


def refuse_lost(closed: ClosedJaxpr, smaller: ClosedJaxpr) -> None:
    """E-CONTRACT-026 for a mark that `smaller`, which is `closed` without what is dead, lacks."""
    lost = Counter(all_marks(closed)) - Counter(all_marks(smaller))
    if lost:
        raise uncounted(next(iter(lost)), "a function whose results nothing uses")


def without_marks(closed: ClosedJaxpr, scope: str) -> ClosedJaxpr:
    """`closed` without the marks below the outermost `jax.named_scope(scope)`."""
    jaxpr = closed.jaxpr
    equations = [
        unmarked_equation(e) if scope_of(e).partition("/")[0] == scope else e for e in jaxpr.eqns
    ]
    return ClosedJaxpr(_with_equations(jaxpr, equations), closed.consts)


def unmarked(closed: ClosedJaxpr) -> ClosedJaxpr:
    """`closed` without any mark."""
    return ClosedJaxpr(stripped(closed.jaxpr), closed.consts)


def _marks(jaxpr: Any) -> Iterator[Mark]:
    for equation in jaxpr.eqns:
        if equation.primitive is mark_p:
            yield equation.params["mark"]
        for inner in inner_jaxprs(equation.params):
            yield from _marks(inner)


def _refuse_uncounted(jaxpr: Any) -> None:
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, inner_jaxprs(equation.params)
        refused = [equation.params["cond_jaxpr"]] if name == "while" else []
        mark = first_mark(refused if name in _COUNTED else inner)
        if mark is not None:
            raise uncounted(mark, "a while condition" if refused else f"the function of a {name}")
        for each in inner:
            _refuse_uncounted(each)


def uncounted(mark: Mark, where: str) -> ContractError:
    """E-CONTRACT-026 for `mark` in `where`."""
    return ContractError(
        26,
        f"{mark.kind} {mark.name} is in {where}, whose executions are not counted",
        where=mark.source.rpartition(":")[0],
        help="move it out of the function, and count over the whole array",
    )


def unmarked_equation(equation: Any) -> Any:
    """`equation` without any mark; None for a mark."""
    if equation.primitive is mark_p:
        return None
    if not holds_mark([equation]):
        return equation
    params = unmarked_params(equation.params)
    effects = {e for e in equation.effects if not isinstance(e, MarkEffect)}
    return equation.replace(params=params, effects=effects)


def unmarked_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an equation, its jaxprs without any mark."""
    return {name: _stripped_param(value) for name, value in params.items()}


def _stripped_param(value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        return ClosedJaxpr(stripped(value.jaxpr), value.consts)
    if _is_jaxpr(value):
        return stripped(value)
    if isinstance(value, tuple | list) and any(map(_is_jaxpr, value)):
        made = map(_stripped_param, value)
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value


def stripped(jaxpr: Any) -> Any:
    """`jaxpr` without any mark."""
    return _with_equations(jaxpr, [unmarked_equation(e) for e in jaxpr.eqns])


def _with_equations(jaxpr: Any, equations: list[Any]) -> Any:
    kept = [equation for equation in equations if equation is not None]
    effects = set(jaxpr.effects)
    if not holds_mark(kept):
        effects = {e for e in effects if not isinstance(e, MarkEffect)}
    return jaxpr.replace(eqns=kept, effects=effects)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns")
