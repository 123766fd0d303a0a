"""Schemas of splits: narrowing, layouts, and batches that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nitro_runtime.data.schema import (
    Schema,
    as_numeric,
    conform,
    describe,
    look,
    make_schema,
    narrow,
)
from nitro_runtime.errors import DataError


def refused(code: str, call: Callable[[], object]) -> DataError:
    with pytest.raises(DataError) as caught:
        call()
    assert caught.value.code == code, str(caught.value)
    return caught.value


def batch(rows: int = 4, **fields: Any) -> dict[str, Any]:
    return {"x": np.ones((rows, 3), np.float32), "y": np.arange(rows), **fields}


def schema_of(*batches: dict[str, Any], names: tuple[str, ...] = ("x", "y")) -> Schema:
    return make_schema(look(list(batches), "train", 0), names)


def test_schema() -> None:
    schema = schema_of(batch(id=list("abcd")), batch(2))
    assert {name: str(spec) for name, spec in schema.fields.items()} == {"x": "f32[3]", "y": "i32"}
    assert (schema.width, schema.last, schema.batches) == (4, 2, 2)
    assert schema.unrouted == {"id": "list of str"}
    assert schema.fields["y"].narrowed
    assert not schema.fields["x"].narrowed


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("<f8", np.float32),
        (">f8", np.float32),
        (">f4", np.float32),
        ("<i8", np.int32),
        (">i2", np.int16),
        ("<u8", np.uint32),
        ("<u1", np.uint8),
        ("?", np.bool_),
        ("<c16", np.complex64),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    ],
)
def test_narrowing(dtype: Any, expected: Any) -> None:
    found = narrow(np.array([[0, 1], [1, 0]]).astype(dtype))
    assert found.dtype == np.dtype(expected)
    assert found.dtype.isnative
    assert found.flags.c_contiguous
    assert found.astype(complex).real.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (2**31 - 1, True),
        (-(2**31), True),
        (2**31, False),
        (-(2**31) - 1, False),
        (np.uint64(2**32 - 1), True),
        (np.uint64(2**32), False),
        (1e38, True),
        (1e39, False),
        (-1e39, False),
        (float("inf"), True),
        (float("nan"), True),
        (1e-60, True),
        (complex(0, 1e39), False),
    ],
)
def test_only_values_that_fit(value: Any, fits: bool) -> None:
    array = np.array([0, value], dtype=np.asarray(value).dtype)
    if fits:
        assert narrow(array).shape == (2,)
    else:
        error = refused("E-DATA-004", lambda: narrow(array, field="x"))
        assert "'x'" in error.what
        assert str(np.asarray(value)) in error.what


@given(hnp.arrays(np.int64, st.integers(0, 8), elements=st.integers(-(2**40), 2**40)))
def test_narrowed_integers_are_equal_or_refused(array: Any) -> None:
    try:
        assert narrow(array).tolist() == array.tolist()
    except DataError:
        assert ((array >= 2**31) | (array < -(2**31))).any()


def test_rank_is_kept() -> None:
    assert narrow(np.array(3, ">i8")).shape == ()


@pytest.mark.parametrize(
    ("value", "numeric", "said"),
    [
        (np.zeros((2, 3)), True, "f64[2,3]"),
        ([1, 2], True, "i64[2]"),
        (["a", "b"], False, "list of str"),
        ([[1], [2, 3]], False, "list of list"),
        (np.array(["a"]), False, "dtype <U1"),
        (np.array([None]), False, "dtype object"),
        (np.array(["2020-01-01"], "M8[D]"), False, "dtype datetime64[D]"),
        (None, False, "None"),
        ("text", False, "str"),
        ({"a": 1}, False, "dict"),
    ],
)
def test_what_is_numeric(value: Any, numeric: bool, said: str) -> None:
    assert (as_numeric(value) is not None) is numeric
    assert describe(value) == said


def test_conform_gives_the_routed_fields_only() -> None:
    schema = schema_of(batch())
    found = conform(batch(2, extra=3), schema, "train", 1)
    assert set(found) == {"x", "y"}
    assert found["y"].dtype == np.int32


@pytest.mark.parametrize(
    ("other", "code", "says"),
    [
        ({"x": np.ones((4, 3), np.float32)}, "E-DATA-005", "'y' is missing"),
        (batch(x=np.ones((4, 5), np.float32)), "E-DATA-005", "f32[5] per row, expected f32[3]"),
        (batch(x=np.ones((4, 3), np.float16)), "E-DATA-005", "f16[3] per row, expected f32[3]"),
        (batch(y=np.ones((4, 2), np.int32)), "E-DATA-005", "i32[2] per row, expected i32"),
        (batch(5), "E-DATA-005", "5 rows, the first had 4"),
        (batch(y=np.arange(3)), "E-DATA-006", "x 4, y 3"),
        (batch(y=np.array(["a"] * 4)), "E-DATA-003", "dtype <U1"),
        (batch(y=[1, None, 2, 3]), "E-DATA-003", "list of NoneType and int"),
        (batch(y=np.int64(3)), "E-DATA-007", "no batch axis"),
        (batch(y=np.array([0, 0, 0, 2**40])), "E-DATA-004", str(2**40)),
    ],
)
def test_a_batch_that_differs(other: dict[str, Any], code: str, says: str) -> None:
    error = refused(code, lambda: conform(other, schema_of(batch()), "train", 7))
    assert says in error.what
    assert error.where is not None
    assert "split 'train', batch 7" in error.where
    assert error.exit == 1


def test_f64_where_the_first_was_f32_is_the_same_program() -> None:
    found = conform(batch(x=np.ones((4, 3))), schema_of(batch()), "train", 1)
    assert found["x"].dtype == np.float32


@pytest.mark.parametrize("name", ["train", "key", "self"])
def test_reserved_names(name: str) -> None:
    error = refused("E-DATA-002", lambda: look([batch(**{name: 1})], "train", 0))
    assert name in error.what
    assert error.exit == 3


def test_no_rows() -> None:
    refused("E-DATA-039", lambda: schema_of(batch(0)))


def test_only_routed_fields_decide_the_rows() -> None:
    schema = schema_of({"names": list("abcdefg"), **batch()}, names=("x",))
    assert schema.width == 4
