"""Parameters of imported functions: names, types, and what jax traces them with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from nitro_dialect.ir import Group, Parameter
from nitro_dialect.types import I32, SEED, WORDS, TensorType, TreeType, Type
from nitro_runtime.dtypes import np_dtype
from nitro_runtime.trees import TreeSpec
from nitroc.frontend.device import DeviceLeaf
from nitroc.frontend.groups import PARAMS, STATE, Groups

if TYPE_CHECKING:
    from nitroc.frontend.setup import Setup

PARAMS_TYPE, STATE_TYPE = TreeType(PARAMS), TreeType(STATE)

Body = Callable[..., list[Any]]


@dataclass
class Recipe:
    """A function before its trace.

    `avals` are what `body` is traced with: arrays, and tuples of arrays for the leaves of a tree,
    of the Device fields (`devices_at`) and of the batch (last). `arguments[i]` are the names of the
    arrays of `params[i]`. `body` returns its results flat and, while it is traced, says what they
    are in `results` and, for a forward, in `outputs` and `tree_spec`; `notes` are for the report.
    Results of marks are put before `results[marks_at]`, at the end when it is None.
    """

    name: str
    constants_at: int = 0
    params: list[Parameter] = field(default_factory=list[Parameter])
    arguments: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    avals: list[Any] = field(default_factory=list[Any])
    fields: list[str] = field(default_factory=list[str])
    results: list[Parameter] = field(default_factory=list[Parameter])
    outputs: Group | None = None
    tree_spec: TreeSpec | None = None
    of: str | None = None
    wrt: str | None = None
    marks_at: int | None = None
    notes: list[str] = field(default_factory=list[str])

    def field_of_argument(self) -> list[str | None]:
        """Per array of the function, the batch field it is; None for another."""
        others = sum(map(len, self.arguments)) - len(self.fields)
        return [*([None] * others), *self.fields]

    def device_of_argument(self, devices: Collection[str]) -> list[str | None]:
        """Per array of the function, the Device leaf it is; None for another."""
        leaves = range(self.constants_at, self.constants_at + len(devices))
        return [
            name if index in leaves and name in devices else None
            for index, names in enumerate(self.arguments)
            for name in names
        ]


class Signatures:
    """Recipes with their parameters, in the order that every caller keeps.

    params, state, <constants>, <device leaves>, seed, then step and micro or split and index, then
    the batch fields by name.
    """

    def __init__(self, setup: Setup, groups: Groups) -> None:
        self._setup = setup
        self._groups = groups

    def objective(self, name: str) -> Recipe:
        recipe = Recipe(name)
        self._append_model(recipe)
        self._append_devices(recipe)
        _append(recipe, "seed", SEED, _WORDS)
        _append(recipe, "step", WORDS, _WORDS)
        _append(recipe, "micro", I32, _INDEX)
        width = self._setup.schema["train"].width
        self._append_fields(recipe, width, ("prepare", "forward", "loss", "train_metrics"))
        return recipe

    def forward(self, width: int) -> Recipe:
        recipe = Recipe(f"forward.b{width}")
        self._append_model(recipe)
        self._append_evaluation(recipe, width, ("prepare", "forward"))
        return recipe

    def reduce(self, width: int, rows: int, outputs: Group, hooks: Collection[str]) -> Recipe:
        recipe = Recipe(f"reduce.b{width}.r{rows}")
        _append_tree(recipe, "outputs", outputs)
        self._append_evaluation(recipe, width, ("prepare", *hooks))
        return recipe

    def init(self) -> Recipe:
        recipe = Recipe("init")
        _append(recipe, "seed", SEED, _WORDS)
        recipe.results += [Parameter("params", PARAMS_TYPE), Parameter("state", STATE_TYPE)]
        return recipe

    def _append_model(self, recipe: Recipe) -> None:
        _append_tree(recipe, "params", self._groups.params)
        _append_tree(recipe, "state", self._groups.state)

    def _append_evaluation(self, recipe: Recipe, width: int, hooks: Collection[str]) -> None:
        self._append_devices(recipe)
        _append(recipe, "seed", SEED, _WORDS)
        _append(recipe, "split", I32, _INDEX)
        _append(recipe, "index", I32, _INDEX)
        self._append_fields(recipe, width, hooks)

    def _append_devices(self, recipe: Recipe) -> None:
        recipe.constants_at = len(recipe.params)
        leaves = self._setup.device.values()
        recipe.params += [Parameter(leaf.name, _device_type(leaf)) for leaf in leaves]
        recipe.arguments += [(leaf.name,) for leaf in leaves]
        recipe.avals.append(tuple(_device_aval(leaf) for leaf in leaves))

    def _append_fields(self, recipe: Recipe, width: int, hooks: Collection[str]) -> None:
        routing, specs = self._setup.routing, self._setup.schema["train"].fields
        asked = {name for hook in hooks if hook in routing for name in routing[hook].fields}
        recipe.fields = [name for name in sorted(specs) if name in asked]
        taken = {parameter.name for parameter in recipe.params}
        for name in recipe.fields:
            kind = TensorType(specs[name].dtype, (width, *specs[name].shape))
            recipe.params.append(Parameter(f"batch.{name}" if name in taken else name, kind))
            recipe.arguments.append((name,))
        recipe.avals.append(
            tuple(
                jax.ShapeDtypeStruct((width, *specs[n].shape), np_dtype(specs[n].dtype))
                for n in recipe.fields
            )
        )


_WORDS = jax.ShapeDtypeStruct((2,), jnp.uint32)
_INDEX = jax.ShapeDtypeStruct((), jnp.int32)


def _append(recipe: Recipe, name: str, kind: Type, aval: Any) -> None:
    recipe.params.append(Parameter(name, kind))
    recipe.arguments.append((name,))
    recipe.avals.append(aval)


def _append_tree(recipe: Recipe, name: str, group: Group) -> None:
    recipe.params.append(Parameter(name, TreeType(group.name)))
    recipe.arguments.append(tuple(f"{name}.{leaf.path}" for leaf in group.leaves))
    recipe.avals.append(
        tuple(jax.ShapeDtypeStruct(leaf.shape, np_dtype(leaf.dtype)) for leaf in group.leaves)
    )


def _device_type(leaf: DeviceLeaf) -> TensorType:
    return TensorType(leaf.dtype, leaf.shape, weak=_is_weak(leaf))


def _device_aval(leaf: DeviceLeaf) -> Any:
    # a strong f32 scalar would turn bf16 activations into f32; a weak one doesn't
    return jax.ShapeDtypeStruct(leaf.shape, np_dtype(leaf.dtype), weak_type=_is_weak(leaf))


def _is_weak(leaf: DeviceLeaf) -> bool:
    return leaf.scalar and leaf.dtype != "i1"
