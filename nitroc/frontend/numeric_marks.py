"""What marks mean on numpy values: the arithmetic of the programs, for host-resident hooks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from nitro_dialect.marks import MOST
from nitro_runtime.places import Found

NEGATIVE, INFINITE, NAN = 1, 2, 3
"""Why a count was taken for 1: the channel `odd`."""


def evaluate(mark: Found, value: Any) -> Found:
    """`mark` with what `value`, a rank-0 number, gives: its count, or the value and its bounds."""
    number = np.asarray(value)[()]
    if mark.kind in ("guard", "finite"):
        count, odd = whole(float(number) if number.dtype.kind not in "iu" else int(number))
        return replace(mark, count=count, odd=odd)
    return replace(mark, value=float(number), count=outside(number, mark.below, mark.above))


def whole(count: float | int) -> tuple[int, int]:
    """The whole count, and why it is none: a fraction rounded up, anything odd 1."""
    if count != count:
        return 1, NAN
    if math.isinf(count):
        return 1, INFINITE
    if count < 0:
        return 1, NEGATIVE
    return math.ceil(min(count, MOST)), 0


def outside(value: Any, below: float | None, above: float | None) -> int:
    """How many of the strict bounds `value` does not keep, compared in f32; NaN keeps none."""
    with np.errstate(over="ignore"):
        number = np.float32(value)
        low = below is not None and not number < np.float32(below)
        high = above is not None and not number > np.float32(above)
    return int(low) + int(high)


def nonfinite(x: Any) -> np.float32:
    """How many elements of `x` are NaN or infinite in f32."""
    array = np.asarray(x)
    with np.errstate(over="ignore"):
        narrow = array if array.dtype.kind == "c" else array.astype(np.float32)
    return np.float32(np.count_nonzero(~np.isfinite(narrow)))
