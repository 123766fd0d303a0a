"""Params and state to group tables."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from nitroc.errors import HookError
from nitroc.frontend.groups import Groups, default_no_decay, make_groups


def groups_of(params: Any, state: Any = (), no_decay: Any = None) -> Groups:
    return make_groups(params, state, no_decay, "exp.py:7")


def test_leaves_are_named_by_their_key_path() -> None:
    groups = groups_of({"dense_0": {"kernel": np.ones((2, 3)), "b.c": [np.ones(3), 1.5]}})
    assert [(leaf.path, leaf.dtype, leaf.shape) for leaf in groups.params.leaves] == [
        ("dense_0.b%2Ec.#0", "f32", (3,)),
        ("dense_0.b%2Ec.#1", "f32", ()),
        ("dense_0.kernel", "f32", (2, 3)),
    ]
    assert groups.params.role == "param"
    assert groups.state.leaves == ()
    assert "params leaf dense_0.kernel: float64 stored as float32" in groups.notes


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    kernel: Any
    bias: Any


def test_trees_are_rebuilt_with_their_containers() -> None:
    params = {3: Layer(np.ones((2, 2)), np.zeros(2)), 4: (None, [np.float32(2)])}
    groups = groups_of(params)
    assert [leaf.path for leaf in groups.params.leaves] == [
        "#k3.@kernel",
        "#k3.@bias",
        "#k4.#1.#0",
    ]
    leaves = [groups.initial[f"param/{leaf.path}"] for leaf in groups.params.leaves]
    again = groups.params_tree(leaves)
    assert isinstance(again[3], Layer)
    assert again[4][0] is None
    np.testing.assert_array_equal(again[3].kernel, np.ones((2, 2)))


@pytest.mark.parametrize(
    "leaf",
    [np.arange(3), np.array([True]), np.array([1j]), 3, True, jax.random.key(0)],
    ids=["int", "bool", "complex", "python int", "python bool", "key"],
)
def test_A20_untrainable_leaf_of_params_points_at_state(leaf: Any) -> None:
    with pytest.raises(HookError, match="E-HOOK-067") as raised:
        groups_of({"w": np.ones(2), "steps": leaf})
    assert "params leaf steps" in raised.value.what
    assert "`state`" in str(raised.value.help)
    assert raised.value.where == "exp.py:7"


@pytest.mark.parametrize("params", [{}, (), None, {"a": []}])
def test_A20_no_trainable_leaf(params: Any) -> None:
    with pytest.raises(HookError, match="E-HOOK-068"):
        groups_of(params)


def test_A20_typed_key_in_state_is_words_and_a_key_again() -> None:
    key = jax.random.key(7)
    many = jax.random.split(jax.random.key(1, impl="rbg"), 3)
    groups = groups_of({"w": np.ones(2)}, {"rng": key, "many": many, "n": 1})
    assert [(leaf.path, leaf.dtype, leaf.shape, leaf.flags) for leaf in groups.state.leaves] == [
        ("many", "ui32", (3, 4), {"key:rbg"}),
        ("n", "i32", (), frozenset()),
        ("rng", "ui32", (2,), {"key:threefry2x32"}),
    ]
    np.testing.assert_array_equal(groups.initial["state/rng"], jax.random.key_data(key))
    words = [groups.initial[f"state/{leaf.path}"] for leaf in groups.state.leaves]
    state = groups.state_tree(words)
    assert jax.random.uniform(state["rng"]) == jax.random.uniform(key)
    assert state["many"].dtype == many.dtype


@pytest.mark.parametrize("leaf", ["adam", jnp.tanh, np.array(["a"]), np.array([{}], object)])
def test_state_leaf_that_is_no_array(leaf: Any) -> None:
    with pytest.raises(HookError, match=r"E-HOOK-069.*state leaf name"):
        groups_of({"w": np.ones(2)}, {"name": leaf})


def test_wide_integers_are_narrowed_only_when_they_fit() -> None:
    groups = groups_of({"w": np.ones(2)}, {"n": np.array([1, 2**31 - 1])})
    assert groups.state.leaves[0].dtype == "i32"
    with pytest.raises(HookError, match=r"E-HOOK-071.*4294967296"):
        groups_of({"w": np.ones(2)}, {"n": np.array([1, 2**32])})


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
        np.arange(6, dtype=np.float32).reshape(2, 3)[::-1],
        np.broadcast_to(np.float32(2), (2, 3)),
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
    ],
    ids=["fortran", "strided", "reversed", "broadcast", "big-endian", "bf16"],
)
def test_E02_any_layout_means_what_it_means_in_numpy(array: np.ndarray) -> None:
    groups = groups_of({"w": array})
    found = groups.initial["param/w"]
    assert found.flags.c_contiguous
    assert found.dtype.isnative
    assert not np.shares_memory(found, array)
    np.testing.assert_array_equal(
        found.astype(np.float32), np.ascontiguousarray(array).astype(np.float32)
    )
    assert groups.notes == ()


def test_one_array_under_two_names_is_two_parameters_and_said() -> None:
    shared = np.ones((2, 2), np.float32)
    groups = groups_of({"a": shared, "b": shared})
    assert len(groups.params.leaves) == 2
    assert groups.notes == ("params b and a are one array: they become two parameters",)


def test_decay_is_for_leaves_of_two_axes_or_more_unless_asked() -> None:
    params = {"w": np.ones((2, 2)), "b": np.ones(2), "scale": 1.0}
    decayed = {leaf.path for leaf in groups_of(params).params.leaves if "decay" in leaf.flags}
    assert decayed == {"w"}
    seen: list[tuple[tuple[str | int, ...], Any]] = []

    def no_decay(path: tuple[str | int, ...], leaf: Any) -> bool:
        seen.append((path, leaf))
        return default_no_decay(path, leaf) or path[-1] == "w"

    assert not any(leaf.flags for leaf in groups_of(params, no_decay=no_decay).params.leaves)
    assert [path for path, _ in seen] == [("b",), ("scale",), ("w",)]


def test_paths_that_collide_are_refused() -> None:
    class Odd:
        def __init__(self, name: str, order: int) -> None:
            self.name, self.order = name, order

        def __str__(self) -> str:
            return self.name

        def __lt__(self, other: Odd) -> bool:
            return self.order < other.order

    with pytest.raises(HookError, match="E-HOOK-070"):
        groups_of({Odd("a", 1): np.ones(2), Odd("a", 2): np.ones(2)})
