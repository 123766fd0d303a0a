"""A bundle's own host half: what runs when its Python is not imported.

Scalars are those the manifest records, constant or as tables; no hook of the experiment runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nitro_runtime.bundle import Bundle
from nitro_runtime.checkpoints import TopKCheckpointer
from nitro_runtime.data import wrapped
from nitro_runtime.host import NoHost, Scalar
from nitro_runtime.logging import JSONLogger
from nitro_runtime.machine import CONSTANTS
from nitro_runtime.schedules import PlainSchedule

CONSTANT = "constant"
"""The source of a scalar that no schedule moves; its table has one value."""


HOST_HOOKS = ("derive", "finalize_metrics", "checkpoint_filename")
"""Hooks that always run on the host, and that a run without Python leaves out."""

OBJECTS = ("logger", "checkpointer", "early_stop")
"""Options that hold objects: only the experiment's Python can make them again."""


def recorded_host(bundle: Bundle, splits: Mapping[str, Any]) -> NoHost:
    """The host half of `bundle` over plain splits, with the default logger and checkpointer."""
    entries = bundle.manifest.schedules
    dtypes = {s.name: s.dtype for p in bundle.manifest.programs.values() for s in p.scalars}
    values = {
        name: _exact(entry.table[0], dtypes.get(name, "f32"))
        for name, entry in entries.items()
        if entry.table
    }
    moving = {
        name: _curve(entry.table, dtypes.get(name, "f32"))
        for name, entry in entries.items()
        if entry.source != CONSTANT and entry.table
    }
    return NoHost(
        splits={name: wrapped(source) for name, source in splits.items()},
        values=values,
        device_arrays={
            name.removeprefix("device/"): array
            for name, array in bundle.arrays(CONSTANTS).items()
            if name.startswith("device/")
        },
        schedules=moving if "train" in splits else {},
        logger=JSONLogger() if "train" in splits else None,
        checkpointer=TopKCheckpointer() if "train" in splits else None,
    )


def not_run(bundle: Bundle) -> list[str]:
    """What the experiment configures and a run without its Python leaves out, a line each."""
    manifest = bundle.manifest
    hooks = manifest.routing.hooks
    names = [name for name in HOST_HOOKS if name in hooks]
    if "metrics" in hooks and not _metrics_are_compiled(bundle):
        names.append("metrics")
    lines = [f"hook {name} ({hooks[name].source}) is not run" for name in names]
    for name in OBJECTS:
        option = manifest.options.get(name)
        if option is not None and option.source == "attribute" and option.value is not None:
            lines.append(f"option {name} ({option.value}) is not used")
    return [f"the experiment's Python is not imported: {line}" for line in lines]


def _metrics_are_compiled(bundle: Bundle) -> bool:
    programs = bundle.manifest.programs.values()
    words = [word.name for p in programs if p.role == "reduce" for word in p.report]
    results = [r.name for p in programs if p.role == "reduce" for r in p.results]
    ours = ("loss.", "report", "guard/", "mark/")
    return any(not name.startswith(ours) for name in (*words, *results))


def _curve(table: Sequence[float], dtype: str) -> PlainSchedule:
    return PlainSchedule(lambda index: _exact(table[index], dtype), len(table))


def _exact(value: float, dtype: str) -> Scalar:
    if dtype == "i1":
        return bool(value)
    return int(value) if dtype.startswith("i") else value
