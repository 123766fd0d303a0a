"""Random nestings of control flow and derivation with marks: written for jax, and counted by hand.

A nesting is a tree of `Nest`. `written` gives the jax function, `counted` runs it in numpy with
Python loops, lane by lane, and adds up what its marks count; `per_lane` says whether a mark is in
a branch or loop whose predicate differs between lanes, from what each value depends on.

Values are small whole numbers in f32, so both ways agree exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import nitroc as nt

MODULUS = np.float32(8)


@dataclass(frozen=True)
class Nest:
    """`kind` with its `options`, around `inner`."""

    kind: str
    inner: tuple[Nest, ...] = ()
    options: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Around:
    """What code may read beside its value: a parameter, the batch, indices of loops, lanes."""

    w: Any
    x: Any
    indices: tuple[Any, ...] = ()
    lanes: tuple[Any, ...] = ()

    def leaves(self) -> Any:
        return self.w, self.x, self.indices, self.lanes

    def at(self, index: Any) -> Around:
        return replace(self, indices=(*self.indices, index))

    def lane(self, lane: Any) -> Around:
        return replace(self, lanes=(*self.lanes, lane))


Function = Callable[[Any, Around], Any]

SOURCES = ("carry", "index", "lane", "fixed", "param", "batch")
FORMS = ("guard", "odd", "int", "fraction", "metric", "finite", "max", "sum")
DIAGNOSTICS = ("max", "sum")
POLICIES = {
    "none": None,
    "all": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("kept"),
}


def source(name: str, v: Any, around: Around, xp: Any) -> Any:
    """A number to count, or to branch on."""
    values: dict[str, Callable[[], Any]] = {
        "carry": lambda: xp.sum(v),
        "index": lambda: around.indices[-1] if around.indices else xp.float32(3),
        "lane": lambda: around.lanes[-1] if around.lanes else xp.float32(1),
        "fixed": lambda: xp.float32(2),
        "param": lambda: around.w * xp.float32(3),
        "batch": lambda: around.x + xp.float32(1),
    }
    return values[name]()


def step(v: Any, around: Around, xp: Any) -> Any:
    """Arithmetic whose derivative needs a residual."""
    return xp.mod(v * around.w + around.x + 1, MODULUS) + xp.float32(0) * xp.sin(v)


def written(nest: Nest) -> Function:
    """The nesting as a jax function of a value of any shape."""
    return WRITTEN[nest.kind](nest, *map(written, nest.inner))


def _mark(nest: Nest) -> Function:
    name, form, of = nest.options

    def mark(v: Any, around: Around) -> Any:
        n = source(of, v, around, jnp)
        match form:
            case "guard":
                nt.guard(name, n)
            case "odd":
                nt.guard(name, jnp.where(n > 3, jnp.nan, n - 3))
            case "int":
                nt.guard(name, n.astype(jnp.int32) - 2)
            case "fraction":
                nt.guard(name, n / 4)
            case "metric":
                nt.metric(name, n, below=5, above=1)
            case "finite":
                nt.assert_finite(name, {"v": jnp.where(v > 3, jnp.inf, v), "n": n})
            case _:
                nt.diagnostic(name, n, reduce=form, below=5)
        return v

    return mark


def _sequence(_: Nest, *inner: Function) -> Function:
    def sequence(v: Any, around: Around) -> Any:
        for function in inner:
            v = function(v, around)
        return v

    return sequence


def _scan(nest: Nest, body: Function) -> Function:
    length, unroll = nest.options

    def scan(v: Any, around: Around) -> Any:
        indices = jnp.arange(length, dtype=jnp.float32)
        return lax.scan(lambda c, i: (body(c, around.at(i)), c), v, indices, unroll=unroll)[0]

    return scan


def _fixed(nest: Nest, body: Function) -> Function:
    """A scan whose body works on what no iteration changes."""
    (length,) = nest.options

    def fixed(v: Any, around: Around) -> Any:
        indices = jnp.arange(length, dtype=jnp.float32)
        return lax.scan(
            lambda c, i: (jnp.mod(c + body(v, around.at(i)), MODULUS), None), v, indices
        )[0]

    return fixed


def _unread(nest: Nest, body: Function) -> Function:
    def unread(v: Any, around: Around) -> Any:
        body(v, around)
        return v

    return unread


def _fori(nest: Nest, body: Function) -> Function:
    (length,) = nest.options

    def fori(v: Any, around: Around) -> Any:
        return lax.fori_loop(0, length, lambda i, c: body(c, around.at(i.astype(jnp.float32))), v)

    return fori


def _while(nest: Nest, body: Function) -> Function:
    (of,) = nest.options

    def loop(v: Any, around: Around) -> Any:
        still, inside = lax.stop_gradient(v), Around(*lax.stop_gradient(around.leaves()))
        end = jnp.mod(source(of, still, inside, jnp), 4)
        found = lax.while_loop(
            lambda c: c[0] < end,
            lambda c: (c[0] + 1, body(c[1], inside.at(c[0]))),
            (jnp.float32(0), still),
        )[1]
        return jnp.mod(found + v, MODULUS)

    return loop


def _switch(nest: Nest, *branches: Function) -> Function:
    (of,) = nest.options

    def switch(v: Any, around: Around) -> Any:
        taken = jnp.mod(source(of, v, around, jnp), 2).astype(jnp.int32)
        if len(branches) > 2:
            return lax.switch(taken, [lambda c, b=b: b(c, around) for b in branches], v)
        first, second = branches
        return lax.cond(taken < 1, lambda c: first(c, around), lambda c: second(c, around), v)

    return switch


def lanes_of(v: Any, count: int, xp: Any) -> Any:
    """One value per lane: the elements, or `count` of them around a number."""
    return v if v.ndim else xp.mod(v + xp.arange(count, dtype=xp.float32), MODULUS)


def joined(values: Any, v: Any, xp: Any) -> Any:
    return values if v.ndim else xp.mod(xp.sum(values), MODULUS)


def _vmap(_: Nest, body: Function) -> Function:
    def mapped(v: Any, around: Around) -> Any:
        lanes = lanes_of(v, 2, jnp)
        indices = jnp.arange(len(lanes), dtype=jnp.float32)
        found = jax.vmap(lambda c, i: body(c, around.lane(i)))(lanes, indices)
        return joined(found, v, jnp)

    return mapped


def _vmap_fixed(nest: Nest, body: Function) -> Function:
    """Lanes that share the value."""
    (count,) = nest.options

    def mapped(v: Any, around: Around) -> Any:
        indices = jnp.arange(count, dtype=jnp.float32)
        return jnp.mod(jax.vmap(lambda i: i + body(v, around))(indices).sum(0), MODULUS)

    return mapped


def _map(nest: Nest, body: Function) -> Function:
    (size,) = nest.options

    def mapped(v: Any, around: Around) -> Any:
        found = lax.map(lambda c: body(c, around), lanes_of(v, 3, jnp), batch_size=size)
        return joined(found, v, jnp)

    return mapped


def _jit(nest: Nest, body: Function) -> Function:
    function = jax.jit(lambda v, leaves: body(v, Around(*leaves)))
    calls = nest.options[0]

    def called(v: Any, around: Around) -> Any:
        for _ in range(calls):
            v = function(v, around.leaves())
        return v

    return called


def _checkpoint(nest: Nest, body: Function) -> Function:
    policy = POLICIES[nest.options[0]]
    return lambda v, around: jax.checkpoint(lambda c: body(c, around), policy=policy)(v)


def _custom_jvp(_: Nest, body: Function) -> Function:
    function = jax.custom_jvp(lambda v, leaves: body(v, Around(*leaves)))
    function.defjvp(lambda primals, tangents: (function(*primals), tangents[0] * 2))
    return lambda v, around: function(v, around.leaves())


def _custom_vjp(_: Nest, body: Function) -> Function:
    def forward(v: Any, leaves: Any) -> Any:
        return body(v, Around(*leaves)), (v, leaves)

    def backward(kept: Any, cotangent: Any) -> Any:
        return cotangent * kept[0], jax.tree.map(jnp.zeros_like, kept[1])

    function = jax.custom_vjp(lambda v, leaves: body(v, Around(*leaves)))
    function.defvjp(forward, backward)
    return lambda v, around: function(v, around.leaves())


def _derived(derive: Callable[[Callable[[Any], Any], Any], Any]) -> Callable[..., Function]:
    """`derive(function, value)` runs the function's primal once; what it gives is not counted."""

    def build(_: Nest, body: Function) -> Function:
        def derived(v: Any, around: Around) -> Any:
            return step(v + 0 * derive(lambda c: body(c, around), v), around, jnp)

        return derived

    return build


def _grad(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.grad(lambda v: jnp.sum(function(v)))


WRITTEN: dict[str, Callable[..., Function]] = {
    "step": lambda _: lambda v, around: step(v, around, jnp),
    "mark": _mark,
    "sequence": _sequence,
    "scan": _scan,
    "fixed": _fixed,
    "unread": _unread,
    "fori": _fori,
    "while": _while,
    "switch": _switch,
    "vmap": _vmap,
    "vmap_fixed": _vmap_fixed,
    "map": _map,
    "jit": _jit,
    "checkpoint": _checkpoint,
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "grad": _derived(lambda f, v: _grad(f)(v)),
    "jvp": _derived(lambda f, v: jax.jvp(f, (v,), (v,))[1]),
    "vjp": _derived(lambda f, v: jax.vjp(f, v)[1](v)[0]),
    "linearize": _derived(lambda f, v: sum(map(jax.linearize(f, v)[1], (v, v + 1)))),
    "hessian": _derived(lambda f, v: jax.jvp(_grad(f), (v,), (v,))[1]),
}
