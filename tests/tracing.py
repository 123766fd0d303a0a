"""The tracer of an experiment set up on one batch, and running what is imported."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

from nitroc.frontend.experiment import Experiment
from nitroc.frontend.importer import ImportedFunction
from nitroc.frontend.jax_internals import deserialize_portable, ir, make_ir_context
from nitroc.frontend.setup import Setup, prepare
from nitroc.frontend.trace import Tracer


def trees_of(setup: Setup) -> tuple[Any, Any]:
    """The first params and state, in the trees of `build_model`."""
    groups = setup.groups
    params = [groups.initial[f"param/{leaf.path}"] for leaf in groups.params.leaves]
    state = [groups.initial[f"state/{leaf.path}"] for leaf in groups.state.leaves]
    return groups.params_tree(params), groups.state_tree(state)


def setup_of(experiment: Experiment, batch: Mapping[str, Any]) -> Setup:
    return prepare(experiment, {"data": {"train": [dict(batch)]}}, {})


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
    return Tracer(setup_of(experiment, batch), **options)
