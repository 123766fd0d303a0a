"""Each form of mark in each form of control flow: counted once per execution, forward only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from marking import W, X, arguments, traced, words

import nitroc as nt

Body = Callable[[Any], Any]


class Case(NamedTuple):
    """`write(body, x, w)` runs `body` `executions` times, on values of `size` elements."""

    write: Callable[[Body, Any, Any], Any]
    executions: int = 1
    size: int = 6


def marked(name: str) -> Body:
    """sin, with a count that depends on its argument, one that doesn't, and the other forms."""

    def body(x: Any) -> Any:
        nt.guard(f"{name}/carried", (x > -99).sum())
        nt.guard(f"{name}/fixed", 1)
        nt.assert_finite(f"{name}/finite", {"x": x + jnp.inf, "n": jnp.arange(3)})
        nt.metric(name, 2.5, below=2.5, above=1)
        return jnp.sin(x)

    return body


def expected(name: str, case: Case) -> dict[str, Any]:
    n = case.executions
    return {
        f"{name}/carried:count": n * case.size,
        f"{name}/carried:odd": 0,
        f"{name}/fixed:count": n,
        f"{name}/fixed:odd": 0,
        f"{name}/finite:count": n * case.size,
        f"{name}:count": n,
        f"{name}:sum": 2.5 * n,
        f"{name}:n": n,
    }


def scan(body: Body, x: Any, length: int = 3, **options: Any) -> Any:
    return lax.scan(lambda c, _: (body(c), None), x, None, length=length, **options)[0]


def other(x: Any) -> Any:
    return jnp.cos(x)


