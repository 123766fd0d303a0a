# pyright: basic
"""What tracing for nitroc changes in jax, only while it goes on: marks are counted exactly, or
refused.

* vmap of a branch or loop that then runs what was not taken is refused when it holds a mark.
* A `scan` under grad, and flax's at once, move what no iteration changes before the loop; marks
  stay in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import jax

from nitro_dialect.ir import Mark
from nitroc.errors import ContractError
from nitroc.frontend.jax_internals import (
    BATCHERS,
    CUSTOM_PARTIAL_EVAL,
    DCE_RULES,
    EXPORTED_PARTIAL_EVAL,
    PARTIAL_EVAL_RULES,
    PARTIAL_EVALS,
    JaxprTrace,
    batch_jaxpr,
    called_jaxpr,
    closed_call_p,
    cond_p,
    in_trace,
    jit_p,
    remat_p,
    scan_p,
    stage,
    while_p,
)
from nitroc.frontend.mark_jaxprs import first_mark, holds_mark, inner_jaxprs, stripped
from nitroc.frontend.mark_primitive import mark_p
from nitroc.frontend.mark_splitting import checkpointed_while, keeping_remat, linearized_while


@dataclass
class Recording:
    """One trace. `diagnostics`: whether it holds them and taps; if not, `dropped` are those met."""

    diagnostics: bool = False
    dropped: dict[Mark, None] = field(default_factory=dict)


_RECORDING: ContextVar[Recording | None] = ContextVar("recording", default=None)
_HOISTING: ContextVar[bool] = ContextVar("hoisting", default=False)
_LOOK = "trace_to_jaxpr_nounits"
_CHANGING = RLock()
"""What is changed in jax is changed for every thread."""
_CACHED_FOR = jax.make_user_context()
"""Whose trace it is: jax caches what it traced outside, without marks, apart from what ours did."""


def recording() -> Recording | None:
    """The trace that is going on; None outside nitroc's."""
    return _RECORDING.get()


@contextmanager
def tracing(now: Recording) -> Iterator[Recording]:
    """jax traces inside it as described above."""
    token = _RECORDING.set(now)
    try:
        with _CHANGING, _CACHED_FOR(("nitroc", now.diagnostics)), _patched():
            yield now
    finally:
        _RECORDING.reset(token)


@contextmanager
def _patched() -> Iterator[None]:
    changes: list[tuple[dict[Any, Any], Any, Any]] = [
        (BATCHERS, cond_p, _refusing_cond(BATCHERS[cond_p])),
        (BATCHERS, while_p, _refusing_while(BATCHERS[while_p])),
        (CUSTOM_PARTIAL_EVAL, scan_p, _hoisting(CUSTOM_PARTIAL_EVAL[scan_p])),
        (CUSTOM_PARTIAL_EVAL, while_p, checkpointed_while(CUSTOM_PARTIAL_EVAL[while_p])),
        (PARTIAL_EVAL_RULES, while_p, linearized_while(PARTIAL_EVAL_RULES[while_p])),
        *((names, _LOOK, _hoisting(names[_LOOK])) for names in PARTIAL_EVALS),
        (EXPORTED_PARTIAL_EVAL, "dce_jaxpr", _without_marks(EXPORTED_PARTIAL_EVAL["dce_jaxpr"])),
    ]
    process, call = JaxprTrace.process_primitive, JaxprTrace.process_call
    with _changed(changes), eliminating():
        JaxprTrace.process_primitive = _keeping_marks(process)
        JaxprTrace.process_call = _entering_calls(call)
        try:
            yield
        finally:
            JaxprTrace.process_primitive = process
            JaxprTrace.process_call = call


@contextmanager
def eliminating() -> Iterator[None]:
    """What jax finds dead inside it holds no mark."""
    with _CHANGING, _changed([(DCE_RULES, remat_p, keeping_remat(DCE_RULES[remat_p]))]):
        yield


@contextmanager
def _changed(changes: Sequence[tuple[dict[Any, Any], Any, Any]]) -> Iterator[None]:
    before = [(where, key, where[key]) for where, key, _ in changes]
    try:
        for where, key, value in changes:
            where[key] = value
        yield
    finally:
        for where, key, value in before:
            where[key] = value


