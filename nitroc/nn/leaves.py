"""A library's own tree of arrays as a nested dict, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.tree_util as jtu

from nitroc.errors import HookError
from nitroc.frontend.groups import plain_path

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Leaves:
    """Where each leaf of a tree stands in a nested dict; holds no leaf itself."""

    treedef: Any
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, tree: Any) -> Leaves:
        """Those of a tree, each under its own key path."""
        flat, treedef = jtu.tree_flatten_with_path(tree)
        return cls(treedef, tuple(plain_path(path) for path, _ in flat))

    def rows(self, tree: Any) -> tuple[tuple[Path, Any], ...]:
        """The leaves of `tree`, which has this structure, each with its path."""
        return tuple(zip(self.paths, jtu.tree_leaves(tree), strict=True))

    def nested(self, tree: Any) -> dict[str | int, Any]:
        """The leaves of `tree`, which has this structure, in a nested dict."""
        return nested(self.rows(tree))

    def tree(self, leaves: Mapping[Any, Any], name: str) -> Any:
        """The inverse of `nested`; E-HOOK-078 when a leaf of `name` is not there."""
        return jtu.tree_unflatten(self.treedef, [_at(leaves, path, name) for path in self.paths])


def nested(leaves: Iterable[tuple[Path, Any]]) -> dict[str | int, Any]:
    """A nested dict of these leaves by path."""
    root: dict[str | int, Any] = {}
    for path, leaf in leaves:
        inner = root
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = leaf
    return root


def _at(leaves: Mapping[Any, Any], path: Path, name: str) -> Any:
    inner: Any = leaves
    for key in path:
        if not isinstance(inner, Mapping) or key not in inner:
            there = ", ".join(map(str, leaves)) or "nothing"
            raise HookError(
                78,
                f"the {name} given to model.apply have no leaf {'.'.join(map(str, path))}: "
                f"their top level holds {there}",
                help="call model.apply(params, state, ...) with the params and state that forward "
                "was given",
            )
        inner = inner[key]
    return inner
