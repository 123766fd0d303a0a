"""The first operation that is not finite, in the order of execution, through every region."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marking import X, arguments, traced
from tracing import constants_of, run

from nitro_dialect.ir import Function, Parameter
from nitro_dialect.types import F32, TensorType
from nitroc.emit.compat import resolve_compat
from nitroc.emit.mlir import artifact_of
from nitroc.frontend.harvest import NONE
from nitroc.frontend.importer import ImportedFunction
from nitroc.frontend.instrument import (
    HELD_INFINITE,
    HELD_NAN,
    INFINITE,
    NAN,
    Instrumented,
    instrument,
)
from nitroc.frontend.sites import Site

LINES = __file__.rpartition("/")[2]


class Look:
    """The gradient of a forward, with a look after each operation."""

    def __init__(self, function: Any, batch: Mapping[str, Any] | None = None, **hooks: Any) -> None:
        tracer = traced(function, batch=batch, **hooks)
        self.gradient = tracer.objective()[1]
        self.given = arguments(tracer, {"x": X, **(batch or {})}) | constants_of(self.gradient)
        self.made: Instrumented = instrument(self.gradient.function, self.gradient.serialized)
        self.imported = ImportedFunction(self.made.function, self.made.serialized, "")

    def __call__(self, x: Any, *, w: Any = None, ignored: tuple[int, ...] = ()) -> list[int]:
        numbers = self.made.numbers(ignored)
        given = self.given | {"x": np.asarray(x, np.float32), "numbers": numbers}
        if w is not None:
            given["params"] = [np.asarray(w, np.float32)]
        results = run(self.imported, given)
        plain = run(self.gradient, {n: v for n, v in given.items() if n != "numbers"})
        for one, other in zip(results, plain, strict=False):
            np.testing.assert_allclose(one, other, rtol=1e-6)
        return [-1 if number == NONE else number for number in results[-1].tolist()]

    def site(self, x: Any, entry: int = NAN, **given: Any) -> Site:
        number = self(x, **given)[entry]
        assert number >= 0
        return self.made.sites.at(number)


def line_of(text: str) -> int:
    """The line of this file that ends with that comment."""
    with open(__file__) as file:
        (found,) = [n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}")]
    return found


def is_at(site: Site, text: str) -> bool:
    return f"{LINES}:{line_of(text)}:" in (site.source or "")


ONES = np.ones(6, np.float32)


def test_a_finite_step_has_none() -> None:
    look = Look(lambda x, w: jnp.tanh(x * w))
    assert look(X) == [-1, -1, -1, -1]


def test_sqrt_at_zero_under_grad_is_an_infinity_and_then_a_nan() -> None:
    def forward(x: Any, w: Any) -> Any:
        return jnp.sqrt(x * w) * 0  # root

    look = Look(forward)
    zero = [0, 1, 1, 1, 1, 1]
    nan, infinite = look.site(zero), look.site(zero, INFINITE)
    assert is_at(nan, "root"), nan
    assert is_at(infinite, "root"), infinite
    assert (infinite.op, infinite.result) == ("divide", "f32[6]")
    assert "transpose(jvp(forward))" in nan.scope
    assert look(ONES) == [-1, -1, -1, -1]


def test_overflow_is_the_operation_that_made_it() -> None:
    def forward(x: Any, w: Any) -> Any:
        return jnp.exp(x) * 0.5 * w  # exp

    look = Look(forward)
    big = [1, 1, 1, 1, 1, 1000]
    assert look(big)[NAN] == -1
    site = look.site(big, INFINITE)
    assert (site.op, site.result) == ("exponential", "f32[6]")
    assert is_at(site, "exp")


def test_in_a_loop_an_earlier_iteration_comes_first_whatever_the_order_in_the_text() -> None:
    def forward(x: Any, w: Any) -> Any:
        def body(total: Any, i: Any) -> Any:
            early = jnp.log(jnp.where(i == 3, x - 2.0, 1.0))  # early in the text
            late = jnp.log(jnp.where(i == 2, x - 3.0, 1.0))  # late in the text
            return total + early + late, None

        total, _ = jax.lax.scan(body, jnp.zeros(6), jnp.arange(5))
        return total * w

    assert is_at(Look(forward).site(ONES), "late in the text")
    # values of 4 leave only the iteration that has none below
    look = Look(forward)
    assert look(ONES * 4) == [-1, -1, -1, -1]
    assert is_at(look.site(ONES * 3.5 - [0, 0, 0, 0, 0, 1]), "late in the text")


def test_a_loop_with_a_later_iteration_alone() -> None:
    def forward(x: Any, w: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            return total + jnp.sqrt(jnp.where(i == 2, -x, x))  # in iteration 2

        return jax.lax.fori_loop(0, 4, body, jnp.zeros(6)) * w

    site = Look(forward).site(ONES)
    assert site.op == "sqrt"
    assert is_at(site, "in iteration 2")


@pytest.mark.parametrize(("x", "where"), [(-ONES, "taken"), (ONES, None)])
def test_of_branches_the_one_taken(x: Any, where: str | None) -> None:
    def forward(x: Any, w: Any) -> Any:
        return (
            jax.lax.cond(
                x[0] < 0,
                lambda: jnp.log(x),  # taken
                lambda: x,
            )
            * w
        )

    look = Look(forward)
    if where is None:
        assert look(x) == [-1, -1, -1, -1]
    else:
        assert is_at(look.site(x), where)


def test_a_function_that_is_called_twice_is_named_by_its_call() -> None:
    def forward(x: Any, w: Any) -> Any:
        a = jnp.where(x > 0, x, jnp.float32(1))  # a first call
        b = jnp.where(x > 2, x, jnp.float32(jnp.nan))  # a second call
        return (a + b) * w

    site = Look(forward).site(ONES)
    assert site.op == "select"
    assert is_at(site, "a second call")


@jax.jit
def root(x: Any) -> Any:
    return jnp.sqrt(x)  # in a jitted function


def test_in_a_jitted_function_the_line_is_that_in_it() -> None:
    look = Look(lambda x, w: root(x) + root(x - 2) * w)
    site = look.site(ONES)
    assert is_at(site, "in a jitted function")
    both = look(-ONES)[NAN], look(ONES)[NAN]
    assert both[0] < both[1]  # two calls of one function


def attention(x: Any, w: Any) -> Any:
    scores = jnp.outer(x, x) * w
    mask = jnp.tril(jnp.ones((6, 6), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return weights @ jnp.log(x)  # values


def test_a_mask_of_minus_infinity_is_not_what_is_looked_for() -> None:
    look = Look(attention)
    assert look(ONES)[: INFINITE + 1] == [-1, -1]
    held = look.made.sites.at(look(ONES)[HELD_INFINITE])
    assert held.op == "select"
    site = look.site(ONES * [1, 1, 1, -1, 1, 1])
    assert (site.op, is_at(site, "values")) == ("log", True)


def test_a_row_that_is_masked_altogether() -> None:
    def forward(x: Any, w: Any) -> Any:
        scores = jnp.where(x > 0, jnp.outer(w, x), -jnp.inf)
        return jax.nn.softmax(scores)[:, 0]  # softmax

    site = Look(forward).site(-ONES)
    assert is_at(site, "softmax")
    assert site.op == "subtract"  # -inf - -inf


def test_a_literal_that_is_let_into_the_data() -> None:
    def forward(x: Any, w: Any) -> Any:
        return jnp.where(x > 2, jnp.nan, x) * w  # a literal

    look = Look(forward)
    site = look.site(ONES * 3)
    assert (site.op, is_at(site, "a literal")) == ("select", True)
    assert look(ONES) == [-1, -1, -1, -1]


def test_a_nan_that_was_there_before_is_no_operation_s() -> None:
    look = Look(lambda x, w: jnp.tanh(x * w))
    nan = [np.nan, 1, 1, 1, 1, 1]
    assert look(nan)[NAN] == -1
    assert look(nan)[HELD_NAN] >= 0
    assert look(ONES, w=nan)[NAN] == -1


def test_what_is_ignored_gives_way_to_the_next() -> None:
    def forward(x: Any, w: Any) -> Any:
        hidden = jnp.where(x > 0, jnp.log(x), 0)  # selected away
        return hidden + jnp.sqrt(x) * w  # and this

    look = Look(forward)
    (number, *_) = look(-ONES)
    assert is_at(look.made.sites.at(number), "selected away")
    assert is_at(look.site(-ONES, ignored=(number,)), "and this")


def test_the_parameter_that_is_read_and_the_gradient_that_is_made() -> None:
    def forward(x: Any, w: Any) -> Any:
        return x * w  # reads w

    look = Look(forward)
    names = [p.name for p in look.made.function.params]
    site = look.site([np.inf, 1, 1, 1, 1, 1], w=[0, 1, 1, 1, 1, 1])
    assert is_at(site, "reads w")
    assert names.index("params") in site.reads
    results = [r.name for r in look.made.function.results]
    makers = [look.made.sites.at(i) for i in range(look.made.sites.size)]
    assert any(results.index("grad") in maker.makes for maker in makers)


def test_parameters_of_a_scan_over_layers() -> None:
    def forward(x: Any, w: Any) -> Any:
        def body(h: Any, layer: Any) -> Any:
            return jnp.log(h * layer), None  # layers

        return jax.lax.scan(body, x, w)[0]

    look = Look(forward)
    makers = [look.made.sites.at(i) for i in range(look.made.sites.size)]
    reading = [s for s in makers if s.op == "multiply" and is_at(s, "layers") and s.reads]
    assert reading
    params = [p.name for p in look.made.function.params].index("params")
    assert any(params in s.reads for s in reading)
    grad = [r.name for r in look.made.function.results].index("grad")
    assert any(grad in s.makes for s in makers)
    assert look.site(ONES, w=-ONES).op == "log"


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.complex64])
def test_other_dtypes(dtype: Any) -> None:
    def forward(x: Any, w: Any) -> Any:
        y = x.astype(dtype)
        return jnp.real(y / (y - y)).astype(jnp.float32) * w  # a ratio

    site = Look(forward).site(X * 0)
    assert is_at(site, "a ratio")
    assert site.op == "divide"


def test_a_nan_in_many_elements() -> None:
    """Long reductions of maxima lose NaN on CPU; what looks for it does not."""

    def forward(x: Any, w: Any) -> Any:
        many = jnp.tile(x * 0 + 1, 20_000).at[77_777].set(-1.0)
        return jnp.max(jnp.sqrt(many)) + x * w  # in many

    assert is_at(Look(forward).site(ONES), "in many")


def test_reductions_and_sorts_are_one_operation_each() -> None:
    def forward(x: Any, w: Any) -> Any:
        huge = jnp.sum(x * 3e38)  # the sum
        return jnp.sort(x)[::-1] + jnp.argmax(x) + jax.lax.cumsum(w) + huge * w

    site = Look(forward).site(ONES, INFINITE)
    assert (site.op, is_at(site, "the sum")) == ("reduce", True)


def test_every_operation_of_a_gradient_has_its_line() -> None:
    def forward(x: Any, w: Any) -> Any:
        return jnp.tanh(x * w**2) / 3  # all of it

    look = Look(forward)
    there = [look.made.sites.at(i) for i in range(look.made.sites.size)]
    assert [
        site for site in there if "(forward)" in site.scope and not is_at(site, "all of it")
    ] == []


@jax.jit
def scaled(a: Any, b: Any) -> Any:
    return jnp.log(a * b)  # of both


def test_arguments_and_results_are_followed_through_calls() -> None:
    look = Look(lambda x, w: scaled(x, w) + scaled(x + 1, x))
    params = [p.name for p in look.made.function.params].index("params")
    grad = [r.name for r in look.made.function.results].index("grad")
    there = [look.made.sites.at(i) for i in range(look.made.sites.size)]
    products = [s for s in there if s.op == "multiply" and is_at(s, "of both")]
    forward = [s for s in products if "transpose" not in s.scope]
    # the first call has w, the second has not
    assert [params in site.reads for site in forward if site.reads] == [True, False]
    assert any(grad in site.makes for site in there)


SHARED = """
module @f {
  func.func private @f.total(%x: tensor<2xf32>) -> tensor<f32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
    return %sum : tensor<f32>
  }
  func.func private @f(%x: tensor<2xf32>) -> tensor<f32> {
    %limit = stablehlo.constant dense<1.0> : tensor<f32>
    %low = stablehlo.while(%c = %x) : tensor<2xf32>
    cond {
      %sum = func.call @f.total(%c) : (tensor<2xf32>) -> tensor<f32>
      %go = stablehlo.compare LT, %sum, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %next = stablehlo.negate %c : tensor<2xf32>
      stablehlo.return %next : tensor<2xf32>
    }
    %total = func.call @f.total(%low) : (tensor<2xf32>) -> tensor<f32>
    %log = stablehlo.log %total : tensor<f32>
    return %log : tensor<f32>
  }
}
"""


def test_a_function_that_a_condition_calls_is_one_operation_elsewhere_too() -> None:
    x = TensorType("f32", (2,))
    function = Function("f", (Parameter("x", x),), (Parameter("y", F32),), "")
    made = instrument(function, artifact_of(SHARED, resolve_compat()))
    imported = ImportedFunction(made.function, made.serialized, "")
    there = [made.sites.at(i).op for i in range(made.sites.size)]
    assert there == ["negate", "call of total", "log"]

    def first(*values: float) -> list[int]:
        given = {"x": np.array(values, np.float32), "numbers": made.numbers()}
        return run(imported, given)[-1].tolist()

    assert first(1, 1) == [NONE] * 4
    assert first(3e38, 3e38)[INFINITE] == 1
    assert first(-3e38, -3e38)[INFINITE] == 1
