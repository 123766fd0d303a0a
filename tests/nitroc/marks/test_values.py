"""What each form of mark makes of its values: in programs, and the same on numpy."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from marking import X, arguments, traced, words

import nitroc as nt
from nitro_dialect.marks import MOST
from nitro_runtime import places
from nitro_runtime.places import Found, Kind, Place

COUNTS: dict[str, tuple[Any, int, int]] = {
    "zero": (np.float32(0), 0, 0),
    "negative_zero": (np.float32(-0.0), 0, 0),
    "whole": (np.float32(3), 3, 0),
    "fraction": (np.float32(0.001), 1, 0),
    "rounded_up": (np.float32(2.25), 3, 0),
    "nan": (np.float32(np.nan), 1, 3),
    "infinite": (np.float32(np.inf), 1, 2),
    "negative_infinite": (np.float32(-np.inf), 1, 2),
    "negative": (np.float32(-7), 1, 1),
    "negative_fraction": (np.float32(-0.5), 1, 1),
    "bf16": (ml_dtypes.bfloat16(2.5), 3, 0),
    "bf16_nan": (ml_dtypes.bfloat16(np.nan), 1, 3),
    "f16_infinite": (np.float16(np.inf), 1, 2),
    "i32": (np.int32(16_777_217), 16_777_217, 0),
    "i32_negative": (np.int32(-5), 1, 1),
    "i8": (np.int8(100), 100, 0),
    "ui8": (np.uint8(200), 200, 0),
    "most": (np.float32(3e38), int(MOST), 0),
    "ui32": (np.uint32(2**32 - 1), 2**32 - 1, 0),
}
WIDE: dict[str, tuple[Any, int, int]] = {
    "i64": (np.int64(2**40), 2**40, 0),
    "ui64": (np.uint64(2**32), 2**32, 0),
    "python": (2**33, 2**33, 0),
    "i64_negative": (np.int64(-(2**40)), 1, 1),
}
"""Numbers that jax would wrap into 32 bits; two of them to zero."""

BOUNDS: dict[str, tuple[float, float | None, float | None, int]] = {
    "inside": (5.0, 6, 4, 0),
    "at_below": (6.0, 6, None, 1),
    "at_above": (4.0, None, 4, 1),
    "as_written": (0.1, 0.1, None, 1),
    "above_as_written": (0.1, None, 0.1, 1),
    "nan_keeps_none": (math.nan, 6, 4, 2),
    "nan_keeps_no_infinity": (math.nan, math.inf, None, 1),
    "infinite": (math.inf, math.inf, None, 1),
    "beyond_f32": (3.0, 1e300, -1e300, 0),
    "both_broken": (5.0, 4, 6, 2),
}


def test_D03_counts_and_D02_bounds_in_a_program() -> None:
    def function(x: Any, w: Any) -> Any:
        one = x[1]
        for name, (value, _, _) in COUNTS.items():
            dtype = np.asarray(value).dtype
            nt.guard(name, jnp.asarray(value) * one.astype(dtype))
        for name, (value, _, _) in WIDE.items():
            nt.guard(f"wide/{name}", value)
        nt.metric("wide", 2**40, below=2.0**39)
        for name, (value, below, above, _) in BOUNDS.items():
            nt.metric(f"bound/{name}", value * one, below=below, above=above)
        return x * w

    made = traced(function)
    got = words(made.forward(6), arguments(made, {"x": X}))
    for name, (value, count, odd) in COUNTS.items():
        assert got[f"{name}:count"] == count, name
        unsigned = np.asarray(value).dtype.kind == "u"
        assert got.get(f"{name}:odd") == (None if unsigned else odd), name
    for name, (_, count, odd) in WIDE.items():
        assert (got[f"wide/{name}:count"], got[f"wide/{name}:odd"]) == (count, odd), name
    assert (got["wide:sum"], got["wide:count"]) == (2**40, 1)
    for name, (value, _, _, count) in BOUNDS.items():
        assert got[f"bound/{name}:count"] == count, name
        np.testing.assert_equal(got[f"bound/{name}:sum"], float(np.float32(value)))
        assert got[f"bound/{name}:n"] == 1


def evaluated(call: Any) -> list[Found]:
    with places.running(Place("metrics", Kind.NUMPY, root=None)) as place:
        call()
    return place.collected


def test_the_sum_of_the_largest_counts_is_not_zero() -> None:
    """Four counts of 2**62 would be 0 in an i64, and the guard would pass: so would powers of 2."""

    def function(x: Any, w: Any) -> Any:
        jax.lax.scan(lambda c, _: (nt.guard("a", c), None), x[1] * 3e38, None, length=4)
        jax.vmap(lambda _: nt.guard("b", x[1] * 3e38))(jnp.arange(4))
        return x * w

    made = traced(function)
    got = words(made.forward(6), arguments(made, {"x": X}))
    assert got["a:count"] == got["b:count"] == 4 * int(MOST)
    assert int(MOST) * 2**32 % 2**64 != 0


@pytest.mark.parametrize("name", [*COUNTS, *WIDE])
def test_D03_counts_on_numpy(name: str) -> None:
    value, count, odd = (COUNTS | WIDE)[name]
    (found,) = evaluated(lambda: nt.guard(name, value, layer=3))
    assert (found.kind, found.name, found.meta) == ("guard", name, (("layer", 3),))
    assert (found.count, found.odd, found.value) == (count, odd, None)
    assert found.source.startswith("tests/nitroc/marks/test_values.py:") or found.source.startswith(
        "test_values.py:"
    )


@pytest.mark.parametrize("name", BOUNDS)
def test_D02_bounds_on_numpy(name: str) -> None:
    value, below, above, count = BOUNDS[name]
    (found,) = evaluated(lambda: nt.metric(name, value, below=below, above=above))
    assert (found.count, found.odd, found.below, found.above) == (count, 0, below, above)
    np.testing.assert_equal(found.value, value)


def test_a_bound_that_no_float_holds_is_infinite() -> None:
    (found,) = evaluated(lambda: nt.metric("a", 3.0, below=10**400, above=-(10**400)))
    assert (found.count, found.below, found.above) == (0, math.inf, -math.inf)


def test_other_marks_on_numpy() -> None:
    tree = {"a": np.array([1, np.nan, np.inf]), "n": np.arange(3), "big": np.array([1e300])}

    def hook() -> None:
        assert nt.assert_finite("finite", tree) is tree
        nt.class_index(np.array([0, 3, -1]), 3)
        nt.diagnostic("never", 3.0)
        nt.guard("mask", nt.count_where(np.array([True, False])))

    counts = {}
    for found in evaluated(hook):
        counts[found.name] = counts.get(found.name, 0) + found.count
    assert counts == {"finite": 3, "class_index": 2, "mask": 1}


def test_a_jitted_function_of_a_host_hook_can_hold_no_mark() -> None:
    with pytest.raises(nt.NitroError, match=r"E-CONTRACT-019.*metrics runs on the host"):
        evaluated(lambda: jax.jit(lambda x: nt.guard("a", x))(1.0))


LANES = 5000
"""More than the lanes from which XLA's reductions on CPU may lose a NaN."""


