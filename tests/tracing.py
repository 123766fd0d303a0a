"""What setup hands to the tracer, made by hand from one batch; and running what is imported."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

from nitro_runtime.dtypes import ir_dtype, native
from nitro_runtime.trees import flatten
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.groups import make_groups
from nitroc.frontend.importer import ImportedFunction
from nitroc.frontend.jax_internals import deserialize_portable, ir, make_ir_context
from nitroc.frontend.source import class_root, function_location
from nitroc.frontend.trace import Tracer

HOOKS = ("build_model", "prepare", "forward", "loss", "train_metrics", "metrics")


@dataclass(frozen=True)
class Standin:
    experiment: Experiment
    device: dict[str, Any]
    schema: dict[str, Any]
    routing: dict[str, Any]
    model: Any
    params: Any
    state: Any
    no_decay: Any = None
    extra: dict[str, Any] = field(default_factory=dict)


def setup_of(experiment: Experiment, batch: Mapping[str, Any]) -> Any:
    arrays = {name: _narrow(np.asarray(value)) for name, value in batch.items()}
    width = next(iter(arrays.values())).shape[0]
    fields = {
        name: SimpleNamespace(dtype=ir_dtype(a.dtype), shape=a.shape[1:], numpy_dtype=a.dtype)
        for name, a in arrays.items()
    }
    model, params, state = experiment.build_model(jax.random.key(42))  # type: ignore[attr-defined]
    schema = SimpleNamespace(fields=fields, width=width, last=None, batches=1)
    return Standin(
        experiment,
        _devices(experiment),
        {"train": schema},
        {h: _route(experiment, h) for h in HOOKS if hasattr(experiment, h)},
        model,
        params,
        state,
    )


def _narrow(value: np.ndarray) -> np.ndarray:
    names = {"f8": np.float32, "i8": np.int32, "u8": np.uint32}
    return value.astype(names.get(native(value.dtype).str[1:], native(value.dtype)))


def _devices(experiment: Experiment) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, info in type(experiment).__nitro_fields__.items():
        if info.kind != "device":
            continue
        _, found = flatten(getattr(experiment, name))
        for path, value in found.items():
            array = _narrow(np.asarray(value))
            label = name if path == "@" else f"{name}.{path}"
            leaves[label] = SimpleNamespace(
                name=label,
                field=name,
                dtype=ir_dtype(array.dtype),
                shape=array.shape,
                value=array,
                scalar=path == "@" and not array.shape,
            )
    return leaves


def _route(experiment: Experiment, hook: str) -> Any:
    function = getattr(type(experiment), hook)
    given = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    return SimpleNamespace(
        fields=tuple(n for n in given if n not in ("train", "key")),
        absent=(),
        train="train" in given,
        key="key" in given,
        where=function_location(function, class_root(type(experiment))),
    )


def run(imported: ImportedFunction, arguments: Mapping[str, Any]) -> list[np.ndarray]:
    """Results of an imported function. `arguments`: per parameter an array, or a list of leaves."""
    module = deserialize_portable(imported.serialized, make_ir_context())
    name = imported.function.name
    with module.context:
        ir.SymbolTable.replace_all_symbol_uses(name, "main", module.operation)
        for op in module.body.operations:
            if op.attributes["sym_name"].value == name:
                ir.SymbolTable.set_symbol_name(op, "main")
                op.attributes["sym_visibility"] = ir.StringAttr.get("public")
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    device = jax.devices("cpu")[0]
    executable = device.client.compile_and_load(
        buffer.getvalue(), xla_client.DeviceList((device,)), xla_client.CompileOptions()
    )
    flat: list[Any] = []
    for parameter in imported.function.params:
        value = arguments[parameter.name]
        flat += list(value) if isinstance(value, list | tuple) else [value]
    given = [jax.device_put(np.asarray(value), device) for value in flat]
    found = executable.execute_sharded(given).disassemble_into_single_device_arrays()
    return [np.asarray(array[0]) for array in found]


def constants_of(imported: ImportedFunction) -> dict[str, np.ndarray]:
    return {f"const.{name}": value for name, value in imported.constants.items()}


def tracer(experiment: Experiment, batch: Mapping[str, Any], **options: Any) -> Tracer:
    setup = setup_of(experiment, batch)
    return Tracer(setup, make_groups(setup), **options)
