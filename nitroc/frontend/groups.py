"""Params and state, as `build_model` returned them, to group tables and host arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from nitro_dialect.ir import Group, Leaf
from nitro_runtime.dtypes import has_ir_dtype, ir_dtype, native
from nitro_runtime.trees import ROOT, Attr, IntKey, Key, encode_path
from nitroc.errors import HookError

PARAMS = "default"
STATE = "state"

NoDecay = Callable[[tuple[str | int, ...], Any], bool]


@dataclass(frozen=True)
class Groups:
    """The two groups of a program and what rebuilds the user's trees from their leaves.

    `initial` holds `param/<path>` and `state/<path>`: contiguous native numpy arrays in the leaves'
    dtypes. A typed key in state is its words, `ui32[..., 2]`, with the flag `key:<implementation>`.
    Groups that were read from a bundle have no trees, no values and no notes.
    """

    params: Group
    state: Group
    params_treedef: Any = None
    state_treedef: Any = None
    initial: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    notes: tuple[str, ...] = ()
    keys: tuple[str | None, ...] = field(default=())
    """Per leaf of state, the implementation of a typed key; None for an array."""

    @property
    def has_trees(self) -> bool:
        """Whether the leaves can be put back into the trees of `build_model`."""
        return self.params_treedef is not None

    def params_tree(self, leaves: Sequence[Any]) -> Any:
        """The tree of `params` with these leaves, in the order of the group."""
        return jtu.tree_unflatten(self.params_treedef, list(leaves))

    def state_tree(self, leaves: Sequence[Any]) -> Any:
        """The tree of `state` with these leaves; words of keys become typed keys again."""
        typed = [
            jax.random.wrap_key_data(leaf, impl=kind) if kind else leaf
            for leaf, kind in zip(leaves, self.keys, strict=True)
        ]
        return jtu.tree_unflatten(self.state_treedef, typed)


def default_no_decay(path: tuple[str | int, ...], leaf: Any) -> bool:
    """Whether a leaf is exempt from weight decay: 1-D leaves (biases, scales) and 0-D ones.

    The practice of optax's masks, `ndim > 1`; extend it with `default_no_decay(path, leaf) or ...`.
    """
    return np.ndim(leaf) <= 1


def make_groups(params: Any, state: Any, no_decay: NoDecay | None, where: str) -> Groups:
    """Groups of what `build_model`, at `where`, returned.

    `no_decay(path, leaf)`: which leaves are exempt, `default_no_decay` when there is no such hook.
    Raises E-HOOK-067 for a leaf of params that can't be trained, 068 when there is none, 069 for a
    leaf that is no array, 070 for paths that collide, 071 for an i64 that doesn't fit i32.
    """
    notes: list[str] = []
    trained = _read(params, "params", where, notes)
    kept = _read(state, "state", where, notes)
    if not trained.rows:
        raise HookError(
            68,
            "params of build_model hold no trainable leaf",
            where=where,
            help="return the parameters as the second of `(model, params, state)`",
        )
    notes += _shared(trained)
    exempt = no_decay or default_no_decay
    return Groups(
        Group(PARAMS, "param", tuple(_param_leaf(row, exempt) for row in trained.rows)),
        Group(STATE, "state", tuple(_state_leaf(row) for row in kept.rows)),
        trained.treedef,
        kept.treedef,
        {f"param/{row.path}": row.value for row in trained.rows}
        | {f"state/{row.path}": row.value for row in kept.rows},
        tuple(notes),
        tuple(row.key for row in kept.rows),
    )


def path_keys(path: Sequence[Any]) -> tuple[Key, ...]:
    """jax's key path in the terms of `nitro_runtime.trees`."""
    return tuple(_key(entry) for entry in path)


def plain_path(path: Sequence[Any]) -> tuple[str | int, ...]:
    """jax's key path as the plain keys that `no_decay` and `param_group` are handed."""
    return tuple(_plain(key) for key in path_keys(path))


@dataclass(frozen=True)
class _Row:
    path: str
    plain: tuple[str | int, ...]
    value: np.ndarray
    given: Any
    key: str | None = None


@dataclass(frozen=True)
class _Read:
    rows: tuple[_Row, ...]
    treedef: Any


