"""Sums of a pass lose nothing a batch had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_runtime.errors import DataError
from nitro_runtime.metrics import Accumulator, Concat, Max, Min


def test_sums_add_up_in_f64_and_counts_in_i64() -> None:
    total = Accumulator("val")
    for _ in range(3):
        total.add_host({"a": (np.float32(2**24), 1), "n": (np.int32(2**31 - 1), None)})
    total.add_host({"a": (np.float32(1), 1)})
    values, empty = total.reduced()
    assert values == {"a": (3 * 2**24 + 1) / 4, "n": 3 * (2**31 - 1)}
    assert empty == []


def test_a_nan_is_never_averaged_away() -> None:
    total = Accumulator("val")
    total.add_host({"a": (float("nan"), 1), "m": Max(float("nan"))})
    total.add_host({"a": (1.0, 1), "m": Max(3.0)})
    values, _ = total.reduced()
    assert np.isnan(values["a"])
    assert np.isnan(values["m"])


def test_array_sums_and_rows_keep_their_shape() -> None:
    total = Accumulator("val")
    for i in range(2):
        total.add_host({"c": (np.full((2, 2), i), None), "r": Concat(np.full((i + 1, 2), i))})
    values, _ = total.reduced()
    np.testing.assert_array_equal(values["c"], np.ones((2, 2)))
    assert values["r"].shape == (3, 2)


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        "a",
        (1, 2, 3),
        None,
        ("a", 1),
        (None, 1),
        (1j, 1),
        Max([[1], [2, 3]]),
        Concat(3.0),
    ],
)
def test_another_value_is_named(value: object) -> None:
    with pytest.raises(DataError, match="metric g/a of split val"):
        Accumulator("val").add_host({"g": {"a": value}})


@pytest.mark.parametrize("value", [[1], None, 3.0])
def test_what_is_no_dict_of_metrics_is_named(value: object) -> None:
    with pytest.raises(DataError, match="E-DATA-067: `metrics` gave for split val"):
        Accumulator("val").add_host(value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1.0, None), (1.0, 2)),
        ((1.0, 2), (1.0, None)),
        (Max(3.0), (5.0, 1)),
        (Max(3.0), Min(3.0)),
        ((np.ones(2), 1), (np.ones(3), 1)),
        (Concat(np.ones((2, 2))), Concat(np.ones((2, 3)))),
    ],
)
def test_a_metric_that_changes_its_kind_is_named(first: object, second: object) -> None:
    total = Accumulator("val")
    total.add_host({"a": first})
    with pytest.raises(DataError, match=r"metric a of split val.*in an earlier batch"):
        total.add_host({"a": second})


@pytest.mark.parametrize("kind", [Max, Concat, lambda x: (x, 1), lambda x: [1.0, x]])
def test_a_device_array_is_refused_by_name_wherever_it_is(kind: Callable[[Any], object]) -> None:
    with pytest.raises(DataError, match="E-DATA-068: metric g/a of split val"):
        Accumulator("val").add_host({"g": {"a": kind(jnp.ones(2))}})
