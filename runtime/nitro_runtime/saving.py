"""What a checkpoint holds of a run, taken at an epoch's end."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import numpy as np

from nitro_runtime.errors import UsageError
from nitro_runtime.options import RunOptions
from nitro_runtime.run import Run, store_row
from nitro_runtime.run_dir import utc_now
from nitro_runtime.snapshot import MAJOR, MINOR, Snapshot
from nitro_runtime.state import HALTED


def producer() -> str:
    """The version that writes: of the installed distribution."""
    try:
        return version("nitroc")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"


def snapshot(run: Run) -> Snapshot:
    """Host copies of everything a resume needs, and `meta.json`'s keys."""
    arrays = run.machine.arrays()
    arrays.pop(f"slot/{HALTED}", None)
    arrays.update((f"device/{n}", v) for n, v in run.machine.device_values.items())
    return Snapshot(arrays, _meta(run))


def _meta(run: Run) -> dict[str, Any]:
    record = run.host.record()
    return {
        "format": {"major": MAJOR, "minor": MINOR},
        "files": {},
        "producer": producer(),
        "written_at": utc_now(),
        "run_id": run.run_id,
        "parent": run.parent,
        "bundle": run.machine.manifest.digest,
        "epoch": run.epochs,
        "step": run.step,
        "t": run.t,
        "position": None,
        "skips": {"all": 0, "row": 0},
        "seed": run.seed,
        "horizon": run.total,
        "options": strict({**record.get("options", {}), **options(run.options)}),
        "preset": record.get("preset"),
        "fields": fields(run),
        "devices": device_record(run),
        "derived": strict(record.get("derived")),
        "layout": run.machine.layout.rows(),
        "anchors": {},
        "metrics": [store_row(row) for row in run.history.rows],
        "score": None,
        "early_stop": stopper_state(run.stopper),
        "checkpointer": None,
        "logger": run.loggers.states(),
        "weights_from": run.weights_from,
        "stop_reason": None,
    }


def options(given: RunOptions) -> dict[str, Any]:
    """The run options as plain JSON."""
    return {f.name: _plain(getattr(given, f.name)) for f in dataclasses.fields(given)}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


def fields(run: Run) -> dict[str, Any]:
    """Host values as the host knows them, GraphConst ones as the bundle holds them."""
    entries = run.machine.manifest.fields
    recorded = {n: e.value for n, e in entries.items() if e.kind == "Host"}
    baked = {n: e.value for n, e in entries.items() if e.kind == "GraphConst"}
    return strict({**recorded, **run.host.record().get("fields", {}), **baked})


def device_record(run: Run) -> dict[str, Any]:
    """Device values as the host knows them; without a host, scalars by name and arrays by type.

    Arrays are in the tensor file.
    """
    known = run.host.record().get("devices")
    if known:
        return strict(known)
    scalars = {name: run.scalars.values[name] for name in run.scalars.device_names()}
    arrays = {
        name: {"dtype": str(value.dtype), "shape": list(np.shape(value))}
        for name, value in run.machine.device_values.items()
    }
    return strict({**scalars, **arrays})


def stopper_state(stopper: Any) -> Any:
    """The stopping rule's memory; null for a rule that keeps none, or none to be stored.

    E-USAGE-067 for one that is not plain JSON.
    """
    if stopper is None or not hasattr(stopper, "state_dict"):
        return None
    state = strict(stopper.state_dict())
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(
            67,
            f"state_dict() of {type(stopper).__name__} is not plain JSON: {error}",
            where="option early_stop",
            help="return numbers, text, lists and dicts, or leave state_dict out",
        ) from error
    return state


def strict(value: Any) -> Any:
    """`value` with `{"repr": "nan"}` for each number that is not finite, which JSON lacks."""
    if isinstance(value, Mapping):
        return {k: strict(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"repr": repr(float(value))}
    return value


def loose(value: Any) -> Any:
    """The inverse of `strict`."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        if items.keys() == {"repr"} and items["repr"] in ("nan", "inf", "-inf"):
            return float(items["repr"])
        return {k: loose(v) for k, v in items.items()}
    return [loose(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value
