"""The marks: calls in user code that return their value unchanged and say what to watch there.

Outside nitroc that is all they do. While nitroc traces a hook they become results of the program
(`mark_primitive`, `harvest`); in a host-resident `metrics` they are evaluated at once; where there
is no step to stop they are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from nitro_dialect import ir
from nitro_dialect.ir import Mark, Meta
from nitro_dialect.namespace import NAMESPACE
from nitro_runtime import places
from nitro_runtime.places import Found, Kind, Place
from nitroc.errors import ContractError
from nitroc.frontend import numeric_marks
from nitroc.frontend.jax_internals import in_backward_rule
from nitroc.frontend.mark_arguments import check_number, checked_mark, is_value, line, spoken
from nitroc.frontend.mark_primitive import bind, bind_tap, is_tracer, will_be_lost
from nitroc.frontend.mark_tracing import Recording, recording
from nitroc.frontend.source import user_position

T = TypeVar("T")

_IN_TAP: ContextVar[bool] = ContextVar("in_tap", default=False)


def guard(name: str, count: T, **meta: Meta) -> T:
    """Says that `count` must stay zero: the run stops at the step where its total is not.

    `count`: rank 0, any real dtype but bool; a fraction is rounded up, a NaN, negative or infinite
    one is 1. `meta`: Python numbers, bools and strings, fixed while tracing. Returns `count`.
    Errors: E-CONTRACT-017, -019, -020, -022, -023.
    """
    mark = checked_mark("guard", name, meta)
    check_number(mark, count, bools=False)
    _record(mark, count)
    return count


def assert_finite(name: str, x: T, **meta: Meta) -> T:
    """A guard that counts the NaN and infinite elements of every array in the pytree `x`.

    Tested and summed in f32, whatever the dtype; integers and bools count 0 and cost nothing.
    Returns `x`. Errors: those of `guard`.
    """
    mark = checked_mark("finite", name, meta)
    for leaf in jax.tree.leaves(x, is_leaf=is_value):
        if _may_be_nonfinite(leaf):
            _record(mark, _nonfinite(leaf))
    return x


def metric(
    name: str, value: T, *, below: float | None = None, above: float | None = None, **meta: Meta
) -> T:
    """A series of the rank-0 `value`: the mean over micro-batches, iterations and lanes.

    `below`, `above`: strict bounds, Python numbers, compared in f32 with every value; each is a
    guard of that name and metadata, which counts a NaN too. Returns `value`. Errors: those of
    `guard`; E-CONTRACT-022 also for a bound, -024 for a name that is a diagnostic's.
    """
    mark = checked_mark("metric", name, meta, below=below, above=above)
    check_number(mark, value, bools=True)
    _record(mark, value)
    return value


def diagnostic(
    name: str,
    value: T,
    *,
    reduce: str = "mean",
    below: float | None = None,
    above: float | None = None,
    **meta: Meta,
) -> T:
    """A series that is computed on sampled steps only, when it is selected; so are its bounds.

    `reduce`: `mean max min sum`, over micro-batches, iterations and lanes. Returns `value`.
    Errors: those of `metric`; E-CONTRACT-024 also for another `reduce` or two under one name.
    """
    mark = checked_mark("diagnostic", name, meta, reduce=reduce, below=below, above=above)
    check_number(mark, value, bools=True)
    _record(mark, value)
    return value


def tap_gradient(x: T, fn: Callable[[Any], object]) -> T:
    """Calls `fn` with the cotangent of `x`, on sampled steps; `fn` may hold diagnostics only.

    What `fn` returns is dropped. Returns `x`. Errors: E-CONTRACT-017 for another mark in `fn`.
    """
    place, now = places.current(), recording()
    if place is None or place.kind is not Kind.TRACED or now is None or not now.diagnostics:
        return x

    source = user_position(place.root)

    def forward(value: Any) -> tuple[Any, None]:
        return tap(value), None

    def backward(_: None, cotangent: Any) -> tuple[Any]:
        # a jitted function may call it when the hook is done: it still runs for this place
        with places.running(place), _tapping():
            fn(cotangent)
        return (cotangent,)

    @jax.custom_vjp
    def tap(value: Any) -> Any:
        bind_tap(source)
        return value

    tap.defvjp(forward, backward)
    return tap(x)


def count_where(mask: Any) -> Any:
    """How many elements of `mask` are true: f32, rank 0. No mark: plain arithmetic."""
    if is_value(mask):
        return NAMESPACE.count_nonzero(mask)
    if isinstance(mask, np.ndarray | np.generic | bool):
        return np.float32(np.count_nonzero(mask))
    return jnp.sum(jnp.asarray(mask) != 0, dtype=jnp.float32)


def class_index(label: T, num_classes: int) -> T:
    """Returns the integers `label`; a guard counts those outside `0 <= label < num_classes`.

    An index or one-hot class out of range is no error of a program: a gather takes the last entry,
    a one-hot row is zero. The guard is `class_index` with the metadata `num_classes`.
    """
    mark = checked_mark("guard", "class_index", {"num_classes": num_classes})
    given: Any = num_classes
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ContractError(
            22,
            f"class_index is given {num_classes!r} classes, expected a Python int of at least 1",
            where=line(),
            help="the number of classes is part of the program",
        )
    array: Any = label if hasattr(label, "dtype") else np.asarray(label)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ContractError(
            20,
            f"class_index is given labels of dtype {array.dtype}, expected integers",
            where=line(),
            help="convert the labels first, e.g. label.astype(jnp.int32)",
        )
    wrong = (array < 0) | (array >= num_classes)
    if isinstance(wrong, np.ndarray | np.generic):
        _record(mark, np.uint32(np.count_nonzero(wrong)))
    else:
        _record(mark, jnp.sum(wrong, dtype=jnp.uint32))
    return label


def _record(mark: Mark, value: Any) -> None:
    """What a call does beyond returning its value: nothing, a result of the program, a finding."""
    from nitroc.rules import marks as rule_marks  # rules name marks too: a cycle by nature

    if is_value(value) or rule_marks.recording():
        rule_marks.record(_placed(mark, places.current()), value)
        return
    place, now, tapping = places.current(), recording(), _IN_TAP.get()
    if now is None and (place is None or place.kind is Kind.TRACED):
        return  # plain jax, or a hook asked for its shapes
    mark = _placed(mark, place)
    if tapping and mark.kind != "diagnostic":
        raise _misplaced(mark, "inside tap_gradient", "nt.diagnostic(...) may stand there")
    # a backward rule runs when its hook is done, and in whatever place is left then
    if now is not None and not tapping and in_backward_rule():
        raise _misplaced(mark, "in a backward rule", "write nt.tap_gradient(x, fn) in the hook")
    if now is not None and (place is None or place.kind is Kind.TRACED):
        _traced(mark, value, now, tapping)
    elif place is not None and place.kind is Kind.NUMPY:
        _at_once(mark, value, place)
    elif place is not None:
        _refused(mark, place)


def _placed(mark: Mark, place: Place | None) -> Mark:
    return replace(mark, source=user_position(place.root if place else None))


def _traced(mark: Mark, value: Any, now: Recording, tapping: bool) -> None:
    if mark.kind == "diagnostic" and not now.diagnostics:
        now.dropped.setdefault(mark)
        return
    if will_be_lost(value):
        raise ContractError(
            19,
            f"{spoken(mark)} is evaluated while tracing (jax.ensure_compile_time_eval)",
            where=_line_of(mark),
            help="move it out of the block",
        )
    bind(mark, value, tap=tapping)


def _at_once(mark: Mark, value: Any, place: Place) -> None:
    if is_tracer(value):
        raise ContractError(
            19,
            f"{spoken(mark)} is inside a function that jax traces, and {place.name} runs on the "
            "host",
            where=_line_of(mark),
            help="call it on the numpy values, or return 'device' from metrics_residency",
        )
    if mark.kind == "diagnostic":
        place.dropped.append(_unfound(mark))
        return
    place.collected.append(numeric_marks.evaluate(_unfound(mark), value))


def _refused(mark: Mark, place: Place) -> None:
    if mark.kind == "diagnostic":
        place.dropped.append(_unfound(mark))
        return
    raise ContractError(
        19,
        f"{spoken(mark)} is called in {place.name}, where there is no step it could stop",
        where=_line_of(mark),
        help="move it into prepare, forward, loss or a metrics hook; raise an exception here",
    )


def _misplaced(mark: Mark, where: str, fix: str) -> ContractError:
    return ContractError(
        17,
        f"{spoken(mark)} is called {where}",
        where=_line_of(mark),
        help=f"{fix}; guard the forward value instead",
    )


def _unfound(mark: Mark) -> Found:
    return Found(mark.kind, mark.name, mark.meta, mark.reduce, mark.below, mark.above, mark.source)


def _line_of(mark: Mark) -> str:
    return mark.source.rpartition(":")[0]


@contextmanager
def _tapping() -> Generator[None]:
    token = _IN_TAP.set(True)
    try:
        yield
    finally:
        _IN_TAP.reset(token)


def _may_be_nonfinite(leaf: Any) -> bool:
    if is_value(leaf) or isinstance(leaf, float | complex):
        return True
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def _nonfinite(leaf: Any) -> Any:
    """How many elements are NaN or infinite, as f32."""
    if is_value(leaf):
        return count_where(~NAMESPACE.isfinite(cast(ir.Value, leaf)))
    if isinstance(leaf, np.ndarray | np.generic | float | complex):
        return numeric_marks.nonfinite(leaf)
    array = jax.lax.stop_gradient(leaf)
    if not jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = array.astype(jnp.float32)
    return jnp.sum(~jnp.isfinite(array), dtype=jnp.float32)
