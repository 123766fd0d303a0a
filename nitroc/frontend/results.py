"""What hooks may return: each check takes a result apart or says what was found and expected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from nitro_dialect.ir import Group, Leaf
from nitro_runtime.dtypes import ir_dtype, spell
from nitro_runtime.metrics import LINE_KEYS, Concat, Max, Min
from nitro_runtime.trees import TreeSpec, encode_path, flatten
from nitroc.errors import HookError
from nitroc.frontend.groups import Groups, path_keys
from nitroc.frontend.hookcalls import described

_METRIC_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-/]*")
_RESERVED = LINE_KEYS | {
    *("val_loss", "grad_norm", "learning_rate", "skipped"),
    *("committed", "weight", "halted", "first_bad"),
}


def prepared(result: Any, where: str) -> dict[str, Any]:
    """What `prepare` returned; E-HOOK-066 unless it is a dict of fields by name."""
    if isinstance(result, Mapping) and all(isinstance(k, str) for k in _mapping(result)):
        return dict(_mapping(result))
    raise HookError(66, f"`prepare` returned {described(result)}, expected a dict", where=where)


def forward_pair(result: Any, where: str) -> tuple[Any, Any]:
    """`(outputs, state)`; E-HOOK-061 for anything but a pair."""
    if isinstance(result, tuple) and len(cast("tuple[Any, ...]", result)) == 2:
        return cast("tuple[Any, Any]", result)
    raise HookError(
        61,
        f"`forward` returned {described(result)}, expected (outputs, new_state)",
        where=where,
        help="end with `return outputs, state`",
    )


def output_leaves(outputs: Any, width: int, where: str) -> tuple[TreeSpec, dict[str, jax.Array]]:
    """The spec and leaves of outputs by path; E-HOOK-061 for one without the batch axis first."""
    spec, leaves = flatten(outputs)
    if not leaves:
        raise HookError(61, "`forward` returned no outputs", where=where)
    return spec, {path: _output(path, leaf, width, where) for path, leaf in leaves.items()}


def _output(path: str, leaf: Any, width: int, where: str) -> jax.Array:
    name = "the output" if path == "@" else f"output {path}"
    if not hasattr(leaf, "shape") and not isinstance(leaf, bool | int | float):
        raise HookError(
            61,
            f"{name} of `forward` is {type(leaf).__name__}, expected an array",
            where=where,
            help="outputs are arrays in dicts, lists, tuples and named tuples",
        )
    array = jnp.asarray(leaf)
    if array.ndim and array.shape[0] == width:
        return array
    raise HookError(
        61,
        f"{name} of `forward` is {described(array)}, expected the batch axis first: [{width},...]",
        where=where,
        help="move the batch axis to the front; reduce over rows in loss or metrics instead",
    )


def next_state(result: Any, groups: Groups, where: str, hook: str = "forward") -> list[jax.Array]:
    """The leaves of the state a hook returned; E-HOOK-062 when it is another tree or type."""
    flat, treedef = jtu.tree_flatten_with_path(result)
    if treedef != groups.state_treedef:
        raise HookError(
            62,
            f"`{hook}` returned another state than build_model: {_tree_text(flat)}, expected "
            f"{[leaf.path for leaf in groups.state.leaves]}",
            where=where,
            help="return the state that was given when nothing changes",
        )
    return [
        _state_leaf(given, leaf, kind, f"`{hook}`", where)
        for (_, given), leaf, kind in zip(flat, groups.state.leaves, groups.keys, strict=True)
    ]


def _tree_text(flat: list[tuple[Any, Any]]) -> list[str]:
    return [encode_path(path_keys(path)) for path, _ in flat]


def _state_leaf(given: Any, leaf: Leaf, kind: str | None, hook: str, where: str) -> jax.Array:
    dtype = getattr(given, "dtype", None)
    is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if kind is not None and is_key:
        given = jax.random.key_data(given)
    array = jnp.asarray(given)
    found = (ir_dtype(array.dtype), tuple(array.shape))
    wanted = (leaf.dtype, leaf.shape)
    if found == wanted:
        return array
    raise HookError(
        62,
        f"{hook} returned state {leaf.path} as {spell(*found)}, expected {spell(*wanted)}",
        where=where,
        help="keep the dtype and shape of each leaf of state, e.g. `.astype(old.dtype)`",
    )


def loss_pair(result: Any, where: str) -> tuple[jax.Array, jax.Array, bool]:
    """`(sum, weight, given as a pair)`, both f32. E-HOOK-063 for anything else."""
    pair = isinstance(result, tuple) and len(cast("tuple[Any, ...]", result)) == 2
    total, weight = cast("tuple[Any, Any]", result) if pair else (result, 1.0)
    if not _is_scalar(total, "f") or not _is_scalar(weight, "fiub"):
        raise HookError(
            63,
            f"`loss` returned {described(result)}, expected a real scalar or (sum, weight)",
            where=where,
            help="reduce it: `return loss.mean()`, or `return (loss * mask).sum(), mask.sum()`",
        )
    return _f32(total), _f32(weight), pair


def train_metric_pairs(result: Any, where: str) -> dict[str, tuple[jax.Array, jax.Array]]:
    """`(sum, count)` by name, f32, in order of name; a scalar counts 1. E-HOOK-064 and 065."""
    pairs: dict[str, tuple[jax.Array, jax.Array]] = {}
    for name, value in named_metrics(result, "train_metrics", where):
        total, count = cast("tuple[Any, Any]", value) if _is_pair(value) else (value, 1.0)
        if not _is_scalar(total, "fiub") or not _is_scalar(count, "fiub"):
            raise _metric_error("train_metrics", name, value, "a scalar or (sum, count)", where)
        pairs[name] = (_f32(total), _f32(count))
    return dict(sorted(pairs.items()))


def device_metric_results(result: Any, where: str) -> dict[str, jax.Array]:
    """The results of a device-resident `metrics`, by result name after `metric.`, sorted.

    `(sum, count)` gives `<name>.sum` and `<name>.count`, `(sum, None)` only the first, `nt.Max`,
    `nt.Min` and `nt.Concat` `<name>.max`, `.min`, `.concat`. E-HOOK-064 and 065.
    """
    results: dict[str, jax.Array] = {}
    for name, value in named_metrics(result, "metrics", where):
        results |= _device_metric(name, value, where)
    return dict(sorted(results.items()))


def _device_metric(name: str, value: Any, where: str) -> dict[str, jax.Array]:
    expected = "(sum, count), (sum, None), nt.Max, nt.Min or nt.Concat"
    match value:
        case Max(inner) if _is_scalar(inner, "fiub"):
            return {f"{name}.max": _f32(inner)}
        case Min(inner) if _is_scalar(inner, "fiub"):
            return {f"{name}.min": _f32(inner)}
        case Concat(inner) if getattr(inner, "ndim", 0):
            return {f"{name}.concat": jnp.asarray(inner)}
        case (total, None) if _is_scalar(total, "fiub"):
            return {f"{name}.sum": _f32(total)}
        case (total, count) if _is_scalar(total, "fiub") and _is_scalar(count, "fiub"):
            return {f"{name}.sum": _f32(total), f"{name}.count": _f32(count)}
        case _:
            raise _metric_error("metrics", name, value, expected, where)


def named_metrics(result: Any, hook: str, where: str) -> Iterator[tuple[str, Any]]:
    """`(name, value)` of a metrics dict, nested names joined by `/`."""
    if not isinstance(result, Mapping):
        raise HookError(64, f"`{hook}` returned {described(result)}, expected a dict", where=where)
    seen: set[str] = set()
    for name, value in _flat(_mapping(result), ""):
        if name in seen or name in _RESERVED:
            other = "another metric" if name in seen else "the framework"
            raise HookError(
                65, f"`{hook}` returned {name!r}, which {other} reports too", where=where
            )
        if not _METRIC_NAME.fullmatch(name):
            raise HookError(
                64,
                f"`{hook}` returned a metric called {name!r}",
                where=where,
                help="use letters, digits, `_`, `-`, `.` and `/`",
            )
        seen.add(name)
        yield name, value


def _flat(metrics: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flat(_mapping(value), f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _metric_error(hook: str, name: str, value: Any, expected: str, where: str) -> HookError:
    found = type(value).__name__ if isinstance(value, Max | Min | Concat) else described(value)
    return HookError(
        64,
        f"`{hook}` returned {name!r} as {found}, expected {expected}",
        where=where,
        help="reduce it to a scalar, or give it with its count",
    )


def _mapping(value: Any) -> Mapping[Any, Any]:
    return cast("Mapping[Any, Any]", value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(cast("tuple[Any, ...]", value)) == 2


def _is_scalar(value: Any, kinds: str) -> bool:
    """A number or 0-d array whose dtype is real: `f` floating, `i` and `u` integer, `b` bool."""
    if isinstance(value, bool | int | float):
        return True
    if getattr(value, "shape", None) != () or not hasattr(value, "dtype"):
        return False
    dtype = value.dtype
    if jnp.issubdtype(dtype, jnp.floating):
        return "f" in kinds
    return getattr(dtype, "kind", "V") in kinds.replace("f", "")


def _f32(value: Any) -> jax.Array:
    return jnp.asarray(value).astype(jnp.float32)


def output_group(width: int, leaves: Mapping[str, jax.Array]) -> Group:
    """The group `outputs.b<width>` of these leaves."""
    rows = tuple(Leaf(p, ir_dtype(v.dtype), tuple(v.shape)) for p, v in leaves.items())
    return Group(f"outputs.b{width}", "outputs", rows)
