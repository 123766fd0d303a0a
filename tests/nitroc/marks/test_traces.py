"""Marks of whole experiments: keys and order, diagnostics apart, hooks that share code."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from marking import X, arguments, traced, words

import nitroc as nt
from nitro_dialect.types import TensorType

LINE = "test_traces.py"


def results(imported: Any) -> list[str]:
    return [result.name for result in imported.function.results]


def test_keys_sources_and_order() -> None:
    def function(x: Any, w: Any) -> Any:
        for layer in range(2):
            nt.guard("h", jnp.sum(x > 9), layer=layer, last=layer == 1)
        nt.guard("h", jnp.sum(x > 3), last=False, layer=0)
        nt.metric("norm", x.sum(), below=20)
        value = nt.metric("norm", x.sum())
        nt.guard("same-line", 0)
        return x * w + 0 * value

    made = traced(function)
    plain, gradient = made.objective()
    first = function.__code__.co_firstlineno
    # the column is that of the call on its line, from 1
    assert [(m.key, m.kind, m.source.rpartition("/")[2]) for m in made.marks.values()] == [
        ("h{last=false,layer=0}", "guard", f"{LINE}:{first + 2}:13"),
        ("h{last=true,layer=1}", "guard", f"{LINE}:{first + 2}:13"),
        ("h{last=false,layer=0}#2", "guard", f"{LINE}:{first + 3}:9"),
        ("norm", "metric", f"{LINE}:{first + 4}:9"),
        ("norm#2", "metric", f"{LINE}:{first + 5}:17"),
        ("same-line", "guard", f"{LINE}:{first + 6}:9"),
    ]
    assert made.marks["h{last=false,layer=0}"].meta == (("last", False), ("layer", 0))
    assert made.marks["norm"].below == 20.0
    marks = [
        "mark.h{last=false,layer=0}:count",
        "mark.h{last=false,layer=0}:odd",
        "mark.h{last=true,layer=1}:count",
        "mark.h{last=true,layer=1}:odd",
        "mark.h{last=false,layer=0}#2:count",
        "mark.h{last=false,layer=0}#2:odd",
        "mark.norm:count",
        "mark.norm:sum",
        "mark.norm:n",
        "mark.norm#2:sum",
        "mark.norm#2:n",
        "mark.same-line:count",
        "mark.same-line:odd",
    ]
    assert results(plain) == ["loss", "weight", *marks, "state"]
    assert results(gradient) == ["loss", "weight", *marks, "grad", "state"]
    assert results(made.forward(6)) == ["outputs", *marks]
    kinds = {
        name.rpartition(":")[2]: r.type
        for name, r in zip(marks, plain.function.results[2:], strict=False)
    }
    assert kinds == {
        "count": TensorType("i64"),
        "odd": TensorType("i32"),
        "sum": TensorType("f32"),
        "n": TensorType("i64"),
    }
    assert "nitro." not in plain.text + gradient.text


def test_values_and_gradients_are_those_without_marks() -> None:
    def step(x: Any, w: Any, mark: bool) -> Any:
        y = lax.scan(lambda c, _: (jnp.sin(c * w), None), x, length=3)[0]
        if mark:
            nt.metric("y", y.sum(), below=3)
            nt.assert_finite("w", {"w": w})
        return y

    def run(mark: bool) -> list[np.ndarray]:
        from tracing import constants_of
        from tracing import run as run_imported

        made = traced(lambda x, w: step(x, w, mark))
        gradient = made.objective()[1]
        found = run_imported(gradient, arguments(made, {"x": X}) | constants_of(gradient))
        return [found[0], found[1], found[-1]]

    for one, other in zip(run(True), run(False), strict=True):
        np.testing.assert_array_equal(one, other)


@jax.jit
def size(y: Any) -> Any:
    """jax keeps what it traced of it: with the diagnostic, or without."""
    return nt.diagnostic("size", jnp.abs(y).max(), reduce="max", below=4) * y


def watched(x: Any, w: Any) -> Any:
    nt.guard("always", jnp.sum(x > 3))
    y = lax.scan(lambda c, _: (jnp.sin(size(c)), None), x * w, length=2)[0]
    return nt.tap_gradient(y, lambda ct: nt.diagnostic("ct", jnp.abs(ct).sum(), reduce="sum"))


def unwatched(x: Any, w: Any) -> Any:
    nt.guard("always", jnp.sum(x > 3))

    @jax.jit
    def size(y: Any) -> Any:
        return jnp.abs(y).max() * y

    return lax.scan(lambda c, _: (jnp.sin(size(c)), None), x * w, length=2)[0]


def test_diagnostics_and_taps_are_in_the_sampled_pair_only() -> None:
    made, unmarked = traced(watched), traced(unwatched)
    pair, wanted = made.objective(), unmarked.objective()
    assert [f.text for f in pair] == [f.text for f in wanted]
    assert list(made.marks) == ["always", "size", "ct"]
    sampled = made.sampled()
    assert sampled is not None
    assert [f.function.name for f in sampled] == ["objective.sampled", "objective.sampled.grad"]
    assert sampled[1].function.of == "objective.sampled"
    assert sampled[1].function.wrt == "params"
    given = arguments(made, {"x": X})
    got = words(sampled[1], given)
    assert got["always:count"] == 2
    # five at first, then what the sine leaves of it
    assert (got["size:max"], got["size:n"], got["size:count"]) == (5.0, 2, 1)
    assert (got["ct:sum"], got["ct:n"]) == (6.0, 1)
    # the objective alone has no cotangents, and the results of its gradient all the same
    without = words(sampled[0], given)
    assert list(without) == list(got)
    assert (without["ct:sum"], without["ct:n"], without["size:max"]) == (0.0, 0, 5.0)
    assert list(words(made.forward(6), given)) == ["always:count", "always:odd"]
    assert made.dropped == {}
    assert unmarked.sampled() is None


TAPS = {
    "scan": lambda t, x, w: lax.scan(lambda c, _: (jnp.sin(t(c)), None), x * w, length=3)[0],
    "remat": lambda t, x, w: jax.checkpoint(
        lambda y: lax.scan(jax.checkpoint(lambda c, _: (jnp.sin(t(c)), None)), y, length=3)[0]
    )(x * w),
    "vmap": lambda t, x, w: jax.vmap(lambda v: jnp.sin(t(v)))(x * w),
    "jit": lambda t, x, w: jnp.sin(jax.jit(t)(x * w)),
}
TAPPED = {"scan": 3, "remat": 3, "vmap": 6, "jit": 1}


def test_taps_run_once_per_cotangent() -> None:
    def tap(name: str) -> Any:
        def watch(ct: Any) -> None:
            nt.diagnostic(name, jnp.abs(ct).max(), reduce="max", above=100)

        return lambda y: nt.tap_gradient(y, watch)

    made = traced(lambda x, w: sum(f(tap(name), x, w) for name, f in TAPS.items()))
    made.objective()
    sampled = made.sampled()
    assert sampled is not None
    got = words(sampled[1], arguments(made, {"x": X}))
    assert {name: got[f"{name}:n"] for name in TAPS} == TAPPED
    assert {name: got[f"{name}:count"] for name in TAPS} == TAPPED


def test_a_diagnostic_of_a_hook_that_never_trains_is_dropped() -> None:
    def metrics(self: Any, outputs: Any) -> Any:
        nt.diagnostic("spread", outputs.std(), below=1)
        nt.guard("spread", jnp.sum(outputs > 3))
        return {"mean": (outputs.sum(), outputs.size)}

    made = traced(
        lambda x, w: x * w,
        metrics=metrics,
        metrics_residency=lambda self, hook: "device",
    )
    made.objective()
    made.forward(6)
    reduce = made.reduce(6, 4)
    assert reduce is not None
    assert results(reduce)[-2:] == ["mark.spread:count", "mark.spread:odd"]
    (mark,) = made.dropped.values()
    assert (mark.key, mark.kind, mark.below) == ("spread#2", "diagnostic", 1.0)


@jax.jit
def shared(x: Any) -> Any:
    nt.guard("shared", jnp.sum(x > 1))
    return x


def test_what_plain_jax_cached_is_no_trace_of_ours() -> None:
    """A mark leaves nothing outside nitroc, and jax keeps what it traced there."""

    def layer(c: Any, _: Any) -> Any:
        return shared(c), None

    def function(x: Any, w: Any) -> Any:
        return lax.scan(layer, shared(x * w), length=2)[0]

    made = traced(function)
    function(jnp.asarray(X), X)
    jax.grad(lambda w: function(jnp.asarray(X), w).sum())(X)
    plain, gradient = made.objective()
    function(jnp.asarray(X), X)
    given = arguments(made, {"x": X})
    # of 0..5 four are above 1
    for imported in (plain, gradient, made.forward(6)):
        assert words(imported, given)["shared:count"] == 3 * 4


def test_traces_of_two_threads_count_apart() -> None:
    def function(x: Any, w: Any) -> Any:
        def layer(c: Any, _: Any) -> Any:
            nt.guard("fixed", 1)
            return jnp.sin(c), None

        return lax.scan(layer, x * w, length=3)[0]

    def count(_: int) -> list[int]:
        made = traced(function)
        given = arguments(made, {"x": X})
        return [words(f, given)["fixed:count"] for f in made.objective()]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(count, range(3))) == [[3, 3]] * 3


def test_equal_metadata_of_two_types_is_two_series() -> None:
    def function(x: Any, w: Any) -> Any:
        for layer in (1, True, 1.0, 0.0, -0.0, math.nan, math.nan):
            nt.guard("h", 1, layer=layer)
        return x * w

    made = traced(function)
    got = words(made.forward(6), arguments(made, {"x": X}))
    assert {name: n for name, n in got.items() if name.endswith(":count")} == {
        "h{layer=1}:count": 1,
        "h{layer=true}:count": 1,
        "h{layer=1.0}:count": 1,
        "h{layer=0.0}:count": 1,
        "h{layer=-0.0}:count": 1,
        "h{layer=nan}:count": 2,
    }


def prepare(self: Any, *, x: Any, noise: Any = None) -> Any:
    nt.guard("prepared", jnp.sum(noise > 0))
    return {"x": shared(x) * 2}


def test_marks_of_prepare_count_in_forward_once() -> None:
    """A jitted helper that two hooks call counts in both; in a pass, only outside prepare."""

    def loss(self: Any, outputs: Any, *, x: Any) -> Any:
        return jnp.sum(shared(outputs)) + x.sum() * 0

    made = traced(lambda x, w: x * w, loss=loss, prepare=prepare, batch={"noise": X})
    given = arguments(made, {"x": X, "noise": X, "outputs": X})
    # of 0..5, times two: 4 are above 1, then 5; 5 of the noise are above 0
    training = words(made.objective()[1], given)
    assert training["shared:count"] == 4 + 5
    assert training["prepared:count"] == 5
    forward = made.forward(6)
    # a field that only a mark reads is a parameter
    assert "noise" in [p.name for p in forward.function.params]
    assert words(forward, given) == {
        "shared:count": 4,
        "shared:odd": 0,
        "prepared:count": 5,
        "prepared:odd": 0,
    }
    reduce = made.reduce(6, 4)
    assert reduce is not None
    assert "noise" not in [p.name for p in reduce.function.params]
    # the first four outputs: 2 and 3 are above 1
    assert words(reduce, given) == {"shared:count": 2, "shared:odd": 0}


def test_dead_marks_of_prepare_leave_loops_and_branches() -> None:
    def looping(self: Any, *, x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            nt.guard("loop", jnp.sum(c > 1))
            return lax.cond(c[0] > 0, jnp.sin, lambda y: nt.assert_finite("branch", y) * 1, c), None

        @jax.custom_vjp
        def custom(y: Any) -> Any:
            return nt.assert_finite("custom", y) * 2

        custom.defvjp(lambda y: (custom(y), None), lambda _, ct: (ct,))
        return {"x": custom(jax.checkpoint(lambda y: lax.scan(body, y, length=3)[0])(x))}

    made = traced(lambda x, w: x * w, prepare=looping, loss=lambda self, outputs, *, x: x.sum())
    reduce = made.reduce(6, 6)
    assert reduce is not None
    assert results(reduce) == ["loss.sum", "loss.weight"]
    assert list(made.marks) == ["loop", "branch", "custom"]


def test_scope_of_a_hook_is_in_the_names_of_its_ops() -> None:
    made = traced(lambda x, w: jnp.sin(x * w))
    from nitroc.frontend.jax_internals import deserialize_portable, make_ir_context

    module = deserialize_portable(made.forward(6).serialized, make_ir_context())
    assert "forward/sin" in module.operation.get_asm(enable_debug_info=True)


def test_a_rule_run_on_arrays_marks_where_it_runs() -> None:
    @nt.rule(slots={})
    def sgd(g: Any) -> Any:
        nt.guard("large", jnp.sum(g > 3))
        return g

    def function(x: Any, w: Any) -> Any:
        (update,) = sgd.update(x * w)
        return update

    made = traced(function)
    assert words(made.forward(6), arguments(made, {"x": X}))["large:count"] == 2


def test_D01_flax_scan_over_remat() -> None:
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, c: Any, _: Any) -> Any:
            h = nn.Dense(6)(c)
            nt.guard("h", jnp.sum(h > -1e9))
            nt.guard("fixed", 1)
            return jnp.sin(h) + c, None

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layers = nn.scan(
                nn.remat(Block),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=4,
            )
            return layers()(x, None)[0]

    from nitro_runtime import places

    def build_model(self: Any, key: Any) -> Any:
        with places.outside():
            return Net(), Net().init(key, X)["params"], {}

    def forward(self: Any, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model.apply({"params": params}, x), state

    made = traced(lambda x, w: x, build_model=build_model, forward=forward)
    given = arguments(made, {"x": X})
    wanted = {"h:count": 24, "h:odd": 0, "fixed:count": 4, "fixed:odd": 0}
    assert words(made.objective()[1], given) == wanted
    assert words(made.forward(6), given) == wanted
