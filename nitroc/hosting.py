"""The experiment's host half, as the runtime sees it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from nitro_runtime.checkpoints import TopKCheckpointer
from nitro_runtime.data import wrapped
from nitro_runtime.host import Scalar
from nitro_runtime.logging import JSONLogger
from nitro_runtime.places import Kind, Place, running
from nitroc.bundle.values import recorded
from nitroc.frontend.experiment import with_values
from nitroc.frontend.hooks import call_hook, has_hook, hook_location
from nitroc.frontend.optimizer import scalar_name
from nitroc.frontend.options import OBJECTS
from nitroc.frontend.setup import Setup
from nitroc.frontend.source import class_root

ONE_RUN = (*OBJECTS, "data")
"""Options that a record of a run can't hold: objects and arrays."""


class ExperimentHost:
    """Implements `nitro_runtime.host.HostHooks` for an experiment that is set up.

    Hooks see the experiment with resolved options, derived values and, for Device fields, the
    current host copies; the instance itself never changes.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.experiment = setup.experiment
        self.splits: Mapping[str, Any] = {n: wrapped(s) for n, s in setup.splits.items()}
        self.device_arrays: dict[str, np.ndarray] = {
            leaf.name: leaf.value for leaf in setup.device.values() if not leaf.scalar
        }
        self.values: dict[str, Scalar] = {
            leaf.name: leaf.value.item() for leaf in setup.device.values() if leaf.scalar
        }
        self._scalars = tuple(self.values)
        self._leaves: dict[str, Any] = {leaf.name: leaf.value for leaf in setup.device.values()}
        for name, value in setup.optimizer.values.items():
            self.values[scalar_name(name, self._scalars)] = value
        self.schedules = {name: entry.value for name, entry in setup.schedules.items()}
        self.logger = self._object("logger", JSONLogger)
        self.checkpointer = self._object("checkpointer", TopKCheckpointer)
        self.early_stop = setup.options["early_stop"].value

    def _object(self, name: str, default: type[Any]) -> Any:
        option = self.setup.options[name]
        return default() if option.source == "default" else option.value

    @property
    def root(self) -> str | None:
        return class_root(type(self.setup.experiment))

    @property
    def metric_fields(self) -> tuple[str, ...] | None:
        route = self.setup.routing.get("metrics")
        if route is None or self.setup.residency.get("metrics") != "host":
            return None
        return route.fields

    def metrics(self, outputs: Any, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        names = self.metric_fields
        if names is None:
            return None
        given = {name: fields[name] for name in names}
        return call_hook(self.experiment, "metrics", outputs, **given)

    def finalize_metrics(self, acc: dict[str, Any], split: str) -> Mapping[str, Any]:
        if not has_hook(self.experiment, "finalize_metrics"):
            return acc
        with self._refusing("finalize_metrics"):
            return call_hook(self.experiment, "finalize_metrics", acc, split)

    def checkpoint_filename(
        self, *, epoch: int, step: int, metric: str | None, score: float | None
    ) -> str | None:
        if not has_hook(self.experiment, "checkpoint_filename"):
            return None
        given = {"epoch": epoch, "step": step, "metric": metric, "score": score}
        with self._refusing("checkpoint_filename"):
            return call_hook(self.experiment, "checkpoint_filename", **given)

    def _refusing(self, hook: str) -> AbstractContextManager[Place]:
        """The place of a host hook: a mark has no step to stop."""
        return running(Place(hook, Kind.REFUSED, self.root))

    def device_changed(self, name: str, value: Any) -> None:
        self._leaves[name] = np.asarray(value)
        if name in self._scalars:
            self.values[name] = np.asarray(value).item()
        built = self.setup.device_fields.build(self._leaves)
        self.experiment = with_values(self.experiment, built)

    def record(self) -> dict[str, Any]:
        setup = self.setup
        return {
            "options": {n: recorded(o.value) for n, o in setup.options.items() if n not in ONE_RUN},
            "preset": setup.options["preset"].value,
            "fields": {
                **{n: recorded(v) for n, v in setup.graphconst.items()},
                **{n: recorded(v) for n, v in setup.host.items()},
            },
            "devices": {n: _device_record(v) for n, v in self._leaves.items()},
            "derived": {n: recorded(v) for n, v in setup.derived.items()},
        }

    def params(self) -> dict[str, Any]:
        setup = self.setup
        flat: dict[str, Any] = {
            name: value
            for name, value in setup.host.items()
            if isinstance(value, bool | int | float)
            or (isinstance(value, str) and len(value) < 200)
        }
        flat |= {name: recorded(value) for name, value in setup.graphconst.items()}
        flat |= {name: _device_record(value) for name, value in self._leaves.items()}
        flat |= {n: recorded(o.value) for n, o in setup.options.items() if n not in ONE_RUN}
        return {**flat, "nitroc": importlib.metadata.version("nitroc")}

    def report(self) -> str:
        return self.setup.report.text()

    def describe(self) -> dict[str, str]:
        setup = self.setup
        named = {"experiment": type(setup.experiment).__name__}
        named |= {f"GraphConst {n}": str(recorded(v)) for n, v in setup.graphconst.items()}
        named |= {f"option {n}": str(o.value) for n, o in setup.options.items() if o.baked}
        for hook, route in setup.routing.items():
            named[f"hook {hook}"] = f"{_source_digest(setup, hook)} {route.where}"
        return named


def _device_record(value: Any) -> Any:
    array = np.asarray(value)
    return array.item() if array.shape == () else recorded(array)


def _source_digest(setup: Setup, hook: str) -> str:
    function = getattr(type(setup.experiment), hook, None)
    try:
        text = inspect.getsource(inspect.unwrap(function)) if function is not None else ""
    except (OSError, TypeError):  # no source to compare by: the place must do
        text = hook_location(setup.experiment, hook)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
