"""Equinox: floating-point arrays are trained; other arrays and `eqx.nn.State` are model state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.tree_util as jtu
import numpy as np

from nitroc.errors import HookError
from nitroc.frontend.groups import plain_path
from nitroc.nn.leaves import Leaves, Path, nested
from nitroc.nn.library import needs, not_a_module
from nitroc.nn.switches import declared, switch_text, switches


@dataclass(frozen=True, repr=False)
class EquinoxModel:
    """An Equinox module without arrays: what is no array of it, and where its arrays stand.

    `indexed`: the values of its `eqx.nn.State`, None when its call takes none; `axis_name`: the
    name of the mapped batch axis, None for a module that takes whole batches.
    """

    static: Any
    params: Leaves
    buffers: Leaves
    indexed: Leaves | None
    axis_name: str | None

    def apply(
        self,
        params: Mapping[Any, Any],
        state: Mapping[Any, Any],
        *args: Any,
        train: bool = False,
        key: jax.Array | None = None,
        **keywords: Any,
    ) -> tuple[Any, Mapping[Any, Any]]:
        """`(outputs, new state)` of the module's `__call__(*args, **keywords)`.

        With an `axis_name` the call is mapped over the first axis of every array of the arguments,
        and `key` split in as many. Every `inference` flag is set to `not train`; a switch that
        `__call__` declares (`inference`, `train`, ...) is handed over too, `key` if it declares it,
        and a stateful module gets its `eqx.nn.State` after `args`. What evaluation changes is
        dropped: `state` is returned as given. E-HOOK-079 when no state comes back.
        """
        import equinox as eqx

        buffers = self.buffers.tree(state, "state")
        arrays = eqx.combine(self.params.tree(params, "params"), buffers)
        module = eqx.nn.inference_mode(eqx.combine(arrays, self.static), value=not train)
        fixed = switches(module.__call__, train)
        own = () if self.indexed is None else (self.indexed.tree(state, "state"),)

        def call(args: Any, keywords: Any, keys: Any) -> Any:
            result = module(*args, *own, **fixed, **keywords, **keys)
            return self._pair(module, result) if own else (result, None)

        keys = {"key": key} if "key" in declared(module.__call__) else {}
        outputs, after = self._mapped(call, args, keywords, keys)
        if self.indexed is None or not train:
            return outputs, state
        parts = zip((self.buffers, self.indexed), (buffers, after), strict=True)
        return outputs, nested(row for leaves, tree in parts for row in leaves.rows(tree))

    def _mapped(self, call: Any, args: Any, keywords: Any, keys: dict[str, Any]) -> Any:
        if self.axis_name is None:
            return call(args, keywords, keys)
        axes = jtu.tree_map(lambda leaf: 0 if np.ndim(leaf) else None, (args, keywords))
        if keys.get("key") is not None:
            rows = next(np.shape(leaf)[0] for leaf in jtu.tree_leaves(args) if np.ndim(leaf))
            keys = {"key": jax.random.split(keys["key"], rows)}
        mapped = jax.vmap(call, (*axes, 0), out_axes=(0, None), axis_name=self.axis_name)
        return mapped(args, keywords, keys)

    def _pair(self, module: Any, result: Any) -> tuple[Any, Any]:
        from equinox.nn import State

        if isinstance(result, tuple) and len(cast("tuple[Any, ...]", result)) == 2:
            outputs, after = cast("tuple[Any, Any]", result)
            if isinstance(after, State):
                return outputs, after
        name = type(module).__name__
        raise HookError(
            79,
            f"{name} keeps state, and its call returned no (outputs, eqx.nn.State) pair",
            help=f"end {name}.__call__ with `return outputs, state`",
        )

    def __repr__(self) -> str:
        kind = type(self.static)
        switch = ", ".join(filter(None, ("inference flags", switch_text(kind.__call__))))
        rows = "whole batches" if self.axis_name is None else f"mapped over {self.axis_name!r}"
        paths = (*self.buffers.paths, *(self.indexed.paths if self.indexed else ()))
        state = ", ".join(".".join(map(str, path)) for path in paths) or "none"
        return f"EquinoxModel({kind.__name__}; {rows}; {switch}; state: {state})"


def equinox(
    module: Any, state: Any = None, *, axis_name: str | None = "batch"
) -> tuple[EquinoxModel, dict[Any, Any], dict[Any, Any]]:
    """`(model, params, state)` of an `eqx.Module`, as its constructor initialised it.

    `params` holds its floating-point arrays, `state` its other arrays and what its `eqx.nn.State`
    holds (batch statistics), both nested by attribute name or index; everything else, static fields
    included, stays on the model. Modules of Equinox take one example: the model maps them over the
    batch under `axis_name`, the name that `eqx.nn.BatchNorm` is given; None calls the module on
    whole batches. `state`: that of `eqx.nn.make_with_state`, needed only when the module came from
    there. E-HOOK-075 without equinox, 076 for another object, 080 for a state that is missing.
    """
    with needs("equinox", "equinox"):
        import equinox as eqx

    if not isinstance(module, eqx.Module) or not callable(module):
        raise not_a_module("equinox", "an equinox.Module with a __call__", module)
    module, indexed, values = _take_state(module, state)
    params, rest = eqx.partition(module, eqx.is_inexact_array)
    buffers, static = eqx.partition(rest, lambda leaf: eqx.is_array(leaf) or _is_numpy(leaf))
    model = EquinoxModel(static, Leaves.of(params), Leaves.of(buffers), indexed, axis_name)
    kept = model.buffers.rows(buffers) + (indexed.rows(values) if indexed else ())
    return model, model.params.nested(params), nested(kept)


def _take_state(module: Any, state: Any) -> tuple[Any, Leaves | None, Any]:
    """The module without initial state, and the values of its state, when its call takes any."""
    import equinox as eqx

    flat, _ = jtu.tree_flatten_with_path(module, is_leaf=_is_index)
    indices = [(plain_path(path), leaf) for path, leaf in flat if _is_index(leaf)]
    parameter = declared(module.__call__).get("state")
    required = parameter is not None and parameter.default is parameter.empty
    if not indices and not required:
        return module, None, None
    try:
        values = eqx.nn.State(module) if state is None else state
        leaves = _index_leaves(indices, values)
    except (ValueError, KeyError) as problem:
        raise HookError(
            80,
            f"{type(module).__name__} keeps state in {len(indices)} places, and "
            f"{'its initial values are gone' if state is None else 'the state given lacks some'}",
            help="module, state = eqx.nn.make_with_state(Net)(...); nt.nn.equinox(module, state)",
        ) from problem
    return eqx.nn.delete_init_state(module), leaves, values


def _index_leaves(indices: list[tuple[Path, Any]], state: Any) -> Leaves:
    """Where each array of an `eqx.nn.State` stands: under the attribute that holds its index."""
    treedef = jtu.tree_structure(state)
    numbered = jtu.tree_unflatten(treedef, range(treedef.num_leaves))
    paths: dict[int, Path] = {}
    for path, index in indices:
        for inner, number in jtu.tree_flatten_with_path(numbered.get(index))[0]:
            paths.setdefault(number, (*path, *plain_path(inner)))
    return Leaves(treedef, tuple(paths[number] for number in range(treedef.num_leaves)))


def _is_index(leaf: Any) -> bool:
    from equinox.nn import StateIndex

    return isinstance(leaf, StateIndex)


def _is_numpy(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic)
