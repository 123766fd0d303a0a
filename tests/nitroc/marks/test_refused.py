"""Where a mark can't be counted exactly, or means nothing, it is refused by its line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from marking import X, experiment, setup_of, traced

import nitroc as nt
from nitroc.errors import ContractError


def marked(x: Any) -> Any:
    nt.guard("a", jnp.sum(x > 2))
    return jnp.sin(x)


MARKED_LINE = marked.__code__.co_firstlineno + 1
PLACE = rf"test_refused\.py:{MARKED_LINE}"


def code(number: int, *parts: str) -> str:
    return rf"(?s)E-CONTRACT-{number:03d}: .*" + ".*".join(parts)


def with_rule(primal: Any, forward: Any, backward: Any = jnp.cos) -> Any:
    function = jax.custom_vjp(lambda x: primal(x))
    function.defvjp(lambda x: (forward(x), x), lambda x, ct: (ct * backward(x),))
    return function


def with_jvp(primal: Any, rule: Any) -> Any:
    function = jax.custom_jvp(lambda x: primal(x))
    function.defjvp(lambda x, t: (rule(x[0]), jnp.cos(x[0]) * t[0]))
    return function


def grown(v: Any) -> Any:
    return lax.while_loop(lambda c: c < 5, lambda c: marked(c) * 0 + c + 1, v)


PER_LANE: dict[str, Callable[[Any, Any], Any]] = {
    "cond": lambda x, w: jax.vmap(lambda v: lax.cond(v > 2, marked, jnp.cos, v))(x * w),
    "switch": lambda x, w: jax.vmap(lambda v: lax.switch(v.astype(int) % 2, [jnp.cos, marked], v))(
        x * w
    ),
    "while": lambda x, w: (
        w
        * jax.vmap(lambda v: lax.while_loop(lambda c: c < 5, lambda c: marked(c) * 0 + c + 1, v))(x)
    ),
    "cond_in_jit_in_scan": lambda x, w: jax.vmap(
        lambda v: lax.scan(
            lambda c, _: (jax.jit(lambda d: lax.cond(d > 2, marked, jnp.cos, d))(c), None),
            v,
            length=2,
        )[0]
    )(x * w),
    "cond_under_grad": lambda x, w: jax.vmap(
        jax.grad(lambda v: lax.cond(v > 2, marked, jnp.cos, v))
    )(x * w),
}


@pytest.mark.parametrize("form", PER_LANE)
def test_D01_mapped_predicate(form: str) -> None:
    with pytest.raises(ContractError, match=code(21, "guard a", PLACE, "mask &")):
        traced(PER_LANE[form]).objective()


def test_D01_mapped_predicates_are_plain_jax_elsewhere() -> None:
    function = PER_LANE["cond"]
    before = function(jnp.asarray(X), X)
    with pytest.raises(ContractError):
        traced(function).objective()
    np.testing.assert_array_equal(function(jnp.asarray(X), X), before)
    jax.jit(function)(X, X)


def test_D01_mapped_predicate_of_a_tap() -> None:
    def function(x: Any, w: Any) -> Any:
        def tapped(v: Any) -> Any:
            return jnp.sin(nt.tap_gradient(v, lambda ct: nt.diagnostic("g", ct)))

        return jax.vmap(lambda v: lax.cond(v > 2, tapped, jnp.cos, v))(x * w)

    with pytest.raises(ContractError, match=code(21, "tap_gradient", r"test_refused\.py:\d+")):
        traced(function).objective()


def test_D01_mapped_predicate_without_marks() -> None:
    made = traced(lambda x, w: jax.vmap(lambda v: lax.cond(v > 2, jnp.sin, jnp.cos, v))(x * w))
    made.objective()
    assert made.marks == {}


OTHERWISE: dict[str, Callable[[Any, Any], Any]] = {
    "vjp_primal_only": lambda x, w: with_rule(marked, jnp.sin)(x * w),
    "vjp_forward_only": lambda x, w: with_rule(jnp.sin, marked)(x * w),
    "vjp_forward_twice": lambda x, w: with_rule(marked, lambda y: marked(marked(y)))(x * w),
    "vjp_primal_only_in_scan": lambda x, w: lax.scan(
        lambda c, _: (with_rule(marked, jnp.sin)(c), None), x * w, length=3
    )[0],
    "vjp_in_another_loop": lambda x, w: with_rule(
        lambda y: lax.scan(lambda c, _: (marked(c), None), y, length=3)[0], marked
    )(x * w),
    "jvp_primal_only": lambda x, w: with_jvp(marked, jnp.sin)(x * w),
    "jvp_rule_only": lambda x, w: with_jvp(jnp.sin, marked)(x * w),
}


@pytest.mark.parametrize("form", OTHERWISE)
def test_D01_otherwise_under_the_gradient(form: str) -> None:
    with pytest.raises(ContractError, match=code(25, "guard a", PLACE)):
        traced(OTHERWISE[form]).objective()


BACKWARD: dict[str, Callable[[Any, Any], Any]] = {
    "training": lambda x, w: with_rule(jnp.sin, jnp.sin, marked)(x * w),
    "grad_in_forward": lambda x, w: jax.grad(
        lambda y: with_rule(jnp.sin, jnp.sin, marked)(y).sum()
    )(x * w),
    "scan": lambda x, w: lax.scan(
        lambda c, _: (with_rule(jnp.sin, jnp.sin, marked)(c), None), x * w, length=3
    )[0],
}


@pytest.mark.parametrize("form", BACKWARD)
def test_D01_mark_in_a_backward_rule(form: str) -> None:
    with pytest.raises(ContractError, match=code(17, "guard a", "backward rule", PLACE)):
        traced(BACKWARD[form]).objective()


@pytest.mark.parametrize(
    "mark",
    [
        lambda ct: nt.guard("a", jnp.sum(ct > 1)),
        lambda ct: nt.assert_finite("a", ct),
        lambda ct: nt.metric("a", ct.sum()),
    ],
)
def test_D03_tap_gradient_takes_diagnostics_only(mark: Any) -> None:
    made = traced(lambda x, w: jnp.sin(nt.tap_gradient(x * w, mark)))
    with pytest.raises(
        ContractError, match=code(17, " a is called inside tap_gradient", r"test_refused\.py:\d+")
    ):
        made.objective()


def reduced(x: Any) -> Any:
    def larger(a: Any, b: Any) -> Any:
        return marked(a) * 0 + lax.max(a, b)

    return lax.reduce(x, np.float32(0), larger, (0,))


def conditional(v: Any) -> Any:
    return lax.while_loop(lambda c: marked(c) * 0 + c < 5, lambda c: c + 1, v)


UNCOUNTED: dict[str, Callable[[Any, Any], Any]] = {
    "reduce": lambda x, w: x * w + reduced(x),
    "scatter": lambda x, w: x * w + x.at[jnp.array([1])].apply(marked),
    "while condition": lambda x, w: (
        x * w + lax.while_loop(lambda c: marked(c) * 0 + c < 5, lambda c: c + 1, 0.0)
    ),
    "condition in scan": lambda x, w: (
        x * w
        + lax.scan(
            lambda c, _: (
                lax.while_loop(lambda d: marked(d) * 0 + d < 5, lambda d: d + 1, c),
                None,
            ),
            0.0,
            length=2,
        )[0]
    ),
}


@pytest.mark.parametrize("form", UNCOUNTED)
def test_D01_uncounted_executions(form: str) -> None:
    with pytest.raises(ContractError, match=code(26, "guard a", form.split()[0], PLACE)):
        traced(UNCOUNTED[form]).objective()


def test_D01_mark_on_a_tangent() -> None:
    @jax.custom_jvp
    def function(x: Any) -> Any:
        return jnp.sin(x)

    function.defjvp(lambda x, t: (function(x[0]), (marked(t[0]), t[0])[1]))
    with pytest.raises(ContractError, match=code(17, "guard a is on a tangent", PLACE)):
        traced(lambda x, w: function(x * w)).objective()


def test_D01_mark_of_a_rule_in_a_loop_that_is_run_again() -> None:
    """A rule is traced anew each time it is derived: its marks can't be taken out of one half."""

    def function(x: Any, w: Any) -> Any:
        def looped(y: Any) -> Any:
            rule = with_jvp(marked, marked)
            return lax.while_loop(lambda c: c[3] < 5, lambda c: rule(c) + 1, lax.stop_gradient(y))

        return w * jax.checkpoint(looped)(x * w)

    with pytest.raises(ContractError, match=code(26, "guard a", "custom rule", PLACE)):
        traced(function).objective()


