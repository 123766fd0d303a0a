"""Contracts of the private names of jax that marks rely on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from nitroc.frontend import jax_internals
from nitroc.frontend.jax_internals import (
    BATCHERS,
    CUSTOM_PARTIAL_EVAL,
    DCE_RULES,
    JVPS,
    PARTIAL_EVAL_RULES,
    PARTIAL_EVALS,
    TRANSPOSES,
    Effect,
    JaxprTrace,
    Primitive,
    allow_effect,
    batch_jaxpr,
    called_jaxpr,
    closed_call_p,
    cond_p,
    dce_jaxpr,
    in_backward_rule,
    in_trace,
    ir,
    jit_p,
    keeps_constants_out,
    lowered_inline,
    lowering_with,
    register_lowering,
    remat_p,
    scan_p,
    scope_of,
    stage,
    while_p,
)

X = np.arange(4, dtype=np.float32)


class Seen(Effect):
    def __hash__(self) -> int:
        return hash(Seen)

    def __eq__(self, other: object) -> bool:
        return type(other) is Seen


allow_effect(Seen)
seen_p = Primitive("seen")
seen_p.multiple_results = True
seen_p.def_impl(lambda *_: [])
seen_p.def_effectful_abstract_eval(lambda *_: ([], {Seen()}))
JVPS[seen_p] = lambda primals, _: (seen_p.bind(*primals), [])
register_lowering(seen_p, lambda *_: [], cacheable=False)


def seen(x: Any) -> Any:
    seen_p.bind(lax.stop_gradient(x))
    return jnp.sin(x)


def primitives(jaxpr: Any) -> list[str]:
    return [equation.primitive.name for equation in jaxpr.eqns]


def test_an_allowed_effect_stands_in_every_form_of_control_flow() -> None:
    def function(x: Any) -> Any:
        y = lax.scan(lambda c, _: (jax.checkpoint(seen)(c), None), x, length=2)[0]
        y = lax.cond(x[0] > 0, seen, jnp.cos, y)
        custom = jax.custom_vjp(seen)
        custom.defvjp(lambda v: (seen(v), v), lambda v, ct: (ct,))
        return custom(lax.while_loop(lambda c: c[0] > 9, seen, y)).sum()

    closed = jax.make_jaxpr(function)(X)
    assert Seen() in closed.effects
    # dead code elimination keeps what has the effect
    marked = jax.make_jaxpr(lambda x, y: (seen(y), x)[1])(X, 1.0)
    smaller, used = jax_internals.drop_dead(marked, [False, False])
    assert primitives(smaller) == ["stop_gradient", "seen"]
    assert used == (True, True)


def test_batchers_are_called_without_a_mapped_operand_too() -> None:
    calls: list[tuple[int, Any]] = []

    def rule(axis: Any, values: Any, dims: Any) -> Any:
        calls.append((axis.size, dims[0]))
        return seen_p.bind(*values), []

    BATCHERS[seen_p] = rule
    try:
        jax.make_jaxpr(jax.vmap(lambda v: seen(v) + seen(2.0) + jax.jit(seen)(3.0)))(X)
    finally:
        del BATCHERS[seen_p]
    assert calls == [(4, 0), (4, None), (4, None)]


def test_batchers_of_cond_and_while_are_found_by_name() -> None:
    def branch(v: Any) -> Any:
        return lax.cond(v > 2, jnp.sin, jnp.cos, v)

    met: list[Any] = []
    for primitive in (cond_p, while_p):
        original = BATCHERS[primitive]

        def rule(axis: Any, args: Any, dims: Any, original: Any = original, **params: Any) -> Any:
            met.append((dims[0], sorted(params)))
            return original(axis, args, dims, **params)

        BATCHERS[primitive] = rule
        try:
            jax.make_jaxpr(jax.vmap(branch))(X)
            jax.make_jaxpr(jax.vmap(lambda v: lax.while_loop(lambda c: c < 5, jnp.exp, v)))(X)
        finally:
            BATCHERS[primitive] = original
    assert met == [
        (0, ["branches"]),
        (0, ["body_jaxpr", "body_nconsts", "cond_jaxpr", "cond_nconsts"]),
    ]


def test_batch_jaxpr_says_what_comes_out_mapped() -> None:
    closed = jax.make_jaxpr(lambda x, y: (x + 1, y + 1))(1.0, 1.0)
    found: list[Any] = []

    def rule(axis: Any, values: Any, dims: Any) -> Any:
        found.append(batch_jaxpr(closed, axis, [True, False], instantiate=[False, False])[1])
        return [], []

    BATCHERS[seen_p] = rule
    try:
        jax.make_jaxpr(jax.vmap(lambda v: seen(v)))(X)
    finally:
        del BATCHERS[seen_p]
    assert [list(mapped) for mapped in found] == [[True, False]]


def test_scan_looks_for_constants_by_these_names() -> None:
    """And a hook in partial evaluation sees each equation, with what is known of it."""
    looked: list[str] = []
    originals = [names["trace_to_jaxpr_nounits"] for names in PARTIAL_EVALS]
    process, rule = JaxprTrace.process_primitive, CUSTOM_PARTIAL_EVAL[scan_p]

    def look(*arguments: Any, **keywords: Any) -> Any:
        looked.append("look")
        return originals[0](*arguments, **keywords)

    def evaluate(trace: Any, primitive: Any, tracers: Any, params: Any) -> Any:
        looked.append(primitive.name)
        return process(trace, primitive, tracers, params)

    def custom(*arguments: Any) -> Any:
        looked.append("custom")
        return rule(*arguments)

    assert all(original is originals[0] for original in originals)
    try:
        for names in PARTIAL_EVALS:
            names["trace_to_jaxpr_nounits"] = look
        JaxprTrace.process_primitive = evaluate
        CUSTOM_PARTIAL_EVAL[scan_p] = custom

        def scanned(x: Any) -> Any:
            return lax.scan(lambda c, _: (seen(c), None), x, length=2)[0].sum()

        jax.clear_caches()
        jax.make_jaxpr(jax.grad(scanned))(X)
        # a look begins, and what it meets is in the body
        assert "seen" in looked[looked.index("look") :]
        looked.clear()
        jax.make_jaxpr(jax.grad(jax.checkpoint(scanned)))(X)
        assert "custom" in looked
    finally:
        for names, original in zip(PARTIAL_EVALS, originals, strict=True):
            names["trace_to_jaxpr_nounits"] = original
        JaxprTrace.process_primitive = process
        CUSTOM_PARTIAL_EVAL[scan_p] = rule
        jax.clear_caches()


def test_stage_leaves_an_equation_for_later_whatever_is_known() -> None:
    process = JaxprTrace.process_primitive

    def staging(trace: Any, primitive: Any, tracers: Any, params: Any) -> Any:
        return (
            stage(trace, primitive, tracers, params)
            if primitive is seen_p
            else process(trace, primitive, tracers, params)
        )

    def scanned(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            seen_p.bind(1.0)
            return jnp.sin(c), None

        return lax.scan(body, x, length=2)[0].sum()

    def in_scans(closed: Any) -> list[str]:
        scans = [e for e in closed.eqns if e.primitive is scan_p]
        return [name for e in scans for name in primitives(e.params["jaxpr"])]

    jax.clear_caches()
    assert "seen" not in in_scans(jax.make_jaxpr(jax.grad(scanned))(X))
    JaxprTrace.process_primitive = staging
    try:
        jax.clear_caches()
        assert in_scans(jax.make_jaxpr(jax.grad(scanned))(X)).count("seen") == 1
    finally:
        JaxprTrace.process_primitive = process
        jax.clear_caches()


def test_constants_are_kept_out_where_jax_evaluates_them() -> None:
    def function() -> tuple[bool, bool]:
        with jax.ensure_compile_time_eval():
            inside = keeps_constants_out()
        return inside, keeps_constants_out()

    assert function() == (True, False)


def test_a_backward_rule_is_seen_on_the_stack() -> None:
    found: dict[str, bool] = {}

    def forward(x: Any) -> Any:
        found["forward"] = in_backward_rule()
        return jnp.sin(x), x

    def backward(x: Any, ct: Any) -> Any:
        jax.jit(lambda: found.update(backward=in_backward_rule()))()
        return (ct,)

    function = jax.custom_vjp(jnp.sin)
    function.defvjp(forward, backward)
    jax.grad(lambda x: lax.scan(lambda c, _: (function(c), None), x, length=2)[0])(1.0)
    assert found == {"forward": False, "backward": True}
    assert not in_backward_rule()


def test_scopes_of_equations() -> None:
    def function(x: Any) -> Any:
        with jax.named_scope("outer"):
            x = jax.jit(jnp.sin)(x)
            with jax.named_scope("inner"):
                x = x * 2
        return x

    closed = jax.make_jaxpr(function)(1.0)
    assert [scope_of(equation) for equation in closed.eqns] == ["outer", "outer/inner"]
    assert closed.eqns[0].primitive is jit_p


def test_a_lowering_rule_of_one_call_emits_what_it_likes() -> None:
    def rule(context: Any, *operands: Any) -> list[Any]:
        with jax.enable_x64(True):
            values = lowered_inline(
                context, lambda x: [lax.convert_element_type(x, np.int64)], operands
            )
        context.module_context.context.allow_unregistered_dialects = True
        ir.Operation.create("nitro.seen", operands=values)
        return []

    traced = jax.jit(seen).trace(X[0])
    text = str(
        traced.lower(_private_parameters=lowering_with(seen_p, rule)).compiler_ir("stablehlo")
    )
    assert '"nitro.seen"(' in text
    assert "tensor<i64>) -> ()" in text
    assert "nitro" not in str(traced.lower().compiler_ir("stablehlo"))


def test_a_copy_allows_what_the_module_allowed() -> None:
    def rule(context: Any, *operands: Any) -> list[Any]:
        context.module_context.context.allow_unregistered_dialects = True
        ir.Operation.create("nitro.seen", operands=operands)
        return []

    lowered = jax.jit(seen).trace(X[0]).lower(_private_parameters=lowering_with(seen_p, rule))
    copy = jax_internals.own_copy(lowered.compiler_ir("stablehlo"))
    assert "nitro.seen" in str(copy)
    copy.context.allow_unregistered_dialects = False
    with pytest.raises(ir.MLIRError, match="unregistered"):
        copy.operation.verify()


def test_a_rule_of_dead_code_says_what_is_read_and_what_is_left() -> None:
    closed = jax.make_jaxpr(lambda x: jax.checkpoint(jnp.sin)(x))(1.0)
    (equation,) = closed.eqns
    assert equation.primitive is remat_p
    used, left = DCE_RULES[remat_p]([True], equation)
    assert (used, left.primitive) == ([True], remat_p)
    assert DCE_RULES[remat_p]([False], equation) == ([False], None)


def looped(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]


def test_a_while_runs_in_both_halves_of_a_derivative() -> None:
    """Under linearize by one rule, which stages all of it, under checkpoint by another."""
    linearized, checkpointed = PARTIAL_EVAL_RULES[while_p], CUSTOM_PARTIAL_EVAL[while_p]
    known: list[list[bool]] = []
    staged: list[Any] = []
    halves: list[list[Any]] = []

    class Staging:
        def __init__(self, trace: Any) -> None:
            self.trace = trace

        def default_process_primitive(self, primitive: Any, tracers: Any, params: Any) -> Any:
            staged.append(primitive)
            return self.trace.default_process_primitive(primitive, tracers, params)

    def first(trace: Any, *tracers: Any, **params: Any) -> Any:
        known.append([tracer.is_known() for tracer in tracers])
        return linearized(Staging(trace), *tracers, **params)

    def second(*arguments: Any) -> Any:
        found = checkpointed(*arguments)
        halves.append([equation.primitive for equation in found[:2]])
        return found

    jax.clear_caches()
    PARTIAL_EVAL_RULES[while_p], CUSTOM_PARTIAL_EVAL[while_p] = first, second
    try:
        jax.make_jaxpr(lambda x: jax.linearize(looped, x)[1](x))(X)
        jax.make_jaxpr(
            jax.grad(lambda x: jax.checkpoint(lambda y: looped(lax.stop_gradient(y)) * y)(x).sum())
        )(X)
    finally:
        PARTIAL_EVAL_RULES[while_p], CUSTOM_PARTIAL_EVAL[while_p] = linearized, checkpointed
        jax.clear_caches()
    assert known[0] == [True, True, False]
    assert set(staged) == {while_p}
    assert halves[-1] == [while_p, while_p]


def test_a_closed_call_is_processed_with_its_jaxpr() -> None:
    """`scan` under checkpoint makes one; entering it evaluates its equations one by one."""
    process = JaxprTrace.process_call
    called: list[list[str]] = []

    def entering(trace: Any, primitive: Any, function: Any, tracers: Any, params: Any) -> Any:
        assert primitive is closed_call_p
        called.append(primitives(called_jaxpr(function)))
        with in_trace(trace):
            return function.call_wrapped(*map(trace.to_jaxpr_tracer, tracers))

    def nested(x: Any) -> Any:
        inner = jax.checkpoint(lambda c: lax.scan(lambda d, _: (seen(d), None), c, length=2)[0])
        return lax.scan(lambda c, _: (inner(c), None), x, length=2)[0].sum()

    wanted = jax.grad(nested)(X)
    jax.clear_caches()
    JaxprTrace.process_call = entering
    try:
        found = jax.grad(nested)(X)
    finally:
        JaxprTrace.process_call = process
        jax.clear_caches()
    assert ["scan"] in called
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_an_equation_on_a_tangent_is_transposed() -> None:
    @jax.custom_jvp
    def function(x: Any) -> Any:
        return jnp.sin(x)

    function.defjvp(lambda x, t: (function(x[0]), (seen_p.bind(t[0]), t[0])[1]))

    def rule(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    TRANSPOSES[seen_p] = rule
    try:
        with pytest.raises(ZeroDivisionError):
            jax.make_jaxpr(jax.grad(lambda x: function(x).sum()))(X)
    finally:
        del TRANSPOSES[seen_p]


def test_dce_jaxpr_says_which_operands_are_read() -> None:
    closed = jax.make_jaxpr(lambda x, y: (x + 1, y + 1))(1.0, 1.0)
    smaller, used = dce_jaxpr(closed.jaxpr, [True, False])
    assert (primitives(smaller), list(used)) == (["add"], [True, False])


def test_what_is_traced_in_a_user_context_is_cached_apart() -> None:
    traces: list[str] = []
    context = jax.make_user_context()

    @jax.jit
    def function(x: Any) -> Any:
        traces.append("traced")
        return lax.scan(lambda c, _: (jnp.sin(c), None), x, length=2)[0]

    for value in ("ours", None, "ours"):
        with context(value):
            jax.make_jaxpr(function)(X)
    assert len(traces) == 2
