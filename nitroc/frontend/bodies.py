"""What each imported function computes: which hooks are called, in which order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from nitro_dialect.ir import Parameter
from nitro_dialect.types import F32, TensorType, TreeType
from nitro_runtime.dtypes import ir_dtype, np_dtype
from nitro_runtime.trees import unflatten
from nitroc.errors import BuildError, HookError
from nitroc.frontend import keys, results
from nitroc.frontend.groups import Groups
from nitroc.frontend.hookcalls import HookCalls, KeyOf
from nitroc.frontend.importer import ImportedFunction
from nitroc.frontend.signatures import PARAMS_TYPE, STATE_TYPE, Body, Recipe

if TYPE_CHECKING:
    from nitroc.frontend.setup import Setup


LOSSES = {
    True: "loss is (sum, weight): a step divides once, by the weight of all its micro-batches",
    False: "loss is a plain scalar: a step's is the mean over its micro-batches, a mean of means; "
    "evaluation weights it by rows",
}
"""What the form of the loss means, by whether it is a pair."""


class Bodies:
    """The bodies of one experiment's functions; each fills its recipe in while it is traced."""

    def __init__(self, setup: Setup, groups: Groups, root: str | None) -> None:
        self._setup = setup
        self._groups = groups
        self._root = root

    def objective(self, recipe: Recipe) -> Body:
        """prepare, forward(train=True), loss, train_metrics."""

        def objective(
            params: Any, state: Any, devices: Any, seed: Any, step: Any, micro: Any, batch: Any
        ) -> list[Any]:
            def key(site: str) -> jax.Array:
                return keys.training_key(seed, step, micro, site)

            calls = self._calls("training program", devices, True, key)
            fields = self._fields(calls, recipe, batch)
            width = self._setup.schema["train"].width
            outputs, new_state = self._run_forward(calls, params, state, fields)
            # the outputs of training are checked like any: their batch axis comes first
            results.output_leaves(outputs, width, calls.where("forward"))
            sums = self._losses(recipe, calls, outputs, fields)
            recipe.results = [Parameter(name, F32) for name in sums]
            recipe.marks_at = len(sums)
            recipe.results.append(Parameter("state", STATE_TYPE))
            return [*sums.values(), *new_state]

        return objective

    def gradient(self, recipe: Recipe) -> Body:
        """The objective, and its loss sum's gradient with respect to the leaves of params.

        The weight is no part of what is differentiated: the step divides by it once, afterwards.
        """
        inner = self.objective(recipe)

        def gradient(params: Any, *rest: Any) -> list[Any]:
            def loss(leaves: Any) -> tuple[Any, list[Any]]:
                values = inner(leaves, *rest)
                return values[0], values

            (_, values), grads = jax.value_and_grad(loss, has_aux=True)(params)
            count = len(recipe.results) - 1
            recipe.results.insert(count, Parameter("grad", PARAMS_TYPE))
            return [*values[:count], *grads, *values[count:]]

        return gradient

    def forward(self, recipe: Recipe, width: int) -> Body:
        """prepare, forward(train=False); the state it returns is dropped."""

        def forward(
            params: Any, state: Any, devices: Any, seed: Any, split: Any, index: Any, batch: Any
        ) -> list[Any]:
            def key(site: str) -> jax.Array:
                return keys.evaluation_key(seed, split, index, site)

            calls = self._calls(f"forward at width {width}", devices, False, key)
            fields = self._fields(calls, recipe, batch)
            outputs, _ = self._run_forward(calls, params, state, fields)
            spec, leaves = results.output_leaves(outputs, width, calls.where("forward"))
            recipe.outputs, recipe.tree_spec = results.output_group(width, leaves), spec
            recipe.results = [Parameter("outputs", TreeType(recipe.outputs.name))]
            return list(leaves.values())

        return forward

    def reduce(
        self, recipe: Recipe, width: int, rows: int, made: ImportedFunction, hooks: Collection[str]
    ) -> Body:
        """prepare at the full width, then loss and device metrics over the first `rows` rows."""
        group, spec = made.outputs, made.tree_spec
        assert group is not None
        assert spec is not None
        paths = [leaf.path for leaf in group.leaves]

        def reduce(
            outputs: Any, devices: Any, seed: Any, split: Any, index: Any, batch: Any
        ) -> list[Any]:
            def key(site: str) -> jax.Array:
                return keys.evaluation_key(seed, split, index, site)

            calls = self._calls(f"reduction of {rows} rows", devices, False, key)
            fields = self._fields(calls, recipe, batch)
            fields = {name: _cut(value, width, rows) for name, value in fields.items()}
            cut = {path: leaf[:rows] for path, leaf in zip(paths, outputs, strict=True)}
            values = _reduced(calls, unflatten(spec, cut), fields, rows, hooks)
            recipe.results = [
                Parameter(name, TensorType(ir_dtype(value.dtype), tuple(value.shape)))
                for name, value in values.items()
            ]
            return list(values.values())

        return reduce

    def init(self) -> Body:
        """A traced `build_model`; Device fields have the experiment's values in it."""

        def init(seed: Any) -> list[Any]:
            calls = self._calls("initial values", (), True, lambda _: keys.seed_key(seed))
            _, params, state = calls.invoke("build_model", keys.seed_key(seed))
            where = calls.where("build_model")
            leaves, treedef = jtu.tree_flatten(params)
            if treedef != self._groups.params_treedef:
                raise HookError(
                    73,
                    "build_model returned other params when traced than on the host",
                    where=where,
                    help="the tree of params may not depend on values",
                )
            rows = self._groups.params.leaves
            cast = [
                jnp.asarray(leaf).astype(np_dtype(row.dtype))
                for leaf, row in zip(leaves, rows, strict=True)
            ]
            return [*cast, *results.next_state(state, self._groups, where, "build_model")]

        return init

    def _calls(self, phase: str, devices: Sequence[Any], train: bool, key: KeyOf) -> HookCalls:
        named = dict(zip(self._setup.device, devices, strict=True)) if devices else {}
        return HookCalls(self._setup, self._root, phase, named, train, key)

    def _fields(self, calls: HookCalls, recipe: Recipe, batch: Sequence[Any]) -> dict[str, Any]:
        loaded = dict(zip(recipe.fields, batch, strict=True))
        if not calls.has("prepare"):
            return loaded
        made = calls.call("prepare", fields=loaded)
        return loaded | results.prepared(made, calls.where("prepare"))

    def _run_forward(
        self, calls: HookCalls, params: Any, state: Any, fields: Mapping[str, Any]
    ) -> tuple[Any, list[jax.Array]]:
        where = calls.where("forward")
        trees = self._groups.params_tree(params), self._groups.state_tree(state)
        result = calls.call("forward", self._setup.model, *trees, fields=fields)
        outputs, new_state = results.forward_pair(result, where)
        return outputs, results.next_state(new_state, self._groups, where)

    def _losses(
        self, recipe: Recipe, calls: HookCalls, outputs: Any, fields: Mapping[str, Any]
    ) -> dict[str, jax.Array]:
        loss = calls.call("loss", outputs, fields=fields)
        total, weight, pair = results.loss_pair(loss, calls.where("loss"))
        recipe.notes.append(LOSSES[pair])
        sums = {"loss": total, "weight": weight}
        if not calls.has("train_metrics"):
            return sums
        self._refuse_host_train_metrics(calls)
        given = calls.call("train_metrics", outputs, fields=fields)
        pairs = results.train_metric_pairs(given, calls.where("train_metrics"))
        for name, (value, count) in pairs.items():
            sums |= {f"metric.{name}.sum": value, f"metric.{name}.count": count}
        return sums

    def _refuse_host_train_metrics(self, calls: HookCalls) -> None:
        if self._setup.residency["train_metrics"] == "device":
            return
        raise BuildError(
            42,
            "train_metrics under `host` would make the train step return its outputs",
            where=calls.where("train_metrics"),
            help="leave metrics_residency('train_metrics') at \"device\"",
        )


def _reduced(
    calls: HookCalls,
    outputs: Any,
    fields: Mapping[str, Any],
    rows: int,
    hooks: Collection[str],
) -> dict[str, jax.Array]:
    values: dict[str, jax.Array] = {}
    if "loss" in hooks:
        loss = calls.call("loss", outputs, fields=fields)
        total, weight, pair = results.loss_pair(loss, calls.where("loss"))
        count = jnp.float32(rows)
        values["loss.sum"] = total if pair else total * count
        values["loss.weight"] = weight if pair else count
    if "metrics" in hooks:
        given = calls.call("metrics", outputs, fields=fields)
        named = results.device_metric_results(given, calls.where("metrics"))
        values |= {f"metric.{name}": value for name, value in named.items()}
    return values


def _cut(value: Any, width: int, rows: int) -> Any:
    return value[:rows] if getattr(value, "ndim", 0) and value.shape[0] == width else value
