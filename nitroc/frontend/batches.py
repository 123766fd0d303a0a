"""Schemas and routes of the splits: what is loaded, what `prepare` makes, what each hook gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import jax
import numpy as np

from nitro_runtime.data.schema import Look, Schema, describe, make_schema
from nitro_runtime.dtypes import np_dtype
from nitro_runtime.errors import DataError
from nitroc.errors import HookError
from nitroc.frontend.device import DeviceLeaf, DeviceValues
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.hookcalls import HookCalls
from nitroc.frontend.hooks import HOOKS, call_hook, has_hook, hook_location
from nitroc.frontend.keys import evaluation_key
from nitroc.frontend.results import prepared
from nitroc.frontend.routing import Available, Route, route_hook
from nitroc.frontend.source import class_root

Residency = Literal["host", "device"]

BEFORE_OUTPUTS = ("prepare", "forward")
AFTER_OUTPUTS = ("loss", "metrics", "train_metrics")


@dataclass(frozen=True)
class Routing:
    """Routes by hook, schemas by split, what `prepare` makes, where metrics run, report lines."""

    routes: dict[str, Route]
    schema: dict[str, Schema]
    made: dict[str, Any]
    residency: dict[str, Residency]
    notes: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


def read_residency(experiment: Experiment) -> dict[str, Residency]:
    """Where `metrics` and `train_metrics` run; E-HOOK-006 for another word."""
    found: dict[str, Residency] = {"metrics": "host", "train_metrics": "device"}
    if not has_hook(experiment, "metrics_residency"):
        return found
    for hook in found:
        place = call_hook(experiment, "metrics_residency", hook)
        if place not in ("host", "device"):
            raise HookError(
                6,
                f"metrics_residency returned {place!r} for {hook}, expected 'host' or 'device'",
                where=hook_location(experiment, "metrics_residency"),
                help="return 'host' or 'device'",
            )
        found[hook] = place
    return found


def route_splits(
    experiment: Experiment, values: DeviceValues, looks: Mapping[str, Look]
) -> Routing:
    """Routes every hook against the train split, and checks the other splits against the routes.

    Raises what `route_hook` and `make_schema` do, and what `prepare` raises when it is traced.
    """
    residency = read_residency(experiment)
    if "train" not in looks:
        return Routing({}, {}, {}, residency)
    seen = looks["train"]
    routing = route_batch(experiment, values, seen, residency, (*BEFORE_OUTPUTS, *AFTER_OUTPUTS))
    for name, other in looks.items():
        if name != "train":
            routing.schema[name] = check_split(experiment, routing, other)
    return routing


def route_batch(
    experiment: Experiment,
    values: DeviceValues,
    seen: Look,
    residency: dict[str, Residency],
    hooks: tuple[str, ...],
) -> Routing:
    """Routes `hooks` against one split's first batch, and makes its schema."""
    loaded = {name: describe(value) for name, value in seen.first.items()}
    numeric = list(seen.numeric)
    routes: dict[str, Route] = {}
    made: dict[str, Any] = {}
    if has_hook(experiment, "prepare"):
        available = Available(numeric, loaded)
        route = route_hook(experiment, HOOKS["prepare"], available, on_host=False, split=seen.split)
        routes["prepare"] = route
        made = _made(experiment, values, make_schema(seen, route.fields), route)
    later = Available([*numeric, *(n for n in made if n not in numeric)], loaded, set(made))
    for hook in hooks:
        if hook == "prepare" or not has_hook(experiment, hook):
            continue
        on_host = residency.get(hook) == "host"
        routes[hook] = route_hook(experiment, HOOKS[hook], later, on_host=on_host, split=seen.split)
    schema = make_schema(seen, _transferred(routes, made, residency))
    notes = list(_replaced(routes, made, loaded, residency))
    return Routing(routes, {seen.split: schema}, made, residency, notes)


def _transferred(
    routes: Mapping[str, Route], made: Mapping[str, Any], residency: Mapping[str, Residency]
) -> set[str]:
    """The loaded fields that programs take."""
    raw = set(routes["prepare"].fields) if "prepare" in routes else set[str]()
    for hook, route in routes.items():
        if hook != "prepare" and residency.get(hook) != "host":
            raw |= {name for name in route.fields if name not in made}
    return raw