def _read(tree: Any, name: str, where: str, notes: list[str]) -> _Read:
    flat, treedef = jtu.tree_flatten_with_path(tree)
    rows = tuple(_row(path, leaf, name, where, notes) for path, leaf in flat)
    seen: set[str] = set()
    for row in rows:
        if row.path in seen:
            raise HookError(70, f"two leaves of {name} are called {row.path}", where=where)
        seen.add(row.path)
    return _Read(rows, treedef)


def _row(path: Sequence[Any], leaf: Any, name: str, where: str, notes: list[str]) -> _Row:
    encoded, plain = encode_path(path_keys(path)), plain_path(path)
    shown = name if encoded == ROOT else f"{name} leaf {encoded}"
    if _is_key(leaf):
        if name == "params":
            raise _untrainable(shown, "a typed PRNG key", where)
        kind = str(jax.random.key_impl(leaf))
        return _Row(encoded, plain, np.asarray(jax.random.key_data(leaf)), leaf, kind)
    value = _array(leaf, shown, where)
    if name == "params" and value.dtype.kind in "iubc":
        raise _untrainable(shown, f"{value.dtype}", where)
    narrowed = _narrow(value, shown, where)
    if narrowed.dtype != native(value.dtype) and not isinstance(leaf, int | float):
        notes.append(f"{shown}: {value.dtype} stored as {narrowed.dtype}")
    return _Row(encoded, plain, narrowed, leaf)


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _array(leaf: Any, shown: str, where: str) -> np.ndarray:
    array_like = isinstance(leaf, bool | int | float | complex) or hasattr(leaf, "__array__")
    value = np.asarray(leaf) if array_like else np.empty(0, object)
    if not has_ir_dtype(value.dtype):
        found = type(leaf).__name__ if not array_like else f"an array of {value.dtype}"
        raise HookError(
            69,
            f"{shown} is {found}, expected an array",
            where=where,
            help="keep what is no array on the model",
        )
    return value


def _narrow(value: np.ndarray, shown: str, where: str) -> np.ndarray:
    """Contiguous, native byte order; f64 -> f32, c128 -> c64, and i64 -> i32 where it fits."""
    dtype = native(value.dtype)
    target = _NARROW.get(dtype.str[1:], dtype)
    out = np.array(value, dtype=target, order="C", copy=True)
    if target.kind in "iu" and not np.array_equal(out, value):
        wrong = value[out != value].flat[0]
        limits = np.iinfo(str(target))
        raise HookError(
            71,
            f"{shown} holds {wrong}, which does not fit {target} ({limits.min} to {limits.max})",
            where=where,
            help="rescale the value, or split it in two",
        )
    return out


_NARROW = {
    "f8": np.dtype(np.float32),
    "c16": np.dtype(np.complex64),
    "i8": np.dtype(np.int32),
    "u8": np.dtype(np.uint32),
}


def _untrainable(shown: str, found: str, where: str) -> HookError:
    return HookError(
        67,
        f"{shown} is {found}, expected a real floating-point array",
        where=where,
        help="params are what is differentiated: return it in `state` (the third of "
        "`(model, params, state)`)",
    )


def _shared(params: _Read) -> Iterator[str]:
    first: dict[int, str] = {}
    for row in params.rows:
        if isinstance(row.given, int | float):
            continue
        other = first.setdefault(id(row.given), row.path)
        if other != row.path:
            yield f"params {row.path} and {other} are one array: they become two parameters"


def _param_leaf(row: _Row, exempt: NoDecay) -> Leaf:
    flags = frozenset() if exempt(row.plain, row.value) else frozenset({"decay"})
    return Leaf(row.path, ir_dtype(row.value.dtype), row.value.shape, flags)


def _state_leaf(row: _Row) -> Leaf:
    flags = frozenset({f"key:{row.key}"}) if row.key else frozenset[str]()
    return Leaf(row.path, ir_dtype(row.value.dtype), row.value.shape, flags)


def _key(entry: Any) -> Key:
    match entry:
        case jtu.SequenceKey(idx=index):
            return int(index)
        case jtu.FlattenedIndexKey(key=index):
            return int(index)
        case jtu.GetAttrKey(name=name):
            return Attr(name)
        case jtu.DictKey(key=bool()):
            return str(entry.key)
        case jtu.DictKey(key=int()):
            return IntKey(entry.key)
        case jtu.DictKey(key=key):
            return str(key)
        case _:
            return str(entry)


def _plain(key: Key) -> str | int:
    match key:
        case Attr(name):
            return name
        case IntKey(value):
            return value
        case _:
            return key
