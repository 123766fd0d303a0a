"""What the runtime sees of an experiment: data, values, schedules, host metrics, logger.

Predicting needs none of it: `NoHost` stands in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nitro_runtime.places import Kind, Place

if TYPE_CHECKING:
    from nitro_runtime.data import Source

Scalar = float | int | bool


class HostHooks(Protocol):
    """The experiment's host half.

    * `splits`: the sources by split name; empty when the experiment brings no data.
    * `values`: the base value of every slot of the packed scalars, by `ScalarEntry.name`.
    * `schedules`: number or callable (factory or schedule) by `ScalarEntry.name`; the engine
      resolves them once, with the horizon.
    * `device_arrays`: every `device` argument by leaf name.
    * `metric_fields`: the batch fields the host-resident `metrics` hook asks for; None when there
      is no such hook.
    * `logger`: one logger, several, or None; `checkpointer`, `early_stop`: objects or None.
    * `root`: the folder that lines of the experiment's code are relative to; None: where one is.
    """

    @property
    def splits(self) -> Mapping[str, Source]: ...
    @property
    def values(self) -> Mapping[str, Scalar]: ...
    @property
    def schedules(self) -> Mapping[str, Any]: ...
    @property
    def device_arrays(self) -> Mapping[str, np.ndarray]: ...
    @property
    def metric_fields(self) -> tuple[str, ...] | None: ...
    @property
    def logger(self) -> Any: ...
    @property
    def checkpointer(self) -> Any: ...
    @property
    def early_stop(self) -> Any: ...
    @property
    def root(self) -> str | None: ...

    def metrics(self, outputs: Any, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The host-resident metrics of one batch, cut to its real rows (all fields, strings too).

        Values: `(sum, count)`, `(sum, None)` for a plain sum, `Max`, `Min`, `Concat`; nested
        mappings name `group/name`.
        """
        ...

    def finalize_metrics(self, acc: dict[str, Any], split: str) -> Mapping[str, Any]:
        """Reduced values of a pass -> what is reported (`acc` itself by default)."""
        ...

    def checkpoint_filename(
        self, *, epoch: int, step: int, metric: str | None, score: float | None
    ) -> str | None:
        """The name of a checkpoint; None for the standard one."""
        ...

    def device_changed(self, name: str, value: Any) -> None:
        """`set_device` gave the Device leaf `name` another value."""
        ...

    def record(self) -> dict[str, Any]:
        """For `meta.json`: `options`, `preset`, `fields`, `devices`, `derived` (plain JSON)."""
        ...

    def params(self) -> dict[str, Any]:
        """Flat and plain, for `log_params`."""
        ...

    def report(self) -> str:
        """The binding report's text."""
        ...

    def describe(self) -> dict[str, str]:
        """Named ingredients of the programs, so that a compile is explained by what changed."""
        ...


def host_code(host: HostHooks) -> Place:
    """Where a run's sources, schedules, loggers and rules are called: a mark has no step to stop.

    Threads that read ahead run there too.
    """
    return Place("a source, schedule, logger or rule of the run", Kind.REFUSED, host.root)


@dataclass
class NoHost:
    """A host without an experiment: splits and values are plain data, nothing is hooked."""

    splits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    values: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    schedules: Mapping[str, Any] = field(default_factory=dict[str, Any])
    device_arrays: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    metric_fields: tuple[str, ...] | None = None
    logger: Any = None
    checkpointer: Any = None
    early_stop: Any = None
    root: str | None = None

    def metrics(self, outputs: Any, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None

    def finalize_metrics(self, acc: dict[str, Any], split: str) -> Mapping[str, Any]:
        return acc

    def checkpoint_filename(
        self, *, epoch: int, step: int, metric: str | None, score: float | None
    ) -> str | None:
        return None

    def device_changed(self, name: str, value: Any) -> None:
        return None

    def record(self) -> dict[str, Any]:
        return {}

    def params(self) -> dict[str, Any]:
        return {}

    def report(self) -> str:
        return ""

    def describe(self) -> dict[str, str]:
        return {}