LOOPS = {
    "plain": Case(lambda b, x, w: b(x * w)),
    "twice": Case(lambda b, x, w: b(x * w) + b(x + w), 2),
    "unused": Case(lambda b, x, w: (b(x * w), x * w)[1]),
    "scan": Case(lambda b, x, w: scan(b, x * w), 3),
    "scan_in_scan": Case(lambda b, x, w: scan(lambda c: scan(b, c), x * w, 4), 12),
    "unrolled": Case(lambda b, x, w: scan(b, x * w, 4, unroll=2), 4),
    "unrolled_rest": Case(lambda b, x, w: scan(b, x * w, 3, unroll=2), 3),
    "unrolled_whole": Case(lambda b, x, w: scan(b, x * w, 3, unroll=True), 3),
    "scan_of_constants": Case(lambda b, x, w: scan(lambda c: jnp.sin(c) + b(w), x * w), 3),
    "while": Case(
        lambda b, x, w: (
            w * lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 1, b(c[1])), (0, x))[1]
        ),
        7,
    ),
    "fori": Case(lambda b, x, w: lax.fori_loop(0, 5, lambda _, c: b(c), x * w), 5),
    "while_of_constants_in_scan": Case(
        lambda b, x, w: scan(
            lambda c: (
                jnp.sin(c)
                + lax.while_loop(lambda d: d[0] < 2, lambda d: (d[0] + 1, b(d[1])), (0, x))[1]
            ),
            x * w,
        ),
        6,
    ),
    "map": Case(lambda b, x, w: lax.map(b, x * w), 6, 1),
    "map_in_batches": Case(lambda b, x, w: lax.map(b, x * w, batch_size=4), 6, 1),
}
BRANCHES = {
    "cond_taken": Case(lambda b, x, w: lax.cond(x[1] > 0, b, other, x * w)),
    "cond_not_taken": Case(lambda b, x, w: lax.cond(x[1] < 0, b, other, x * w), 0),
    "switch_taken": Case(lambda b, x, w: lax.switch(x[2].astype(int), [other, other, b], x * w)),
    "switch_not_taken": Case(lambda b, x, w: lax.switch(x[1].astype(int), [b, other], x * w), 0),
    "cond_in_scan": Case(
        lambda b, x, w: lax.scan(
            lambda c, i: (lax.cond(i % 2 == 0, b, other, c), None), x * w, jnp.arange(5)
        )[0],
        3,
    ),
    "fixed_cond_in_scan": Case(
        lambda b, x, w: scan(lambda c: jnp.sin(c) + lax.cond(x[1] > 0, b, other, w), x * w), 3
    ),
    "scan_in_cond": Case(lambda b, x, w: lax.cond(x[1] > 0, lambda y: scan(b, y), other, x * w), 3),
    "platform": Case(lambda b, x, w: lax.platform_dependent(x * w, cpu=b, default=other)),
}
LANES = {
    "vmap": Case(lambda b, x, w: jax.vmap(b)(x * w), 6, 1),
    "vmap_of_vmap": Case(
        lambda b, x, w: jax.vmap(jax.vmap(b))((x * w).reshape(3, 2)).reshape(6), 6, 1
    ),
    "vmap_of_scan": Case(lambda b, x, w: jax.vmap(lambda v: scan(b, v))(x * w), 18, 1),
    "vmap_of_fori": Case(
        lambda b, x, w: jax.vmap(lambda v: lax.fori_loop(0, 2, lambda _, c: b(c), v))(x * w), 12, 1
    ),
    "vmap_of_jit": Case(lambda b, x, w: jax.vmap(jax.jit(b))(x * w), 6, 1),
    "vmap_of_shared_cond": Case(
        lambda b, x, w: jax.vmap(lambda v: lax.cond(x[1] > 0, b, other, v))(x * w), 6, 1
    ),
    "vmap_of_unmapped": Case(lambda b, x, w: jax.vmap(lambda v: v + b(w[0]))(x * w), 6, 1),
    "vmap_of_unmapped_scan": Case(
        lambda b, x, w: jax.vmap(lambda v: v + scan(b, w[0]))(x * w), 18, 1
    ),
    "vmap_of_unmapped_jit": Case(
        lambda b, x, w: jax.vmap(lambda v: v + jax.jit(b)(w[0]))(x * w), 6, 1
    ),
    "vmap_of_unmapped_remat": Case(
        lambda b, x, w: jax.vmap(lambda v: v + jax.checkpoint(b)(w[0]))(x * w), 6, 1
    ),
    "scan_of_vmap": Case(lambda b, x, w: scan(jax.vmap(b), x * w), 18, 1),
    "vmap_of_grad": Case(lambda b, x, w: jax.vmap(jax.grad(b))(x * w), 6, 1),
}
POLICIES = {
    "default": None,
    "everything": jax.checkpoint_policies.everything_saveable,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("kept"),
    "other_names": jax.checkpoint_policies.save_anything_except_these_names("kept"),
    "offloaded": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["kept"],
        names_which_can_be_offloaded=[],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


def remats(policy: Any) -> dict[str, Case]:
    def remat(function: Body) -> Body:
        return jax.checkpoint(function, policy=policy)

    return {
        "remat": Case(lambda b, x, w: remat(b)(x * w)),
        "remat_of_scan": Case(lambda b, x, w: remat(lambda y: scan(b, y))(x * w), 3),
        "scan_of_remat": Case(lambda b, x, w: scan(remat(b), x * w), 3),
        "remat_of_scan_of_remat": Case(
            lambda b, x, w: remat(lambda y: scan(remat(b), y))(x * w), 3
        ),
        "remat_of_cond": Case(
            lambda b, x, w: remat(lambda y: lax.cond(x[1] > 0, b, other, y))(x * w)
        ),
    }


NESTED_REMATS = {
    "remat_of_remat": Case(lambda b, x, w: jax.checkpoint(jax.checkpoint(b))(x * w)),
    "jit_of_remat_of_jit": Case(lambda b, x, w: jax.jit(jax.checkpoint(jax.jit(b)))(x * w)),
    "remat_of_scan_of_scan_of_remat": Case(
        lambda b, x, w: jax.checkpoint(lambda y: scan(lambda c: scan(jax.checkpoint(b), c), y, 2))(
            x * w
        ),
        6,
    ),
    "remat_of_scan_of_remat_of_scan_of_remat": Case(
        lambda b, x, w: jax.checkpoint(
            lambda y: scan(
                jax.checkpoint(lambda c: jax.checkpoint(lambda d: scan(jax.checkpoint(b), d))(c)),
                y,
                2,
            )
        )(x * w),
        6,
    ),
    "remat_of_scan_of_jit": Case(
        lambda b, x, w: jax.checkpoint(lambda y: scan(jax.jit(b), y))(x * w), 3
    ),
    "remat_of_scan_of_fixed_remat": Case(
        lambda b, x, w: jax.checkpoint(
            lambda y: scan(lambda c: jnp.sin(c) + jax.checkpoint(b)(w), y)
        )(x * w),
        3,
    ),
    "remat_of_scan_of_fixed_cond": Case(
        lambda b, x, w: jax.checkpoint(
            lambda y: scan(lambda c: jnp.sin(c) + lax.cond(x[1] > 0, b, other, w), y)
        )(x * w),
        3,
    ),
}


def with_vjp(b: Body) -> Body:
    @jax.custom_vjp
    def function(x: Any) -> Any:
        return b(x)

    function.defvjp(lambda x: (b(x), x), lambda x, ct: (ct * jnp.cos(x),))
    return function


def with_jvp(b: Body) -> Body:
    @jax.custom_jvp
    def function(x: Any) -> Any:
        return b(x)

    function.defjvp(lambda x, t: (function(x[0]), jnp.cos(x[0]) * t[0]))
    return function


DERIVED = {
    "custom_vjp": Case(lambda b, x, w: with_vjp(b)(x * w)),
    "scan_of_custom_vjp": Case(lambda b, x, w: scan(with_vjp(b), x * w), 3),
    "vmap_of_custom_vjp": Case(lambda b, x, w: jax.vmap(with_vjp(b))(x * w), 6, 1),
    "remat_of_scan_of_custom_vjp": Case(
        lambda b, x, w: jax.checkpoint(lambda y: scan(jax.checkpoint(with_vjp(b)), y))(x * w), 3
    ),
    "custom_jvp": Case(lambda b, x, w: with_jvp(b)(x * w)),
    "scan_of_custom_jvp": Case(lambda b, x, w: scan(with_jvp(b), x * w), 3),
    "vmap_of_custom_jvp": Case(lambda b, x, w: jax.vmap(with_jvp(b))(x * w), 6, 1),
    "custom_gradient": Case(
        lambda b, x, w: jax.custom_gradient(lambda y: (b(y), lambda ct: ct * 2))(x * w)
    ),
    "grad": Case(lambda b, x, w: jax.grad(lambda y: b(y).sum())(x * w)),
    "grad_of_scan": Case(lambda b, x, w: jax.grad(lambda y: scan(b, y).sum())(x * w), 3),
    "grad_of_remat": Case(lambda b, x, w: jax.grad(lambda y: jax.checkpoint(b)(y).sum())(x * w)),
    "grad_of_scan_of_custom_jvp": Case(
        lambda b, x, w: jax.grad(lambda y: scan(with_jvp(b), y).sum())(x * w), 3
    ),
    "grad_of_jit_of_custom_jvp": Case(
        lambda b, x, w: jax.grad(lambda y: jax.jit(with_jvp(b))(y).sum())(x * w)
    ),
    "remat_of_custom_jvp": Case(lambda b, x, w: jax.checkpoint(with_jvp(b))(x * w)),
    "jvp": Case(lambda b, x, w: jax.jvp(b, (x * w,), (x,))[1]),
    "jvp_of_scan": Case(lambda b, x, w: jax.jvp(lambda y: scan(b, y), (x * w,), (x,))[1], 3),
    "linearize": Case(lambda b, x, w: jax.linearize(b, x * w)[1](x)),
    "vjp": Case(lambda b, x, w: jax.vjp(b, x * w)[1](x)[0]),
    "hessian_vector": Case(
        lambda b, x, w: jax.jvp(jax.grad(lambda y: b(y).sum()), (x * w,), (x,))[1]
    ),
}


def still(function: Body) -> Body:
    """`function` of a value that has no tangent: reverse mode knows no way through a `while`."""
    return lambda x: function(lax.stop_gradient(x))


def looped(b: Body) -> Body:
    return lambda x: lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, b(c[1])), (0, x))[1]