def test_D01_mark_that_jax_takes_for_dead() -> None:
    def function(x: Any, w: Any) -> Any:
        lax.composite(marked, name="my.op")(lax.stop_gradient(x))
        return x * w

    with pytest.raises(ContractError, match=code(26, "guard a", "nothing uses", PLACE)):
        traced(function).objective()


ARGUMENTS: dict[str, tuple[int, str, Callable[[], Any]]] = {
    "bool": (20, "count_where", lambda: nt.guard("a", True)),
    "numpy_bool": (20, "count_where", lambda: nt.guard("a", np.bool_(True))),
    "jax_bool": (20, "count_where", lambda: nt.guard("a", jnp.any(jnp.ones(3) > 0))),
    "rank": (20, r"shape \(3,\).*jnp\.sum", lambda: nt.guard("a", jnp.ones(3))),
    "list": (20, r"shape \(2,\)", lambda: nt.guard("a", [1, 2])),
    "metric_rank": (20, r"shape \(3,\).*jnp\.mean", lambda: nt.metric("a", np.ones(3))),
    "diagnostic_rank": (20, r"shape \(3,\)", lambda: nt.diagnostic("a", np.ones(3))),
    "complex": (20, "complex", lambda: nt.guard("a", 1j)),
    "text": (20, "real number", lambda: nt.guard("a", "1")),
    "none": (20, "real number", lambda: nt.metric("a", None)),
    "key": (20, "key", lambda: nt.guard("a", jax.random.key(0))),
    "labels": (20, "float32", lambda: nt.class_index(np.ones(3, np.float32), 3)),
    "classes": (22, "at least 1", lambda: nt.class_index(np.ones(3, np.int32), 0)),
    "traced_meta": (22, r"unroll", lambda: jax.jit(lambda i: nt.guard("a", 1, i=i))(1)),
    "array_meta": (22, "ndarray", lambda: nt.guard("a", 1, i=np.ones(1))),
    "numpy_meta": (22, r"numpy\.bool", lambda: nt.guard("a", 1, i=np.bool_(True))),
    "lines_key": (22, "printable", lambda: nt.guard("a", 1, **{"b\nc": 1})),
    "lines_meta": (22, "printable", lambda: nt.guard("a", 1, i="a\nb")),
    "reserved_meta": (22, "reserved", lambda: nt.guard("a", 1, stage="x")),
    "traced_bound": (22, "count_where", lambda: jax.jit(lambda b: nt.metric("a", 1, below=b))(1.0)),
    "bool_bound": (22, "Python number", lambda: nt.metric("a", 1, above=True)),
    "nan_bound": (22, "Python number", lambda: nt.diagnostic("a", 1, above=float("nan"))),
    "name": (23, "'a b'", lambda: nt.guard("a b", 1)),
    "empty_name": (23, "''", lambda: nt.metric("", 1)),
    "long_name": (23, "200", lambda: nt.assert_finite("a" * 201, 1.0)),
    "number_name": (23, "3", lambda: nt.guard(3, 1)),  # pyright: ignore[reportArgumentType]
    "reduce": (24, "'max'", lambda: nt.diagnostic("a", 1, reduce="maxx")),
}


