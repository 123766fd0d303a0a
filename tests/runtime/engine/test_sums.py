"""Sums of a pass lose nothing a batch had."""

from __future__ import annotations

import numpy as np
import pytest

from nitro_runtime.errors import DataError
from nitro_runtime.metrics import Accumulator, Concat, Max


def test_sums_add_up_in_f64_and_counts_in_i64() -> None:
    total = Accumulator()
    for _ in range(3):
        total.add_host({"a": (np.float32(2**24), 1), "n": (np.int32(2**31 - 1), None)}, "val")
    total.add_host({"a": (np.float32(1), 1)}, "val")
    values, empty = total.reduced()
    assert values == {"a": (3 * 2**24 + 1) / 4, "n": 3 * (2**31 - 1)}
    assert empty == []


def test_a_nan_is_never_averaged_away() -> None:
    total = Accumulator()
    total.add_host({"a": (float("nan"), 1), "m": Max(float("nan"))}, "val")
    total.add_host({"a": (1.0, 1), "m": Max(3.0)}, "val")
    values, _ = total.reduced()
    assert np.isnan(values["a"])
    assert np.isnan(values["m"])


def test_array_sums_and_rows_keep_their_shape() -> None:
    total = Accumulator()
    for i in range(2):
        total.add_host({"c": (np.full((2, 2), i), None), "r": Concat(np.full((i + 1, 2), i))}, "v")
    values, _ = total.reduced()
    np.testing.assert_array_equal(values["c"], np.ones((2, 2)))
    assert values["r"].shape == (3, 2)


@pytest.mark.parametrize("value", [1.0, "a", (1, 2, 3), None])
def test_another_value_is_named(value: object) -> None:
    with pytest.raises(DataError, match="metric g/a of split val"):
        Accumulator().add_host({"g": {"a": value}}, "val")