HALVES = {
    "remat_of_while": Case(lambda b, x, w: w * jax.checkpoint(still(looped(b)))(x * w), 4),
    "scan_of_remat_of_while_of_jit": Case(
        lambda b, x, w: scan(jax.checkpoint(lambda c: w * still(looped(jax.jit(b)))(c)), x), 12
    ),
    "vjp_of_remat_of_while": Case(
        lambda b, x, w: jax.vjp(jax.checkpoint(lambda y: still(looped(b))(y) + y), x * w)[1](x)[0],
        4,
    ),
    "linearize_of_while": Case(
        lambda b, x, w: w * sum(map(jax.linearize(looped(b), x)[1], (x, x + 1))), 4
    ),
    "linearize_of_scan_of_while": Case(
        lambda b, x, w: w * jax.linearize(lambda y: scan(looped(b), y), x)[1](x), 12
    ),
    "scan_of_remat_of_unread_scan": Case(
        lambda b, x, w: scan(jax.checkpoint(lambda c: (scan(b, c), jnp.sin(c))[1]), x * w, 2), 6
    ),
    "grad_of_unread_remat_in_scan": Case(
        lambda b, x, w: jax.grad(
            lambda y: scan(lambda c: (jax.checkpoint(b)(w), jnp.sin(c))[1], y).sum()
        )(x * w),
        3,
    ),
}


