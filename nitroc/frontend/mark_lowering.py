# pyright: basic
"""What is counted of a marked value, per execution: the operands of `nitro.mark` in StableHLO.

The value has one axis per vmap around the mark; `lanes` are those that share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from nitro_dialect.ir import CHANNELS, Mark
from nitro_dialect.marks import MOST
from nitroc.frontend.jax_internals import ir, lowered_inline
from nitroc.frontend.numeric_marks import INFINITE, NAN, NEGATIVE

MARK_OP = "nitro.mark"
"""Stands where a mark was called until `harvest` makes results of it; no other op is ours."""


def lowering_rule(key_of: Callable[[Mark], str]) -> Callable[..., list[Any]]:
    """The rule that emits `nitro.mark %channel... {key, channels, tap}`; `key_of` names a mark."""

    def rule(context: Any, *operands: Any, mark: Mark, tap: bool, lanes: int) -> list[Any]:
        if not operands:
            return []
        (aval,) = context.avals_in
        named = channels(mark, aval.dtype)

        def counted(x: Any) -> list[Any]:
            return _counted(mark, x, lanes)

        with jax.enable_x64(True):
            values = lowered_inline(context, counted, operands)
        context.module_context.context.allow_unregistered_dialects = True
        ir.Operation.create(
            MARK_OP,
            operands=values,
            attributes={
                "key": ir.StringAttr.get(key_of(mark)),
                "channels": ir.ArrayAttr.get([ir.StringAttr.get(name) for name in named]),
                "tap": ir.BoolAttr.get(tap),
            },
        )
        return []

    return rule


def channels(mark: Mark, dtype: Any) -> tuple[str, ...]:
    """The channels of `mark` on values of `dtype`, in the order of results."""
    if mark.kind == "finite":
        return ("count",)
    if mark.kind == "guard":
        return ("count",) if np.dtype(dtype).kind == "u" else ("count", "odd")
    value = mark.reduce if mark.reduce in ("max", "min") else "sum"
    bounded = mark.below is not None or mark.above is not None
    return (value, "n", *(("count",) if bounded else ()))


def _counted(mark: Mark, x: Any, lanes: int) -> list[Any]:
    if mark.kind == "finite":
        return [_total(_i64(x)) * np.int64(lanes)]
    if mark.kind == "guard":
        count, *odd = _whole(x)
        return [_total(count) * np.int64(lanes), *(_fold(lax.reduce_max, code) for code in odd)]
    value = lax.convert_element_type(x, np.float32)
    n = np.int64(lanes * math.prod(x.shape))
    found = [_extreme(mark.reduce, value) if mark.reduce in ("max", "min") else None, _constant(n)]
    if found[0] is None:
        found[0] = _fold(lax.reduce_sum, value) * np.float32(lanes)
    if mark.below is not None or mark.above is not None:
        found.append(_outside(mark, value) * np.int64(lanes))
    return found


def _whole(x: Any) -> list[Any]:
    """Counts as i64, and why one was taken for 1 unless the dtype rules that out."""
    if np.issubdtype(x.dtype, np.unsignedinteger):
        return [_i64(x)]
    one, none = _i64(lax.full_like(x, 1)), lax.full_like(x, 0, np.int32)
    if np.issubdtype(x.dtype, np.signedinteger):
        negative = lax.lt(x, lax.full_like(x, 0))
        code = lax.select(negative, lax.full_like(none, NEGATIVE), none)
        return [lax.select(negative, one, _i64(x)), code]
    number = x if x.dtype.itemsize >= 4 else lax.convert_element_type(x, np.float32)
    code = lax.select(lax.lt(number, lax.full_like(number, 0)), lax.full_like(none, NEGATIVE), none)
    infinite = lax.eq(lax.abs(number), lax.full_like(number, np.inf))
    code = lax.select(infinite, lax.full_like(none, INFINITE), code)
    code = lax.select(lax.ne(number, number), lax.full_like(none, NAN), code)
    regular = lax.eq(code, none)
    up = lax.min(lax.ceil(number), lax.full_like(number, MOST))
    safe = lax.select(regular, up, lax.full_like(number, 1))
    return [_i64(safe), code]


def _outside(mark: Mark, value: Any) -> Any:
    """How many bounds the values do not keep; NaN keeps none."""
    counts = []
    for bound, keeps in ((mark.below, lax.lt), (mark.above, lax.gt)):
        if bound is not None:
            with np.errstate(over="ignore"):
                limit = lax.full_like(value, np.float32(bound))
            counts.append(_total(_i64(lax.bitwise_not(keeps(value, limit)))))
    return sum(counts[1:], counts[0])


def _extreme(reduce: str, value: Any) -> Any:
    """The largest or smallest lane, NaN if any is: on CPU a long reduction may lose one."""
    if not value.shape:
        return value
    found = _fold(lax.reduce_max if reduce == "max" else lax.reduce_min, value)
    nans = _total(_i64(lax.ne(value, value)))
    return lax.select(nans > np.int64(0), lax.full_like(found, np.nan), found)


def _total(x: Any) -> Any:
    return _fold(lax.reduce_sum, x)


def _fold(reduce: Callable[..., Any], x: Any) -> Any:
    return reduce(x, tuple(range(x.ndim))) if x.ndim else x


def _i64(x: Any) -> Any:
    return lax.convert_element_type(x, np.int64)


def _constant(value: Any) -> Any:
    return lax.full((), value)


assert set(CHANNELS) == {"count", "odd", "sum", "n", "max", "min"}
