"""Flax nnx: `nnx.Param` is trained, random streams are reseeded, everything else is model state."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from nitroc.frontend.groups import plain_path
from nitroc.frontend.keys import IMPLEMENTATION
from nitroc.nn.leaves import Leaves, Path
from nitroc.nn.library import needs, not_a_module
from nitroc.nn.linen_model import keyless
from nitroc.nn.switches import declared, switch_text, switches


@dataclass(frozen=True, repr=False)
class NnxModel:
    """A module of class `kind` without arrays: its graph, and where its leaves stand.

    `streams`: per leaf of its random streams, whether it is a key (else a counter), and its shape.
    """

    kind: type[Any]
    graph: Any
    params: Leaves
    others: Leaves
    random: Leaves
    streams: tuple[tuple[bool, tuple[int, ...]], ...]

    def apply(
        self,
        params: Mapping[str, Any],
        state: Mapping[str, Any],
        *args: Any,
        train: bool = False,
        key: jax.Array | None = None,
        **keywords: Any,
    ) -> tuple[Any, Mapping[Any, Any]]:
        """`(outputs, new state)` of the module's `__call__(*args, **keywords)`.

        Called on a copy, set to `.train()` or `.eval()`; a switch that `__call__` declares
        (`train`, `deterministic`, ...) is handed over too. Each random stream is reseeded from
        `key` and its path. What evaluation changes is dropped: `state` is returned as given.
        E-HOOK-077 when a stream is used and `key` is None.
        """
        from flax import nnx as nn

        random = self._random(key)
        module = nn.merge(
            self.graph,
            self.params.tree(params, "params"),
            random,
            self.others.tree(state, "state"),
            copy=True,
        )
        module.train() if train else module.eval()
        given = {**switches(module.__call__, train), **keywords}
        if key is not None and "rngs" in declared(module.__call__):
            given.setdefault("rngs", nn.Rngs(jax.random.fold_in(key, 1)))
        outputs = module(*args, **given)
        _, _, used, others, _ = _split(module)
        if key is None and not _same(used, random):
            raise keyless(module)
        return outputs, _leaves(others).nested(others) if train else state

    def _random(self, key: jax.Array | None) -> Any:
        base = jax.random.key(0, impl=IMPLEMENTATION) if key is None else key
        leaves = [
            _stream_key(base, path, shape) if is_key else jnp.zeros(shape, jnp.uint32)
            for path, (is_key, shape) in zip(self.random.paths, self.streams, strict=True)
        ]
        return jtu.tree_unflatten(self.random.treedef, leaves)

    def __repr__(self) -> str:
        switch = switch_text(self.kind.__call__)
        state = ", ".join(sorted({str(path[-1]) for path in self.others.paths})) or "none"
        modes = f".train() and .eval(){', ' if switch else ''}{switch}"
        return f"NnxModel({self.kind.__name__}; {modes}; state: {state})"


def nnx(module: Any) -> tuple[NnxModel, dict[Any, Any], dict[Any, Any]]:
    """`(model, params, state)` of a `flax.nnx.Module`, as its constructor initialised it.

    Build it from the key of `build_model`: `Net(rngs=nnx.Rngs(key))`. `params` holds the
    `nnx.Param`s, `state` every other array (batch statistics, caches, plain arrays), both nested by
    attribute name or index. Random streams are no state: `apply` reseeds them. The module itself is
    not kept. E-HOOK-075 without flax, 076 for another object.
    """
    with needs("flax", "nnx"):
        from flax import nnx as nn

    if not isinstance(module, nn.Module):
        raise not_a_module("nnx", "a flax.nnx.Module", module)
    graph, params, random, others, _ = _split(module)
    streams = tuple((_is_key(leaf), np.shape(leaf)) for leaf in jtu.tree_leaves(random))
    leaves = _leaves(params), _leaves(others), _leaves(random)
    model = NnxModel(type(module), graph, *leaves, streams)
    return model, model.params.nested(params), model.others.nested(others)


def _split(module: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Graph, params, random streams, other leaves, and what `sow` left behind."""
    from flax import nnx as nn

    graph, params, random, sown, others = nn.split(
        module, nn.Param, nn.RngState, nn.Intermediate, ...
    )
    return graph, params, random, others, sown


def _leaves(state: Any) -> Leaves:
    """A variable stands under its own name: jax's path to its array ends with `.value`."""
    flat, treedef = jtu.tree_flatten_with_path(state)
    paths = (_without_value(path) for path, _ in flat)
    return Leaves(treedef, tuple(plain_path(path) for path in paths))


def _without_value(path: tuple[Any, ...]) -> tuple[Any, ...]:
    at = next((i for i, k in enumerate(path) if isinstance(k, jtu.GetAttrKey)), len(path))
    return (*path[:at], *path[at + 1 :])


def _stream_key(key: jax.Array, path: Path, shape: tuple[int, ...]) -> jax.Array:
    """The same for a path in every process."""
    own = jax.random.fold_in(key, zlib.crc32(".".join(map(str, path)).encode()))
    return jax.random.split(own, shape) if shape else own


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _same(one: Any, other: Any) -> bool:
    """Whether no stream was advanced: each leaf is still the very array it was."""
    pairs = zip(jtu.tree_leaves(one), jtu.tree_leaves(other), strict=True)
    return all(a is b for a, b in pairs)
