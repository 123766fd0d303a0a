"""A bundle's own host half: what runs when its Python is not imported.

Scalars are those the manifest records, constant or as tables; no hook of the experiment runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nitro_runtime.bundle import Bundle
from nitro_runtime.checkpoints import TopKCheckpointer
from nitro_runtime.host import NoHost, Scalar
from nitro_runtime.logging import JSONLogger
from nitro_runtime.manifest import ScheduleEntry
from nitro_runtime.schedules import schedule

CONSTANT = "constant"
"""The source of a scalar that no schedule moves; its table has one value."""


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
        n: schedule(_Table(e)) for n, e in entries.items() if e.source != CONSTANT and e.table
    }
    return NoHost(
        splits=splits,
        values=values,
        schedules=moving if "train" in splits else {},
        logger=JSONLogger() if "train" in splits else None,
        checkpointer=TopKCheckpointer() if "train" in splits else None,
    )


def not_run(bundle: Bundle) -> list[str]:
    """What the experiment configures and a run without its Python leaves out."""
    hooks = bundle.manifest.routing.hooks
    names = [name for name in ("metrics",) if name in hooks]
    return [f"hook {name} ({hooks[name].source}) is not run" for name in names]


def _exact(value: float, dtype: str) -> Scalar:
    if dtype == "i1":
        return bool(value)
    return int(value) if dtype.startswith("i") else value


class _Table:
    """A recorded schedule: asked with `step - 1`, holding its last value."""

    def __init__(self, entry: ScheduleEntry) -> None:
        assert entry.table is not None
        self._values = entry.table

    def __call__(self, index: int) -> float:
        return self._values[min(index, len(self._values) - 1)]
