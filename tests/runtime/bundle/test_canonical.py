"""Canonical JSON: one text per value, and nothing read that has none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_runtime.canonical import MAX_DEPTH, CanonicalError, digest, dump, identity, parse

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab-é", max_size=3), inner),
    max_leaves=12,
)


@given(VALUES)
def test_reading_is_the_inverse_of_writing(value: object) -> None:
    text = dump(value)
    assert parse(text) == value
    assert dump(parse(text)) == text


def test_order_of_keys_does_not_matter() -> None:
    assert dump({"b": 1, "a": {"d": 2, "c": 3}}) == dump({"a": {"c": 3, "d": 2}, "b": 1})
    assert dump({"a": 1}) == b'{\n "a": 1\n}\n'


def test_identity_leaves_out_the_digest() -> None:
    plain = {"a": 1, "digest": "x"}
    assert identity(plain) == identity({"a": 1}) == digest(dump({"a": 1}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xff{}", "not UTF-8"),
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b'{"a": 1, "a": 1}', "duplicate key 'a'"),
        (b'{"a": {"b": 1, "b": 2}}', "duplicate key 'b'"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"[1e999]", "too large"),
        (b'["\\ud800"]', "not Unicode"),
        (b'{"\\udfff": 1}', "not Unicode"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" * 5000 + b"]" * 5000, "deeper"),
        (b"[" * 10**6, "deeper"),
        (b"9" * 5000, "not JSON"),
    ],
)
def test_refused_texts(text: bytes, said: str) -> None:
    with pytest.raises(CanonicalError, match=said):
        parse(text)


def test_depth_bound_is_exact() -> None:
    nested = json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert parse(dump(nested)) == nested
    with pytest.raises(CanonicalError, match="deeper"):
        parse(dump([nested, [nested]]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, "\ud800"])
def test_values_without_a_canonical_form(value: object) -> None:
    with pytest.raises(CanonicalError):
        dump([value])
