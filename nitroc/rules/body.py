"""Running a rule's function on values of the dialect: its body as a region of scalar ops."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import numpy as np

from nitro_dialect.builder import Names, building, emit
from nitro_dialect.ir import Literal, Mark, Region, Value
from nitro_dialect.namespace import IRNamespace, PartOfLeaf
from nitro_dialect.op import Op
from nitro_dialect.ops import Yield
from nitro_dialect.types import F32, same
from nitroc.errors import OptError
from nitroc.frontend.source import location
from nitroc.rules.marks import collecting
from nitroc.rules.naming import rename, source_names

if TYPE_CHECKING:
    from nitroc.rules.rule import Rule

REDUCTIONS = frozenset(
    ("all", "any", "argmax", "argmin", "count_nonzero", "cumsum", "dot", "linalg", "matmul", "max",
     "mean", "median", "min", "norm", "prod", "quantile", "sort", "std", "sum", "trace", "var",
     "vdot", "vecdot")
)  # fmt: skip
"""Names by which arrays and array libraries reduce, in part or in whole."""

FOREIGN = frozenset(("jax", "jaxlib", "nitro_dialect", "nitroc", "numpy"))


def build_body(rule: Rule, group: str) -> tuple[Region, tuple[Mark, ...]]:
    """The region that `rule`'s function builds, and its marks in the parameters of `group`.

    Element and scalar parameters, ops, a yield.
    """
    names = (*rule.elements, *rule.scalars)
    values = {name: Value(F32, name) for name in names}
    region = Region(params=list(values.values()))
    elements = [values[name] for name in rule.elements]
    with building(region, Names(names), elements=elements), collecting(rule.name, group) as calls:
        settings: dict[str, Any] = {**{k: values[k] for k in rule.fields}, **rule.structure}
        try:
            with source_names(rule.function) as local:
                out = rule.function(*(values[name] for name in rule.positional), **settings)
        except (TypeError, AttributeError) as error:
            raise _refusal(rule, error) from error
        results = [_result(rule, r) for r in rule.results(out)]
        marks = calls.emit()
        emit(Yield, *results)
    for op in region.ops:
        _plain_literals(op)
    rename(region, local)
    return region, marks


def _result(rule: Rule, found: Any) -> Value | float:
    if isinstance(found, Value) and same(found.type, F32):
        return found
    if isinstance(found, float | int | np.generic):
        return float(found)
    shown = str(found.type) if isinstance(found, Value) else type(found).__name__
    raise OptError(
        8,
        f"rule {rule.name} returns {shown}, expected f32 values",
        where=rule.where,
        help="return arithmetic on g, p, the slots, t and the fields; use xp.where for a condition",
    )


def _refusal(rule: Rule, error: Exception) -> OptError:
    where = _user_line(error) or rule.where
    method = isinstance(error, AttributeError) and error.name in REDUCTIONS
    if method or isinstance(error, PartOfLeaf):
        return OptError(
            9,
            f"rule {rule.name} reduces over a leaf in a way that programs cannot: {error}",
            where=where,
            help=_reducing(error),
        )
    return OptError(
        8,
        f"rule {rule.name} does what values of the program cannot do: {error}",
        where=where,
        help="take functions from xp = nt.namespace(g), and xp.where instead of if",
    )


def _reducing(error: Exception) -> str:
    known = "sum mean max min any all count_nonzero var std linalg.vector_norm"
    if isinstance(error, AttributeError) and isinstance(error.obj, Value):
        name = str(error.name)
        if hasattr(IRNamespace, name):
            return f"write xp.{name}(...) of the array, with xp = nt.namespace(g)"
    return f"a rule reduces whole leaves, with these of xp = nt.namespace(g): {known}"


def _user_line(error: Exception) -> str | None:
    """The innermost line outside this package and the array libraries."""
    lines = [
        location(frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).split(".")[0] not in FOREIGN
    ]
    return lines[-1] if lines else None


def _plain_literals(op: Op) -> None:
    """Numbers beside f32 values as plain floats, whatever Python or numpy type they had."""
    for group in op.operands.values():
        for i, item in enumerate(group):
            if isinstance(item, Literal):
                group[i] = Literal(float(item.value))


def content(region: Region) -> tuple[object, ...]:
    """What a flat region computes, free of names: equal for regions equal up to renaming."""
    order = {value: index for index, value in enumerate(region.params)}
    rows: list[object] = [len(order)]
    for op in region.ops:
        rows.append(
            (
                op.mnemonic,
                tuple(
                    (key, tuple(order[v] if isinstance(v, Value) else repr(v.value) for v in group))
                    for key, group in sorted(op.operands.items())
                ),
                tuple(sorted(op.attrs.items())),
                tuple(str(r.type) for r in op.results),
            )
        )
        order |= {r: len(order) + i for i, r in enumerate(op.results)}
    return tuple(rows)
