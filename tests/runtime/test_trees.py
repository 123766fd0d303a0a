"""Key paths are injective; specs rebuild what they were made from."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_runtime.trees import (
    Attr,
    IntKey,
    TreeSpec,
    decode_path,
    encode_path,
    flatten,
    unflatten,
)

KEYS = st.one_of(
    st.text(max_size=6),
    st.integers(0, 10**6),
    st.integers(-(10**6), 10**6).map(IntKey),
    st.text(min_size=1, max_size=6).map(Attr),
)
PATHS = st.lists(KEYS, max_size=5).map(tuple)


@given(PATHS)
def test_paths_decode_to_what_was_encoded(path: tuple[Any, ...]) -> None:
    text = encode_path(path)
    assert decode_path(text) == path
    assert text.isascii()
    assert not set(text) & set("/{}: ")


@given(PATHS, PATHS)
def test_two_paths_have_two_names(a: tuple[Any, ...], b: tuple[Any, ...]) -> None:
    assert (encode_path(a) == encode_path(b)) == (a == b)


def test_common_paths_read_as_people_expect() -> None:
    assert encode_path(("dense_0", "kernel")) == "dense_0.kernel"
    assert encode_path(("blocks", 3, Attr("w"))) == "blocks.#3.@w"
    assert encode_path(("a.b", IntKey(-2), "")) == "a%2Eb.#k-2.%"
    assert encode_path(()) == "@"


@pytest.mark.parametrize("text", ["", "a..b", "#", "#01", "#k", "a%2e", "a%zz", "@@", "%41", "a b"])
def test_foreign_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="key path"):
        decode_path(text)


@pytest.mark.parametrize("key", [True, -1, 1.5, None, Attr("")])
def test_foreign_keys_are_refused(key: Any) -> None:
    with pytest.raises(TypeError):
        encode_path((key,))


class Pair(NamedTuple):
    mean: Any
    spread: Any


TREES = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), inner, max_size=3),
        st.tuples(inner, inner).map(lambda p: Pair(*p)),
    ),
    max_leaves=8,
)


@given(TREES)
def test_specs_rebuild_the_container(tree: Any) -> None:
    spec, leaves = flatten(tree)
    again = TreeSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert spec.leaves() == tuple(leaves)
    assert unflatten(again, leaves) == tree


def test_a_named_tuple_keeps_its_fields() -> None:
    spec, leaves = flatten({"out": Pair(1.0, [2.0])})
    assert list(leaves) == ["out.@mean", "out.@spread.#0"]
    assert unflatten(spec, leaves)["out"].spread == [2.0]


def test_a_foreign_spec_is_refused() -> None:
    with pytest.raises(ValueError, match="not the spec"):
        TreeSpec.from_json({"set": []})
