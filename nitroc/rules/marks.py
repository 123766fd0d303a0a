"""Marks in a rule: what `guard`, `metric`, ... are while its function runs on IR values.

A call becomes `mark` ops of the rule's body, one per channel, and one of `Rule.marks`. It speaks of
one parameter's update: the program adds parameters up, as it does micro-batches in other places.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nitro_dialect.builder import emit, emit_scalar, varies
from nitro_dialect.ir import CHANNELS, Mark, Value
from nitro_dialect.marks import MOST
from nitro_dialect.namespace import NAMESPACE as XP
from nitro_dialect.ops import RuleMark
from nitro_dialect.types import F32, I1, same
from nitro_runtime.marks import series_name
from nitroc.errors import ContractError, OptError

NEGATIVE, INFINITE, NAN = 1.0, 2.0, 3.0
"""What `odd` says of a count that is none."""


@dataclass
class Calls:
    """Marks of one rule while its function runs for a parameter group: what each call was given.

    A call that runs again, in a Python loop or for each array of a pytree, is one mark.
    """

    rule: str
    group: str
    values: dict[Mark, dict[str, Value | float]] = field(
        default_factory=dict[Mark, dict[str, "Value | float"]]
    )

    def add(self, mark: Mark, value: Any) -> None:
        """Adds what `mark` found to what it found before."""
        for other in self.values:
            _one_meaning(self.rule, other, mark)
        found = self.values.setdefault(mark, {})
        for channel, x in _channels(mark, value).items():
            found[channel] = _together(channel, found[channel], x) if channel in found else x

    def emit(self) -> tuple[Mark, ...]:
        """Ends the body with a `mark` op per channel; the marks with their keys."""
        made: list[Mark] = []
        seen: Counter[str] = Counter()
        for mark, channels in self.values.items():
            series = series_name(mark.name, {**dict(mark.meta), "group": self.group})
            seen[series] += 1
            key = f"{series}#{seen[series]}" if seen[series] > 1 else series
            made.append(replace(mark, key=key))
            for channel, x in channels.items():
                attrs: dict[str, Any] = {"channel": channel, "key": key}
                emit(RuleMark, x, attrs=attrs, location=mark.source or None)
        return tuple(made)


_CALLS: ContextVar[Calls | None] = ContextVar("calls", default=None)


@contextmanager
def collecting(rule: str, group: str) -> Generator[Calls]:
    """Marks called inside are those of `rule`, applied to the parameters of `group`."""
    calls = Calls(rule, group)
    token = _CALLS.set(calls)
    try:
        yield calls
    finally:
        _CALLS.reset(token)


def recording() -> bool:
    """Whether a rule's function runs on IR values here, so that a mark belongs to the rule."""
    return _CALLS.get() is not None


def record(mark: Mark, value: Value | float) -> None:
    """Adds a call to the rule at hand: `mark` with its source, and its count or value.

    Fractions of a count are rounded up; one that is negative, infinite or NaN is 1, and `odd` says
    so. E-CONTRACT-020 for a bool as a count and for what differs from element to element of a leaf,
    -024 for a name that has another meaning already, E-OPT-008 for a value kept from a rule.
    """
    calls = _CALLS.get()
    if calls is None:
        raise OptError(
            8,
            f"{mark.kind} {mark.name} is given a value of a rule that has ended",
            where=_line(mark),
            help="call it in the rule's function, which its values do not outlive",
        )
    calls.add(mark, value)


def _channels(mark: Mark, given: Any) -> dict[str, Value | float]:
    value = _one(mark, given)
    if mark.kind == "finite":
        return {"count": value}
    if mark.kind == "guard":
        return _whole(value)
    made = _combined(mark, value)
    broken = [_is_not("lt", value, mark.below)] if mark.below is not None else []
    broken += [_is_not("gt", value, mark.above)] if mark.above is not None else []
    return made | ({"count": sum(broken[1:], start=broken[0])} if broken else {})


def _together(channel: str, a: Value | float, b: Value | float) -> Value | float:
    how = CHANNELS[channel][1]
    if how == "sum":
        return a + b
    if isinstance(a, Value) or isinstance(b, Value):
        return emit_scalar(how, a, b)
    return max(a, b) if how == "max" else min(a, b)


def _combined(mark: Mark, value: Value | float) -> dict[str, Value | float]:
    extreme = mark.kind == "diagnostic" and mark.reduce in ("max", "min")
    return {mark.reduce if extreme else "sum": value, "n": 1.0}


def _whole(count: Value | float) -> dict[str, Value | float]:
    """`count` and `odd` of a guard."""
    if not isinstance(count, Value):
        regular = math.isfinite(count) and count >= 0
        kind = NAN if count != count else INFINITE if math.isinf(count) else NEGATIVE
        whole = min(float(math.ceil(count)), MOST) if regular else 1.0
        return {"count": whole, "odd": 0.0 if regular else kind}
    finite = XP.isfinite(count)
    regular = XP.logical_and(finite, count >= 0)
    rounded = XP.minimum(-XP.floor(-count), MOST)
    kind = XP.where(finite, XP.where(regular, 0.0, NEGATIVE), INFINITE)
    return {
        "count": XP.where(regular, rounded, 1.0),
        "odd": XP.where(XP.isnan(count), NAN, kind),
    }


def _is_not(comparison: str, value: Value | float, bound: float) -> Value | float:
    """1 when the value is not strictly below (above) the bound, compared in f32."""
    limit = float(np.float32(bound))
    if not isinstance(value, Value):
        kept = value < limit if comparison == "lt" else value > limit
        return 0.0 if kept else 1.0
    return _as_number(~emit_scalar(comparison, value, limit))


def _as_number(condition: Value) -> Value:
    return emit_scalar("convert", condition, type=F32)


def _one(mark: Mark, given: Any) -> Value | float:
    """The argument of a call as one f32 per parameter."""
    value = given if isinstance(given, Value) else np.asarray(given)
    boolean = same(value.type, I1) if isinstance(value, Value) else value.dtype == np.bool_
    if boolean and mark.kind == "guard":
        raise _refused(mark, "is a bool", "count with nt.count_where(mask)")
    ranked = varies(value) if isinstance(value, Value) else value.ndim > 0
    if ranked:
        raise _refused(mark, "is one per element of the parameter", "reduce it first: xp.sum(...)")
    if not isinstance(value, Value):
        return float(np.float32(value))
    return _as_number(value) if boolean else value


def _refused(mark: Mark, found: str, help: str) -> ContractError:
    what = "count" if mark.kind == "guard" else "value"
    message = f"the {what} of {mark.kind} {mark.name} {found}, expected one number"
    return ContractError(20, message, where=_line(mark), help=help)


def _one_meaning(rule: str, first: Mark, second: Mark) -> None:
    """A metric and a diagnostic, or two reduces, under one name would be one series."""
    kinds = {first.kind, second.kind}
    shown = [f"{m.kind} (reduce {m.reduce})" for m in (first, second)]
    apart = kinds == {"metric", "diagnostic"} or first.reduce != second.reduce
    if first.name == second.name and kinds <= {"metric", "diagnostic"} and apart:
        raise ContractError(
            24,
            f"rule {rule} calls {first.name} a {shown[0]} and a {shown[1]}",
            where=f"{_line(first)}, {_line(second)}",
            help="give one of them another name",
        )


def _line(mark: Mark) -> str | None:
    return mark.source.rpartition(":")[0] or None