def test_diagnostics_reduce_over_lanes_and_iterations() -> None:
    def function(x: Any, w: Any) -> Any:
        def lane(v: Any) -> Any:
            for reduce in ("mean", "sum", "max", "min"):
                nt.diagnostic(reduce, v, reduce=reduce)
                nt.diagnostic(f"nan/{reduce}", jnp.where(v == 7, jnp.nan, v), reduce=reduce)
            return v

        jax.vmap(lane)(jnp.arange(LANES, dtype=jnp.float32) + x[0])
        jax.lax.scan(lambda c, y: (nt.diagnostic("scan", y, reduce="min") + c, None), 0.0, x - 4)
        jax.lax.cond(x[0] > 0, lambda: nt.diagnostic("never", 1.0, reduce="max"), lambda: 1.0)
        return x * w

    made = traced(function)
    made.objective()
    pair = made.sampled()
    assert pair is not None
    got = words(pair[1], arguments(made, {"x": X}))
    total = LANES * (LANES - 1) / 2
    for name in ("mean", "sum"):
        assert got[f"{name}:sum"] == pytest.approx(total)
        assert got[f"{name}:n"] == LANES
        assert math.isnan(got[f"nan/{name}:sum"])
    assert (got["max:max"], got["min:min"]) == (LANES - 1, 0)
    assert math.isnan(got["nan/max:max"])
    assert math.isnan(got["nan/min:min"])
    assert (got["scan:min"], got["scan:n"]) == (-4, 6)
    assert (got["never:max"], got["never:n"]) == (-math.inf, 0)


def test_finite_counts_in_f32_what_narrow_types_hold() -> None:
    def function(x: Any, w: Any) -> Any:
        tree = {
            "bf16": x.astype(jnp.bfloat16) * jnp.bfloat16(jnp.inf),
            "complex": x[:2] * (jnp.inf + 1j),
            "f8": jnp.full((2, 3), jnp.nan, jnp.float8_e4m3fn),
            "integers": jnp.arange(3),
            "number": 1.0,
            "none": None,
        }
        nt.assert_finite("tree", tree, part="a")
        many = jnp.full(70_000, jnp.inf, jnp.bfloat16) * x[1].astype(jnp.bfloat16)
        nt.assert_finite("many", many)
        nt.class_index(x.astype(jnp.int32), 4)
        nt.guard("where", nt.count_where(x > 3))
        return x * w

    made = traced(function)
    got = words(made.forward(6), arguments(made, {"x": X}))
    # 0 times infinity is NaN
    assert got["tree{part=a}:count"] == 6 + 2 + 6
    assert got["many:count"] == 70_000
    assert got["class_index{num_classes=4}:count"] == 2
    assert "class_index{num_classes=4}:odd" not in got
    assert (got["where:count"], got["where:odd"]) == (2, 0)


def test_marks_return_what_they_were_given() -> None:
    count, value, tree = np.float32(1), jnp.float32(2), {"x": [jnp.ones(2), None, 3, "text"]}
    assert nt.guard("a", count) is count
    assert nt.metric("a", value, below=1) is value
    assert nt.diagnostic("b", value, reduce="sum") is value
    assert nt.assert_finite("a", tree) is tree
    assert nt.tap_gradient(tree, print) is tree
    assert nt.class_index(value.astype(int), 3).dtype == jnp.int32
    assert nt.count_where(np.array([True, True])) == 2.0
    counted = nt.count_where(jnp.arange(4) > 1)
    assert (counted.dtype, counted.shape, float(counted)) == (jnp.float32, (), 2.0)
    assert nt.count_where([True, False, True]) == 2.0