def _replaced(
    routes: Mapping[str, Route],
    made: Mapping[str, Any],
    loaded: Mapping[str, str],
    residency: Mapping[str, Residency],
) -> list[tuple[str, str]]:
    return [
        (hook, f"reads {name} as loaded; prepare replaces it on the device")
        for hook, route in routes.items()
        if residency.get(hook) == "host"
        for name in route.fields
        if name in made and name in loaded
    ]


@dataclass(frozen=True)
class _Preparing:
    """As much of a setup as calling `prepare` needs."""

    experiment: Experiment
    routing: dict[str, Route]
    device: dict[str, DeviceLeaf]


def _made(
    experiment: Experiment, values: DeviceValues, schema: Schema, route: Route
) -> dict[str, Any]:
    """What `prepare` makes of a batch, as shapes and dtypes by field name."""
    setup = cast("Any", _Preparing(experiment, {"prepare": route}, values.leaves))

    def run(words: Any, devices: Any, fields: Any) -> Any:
        def key(site: str) -> Any:
            return evaluation_key(words, words[0], words[1], site)

        root = class_root(type(experiment))
        named = dict(zip(values.leaves, devices, strict=True))
        calls = HookCalls(setup, root, "prepare", named, False, key)
        return prepared(calls.call("prepare", fields=fields), route.where)

    fields = {
        name: jax.ShapeDtypeStruct((schema.width, *spec.shape), np_dtype(spec.dtype))
        for name, spec in schema.fields.items()
    }
    devices = [_shape(leaf) for leaf in values.leaves.values()]
    return jax.eval_shape(run, jax.ShapeDtypeStruct((2,), np.uint32), devices, fields)


def _shape(leaf: DeviceLeaf) -> Any:
    weak = leaf.scalar and leaf.dtype != "i1"
    return jax.ShapeDtypeStruct(leaf.shape, np_dtype(leaf.dtype), weak_type=weak)


def check_split(experiment: Experiment, routing: Routing, seen: Look) -> Schema:
    """The schema of a split that is evaluated, checked against the routes of train.

    E-HOOK-003 for a field that a hook needs and the split does not have, E-DATA-012 for one of
    another dtype or row shape than in train. Where there is a `metrics` hook, a split without the
    fields of `loss` has no `val_loss`, which is a line of the report.
    """
    wanted = set[str]()
    for hook in (*BEFORE_OUTPUTS, "loss", "metrics"):
        route = routing.routes.get(hook)
        if route is None:
            continue
        on_host = routing.residency.get(hook) == "host"
        needed = route.fields if hook == "prepare" else _loaded_only(route, routing.made)
        missing = [name for name in needed if name not in seen.first]
        if missing and hook == "loss" and "metrics" in routing.routes:
            line = f"has no {', '.join(missing)}: no val_loss for it"
            routing.notes.append((f"split {seen.split}", line))
            continue
        if missing:
            raise _missing(hook, route, missing[0], seen)
        wanted |= set() if on_host else set(needed)
    schema = make_schema(seen, wanted)
    _same_as_train(schema, routing.schema["train"], seen.split)
    return schema


def _loaded_only(route: Route, made: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in route.fields if name not in made)


def _missing(hook: str, route: Route, name: str, seen: Look) -> HookError:
    return HookError(
        3,
        f"hook {hook} takes the field {name!r}, which split 'train' has and split "
        f"{seen.split!r} has not",
        where=route.where,
        help=f"give {seen.split} the field too; it has {', '.join(sorted(seen.first))}",
    )


def _same_as_train(schema: Schema, train: Schema, split: str) -> None:
    for name, spec in schema.fields.items():
        expected = train.fields.get(name)
        if expected is not None and (spec.dtype, spec.shape) != (expected.dtype, expected.shape):
            raise DataError(
                12,
                f"field {name!r} holds {spec} per row in split {split!r} and {expected} in 'train'",
                where=f"split {split!r}, field {name!r}",
                help="give the field the same dtype and row shape in both splits",
            )