def composite(b: Body) -> Body:
    return functools.partial(lax.composite, name="my.op")(b)


def called_twice(b: Body, x: Any, w: Any) -> Any:
    function = jax.jit(b)
    return function(x * w) + function(x + w)


CALLS = {
    "jit": Case(lambda b, x, w: jax.jit(b)(x * w)),
    "jit_twice": Case(called_twice, 2),
    "jit_of_jit": Case(lambda b, x, w: jax.jit(lambda y: jax.jit(b)(y))(x * w)),
    "scan_of_jit": Case(lambda b, x, w: scan(jax.jit(b), x * w), 3),
    "scan_of_jit_without_arguments": Case(
        lambda b, x, w: scan(lambda c: jnp.sin(c) + jax.jit(lambda: b(X))(), x * w), 3
    ),
    "jit_without_arguments": Case(lambda b, x, w: x * w + jax.jit(lambda: b(X))()),
    "composite": Case(lambda b, x, w: composite(b)(lax.stop_gradient(x)) + w),
    "before_top_k": Case(lambda b, x, w: lax.top_k(b(x * w), 6)[0]),
    "around_top_k": Case(lambda b, x, w: jax.jit(lambda y: b(lax.top_k(y, 6)[0]))(x * w)),
    "around_erf_and_softmax": Case(lambda b, x, w: jax.nn.gelu(jax.nn.softmax(b(lax.erf(x * w))))),
    "linear_solve": Case(
        lambda b, x, w: lax.custom_linear_solve(
            lambda v: v * 2, b(x * w), lambda _, q: q / 2, symmetric=True
        )
    ),
}
GROUPS: dict[str, dict[str, Case]] = {
    "loops": LOOPS,
    "branches": BRANCHES,
    "lanes": LANES,
    "nested_remats": NESTED_REMATS,
    "derived": DERIVED,
    "halves": HALVES,
    "calls": CALLS,
    **{f"remat_{name}": remats(policy) for name, policy in POLICIES.items()},
}


@pytest.mark.parametrize("group", GROUPS)
def test_D01_counted_once_per_execution(group: str) -> None:
    cases = GROUPS[group]

    def function(x: Any, w: Any) -> Any:
        return sum(case.write(marked(name), x, w) for name, case in cases.items())

    made = traced(function)
    given = arguments(made, {"x": X})
    wanted = {k: v for name, case in cases.items() for k, v in expected(name, case).items()}
    # the objective alone is what the static check compares its gradient with
    _, gradient = made.objective()
    assert words(gradient, given) == wanted
    assert words(made.forward(6), given) == wanted
    assert made.sampled() is None
    # the hook under plain jax is plain JAX, whatever was traced before
    assert np.isfinite(jax.jit(function)(X, W)).all()


def test_D01_a_checkpoint_that_nothing_reads_counts_too() -> None:
    def function(x: Any, w: Any) -> Any:
        jax.checkpoint(lambda: nt.guard("alone", 1))()
        jax.checkpoint(marked("unread"))(x * w)
        return scan(lambda c: c + 0 * jax.checkpoint(lambda: nt.guard("in_scan", 1.0))(), x * w)

    made = traced(function)
    given = arguments(made, {"x": X})
    wanted = expected("unread", Case(lambda b, x, w: x))
    wanted |= {"alone:count": 1, "alone:odd": 0, "in_scan:count": 3, "in_scan:odd": 0}
    _, gradient = made.objective()
    assert words(gradient, given) == wanted
    assert words(made.forward(6), given) == wanted


def test_D01_eager_calls_are_plain_jax() -> None:
    for name in ("scan", "vmap", "fixed_cond_in_scan", "custom_vjp", "composite"):
        case = next(group[name] for group in GROUPS.values() if name in group)
        with_marks = case.write(marked(name), jnp.asarray(X), jnp.asarray(W))
        np.testing.assert_allclose(with_marks, case.write(jnp.sin, X, W), rtol=1e-6)
        found = jax.grad(lambda w, c=case, n=name: c.write(marked(n), jnp.asarray(X), w).sum())(W)
        wanted = jax.grad(lambda w, c=case: c.write(jnp.sin, jnp.asarray(X), w).sum())(W)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