@pytest.mark.parametrize("form", ARGUMENTS)
def test_D03_arguments(form: str) -> None:
    number, found, call = ARGUMENTS[form]
    with pytest.raises(ContractError, match=code(number, found)) as raised:
        call()
    assert raised.value.where
    assert re.fullmatch(r".*test_refused\.py:\d+", raised.value.where)


def test_D03_index_of_a_scan_as_metadata() -> None:
    def function(x: Any, w: Any) -> Any:
        def layer(c: Any, i: Any) -> Any:
            return nt.guard("a", jnp.sum(c > 9), layer=i) * c, None

        return lax.scan(layer, x * w, jnp.arange(3))[0]

    with pytest.raises(ContractError, match=code(22, "metadata layer", "unroll")):
        traced(function).objective()


def test_D03_one_name_two_meanings() -> None:
    def function(x: Any, w: Any) -> Any:
        nt.metric("a", x.sum())
        nt.diagnostic("a", x.sum(), layer=1)
        return x * w

    line = function.__code__.co_firstlineno
    both = (rf"test_refused\.py:{line + 1}", rf"test_refused\.py:{line + 2}")
    with pytest.raises(ContractError, match=code(24, *both)):
        traced(function).objective()

    def reductions(x: Any, w: Any) -> Any:
        nt.diagnostic("a", x.sum())
        nt.diagnostic("a", x.sum(), reduce="max")
        return x * w

    with pytest.raises(ContractError, match=code(24, "'mean'")):
        traced(reductions).objective()


