# pyright: basic
"""Hooks to imported functions: assembled, traced with jax, lowered, handed to the importer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from nitro_dialect.ir import Group, Parameter
from nitro_dialect.types import F32, I32, SEED, WORDS, TensorType, TreeType, Type
from nitro_runtime.dtypes import ir_dtype, np_dtype
from nitro_runtime.trees import TreeSpec, unflatten
from nitroc.errors import BuildError, HookError
from nitroc.frontend import keys, results
from nitroc.frontend.groups import PARAMS, STATE, Groups
from nitroc.frontend.hookcalls import HookCalls
from nitroc.frontend.importer import ImportedFunction, TracedFunction, import_together
from nitroc.frontend.jax_internals import drop_dead, every_frame_in_locations, jaxpr_as_fun
from nitroc.frontend.source import class_root
from nitroc.frontend.unsigned import wraps

if TYPE_CHECKING:
    from nitroc.frontend.setup import Setup

PARAMS_TYPE, STATE_TYPE = TreeType(PARAMS), TreeType(STATE)


@dataclass
class _Recipe:
    """One function before its trace: `body` takes one tuple of arrays, or one array, per parameter.

    `body` returns its results flat and fills in `results` (and `outputs`) while it is traced.
    """

    name: str
    params: list[Parameter]
    arguments: list[tuple[str, ...]]
    avals: list[Any]
    constants_at: int
    body: Callable[..., Any]
    results: list[Parameter] = field(default_factory=list)
    outputs: Group | None = None
    tree_spec: TreeSpec | None = None
    of: str | None = None
    wrt: str | None = None


class Tracer:
    """Traces the hooks of one experiment into functions, for one platform.

    `platform`: `cpu cuda rocm tpu`; `version`: the StableHLO version written, by default that of
    about twelve weeks back. Making one forgets what jax cached, so that a jitted function or a scan
    body that reads a changed global is traced anew.
    """

    def __init__(
        self, setup: Setup, groups: Groups, platform: str = "cpu", version: str | None = None
    ) -> None:
        self.setup = setup
        self.groups = groups
        self.platform = platform
        self.version = version
        self.root = class_root(type(setup.experiment))
        self._forwards: dict[int, ImportedFunction] = {}
        self._wraps: set[Any] = set()
        jax.clear_caches()

    def objective(self) -> tuple[ImportedFunction, ImportedFunction]:
        """`@objective` and `@objective.grad`, at the train split's width.

        prepare, forward(train=True), loss, train_metrics in one function. Results: `loss`,
        `weight`, per train metric `metric.<name>.sum` and `.count`, [`grad`,] `state`.
        """
        plain = self._traced(self._objective("objective", self._plain_objective))
        gradient = self._objective("objective.grad", self._gradient)
        gradient.of, gradient.wrt = "objective", "params"
        pair = import_together([plain, self._traced(gradient)], self.root, self.version)
        return pair[0], pair[1]

    def forward(self, width: int) -> ImportedFunction:
        """`@forward.b<width>`: prepare, forward(train=False); fields no output needs go."""
        if width not in self._forwards:
            recipe = self._evaluation(f"forward.b{width}", width, with_model=True)
            recipe.body = self._forward_body(recipe, width)
            self._forwards[width] = self._imported(recipe, drop_fields=True)
        return self._forwards[width]

    def reduce(self, width: int, rows: int) -> ImportedFunction | None:
        """`@reduce.b<width>.r<rows>`: loss and device metrics over the first `rows` rows.

        None when there is neither. Results: `loss.sum`, `loss.weight`, then
        `metric.<name>.{sum,count,max,min,concat}`; a scalar loss counts once per row.
        """
        if not self._reduces():
            return None
        forward = self.forward(width)
        assert forward.outputs is not None
        recipe = self._evaluation(f"reduce.b{width}.r{rows}", width, with_model=False)
        recipe.params.insert(0, Parameter("outputs", TreeType(forward.outputs.name)))
        recipe.arguments.insert(0, _leaf_names("outputs", forward.outputs))
        recipe.avals.insert(0, _group_avals(forward.outputs))
        recipe.constants_at = 1
        recipe.body = self._reduce_body(recipe, width, rows, forward)
        return self._imported(recipe, drop_fields=True)

    def init(self) -> ImportedFunction:
        """`@init`: a traced `build_model`, from the seed to params and state."""
        recipe = _Recipe("init", [], [], [], 0, lambda seed: self._initial_values(seed))
        recipe.params.append(Parameter("seed", SEED))
        recipe.arguments.append(("seed",))
        recipe.avals.append(jax.ShapeDtypeStruct((2,), jnp.uint32))
        recipe.results += [Parameter("param", PARAMS_TYPE), Parameter("state", STATE_TYPE)]
        return self._imported(recipe)

    # What each function does.

    def _objective(self, name: str, make: Callable[[_Recipe], Callable[..., Any]]) -> _Recipe:
        recipe = self._start(name, with_model=True)
        self._append(recipe, "step", WORDS, jax.ShapeDtypeStruct((2,), jnp.uint32))
        self._append(recipe, "micro", I32, jax.ShapeDtypeStruct((), jnp.int32))
        self._append_fields(recipe, self.setup.schema["train"].width)
        recipe.body = make(recipe)
        return recipe

    def _plain_objective(self, recipe: _Recipe) -> Callable[..., Any]:
        def objective(params, state, devices, seed, step, micro, batch):
            calls = self._calls(
                "training program",
                devices,
                True,
                lambda site: keys.training_key(seed, step, micro, site),
            )
            sums, state_leaves = self._training_values(calls, recipe, params, state, batch)
            recipe.results = [*_sums(sums), Parameter("state", STATE_TYPE)]
            return [*sums.values(), *state_leaves]

        return objective

    def _gradient(self, recipe: _Recipe) -> Callable[..., Any]:
        inner = self._plain_objective(recipe)

        def gradient(params, *rest):
            def scalar(leaves):
                values = inner(leaves, *rest)
                return values[0], values

            (_, values), grads = jax.value_and_grad(scalar, has_aux=True)(params)
            count = len(recipe.results) - 1
            recipe.results.insert(count, Parameter("grad", PARAMS_TYPE))
            return [*values[:count], *grads, *values[count:]]

        return gradient

    def _training_values(self, calls, recipe, params, state, batch):
        fields = self._prepared(calls, dict(zip(self._batch_names(recipe), batch, strict=True)))
        width = self.setup.schema["train"].width
        outputs, state_leaves, _ = self._forward(calls, params, state, fields, width)
        self._require("loss")
        loss = calls.call("loss", outputs, fields=fields)
        total, weight, _ = results.loss_pair(loss, calls.where("loss"))
        sums = {"loss": total, "weight": weight}
        if calls.has("train_metrics"):
            self._refuse_host_train_metrics(calls)
            given = calls.call("train_metrics", outputs, fields=fields)
            pairs = results.train_metric_pairs(given, calls.where("train_metrics"))
            for name, (value, count) in pairs.items():
                sums |= {f"metric.{name}.sum": value, f"metric.{name}.count": count}
        return sums, state_leaves

    def _forward_body(self, recipe: _Recipe, width: int) -> Callable[..., Any]:
        def forward(params, state, devices, seed, split, index, batch):
            calls = self._calls(
                f"forward at width {width}",
                devices,
                False,
                lambda site: keys.evaluation_key(seed, split, index, site),
            )
            fields = self._prepared(calls, dict(zip(self._batch_names(recipe), batch, strict=True)))
            _, _, (spec, leaves) = self._forward(calls, params, state, fields, width)
            recipe.outputs, recipe.tree_spec = results.output_group(width, leaves), spec
            recipe.results = [Parameter("outputs", TreeType(recipe.outputs.name))]
            return list(leaves.values())

        return forward

    def _reduce_body(
        self, recipe: _Recipe, width: int, rows: int, forward: ImportedFunction
    ) -> Callable[..., Any]:
        assert forward.outputs is not None
        assert forward.tree_spec is not None
        paths = [leaf.path for leaf in forward.outputs.leaves]
        spec = forward.tree_spec

        def reduce(outputs, devices, seed, split, index, batch):
            calls = self._calls(
                f"reduction of {rows} rows",
                devices,
                False,
                lambda site: keys.evaluation_key(seed, split, index, site),
            )
            fields = self._prepared(calls, dict(zip(self._batch_names(recipe), batch, strict=True)))
            fields = {name: _cut(value, width, rows) for name, value in fields.items()}
            cut = {path: leaf[:rows] for path, leaf in zip(paths, outputs, strict=True)}
            values = self._reduced(calls, unflatten(spec, cut), fields, rows)
            recipe.results = [
                Parameter(name, TensorType(ir_dtype(value.dtype), tuple(value.shape)))
                for name, value in values.items()
            ]
            return list(values.values())

        return reduce

    def _reduced(
        self, calls: HookCalls, outputs: Any, fields: Mapping[str, Any], rows: int
    ) -> dict[str, jax.Array]:
        values: dict[str, jax.Array] = {}
        if "loss" in self._reduces():
            loss = calls.call("loss", outputs, fields=fields)
            total, weight, pair = results.loss_pair(loss, calls.where("loss"))
            count = jnp.float32(rows)
            values["loss.sum"] = total if pair else total * count
            values["loss.weight"] = weight if pair else count
        if "metrics" in self._reduces():
            given = calls.call("metrics", outputs, fields=fields)
            named = results.device_metric_results(given, calls.where("metrics"))
            values |= {f"metric.{name}": value for name, value in named.items()}
        return values

    def _initial_values(self, seed: jax.Array) -> list[Any]:
        calls = self._calls("initial values", (), True, lambda site: keys.seed_key(seed))
        _, params, state = calls.invoke("build_model", keys.seed_key(seed))
        where = self._where("build_model")
        leaves, treedef = jtu.tree_flatten(params)
        if treedef != self.groups.params_treedef:
            raise HookError(
                60,
                "build_model returned other params when traced than on the host",
                where=where,
                help="the tree of params may not depend on values",
            )
        cast = [
            jnp.asarray(leaf).astype(np_dtype(row.dtype))
            for leaf, row in zip(leaves, self.groups.params.leaves, strict=True)
        ]
        return [*cast, *results.next_state(state, self.groups, where)]

    # Pieces they share.

    def _prepared(self, calls: HookCalls, batch: dict[str, Any]) -> dict[str, Any]:
        if not calls.has("prepare"):
            return batch
        made = calls.call("prepare", fields=batch)
        return batch | results.prepared(made, calls.where("prepare"))

    def _forward(self, calls, params, state, fields, width):
        self._require("forward")
        where = calls.where("forward")
        result = calls.call(
            "forward",
            self.setup.model,
            self.groups.params_tree(params),
            self.groups.state_tree(state),
            fields=fields,
        )
        outputs, new_state = results.forward_pair(result, where)
        spec, leaves = results.output_leaves(outputs, width, where)
        return outputs, results.next_state(new_state, self.groups, where), (spec, leaves)

    def _calls(self, phase: str, devices: Sequence[Any], train: bool, key) -> HookCalls:
        named = dict(zip(self.setup.device, devices, strict=False))
        return HookCalls(self.setup, self.root, phase, named, train, key)

    def _require(self, hook: str) -> None:
        if hook not in self.setup.routing:
            raise HookError(60, f"the experiment has no `{hook}` hook", help=f"define `{hook}`")

    def _where(self, hook: str) -> str:
        route = self.setup.routing.get(hook)
        return route.where if route is not None else hook

    def _reduces(self) -> tuple[str, ...]:
        """The hooks that a reduction runs."""
        on_device = "metrics" in self.setup.routing and self._residency("metrics") == "device"
        wanted = {"loss": "loss" in self.setup.routing, "metrics": on_device}
        return tuple(hook for hook, there in wanted.items() if there)

    def _residency(self, hook: str) -> str:
        chosen = getattr(self.setup.experiment, "metrics_residency", None)
        default = "device" if hook == "train_metrics" else "host"
        return default if chosen is None else str(chosen(hook))

    def _refuse_host_train_metrics(self, calls: HookCalls) -> None:
        if self._residency("train_metrics") == "device":
            return
        raise BuildError(
            42,
            "train_metrics under `host` would make the train step return its outputs",
            where=calls.where("train_metrics"),
            help="leave metrics_residency('train_metrics') at \"device\"",
        )

    # Signatures.

    def _start(self, name: str, *, with_model: bool) -> _Recipe:
        recipe = _Recipe(name, [], [], [], 2 if with_model else 0, lambda: None)
        if with_model:
            recipe.params += [Parameter("params", PARAMS_TYPE), Parameter("state", STATE_TYPE)]
            for group, label in ((self.groups.params, "params"), (self.groups.state, "state")):
                recipe.arguments.append(_leaf_names(label, group))
                recipe.avals.append(_group_avals(group))
        leaves = self.setup.device.values()
        recipe.params += [Parameter(leaf.name, _device_type(leaf)) for leaf in leaves]
        recipe.arguments += [(leaf.name,) for leaf in leaves]
        recipe.avals.append(tuple(_device_aval(leaf) for leaf in leaves))
        self._append(recipe, "seed", SEED, jax.ShapeDtypeStruct((2,), jnp.uint32))
        return recipe

    def _evaluation(self, name: str, width: int, *, with_model: bool) -> _Recipe:
        recipe = self._start(name, with_model=with_model)
        for word in ("split", "index"):
            self._append(recipe, word, I32, jax.ShapeDtypeStruct((), jnp.int32))
        self._append_fields(recipe, width)
        return recipe

    def _append(self, recipe: _Recipe, name: str, kind: Type, aval: Any) -> None:
        recipe.params.append(Parameter(name, kind))
        recipe.arguments.append((name,))
        recipe.avals.append(aval)

    def _append_fields(self, recipe: _Recipe, width: int) -> None:
        schema = self.setup.schema["train"]
        names = [name for name in sorted(schema.fields) if name in self._wanted_fields(recipe.name)]
        avals = []
        for name in names:
            spec = schema.fields[name]
            shape = (width, *spec.shape)
            recipe.params.append(Parameter(name, TensorType(spec.dtype, shape)))
            recipe.arguments.append((name,))
            avals.append(jax.ShapeDtypeStruct(shape, np_dtype(spec.dtype)))
        recipe.avals.append(tuple(avals))

    def _wanted_fields(self, name: str) -> set[str]:
        kind = name.partition(".")[0]
        hooks = {
            "objective": ("prepare", "forward", "loss", "train_metrics"),
            "forward": ("prepare", "forward"),
            "reduce": ("prepare", *self._reduces()),
        }[kind]
        routing = self.setup.routing
        return {field for hook in hooks if hook in routing for field in routing[hook].fields}

    def _batch_names(self, recipe: _Recipe) -> list[str]:
        return [p.name for p in recipe.params[len(recipe.params) - len(recipe.avals[-1]) :]]

    # Tracing.

    def _imported(self, recipe: _Recipe, *, drop_fields: bool = False) -> ImportedFunction:
        traced = self._traced(recipe, drop_fields=drop_fields)
        return import_together([traced], self.root, self.version)[0]

    def _traced(self, recipe: _Recipe, *, drop_fields: bool = False) -> TracedFunction:
        recipe.body.__name__ = recipe.name.partition(".")[0]
        closed = jax.jit(recipe.body, keep_unused=True).trace(*recipe.avals).jaxpr
        fields = self._field_of_argument(recipe)
        keep = [field is None or not drop_fields for field in fields]
        smaller, used = drop_dead(closed, keep)
        notes = self._wrap_notes(closed, fields)
        dead = sum(not there for there in used)
        pairs = list(zip(recipe.params, recipe.arguments, strict=True))
        if dead:
            count = len(recipe.avals[-1])
            live = zip(pairs[-count:], used[-count:], strict=True)
            pairs = [*pairs[:-count], *(pair for pair, there in live if there)]
        module = self._lowered(recipe.name, smaller)
        return TracedFunction(
            recipe.name,
            module,
            tuple(param for param, _ in pairs),
            tuple(group for _, group in pairs),
            tuple(recipe.results),
            recipe.constants_at,
            recipe.of,
            recipe.wrt,
            tuple(notes),
            recipe.outputs,
            recipe.tree_spec,
        )

    def _lowered(self, name: str, closed: Any) -> Any:
        def function(*arguments):
            return jaxpr_as_fun(closed)(*arguments)

        function.__name__ = name
        avals = [_aval_of(aval) for aval in closed.in_avals]
        with every_frame_in_locations():
            traced = jax.jit(function, keep_unused=True).trace(*avals)
            lowered = traced.lower(lowering_platforms=(self.platform,))
        return lowered.compiler_ir("stablehlo")

    def _field_of_argument(self, recipe: _Recipe) -> list[str | None]:
        count = len(recipe.avals[-1]) if recipe.name != "init" else 0
        names = [name for group in recipe.arguments for name in group]
        split = len(names) - count
        return [None] * split + names[split:]

    def _wrap_notes(self, closed: Any, fields: Sequence[str | None]) -> list[str]:
        fresh = [wrap for wrap in wraps(closed, fields, self.root) if wrap not in self._wraps]
        self._wraps.update(fresh)
        return [wrap.note() for wrap in fresh]


def _sums(values: Mapping[str, Any]) -> list[Parameter]:
    return [Parameter(name, F32) for name in values]


def _leaf_names(label: str, group: Group) -> tuple[str, ...]:
    return tuple(f"{label}.{leaf.path}" for leaf in group.leaves)


def _group_avals(group: Group) -> tuple[Any, ...]:
    return tuple(jax.ShapeDtypeStruct(leaf.shape, np_dtype(leaf.dtype)) for leaf in group.leaves)


def _device_type(leaf: Any) -> TensorType:
    return TensorType(leaf.dtype, tuple(leaf.shape), weak=_is_weak(leaf))


def _device_aval(leaf: Any) -> Any:
    # a strong f32 scalar would turn bf16 activations into f32; a weak one doesn't
    return jax.ShapeDtypeStruct(tuple(leaf.shape), np_dtype(leaf.dtype), weak_type=_is_weak(leaf))


def _is_weak(leaf: Any) -> bool:
    return bool(leaf.scalar) and leaf.dtype != "i1"


def _aval_of(aval: Any) -> Any:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _cut(value: Any, width: int, rows: int) -> Any:
    return value[:rows] if getattr(value, "ndim", 0) and value.shape[0] == width else value
