"""Content keys, conversion to declared types, values read from text."""

from __future__ import annotations

import copy
import enum
import math
import pathlib
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitroc.frontend.values import (
    NotContent,
    Unconvertible,
    content_key,
    convert,
    is_scalar_type,
    read_value,
)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    ONE = 1


@dataclass(frozen=True)
class Block:
    width: int
    rate: float = 0.0


@dataclass(frozen=True)
class Loose:
    sizes: list[int]


@dataclass
class Mutable:
    width: int


class Identity:
    pass


DISTINCT: list[Any] = [
    1,
    True,
    1.0,
    1 + 0j,
    "1",
    b"1",
    np.float32(1),
    np.float64(1),
    np.int32(1),
    Level.ONE,
    0.0,
    -0.0,
    0,
    False,
    None,
    math.nan,
    (1,),
    [1],
    {1},
    frozenset({1}),
    {"a": 1},
    {"a": True},
    (1.0,),
    np.zeros(2, np.float32),
    -np.zeros(2, np.float32),
    np.zeros((2, 1), np.float32),
    np.zeros(2, ml_dtypes.bfloat16),
    Block(1),
    Block(True),
    Block(1, -0.0),
    Color.RED,
    Color.BLUE,
    math.sin,
    int,
    np.dtype("f4"),
]


def test_keys_are_by_type_and_bits() -> None:
    keys = [content_key(value) for value in DISTINCT]
    assert len(set(keys)) == len(DISTINCT)
    assert [content_key(copy.deepcopy(value)) for value in DISTINCT] == keys


def test_a_nan_equals_itself_only() -> None:
    other = math.nan * -1
    assert content_key(math.nan) == content_key(float("nan"))
    assert content_key(math.nan) != content_key(1.0)
    assert content_key((other,)) == content_key((other,))


def test_a_mutated_list_has_another_key() -> None:
    sizes = [1, 2]
    before = content_key(sizes)
    sizes.append(3)
    assert content_key(sizes) != before


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
nested = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(nested, nested)
def test_equal_keys_mean_equal_values(a: Any, b: Any) -> None:
    assert content_key(copy.deepcopy(a)) == content_key(a)
    if content_key(a) == content_key(b):
        assert repr(a) == repr(b)


@pytest.mark.parametrize("value", [Loose([1]), Mutable(1), Identity(), np.array([None])])
def test_values_without_content(value: Any) -> None:
    with pytest.raises(NotContent):
        content_key(value)


@pytest.mark.parametrize(
    ("value", "declared", "expected"),
    [
        (True, int, 1),
        (2.0, int, 2),
        (3, float, 3.0),
        (np.float32(0.5), float, 0.5),
        (np.array(4), int, 4),
        (1, bool, True),
        ([1, 2.0], tuple[int, ...], (1, 2)),
        ((1, "a"), tuple[int, str], (1, "a")),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        (None, int | None, None),
        (1, float | int, 1),
        ("auto", int | Literal["auto"], "auto"),
        ("a/b", pathlib.Path, pathlib.Path("a/b")),
        (Color.RED, Color, Color.RED),
        ([1], Any, [1]),
        ("x", "Unresolved", "x"),
    ],
)
def test_convert(value: Any, declared: Any, expected: Any) -> None:
    found = convert(value, declared)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (1.5, int),
        ("1", int),
        (2, bool),
        (None, float),
        (1j, float),
        ((1, 2, 3), tuple[int, int]),
        (3, Literal[1, 2]),
        (True, Literal[1, 2]),
        ("RED", Color),
        ([1], int | None),
    ],
)
def test_unconvertible(value: Any, declared: Any) -> None:
    with pytest.raises(Unconvertible, match="expected"):
        convert(value, declared)


@pytest.mark.parametrize(
    ("text", "declared", "expected"),
    [
        ("12", int, 12),
        ("1e3", int, 1000),
        ("0x10", int, 16),
        ("1e-3", float, 1e-3),
        ("true", bool, True),
        ("False", bool, False),
        ("relu", str, "relu"),
        ("none", str, "none"),
        ("none", str | None, None),
        ("relu", str | None, "relu"),
        ("[1, 2]", tuple[int, ...], (1, 2)),
        ('{"a": 1}', dict[str, float], {"a": 1.0}),
        ("RED", Color, Color.RED),
        ("2", Literal[1, 2], 2),
        ("auto", int | Literal["auto"], "auto"),
        ("3", int | Literal["auto"], 3),
        ("[1]", Any, [1]),
        ("word", Any, "word"),
        ("none", Any, None),
    ],
)
def test_read_value(text: str, declared: Any, expected: Any) -> None:
    found = convert(read_value(text, declared), declared)
    assert found == expected
    assert type(found) is type(expected)


def test_read_array() -> None:
    found = read_value("[[1, 2], [3, 4]]", np.ndarray)
    assert found.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "declared"),
    [("x", int), ("1.5", int), ("nan", int), ("yes", bool), ("GREEN", Color), ("[1", tuple[int])],
)
def test_unreadable(text: str, declared: Any) -> None:
    with pytest.raises(Unconvertible):
        read_value(text, declared)


def test_scalar_types() -> None:
    assert all(map(is_scalar_type, (int, str, bool, float | None, Literal["a"], Color)))
    assert not any(map(is_scalar_type, (list[int], tuple[int, ...], object, Any, "Dataset")))