def build_model(self: Any, key: Any) -> Any:
    nt.diagnostic("seen", 1.0, below=0.5)
    nt.guard("a", 1)
    return None, {"w": jnp.ones(6)}, {}


def test_D03_guard_in_build_model() -> None:
    line = build_model.__code__.co_firstlineno + 2
    wanted = code(19, "guard a", "build_model", rf"test_refused\.py:{line}")
    with pytest.raises(ContractError, match=wanted):
        traced(lambda x, w: x * w, build_model=build_model)

    def only_traced(self: Any, key: Any) -> Any:
        return build_model(self, key) if isinstance(key, jax.core.Tracer) else UNMARKED

    made = traced(lambda x, w: x * w, build_model=nt.traced(only_traced))
    with pytest.raises(ContractError, match=wanted):
        made.init()


UNMARKED = (None, {"w": np.ones(6, np.float32)}, {})


HOST_HOOKS: dict[str, Any] = {
    "derive": lambda self, data: nt.metric("a", 1),
    "param_group": lambda self, path, leaf: nt.metric("a", 1),
    "no_decay": lambda self, path, leaf: nt.metric("a", 1),
    "metrics_residency": lambda self, hook: nt.metric("a", 1),
    "schedules": lambda self: {"learning_rate": nt.metric("a", 1)},
    "learning_rate": lambda self, group: nt.metric("a", 1),
    "optimizer": lambda self, group: nt.metric("a", 1),
    "seed": property(lambda self: nt.metric("a", 1)),
}


@pytest.mark.parametrize("hook", HOST_HOOKS)
def test_D03_guard_in_a_host_hook(hook: str) -> None:
    with pytest.raises(ContractError, match=code(19, "metric a", hook)):
        traced(lambda x, w: x * w, **{hook: HOST_HOOKS[hook]})


def test_D03_guard_in_presets() -> None:
    counted = classmethod(lambda cls: {"small": {"x": nt.metric("a", 1)}})
    made = experiment(lambda x, w: x * w, presets=counted)
    with pytest.raises(ContractError, match=code(19, "metric a", "presets")):
        nt.from_preset(type(made), "small")


def test_D03_guard_in_build_data() -> None:
    def build_data(self: Any) -> Any:
        nt.assert_finite("a", X)
        return {"train": [{"x": X}]}

    made = experiment(lambda x, w: x * w, build_data=build_data)
    with pytest.raises(ContractError, match=code(19, "assert_finite a", "build_data")):
        setup_of(made)


def test_D03_evaluated_while_tracing() -> None:
    def function(x: Any, w: Any) -> Any:
        with jax.ensure_compile_time_eval():
            nt.guard("a", jnp.arange(3).sum())
        return x * w

    with pytest.raises(ContractError, match=code(19, "guard a", "while tracing")):
        traced(function).objective()


def test_marks_in_a_hook_whose_diagnostics_never_run_are_dropped() -> None:
    def derive(self: Any, data: Any) -> Any:
        nt.diagnostic("rows", 6.0, below=3, side="left")
        return {}

    made = traced(lambda x, w: x * w, derive=derive)
    made.objective()
    (mark,) = made.dropped.values()
    assert (mark.key, mark.kind, mark.below) == ("rows{side=left}", "diagnostic", 3.0)
    assert made.marks == {}


def marked_curve(total: int) -> Any:
    return lambda step: nt.guard("a", 0) + 0.1


class Scheduled(nt.Experiment):
    schedules: Any = dataclasses.field(default_factory=lambda: {"learning_rate": marked_curve})

    def build_data(self) -> Any:
        return {"train": nt.data.arrays({"x": X}, 6)}

    def build_model(self, key: Any) -> Any:
        return UNMARKED

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return x * params["w"], state

    def loss(self, outputs: Any) -> Any:
        return jnp.sum(outputs)


def test_D03_guard_in_a_schedule(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=code(19, "guard a", "schedule learning_rate")):
        nt.build(Scheduled(), tmp_path / "bundle")