def _refusing_cond(batch: Callable[..., Any]) -> Callable[..., Any]:
    def rule(axis: Any, args: Any, dims: Any, *, branches: Any, **params: Any) -> Any:
        # a platform_dependent one takes its branch by platform, whatever is mapped
        if dims[0] is not None and "branches_platforms" not in params and holds_mark(branches):
            raise _per_lane(first_mark(branches), "cond or switch", "runs every branch")
        return batch(axis, args, dims, branches=branches, **params)

    return rule


def _refusing_while(batch: Callable[..., Any]) -> Callable[..., Any]:
    def rule(axis: Any, args: Any, dims: Any, **params: Any) -> Any:
        jaxprs = [params["cond_jaxpr"], params["body_jaxpr"]]
        if holds_mark(jaxprs) and _predicate_is_mapped(axis, dims, **params):
            raise _per_lane(first_mark(jaxprs), "while_loop", "runs finished lanes on")
        return batch(axis, args, dims, **params)

    return rule


def _predicate_is_mapped(
    axis: Any,
    dims: Sequence[Any],
    cond_jaxpr: Any,
    cond_nconsts: int,
    body_jaxpr: Any,
    body_nconsts: int,
) -> bool:
    """As jax decides it: what of the carry is mapped once nothing changes, then the predicate."""
    mapped = [dim is not None for dim in dims]
    condition, rest = mapped[:cond_nconsts], mapped[cond_nconsts:]
    body, carry = rest[:body_nconsts], rest[body_nconsts:]
    for _ in range(1 + len(carry)):
        _, found = batch_jaxpr(body_jaxpr, axis, body + carry, instantiate=carry)
        carry = [a or b for a, b in zip(carry, found, strict=True)]
    _, (predicate,) = batch_jaxpr(cond_jaxpr, axis, condition + carry, instantiate=False)
    return bool(predicate)


def _per_lane(mark: Mark | None, what: str, does: str) -> ContractError:
    assert mark is not None
    call = "tap_gradient" if mark.kind == "tap" else f"{mark.kind} {mark.name}"
    return ContractError(
        21,
        f"{call} is in a {what} under vmap whose predicate differs per lane: jax {does}, so it "
        "would count what was not taken",
        where=mark.source.rpartition(":")[0],
        help="move it out, with the predicate as a mask: "
        "nt.guard(name, nt.count_where(mask & (...)))",
    )


def _hoisting(function: Callable[..., Any]) -> Callable[..., Any]:
    """While `function` runs, a scan looks for what in its body depends on no iteration."""

    def hoisting(*arguments: Any, **keywords: Any) -> Any:
        token = _HOISTING.set(True)
        try:
            return function(*arguments, **keywords)
        finally:
            _HOISTING.reset(token)

    return hoisting


def _without_marks(eliminate: Callable[..., Any]) -> Callable[..., Any]:
    """What flax asks of a body that it traces once more before its scan: no mark is part of it."""

    def eliminated(jaxpr: Any, *arguments: Any, **keywords: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        looked = stripped(jaxpr) if caller.startswith("flax.") else jaxpr
        return eliminate(looked, *arguments, **keywords)

    return eliminated


def _keeping_marks(process: Callable[..., Any]) -> Callable[..., Any]:
    """Partial evaluation that leaves marks, and what holds one, in the body of the scan."""

    def keeping(trace: Any, primitive: Any, tracers: Any, params: Any) -> Any:
        # a jit is split, and its marks meet this again
        if not _HOISTING.get() or primitive is jit_p:
            return process(trace, primitive, tracers, params)
        if primitive is mark_p or holds_mark(inner_jaxprs(params)):
            return stage(trace, primitive, tracers, params)
        return process(trace, primitive, tracers, params)

    return keeping


def _entering_calls(process: Callable[..., Any]) -> Callable[..., Any]:
    """Partial evaluation that enters a call with marks: jax would drop one without results."""

    def entering(trace: Any, primitive: Any, function: Any, tracers: Any, params: Any) -> Any:
        closed = _HOISTING.get() and primitive is closed_call_p
        if not closed or not holds_mark([called_jaxpr(function)]):
            return process(trace, primitive, function, tracers, params)
        with in_trace(trace):
            return function.call_wrapped(*map(trace.to_jaxpr_tracer, tracers))

    return entering
